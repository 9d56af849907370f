"""Keys of parts of images, and the grids and squares that images are cut into."""

import itertools

import pytest
from helpers.pictures import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.images.regions import (
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


@pytest.mark.parametrize("text", ["10,20,100,80", "percent:33.3,0,33.3,33.3", "percent:0,12.5,100,0.0001"])
def test_regions_are_written_as_they_are_read(text):
    assert str(parse_region(text)) == text


def test_the_unit_of_pixels_may_be_named():
    assert parse_region("pixel:1,2,3,4") == Region(1, 2, 3, 4)


@settings(max_examples=25)  # of up to 10,000 cells
@given(st.integers(1, 100), st.integers(1, 100), st.integers(100, 3000), st.integers(100, 3000))
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


@pytest.mark.parametrize("tiles", ["", "boxes", "3x3", "100x1", "512", "512 overlap 64"])
def test_tiles_that_are_some_are_taken(tiles):
    check_tiles(tiles)
