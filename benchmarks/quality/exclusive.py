"""Kinds of which an image has one: accuracy with --exclusive, beside an argmax over heads and logistic regression.

    python -m benchmarks.quality.exclusive DIR [--fashion SOURCE] [--draws N] [--quick] [--out FILE]

The kinds are all ten classes, or the first five among images of all ten, where the others are of no kind. A pile is
10,000 training images; the accuracy is that on all test images. The argmax is over the margins, and over the
posteriors, of the heads that --exclusive trains; it calls no image none. The logistic regression is scikit-learn's,
multinomial, on the labelled images alone, standardised, its C chosen by five folds. Differences are within a draw:
mean, and standard error over the draws.
"""

import tempfile
from argparse import Namespace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import images_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.image_classes import ImageClasses
from benchmarks.common.row_cache import write_row_cache
from benchmarks.common.tasks import CIFAR, FASHION, Location, opened, prepared

LABELLED, KINDS, DRAWS, QUICK_DRAWS = (20, 50, 100), (10, 5), 5, 2
PILE = 10_000
RIVALS = ("margins", "posteriors", "logistic")


def cell(at: Location, group: str, kinds: int, labelled: int, seed: int) -> dict[str, float]:
    """Accuracy of each way on one draw of the pile and of its labels."""
    import pucache
    from pucache.training.concept_models import ExclusiveKinds

    data, draw = opened(at).data(group), np.random.default_rng(seed)
    assert isinstance(data, ImageClasses)
    pile = np.sort(draw.permutation(len(data.X))[:PILE])
    X, y = np.asarray(data.X[pile]), data.label[pile]
    names = np.unique(y)[:kinds]
    rows = {str(name): draw.permutation(np.flatnonzero(y == name))[:labelled] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        cache = write_row_cache(Path(folder, "pile.h5"), X)
        keys = list(cache.keys)
        positives: dict[str, Any] = {name: [keys[row] for row in of] for name, of in rows.items()}
        models = pucache.train_pu(cache, concepts=positives, exclusive=True, device="cpu", seed=seed)
    X_test = np.asarray(data.X_test)
    margins = np.column_stack([models[name].margins(X_test) for name in rows])
    posteriors = np.column_stack([models[name].posterior(of) for name, of in zip(rows, margins.T, strict=True)])
    true = np.where(np.isin(data.label_test, names), np.searchsorted(names, data.label_test), kinds)
    called = ExclusiveKinds(models[name] for name in rows).of(margins)[1]
    found = {"exclusive": called, "margins": margins.argmax(1), "posteriors": posteriors.argmax(1)}
    found["logistic"] = logistic(X, rows).predict(X_test.astype(np.float32))
    accuracy = {name: float((of == true).mean()) for name, of in found.items()}
    return accuracy | {"called none": float((called == kinds).mean())}


def logistic(X: np.ndarray, rows: dict[str, np.ndarray]) -> Any:
    """Multinomial logistic regression on the labelled rows, which predicts the number of the kind."""
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    y = np.repeat(np.arange(len(rows)), [len(of) for of in rows.values()])
    how: dict[str, Any] = {"l1_ratios": (0,), "scoring": "accuracy", "use_legacy_attributes": False}
    regression = LogisticRegressionCV(Cs=np.logspace(-4, 0, 5), cv=5, max_iter=1000, **how)
    return make_pipeline(StandardScaler(), regression).fit(X[np.concatenate(list(rows.values()))].astype(np.float32), y)


def result_row(cells: list[dict[str, float]]) -> list[str]:
    def with_error(values: np.ndarray, form: str) -> str:
        return f"{values.mean():{form}} ± {values.std(ddof=1) / np.sqrt(len(values)):.4f}"

    ours = np.array([one["exclusive"] for one in cells])
    differences = [ours - [one[name] for one in cells] for name in RIVALS]
    none = np.mean([one["called none"] for one in cells])
    return [with_error(ours, ".4f"), f"{none:.1%}", *(with_error(one, "+.4f") for one in differences)]


def main(options: Namespace) -> str:
    at, rows = Location.of(options), []
    groups = [name for name in (CIFAR, FASHION) if name in opened(at).names]
    prepared(at, groups)
    draws = options.draws or (QUICK_DRAWS if options.quick else DRAWS)
    labels = LABELLED[:1] if options.quick else LABELLED
    wanted = [
        {"group": group, "kinds": kinds, "labelled": labelled, "seed": seed}
        for group, kinds, labelled, seed in product(groups, KINDS, labels, range(draws))
    ]
    name = "quick-exclusive" if options.quick else "exclusive"
    cells = measured(at.work, name, wanted, partial(cell, at), minutes=options.minutes, jobs=options.jobs)
    for group, kinds, labelled in product(groups, KINDS, labels):
        named = (group, kinds, labelled)
        of = [one for one in cells if (one["group"], one["kinds"], one["labelled"]) == named]
        rows.append([*map(str, named), *result_row(of)])
    head = ["data", "kinds", "labels of each", "accuracy", "called none", *(f"less that of {name}" for name in RIVALS)]
    text = " ".join((__doc__ or "").split("\n\n")[-1].split())
    return "\n\n".join(
        ["# Kinds that exclude each other", text, f"n = {draws} draws.", table(head, rows), environment()]
    )


if __name__ == "__main__":
    parser = images_parser(__doc__)
    parser.add_argument("--draws", type=int, help=f"of the labels (default: {DRAWS})")
    asked = parser.parse_args()
    write_page(main(asked) + "\n", asked.out)
