"""Words in place of examples: looks until positives are found, and a review that begins with words.

    python -m benchmarks.quality.words CIFAR.h5 FASHION.h5 [--quick] [--out docs/results/words.md]

The caches are of the bundled encoder, with keys CLASS/NAME: the training images of CIFAR-10 and images of
Fashion-MNIST. Each class is looked for by its name, where it is 1 % (and 5 %) of a pile of all other classes, drawn
with seed 0. Nothing is labelled. A text encoder is needed (extra `words`). Reviews of ten classes of each set go on to
four fifths of all positives, beside reviews that are given 20 examples.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score

from benchmarks.common.cells import table
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.row_cache import write_row_cache
from benchmarks.quality.review_pile import AHEAD, decide
from pucache import EmbeddingCache
from pucache.labels.labels import PULabels
from pucache.retrieval.query import Query, QueryScorer
from pucache.reviewing.query_start import ENOUGH, positives_known
from pucache.reviewing.queue import NextImages
from pucache.reviewing.session import open_session
from pucache.training.ranker import Ranker

WANTED, EXAMPLES, GOAL = 20, 20, 0.8
SHARES = (0.01, 0.05)
REVIEWED, QUICK = 10, 1  # classes of a set


def pile_rows(y: np.ndarray, share: float) -> np.ndarray:
    """Rows of a pile in which a class has this share, ascending."""
    others, own = np.flatnonzero(~y), np.flatnonzero(y)
    count = min(len(own), round(share * len(others) / (1 - share)))
    return np.sort(np.append(others, np.random.default_rng(0).choice(own, count, replace=False)))


def by_words(cache: EmbeddingCache, classes: np.ndarray) -> Iterator[dict]:
    """What the name of each class finds."""
    for name in np.unique(classes).tolist():
        result = QueryScorer(Query.of(name))(cache, PULabels.of(np.zeros(len(cache), np.int8)))
        y, scores, AP = classes == name, result.values, {}
        for share in SHARES:
            rows = pile_rows(y, share)
            AP[share] = average_precision_score(y[rows], scores[rows])
        rows = pile_rows(y, SHARES[0])
        found = y[rows[np.lexsort((rows, -scores[rows]))]]
        looks = int(np.flatnonzero(found)[WANTED - 1]) + 1
        random = WANTED * (len(rows) + 1) / (int(found.sum()) + 1)
        yield {"class": name, "note": result.note, "scores": scores, "AP": AP, "looks": looks, "random": random}


def review_looks(cache: EmbeddingCache, y: np.ndarray, scores: np.ndarray | None) -> int:
    """Looks until four fifths of all positives are found, by a query's scores first, or from examples."""
    draw = np.random.default_rng(0)
    s = np.zeros(len(y), np.int8)
    if scores is None:
        s[draw.choice(np.flatnonzero(y), EXAMPLES, replace=False)] = 1
    ranker, looks, given = Ranker(cache), 0, PULabels.of(s) if scores is None else None
    with (
        tempfile.TemporaryDirectory() as folder,
        open_session(cache, given, folder=Path(folder) / "session", twins=None) as session,
    ):
        images = NextImages(session, draw)
        if scores is not None:
            session.ask(Query.of("a class").to_json())
        while positives_known(session) < GOAL * y.sum():
            if scores is not None and positives_known(session) < ENOUGH:
                images.set_ranking(scores, None, 0)
            else:
                result = ranker.fit(*session.state.labels())
                images.set_ranking(result.scores, result.posterior, looks)
            rows = images.next("simulated", AHEAD)
            decide(session, rows, y, looks)
            looks += len(rows)
    return looks


def reviews(cache: EmbeddingCache, classes: np.ndarray, found: list[dict]) -> Iterator[list]:
    for row in found:
        rows = pile_rows(classes == row["class"], SHARES[0])
        with tempfile.TemporaryDirectory() as folder:
            pile = write_row_cache(Path(folder) / "rows.h5", cache.take(rows), cache.encoder)
            y = classes[rows] == row["class"]
            words, examples = (review_looks(pile, y, scores) for scores in (row["scores"][rows], None))
        yield [row["class"], int(y.sum()), words, examples, f"{words / (examples + EXAMPLES):.2f}"]


def section(title: str, path: Path, count: int) -> list[str]:
    cache = EmbeddingCache(path)
    classes = np.array([key.split("/")[0] for key in cache.keys])
    found = list(by_words(cache, classes))
    columns = ["looks until 20", "random, expected", *(f"AP, {share:.0%}" for share in SHARES)]
    lines = [
        [row["class"], row["looks"], f"{row['random']:.0f}", *(f"{row['AP'][share]:.3f}" for share in SHARES)]
        for row in found
    ]
    means = [f"{np.mean([row['AP'][share] for row in found]):.3f}" for share in SHARES]
    lines.append(["mean", f"{np.mean([row['looks'] for row in found]):.0f}", "", *means])
    head = ["class", "positives", "from words", "from 20 examples", "words / (examples + the 20)"]
    return [
        f"## {title}",
        table(["class", *columns], lines),
        f"What the words stand for: {'; '.join(row['note'] for row in found)}.",
        "Looks of a review until four fifths are found (neighbours not counted):",
        table(head, list(reviews(cache, classes, found[:count]))),
    ]


PURPOSE = (
    "finding a class by its name alone, with the bundled encoder's ImageNet classes and the text encoder "
    "all-MiniLM-L6-v2. Temperature and number of classes were chosen on CIFAR-10, of which the first table is; nothing "
    "was chosen on Fashion-MNIST, whose grey pictures ImageNet hardly knows. Random: the mean until 20 are found."
)


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("cifar", type=Path)
    parser.add_argument("fashion", type=Path)
    options = parser.parse_args()
    count = QUICK if options.quick else REVIEWED
    parts = ["# Words", "`python -m benchmarks.quality.words CIFAR.h5 FASHION.h5`: " + PURPOSE]
    parts += section("CIFAR-10", options.cifar, count) + section("Fashion-MNIST", options.fashion, count)
    write_page("\n\n".join([*parts, environment()]) + "\n", options.out)
