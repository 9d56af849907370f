"""Whether the numbers after a review hold: simulated reviews by reviewers who err, and the intervals that are printed.

    python -m benchmarks.quality.review_numbers CACHE [--draws 200] [--quick]

CACHE holds images with keys CLASS/NAME. A pile has positives of one class, 30 of them labelled. A review has ranked
images, then a closing audit; the figures are those of the labels before it, and of `train_pu` on the session.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.common.row_cache import write_row_cache
from benchmarks.quality.review_pile import AHEAD, Pile, decide, opened_review
from pucache import EmbeddingCache
from pucache.estimates.intervals import interval_of
from pucache.labels.labels import Labels
from pucache.neighbours.graph import cached_graph
from pucache.reviewing.queue import NextImages
from pucache.reviewing.ranker import Ranker
from pucache.reviewing.session_labels import read_labels
from pucache.training.labelled_cache import LabelledCache
from pucache.training.sklearn_classifier import PULinearClassifier
from pucache.training.train_on_cache import train_on_cache

ROWS, POSITIVES, LABELLED = 3000, 90, 30
LOOKS = ((60, 0), (150, 0), (200, 200))  # ranked ones, and those of a closing audit
WRONG = (0.0, 0.05)  # share of the answers
EVERY = 30  # looks between two rankings


def pile_of(cache: EmbeddingCache, folder: Path, seed: int) -> Pile:
    """A pile with positives of one class, of which some are labelled."""
    rng = np.random.default_rng([seed, 50])
    kind = np.array([key.split("/")[0] for key in cache.keys])
    wanted = rng.choice(np.unique(kind))
    positives = rng.choice(np.flatnonzero(kind == wanted), POSITIVES, replace=False)
    others = rng.choice(np.flatnonzero(kind != wanted), ROWS - POSITIVES, replace=False)
    rows = np.sort(np.concatenate([positives, others]))
    y = np.isin(rows, positives)
    s = np.isin(rows, positives[:LABELLED]).astype(np.int8)
    made = write_row_cache(folder / "rows.h5", cache.take(rows).astype(np.float32), cache.encoder)
    return Pile(made, cached_graph(made), s, y)


def reviewed(pile: Pile, ranked: int, closing: int, wrong: float, seed: int) -> tuple[Labels, np.ndarray]:
    """Labels of a review whose answers are wrong now and then, with its audit."""
    ranker, rng = Ranker(pile.cache, pile.graph), np.random.default_rng([seed, 51])
    with opened_review(pile) as session:
        images = NextImages(session, rng)
        for look in range(0, ranked + closing, AHEAD):
            images.closing_audit = look >= ranked
            if look % EVERY == 0 and not images.closing_audit:
                result = ranker.fit(*session.labels())
                images.set_ranking(result.scores, result.posterior, look)
            decide(session, images.next("simulated", AHEAD), pile.y ^ (rng.random(len(pile.y)) < wrong), look)
        return read_labels(pile.cache, session.folder), session.labels()[1]


def figures(pile: Pile, labels: Labels, seed: int) -> dict[str, tuple[float, float, float]]:
    """Truth and ends of each interval among the rows that were unlabelled before the review."""
    data = LabelledCache.of(pile.cache, labels, None, seed=seed, device="cpu")
    model = train_on_cache(PULinearClassifier(random_state=seed, device="cpu"), data)
    rest, estimate, found = pile.s == 0, model.prior_estimate_, {}
    threshold = np.quantile(model.held_out_margins_[rest], 1 - model.estimates_["share_predicted_positive"])
    called, y = model.held_out_margins_[rest] > threshold, pile.y[rest]
    truth = {"recall": called[y].mean(), "precision": y[called].mean() if called.any() else np.nan}
    if estimate is not None and estimate.has_interval:
        found["prior"] = (float(y.mean()), estimate.low, estimate.high)
    for name, value in truth.items():
        if (ends := interval_of(model.estimates_, name)) is not None:
            found[name] = (float(value), *ends)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1000)
    arguments = parser.parse_args()
    cache, held = EmbeddingCache(arguments.cache), {}
    for seed in range(arguments.seed, arguments.seed + arguments.draws):
        with tempfile.TemporaryDirectory() as folder:
            pile = pile_of(cache, Path(folder), seed)
            of_labels = figures(pile, Labels.of(pile.s), seed)
            held.setdefault("labels alone", []).append(of_labels)
            for (ranked, closing), wrong in product(LOOKS, WRONG):
                labels, _ = reviewed(pile, ranked, closing, wrong, seed)
                held.setdefault(f"{ranked}+{closing}, {wrong:.0%} wrong", []).append(figures(pile, labels, seed))
    for case, draws in held.items():
        for name in ("prior", "recall", "precision"):
            values = np.array([draw[name] for draw in draws if name in draw]).reshape(-1, 3)
            within = np.mean((values[:, 1] <= values[:, 0]) & (values[:, 0] <= values[:, 2]))
            width = np.median(values[:, 2] - values[:, 1])
            print(
                f"{case:24} {name:10} {len(values):4} draws  holds {within:.1%}  median width {width:.3f}", flush=True
            )


if __name__ == "__main__":
    main()
