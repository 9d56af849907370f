"""Listing the parts of a source's images, and cutting them out of decoded images."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import MappingProxyType

import numpy as np
from PIL import Image

from ..errors import ImageError, SourceError
from ..storage.atomic import open_regular
from .decoding import REDUCED, Decoded, Decoding, decode_and_note, largest_scale, upright_size
from .listing import UNKNOWN, Listing, ListingBuilder
from .regions import BOXES, Region, grid_regions, part_key, square_regions
from .shards import ShardSource
from .source import Source, local_path

CLIPPED = "cut off at the border of its image"
_THREADS, _HEAD_BYTES = 16, 1 << 16  # that read headers, and the bytes of an image that usually hold its header
Box = tuple[int, int, int, int]
Known = tuple[tuple[int, int], int, int]  # width and height of an image, and bytes and time of its file
Piece = tuple[Callable[[], Image.Image], str]  # gives the pixels of a region or raises `ImageError`; what is cut off


def list_images(
    source: Source, tiles: str, decoding: Decoding, known: Mapping[str, Known] = MappingProxyType({})
) -> Listing:
    """List a source: its images, or with `tiles` their parts, which one share takes together.

    Tiles of pixels need the size of each image, which its header tells unless it is `known`. Raises `SourceError` where
    the source names boxes and the tiles are others, or the reverse.
    """
    boxes: dict[str, list[Region]] = getattr(source, "boxes", {})
    if boxes and tiles != BOXES:
        raise SourceError(
            f"{source.name} names parts of images, and the encoder takes "
            f"{f'tiles of {tiles}' if tiles else 'whole images'}; leave one of them out"
        )
    if tiles == BOXES and not boxes:
        raise SourceError(
            f"{source.name} names no parts of images, which the encoder takes; give a manifest with columns x, y, w, h"
        )
    images = source.scan()
    if not tiles:
        return images
    builder = ListingBuilder()
    builder.failures, builder.ignored = images.failures | getattr(source, "box_failures", {}), images.ignored
    positions: dict[str, int] = {}
    grid = grid_regions(tiles)
    if grid is None and not boxes:
        regions: Sequence[list[Region] | str] = _squares(source, images, tiles, decoding, known)
    else:
        regions = [grid or boxes[key] for key in images.keys]
    for position, (key, its) in enumerate(zip(images.keys, regions, strict=True)):
        if isinstance(its, str):
            builder.add_failure(key, its)
            continue
        for part in (part_key(key, region) for region in its):
            builder.add(part, *images.size_mtime[position].tolist())
            positions[part] = position
    return _with_order(builder.build(), images, positions)


def _with_order(parts: Listing, images: Listing, positions: dict[str, int]) -> Listing:
    """The parts, in the order and the groups of their images, whose numbers are the groups otherwise."""
    of_image = np.array([positions[key] for key in parts.keys], np.int64)
    groups = images.groups
    if groups is None:  # so that a share holds the parts of those images that it would hold whole
        groups = np.array([zlib.crc32(key.encode()) for key in images.keys], np.int64)
    parts.groups = groups[of_image]
    parts.order = of_image if images.order is None else images.order[of_image]
    parts.reordered, parts.unanswered = images.reordered, images.unanswered
    return parts


def _squares(
    source: Source, images: Listing, tiles: str, decoding: Decoding, known: Mapping[str, Known]
) -> list[list[Region] | str]:
    """Regions of each image, or why it has none."""

    def regions(key: str, size_mtime: np.ndarray) -> list[Region] | str:
        size, *unchanged = known.get(key, (None, UNKNOWN, UNKNOWN))
        try:
            if size is None or unchanged != size_mtime.tolist() or unchanged[1] == UNKNOWN:
                size = _size(source, key, decoding)
            return square_regions(tiles, size)
        except ImageError as error:
            return str(error)

    with ThreadPoolExecutor(1 if getattr(source, "sequential", False) else _THREADS) as pool:
        return list(pool.map(regions, images.keys, images.size_mtime))


def _size(source: Source, key: str, decoding: Decoding) -> tuple[int, int]:
    """Size of an image by its header; raises `ImageError`."""
    try:
        if path := local_path(source, key):
            with open_regular(path) as stream:
                return upright_size(stream, decoding)
        if isinstance(source, ShardSource):
            with suppress(ImageError):  # of what is more than a header, as of a header that is longer
                return upright_size(_Head(source.head(key, _HEAD_BYTES)), decoding)
        return upright_size(io.BytesIO(source.read(key)), decoding)
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror}") from error


class _Head(io.BytesIO):
    """The first bytes of a file; who reads on gets `ImageError`, unless these are not the usual number, and all."""

    def read(self, size: int | None = -1) -> bytes:
        """Read bytes; raises `ImageError` where the file may have more of them."""
        data = super().read(size)
        if len(self.getbuffer()) == _HEAD_BYTES and (size is None or not 0 <= size == len(data)):
            raise ImageError("its header is longer")
        return data


def decode_pieces(
    data: bytes, regions: Sequence[Region | None], sufficient_side: int, least_side: int, decoding: Decoding
) -> tuple[Decoded, Iterator[Piece]]:
    """Decode an image once; return it, and a piece for each region (None: the whole).

    Its scale leaves the shorter side of each part `sufficient_side` pixels where it has as many. A part fails that has
    less than `least_side`, which the encoder takes, because the whole is too large to be decoded.
    """
    if None in regions:
        decoded = decode_and_note(data, sufficient_side, decoding)
        return decoded, ((lambda: decoded.image, "") for _ in regions)
    size = upright_size(io.BytesIO(data), decoding)
    boxes = [_box(region, size, least_side) for region in regions if region is not None]
    sides = [min(box[2] - box[0], box[3] - box[1]) for box in boxes if not isinstance(box, str)]
    if not sides:
        nothing = Image.new("RGB", (1, 1))
        return Decoded(nothing), ((partial(_cut, nothing, size, box), "") for box in boxes)
    decoded = decode_and_note(data, -(-sufficient_side * min(size) // min(sides)), decoding)
    if decoded.partial.startswith(REDUCED):  # no part has lost what the encoder sees
        decoded = decoded._replace(partial="")
    notes = (CLIPPED if region is not None and region.exceeds(size) else "" for region in regions)
    return decoded, ((partial(_cut, decoded.image, size, box), note) for box, note in zip(boxes, notes, strict=True))


def _box(region: Region, size: tuple[int, int], least_side: int) -> Box | str:
    """The box of a region in the original, or why it cannot be cut out."""
    try:
        box = region.box(size)
    except ImageError as error:
        return str(error)
    scale = largest_scale(size)
    if scale > 1 and min(box[2] - box[0], box[3] - box[1]) < scale * least_side:
        return (
            f"{size[0]} x {size[1]} pixels can be decoded at 1/{scale}, at which the part {region} has fewer pixels "
            f"than the {least_side} that the encoder takes; use larger parts, or cut the file"
        )
    return box


def _cut(image: Image.Image, size: tuple[int, int], box: Box | str) -> Image.Image:
    """Cut a box of the original, of this size, out of the decoded image, which may be smaller."""
    if isinstance(box, str):
        raise ImageError(box)
    sides = zip(box, image.size * 2, size * 2, strict=True)
    left, top, right, bottom = (round(edge * side / original) for edge, side, original in sides)
    left, top = min(left, image.width - 1), min(top, image.height - 1)
    return image.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
