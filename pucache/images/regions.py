"""Parts of images: their keys, ``IMAGE#xywh=10,20,100,80``, as in W3C's Media Fragments, and what they cut out.

Only caches whose encoder has `tiles` have such keys, and all of theirs are such: a file's name may hold the mark too.
Boxes of other programs name parts: columns of a table in the usual forms, and the JSON of COCO and MegaDetector.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from ..errors import ImageError, SourceError
from ..storage.limits import BOX_SIDE, GRID_TILES, TILES
from ..storage.table_formats import MEGADETECTOR

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


# --- boxes of other programs ------------------------------------------------------------------------

_CORNERS = ("xmin ymin xmax ymax", "x1 y1 x2 y2", "left top right bottom", "xtl ytl xbr ybr")
_SIDES = ("x y w h", "x y width height", "left top width height", "xmin ymin width height", "left top w h")
_FORMS = [(form.split(), form in _CORNERS) for form in (*_CORNERS, *_SIDES)]  # corners first: width may be the image's
_CELLS = ("bbox", "box", "boundingbox", "bndbox")
_PREFIX = re.compile(r"(?:b?box|boundingbox|bndbox)(?=.)")
_PLACES = {name for form, _ in _FORMS for name in form} - {"w", "h", "width", "height"}
_PLACES |= set("cx cy xc yc xcenter ycenter centerx centery xcentre ycentre centrex centrey".split())
_FEW = 3  # from so many columns on that may be of a box, with one that says where, a table names boxes
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_EXPECTED = (
    "expected x,y,w,h, or left,top,width,height, or xmin,ymin,xmax,ymax, or a column bbox with x,y,w,h in each cell"
)
_OVER = {True: 0.01, False: 1.0}  # by how much less than that an edge may lie outside, in shares or in pixels
_LAST_DIGITS = 1e-6  # of a floating-point number
Edges = tuple[float, float, float, float]  # left, top, right, bottom


class Boxed(NamedTuple):
    """An image that a list names, and a box in it."""

    path: str
    key: str
    edges: Edges | None = None
    given: str = ""  # the box as it is written
    category: str = ""


# --- columns ---------------------------------------------------------------------------------------


def box_columns(columns: Sequence[str], unreadable: Mapping[str, str], where: str) -> tuple[list[str], bool]:
    """Columns of a box, four or one, and whether they are corners; none where the table names whole images.

    Raises `SourceError` for columns that look like a box of another form.
    """
    names = {re.sub(r"[\s_.-]", "", column): column for column in columns}
    prefixed = {_PREFIX.sub("", name): column for name, column in names.items() if _PREFIX.match(name)}
    plain = names | prefixed  # bbox_width before the width of the image
    for form, are_corners in _FORMS:
        if all(name in plain for name in form):
            return [plain[name] for name in form], are_corners
    cells = [names[name] for name in _CELLS if name in names]
    if len(cells) == 1 and cells[0] not in unreadable:
        return cells, False
    odd = [column for name, column in names.items() if re.match(r"b?box|bounding|bndbox", name)]
    near = [plain[name] for name in plain if name in _PLACES or name in ("w", "h", "width", "height")]
    if odd or (len(near) >= _FEW and any(name in _PLACES for name in plain)):
        listed = ", ".join(map(repr, odd or near))
        raise SourceError(f"{where} has columns of boxes of another form ({listed}); {_EXPECTED}; or rename them")
    return [], False


def edges_of(cells: Sequence[str | None], are_corners: bool) -> Edges | None:
    """The edges of a box that four cells, or one, tell; None where they are not four numbers."""
    if len(cells) == 1:
        texts = re.split(r"[,;\s]+", (cells[0] or "").strip("[](){}\"' "))
    else:
        texts = [(cell or "").strip().replace(",", ".") for cell in cells]
    if len(texts) != 4 or not all(map(_DECIMAL.fullmatch, texts)):
        return None
    x, y, w, h = map(float, texts)
    return (x, y, w, h) if are_corners else (x, y, x + w, y + h)


def are_shares(boxes: Sequence[Boxed]) -> bool:
    """Whether the numbers of all boxes are shares of the sides: none is above 1."""
    edges = [box.edges for box in boxes if box.edges is not None]
    known = [max(left, top, right - left, bottom - top) for left, top, right, bottom in edges]
    return bool(known) and max(known) <= 1 + _LAST_DIGITS


def region_of(edges: Edges | None, shares: bool) -> tuple[Region | None, str]:
    """The region of a box, with fractions of pixels rounded outwards; or None, and why it is none.

    What lies outside by less than a pixel, or by 1 % of the side, is cut off.
    """
    if edges is None:
        return None, "the box is not four numbers"
    left, top, right, bottom = edges
    if not all(map(math.isfinite, edges)) or max(map(abs, edges)) >= BOX_SIDE:
        return None, "the box has no sensible size"
    if right <= left or bottom <= top:
        return None, "the box has no area; expected a width and a height above 0"
    if min(left, top) <= -_OVER[shares] or (shares and max(right, bottom) >= 1 + _OVER[shares]):
        return None, "the box lies outside of the image"
    if shares:
        numbers = [round(min(max(edge, 0), 1) * WHOLE) for edge in edges]
    else:
        numbers = [math.floor(max(edge, 0) + _LAST_DIGITS) for edge in edges[:2]]
        numbers += [math.ceil(edge - _LAST_DIGITS) for edge in edges[2:]]
    x, y, w, h = numbers[0], numbers[1], numbers[2] - numbers[0], numbers[3] - numbers[1]
    return (Region(x, y, w, h, shares), "") if w > 0 and h > 0 else (None, "the box has no area in the image")


# --- JSON of detectors -----------------------------------------------------------------------------


def detections(
    kind: str, content: dict[str, Any], name: str, categories: Sequence[str], confidence: float
) -> Iterator[Boxed]:
    """Every box of COCO or MegaDetector of some categories, by default all, and of at least this confidence.

    Raises `SourceError` where the file is not what its `kind` is, and `ValueError` for a category that it lacks.
    """
    try:
        names, found = (_of_megadetector if kind == MEGADETECTOR else _of_coco)(content)
        unknown = sorted(set(categories) - set(names.values()))
        for path, box, category, certainty in found:
            named = names.get(category, category)
            if certainty >= confidence and (not categories or named in categories):
                given = ",".join(map(str, box or ()))
                yield Boxed(path, path, edges_of([given], False), given, named)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SourceError(f"{name} is not {kind} in the usual form ({type(error).__name__}: {error})") from error
    if unknown:
        raise ValueError(f"{name} has no category {unknown[0]!r}; it has {', '.join(sorted(names.values())[:20])}")


_Found = Iterator[tuple[str, Any, str, float]]  # path, box, category, confidence


def _of_coco(content: dict[str, Any]) -> tuple[dict[str, str], _Found]:
    names = {str(each["id"]): str(each["name"]) for each in content.get("categories", ())}
    paths = {str(each["id"]): str(each["file_name"]) for each in content["images"]}
    found = ((str(each["image_id"]), each) for each in content["annotations"])
    return names, (  # a box of an image that is not listed fails alone, as that of a file that is not there
        (
            paths.get(image, f"image_id {image}"),
            each.get("bbox"),
            str(each.get("category_id", "")),
            float(each.get("score", 1)),
        )
        for image, each in found
    )


def _of_megadetector(content: dict[str, Any]) -> tuple[dict[str, str], _Found]:
    names = {str(number): str(name) for number, name in content["detection_categories"].items()}
    return names, (  # a null confidence is none: its box counts where no confidence is asked for
        (str(image["file"]), each.get("bbox"), str(each["category"]), float(each["conf"] or 0))
        for image in content["images"]
        for each in image.get("detections") or ()
    )
