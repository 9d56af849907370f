"""Whether the numbers after a review hold: simulated reviews by reviewers who err, and the intervals that are printed.

    python -m benchmarks.quality.review_numbers DIR [--fashion SOURCE] [--quick] [--out docs/results/review-numbers.md]

A pile has positives of one class, 30 of them labelled. A review has ranked images, then a closing audit; the figures
are those of the labels before it, and of `train_pu` on the session.
"""

import tempfile
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import add_jobs, images_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.piles import Directions, pile_rows, task_rows
from benchmarks.common.row_cache import write_row_cache
from benchmarks.common.tasks import CIFAR, FASHION, TASKS, Location, opened, prepared
from benchmarks.quality.review_pile import AHEAD, Pile, decide, opened_review
from pucache.encoders.spec import EncoderSpec
from pucache.estimates.audited_prior import CONTRADICTED
from pucache.labels.labels import PULabels
from pucache.neighbours.graph import cached_graph
from pucache.reviewing.queue import NextImages
from pucache.reviewing.session_labels import session_labels
from pucache.training.ranker import Ranker
from pucache.training.train_pu import train_pu

ROWS, POSITIVES, LABELLED = 3000, 90, 30
LOOKS = ((60, 0), (150, 0), (200, 200))  # ranked ones, and those of a closing audit
WRONG = (0.0, 0.05)  # share of the answers
EVERY = 30  # looks between two rankings
SEEDS = range(9000, 9032)  # of each group of images
FIGURES = ("prior", "recall", "precision", "recall_of_new_images", "precision_of_new_images")
ALONE = "labels alone"
NOT_WIDER = 1.01  # times the width of before


def pile_of(X: np.ndarray, y: np.ndarray, folder: Path, seed: int) -> tuple[Pile, np.ndarray]:
    """A pile with few positives, of which some are labelled; and which rows are not in it."""
    sizes = {"labelled": LABELLED, "hidden": POSITIVES - LABELLED, "unlabelled": ROWS - LABELLED}
    rows = pile_rows(y, **sizes, draw=np.random.default_rng([seed, 50]))
    s = (np.arange(ROWS) < LABELLED).astype(np.int8)
    encoder = EncoderSpec.imported("benchmark", X.shape[1])
    cache = write_row_cache(folder / "rows.h5", X[rows].astype(np.float32), encoder)
    return Pile(cache, cached_graph(cache), s, y[rows]), np.setdiff1d(np.arange(len(y)), rows)


def reviewed(pile: Pile, ranked: int, closing: int, wrong: float, seed: int) -> PULabels:
    """PULabels of a review whose answers are wrong now and then, with its audit."""
    ranker, rng = Ranker(pile.cache, pile.graph), np.random.default_rng([seed, 51])
    with opened_review(pile) as session:
        images = NextImages(session, rng)
        for look in range(0, ranked + closing, AHEAD):
            images.closing_audit = look >= ranked
            if look % EVERY == 0 and not images.closing_audit:
                result = ranker.fit(*session.state.labels())
                images.set_ranking(result.scores, result.posterior, look)
            decide(session, images.next("simulated", AHEAD), pile.y ^ (rng.random(len(pile.y)) < wrong), look)
        return session_labels(pile.cache, session.folder).only


NEW = "_of_new_images"


def figures(pile: Pile, labels: PULabels, seed: int, new: tuple[np.ndarray, np.ndarray]) -> dict:
    """Truth and ends of each interval, and their `sources`.

    Of the rows that were unlabelled before the review and that the final head calls, and of `new` ones, X and y, at the
    same share of positives.
    """
    model = train_pu(pile.cache, labels, twins=None, seed=seed, device="cpu")
    rest, estimate = pile.s == 0, model.prior_estimate_
    stated = model.figures_
    found: dict = {"sources": stated.sources}
    called, y = model.all_margins(pile.cache)[rest] > model.threshold_, pile.y[rest]
    truth = {"recall": called[y].mean(), "precision": y[called].mean() if called.any() else np.nan}
    called = model.margins(new[0].astype(np.float32)) > model.threshold_
    hits, alarms = (np.mean(called[new[1] == kind]) * share for kind, share in ((1, y.mean()), (0, 1 - y.mean())))
    truth["recall_of_new_images"] = hits / y.mean()
    truth["precision_of_new_images"] = hits / (hits + alarms) if called.any() else np.nan
    if estimate is not None and estimate.has_interval:
        found["prior"] = (float(y.mean()), estimate.low, estimate.high)
    for name, value in truth.items():
        figure = stated.of_new_images.get(name.removesuffix(NEW)) if name.endswith(NEW) else stated[name]
        if figure is not None and figure.interval is not None:
            found[name] = (float(value), *figure.interval)
    return found


@cache
def reduced_rows(at: Location, group: str) -> np.ndarray:
    """Training rows of a group along their leading directions, float16 (n, 256)."""
    X, _ = task_rows(opened(at), group, TASKS[group][0])
    return Directions(X).reduce(X)


def measure(at: Location, group: str, seed: int) -> dict:
    """Figures of the labels alone, and after each review, of one pile."""
    _, y = task_rows(opened(at), group, TASKS[group][seed % len(TASKS[group])])
    with tempfile.TemporaryDirectory() as folder:
        X = reduced_rows(at, group)
        pile, others = pile_of(X, y, Path(folder), seed)
        new = X[others], y[others]
        found = {ALONE: figures(pile, PULabels.of(pile.s), seed, new)}
        for (ranked, closing), wrong in product(LOOKS, WRONG):
            labels = reviewed(pile, ranked, closing, wrong, seed)
            found[f"{ranked} ranked, {closing} random, {wrong:.0%} wrong"] = figures(pile, labels, seed, new)
    return {"figures": found}


def line_of(rows: list[dict], case: str, name: str) -> list:
    """How often the intervals of a figure hold the truth, and how wide they are beside those of the labels alone."""
    stated = [row["figures"] for row in rows if name in row["figures"][case]]
    if not stated:
        return [case, name, 0, "", "", "", ""]
    truth, low, high = np.array([figures[case][name] for figures in stated]).T
    both = [figures for figures in stated if name in figures[ALONE]]
    ratios = np.array([width_of(figures[case][name]) / width_of(figures[ALONE][name]) for figures in both])
    agree = np.array([figures[case].get("sources") != CONTRADICTED for figures in both])
    wider = f"{np.mean(ratios[agree] > NOT_WIDER):.0%} of {agree.sum()}" if agree.any() else ""
    ratio, held = f"{np.median(ratios):.2f}" if both else "", np.mean((low <= truth) & (truth <= high))
    return [case, name, len(stated), f"{held:.1%}", f"{np.median(high - low):.3f}", ratio, wider]


def width_of(figure: tuple[float, float, float]) -> float:
    return max(figure[2] - figure[1], 1e-9)


def page(rows: list[dict]) -> str:
    """The page of results."""
    head = ["review", "figure", "piles", "hold the truth", "median width", "width / that of the labels", "wider"]
    lines = [line_of(rows, case, name) for case in rows[0]["figures"] for name in FIGURES]
    lines = [line for line in lines if line[2]]
    text = (
        f"`python -m benchmarks.quality.review_numbers DIR --fashion SOURCE`: {len(rows)} piles of "
        f"{ROWS:,} images along 256 directions, {POSITIVES} positive and {LABELLED} of these labelled; reviews whose "
        "answers are wrong now and then, and the intervals that `train-pu --labels` states afterwards. Those of the "
        "pile are held against the rows that the final head calls positive, those of new images against its decisions "
        "on all other rows of the images, at the pile's share; what is not listed is not stated. The last "
        "column is the share of piles whose interval is wider than that of the labels alone, where the two agree."
    )
    return "\n\n".join(["# Numbers after a review", text, table(head, lines), environment()]) + "\n"


if __name__ == "__main__":
    options = add_jobs(images_parser(__doc__)).parse_args()
    at = Location.of(options)
    groups = [name for name in (CIFAR, FASHION) if name in opened(at).names]
    prepared(at, groups)
    wanted = [{"group": group, "seed": seed} for seed, group in product(SEEDS[: 1 if options.quick else None], groups)]
    rows = measured(at.work, f"{at.prefix}review-numbers", wanted, partial(measure, at), jobs=options.jobs)
    write_page(page(rows), options.out)
