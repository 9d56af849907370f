import pytest
from helpers.slow import slow

from faults.filling import can_mount, fill_pages, limit_files

pytestmark = pytest.mark.slow

SIZES = {
    "embed": [0, 15_000],  # no part; all parts, but not the cache
    "update": [15_000],
    "pack": [10_000],
    "score": [0],
    "score, Parquet": [1_000],
    "score, images": [1_000],
    "train-pu": [600, 1_500],
    "retrieve": [500],
    "import": [20_000],
}


@pytest.fixture(scope="module")
def mountable(tmp_path_factory):
    if not can_mount(tmp_path_factory.mktemp("mounts")):
        pytest.skip("mounting a small disk needs root")


@pytest.mark.parametrize("name", [name if name == "score" else slow(name) for name in SIZES])
def test_a_file_that_cannot_grow_is_one_line_and_with_room_the_same_command_goes_on(world, name):
    assert limit_files(world, world.jobs[name], SIZES[name]) == len(SIZES[name])


@pytest.mark.parametrize(
    ("name", "pages"),
    [("embed", [1, 8, 14]), slow("update", [2]), slow("pack", [2]), ("score", [0]), slow("train-pu", [0, 1])],
)
def test_a_full_disk_is_one_line_and_with_room_the_same_command_goes_on(world, mountable, name, pages):
    assert fill_pages(world, world.jobs[name], pages) == len(pages)


@pytest.mark.parametrize(("name", "inodes"), [slow("embed", [0, 1, 4]), ("score", [0]), slow("score, Parquet", [1])])
def test_a_disk_without_inodes_is_one_line_and_with_some_the_same_command_goes_on(world, mountable, name, inodes):
    assert fill_pages(world, world.jobs[name], inodes, inodes=True) == len(inodes)
