"""Keys of parts of images, and the grids and squares that images are cut into."""

import itertools
import json

import pytest
from helpers.pictures import refusal
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from pucache import Decoding, open_source
from pucache.errors import SourceError
from pucache.images.boxes import edges_of, region_of
from pucache.images.regions import (
    BOXES,
    MARK,
    Region,
    check_tiles,
    grid_regions,
    image_of,
    parse_region,
    part_key,
    split_key,
    square_regions,
)
from pucache.images.tiling import list_images

EDGES, SIDES = st.integers(0, 9**9), st.integers(1, 9**9)
PIXELS = st.builds(Region, EDGES, EDGES, SIDES, SIDES, st.just(False))


@st.composite
def percents(draw):
    x, y = draw(st.integers(0, 999_999)), draw(st.integers(0, 999_999))
    return Region(x, y, draw(st.integers(1, 10**6 - x)), draw(st.integers(1, 10**6 - y)), percent=True)


NAMES = st.text() | st.tuples(st.text(), st.sampled_from([MARK, MARK + "1,2,3,4", "#"]), st.text()).map("".join)


@given(NAMES, PIXELS | percents())
def test_a_key_gives_back_image_and_region_whatever_the_name_of_the_file(name, region):
    assert split_key(part_key(name, region)) == (name, region)
    assert image_of(part_key(name, region)) == name


@pytest.mark.parametrize(
    "fragment",
    ["", "1,2,3", "1,2,3,4,5", "-1,2,3,4", "1,2,0,4", "1,2,3,0", "1.5,2,3,4", "percent:50,0,60,10", "percent:0,0,0,1",
     "percent:1e1,0,1,1", "inch:1,2,3,4", "1,2,3,4.png", "１,2,3,4", " 1,2,3,4"],
)  # fmt: skip
def test_what_is_no_region_is_part_of_the_name(fragment):
    assert parse_region(fragment) is None
    assert split_key(f"a.jpg{MARK}{fragment}") == (f"a.jpg{MARK}{fragment}", None)


@settings(max_examples=25)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(100, 3000), st.integers(100, 3000))
@example(100, 100, 100, 101)
def test_the_cells_of_a_grid_meet_and_cover_the_image(rows, columns, width, height):
    boxes = [split_key(part_key("a", cell))[1].box((width, height)) for cell in grid_regions(f"{rows}x{columns}")]

    xs, ys = sorted({box[0] for box in boxes}), sorted({box[1] for box in boxes})
    assert len(boxes) == rows * columns and (len(xs), len(ys)) == (columns, rows)
    assert sorted(boxes) == sorted(
        (x, y, right, bottom)
        for x, right in zip(xs, [*xs[1:], width], strict=True)
        for y, bottom in zip(ys, [*ys[1:], height], strict=True)
    )


@given(st.integers(1, 60), st.integers(0, 59), st.integers(1, 300), st.integers(1, 300))
def test_squares_cover_the_image_with_at_least_the_overlap(side, overlap, width, height):
    tiles = f"{side} overlap {min(overlap, side - 1)}"
    if min(width, height) < side:
        assert "smaller than a tile" in refusal(square_regions, tiles, (width, height))
        return
    regions = square_regions(tiles, (width, height))

    assert len(set(regions)) == len(regions) and {region[2:4] for region in regions} == {(side, side)}
    for at, length in ((0, width), (1, height)):
        starts = sorted({region[at] for region in regions})
        assert starts[0] == 0 and starts[-1] + side == length
        assert all(b - a <= side - min(overlap, side - 1) for a, b in itertools.pairwise(starts))


def test_an_image_has_so_many_squares_and_no_more(monkeypatch):
    monkeypatch.setattr("pucache.images.regions.TILES", 12)
    assert len(square_regions("10", (40, 30))) == 12
    assert "more than 12 tiles" in refusal(square_regions, "10", (41, 30))


@pytest.mark.parametrize(
    ("region", "reason"),
    [
        (Region(90, 0, 12, 5), "outside of its 100 x 50 pixels"),
        (Region(0, 51, 1, 1), "outside"),
        (Region(0, 50, 1, 1), "no area"),
        (Region(10**9, 10**9, 10**9, 10**9), "outside"),
        (Region(0, 0, 1, 10**6, percent=True), "no area in its 100 x 50 pixels"),
    ],
)
def test_a_region_that_an_image_lacks_is_refused(region, reason):
    assert reason in refusal(region.box, (100, 50))


@pytest.mark.parametrize(
    "tiles", ["0x3", "3x", "3x3x3", "-1", "0", "3 x 3", "64 overlap 64", "101x1", "512 overlap -1", "١x٢"]
)
def test_tiles_that_are_none_are_refused(tiles):
    with pytest.raises(ValueError, match=r"tiles .*(ROWSxCOLUMNS|overlap by|at most 100)"):
        check_tiles(tiles)


# --- Boxes in every usual form: columns, one cell, pixels and shares, the JSON of COCO and MegaDete---

SIZE = (64, 40)
PIXELS_OF_BOXES = st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(2, 34), st.integers(2, 20))
CORNERS = [("xmin", "ymin", "xmax", "ymax"), ("X1", "Y1", "X2", "Y2"), ("left", "top", "right", "bottom")]
CORNERS += [("bbox_xmin", "bbox_ymin", "bbox_xmax", "bbox_ymax"), ("x_min", "y_min", "x_max", "y_max")]
SIDES_OF_BOXES = [("x", "y", "w", "h"), ("X", "Y", "Width", "Height"), ("left", "top", "width", "height")]
SIDES_OF_BOXES += [("bbox_x", "bbox_y", "bbox_width", "bbox_height"), ("bbox x", "bbox y", "bbox w", "bbox h")]
CELLS = ["[{}, {}, {}, {}]", "{} {} {} {}", "({};{};{};{})", "{},{},{},{}"]


def columns_of(form, box):
    """Names and cells of a box in a form."""
    x, y, w, h = box
    if form in CORNERS:
        return form, (x, y, x + w, y + h)
    return (form, box) if form in SIDES_OF_BOXES else (("bbox",), (form.format(*box),))


def write_table(path, form, boxes):
    names = ["file", *columns_of(form, boxes[0])[0]]
    names += [name for name in ("height", "width") if name not in map(str.lower, names)]
    cells = ([f"{number}.png", *columns_of(form, box)[1], 640, 640] for number, box in enumerate(boxes))
    rows = [names, *(row[: len(names)] for row in cells)]
    path.write_text("\n".join(",".join(f'"{cell}"' for cell in row) for row in rows))
    return path


def photos(folder, count):
    for number in range(count):
        if not (folder / f"{number}.png").exists():
            Image.new("RGB", SIZE).save(folder / f"{number}.png")


def parts(source):
    listing = list_images(source, BOXES, Decoding())
    return {split_key(key) for key in listing.keys}, listing.failures


@pytest.mark.parametrize("form", [*CORNERS, *SIDES_OF_BOXES, *CELLS], ids=str)
@settings(max_examples=12)
@given(boxes=st.lists(PIXELS_OF_BOXES, min_size=1, max_size=4), shares=st.booleans())
def test_every_form_of_pixels_and_of_shares_gives_the_same_parts(tmp_path_factory, form, boxes, shares):
    folder = tmp_path_factory.getbasetemp()
    photos(folder, 4)
    written = [(x / 64, y / 40, w / 64, h / 40) for x, y, w, h in boxes] if shares else boxes
    found, failures = parts(open_source(write_table(folder / "boxes.csv", form, written)))
    expected = {(f"{number}.png", (x, y, x + w, y + h)) for number, (x, y, w, h) in enumerate(boxes)}
    assert {(image, region.box(SIZE)) for image, region in found} == expected and not failures


@pytest.mark.parametrize(
    "columns",
    [
        ["xmin", "ymin", "xmax"], ["x_center", "y_center", "width", "height"], ["cx", "cy", "w", "h"],
        ["bbox_left", "bbox_right"], ["bounding_box_polygon"], ["x1", "y1", "w"], ["boxes"],
    ],
)  # fmt: skip
def test_columns_that_look_like_boxes_of_another_form_are_refused_by_name(tmp_path, columns):
    (tmp_path / "m.csv").write_text(f"file,{','.join(columns)}\n0.png{',1' * len(columns)}\n")
    with pytest.raises(SourceError, match=f"columns of boxes of another form .*'{columns[0]}'.*expected x,y,w,h"):
        open_source(tmp_path / "m.csv").scan()


@pytest.mark.parametrize("columns", ["width,height", "label,x,y", "left,right", "w", "top", "height,width,class"])
def test_other_columns_are_no_boxes(tmp_path, columns):
    photos(tmp_path, 1)
    (tmp_path / "m.csv").write_text(f"file,{columns}\n0.png{',1' * len(columns.split(','))}\n")
    source = open_source(tmp_path / "m.csv")
    assert source.scan().keys == ["0.png"] and not source.boxes


@pytest.mark.parametrize(
    ("box", "shares", "expected"),
    [
        ((6.4, 0, 32.000000000000001, 32), False, Region(6, 0, 26, 32)),
        ((6.4, 0, 32.4, 32), False, Region(6, 0, 27, 32)),
        ((-0.4, -0.9, 10, 10), False, Region(0, 0, 10, 10)),
        ((0.1, 0.2, 1.0000001, 1), True, Region(100_000, 200_000, 900_000, 800_000, True)),
        ((-0.004, 0, 1.005, 1), True, Region(0, 0, 1_000_000, 1_000_000, True)),
    ],
)
def test_what_a_box_exceeds_its_image_by_a_little_is_cut_off(box, shares, expected):
    assert region_of(box, shares) == (expected, "")


@given(st.tuples(*[st.floats(-2, 3)] * 4), st.booleans())
def test_any_numbers_are_a_region_or_a_reason(edges, shares):
    region, problem = region_of(edges, shares)
    assert (region is None) == bool(problem)
    assert region is None or (min(region[:4]) >= 0 and region.w > 0 and region.h > 0)


@given(st.text(max_size=12))
def test_any_cell_is_a_box_or_none(cell):
    edges = edges_of([cell], False)
    assert edges is None or len(edges) == 4


def test_a_box_that_is_none_fails_alone_and_one_that_repeats_counts_once(tmp_path):
    photos(tmp_path, 2)
    rows = ["0.png,0,0,9,9", "1.png,0,0,0,0", "1.png,,,,", "1.png,-9,0,3,3", "1.png,a,b,c,d", "0.png,0,0,9,9"]
    (tmp_path / "m.csv").write_text("\n".join(["file,x,y,w,h", *rows]))
    found, failures = parts(open_source(tmp_path / "m.csv"))
    assert found == {("0.png", Region(0, 0, 9, 9))}
    assert failures == {
        "1.png#xywh=0,0,0,0": "the box has no area; expected a width and a height above 0",
        "1.png#xywh=,,,": "the box is not four numbers",
        "1.png#xywh=-9,0,3,3": "the box lies outside of the image",
        "1.png#xywh=a,b,c,d": "the box is not four numbers",
    }


# --- JSON ------------------------------------------------------------------------------------------

FOUND = [("a/0.png", (1, 2, 30, 20), "animal", 0.9), ("a/0.png", (8, 8, 9, 9), "person, 5% & #1", 0.15)]
FOUND += [("1.png", (0, 0, 64, 40), "animal", 0.2), ("1.png", (4, 4, 8, 8), "vehicle", 0.8)]
CATEGORIES, IDS = ["animal", "person, 5% & #1", "vehicle"], {"1.png": 7, "a/0.png": 8}
COCO = {
    "images": [{"id": number, "file_name": name} for name, number in IDS.items()],
    "categories": [{"id": 3 + number, "name": name} for number, name in enumerate(CATEGORIES)],
    "annotations": [
        {"image_id": IDS[image], "bbox": box, "category_id": 3 + CATEGORIES.index(kind), "score": confidence}
        for image, box, kind, confidence in FOUND
    ],
}
MEGADETECTOR = {
    "info": {"format_version": "1.4"},
    "detection_categories": dict(zip("012", CATEGORIES, strict=True)),
    "images": [
        {"file": name, "detections": [
            {"category": str(CATEGORIES.index(kind)), "conf": confidence, "bbox": [x / 64, y / 40, w / 64, h / 40]}
            for image, (x, y, w, h), kind, confidence in FOUND if image == name
        ]}
        for name in ("a/0.png", "1.png")
    ] + [{"file": "bad.jpg", "failure": "Failure image access", "detections": None}],
}  # fmt: skip


@pytest.mark.parametrize("written", [COCO, MEGADETECTOR], ids=["COCO", "MegaDetector"])
@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, [0, 1, 2, 3]),
        ({"min_confidence": 0.2}, [0, 2, 3]),
        ({"category": "animal"}, [0, 2]),
        ({"category": ["animal", CATEGORIES[1]], "min_confidence": 0.5}, [0]),
        ({"category": CATEGORIES[1]}, [1]),
    ],
)
def test_detections_are_a_source_of_parts_with_their_categories(tmp_path, written, options, kept):
    (tmp_path / "R&D #1" / "a").mkdir(parents=True)
    for name in ("a/0.png", "1.png"):
        Image.new("RGB", SIZE).save(tmp_path / "R&D #1" / name)
    (tmp_path / "found.json").write_text(json.dumps(written))

    source = open_source(tmp_path / "found.json", images=tmp_path / "R&D #1", **options)
    found, failures = parts(source)

    expected = {(FOUND[at][0], *FOUND[at][1]): FOUND[at][2] for at in kept}
    boxes = {(image, *region.box(SIZE)) for image, region in found}
    assert boxes == {(image, x, y, x + w, y + h) for image, x, y, w, h in expected}
    assert failures == ({"bad.jpg": "the detector failed: Failure image access"} if written is MEGADETECTOR else {})
    assert sorted(category for _, category in source.concepts) == sorted(expected.values())
    assert parts(open_source(source.name)) == (found, failures)  # as a cache names its source
    assert source.read("a/0.png") == (tmp_path / "R&D #1" / "a" / "0.png").read_bytes()


@pytest.mark.parametrize("written", [COCO, MEGADETECTOR], ids=["COCO", "MegaDetector"])
def test_detections_that_make_no_sense_are_refused_in_one_line(tmp_path, written):
    (tmp_path / "found.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match="has no category 'dog'; it has animal, person, 5% & #1, vehicle"):
        open_source(tmp_path / "found.json", category="dog").scan()
    with pytest.raises(SourceError, match=r"found\.json\S* has no box of the category and confidence asked for"):
        open_source(tmp_path / "found.json", min_confidence=0.99).scan()
    for old, new in (('"bbox"', '"box"'), ('"images": [', '"images": [3, ')):
        (tmp_path / "found.json").write_text(json.dumps(written).replace(old, new))
        with pytest.raises(SourceError, match=r"found\.json"):
            open_source(tmp_path / "found.json").scan()


def test_a_null_confidence_is_that_of_no_confidence(tmp_path):
    Image.new("RGB", SIZE).save(tmp_path / "1.png")
    boxes = [{"category": "1", "conf": conf, "bbox": [0.1, 0.1, side, 0.5]} for conf, side in ((None, 0.3), (0.9, 0.5))]
    content = {"detection_categories": {"1": "animal"}, "images": [{"file": "1.png", "detections": boxes}]}
    (tmp_path / "found.json").write_text(json.dumps(content))
    for least, count in ((0, 2), (0.2, 1)):
        found, failures = parts(open_source(tmp_path / "found.json", min_confidence=least))
        assert len(found) == count and not failures


def test_a_box_of_an_image_that_is_not_listed_fails_alone(tmp_path):
    """Whoever takes images out of a file of COCO leaves their annotations; ids may be numbers or text."""
    Image.new("RGB", SIZE).save(tmp_path / "1.png")
    boxes = [{"image_id": number, "bbox": [1, 2, 30, 20], "category_id": 1} for number in ("7", 9)]
    content = {"images": [{"id": 7, "file_name": "1.png"}], "categories": [], "annotations": boxes}
    (tmp_path / "found.json").write_text(json.dumps(content))
    found, failures = parts(open_source(tmp_path / "found.json"))
    assert [image for image, _ in found] == ["1.png"] and [*failures] == ["image_id 9"]
