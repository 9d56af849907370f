"""Images: bytes to pixels, and a folder of images to a cache."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
from helpers.tiny import SIDE, tiny_encoder
from PIL import Image

from fuzz.image_samples import bombs, images, mutate_image
from fuzz.oracle import require
from fuzz.target import Target
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.embedding.embed import run_embedding
from pucache.errors import ImageError, SourceError
from pucache.images.decoding import MAX_PIXELS, decode
from pucache.images.source import open_source

SUFFICIENT = 8


@cache
def encoder():
    return tiny_encoder()


def check_decoding(sample: str, data: bytes, folder: Path) -> str:
    """Decoded twice the same, of the size that the file declares, and as Pillow alone decodes it."""
    image = decode(data)
    require(image.mode == "RGB" and image.width * image.height <= MAX_PIXELS, f"decoded to {image}")
    if image.width * image.height < 1 << 20:
        require(decode(data).tobytes() == image.tobytes(), "decoded twice, differently")
        expected = _plainly(data)
        require(expected is None or expected.tobytes() == image.tobytes(), "not the pixels that Pillow gives")
        small = decode(data, SUFFICIENT)
        require(min(small.size) >= min(SUFFICIENT, *image.size), f"{image.size} became {small.size}, too little")
    pixels = encoder().preprocess(image)
    require(tuple(pixels.shape) == (SIDE, SIDE, 3), f"preprocessed to {tuple(pixels.shape)}")
    return "decoded"


def _plainly(data: bytes) -> Image.Image | None:
    """The first frame as Pillow makes it RGB; None for what pucache does differently on purpose."""
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        try:
            turned = image.getexif().get(0x0112, 1) in range(2, 9)
        except Exception:
            turned = False
        if turned or image.has_transparency_data or image.mode not in ("1", "L", "P", "RGB", "CMYK", "YCbCr"):
            return None
        return image.convert("RGB")


def pixels_of(data: bytes) -> int:
    """Pixels that a file declares and that may be decoded, by its header alone."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            declared = image.width * image.height
    except Exception:
        return 0
    return declared if declared <= MAX_PIXELS else 0


def room(data: bytes) -> int:
    """A pixel takes 4 bytes in Pillow, and an image is there twice while it is converted."""
    return (96 << 20) + 8 * len(data) + 16 * pixels_of(data)


def check_embedding(sample: str, data: bytes, folder: Path) -> str:
    """One damaged image among good ones: a row or a failure, and the others as they are without it."""
    source = folder / "images"
    source.mkdir()
    good = {"a.png": images()["rgb.png"], "z.jpg": images()["rgb.jpg"]}
    for name, content in {**good, f"m-{sample}": data}.items():
        (source / name).write_bytes(content)
    report = run_embedding(open_source(source), folder / "cache.h5", encoder(), workers=0)
    made = EmbeddingCache(folder / "cache.h5")
    made.verify()
    require({*made.keys, *made.failures} == {*good, f"m-{sample}"}, f"rows {list(made.keys)}, failures {made.failures}")
    require(report.failures == made.failures, "the report and the cache tell different failures")
    rows = dict(zip(made.keys, made.X, strict=True))
    for name, content in good.items():
        require(np.allclose(rows[name], _row(content), atol=2e-3), f"the row of {name} is another one")
    if f"m-{sample}" in made.failures:
        return "failure"
    require(np.allclose(rows[f"m-{sample}"], _row(data), atol=2e-3), "the row is not that of the image")
    return "row"


def _row(data: bytes) -> np.ndarray:
    return encoder()([decode(data, encoder().preprocess.sufficient_side)])[0]


def _few_images() -> dict[str, bytes]:
    return {name: data for name, data in images().items() if len(data) < 2000}


def _with_bombs() -> dict[str, bytes]:
    return images() | {
        name: bombs()[name] for name in ("huge.webp", "huge.tif", "loop.tif", "huge.gif", "huge.bmp", "huge.jpg")
    }


TARGETS = [
    Target("decode", _with_bombs, check_decoding, (ImageError,), 400, mutate_image, room),
    Target("embed", _few_images, check_embedding, (SourceError,), 20, mutate_image, room),
]
