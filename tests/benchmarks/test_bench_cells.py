"""Cells of benchmarks: measured once, in any number of processes."""

import pytest
from helpers.slow import slow

from benchmarks.common import cells


def double(n, seed):
    return {"twice": 2 * n + seed}


@pytest.mark.parametrize("jobs", [1, slow(2)])
def test_cells_are_measured_once_in_any_number_of_processes(tmp_path, jobs, monkeypatch):
    monkeypatch.setattr(cells, "commit", lambda: "same")
    wanted = [{"n": n, "seed": seed} for n in range(2) for seed in range(2)]
    rows = cells.measured(tmp_path, "cells", wanted, double, jobs=jobs)
    assert rows == [cell | double(**cell) for cell in wanted]
    assert cells.measured(tmp_path, "cells", wanted, None, jobs=jobs) == rows
