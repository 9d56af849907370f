"""Sections of benchmarks/paper/tables.py: transfer, competitors, retrieval, posterior."""

from collections.abc import Sequence

import numpy as np

from benchmarks.common.cells import TUNED, spread, table
from benchmarks.paper.encoders import RANKS
from benchmarks.paper.published import BALANCED, COMPETITORS, COUNTS, GLAUCOMA, HUNDRED, RESULTS, TEN
from benchmarks.paper.rows import (
    AT_ZERO,
    AUTHORS,
    BEST,
    CENTROID,
    CS,
    LOGISTIC,
    OWN,
    SUPERVISED_HEAD,
    TEST_SHARE,
    Scope,
    gap,
)
from pucache.training.penalty import PENALTIES

METRICS = {"accuracy": "accuracy", "f1": "F1", "auc": "AUC"}
NOT_RUN = {HUNDRED: "--cifar100", GLAUCOMA: "--glaucoma"}
ADVANTAGES = {  # of what may stand before pucache
    AUTHORS: "it is given the true prior, pucache is not",
    CENTROID: "it has no penalty and no threshold to learn",
    "logistic": "its penalty is the best of four, chosen with the true labels",
    "ImageNet": "its encoder is another, a ResNet-50",
    "pretrained": "its encoder was trained on these images, at 240 minutes of A100s for 100 epochs of CIFAR-10",
    "from scratch": "its whole network was trained on these labels",
}


def introduction(encoder: str, scope: Scope, options: str) -> str:
    few = "**--quick: a quarter of the images; figures are not to be quoted.** " if "--quick" in options else ""
    return (
        "# The paper's tables and figures, run again\n\n"
        f"`python -m benchmarks.paper.tables DIR{options}`. {few}"
        "Dorigatti, Schweisthal, Bischl, Rezaei: ImPULSeS. "
        f"Encoder {encoder}, frozen, unless a table says otherwise. Seeds {', '.join(map(str, scope.seeds))}: mean ± "
        "standard deviation (of n − 1) of n runs, in %; the paper gives means of three runs and no spread. Accuracy, "
        "F1 and AUC are on the test set, AP (average precision) is among the unlabelled training images, where "
        "positives are hidden. Margin 0 is the authors' threshold: scores above 0 count as positive. *1:10*: "
        "positives to negatives in training, labelled or not. The *authors' protocol* is Adam at 3e-4, "
        "batches of 256, 100 epochs, the last epoch kept, on X scaled by one number; its seeds set the initial head, "
        "not the order of the rows. pucache's seeds set folds and random draws; a method without randomness gives the "
        "same figures n times. "
        f"Tasks with all images of CIFAR-10 have n = {len(scope.seeds_of_large)}. {TUNED}"
    )


def per(cells: Sequence[dict], name: str, metric: str) -> list[float]:
    """A metric of a way in each cell."""
    return [cell["ways"][name][metric] for cell in cells]


def best_of(cells: Sequence[dict], names: Sequence[str], metric: str = "accuracy") -> str:
    return max(names, key=lambda name: np.mean(per(cells, name, metric)))


# --- transfer --------------------------------------------------------------------------------------


def counts(cells_of: dict[str, list[dict]]) -> str:
    lines = []
    for name, cells in cells_of.items():
        labelled, hidden, negative, test, share = cells[0]["counts"]
        prior = hidden / (hidden + negative)
        published = COUNTS.get(name)
        paper = " / ".join(f"{count:,}" for count in published) if published else ""
        lines.append(
            [name, f"{labelled:,} / {hidden:,} / {negative:,}", paper, f"{prior:.4f}", f"{test:,} ({share:.0%})"]
        )
    lines += [
        [name, "not run: data not at hand", " / ".join(f"{count:,}" for count in COUNTS[name]), "", ""]
        for name in NOT_RUN
        if name not in cells_of
    ]
    head = ["", "labelled P / hidden P / N", "in the paper", "prior among U", "test images (positive)"]
    return "## Data\n\n" + table(head, lines)


def transfer(cells_of: dict[str, list[dict]]) -> str:
    """A table for each data set, the paper's rows last."""
    parts = ["## Transfer: a frozen encoder and a linear head"]
    for name in [*cells_of, *(name for name in NOT_RUN if name not in cells_of)]:
        cells = cells_of.get(name, [])
        lines = [_line(cells, way, title) for way, title in _ways(cells).items()]
        if not cells:
            lines = [["**pucache**: not run, data not at hand", "", "", "", "", ""]]
        lines += [[way, *(f"{x:.2f}" for x in of), "", ""] for way, of in _published(name).items()]
        parts += [f"### {name}", table(["", *METRICS.values(), "AP", "n"], lines)]
        parts += (
            [behind(name, cells)]
            if cells
            else [f"To run it: `python -m benchmarks.paper.tables DIR {NOT_RUN[name]} DIR`."]
        )
    seconds = [seconds for cells in cells_of.values() for seconds in per(cells, AT_ZERO, "seconds")]
    parts.append(
        f"A fit of pucache (penalty, prior with interval, head, calibration) took {min(seconds):.1f} to "
        f"{max(seconds):.1f} s."
    )
    return "\n\n".join(parts)


def _published(name: str) -> dict[str, tuple[float, float, float]]:
    return next((of for prefix, of in RESULTS.items() if name.startswith(prefix)), {})


def _ways(cells: list[dict]) -> dict[str, str]:
    """What is shown, by name of the way, and how it is called."""
    if not cells:
        return {}
    logistic = [LOGISTIC.format(C) for C in CS]
    best = best_of(cells, logistic)
    worst = min(logistic, key=lambda name: np.mean(per(cells, name, "accuracy")))
    titles = {
        best: f"{best}: the best of {len(CS)}, chosen with the true labels",
        worst: f"{worst}: the worst of them",
    }
    shown = (AT_ZERO, TEST_SHARE, OWN, AUTHORS, best, worst, CENTROID, SUPERVISED_HEAD)
    return {way: titles.get(way, way) for way in shown}


def _line(cells: list[dict], way: str, title: str) -> list:
    shown = METRICS if way == SUPERVISED_HEAD else (*METRICS, "ap")  # it was trained on the rows of AP
    figures = [spread(per(cells, way, metric)) for metric in shown]
    return [title, *figures, *[""] * (len(METRICS) + 1 - len(figures)), len(cells)]


def behind(name: str, cells: list[dict]) -> str:
    """Where a way that knows no true label stands before pucache, by how much, and what it was given."""
    sentences = []
    rivals = [AUTHORS, CENTROID, best_of(cells, [LOGISTIC.format(C) for C in CS])]
    for at, (metric, called) in enumerate(METRICS.items()):
        own = 100 * np.mean(per(cells, AT_ZERO, metric))
        theirs = {way: 100 * np.mean(per(cells, way, metric)) for way in rivals}
        theirs |= {way: of[at] for way, of in _published(name).items() if "supervised" not in way}
        for way, value in theirs.items():
            if value > own:
                reason = next((ADVANTAGES[key] for key in ADVANTAGES if key in way), "")
                sentences.append(f"{called}: {way}, {value:.2f} against {own:.2f}" + (f" ({reason})" if reason else ""))
    if not sentences:
        return "pucache at margin 0 is first in each of the three, but for the supervised rows."
    first = "Where pucache at margin 0 is not first, supervised rows aside"
    return f"{first}: {'; '.join(sentences)}. {_with_other_penalties(cells)}"


def _with_other_penalties(cells: list[dict]) -> str:
    """What the choice of the penalty, and the loss, have to do with it."""
    sentences = []
    for name in BEST:
        best = best_of(cells, [name.format(penalty) for penalty in PENALTIES])
        figures = (f"{100 * np.mean(per(cells, best, metric)):.2f}" for metric in METRICS)
        sentences.append(f"{best}, has {' / '.join(figures)}")
    chosen = ", ".join(f"{cell['penalty']:.0e}" for cell in cells)
    return (
        f"pucache's rule, which uses no true label, chose the penalties {chosen}. With the best of {len(PENALTIES)} "
        "penalties, chosen with the true labels, its solver reaches (accuracy / F1 / AUC, margin 0): "
        f"{'; '.join(sentences)}."
    )


def competitors(cells_of: dict[str, list[dict]]) -> str:
    lines = []
    for name, cells in cells_of.items():
        if name != TEN and not name.startswith(BALANCED):
            continue
        labelled, hidden, negative, *_ = cells[0]["counts"]
        sizes = [f"{count:,}" for count in (labelled, labelled + hidden, labelled + hidden + negative)]
        for way, title in (
            (AT_ZERO, "**pucache**, margin 0"),
            (TEST_SHARE, "**pucache**, threshold for the test set's share"),
        ):
            values = per(cells, way, "accuracy")
            lines.append([f"{title} (n = {len(cells)})", *sizes, spread(values), np.mean(values)])
    lines += [
        [name, *(f"{count:,}" for count in sizes), f"{accuracy:.2f}", accuracy / 100]
        for name, (*sizes, accuracy) in COMPETITORS.items()
    ]
    lines = [line[:-1] for line in sorted(lines, key=lambda line: -line[-1])]
    head = ["", "labelled P", "P in training", "images in training", "accuracy"]
    return (
        "## Competitors\n\nVehicles against animals, on the common test set of 10,000, as each reports it; best first. "
        "pucache's encoder has seen ImageNet, with labels; those of the paper's rows learned from these images "
        "alone. The paper prints 33,000 images for its last row, and says in the text that they are all of them.\n\n"
        + table(head, lines)
    )


def retrieval(cells: list[dict]) -> str:
    lines = []
    for way in cells[0]["ways"]:
        lines.append(
            [way, *(spread([cell["ways"][way][at] for cell in cells]) for at in range(len(RANKS) + 2)), len(cells)]
        )
    lines.sort(key=lambda line: -float(line[-2].split()[0]))
    head = ["", *(f"P@{rank}" for rank in RANKS), "P@hidden", "AP", "n"]
    return (
        "## Hidden positives found\n\nCIFAR-10 at 1:10: precision of the first 100, of the first 1,000 and of as many "
        "as are hidden, and average precision, among the unlabelled; the best first.\n\n" + table(head, lines)
    )


def posterior(cells: list[dict], link: str) -> str:
    priors = "; ".join("{:.4f} ({:.4f} to {:.4f})".format(*cell["prior"]) for cell in cells)
    gaps = {of: spread([gap(cell["bins"][of]) for cell in cells]) for of in ("unlabelled", "test")}
    return (
        f"## Prior and posterior\n\nCIFAR-10 at 1:10. Prior estimated by seed, with its 90 % interval (truth "
        f"{cells[0]['prior'][-1]:.4f}): {priors}. Calibration: mean absolute difference between the posterior and "
        "the true share of positives, in ten bins of equal width, weighted by their rows: "
        f"{gaps['unlabelled']} points among the unlabelled, {gaps['test']} on the test "
        f"set with its share of positives given (n = {len(cells)}).\n\n"
        f"![Share of true positives against the posterior]({link}/reliability.png)\n\n"
        "Seed 0; numbers are images, bars two standard errors."
    )
