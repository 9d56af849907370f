"""Cells and page of the benchmark of imports, on made-up figures."""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.speed import imports
from benchmarks.speed.import_processes import ORDERS, STATES, Source, make_source, undisturbed

AT = Source(Path("folder"), 1000, 4, 10)


def measured_rows():
    """An import takes as long as the disk in the first round, and twice as long in the second."""
    cells = imports.cells_of_rounds(AT, 2)
    return [
        cell | {"seconds": 1.0 + (cell["number"] if cell["operation"] == imports.IMPORT else 0), "peak": 200.0}
        for cell in cells
    ]


def test_every_round_writes_to_the_disk_first_and_has_all_imports():
    cells = imports.cells_of_rounds(AT, 3)
    assert [cell["operation"] for cell in cells[:5]] == [imports.WRITE] + [imports.IMPORT] * 4
    assert len(cells) == 15 and len({tuple(cell.values()) for cell in cells}) == 15


def test_kills_are_dealt_to_cells_of_a_few():
    for kills in (0, 3, 5, 50, 52):
        cells = imports.cells_of_kills(AT, kills)
        assert sum(int(cell["state"]) for cell in cells) == kills
        assert len({tuple(cell.values()) for cell in cells}) == len(cells)


def test_rates_are_those_of_the_disk_in_the_same_round():
    assert imports.of_write_rate(measured_rows(), ORDERS[0], STATES[0]) == [1.0, 0.5]
    kills = [{"struck": 5, "completed": 2, "resumed": [500, 1000]}, {"struck": 5, "completed": 1, "resumed": [0]}]
    text = "\n".join(imports.asked(measured_rows(), kills, 3 * 10**9))
    assert "the disk writes 3.00 GB/s" in text and "run at 0.75 from the page cache and 0.75 from the disk" in text
    assert "at most 200 MB; the same bytes after 10 kills" in text
    assert "| 10 | 3 | 50 (0 to 100) | the same |" in imports.kill_lines(AT, kills)[0]
    assert imports.kill_lines(AT, []) == []
    options = argparse.Namespace(rounds=2, kills=10, quick=False)
    assert "10 parts of 100 x 4" in imports.title(AT, options, 10**9)[2]


def test_the_folder_is_written_once_and_its_cache_is_the_same_each_time(tmp_path):
    at = Source(tmp_path, 200, 4, 2)
    (tmp_path / "making").mkdir()  # of a run that was cut off
    make_source(at)
    parts = [np.load(at.path / "img_emb" / f"img_emb_{part}.npy") for part in range(2)]
    assert [part.shape for part in parts] == [(100, 4), (100, 4)]
    make_source(at)
    first, second = (undisturbed(at, ORDERS[0], None) for _ in range(2))
    assert first == second
