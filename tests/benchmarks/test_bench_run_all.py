"""The table of the pages of results, and their index."""

import re
import subprocess
import sys

import pytest

from benchmarks import run_all
from benchmarks.common.environment import HERE
from benchmarks.result_pages import BENCH, LONG, PAGES

RESULTS = HERE / "docs" / "results"


# --- the table of pages --------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if page.module], ids=lambda page: page.name)
def test_every_option_of_a_command_is_one_of_its_benchmark(page):
    text = (HERE / "benchmarks" / f"{page.module.replace('.', '/')}.py").read_text()
    options = re.findall(r"--[a-z-]+", f"{page.options} {page.quick}")
    shared = {'"--quick"'} if "command_line(" in text else set()
    shared |= {'"--quick"', '"--fashion"'} if "images_parser(" in text else set()
    assert {f'"{option}"' for option in options} - shared <= set(re.findall(r'"--[a-z-]+"', text))
    assert shared or '"--out"' in text or "page_parser(" in text or page.name == "gpu"


@pytest.mark.slow
def test_every_benchmark_can_be_imported():
    modules = sorted({f"benchmarks.{page.module}" for page in PAGES if page.module})
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


def test_the_index_names_each_commit_of_a_page():
    text = "Cells of commit 1234567.\n\nMeasured on a machine; commit abcdef0-dirty.\n"
    assert run_all.made_at(text) == "1234567, abcdef0-dirty" and run_all.made_at("No figures.") == "not stated"
    assert {page.made_by for page in PAGES} > {BENCH, LONG}
