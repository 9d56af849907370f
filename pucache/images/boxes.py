"""Boxes of other programs: columns of a table in the usual forms, and the JSON of COCO and MegaDetector."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import SourceError
from ..storage.limits import BOX_SIDE
from ..storage.table_formats import MEGADETECTOR
from .regions import WHOLE, Region

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
    problem: str = ""  # why the program gave no box


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
        for image in content["images"]:
            if kind == MEGADETECTOR and (failure := image.get("failure")):
                yield Boxed(str(image["file"]), str(image["file"]), problem=f"the detector failed: {failure}")
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
