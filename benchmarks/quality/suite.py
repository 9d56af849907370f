"""Ten one-vs-rest tasks on CIFAR-10 embeddings: ranking, operating point, prior and its interval.

    python -m benchmarks.quality.suite DIR [--out docs/results/suite.md]
    python -m benchmarks.quality.suite DIR --classes airplane cat frog truck --seeds 1

DIR holds train/<class>/*.png and test/<class>/*.png. For every class as the positives, a share of
positives among the unlabelled of 1 % and 5 %, 20, 100 and 500 labelled, and three seeds: all 45,000
images of the other classes, and as many hidden positives as the share asks for. pucache runs at
its defaults, told only the share of positives of the test set (10 %). Every cell is kept in
DIR/pucache-bench, so a run that is cut off goes on where it was. The second form takes minutes, not hours.
"""

import argparse
import time
from itertools import product
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve, roc_auc_score

from benchmarks.common.cells import TUNED, measured, table
from benchmarks.common.cifar import CLASSES, Cifar
from benchmarks.common.environment import environment
from pucache import PULinearClassifier
from pucache.heads.fit import fit_heads
from pucache.heads.risks import PURisk
from pucache.pu.folds import stratified_folds
from pucache.pu.priors import estimate

SHARES, LABELLED, SEEDS = (0.01, 0.05), (20, 100, 500), 3
IDENTITY = ("class", "share", "labelled", "seed")
CS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # of the logistic regression, scikit-learn's scale
CEILING = (3e-6, 1e-5)  # penalties of the supervised head
QUICK_CLASSES = ("truck",)
LOGISTIC = PURisk("weighted_bce")


def best_f1(y, margins) -> float:
    precision, recall, _ = precision_recall_curve(y, margins)
    return float(np.max(2 * precision * recall / np.maximum(precision + recall, 1e-12)))


def ours(X, s, y, X_test, y_test, share) -> dict:
    began = time.perf_counter()
    model = PULinearClassifier(deploy_prior=0.1).fit(X, s)
    seconds = time.perf_counter() - began
    margins, interval = model.margins(X_test), model.prior_estimate_
    return {
        "seconds": seconds,
        "ap": average_precision_score(y[s == 0], model.margins(X[s == 0])),
        "f1": f1_score(y_test, model.predict(X_test)),
        "best_f1": best_f1(y_test, margins),
        "f1_at_0": f1_score(y_test, margins > 0),
        "penalty": model.penalty_,
        "prior_error": abs(model.prior_ / share - 1),
        "bbe_error": abs(estimate(model.held_out_margins_, s, "bbe") / share - 1),
        "covered": bool(interval.low <= share <= interval.high),
        "width": (interval.high - interval.low) / share,
    }


def logistic(X, s, y, X_test, y_test) -> dict:
    """Balanced logistic regression of P against U on standardised X, at every C; heads of pucache, which equal
    scikit-learn's (tests/heads/test_full_batch.py)."""
    scale, centre = X.std(0, dtype=np.float64) + 1e-6, X.mean(0, dtype=np.float64)
    Z, Z_test = (((part - centre) / scale).astype(np.float32) for part in (X, X_test))
    spread = np.square(Z, dtype=np.float64).sum(1).mean()  # the unit of penalties
    heads = fit_heads(Z, s, risk=LOGISTIC, penalty=1 / (np.array(CS) * len(Z) * spread), tolerance=2e-3)
    U, test = heads.margins(Z[s == 0]), heads.margins(Z_test)
    return {
        "ap": [average_precision_score(y[s == 0], margins) for margins in U.T],
        "f1_at_0": [f1_score(y_test, margins > 0) for margins in test.T],
        "best_f1": [best_f1(y_test, margins) for margins in test.T],
    }


def centroid(X, s, y, X_test, y_test) -> dict:
    positive, unlabelled = (X[s == value].mean(0, dtype=np.float64) for value in (1, 0))
    direction = positive - unlabelled
    margins = X_test @ direction - (positive + unlabelled) @ direction / 2
    return {
        "ap": average_precision_score(y[s == 0], X[s == 0] @ direction),
        "f1_at_0": f1_score(y_test, margins > 0),
        "best_f1": best_f1(y_test, margins),
    }


def ceiling(X, s, y, X_test, y_test) -> dict:
    """A head trained on the true labels: its best F1, and its AP among U when it has not seen the row."""
    fold = stratified_folds(y.astype(int), 5)
    weights = np.column_stack([np.ones(len(y)), fold[:, None] != np.arange(5)]).astype(np.float32)
    heads = fit_heads(
        X,
        y,
        risk=LOGISTIC,
        weights=weights,
        column=np.tile(np.arange(6), len(CEILING)),
        penalty=np.repeat(CEILING, 6),
        tolerance=2e-3,
    )
    held_out = heads.margins_by(X, fold[:, None] + 1 + 6 * np.arange(len(CEILING)))[s == 0]
    test = heads.take(6 * np.arange(len(CEILING))).margins(X_test)
    return {
        "ap": max(average_precision_score(y[s == 0], margins) for margins in held_out.T),
        "best_f1": max(best_f1(y_test, margins) for margins in test.T),
        "auc": max(roc_auc_score(y_test, margins) for margins in test.T),
    }


def measure(data: Cifar, cell: dict) -> dict:
    task = data.one_vs_rest(*(cell[part] for part in IDENTITY))
    common = (task.X, task.s, task.y, task.X_test, task.y_test)
    return {
        "pucache": ours(*common, task.prior),
        "logistic": logistic(*common),
        "centroid": centroid(*common),
        "supervised": ceiling(*common),
    }


def run(data: Cifar, work: Path, names: tuple[str, ...], seeds: int, limit: float) -> list[dict]:
    """Seed by seed, so that what is cut off is whole but for the last seeds."""
    wanted = [dict(zip(IDENTITY, values, strict=True)) for values in product(names, SHARES, LABELLED, range(seeds))]
    wanted.sort(key=lambda cell: cell["seed"])
    name = "suite" if data.part == 1 else "quick-suite"
    return measured(work, name, wanted, lambda **cell: measure(data, cell), minutes=limit)


def report(rows: list[dict]) -> str:
    def mean(cells, *path):
        values = [cell[path[0]][path[1]] for cell in cells]
        return f"{np.mean(values):.3f}"

    quality, priors = [], []
    for labelled, share in product(LABELLED, SHARES):
        cells = [row for row in rows if row["labelled"] == labelled and row["share"] == share]
        if not cells:
            continue
        lr = {key: np.mean([cell["logistic"][key] for cell in cells], axis=0) for key in ("ap", "f1_at_0", "best_f1")}
        ap, f1 = (np.mean([cell["pucache"][key] for cell in cells]) for key in ("ap", "f1"))
        ratio = np.mean([cell["pucache"]["f1"] / cell["supervised"]["best_f1"] for cell in cells])
        own = np.mean([max(cell["logistic"]["ap"]) for cell in cells])
        quality.append(
            [
                f"{labelled}, {share:.0%}",
                len(cells),
                f"**{ap:.3f}**",
                f"{lr['ap'].max():.3f} ({CS[lr['ap'].argmax()]:g})",
                f"{own:.3f}",
                mean(cells, "centroid", "ap"),
                mean(cells, "supervised", "ap"),
                f"**{f1:.3f}**",
                mean(cells, "pucache", "best_f1"),
                f"{lr['f1_at_0'].max():.3f} ({CS[lr['f1_at_0'].argmax()]:g})",
                mean(cells, "centroid", "f1_at_0"),
                mean(cells, "supervised", "best_f1"),
                f"**{ratio:.3f}**",
            ]
        )
        errors = [[cell["pucache"][key] for cell in cells] for key in ("prior_error", "bbe_error")]
        priors.append(
            [
                f"{labelled}, {share:.0%}",
                f"{np.median(errors[0]):.1%}",
                f"{np.median(errors[1]):.1%}",
                f"{np.mean([cell['pucache']['covered'] for cell in cells]):.0%}",
                f"{np.median([cell['pucache']['width'] for cell in cells]):.0%}",
                f"{np.median([cell['pucache']['seconds'] for cell in cells]):.1f}",
            ]
        )
    return "\n".join(
        [
            "## Ranking and operating point",
            "",
            "Means over cells (classes and seeds). AP is among the unlabelled, F1 on the test images at each "
            "tool's own threshold: pucache's is for the share of positives in the test set, which it is told, LR's and "
            "the centroid's are 0. LR: balanced logistic regression of P against U on standardised embeddings, at the "
            "C (in brackets) that is best for the row on the truth; in the next column at the C best for each cell on "
            "the truth. Supervised: a head trained on the true labels at its best penalty; AP of rows it has not "
            "seen, F1 at its best threshold. " + TUNED,
            "",
            table(
                [
                    "labelled, share",
                    "cells",
                    "AP pucache",
                    "AP LR (C)",
                    "AP LR, best C per cell",
                    "AP centroid",
                    "AP supervised",
                    "F1 pucache",
                    "best F1 pucache",
                    "F1 LR at 0 (C)",
                    "F1 centroid",
                    "best F1 supervised",
                    "F1 pucache / supervised",
                ],
                quality,
            ),
            "",
            "## Prior",
            "",
            "Median relative error of the estimate, coverage and median width (relative to the truth) of its 90 % "
            "interval from 20 draws, and median seconds of a whole fit.",
            "",
            table(["labelled, share", "error", "error of BBE", "coverage", "width", "seconds"], priors),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, help="where caches and cells are kept (default: DIR/pucache-bench)")
    parser.add_argument("--out", type=Path, help="write the report here too")
    parser.add_argument("--quick", action="store_true", help="a quarter of the images; one class and one seed")
    parser.add_argument("--classes", nargs="+", choices=CLASSES, metavar="CLASS", help="these only (default: all ten)")
    parser.add_argument("--seeds", type=int, help=f"how many (default: {SEEDS})")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no further cell after so long")
    given = parser.parse_args()
    names = tuple(dict.fromkeys(given.classes or (QUICK_CLASSES if given.quick else CLASSES)))
    seeds = (1 if given.quick else SEEDS) if given.seeds is None else given.seeds
    if seeds < 1:
        parser.error(f"--seeds must be at least 1, got {seeds}")
    folder = given.folder.resolve()
    data = Cifar(folder, work := given.work or folder / "pucache-bench", quick=given.quick)
    text = page(data, run(data, work, names, seeds, given.minutes), names, seeds)
    print(text)
    if given.out:
        given.out.write_text(text)


def page(data: Cifar, rows: list[dict], names: tuple[str, ...], seeds: int) -> str:
    wanted = len(names) * seeds * len(SHARES) * len(LABELLED)
    cut = f" Cut off: {len(rows)} of {wanted} cells." if len(rows) < wanted else ""
    told = f"{', '.join(names)}; seeds {', '.join(map(str, range(seeds)))}"
    return (
        f"# One-vs-rest suite\n\n`python -m benchmarks.quality.suite DIR`: {told}; "
        f"{len(data.X):,} training and {len(data.X_test):,} test images.{cut}\n\n{report(rows)}\n\n{environment()}\n"
    )


if __name__ == "__main__":
    main()
