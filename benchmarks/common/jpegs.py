"""JPEG files of 500 x 375: crops of scikit-learn's two sample photographs, mirrored or not."""

from pathlib import Path

import numpy as np

WIDTH, HEIGHT, QUALITY = 500, 375, 90


def write_jpegs(folder: Path, count: int) -> None:
    """Write files 000000.jpg, 000001.jpg, ..."""
    from PIL import Image, ImageOps
    from sklearn.datasets import load_sample_images

    folder.mkdir(parents=True, exist_ok=True)
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    for number in range(count):
        draw, photo = np.random.default_rng(number), photos[number % 2]
        left, top = draw.integers(0, photo.width - WIDTH), draw.integers(0, photo.height - HEIGHT)
        image = photo.crop((left, top, left + WIDTH, top + HEIGHT))
        image = ImageOps.mirror(image) if draw.random() < 0.5 else image
        image.save(folder / f"{number:06}.jpg", quality=QUALITY)
