"""Thumbnails of cached images for HTML pages; an image that cannot be shown gets a reason instead.

This is the only module besides embedding that opens images.
"""

from __future__ import annotations

import base64
import io
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from PIL import Image, ImageDraw

from ..cache.embedding_cache import EmbeddingCache
from ..cache.exporting import Column
from ..errors import PUCacheError, SourceError, one_line
from ..images.decoding import FORMATS, Decoding, upright_size
from ..images.manifest import ManifestSource
from ..images.regions import Region, split_key, whole_key
from ..images.shards import ShardSource
from ..images.source import Source, image_digest, local_path, open_source, part_digest
from ..images.tiling import decode_pieces
from ..progress import Progress, Silent
from ..storage.retries import RetriesExhausted
from ..storage.urls import is_url

QUALITY = 75  # of WebP; a photograph of 160 pixels takes 3 to 6 kB
THREADS = 4
LARGE = 20_000_000  # pixels; images above are decoded one at a time, to bound memory
NO_SOURCE = "the cache does not say where its images are"
CHANGED = "the file has changed since it was embedded"
SILENT_SECONDS = 20.0  # for which a host that did not answer is not asked again
_EXPORTED = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])  # as Hugging Face has images
_one_large = threading.Lock()


@dataclass(frozen=True)
class RowImage:
    """The image of a row, or the reason why there is none."""

    pixels: Image.Image | None = None  # upright, 8-bit RGB, no larger than asked for
    width: int = 0  # of the original in pixels, after its EXIF orientation; 0 where unknown
    height: int = 0
    problem: str = ""  # "", or one line: why there is no picture, or that the file has changed since it was embedded
    path: str = ""  # absolute path of the original where it is a file of this machine
    answered: bool = True  # False: its host gave no answer
    uri: str = ""  # of a thumbnail, which has no `pixels`: data:image/webp;base64,..., or "" where there is no picture


def thumbnails(
    cache: EmbeddingCache,
    rows: np.ndarray,
    *,
    images: str | Path | None = None,
    side: int = 160,
    progress: Progress | None = None,
) -> list[RowImage]:
    """Make a thumbnail of each row (int, in any order); an image that cannot be shown never raises.

    `images` is the source of the images, as for `pucache.open_source`; by default each cache file's own. `side` is the
    greatest width and height in pixels; smaller images are not enlarged. Raises `SourceError` where `images` cannot be
    opened, and `ValueError` where `side` is below 1.
    """
    if side < 1:
        raise ValueError(f"side must be at least 1 pixel, got {side}")
    sources = RowImages(cache, images)
    pictures = []
    with progress or Silent() as progress, ThreadPoolExecutor(THREADS) as pool:
        progress.start(len(rows), "pictures")
        for image in pool.map(lambda row: sources.read(row, side), np.asarray(rows, np.int64).tolist()):
            uri = "" if image.pixels is None else _uri(image.pixels)
            pictures.append(replace(image, pixels=None, uri=uri))
            progress.advance(1)
    return pictures


class RowImages:
    """Reads and decodes the images of a cache's rows; several threads may read at the same time.

    `images` is as for `thumbnails`; a cache file's own source is opened when the first of its images is read.
    """

    def __init__(self, cache: EmbeddingCache, images: str | Path | None = None):
        self._cache = cache
        self._starts = np.cumsum([0, *map(len, cache.files)])
        self._images = None if images is None else _open_indexed(images)
        self._sources: dict[str, Source | str] = {}
        self._opening = threading.Lock()
        self._silent: dict[str, tuple[float, str]] = {}  # hosts that did not answer: when, and the problem

    def read(self, row: int, side: int, *, place: bool = False) -> RowImage:
        """Decode the image of a row, scaled down to at most `side` pixels a side; never raises for an image.

        `place`: the whole image that the row is a part of, with a frame around the part.
        """
        file_number = int(np.searchsorted(self._starts, row, "right")) - 1
        file = self._cache.files[file_number]
        digest = file.digests[row - self._starts[file_number]].tobytes()
        decoding = Decoding.of(file.encoder.decoder)
        source, key = self._source(file.source), self._cache.keys[row]
        key, region = split_key(key) if file.encoder.tiles else whole_key(key)
        host = _host(source, key)
        since, problem = self._silent.get(host, (-math.inf, ""))
        if time.monotonic() - since < SILENT_SECONDS:  # it is not asked four times for each picture
            return RowImage(problem=problem)
        if place and region is not None:
            image = _read(source, key, None, bytes(32), side, decoding)
            image = image if image.pixels is None else _framed(image, image.pixels, region)
        else:
            image = _read(source, key, region, digest, side, decoding)
        if not image.answered:
            self._silent[host] = time.monotonic(), image.problem
        return image

    def _source(self, name: str) -> Source | str:
        """The source of a cache file, or the reason why it cannot be opened."""
        if self._images is not None:
            return self._images
        with self._opening:
            if name not in self._sources:
                self._sources[name] = _open_or_reason(name)
            return self._sources[name]


def thumbnail_column(cache: EmbeddingCache, side: int, images: str | Path | None = None) -> Column:
    """Column ``thumbnail`` for `pucache.cache.exporting.export`: a struct of a JPEG's bytes and its path.

    `side` is the greatest width and height in pixels, `images` as for `thumbnails`. Cells of images that cannot be
    shown are null. Raises `SourceError` where `images` cannot be opened.
    """
    pictures = RowImages(cache, images)

    def picture(row: int) -> dict[str, Any] | None:
        pixels = pictures.read(row, side).pixels
        return None if pixels is None else {"bytes": encoded(pixels, "JPEG", quality=QUALITY), "path": cache.keys[row]}

    def of(rows: np.ndarray) -> pyarrow.Array:
        with ThreadPoolExecutor(THREADS) as pool:
            return pyarrow.array(list(pool.map(picture, rows.tolist())), _EXPORTED)

    return pyarrow.field("thumbnail", _EXPORTED), of


def _open_or_reason(name: str) -> Source | str:
    try:
        return _open_indexed(name) if name else NO_SOURCE
    except SourceError as error:
        return one_line(error)


def _open_indexed(name: str | Path) -> Source:
    """Open a source and read its index at once, before several threads use it."""
    source = open_source(name)
    if isinstance(source, ShardSource):
        source.index()
    elif isinstance(source, ManifestSource):
        _ = source.paths
    return source


def _host(source: Source | str, key: str) -> str:
    """Scheme and host of the URL of an image; "" for a file of this machine."""
    if isinstance(source, str):
        return ""
    where = source.paths.get(key, "") if isinstance(source, ManifestSource) else source.name
    return "/".join(where.split("/")[:3]) if is_url(where) else ""


def _has_no_answer(error: Exception) -> bool:
    """Whether every attempt ended without an answer of the host, of which a status would be one."""
    exhausted = error.__cause__
    return isinstance(exhausted, RetriesExhausted) and getattr(exhausted.__cause__, "status", None) is None


def _read(
    source: Source | str, key: str, region: Region | None, expected_digest: bytes, side: int, decoding: Decoding
) -> RowImage:
    if isinstance(source, str):
        return RowImage(problem=source)
    path = local_path(source, key)
    try:
        data = source.read(key)
    except KeyError:
        return RowImage(problem=f"{source.name} does not hold it")
    except Exception as error:  # a file system behind a URL raises almost anything
        return RowImage(problem=one_line(error), answered=not _has_no_answer(error))
    width, height = _size(data)
    try:
        picture = _picture(data, region, side, decoding, large=not 0 < width * height <= LARGE)
        if region is not None:
            left, top, right, bottom = region.box(upright_size(io.BytesIO(data), decoding))
            width, height = right - left, bottom - top
    except PUCacheError as error:
        return RowImage(None, width, height, one_line(error), path)
    if (width - height) * (picture.width - picture.height) < 0:  # the picture is upright, the header's size is not
        width, height = height, width
    changed = any(expected_digest) and part_digest(image_digest(data), region) != expected_digest
    return RowImage(picture, width, height, CHANGED if changed else "", path)


def _framed(image: RowImage, pixels: Image.Image, region: Region) -> RowImage:
    """A whole image with a frame around a region, or without where the file has changed and has no such region."""
    try:
        edges = region.box((image.width, image.height))
    except PUCacheError:
        return image
    left, top, right, bottom = np.array(edges) * np.tile(np.divide(pixels.size, (image.width, image.height)), 2)
    picture = pixels.convert("RGB")
    draw = ImageDraw.Draw(picture)
    for grown, colour in ((1, "black"), (0, "white")):  # seen on any ground
        draw.rectangle([left - grown, top - grown, right + grown, bottom + grown], outline=colour, width=2)
    return replace(image, pixels=picture)


def _size(data: bytes) -> tuple[int, int]:
    """Width and height in the header, before the EXIF orientation is applied; zeros where it has none."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return image.size
    except Exception:  # Pillow's plugins raise almost anything; `decode` names the problem
        return 0, 0


def _picture(data: bytes, region: Region | None, side: int, decoding: Decoding, *, large: bool) -> Image.Image:
    with _one_large if large else nullcontext():
        picture = next(decode_pieces(data, [region], side, 0, decoding)[1])[0]()
        picture.thumbnail((side, side), reducing_gap=3)
    return picture


def _uri(picture: Image.Image) -> str:
    data = encoded(picture, "WEBP", quality=QUALITY, method=4)
    return "data:image/webp;base64," + base64.b64encode(data).decode()


def encoded(picture: Image.Image, form: str, **options: object) -> bytes:
    """Encode 8-bit RGB in a form of Pillow, without metadata: a profile may take more bytes than the picture."""
    stream, bare = io.BytesIO(), Image.new("RGB", picture.size)
    bare.paste(picture)  # without the profile and EXIF that `info` holds
    bare.save(stream, form, **options)
    return stream.getvalue()
