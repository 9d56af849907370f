"""Tables of the ImPULSeS paper, measured again with pucache on the embeddings of a frozen encoder.

    python -m benchmarks.paper.tables DIR [--fashion SOURCE] [--quick] [--work WORK] [--out docs/results/paper.md]

DIR holds train/<class>/<index>.png and test/<class>/<index>.png of CIFAR-10, or the original cifar-10-batches-py.
SOURCE is Fashion-MNIST, which the paper does not have: a 1:10 task of footwear. Figures of the paper stand beside ours,
also those of its data sets that are not measured here. What is measured is kept in WORK, so a run that was cut off goes
on. The picture of the posterior goes to images/ beside the folder of --out (docs/images). --quick takes a quarter of
the images, one seed and fewer losses and priors.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common.cells import TUNED, measured, spread, table
from benchmarks.common.cifar import Cifar
from benchmarks.common.command_line import images_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.image_classes import Task
from benchmarks.common.tasks import CIFAR, FASHION, Location, opened
from benchmarks.paper import rows
from benchmarks.paper.published import (
    BALANCED,
    COMPETITORS,
    COUNTS,
    FOOTWEAR,
    LOSSES,
    NOT_MEASURED,
    RESULTS,
    TEN,
)
from benchmarks.paper.rows import AT_ZERO, AUTHORS, AUTO, CENTROID, CS, LOGISTIC, OWN, SUPERVISED, TEST_SHARE, Scope

METRICS = {"accuracy": "accuracy", "f1": "F1", "auc": "AUC"}
RANKED = ("P@100", "P@1000", "P@hidden", "AP")
NAMES = {
    "upu": "uPU",
    "nnpu": "nnPU",
    "imbupu": "imbuPU (pucache's default)",
    "imbnnpu": "imbnnPU (the paper's)",
    "weighted_bce": "weighted BCE, U as negative",
    "bce": "BCE, U as negative",
    SUPERVISED: "supervised: weighted BCE, true labels",
}


# --- what is measured ------------------------------------------------------------------------------


def tasks_of(data: Cifar, footwear: Task | None, scope: Scope) -> dict[str, Callable[[int], Task]]:
    """The data sets by name, each a task by seed."""
    of: dict[str, Callable[[int], Task]] = {TEN: lambda seed: data.authors()}
    for count in scope.labelled:
        of[f"{BALANCED}, {count:,} labelled"] = partial(data.balanced, count)
    return of | ({FOOTWEAR: lambda seed: footwear} if footwear else {})


def transferred(cells: Callable, of: dict[str, Callable[[int], Task]], scope: Scope) -> dict[str, list[dict]]:
    """Cells of each data set."""
    seeds = {name: scope.seeds[:1] if name.startswith(BALANCED) else scope.seeds for name in of}
    wanted = [{"data": name, "seed": seed} for name in of for seed in seeds[name]]
    found = cells("transfer", wanted, lambda data, seed: rows.transfer(of[data](seed), seed))
    return {name: [row for row in found if row["data"] == name] for name in of}


def misspecified(cells: Callable, task: Task, scope: Scope) -> dict[str, list[list[dict]]]:
    """Figures by line, factor of the prior and seed."""

    def measure(way: str, factors: str) -> dict:
        ours = way == "pucache"
        return {"lines": rows.misled_pucache(task, scope) if ours else rows.misled_authors(task, way, scope)}

    factors = " ".join(map(str, scope.factors))
    ways = cells("priors", [{"way": way, "factors": factors} for way in ("pucache", *rows.MISLED)], measure)
    return {line: of for row in ways for line, of in row["lines"].items()}


# --- transfer --------------------------------------------------------------------------------------


def introduction(encoder: str, at: Location) -> str:
    few = "**--quick: a quarter of the images; figures are not to be quoted.** " * at.quick
    return (
        "# The paper's tables and figures, run again\n\n"
        f"`python -m benchmarks.paper.tables DIR{at.options}`. {few}"
        "Dorigatti, Schweisthal, Bischl, Rezaei: ImPULSeS. "
        f"Encoder {encoder}, frozen. Figures are mean ± standard deviation (of n − 1) of n seeds, in %; the paper "
        "gives means of three runs and no spread. Accuracy, F1 and AUC are on the test set, AP (average precision) is "
        "among the unlabelled training images, where positives are hidden. Margin 0 is the authors' threshold: scores "
        "above 0 count as positive. *1:10*: positives to negatives in training, labelled or not. The *authors' "
        "protocol* is Adam at 3e-4, batches of 256, 100 epochs, the last epoch kept, on X scaled by one number; its "
        "seeds set the initial head, not the order of the rows. pucache's seeds set folds and random draws; a method "
        f"without randomness gives the same figures n times. {TUNED}"
    )


def per(cells: Sequence[dict], name: str, metric: str) -> list[float]:
    """A metric of a way in each cell."""
    return [cell["ways"][name][metric] for cell in cells]


def counts(cells_of: dict[str, list[dict]]) -> str:
    """Numbers of images of each data set, beside the paper's."""
    lines = []
    for name, cells in cells_of.items():
        labelled, hidden, negative, test, share = cells[0]["counts"]
        prior = hidden / (hidden + negative)
        ours = f"{labelled:,} / {hidden:,} / {negative:,}"
        lines.append([name, ours, COUNTS.get(name, ""), f"{prior:.4f}", f"{test:,} ({share:.0%})"])
    lines += [[name, "not measured", COUNTS[name], "", ""] for name in NOT_MEASURED]
    head = ["", "labelled P / hidden P / N", "in the paper", "prior among U", "test images (positive)"]
    return "## Data\n\n" + table(head, lines)


def transfer(cells_of: dict[str, list[dict]]) -> str:
    """A table for each data set, the paper's rows last."""
    parts = ["## Transfer: a frozen encoder and a linear head"]
    for name in (*cells_of, *NOT_MEASURED):
        cells = cells_of.get(name, [])
        lines = [_line(cells, way, title) for way, title in _ways(cells).items()] if cells else []
        lines += [[way, *(f"{x:.2f}" for x in of), "", ""] for way, of in published(name).items()]
        parts += [f"### {name}", table(["", *METRICS.values(), "AP", "n"], lines)]
        if not cells:
            parts.append("Not measured here.")
    return "\n\n".join(parts)


def published(name: str) -> dict[str, tuple[float, float, float]]:
    """The paper's rows of a data set."""
    return next((of for prefix, of in RESULTS.items() if name.startswith(prefix)), {})


def _logistic(cells: list[dict]) -> list[str]:
    """Names of the logistic regressions, the one of the greatest accuracy first."""
    return sorted(map(LOGISTIC.format, CS), key=lambda name: -np.mean(per(cells, name, "accuracy")))


def _ways(cells: list[dict]) -> dict[str, str]:
    """What is shown, by name of the way, and how it is called."""
    best, *_, worst = _logistic(cells)
    titles = {
        best: f"{best}: the best of {len(CS)}, chosen with the true labels",
        worst: f"{worst}: the worst of them",
    }
    shown = (AT_ZERO, TEST_SHARE, AUTO, OWN, AUTHORS, best, worst, CENTROID, rows.SUPERVISED_HEAD)
    return {way: titles.get(way, way) for way in shown}


def _line(cells: list[dict], way: str, title: str) -> list:
    ap = "" if way == rows.SUPERVISED_HEAD else spread(per(cells, way, "ap"))  # it was trained on the rows of AP
    return [title, *(spread(per(cells, way, metric)) for metric in METRICS), ap, len(cells)]


def competitors(cells_of: dict[str, list[dict]]) -> str:
    lines = []
    for name, cells in cells_of.items():
        if name != TEN and not name.startswith(BALANCED):
            continue
        labelled, hidden, negative, *_ = cells[0]["counts"]
        sizes = [f"{count:,}" for count in (labelled, labelled + hidden, labelled + hidden + negative)]
        for way, title in ((AT_ZERO, "margin 0"), (TEST_SHARE, "threshold for the test set's share")):
            values = per(cells, way, "accuracy")
            lines.append([f"**pucache**, {title} (n = {len(cells)})", *sizes, spread(values), 100 * np.mean(values)])
    lines += [
        [name, *(f"{count:,}" for count in sizes), f"{accuracy:.2f}", accuracy]
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
        figures = [[cell["ways"][way][name] for cell in cells] for name in RANKED]
        lines.append([way, *map(spread, figures), len(cells)])
    lines.sort(key=lambda line: -float(line[-2].split()[0]))
    head = ["", *RANKED, "n"]
    return (
        "## Hidden positives found\n\nCIFAR-10 at 1:10: precision of the first 100, of the first 1,000 and of as many "
        "as are hidden, and average precision, among the unlabelled; the best first.\n\n" + table(head, lines)
    )


# --- prior and posterior ---------------------------------------------------------------------------


def posterior(cells: list[dict]) -> str:
    priors = "; ".join("{:.4f} ({:.4f} to {:.4f})".format(*cell["prior"]) for cell in cells)
    gaps = {of: spread([gap(cell["bins"][of]) for cell in cells]) for of in ("unlabelled", "test")}
    return (
        f"## Prior and posterior\n\nCIFAR-10 at 1:10. Prior estimated by seed, with its 90 % interval (truth "
        f"{cells[0]['prior'][-1]:.4f}): {priors}. Calibration: mean absolute difference between the posterior and "
        "the true share of positives, in ten bins of equal width, weighted by their rows: "
        f"{gaps['unlabelled']} points among the unlabelled, {gaps['test']} on the test "
        f"set with its share of positives given (n = {len(cells)}).\n\n"
        "![Share of true positives against the posterior](../images/reliability.png)\n\n"
        "Seed 0; numbers are images, bars two standard errors."
    )


def gap(of: list[list[float]]) -> float:
    """Mean distance of the posterior from the true share over bins, weighed by their rows."""
    means, true, count = np.array(of).T
    return float(np.abs(means - true) @ count / count.sum())


def draw_reliability(path: Path, bins: dict[str, list[list[float]]]) -> None:
    """Draw true shares against mean posteriors, among the unlabelled and on the test set."""
    sheet = Figure(figsize=(9, 4.4), layout="constrained")
    titles = {"unlabelled": "among the unlabelled (held out)", "test": "test set, its share of positives given"}
    for axes, (of, title) in zip(sheet.subplots(1, len(titles)), titles.items(), strict=True):
        means, true, count = np.array(bins[of]).T
        error = 2 * np.sqrt(np.maximum(true * (1 - true), 1 / count) / count)
        axes.plot([0, 1], [0, 1], ":", color="grey")
        axes.errorbar(means, true, error, fmt="o-", capsize=3)
        for x, height, number in zip(means, true, count, strict=True):
            axes.annotate(f"{number:,.0f}", (x, height), textcoords="offset points", xytext=(6, -11), fontsize=7)
        axes.set(title=title, xlabel="posterior", ylabel="share truly positive", xlim=(-0.03, 1.08), ylim=(-0.03, 1.05))
        axes.grid(alpha=0.3)
    path.parent.mkdir(exist_ok=True)
    sheet.savefig(path, dpi=130)


# --- losses, and priors that are wrong -------------------------------------------------------------


def losses(cells: list[dict]) -> str:
    lines = [
        [
            cell["solver"],
            NAMES[cell["loss"]],
            *(spread([run[metric] for run in cell["runs"]]) for metric in METRICS),
            "" if cell["loss"] == SUPERVISED else spread([run["ap"] for run in cell["runs"]]),  # trained on those rows
            spread([run["called"] for run in cell["runs"]]),
            len(cell["runs"]),
        ]
        for cell in cells
    ]
    paper = [[features, loss, *(f"{x:.2f}" for x in of)] for (features, loss), of in LOSSES.items()]
    return (
        "## Losses\n\nCIFAR-10 at 1:10, at margin 0. Every PU loss is given the true prior. pucache's solver chooses "
        "the penalty (supervised: one fixed penalty). *Called positive*: percent of the test images; 40 % are "
        "positive. The paper says that plain BCE, U as negative, collapses to all-negative predictions. imbuPU is "
        "pucache's default also where it is not first: alone among the PU losses, its head needs no prior.\n\n"
        + table(["", "loss", *METRICS.values(), "AP", "called positive", "n"], lines)
        + "\n\nThe paper, with a ResNet-50 trained on these images:\n\n"
        + table(["features", "loss", "accuracy", "F1"], paper)
    )


def priors(factors: Sequence[float], lines: dict[str, list[list[dict]]]) -> str:
    shown = [
        [f"{name} (n = {len(of[0])}): {called}", *(spread([run[metric] for run in runs]) for runs in of)]
        for name, of in lines.items()
        for metric, called in METRICS.items()
    ]
    return (
        "## Priors that are wrong\n\nCIFAR-10 at 1:10. The prior that each method is given is the true one times the "
        "factor at the head of the column, at most 0.99. The paper's figure shows AUC alone, over the epochs; accuracy "
        "and F1 at margin 0 are what a wrong prior changes. *Own threshold*: pucache's, set for the true share of "
        "positives in the test set. nnPU is on standardised X (on X as it is: see Losses).\n\n"
        + table(["", *(f"{factor:g}" for factor in factors)], shown)
    )


# --- the page --------------------------------------------------------------------------------------


def page(at: Location, out: Path | None) -> str:
    scope = rows.QUICK if at.quick else Scope()
    data = opened(at).data(CIFAR)
    footwear = opened(at).data(FASHION).footwear() if at.fashion else None
    task, seeds = data.authors(), scope.seeds

    def cells(name: str, wanted: list[dict], measure: Callable[..., dict]) -> list[dict]:
        return measured(at.work, f"{at.prefix}paper-{name}", wanted, measure)

    of_data = transferred(cells, tasks_of(data, footwear, scope), scope)
    found = cells("found", [{"seed": seeds[0]}], lambda seed: rows.retrieved(data, at.work, seed))
    wanted = [{"loss": loss, "solver": solver} for solver in rows.SOLVERS for loss in scope.losses]
    of_losses = cells("losses", wanted, lambda loss, solver: {"runs": rows.ablation(task, loss, solver, seeds)})
    if out:
        draw_reliability(out.resolve().parents[1] / "images/reliability.png", of_data[TEN][0]["bins"])
    parts = [
        introduction(data.encoder, at),
        counts(of_data),
        transfer(of_data),
        competitors(of_data),
        retrieval(found),
        posterior(of_data[TEN]),
        losses(of_losses),
        priors(scope.factors, misspecified(cells, task, scope)),
        environment(),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    options = images_parser(__doc__).parse_args()
    write_page(page(Location.of(options), options.out), options.out)
