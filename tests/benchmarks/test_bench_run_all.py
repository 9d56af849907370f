"""The table of the pages of results, and their index."""

import re
import subprocess
import sys

import numpy as np
import pytest
from helpers.slow import slow
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import run_all
from benchmarks.common import cells
from benchmarks.common.environment import HERE
from benchmarks.common.image_classes import one_vs_rest_rows
from benchmarks.result_pages import PAGES

RESULTS = HERE / "docs" / "results"


# --- the table of pages --------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_benchmark_writes_a_page_and_takes_the_options_of_its_command(page):
    text = (HERE / "benchmarks" / f"{page.module.replace('.', '/')}.py").read_text()
    assert "page_parser(" in text or "images_parser(" in text
    assert ("--fashion" in page.options) == ("images_parser(" in text)


@pytest.mark.slow
def test_every_benchmark_can_be_imported():
    modules = sorted({f"benchmarks.{page.module}" for page in PAGES})
    code = f"import importlib\nfor name in {modules}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_commands_on_a_page_name_modules_that_are_there():
    pages = "".join(path.read_text() for path in RESULTS.glob("*.md") if path.stem in {page.name for page in PAGES})
    modules = set(re.findall(r"python -m (benchmarks[a-z_.]*)", pages))
    assert modules and [name for name in modules if not (HERE / (name.replace(".", "/") + ".py")).exists()] == []


# --- the index -----------------------------------------------------------------------------------------


def test_every_page_of_results_is_in_the_table_and_in_the_index_with_its_commit():
    assert run_all.not_in_the_table(RESULTS) == []
    rows = (RESULTS / "index.md").read_text().splitlines()
    for path in RESULTS.glob("*.md"):
        if path.stem not in run_all.NOT_LISTED:
            row = next((line for line in rows if line.startswith(f"| [{path.stem}]")), "")
            made = run_all.made_at(path.read_text()).split(" (")[0]
            assert made in row, f"{path.name} is newer than index.md: python -m benchmarks.run_all --index"


# --- Cells of benchmarks: measured once, in any number of processes -------------------------------


def double(n, seed):
    return {"twice": 2 * n + seed}


@pytest.mark.parametrize("jobs", [1, slow(2)])
def test_cells_are_measured_once_in_any_number_of_processes(tmp_path, jobs, monkeypatch):
    monkeypatch.setattr(cells, "commit", lambda: "same")
    wanted = [{"n": n, "seed": seed} for n in range(2) for seed in range(2)]
    rows = cells.measured(tmp_path, "cells", wanted, double, jobs=jobs)
    assert rows == [cell | double(**cell) for cell in wanted]
    assert cells.measured(tmp_path, "cells", wanted, None, jobs=jobs) == rows


# --- Tasks of the benchmarks: what is in a pile ---------------------------------------------------


@given(share=st.sampled_from([0.01, 0.05, 0.2]), labelled=st.integers(1, 30), seed=st.integers(0, 5))
def test_a_pile_has_all_negatives_and_the_share_of_hidden_positives(share, labelled, seed):
    y = np.random.default_rng(seed).random(1000) < 0.3
    pile, s = one_vs_rest_rows(y, share=share, labelled=labelled, draw=np.random.default_rng(seed))
    hidden = np.count_nonzero(pile & y & (s == 0))
    assert pile[~y].all() and s.sum() == labelled and (y & pile)[s == 1].all()
    assert abs(hidden / np.count_nonzero(pile & (s == 0)) - share) < 1e-3
