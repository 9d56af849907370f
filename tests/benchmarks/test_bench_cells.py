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


def test_cells_of_other_commits_fill_gaps_and_say_so(tmp_path, monkeypatch):
    wanted = [{"n": n, "seed": 0} for n in range(3)]
    for commit, cells_of in {"old": wanted[:2], "new": wanted[:1]}.items():
        monkeypatch.setattr(cells, "commit", lambda commit=commit: commit)
        cells.measured(tmp_path, "cells", cells_of, double)
    rows = cells.measured(tmp_path, "cells", wanted, double, minutes=0, also=["old"])
    assert rows == [wanted[0] | double(**wanted[0]), wanted[1] | double(**wanted[1]) | {"commit": "old"}]
