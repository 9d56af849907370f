"""pucache against its alternatives on the same embeddings: PU learners, and ranking with bare faiss.

    python -m benchmarks.peers.compare DIR [--fashion SOURCE] [--quick] [--work WORK] [--out docs/results/peers.md]

DIR holds train/<class>/*.png and test/<class>/*.png of CIFAR-10, SOURCE is Fashion-MNIST. For
whoever asks whether pucache is worth a dependency: every tool gets the same embeddings, rows and labels, at its own
defaults and its own threshold.

- Learners (benchmarks/peers/learners.py): each fit in a process of its own, on the authors' 1:10 task, on trucks
  against the rest (100 labelled, 5 % of the unlabelled positive) and on the 1:10 task of footwear; slower ones on
  one of them.
- Ranking: bare faiss and `retrieve-positives` on the 1:10 task.

Fits are kept in WORK, so a run that is cut off goes on where it was. `--quick` takes a quarter of the images, the 1:10
task and the quickest learners.
"""

import json
import subprocess
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.common.cells import TUNED, measured, table
from benchmarks.common.cifar import Cifar
from benchmarks.common.command_line import images_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.image_classes import Task
from benchmarks.common.tasks import CIFAR, FASHION, Location, opened
from benchmarks.peers.learners import DEFAULT, LEARNERS, LEFT_OUT, ONE_FIT, OURS, PACKAGES, PENALTY, missing
from benchmarks.peers.ranking import retrieval

CLASS, LABELLED, SHARE, SEED = "truck", 100, 0.05, 0
AUTHORS, FOOTWEAR = "1:10", "footwear 1:10"
ALL = (AUTHORS, CLASS, FOOTWEAR)
TASKS = {"quick": ALL, "slow": (AUTHORS,), "slowest": (CLASS,)}  # by the pace of a learner
QUICK_TASKS = {"quick": (AUTHORS,)}
LIMIT = 600  # seconds of one process
QUALITY = {"ap": "AP", "f1": "F1", "auc": "AUC"}
FIGURES = QUALITY | {"seconds": "seconds", "mb": "MB"}
ALIKE = 5e-4  # of quality: closer is the same on the page


# --- what is measured ----------------------------------------------------------------------------------


def tasks_of(cifar: Cifar, footwear: Task | None) -> dict[str, Task]:
    """Tasks by name; footwear only with Fashion-MNIST."""
    of = {AUTHORS: cifar.authors(), CLASS: cifar.one_vs_rest(CLASS, SHARE, LABELLED, SEED)}
    return of | ({FOOTWEAR: footwear} if footwear else {})


def fits_wanted(tasks: dict[str, Task], quick: bool) -> list[dict]:
    of_pace = QUICK_TASKS if quick else TASKS
    return [
        {"learner": name, "task": task}
        for name, learner in LEARNERS.items()
        for task in of_pace.get(learner.pace, ())
        if task in tasks
    ]


def fit(folder: Path, learner: str, task: str) -> dict:
    """Figures of a learner on a task, in a process of its own, or why there are none."""
    command = [sys.executable, "-m", "benchmarks.peers.measure", learner, str(folder / f"{task}.npz")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {LIMIT} s"}
    if done.returncode:
        return {"failed": (done.stderr.splitlines() or [f"signal {-done.returncode}"])[-1][:200]}
    print(learner, task, done.stdout.splitlines()[-1], file=sys.stderr, flush=True)
    return json.loads(done.stdout.splitlines()[-1])


def learned(tasks: dict[str, Task], at: Location) -> list[dict]:
    """Every fit."""
    with TemporaryDirectory(dir=at.work) as name:
        folder = Path(name)
        for task, of in tasks.items():
            np.savez(folder / f"{task}.npz", X=of.X, s=of.s, y=of.y, X_test=of.X_test, y_test=of.y_test)
        wanted = fits_wanted(tasks, at.quick)
        return measured(at.work, f"{at.prefix}peers-fits", wanted, partial(fit, folder))


# --- the page ------------------------------------------------------------------------------------------


def shown(name: str, value: float) -> str:
    if name == "mb":
        return f"{value:,.0f}"
    return f"{value:.3f}" if name in QUALITY else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def summary(fits: list[dict]) -> dict[str, float]:
    """Mean quality, median seconds, greatest memory."""
    means = {"seconds": np.median, "mb": np.max}
    return {name: float(means.get(name, np.mean)([one[name] for one in fits])) for name in FIGURES}


def learner_rows(fits: list[dict]) -> list[list[str]]:
    """pucache's own first, then peers by how far their AP is from pucache's on the same tasks."""
    done: dict[str, dict[str, dict]] = {}
    for one in fits:
        if "failed" not in one:
            done.setdefault(one["learner"], {})[one["task"]] = one
    sides = {
        name: (summary(list(of.values())), summary([done[DEFAULT][task] for task in of])) for name, of in done.items()
    }
    peers = sorted(sides.keys() - OURS.keys(), key=lambda name: sides[name][1]["ap"] - sides[name][0]["ap"])
    return [learner_row(name, list(done[name]), *sides[name]) for name in (*OURS, *peers)]


def learner_row(name: str, tasks: list[str], side: dict[str, float], own: dict[str, float]) -> list[str]:
    learner = LEARNERS[name]
    what = f"{learner.work}; given {learner.oracle}" if learner.oracle else learner.work
    if name == DEFAULT:
        return [f"**{name}**", ", ".join(tasks), *(shown(figure, own[figure]) for figure in FIGURES), what]
    return [name, ", ".join(tasks), *(pair(figure, side[figure], own[figure]) for figure in FIGURES), what]


def pair(figure: str, side: float, own: float) -> str:
    """Peer / pucache, the peer in bold where it is ahead."""
    ahead = side - own >= ALIKE if figure in QUALITY else side < own
    return f"{'**' * ahead}{shown(figure, side)}{'**' * ahead} / {shown(figure, own)}"


def ranking_rows(rows: list[dict]) -> list[list[str]]:
    columns = [name for name in rows[0] if name not in ("way", "seconds")]
    return [[row["way"], *(f"{row[name]:.3f}" for name in columns), shown("seconds", row["seconds"])] for row in rows]


def versions() -> str:
    """Of the peers, as they are installed."""
    installed = [f"{name.split('==')[0]} {version(name.split('==')[0])}" for name in PACKAGES.values()]
    return ", ".join([*installed, f"scikit-learn {version('scikit-learn')}"])


def described(name: str, task: Task) -> str:
    what = {
        AUTHORS: "the authors'",
        CLASS: f"this class against all others, seed {SEED}",
        FOOTWEAR: "Fashion-MNIST, sandals, sneakers and boots hidden among the other clothes",
    }
    size = f"{task.s.sum()} labelled, {(task.s == 0).sum():,} unlabelled, of them {task.prior:.1%} positive"
    return f"{name} is {what[name]} ({size})"


def page(cifar: Cifar, tasks: dict[str, Task], fits: list[dict], ranking: list[dict], options: str) -> str:
    run = {one["task"] for one in fits}
    described_tasks = "; ".join(described(name, task) for name, task in tasks.items() if name in run)
    failed = [f"- {one['learner']}, {one['task']}: {one['failed']}" for one in fits if "failed" in one]
    return "\n".join(
        [
            "# Peers",
            "",
            f"`python -m benchmarks.peers.compare DIR{options}`: CIFAR-10, embeddings of "
            f"{cifar.encoder}, {len(cifar.X):,} training and {len(cifar.X_test):,} test images. Each row compares a "
            "tool with pucache on the same embeddings, rows, labels and test images, both at their own defaults; "
            "nothing is tuned with the true labels of these tasks, except where a row says so (C=0.001 was chosen with "
            "the true labels of one task). " + TUNED,
            "",
            "## Learners",
            "",
            f"Tasks: {described_tasks}. Slower learners are run on one "
            "of them. A row has means over its tasks of AP (average precision) among the unlabelled, and of F1 "
            "and AUC on the test images, F1 at the tool's own threshold; the median of the seconds from the float16 "
            "rows of a cache to a fitted model, one fit a task; and the greatest MB. Every cell is peer / pucache (its "
            "defaults, given no prior and no share) on the tasks of the row, the peer in bold where it is ahead (in "
            "quality: by 0.0005 or more): rows differ in tasks, so compare within a row. Each fit runs in a process of "
            "its own, warmed up on made-up rows. MB is the peak resident memory of the fit (VmHWM, set back through "
            "/proc/self/clear_refs) above what the process held once the rows were loaded; copies in float32 that a "
            f"tool needs count. {ONE_FIT}: penalty {PENALTY:g}, the middle of its grid.",
            "",
            table(["learner", "tasks", *FIGURES.values(), "what it computes"], learner_rows(fits)),
            "",
            *(["Failed:", "", *failed, ""] if failed else []),
            f"Peers are {versions()}. A process that takes longer than {LIMIT} s is ended. Left out:",
            "",
            *(f"- {name}: {why}" for name, why in LEFT_OUT.items()),
            "",
            "## Ranking",
            "",
            f"The {AUTHORS} task: {int(tasks[AUTHORS].hidden.sum()):,} hidden positives. Seconds of one run that ranks "
            "all unlabelled rows, from the float16 cache, after a warm-up, in one process; the last row trains its "
            "model.",
            "",
            table(
                ["", *[name for name in ranking[0] if name not in ("way", "seconds")], "seconds"], ranking_rows(ranking)
            ),
            "",
            environment(),
            "",
        ]
    )


def main(at: Location) -> str:
    cifar = opened(at).data(CIFAR)
    tasks = tasks_of(cifar, opened(at).data(FASHION).footwear() if at.fashion else None)
    (ranking,) = measured(
        at.work,
        f"{at.prefix}peers-ranking",
        [{"task": AUTHORS}],
        lambda task: {"rows": retrieval(tasks[task], cifar.train, at.work)},
    )
    return page(cifar, tasks, learned(tasks, at), ranking["rows"], at.options)


if __name__ == "__main__":
    options = images_parser(__doc__).parse_args()
    if lacking := missing():
        raise SystemExit(f"benchmarks.peers.compare needs the peers: pip install {' '.join(lacking)}")
    write_page(main(Location.of(options)), options.out)
