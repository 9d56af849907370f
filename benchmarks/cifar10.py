"""The authors' CIFAR-10 1:10 task, from image files to a table.

    python benchmarks/cifar10.py DIR [--out docs/results/cifar10.md]

DIR holds train/<class>/<index>.png and test/<class>/<index>.png, `index` being the place in the
original batches. Positives are the vehicles; of each of the four classes the first 750 images by
index count: 600 join the 30,000 animals as unlabelled, 150 are labelled. The test set is opened
once, with the defaults of pucache; the other rows stand beside it for comparison.
"""

import argparse
import csv
import time
from pathlib import Path

import numpy as np
from environment import environment
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pucache import EmbeddingCache, load_encoder, open_source
from pucache.deal import folds
from pucache.embed import embed
from pucache.heads import fit_heads
from pucache.labels import label_vector
from pucache.metrics import precision_at, with_labels
from pucache.retrieval.by_model import Fused
from pucache.retrieval.similarity import SIMILARITIES, Similarity
from pucache.retrieve import retrieve
from pucache.risks import PURisk
from pucache.train import train_pu

VEHICLES = ("airplane", "automobile", "ship", "truck")
LABELLED, HIDDEN = 150, 600
SEEDS = (0, 1, 2)
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "reliability.png"
RANKS = (100, 1000, 2400)
TEST_SHARE, FACTORS = 0.4, (0.1, 0.2, 0.5, 1, 2, 5, 10)
CEILING = 6e-6  # penalty of the supervised head, the best of several for rows it has not seen


def split(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Keys of the pile, of the labelled positives in it, and of the test set."""
    pile, labelled = [], []
    for directory in sorted((folder / "train").iterdir()):
        keys = [f"train/{directory.name}/{path.name}" for path in sorted(directory.iterdir())]
        if directory.name in VEHICLES:
            keys = keys[: HIDDEN + LABELLED]
            labelled += keys[HIDDEN:]
        pile += keys
    test = [str(path.relative_to(folder)) for path in sorted((folder / "test").glob("*/*.png"))]
    return pile, labelled, test


def write_manifest(path: Path, folder: Path, keys: list[str]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["key", "path"])
        writer.writerows([key, folder / key] for key in keys)
    return path


def is_positive(keys) -> np.ndarray:
    return np.array([key.split("/")[1] in VEHICLES for key in keys])


class Table:
    """Test metrics and retrieval of the hidden positives, a row per method."""

    def __init__(self, y_test, y_unlabelled):
        self.y_test, self.y_unlabelled = y_test, y_unlabelled
        self.rows = []

    def add(self, name, test=None, unlabelled=None, seconds=""):
        """`test` and `unlabelled` are lists of margins, one array a seed."""
        row = [name]
        figures = [with_labels(self.y_test, margins, (margins > 0).astype(int)) for margins in test or []]
        for metric in ("accuracy", "f1", "auc"):
            row.append(spread([figure[metric] for figure in figures]))
        for rank in RANKS:
            row.append(spread([precision_at(self.y_unlabelled, margins, rank) for margins in unlabelled or []]))
        row.append(spread([average_precision_score(self.y_unlabelled, margins) for margins in unlabelled or []]))
        self.rows.append([*row, seconds])

    def markdown(self):
        head = ["", "accuracy", "F1", "AUC", *(f"P@{rank}" for rank in RANKS), "AP", "seconds"]
        lines = [head, ["---"] * len(head), *self.rows]
        return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def draw_reliability(path: Path, sets: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """Draw true shares against mean posteriors; returns the mean absolute gap of each set."""
    sheet = Figure(figsize=(9, 4.4), layout="constrained")
    gaps = []
    for axes, (title, (posterior, y)) in zip(sheet.subplots(1, 2), sets.items(), strict=True):
        number = np.minimum((10 * posterior).astype(int), 9)
        filled = [at for at in range(10) if (number == at).any()]
        told, true, rows = (
            np.array([values[number == at].mean() for at in filled])
            if values is not None
            else np.bincount(number)[filled]
            for values in (posterior, y, None)
        )
        error = 2 * np.sqrt(np.maximum(true * (1 - true), 1 / rows) / rows)
        axes.plot([0, 1], [0, 1], ":", color="grey")
        axes.errorbar(told, true, error, fmt="o-", capsize=3)
        for x, height, count in zip(told, true, rows, strict=True):
            axes.annotate(f"{count:,}", (x, height), textcoords="offset points", xytext=(6, -11), fontsize=7)
        axes.set(title=title, xlabel="posterior", ylabel="share truly positive", xlim=(-0.03, 1.08), ylim=(-0.03, 1.05))
        axes.grid(alpha=0.3)
        gaps.append(float((np.abs(told - true) * rows).sum() / rows.sum()))
    sheet.savefig(path, dpi=130)
    return gaps


def spread(values) -> str:
    if not values:
        return ""
    mean, sd = 100 * np.mean(values), 100 * np.std(values)
    return f"{mean:.2f}" if len(values) == 1 else f"{mean:.2f} ± {sd:.2f}"


def timed(call):
    began = time.perf_counter()
    return call(), time.perf_counter() - began


def main(folder: Path, work: Path) -> str:
    work.mkdir(parents=True, exist_ok=True)
    pile_keys, labelled, test_keys = split(folder)
    encoder = load_encoder()
    reports = {
        name: embed(open_source(write_manifest(work / f"{name}.csv", folder, keys)), work / f"{name}.h5", encoder)
        for name, keys in (("pile", pile_keys), ("test", test_keys))
    }
    (work / "positives.txt").write_text("\n".join(labelled) + "\n")
    pile, test = EmbeddingCache(work / "pile.h5"), EmbeddingCache(work / "test.h5")
    s = label_vector(pile.keys, work / "positives.txt")
    y, y_test = is_positive(pile.keys), is_positive(test.keys)
    prior = y[s == 0].mean()
    table = Table(y_test, y[s == 0])
    X, X_test = np.asarray(pile.X, np.float32), np.asarray(test.X, np.float32)
    XU = X[s == 0]

    models, seconds = timed(lambda: [train_pu(pile, s, seed=seed) for seed in SEEDS])
    of_test, of_pile = [model.margins(test.X) for model in models], [model.margins(XU) for model in models]
    table.add("**pucache, no prior given** (seeds): at margin 0", of_test, of_pile, f"{seconds / 3:.1f}")
    table.add(
        "the same, at its own threshold (f1) in the world of U",
        [m - model.threshold_ for m, model in zip(of_test, models, strict=True)],
    )
    priors = [model.prior_estimate_ for model in models]
    told, _ = timed(lambda: [train_pu(pile, s, seed=seed, deploy_prior=TEST_SHARE) for seed in SEEDS])
    own = [model.decision_function(test.X) for model in told]
    table.add(f"the same, told that {TEST_SHARE:.0%} of the test set are positive", own, of_pile)
    for factor in FACTORS:
        share = factor * prior
        model, seconds = timed(lambda: train_pu(pile, s, prior=share, deploy_prior=TEST_SHARE))  # noqa: B023
        margins = [model.margins(test.X)], [model.margins(XU)]
        table.add(f"told {factor:g} x the true prior: at margin 0", *margins, f"{seconds:.1f}")
        table.add(
            f"told {factor:g} x the true prior, and {TEST_SHARE:.0%}: own threshold", [model.decision_function(test.X)]
        )
    for factor in (1, 2, 5, 10):
        settings = {"prior": min(factor * prior, 0.99), "loss": "imbnnpu", "solver": "sgd"}
        model, seconds = timed(lambda: train_pu(pile, s, **settings))  # noqa: B023
        margins = [model.margins(test.X)], [model.margins(XU)]
        table.add(f"the authors' head: imbnnpu by sgd, {factor} x the true prior", *margins, f"{seconds:.1f}")
    against, ceiling = "logistic regression, P against U, balanced", "supervised ceiling: the same with true labels"
    for name, target, C in (
        *((f"{against}, C={C:g}", s, C) for C in (1e-3, 1e-4, 1e-5, 1e-6)),
        (f"{ceiling}, C=0.001", y, 1e-3),
    ):
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=C, class_weight="balanced", max_iter=1000))
        _, seconds = timed(lambda: pipeline.fit(X, target))  # noqa: B023
        table.add(name, [pipeline.decision_function(X_test)], [pipeline.decision_function(XU)], f"{seconds:.1f}")
    fold = folds(y.astype(int), 5)
    blind = (fold[:, None] != np.arange(5)).astype(np.float32)
    heads, seconds = timed(lambda: fit_heads(X, y, weights=blind, risk=PURisk("weighted_bce"), penalty=CEILING))
    unseen = heads.margins_by(X, fold[:, None])[:, 0]
    name = "supervised ceiling for rows it has not seen (5 folds)"
    table.add(name, [heads.margins(X_test).mean(1)], [unseen[s == 0]], f"{seconds:.1f}")
    rows = np.flatnonzero(s == 0)
    ways = {"classifier and neighbours, fused": Fused(models[0])}
    ways |= {f"similarity to the labelled positives: {kind}": Similarity(kind) for kind in SIMILARITIES}
    for name, by in ways.items():
        ranking, seconds = timed(lambda: retrieve(pile, s, k=None, by=by, twins=None))  # noqa: B023
        scores = np.empty(len(s))
        scores[ranking.rows] = ranking.scores
        table.add(name, None, [scores[rows]], f"{seconds:.1f}")
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    cosines, seconds = timed(lambda: unit[rows] @ unit[s == 1].mean(0))
    table.add("mean cosine to the labelled positives, not centred", None, [cosines], f"{seconds:.1f}")
    gaps = draw_reliability(
        PICTURE,
        {
            "among the unlabelled (held out)": (models[0].posterior(models[0].held_out_margins_[s == 0]), y[s == 0]),
            f"test set, told its share of {TEST_SHARE:.0%}": (told[0].predict_proba(X_test)[:, 1], y_test),
        },
    )
    computed = sum(report.computed for report in reports.values())
    took = sum(report.seconds for report in reports.values())
    embedding = (
        f"{computed:,} images in {took:.0f} s ({computed / took:.0f} images/s)"
        if computed
        else "all found in the cache"
    )
    return "\n".join(
        [
            "# CIFAR-10, 1:10",
            "",
            f"`python benchmarks/cifar10.py DIR`: {s.sum()} labelled positives, {(s == 0).sum():,} unlabelled, of them "
            f"{y[s == 0].sum():,} positive (prior {prior:.4f}, given only where a row says so); {len(y_test):,} test "
            "images. "
            f"Encoder {encoder.spec}. Seeds {SEEDS}, mean ± sd where several. Figures in %; accuracy, F1 and AUC on "
            "the test set at margin 0 where no other threshold is named, precision at rank and average precision among "
            "the unlabelled.",
            "",
            table.markdown(),
            "",
            f"Prior estimated, with its 90 % interval, per seed (truth {prior:.4f}): "
            + "; ".join(f"{one.prior:.4f} ({one.low:.4f} to {one.high:.4f})" for one in priors)
            + f". Mean absolute gap of the posterior from the true share, in ten bins of equal posterior width weighed "
            f"by rows: {gaps[0]:.4f} among the unlabelled, {gaps[1]:.4f} on the test set at its own share.",
            "",
            "The paper, same task and split: ImageNet ResNet-50 95.07 / 93.82 / 98.97, ImPULSeS (pretrained on "
            "CIFAR-10) 95.3 / 94.0 / 99.0, supervised ceiling 95.9 / 94.9 / 99.4.",
            "",
            f"Embedding: {embedding}. {environment()}",
            "",
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, help="where caches are kept (default: DIR/pucache-bench)")
    parser.add_argument("--out", type=Path, help="write the table here too")
    arguments = parser.parse_args()
    report = main(arguments.folder.resolve(), arguments.work or arguments.folder / "pucache-bench")
    print(report)
    if arguments.out:
        arguments.out.write_text(report)
