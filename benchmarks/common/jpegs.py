"""JPEG files of 500 x 375: crops of scikit-learn's two sample photographs, mirrored or not."""

import multiprocessing
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

WIDTH, HEIGHT, QUALITY = 500, 375, 90
CHUNK = 250  # files that a process writes at once


def write_jpegs(folder: Path, count: int, *, processes: int = 1) -> None:
    """Write files 000000.jpg, 000001.jpg, ...; the same ones whatever the number of processes."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [range(begin, min(begin + CHUNK, count)) for begin in range(0, count, CHUNK)]
    if processes == 1 or len(parts) == 1:
        _write(folder, range(count))
        return
    context = multiprocessing.get_context("spawn")  # a device may be in use
    with ProcessPoolExecutor(min(processes, len(parts)), mp_context=context) as pool:
        list(pool.map(_write, [folder] * len(parts), parts))


def _write(folder: Path, numbers: Iterable[int]) -> None:
    from PIL import Image, ImageOps
    from sklearn.datasets import load_sample_images

    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    for number in numbers:
        draw, photo = np.random.default_rng(number), photos[number % 2]
        left, top = draw.integers(0, photo.width - WIDTH), draw.integers(0, photo.height - HEIGHT)
        image = photo.crop((left, top, left + WIDTH, top + HEIGHT))
        image = ImageOps.mirror(image) if draw.random() < 0.5 else image
        image.save(folder / f"{number:06}.jpg", quality=QUALITY)
