"""The runner of `make bench`, the table of the pages, and their index."""

import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from helpers.hangs import HANG_SECONDS

from benchmarks import index, run_all
from benchmarks.common.environment import HERE
from benchmarks.result_pages import BENCH, PAGES, Bench, ResultPage
from benchmarks.run_all import PageRun, Settings

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


def test_a_page_whose_file_is_gone_is_made_again(at, scripts):
    run_all.run_pages(at, (page("a"),))
    (at.results / "a.md").unlink()
    run_all.run_pages(at, (page("a"),))
    assert (at.results / "a.md").exists()


def test_minutes_of_all_runs_of_a_page_are_added(at):
    for minutes, status in ((2.0, "failed, exit code 1"), (3.0, "done")):
        run_all.append(at.log, asdict(PageRun("a", minutes, 2 * minutes, 0.1, status)))
    assert run_all.earlier_runs(at) == {"a": PageRun("a", 5.0, 10.0, 0.1, "done")}


def test_other_commits_do_not_count(at, scripts, monkeypatch):
    run_all.run_pages(at, (page("a"),))
    monkeypatch.setattr(run_all, "commit", lambda: "other")
    assert run_all.earlier_runs(at) == {}


def test_a_benchmark_that_hangs_is_ended_with_its_processes(tmp_path, monkeypatch):
    log, waits = tmp_path / "log", subprocess.Popen.wait

    def wait(process, timeout=None):
        """Let the time run out once the shell has printed the number of its child."""
        assert timeout is None or eventually(lambda: log.read_text().endswith("\n"))
        return waits(process, timeout and 0.01)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    assert run_all.run(["sh", "-c", "sleep 3600 & echo $!; wait"], log, 1.0) == "ended after 0.0 minutes"
    process = Path(f"/proc/{log.read_text().strip()}/stat")
    assert eventually(lambda: not process.exists() or process.read_text().split()[2] == "Z")


def eventually(holds, seconds=HANG_SECONDS):
    """Whether a condition holds within some seconds: a process that was killed takes a moment to end."""
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    return holds()


def test_the_limit_leaves_time_for_the_pages_after_it(at, scripts):
    run_all.run_pages(at, (page("a"), page("b", limited=True), page("c")))
    assert 5 < scripts[1]["b"] <= 9  # less what the first page takes
    assert run_all.limit_of(page("a", limited=True), [page("b")], 0.2, False) == 0.5


def test_a_page_that_overruns_is_ended_before_it_takes_the_time_of_the_later_ones(at, scripts, monkeypatch):
    later = [page("b"), page("c", limited=True)]
    assert run_all.longest_of(page("a"), later, 10, False) == 10 + run_all.RESERVE - 1.5
    assert run_all.longest_of(page("a"), later, -5, False) == 1
    assert run_all.longest_of(later[1], [page("d")], 0.1, False) == 0.5 + run_all.RESERVE  # a cell is never cut off
    monkeypatch.setattr(run_all, "longest_of", lambda *_: 0.02)
    scripts[0]["a"] = "import time; time.sleep(600)"
    assert [run.status for run in run_all.run_pages(at, (page("a"),))] == ["ended after 0.0 minutes"]


def test_arguments_name_the_sources_and_leave_out_what_is_not_there(at):
    command = run_all.arguments_of(page("a", limited=True), at, 3)
    assert command == [
        *("-m", "benchmarks.paper.tables", str(at.cifar), "--fashion", str(at.fashion), "--short"),
        *("--work", str(at.work), "--minutes", "3.00", "--out", str(at.results / "a.md")),
    ]
    without = Settings(at.cifar, None, at.results, at.work, 10, quick=True)
    command = run_all.arguments_of(page("a"), without, 3)
    assert "--fashion" not in command and "--quick" in command and "--short" not in command


def test_the_page_of_times_has_a_row_for_each_and_the_sum(at):
    made = [PageRun("paper", 10.5, 20.0, 0.1, "done"), PageRun("peers", 2.0, 1.0, 1.5, "failed, exit code 1")]
    text = run_all.times_page(made, at)
    assert "| [paper](paper.md) | 10.5 | 20.0 | 11.0 | 0.10 | done |" in text
    assert "| all | 12.5 | 21.0 | 10 allowed |" in text and "failed, exit code 1" in text


def test_make_bench_fits_into_its_minutes():
    assert sum(one.bench.minutes for one in BENCH) <= run_all.MINUTES
    assert sum(one.bench.quick_minutes for one in BENCH) <= run_all.QUICK_MINUTES
    assert run_all.MINUTES + run_all.RESERVE < 40 and run_all.QUICK_MINUTES + run_all.QUICK_RESERVE < 5


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


def test_names_of_pages_are_unique():
    assert len({page.name for page in PAGES}) == len(PAGES)


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


def test_commits_are_those_of_the_last_lines():
    text = "# Page\n\nFaster than commit 1234567.\n\n" + "x\n" * 5 + "Measured on a machine; commit abcdef0-dirty.\n"
    assert index.commits_of(text) == ["abcdef0-dirty"]
    assert index.made_at("No figures.") == "not stated"


def test_commits_are_those_that_measured_the_cells_where_a_page_names_them():
    end = "Measured on a machine; commit abcdef0."
    cells = "3 cells were measured at commit 1111111. 4 cells were measured at commit 2222222; the commit below "
    assert index.commits_of(f"{cells}wrote the page.\n\n{end}\n") == ["1111111", "2222222"]
    assert index.commits_of(f"{cells}measured the others.\n\n{end}\n") == ["1111111", "2222222", "abcdef0"]
    assert index.commits_of(f"Text.\n\n{end} Reviews of 1111111, 2222222.\n") == ["1111111", "2222222"]


def test_a_page_without_an_entry_is_named(tmp_path):
    (tmp_path / "paper.md").write_text("Measured; commit abcdef0.")
    index.write_index(tmp_path)
    assert "[paper](paper.md)" in Path(tmp_path / "index.md").read_text()
    (tmp_path / "new.md").write_text("")
    with pytest.raises(SystemExit, match="lacks new: add what makes them"):
        index.write_index(tmp_path)
