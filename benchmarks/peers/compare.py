"""pucache against its alternatives: PU learners, bare faiss, a bare DataLoader with timm.

    python -m benchmarks.peers.compare DIR [--quick] [--out docs/results/peers.md]

DIR holds train/<class>/*.png and test/<class>/*.png of CIFAR-10. For whoever asks whether pucache is worth a
dependency: every tool gets the same embeddings, rows and labels, at its own defaults and its own threshold.

- Learners (benchmarks/peers/learners.py): each in its own process, on the authors' 1:10 task and one-vs-rest tasks of
  four classes (100 labelled, 5 % of the unlabelled positive); the slow ones on fewer.
- Ranking: bare faiss and `retrieve-positives` on the 1:10 task. Embedding: a loop as people write it and `embed`,
  on PNG files drawn from DIR, each in a process of its own.

Cells are kept in DIR/pucache-bench, so a run that is cut off goes on where it was. `--quick` takes a quarter of the
images, the 1:10 task, the quickest learners and fewer images to embed.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.peers.learners import DEFAULT, LEARNERS, OURS, Truth, missing

CLASSES, LABELLED, SHARE, SEED = ("airplane", "cat", "frog", "truck"), 100, 0.05, 0
AUTHORS, CEILING = "1:10", "supervised ceiling"
TASKS = {
    "quick": (AUTHORS, *CLASSES),
    "fast": (AUTHORS, *CLASSES),
    "slow": (AUTHORS, CLASSES[-1]),
    "slowest": CLASSES[-1:],
}
IMAGES, QUICK_IMAGES = 2000, 192
LIMIT = 600  # seconds of one process


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
    found = ceiling(*(task[name] for name in ("X", "s", "y", "X_test", "y_test")))
    return {"ap": found["ap"], "f1": found["best_f1"], "auc": found["auc"]}


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


def tasks_of(name: str, quick: bool) -> tuple[str, ...]:
    if name == CEILING:
        return () if quick else TASKS["fast"]
    pace = LEARNERS[name].pace
    if quick:
        return (AUTHORS,) if pace == "quick" else ()
    return TASKS[pace]


def write_tasks(data, folder: Path, quick: bool) -> None:
    """One file a task, which costs a process a moment to read."""
    for name in tasks_of(DEFAULT, quick):
        task = data.authors() if name == AUTHORS else data.one_vs_rest(name, SHARE, LABELLED, SEED)
        np.savez(folder / f"{name}.npz", X=task.X, s=task.s, y=task.y, X_test=task.X_test, y_test=task.y_test)


def embedding(source: Path, work: Path, images: int, quick: bool) -> dict:
    """Every embedder in turn, on the same files."""
    from benchmarks.peers.bare import EMBEDDERS, QUICK_EMBEDDERS
    from benchmarks.speed.embed import copy_pngs

    names = [name for name in EMBEDDERS if not quick or name in QUICK_EMBEDDERS]
    with TemporaryDirectory(dir=work) as folder:
        copy_pngs(Path(folder) / "png", source, images)
        return {"rows": {name: alone("embedding", name, Path(folder)) for name in names}}


def learned(data, work: Path, quick: bool, slowest: bool) -> dict[str, dict]:
    """Figures by learner and task, pucache's own first."""
    from benchmarks.common.cells import measured

    left = set() if slowest else {name for name, learner in LEARNERS.items() if learner.pace == "slowest"}
    names = dict.fromkeys(name for name in (*OURS, CEILING, *LEARNERS) if tasks_of(name, quick) and name not in left)
    wanted = [{"learner": name, "on": " ".join(tasks_of(name, quick))} for name in names]
    with TemporaryDirectory(dir=work) as tasks:
        write_tasks(data, Path(tasks), quick)
        rows = measured(
            work,
            f"{'quick-' * quick}peers-learners",
            wanted,
            lambda learner, on: {"cells": alone("learner", learner, Path(tasks), tuple(on.split()))},
        )
    return {row["learner"]: row["cells"] for row in rows}


def run(folder: Path, work: Path, quick: bool, slowest: bool) -> str:
    from benchmarks.common.cells import measured
    from benchmarks.common.cifar import Cifar
    from benchmarks.peers.bare import retrieval
    from benchmarks.peers.page import page

    data, size, images = Cifar(folder, work, quick=quick), "quick-" * quick, QUICK_IMAGES if quick else IMAGES
    cells = learned(data, work, quick, slowest)
    ranking = measured(
        work,
        f"{size}peers-ranking",
        [{"task": AUTHORS}],
        lambda task: {"rows": retrieval(data.authors(), data.train, work)},
    )
    embedded = measured(
        work,
        f"{size}peers-embedding",
        [{"images": images}],
        lambda images: embedding(data.folder / "train", work, images, quick),
    )
    return page(data, cells, ranking[0]["rows"], embedded[0]["rows"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-slowest", action="store_true", help="leave out what takes half a minute a task or more")
    parser.add_argument("--work", type=Path, help="where caches and cells are kept (default: DIR/pucache-bench)")
    parser.add_argument("--out", type=Path, help="write the page here too")
    parser.add_argument("--cell", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        kind, name, *tasks = arguments.cell
        print(json.dumps(cell(kind, name, arguments.folder, tasks), default=float))
        return
    if lacking := missing():
        raise SystemExit(f"benchmarks.peers.compare needs the peers: pip install {' '.join(lacking)}")
    folder = arguments.folder.resolve()
    text = run(folder, arguments.work or folder / "pucache-bench", arguments.quick, not arguments.no_slowest)
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
