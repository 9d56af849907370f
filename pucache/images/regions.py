"""Parts of images: their keys, ``IMAGE#xywh=10,20,100,80``, as in W3C's Media Fragments, and what they cut out.

Only caches whose encoder has `tiles` have such keys, and all of theirs are such: a file's name may hold the mark too.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from ..errors import ImageError
from ..storage.limits import GRID_TILES, TILES

MARK = "#xywh="
BOXES = "boxes"  # the `tiles` of parts that a manifest names one by one
_PERCENT = 10_000  # units of a percentage in a `Region`
WHOLE = 100 * _PERCENT
_NUMBER = r"(\d{1,9}(?:\.\d{1,4})?)"
_FRAGMENT = re.compile(rf"(?:(pixel|percent):)?{_NUMBER},{_NUMBER},{_NUMBER},{_NUMBER}", re.ASCII)
_GRID = re.compile(r"([1-9]\d{0,2})x([1-9]\d{0,2})", re.ASCII)
_SQUARE = re.compile(r"([1-9]\d{0,5})(?: overlap (\d{1,6}))?", re.ASCII)


class Region(NamedTuple):
    """A rectangle of an upright image: integers, in pixels or in ten-thousandths of a percent of its sides."""

    x: int
    y: int
    w: int
    h: int
    percent: bool = False

    def __str__(self) -> str:
        if not self.percent:
            return f"{self.x},{self.y},{self.w},{self.h}"
        numbers = (f"{Decimal(number) / _PERCENT:f}" for number in self[:4])
        return "percent:" + ",".join(number.rstrip("0").rstrip(".") if "." in number else number for number in numbers)

    def exceeds(self, size: tuple[int, int]) -> bool:
        """Whether it ends outside of an image of this (width, height)."""
        return not self.percent and (self.x + self.w > size[0] or self.y + self.h > size[1])

    def box(self, size: tuple[int, int]) -> tuple[int, int, int, int]:
        """Left, top, right and bottom in an image of this (width, height), of which it may exceed a pixel.

        Raises `ImageError` where it has no such.
        """
        edges = np.array([self.x, self.y, self.x + self.w, self.y + self.h], np.int64)
        sides = np.array(size * 2, np.int64)
        if self.percent:  # edges are rounded, so that neighbours meet
            edges = (edges * sides + WHOLE // 2) // WHOLE
        if (edges > sides + 1).any():
            raise ImageError(f"the part {self} lies outside of its {size[0]} x {size[1]} pixels")
        left, top, right, bottom = np.minimum(edges, sides).tolist()
        if left >= right or top >= bottom:
            raise ImageError(f"the part {self} has no area in its {size[0]} x {size[1]} pixels")
        return left, top, right, bottom


def parse_region(fragment: str) -> Region | None:
    """The region of a fragment without its mark; None where it is none."""
    found = _FRAGMENT.fullmatch(fragment)
    if found is None:
        return None
    percent = found[1] == "percent"
    numbers = [Decimal(number) * (_PERCENT if percent else 1) for number in found.groups()[1:]]
    x, y, w, h = map(int, numbers)
    is_sound = numbers == [x, y, w, h] and w and h
    return Region(x, y, w, h, percent) if is_sound and not (percent and max(x + w, y + h) > WHOLE) else None


def part_key(image: str, region: Region) -> str:
    """Key of a part of an image."""
    return f"{image}{MARK}{region}"


def split_key(key: str) -> tuple[str, Region | None]:
    """Key of the image, and the region, of the key of a part; the key itself and None where it names no part."""
    image, mark, fragment = key.rpartition(MARK)
    region = parse_region(fragment) if mark else None
    return (key, None) if region is None else (image, region)


def whole_key(key: str) -> tuple[str, None]:
    """As `split_key`, of the keys of whole images."""
    return key, None


def covered_size(regions: Collection[str], tiles: str) -> tuple[int, int] | None:
    """Width and height of the image that has these squares and no others; None where there is none."""
    parsed = [region for region in map(parse_region, regions) if region]
    size = max((each.x + each.w for each in parsed), default=0), max((each.y + each.h for each in parsed), default=0)
    try:
        return size if sorted(map(str, square_regions(tiles, size))) == sorted(regions) else None
    except ImageError:
        return None


def image_of(key: str) -> str:
    """Key of the image that a part belongs to: the part's without its fragment."""
    return split_key(key)[0]


def check_tiles(tiles: str) -> None:
    """Raise `ValueError` for tiles that are none; "" stands for whole images."""
    grid, square = _GRID.fullmatch(tiles), _SQUARE.fullmatch(tiles)
    if grid and max(int(grid[1]), int(grid[2])) > GRID_TILES:
        raise ValueError(f"tiles {tiles}: at most {GRID_TILES} along a side")
    if square and int(square[2] or 0) >= int(square[1]):
        raise ValueError(f"tiles of {square[1]} pixels cannot overlap by {square[2]}; give less than their side")
    if not (grid or square or tiles in ("", BOXES)):
        raise ValueError(
            f"tiles must be ROWSxCOLUMNS such as 3x3, or a side in pixels such as 512, or '512 overlap 64'; "
            f"got {tiles!r}"
        )


def grid_regions(tiles: str) -> list[Region] | None:
    """Regions of a grid, the same for every image; None where they depend on its size."""
    if (grid := _GRID.fullmatch(tiles)) is None:
        return None
    rows, columns = ([round(WHOLE * edge / int(count)) for edge in range(int(count) + 1)] for count in grid.groups())
    return [
        Region(left, top, right - left, bottom - top, percent=True)
        for top, bottom in itertools.pairwise(rows)
        for left, right in itertools.pairwise(columns)
    ]


def square_regions(tiles: str, size: tuple[int, int]) -> list[Region]:
    """Squares of so many pixels that cover an image of this (width, height).

    Raises `ImageError` where it is smaller, or has too many of them.
    The last ones of a row and of a column end at the edge, and overlap more.
    """
    square = _SQUARE.fullmatch(tiles)
    assert square is not None
    side, overlap = int(square[1]), int(square[2] or 0)
    if min(size) < side:
        raise ImageError(f"{size[0]} x {size[1]} pixels, smaller than a tile of {side}; use smaller tiles")
    if math.prod(-(-(length - side) // (side - overlap)) + 1 for length in size) > TILES:
        raise ImageError(f"more than {TILES:,} tiles; use larger ones, or a smaller overlap")
    xs, ys = ([*range(0, length - side, side - overlap), length - side] for length in size)
    return [Region(x, y, side, side) for y in ys for x in xs]
