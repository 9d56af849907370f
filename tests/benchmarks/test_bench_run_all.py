"""The runner of `make bench`, the table of the pages, and their index."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import index, run_all
from benchmarks.common.environment import HERE
from benchmarks.result_pages import PAGES, Bench, ResultPage
from benchmarks.run_all import Settings

RESULTS = HERE / "docs" / "results"


def page(name, *, limited=False, quick="--quick"):
    options = "DIR --fashion SOURCE"
    return ResultPage(name, "?", "paper.tables", options, 5, "", bench=Bench(1, "--short", quick, limited=limited))


@pytest.fixture
def at(tmp_path, monkeypatch):
    monkeypatch.setattr(run_all, "commit", lambda: "same")
    for folder in ("results", "work"):
        (tmp_path / folder).mkdir()
    return Settings(tmp_path / "cifar", tmp_path / "fashion.tgz", tmp_path / "results", tmp_path / "work", 10)


@pytest.fixture
def scripts(monkeypatch):
    """What takes the place of the benchmarks: code by page, and the limits that they got."""
    code, limits = {}, {}

    def arguments_of(page, at, limit):
        limits[page.name] = limit
        text = f"from pathlib import Path; Path({str(at.results)!r}, '{page.name}.md').write_text('made')"
        return ["-c", code.get(page.name, text)]

    monkeypatch.setattr(run_all, "arguments_of", arguments_of)
    return code, limits


# --- the runner ----------------------------------------------------------------------------------------


def test_a_page_that_fails_is_reported_and_the_next_one_is_made(at, scripts, capsys):
    scripts[0]["b"] = "print('before'); raise SystemExit('no images')"
    made = run_all.run_pages(at, (page("a"), page("b"), page("c")))
    assert [one.status for one in made] == ["done", "failed, exit code 1", "done"]
    shown = capsys.readouterr()
    assert "no images" in shown.err and re.search(r"c +\d+\.\d min, CPU +\d+\.\d, done", shown.out)


def test_a_run_goes_on_where_the_last_one_ended(at, scripts, capsys):
    scripts[0]["b"] = "raise SystemExit(1)"
    pages = (page("a"), page("b"))
    run_all.run_pages(at, pages)
    del scripts[0]["b"]
    scripts[0]["a"] = "raise SystemExit(1)"  # which is not run again
    made = run_all.run_pages(at, pages)
    assert [one.status for one in made] == ["done", "done"] and "done before" in capsys.readouterr().out
    assert next(one.status for one in run_all.run_pages(at, pages, again=True)).startswith("failed")


def test_arguments_name_the_sources_and_leave_out_what_is_not_there(at):
    command = run_all.arguments_of(page("a", limited=True), at, 3)
    assert command == [
        *("-m", "benchmarks.paper.tables", str(at.cifar), "--fashion", str(at.fashion), "--short"),
        *("--work", str(at.work), "--minutes", "3.00", "--out", str(at.results / "a.md")),
    ]
    without = Settings(at.cifar, None, at.results, at.work, 10, quick=True)
    command = run_all.arguments_of(page("a"), without, 3)
    assert "--fashion" not in command and "--quick" in command and "--short" not in command


# --- the table of pages --------------------------------------------------------------------------------


def source(page):
    path = HERE / "benchmarks" / (page.module.replace(".", "/") + ".py")
    return path.read_text() if path.exists() else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_of_a_command_is_one_of_its_benchmark(page):
    text = source(page)
    if not page.module or (text is None and not (RESULTS / f"{page.name}.md").exists()):
        return
    parts = [page.options, *([page.bench.options, page.bench.quick or ""] if page.bench else [])]
    options = re.findall(r"--[a-z-]+", " ".join(parts))
    options += ["--minutes"] if page.bench and page.bench.limited else []
    assert [option for option in options if f'"{option}"' not in text] == []
    ways = ('"--out"', "command_line(", "page_parser(")
    assert any(way in text for way in ways) or page.name == "gpu"


@pytest.mark.slow
def test_every_benchmark_can_be_imported():
    modules = sorted({f"benchmarks.{page.module}" for page in PAGES if page.module and source(page)})
    code = f"import importlib\nfor name in {modules}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.md")), ids=lambda path: path.stem)
def test_the_commands_on_a_page_name_modules_that_are_there(path):
    text = path.read_text()
    assert "python benchmarks/" not in text
    for module in re.findall(r"python -m (benchmarks[a-z_.]*)", text):
        assert (HERE / (module.replace(".", "/") + ".py")).exists(), module


# --- the index -----------------------------------------------------------------------------------------


def test_every_page_of_results_is_in_the_table():
    assert index.not_in_the_table(RESULTS) == []


def test_the_index_names_every_page_with_the_commit_at_its_end():
    text = (RESULTS / "index.md").read_text()
    for path in RESULTS.glob("*.md"):
        if path.stem not in index.NOT_LISTED:
            row = next((line for line in text.splitlines() if line.startswith(f"| [{path.stem}]")), "")
            assert row, f"{path.name} is not in index.md: python -m benchmarks.index writes it"
            commits = index.commits_of(path.read_text())
            assert ", ".join(commits) in row, f"{path.name} is newer than index.md: python -m benchmarks.index"


def test_a_page_without_an_entry_is_named(tmp_path):
    (tmp_path / "paper.md").write_text("Measured; commit abcdef0.")
    index.write_index(tmp_path)
    assert "[paper](paper.md)" in Path(tmp_path / "index.md").read_text()
    (tmp_path / "new.md").write_text("")
    with pytest.raises(SystemExit, match="lacks new: add what makes them"):
        index.write_index(tmp_path)
