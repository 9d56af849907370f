"""Sections of benchmarks/paper/tables.py: losses, wrong priors, pretraining, feature maps."""

import numpy as np

from benchmarks.common.cells import spread, table
from benchmarks.paper.encoders import TAU_PLUS, UNTRAINED
from benchmarks.paper.pages import METRICS
from benchmarks.paper.published import LOSSES, RESULTS, TEN
from benchmarks.paper.rows import RAW, SOLVERS, SUPERVISED

FEATURES = {
    UNTRAINED: "untrained test_resnet",
    "debiased": "the same, pretrained (debiased)",
    "bundled": "bundled ImageNet encoder",
}
NAMES = {
    "upu": "uPU",
    "nnpu": "nnPU",
    "imbupu": "imbuPU (pucache's default)",
    "imbnnpu": "imbnnPU (the paper's)",
    "weighted_bce": "weighted BCE, U as negative",
    "bce": "BCE, U as negative",
    SUPERVISED: "supervised: weighted BCE, true labels",
    "default": "pucache's default, no prior given",
}


def losses(cells: list[dict]) -> str:
    of = {(cell["solver"], cell["loss"]): cell["runs"] for cell in cells}
    lines = [
        [
            solver,
            NAMES[loss],
            *(spread([run[metric] for run in runs]) for metric in METRICS),
            "" if loss == SUPERVISED else spread([run["ap"] for run in runs]),  # it was trained on those rows
            spread([run["called"] for run in runs]),
            len(runs),
        ]
        for (solver, loss), runs in of.items()
    ]
    paper = [[before, NAMES[loss].split(" (")[0], *(f"{x:.2f}" for x in at)] for (before, loss), at in LOSSES.items()]
    paper += [[what, "supervised wBCE", *(f"{x:.1f}" for x in at)] for what, at in _supervised().items()]
    return (
        "## Losses\n\nCIFAR-10 at 1:10, at margin 0. Every PU loss is given the true prior. pucache's solver chooses "
        "the penalty (supervised: one fixed penalty). *Called positive*: percent of the test images; 40 % are "
        "positive.\n\n"
        + table(["", "loss", *METRICS.values(), "AP", "called positive", "n"], lines)
        + "\n\nThe paper, with a ResNet-50 trained on these images:\n\n"
        + table(["features", "loss", "accuracy", "F1"], paper)
        + f"\n\n{_collapses(of)} {_order(of)}"
    )


def _collapses(of: dict) -> str:
    """Whether what the paper says of plain BCE holds here, and where any loss calls nearly everything the same."""
    plain = of[RAW, "bce"]
    accuracy, called, auc = (100 * np.mean([run[metric] for run in plain]) for metric in ("accuracy", "called", "auc"))
    sentences = (
        "The paper says that plain BCE, U as negative, collapses to all-negative predictions. Here, by its protocol, "
        f"it calls {called:.1f} % positive and has accuracy {accuracy:.1f}, while its AUC is {auc:.1f}."
    )
    same = [f"{NAMES[loss]} ({solver})" for (solver, loss), runs in of.items() if _one_sided(runs)]
    return sentences + (f" Within 1 % of all or nothing called positive: {', '.join(same)}." if same else "")


def _one_sided(runs: list[dict]) -> bool:
    called = np.mean([run["called"] for run in runs])
    return bool(called < 0.01 or called > 0.99)


def _supervised() -> dict[str, tuple[float, float]]:
    return {
        way.removeprefix("the paper, supervised "): of[:2] for way, of in RESULTS[TEN].items() if "supervised" in way
    }


def _order(of: dict) -> str:
    """Which loss is best by each protocol, of those without true labels."""
    sentences = []
    for solver in SOLVERS:
        mean = {
            loss: 100 * np.mean([run["accuracy"] for run in runs]) for (by, loss), runs in of.items() if by == solver
        }
        ceiling = mean.pop(SUPERVISED)
        best = max(mean, key=lambda loss: mean[loss])
        beside = f", imbuPU {mean['imbupu']:.2f}" if best != "imbupu" else ""
        sentences.append(f"{solver}: {NAMES[best]} {mean[best]:.2f}{beside}, supervised {ceiling:.2f}")
    return (
        f"Best accuracy without true labels: {'; '.join(sentences)}. imbuPU is pucache's default also where "
        "it is not first: alone among the PU losses, its head needs no prior."
    )


def priors(factors: list[float], lines: dict[str, list[list[dict]]], link: str) -> str:
    shown = [
        [f"{name} (n = {len(of[0])}): {called}", *(spread([run[metric] for run in runs]) for runs in of)]
        for name, of in lines.items()
        for metric, called in METRICS.items()
    ]
    sentences = []
    for name, of in lines.items():
        accuracy, auc = (
            100 * np.array([np.mean([run[m] for run in runs]) for runs in of]) for m in ("accuracy", "auc")
        )
        at = int(np.argmin(accuracy))
        sentences.append(
            f"{name}: accuracy {accuracy.min():.2f} to {accuracy.max():.2f}, worst at {factors[at]:g} times the true "
            f"prior, where AUC is {auc[at]:.2f}"
        )
    return (
        "## Priors that are wrong\n\nCIFAR-10 at 1:10. The prior that each method is given is the true one times the "
        "factor at the head of the column, at most 0.99. The paper's figure shows AUC alone, over the epochs; accuracy "
        "and F1 at margin 0 are what a wrong prior changes. *Own threshold*: pucache's, set for the true share of "
        "positives in the test set. nnPU is on standardised X (on X as it is: see Losses).\n\n"
        + table(["", *(f"{factor:g}" for factor in factors)], shown)
        + "\n\n"
        + "; ".join(sentences)
        + f".\n\n![Accuracy, F1 and AUC by how wrong the prior is]({link}/prior-misspecification.png)"
    )


# --- encoders --------------------------------------------------------------------------------------


def pretraining(cells: list[dict]) -> str:
    head = "## Pretraining losses\n\n"
    if not cells:
        return head + "Not run with --short or --quick. [Pretraining](pretrain.md) has three seeds."
    lines = []
    for cell in cells:
        for loss, of in cell["heads"].items():
            paper = LOSSES.get((cell["pretraining"], loss))
            figures = [f"{100 * of[metric]:.2f}" for metric in (*METRICS, "ap")]
            beside = f"{paper[0]:.2f} / {paper[1]:.2f}" if paper else ""
            lines.append([cell["pretraining"], NAMES[loss].split(" (")[0], *figures, beside])
    seconds = " and ".join(f"{cell['seconds']:.0f}" for cell in cells if cell["pretraining"] in TAU_PLUS)
    return (
        f"{head}A small network stands for the paper's: test_resnet of timm (0.4 million weights), 32 px, 10 epochs of "
        f"the modern recipe in batches of 128 on {cells[0]['sizes']} ({seconds} s), where the paper trains a ResNet-50 "
        f"at 224 px for hours. Seed {cells[0]['seed']} alone (n = 1): rows that "
        "differ by a point or two say nothing of the losses, as other "
        "seeds do too ([pretraining, three seeds](pretrain.md)). nnPU and imbnnPU by the authors' "
        "protocol, with the true prior; margin 0.\n\n"
        + table(["pretraining", "head", *METRICS.values(), "AP", "the paper: accuracy / F1"], lines)
    )


def maps(cells: list[dict], link: str) -> str:
    n = len(cells[0]["points"])
    lines = [
        [FEATURES[cell["features"]], *(f"{100 * cell[of]:.1f}" for of in ("same class", "same side"))] for cell in cells
    ]
    return (
        f"## t-SNE of the test set\n\n{n:,} images, {n // 10} of each class; 50 principal components, perplexity 30, "
        "one seed. The table counts in the features themselves: of the 10 nearest images, how many are of the same "
        "class (of ten; by chance 10 %), and how many on the same side (by chance 52 %).\n\n"
        + table(["features", "same class", "same side"], lines)
        + f"\n\n![Test images as each encoder sees them]({link}/tsne.png)"
    )
