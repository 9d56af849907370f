"""The runner of `make bench`, the table of the pages, and their index."""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.hangs import HANG_SECONDS

from benchmarks import run_all
from benchmarks.common.environment import HERE
from benchmarks.result_pages import BENCH, LONG, PAGES, ResultPage

RESULTS = HERE / "docs" / "results"


def page(name):
    return ResultPage(name, "?", "paper.tables", "DIR --fashion SOURCE", 5, "")


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.setattr(run_all, "commit", lambda: "same")
    for folder in ("results", "work"):
        (tmp_path / folder).mkdir()
    paths = {name: tmp_path / name for name in ("folder", "results", "work")}
    return argparse.Namespace(**paths, fashion=tmp_path / "fashion.tgz", quick=False, again=False)


@pytest.fixture
def scripts(monkeypatch):
    """What takes the place of the benchmarks: code by page."""
    code = {}

    def arguments_of(page, options):
        text = f"from pathlib import Path; Path({str(options.results)!r}, '{page.name}.md').write_text('made')"
        return ["-c", code.get(page.name, text)]

    monkeypatch.setattr(run_all, "arguments_of", arguments_of)
    return code


def statuses(runs):
    return [one["status"] for one in runs]


# --- the runner ----------------------------------------------------------------------------------------


def test_a_page_that_fails_is_reported_and_the_next_one_is_made(options, scripts, capsys):
    scripts["b"] = "print('before'); raise SystemExit('no images')"
    assert statuses(run_all.run_pages([page(name) for name in "abc"], options)) == [
        "done",
        "failed, exit code 1",
        "done",
    ]
    shown = capsys.readouterr()
    assert "no images" in shown.err and re.search(r"c +\d+\.\d min, CPU +\d+\.\d, done", shown.out)


def test_a_run_goes_on_where_the_last_one_ended(options, scripts, monkeypatch):
    scripts["b"] = "raise SystemExit(1)"
    pages = [page("a"), page("b")]
    run_all.run_pages(pages, options)
    del scripts["b"]
    scripts["a"] = "raise SystemExit(1)"  # is not run again
    assert statuses(run_all.run_pages(pages, options)) == ["done", "done"]
    assert statuses(run_all.run_pages(pages, argparse.Namespace(**{**vars(options), "again": True})))[0] != "done"
    monkeypatch.setattr(run_all, "commit", lambda: "other")
    assert statuses(run_all.run_pages(pages, options))[0] != "done"
    (options.results / "b.md").unlink()
    run_all.run_pages(pages, options)
    assert (options.results / "b.md").exists()


def test_a_benchmark_that_hangs_is_ended_with_its_processes(tmp_path):
    log = tmp_path / "log"
    assert run_all.run(["sh", "-c", "sleep 3600 & echo $!; wait"], log, 0.01) == "ended after 0.0 minutes"
    stat, until = Path(f"/proc/{log.read_text().strip()}/stat"), time.monotonic() + HANG_SECONDS
    while stat.exists() and stat.read_text().split()[2] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)


def test_arguments_name_the_sources_and_leave_out_what_is_not_there(options):
    assert run_all.arguments_of(page("a"), options) == [
        *("-m", "benchmarks.paper.tables", str(options.folder), "--fashion", str(options.fashion)),
        *("--work", str(options.work), "--out", str(options.results / "a.md")),
    ]
    options.fashion, options.quick = None, True
    command = run_all.arguments_of(page("a"), options)
    assert "--fashion" not in command and "--quick" in command


def test_the_page_of_times_has_a_row_for_each_and_the_sum():
    runs = [
        {"page": "paper", "minutes": 10.5, "cpu": 20.0, "load": 0.1, "status": "done"},
        {"page": "peers", "minutes": 2.0, "cpu": 1.0, "load": 1.5, "status": "failed, exit code 1"},
    ]
    text = run_all.times_page(runs, "bench")
    assert "| [paper](paper.md) | 10.5 | 20.0 | 0.10 | done |" in text and "failed, exit code 1" in text
    assert "| all | 12.5 | 21.0 |" in text


def test_make_bench_fits_into_its_minutes():
    assert sum(one.minutes for one in PAGES if one.made_by == BENCH) <= 90


# --- the table of pages --------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if page.module], ids=lambda page: page.name)
def test_every_option_of_a_command_is_one_of_its_benchmark(page):
    text = (HERE / "benchmarks" / f"{page.module.replace('.', '/')}.py").read_text()
    options = re.findall(r"--[a-z-]+", f"{page.options} {page.quick}")
    shared = {'"--quick"'} if "command_line(" in text else set()
    shared |= {'"--quick"', '"--fashion"'} if "images_parser(" in text else set()
    assert {f'"{option}"' for option in options} - shared <= set(re.findall(r'"--[a-z-]+"', text))
    assert (
        any(way in text for way in ('"--out"', "command_line(", "page_parser(", "images_parser(")) or page.name == "gpu"
    )


@pytest.mark.slow
def test_every_benchmark_can_be_imported():
    modules = sorted({f"benchmarks.{page.module}" for page in PAGES if page.module})
    code = f"import importlib\nfor name in {modules}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if page.module], ids=lambda page: page.name)
def test_the_commands_on_a_page_name_modules_that_are_there(page):
    path = RESULTS / f"{page.name}.md"
    if not path.exists():
        pytest.skip("a page that has not been made yet")
    for module in re.findall(r"python -m (benchmarks[a-z_.]*)", path.read_text()):
        assert (HERE / (module.replace(".", "/") + ".py")).exists(), module


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
