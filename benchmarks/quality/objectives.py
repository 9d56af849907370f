"""Losses and self-training from other papers, as linear heads on the same embeddings, against pucache's default.

    python -m benchmarks.quality.objectives DIR [--quick] [--work W] [--out docs/results/objectives.md]

DIR holds train/<class>/*.png and test/<class>/*.png of CIFAR-10. For who wonders whether another objective would
find more: VPU (Chen, Liu, Wang, Zhao, Wu 2020), Dist-PU (Zhao et al. 2022), the self-paced part of Self-PU (Chen,
Chen et al. 2020) and soft self-training, each at a small grid of its hyper-parameters, of which pucache's held-out
rule picks one, on four one-vs-rest tasks in six settings and on the authors' task. A second figure is of the
setting that is best on the truth, so that no loss is blamed for that choice.
"""

import time
from itertools import product
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import average_precision_score, f1_score

from benchmarks.common.cells import measured
from benchmarks.common.cifar import Cifar, Task
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.quality.margin_heads import Rows
from benchmarks.quality.objective_methods import METHODS, TaskEstimates
from benchmarks.quality.objective_page import PAPER, report
from benchmarks.quality.suite import LABELLED, SHARES, best_f1
from pucache import PULinearClassifier
from pucache.estimates.calibration import fit_tilt
from pucache.estimates.review_weights import TrainingLabels as PULabels
from pucache.estimates.thresholds import choose_threshold
from pucache.heads.moments import Moments
from pucache.heads.solve import fit_heads
from pucache.labels.folds import assign_folds
from pucache.training.penalty import PENALTIES, ranks_of_positives, weakest_of_the_best

CLASSES = ("cat", "truck", "airplane", "frog")
FOLDS, FEW = 5, 6000  # rows of U that settings are chosen on, and heads begun
AUTHORS = {"class": PAPER, "share": 0.074, "labelled": 600, "seed": 0}


class Judge:
    """Figures of heads on one task: AP among U, best F1, and F1 at a threshold, on the test set."""

    def __init__(self, task: Task):
        self.task, self.deployed = task, float(task.y_test.mean())

    def ranking(self, unlabelled: np.ndarray, test: np.ndarray) -> dict[str, float]:
        return {"ap": average_precision_score(self.task.hidden, unlabelled), "best_f1": best_f1(self.task.y_test, test)}

    def f1(self, test: np.ndarray, threshold: float) -> float:
        return float(f1_score(self.task.y_test, test > threshold))

    def calibrated_f1(self, held_out: np.ndarray, s: np.ndarray, test: np.ndarray) -> float:
        """At the threshold that pucache's calibration makes of held-out margins; without the prior."""
        tilt = fit_tilt(held_out, s)
        return self.f1(test, choose_threshold(tilt, held_out[s == 0], "f1", self.deployed))

    def best(self, unlabelled: np.ndarray, test: np.ndarray) -> dict[str, float]:
        """The best of several heads, (J, n) margins each, by the truth; each figure for itself."""
        each = [self.ranking(*of) for of in zip(unlabelled, test, strict=True)]
        return {f"oracle_{name}": max(one[name] for one in each) for name in ("ap", "best_f1")}


def default(task: Task, judge: Judge) -> tuple[dict, TaskEstimates]:
    began = time.perf_counter()
    model = PULinearClassifier(deploy_prior=judge.deployed, method="linear").fit(task.X, task.s)
    seconds = time.perf_counter() - began
    test = model.margins(task.X_test)
    row = judge.ranking(model.margins(task.unlabelled), test) | {"f1": judge.f1(test, model.threshold_)}
    every = fit_heads(task.X, task.s, penalty=np.array(PENALTIES), tolerance=2e-3)
    row |= judge.best(every.margins(task.unlabelled).T, every.margins(task.X_test).T)
    row |= {"seconds": seconds, "setting": {"penalty": model.penalty_}}
    return row, TaskEstimates(model.penalty_, model.prior_, task.prior)


def choose(settings: list[dict], score: np.ndarray) -> int:
    """The setting of pucache's rule: its penalty among those alike but for it, then the best mean of score, (J, p)."""
    families: dict[tuple, list[int]] = {}
    for number, setting in enumerate(settings):
        kind = tuple(value for name, value in setting.items() if name != "penalty")
        families.setdefault(kind, []).append(number)
    best = [alike[weakest_of_the_best(score[alike])] for alike in families.values()]
    return max(best, key=lambda number: score[number].mean())


class Comparison:
    """All methods on one task."""

    def __init__(self, task: Task, estimates: TaskEstimates, judge: Judge):
        moments, fold = Moments.of(task.X), assign_folds(task.s, FOLDS, 0, None)
        self._estimates, self._judge = estimates, judge
        self._full = Rows.of(task.X, task.s, fold, moments)
        self._few = self._full.thinned(FEW)
        scaled = (task.X_test.astype(np.float32) - moments.centre) / np.float32(moments.spread)
        self._test = torch.from_numpy(scaled)

    def measure(self, kind) -> dict:
        began = time.perf_counter()
        method = kind(self._estimates)
        setting = torch.arange(len(method.settings)).repeat_interleave(FOLDS + 1)
        column = torch.arange(FOLDS + 1).repeat(len(method.settings))
        begun = method.train(self._few, setting, column)
        held_out = [self._few.held_out(begun[(setting == one) & (column < FOLDS)]).numpy() for one in setting.unique()]
        s = (np.arange(len(held_out[0])) < self._full.p).astype(np.int8)
        chosen = choose(method.settings, ranks_of_positives(held_out, PULabels.of(s)))
        wanted = (setting == chosen) | (column == FOLDS)
        heads = method.train(self._full, setting[wanted], column[wanted], begun[wanted])
        whole = heads[column[wanted] == FOLDS]
        row = self._figures(method, chosen, whole, heads[column[wanted] < FOLDS])
        return row | {"seconds": time.perf_counter() - began, "setting": method.settings[chosen]}

    def _figures(self, method, chosen: int, whole: torch.Tensor, folds: torch.Tensor) -> dict:
        rows, judge = self._full, self._judge
        unlabelled = rows.margins(whole)[:, rows.p :].numpy()
        test = (whole[:, :-1] @ self._test.T + whole[:, -1:]).numpy()
        s = (np.arange(len(rows.X)) < rows.p).astype(np.int8)
        row = judge.ranking(unlabelled[chosen], test[chosen]) | judge.best(unlabelled, test)
        row["f1"] = judge.calibrated_f1(rows.held_out(folds).numpy(), s, test[chosen])
        if method.threshold is not None:
            row["own_f1"] = judge.f1(test[chosen], method.threshold(unlabelled[chosen]))
        return row


def measure(data: Cifar, **cell) -> dict:
    if cell["class"] == PAPER:
        task = data.authors()
    else:
        task = data.one_vs_rest(cell["class"], cell["share"], cell["labelled"], cell["seed"])
    judge = Judge(task)
    row, estimates = default(task, judge)
    comparison = Comparison(task, estimates, judge)
    return {"pucache": row} | {kind.name: comparison.measure(kind) for kind in METHODS}


def wanted(quick: bool) -> list[dict]:
    names, settings = CLASSES, list(product(LABELLED, SHARES))
    if quick:
        names, settings = ("truck",), [(100, 0.05)]
    order = [
        (name, settings[(first + number) % len(settings)])
        for first, (number, name) in product(range(len(settings)), enumerate(names))
    ]  # so that a run that is cut off has something of all
    cells = [{"class": name, "share": share, "labelled": labelled, "seed": 0} for name, (labelled, share) in order]
    return [AUTHORS, *cells]


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true", help="a quarter of the images, two tasks")
    parser.add_argument("--work", type=Path, help="where caches and cells are kept (default: DIR/pucache-bench)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no further task after so long")
    arguments = parser.parse_args()
    work = arguments.work or arguments.folder / "pucache-bench"
    cifar = Cifar(arguments.folder, work, quick=arguments.quick)
    name = "objectives-quick" if arguments.quick else "objectives"
    rows = measured(
        work, name, wanted(arguments.quick), lambda **cell: measure(cifar, **cell), minutes=arguments.minutes
    )
    settings = {kind.name: len(kind(TaskEstimates(1e-3, 0.1, 0.1)).settings) for kind in METHODS}
    text = f"{report(rows, settings)}\n{environment()}\n"
    write_page(text, arguments.out)
