"""The notebook beside pucache: scikit-learn's cross-validated logistic regression on the same embeddings.

    python -m benchmarks.quality.encoders TRAIN.h5 TEST.h5 [TRAIN.h5 TEST.h5 ...] [--out docs/results/encoders.md]

Caches of any encoder, in pairs, of images in folders of their class. A pile has 3,000 images of TRAIN, 2 % of them of
one class, and 10 to 100 labelled positives besides; draw k takes class k. New images are all of TEST. The notebook
standardises the embeddings and fits LogisticRegressionCV of the labelled against the unlabelled; pucache runs at its
defaults. A review looks at ten images at a time and learns again, until it has found 80 % of the hidden positives.
"""

import tempfile
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet
from scipy.stats import t
from sklearn.metrics import average_precision_score, f1_score

from benchmarks.common.baselines import ranked
from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import add_jobs, page_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.piles import pile_rows
from benchmarks.common.row_cache import write_row_cache
from benchmarks.peers.learners import CS, FOLDS, Score, Truth, cross_validated_logistic
from benchmarks.quality.review import simulated_review
from benchmarks.quality.review_pile import AHEAD, Pile
from pucache import EmbeddingCache, score, train_pu
from pucache.neighbours.graph import cached_graph
from pucache.retrieval.retrieve import choose_scorer

LABELLED, UNLABELLED, SHARE = (10, 20, 40, 100), 3000, 0.02
DRAWS, QUICK_DRAWS = 6, 2
REVIEW_LABELLED, FOUND, LOOKS, LEVEL = 20, 0.8, 500, 0.95
HIDDEN = round(SHARE * UNLABELLED)
NOTEBOOK, PUCACHE = "notebook", "pucache"
UNKNOWN = Truth(prior=float("nan"), share=float("nan"))  # the notebook is told nothing


class Images(NamedTuple):
    """Embeddings (n, d) and classes (n,)."""

    X: np.ndarray
    label: np.ndarray
    source: EmbeddingCache


@cache
def images(path: Path) -> Images:
    """Once in each process."""
    opened = EmbeddingCache(path)
    return Images(np.array(opened.X), np.array([key.split("/")[-2] for key in opened.keys]), opened)


class Drawn(NamedTuple):
    """A pile, its labels and the truth."""

    rows: EmbeddingCache
    s: np.ndarray
    y: np.ndarray
    positive: str


def drawn(train: Path, labelled: int, draw: int, folder: Path) -> Drawn:
    """The pile of a draw: the labelled rows first, then the hidden positives."""
    X, label, source = images(train)
    classes = np.unique(label)
    positive = classes[draw % len(classes)]
    generator = np.random.default_rng([labelled, draw])
    rows = pile_rows(label == positive, labelled=labelled, hidden=HIDDEN, unlabelled=UNLABELLED, draw=generator)
    s = (np.arange(len(rows)) < labelled).astype(np.int8)
    return Drawn(write_row_cache(folder / "rows.h5", X[rows], source.encoder), s, label[rows] == positive, positive)


def notebook(pile: Drawn, looked_at: np.ndarray | None = None) -> Score:
    """Scores by the notebook; positives that were looked at are labelled, all else is the other class."""
    s = pile.s if looked_at is None else (pile.s | (looked_at & pile.y)).astype(np.int8)
    return cross_validated_logistic()(np.array(pile.rows.X), s, UNKNOWN)


# --- one cell ------------------------------------------------------------------------------------------


def measure(train: str, test: str, what: str, labelled: int, draw: int) -> dict:
    with tempfile.TemporaryDirectory() as name:
        pile = drawn(Path(train), labelled, draw, Path(name))
        return REVIEWS[what](pile, draw) if what in REVIEWS else trained(pile, Path(test), Path(name))


def trained(pile: Drawn, test: Path, folder: Path) -> dict:
    """AP among the unlabelled, and F1 on new images by what each calls positive."""
    X, s, unlabelled = np.array(pile.rows.X), pile.s, pile.s == 0
    by_notebook, model = notebook(pile), train_pu(pile.rows, pile.s)
    ours = {"ap": average_precision_score(pile.y[unlabelled], ranked(pile.rows, s, choose_scorer(model)))}
    theirs = {"ap": average_precision_score(pile.y[unlabelled], by_notebook(X)[0][unlabelled])}
    for name, rows in new_images(test, pile.positive).items():
        X_new, truth = images(test).X[rows], images(test).label[rows] == pile.positive
        score(model, write_row_cache(folder / "new.h5", X_new, pile.rows.encoder), folder / f"{name}.parquet")
        called = pyarrow.parquet.read_table(folder / f"{name}.parquet")["label"].to_numpy()
        ours[name] = f1_score(truth, called)
        theirs[name] = f1_score(truth, by_notebook(X_new)[1])
    return {NOTEBOOK: theirs, PUCACHE: ours}


def new_images(test: Path, positive: str) -> dict[str, np.ndarray]:
    """Rows of all test images, and of those among which the share of positives is that of the pile."""
    is_positive = images(test).label == positive
    kept = round(SHARE / (1 - SHARE) * (~is_positive).sum())
    return {
        "f1_more": np.arange(len(is_positive)),
        "f1_alike": np.sort(np.append(np.flatnonzero(~is_positive), np.flatnonzero(is_positive)[:kept])),
    }


def review_by_notebook(pile: Drawn, draw: int) -> dict:
    """Looks until `FOUND` of the positives are found, ten at a time from the top; None beyond `LOOKS`."""
    looked_at, looks = pile.s == 1, 0
    while looks < LOOKS:
        margins = notebook(pile, looked_at)(np.array(pile.rows.X))[0]
        best = np.argsort(-np.where(looked_at, -np.inf, margins), kind="stable")[:AHEAD]
        for row in best:
            looked_at[row], looks = True, looks + 1
            if (looked_at & pile.y & (pile.s == 0)).sum() >= FOUND * HIDDEN:
                return {"looks": looks}
    return {"looks": None}


def review_by_pucache(pile: Drawn, draw: int) -> dict:
    """The same through the queue and the ranker of `pucache review`, whose random draws are looks too."""
    wanted = int(np.ceil(FOUND * HIDDEN))
    at = simulated_review(Pile(pile.rows, cached_graph(pile.rows), pile.s, pile.y), seed=draw, wanted=wanted)
    found_at = [look for look in at["found_at"] if look <= LOOKS]
    return {"looks": found_at[wanted - 1] if len(found_at) >= wanted else None}


REVIEWS: dict[str, Callable[[Drawn, int], dict]] = {NOTEBOOK: review_by_notebook, PUCACHE: review_by_pucache}


# --- the page ------------------------------------------------------------------------------------------


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Ends of the 95 % interval of a mean, by the t distribution."""
    half = t.ppf((1 + LEVEL) / 2, len(differences) - 1) * differences.std(ddof=1) / np.sqrt(len(differences))
    return differences.mean() - half, differences.mean() + half


class Line(NamedTuple):
    """A comparison: figures of both, draw by draw."""

    what: str
    labelled: int
    figure: str
    notebook: np.ndarray
    pucache: np.ndarray

    @property
    def gain(self) -> np.ndarray:
        """Of pucache; of looks, those it saves."""
        return self.notebook - self.pucache if self.figure == "looks" else self.pucache - self.notebook

    @property
    def name(self) -> str:
        return f"{FIGURES[self.figure]}, {self.labelled} labels ({self.what})"

    def cells(self) -> list:
        digits, (low, high) = 0 if self.figure == "looks" else 3, interval(self.gain)
        numbers = [f"{each.mean():.{digits}f}" for each in (self.notebook, self.pucache)]
        gain = f"{self.gain.mean():+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"
        return [self.what, self.labelled, FIGURES[self.figure], *numbers, gain, (self.gain > 0).sum(), len(self.gain)]


FIGURES = {
    "ap": "AP among the unlabelled",
    "f1_alike": f"F1 on new images, {SHARE:.0%} positive",
    "f1_more": "F1 on all test images",
    "looks": f"looks until {FOUND:.0%} are found",
}
VERDICTS: dict[str, Callable[[float, float], bool]] = {
    "the notebook is better": lambda low, high: high < 0,
    "no difference was found": lambda low, high: low <= 0 <= high,
    "pucache is better": lambda low, high: low > 0,
}


def lines(rows: list[dict]) -> list[Line]:
    """Of each pair of caches and number of labels; reviews that did not end count as `LOOKS`."""
    result = []
    for train, labelled in dict.fromkeys((row["train"], row["labelled"]) for row in rows):
        those = [row for row in rows if (row["train"], row["labelled"]) == (train, labelled)]
        heads = [row for row in those if row["what"] not in REVIEWS]
        for figure in ("ap", "f1_alike", "f1_more"):
            both = [np.array([row[name][figure] for row in heads]) for name in (NOTEBOOK, PUCACHE)]
            result.append(Line(Path(train).stem, labelled, figure, *both))
        reviews = [[row["looks"] or LOOKS for row in those if row["what"] == name] for name in REVIEWS]
        if reviews[0]:
            result.append(Line(Path(train).stem, labelled, "looks", *map(np.array, reviews)))
    return result


def page(rows: list[dict], encoder: str) -> str:
    compared = lines(rows)
    verdicts = [
        f"- {words}: " + ("; ".join(one.name for one in compared if holds(*interval(one.gain))) or "nothing")
        for words, holds in VERDICTS.items()
    ]
    first = "\n".join(verdicts)
    head = ["images", "labels", "figure", NOTEBOOK, PUCACHE, "gain (95 % interval)", "draws won", "draws"]
    return f"""# The notebook beside pucache

`python -m benchmarks.quality.encoders TRAIN.h5 TEST.h5 ...`

{first}

Encoder: {encoder}. The notebook: embeddings with mean 0 and variance 1, `LogisticRegressionCV` of scikit-learn,
balanced, C of {len(CS)} values by {FOLDS} folds and the AUC of labelled against unlabelled, unlabelled images taken for
negatives. A pile has {UNLABELLED:,} unlabelled images, {HIDDEN} of them positive, of one class; draw k takes class k
and nothing was tuned on it. New images are the test images, with so many positives that they are as rare as in the
pile, and all of them, of which a tenth is positive; each is called at its method's own threshold. A review begins with
{REVIEW_LABELLED} labels, looks at {AHEAD} images and learns again; the looks of pucache's random sample count. A review
that has not found {FOUND:.0%} after {LOOKS} looks counts as {LOOKS}. The gain is that of pucache, paired by draw; of
looks, those saved. A verdict counts where the 95 % interval of the mean gain excludes 0.

{table(head, [one.cells() for one in compared])}

{environment()}
"""


def cells(pairs: list[tuple[str, str]], draws: int) -> list[dict]:
    """Reviews last: they take longest."""
    tasks = [("heads", labelled) for labelled in LABELLED] + [(name, REVIEW_LABELLED) for name in REVIEWS]
    names = ("train", "test", "what", "labelled", "draw")
    return [
        dict(zip(names, (*pair, *task, draw), strict=True)) for task, draw, pair in product(tasks, range(draws), pairs)
    ]


if __name__ == "__main__":
    parser = add_jobs(page_parser(__doc__))
    parser.add_argument("caches", type=Path, nargs="+", metavar="TRAIN.h5 TEST.h5")
    parser.add_argument("--work", type=Path, default=Path("build"), help="where cells are kept (default: build)")
    options = parser.parse_args()
    if len(options.caches) % 2:
        parser.error("caches come in pairs: TRAIN.h5 TEST.h5")
    paths = [str(path.resolve()) for path in options.caches]
    wanted = cells(list(zip(paths[::2], paths[1::2], strict=True)), QUICK_DRAWS if options.quick else DRAWS)
    rows = measured(options.work, "encoders", wanted, measure, jobs=options.jobs)
    write_page(page(rows, str(EmbeddingCache(options.caches[0]).encoder)), options.out)
