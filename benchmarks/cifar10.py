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
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pucache import EmbeddingCache, load_encoder, open_source
from pucache.embed import embed
from pucache.heads import fit_heads
from pucache.labels import label_vector
from pucache.metrics import precision_at, with_labels
from pucache.retrieve import retrieve
from pucache.train import train_pu

VEHICLES = ("airplane", "automobile", "ship", "truck")
LABELLED, HIDDEN = 150, 600
SEEDS = (0, 1, 2)
RANKS = (100, 1000, 2400)


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

    models, seconds = timed(lambda: [train_pu(pile, s, prior=prior, seed=seed) for seed in SEEDS])
    of_test = [model.decision_function(test.X) for model in models]
    table.add(
        "**pucache, defaults** (seeds)",
        of_test,
        [model.decision_function(XU) for model in models],
        f"{seconds / 3:.1f}",
    )
    for factor in (0.1, 0.5, 2, 5):
        model, seconds = timed(lambda: train_pu(pile, s, prior=factor * prior))  # noqa: B023
        margins = [model.decision_function(test.X)], [model.decision_function(XU)]
        table.add(f"the same, told {factor} x the true prior", *margins, f"{seconds:.1f}")
    scale = X.std(0) + 1e-6
    for name, prepare in (
        ("same head, X standardised", lambda Z: (Z - X.mean(0)) / scale),
        ("same head, X l2-normalised", lambda Z: Z / np.linalg.norm(Z, axis=1, keepdims=True)),
    ):
        heads, seconds = timed(lambda: fit_heads(prepare(X), s, prior=prior))  # noqa: B023
        table.add(name, [heads.margins(prepare(X_test))[:, 0]], [heads.margins(prepare(XU))[:, 0]], f"{seconds:.1f}")
    against, ceiling = "logistic regression, P against U, balanced", "supervised ceiling: the same with true labels"
    for name, target, C in (
        *((f"{against}, C={C:g}", s, C) for C in (1e-3, 1e-4, 1e-5, 1e-6)),
        (f"{ceiling}, C=0.001", y, 1e-3),
    ):
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=C, class_weight="balanced", max_iter=1000))
        _, seconds = timed(lambda: pipeline.fit(X, target))  # noqa: B023
        table.add(name, [pipeline.decision_function(X_test)], [pipeline.decision_function(XU)], f"{seconds:.1f}")
    rows = np.flatnonzero(s == 0)
    for similarity in ("centroid", "max"):
        ranking, seconds = timed(lambda: retrieve(pile, s, k=len(rows), similarity=similarity))  # noqa: B023
        scores = np.empty(len(s))
        scores[ranking.rows] = ranking.scores
        table.add(f"similarity to the labelled positives: {similarity}", None, [scores[rows]], f"{seconds:.1f}")
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    cosines, seconds = timed(lambda: unit[rows] @ unit[s == 1].mean(0))
    table.add("mean cosine to the labelled positives, not centred", None, [cosines], f"{seconds:.1f}")
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
            f"{y[s == 0].sum():,} positive (prior {prior:.4f}, given), {len(y_test):,} test images. "
            f"Encoder {encoder.spec}. Seeds {SEEDS}, mean ± sd where several. Figures in %; accuracy, F1 and AUC on "
            "the test set at threshold 0, precision at rank and average precision among the unlabelled.",
            "",
            table.markdown(),
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
