"""Default training on piles of many sizes: its head and its ranking beside its linear head, and what the seed changes.

    python -m benchmarks.quality.pile_sizes DIR [--fashion SOURCE] [--draws 200] [--quick] [--out FILE]

A pile has one class, topic or kind as positives, which are 5 % or 15 % of its unlabelled rows, of small piles 10 % or
30 %. Embeddings of images are reduced to 256 directions. New rows are those of the group that are not in the pile,
weighted to its share of positives.
"""

from functools import partial
from itertools import product

import numpy as np
from sklearn.metrics import average_precision_score

from benchmarks.common.cells import measured, spread, table
from benchmarks.common.command_line import images_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.piles import pile_rows
from benchmarks.common.tasks import CIFAR, FASHION, KINDS, TASKS, TOPICS, Location, opened, prepared
from benchmarks.quality.prior import reduced_rows
from pucache import PULinearClassifier
from pucache.neighbours.graph import neighbour_graph
from pucache.scoring.neighbour_scores import NeighbourScores, chosen_weight

GROUPS = (CIFAR, FASHION, TOPICS, KINDS)
SIZES, LABELLED, SHARES = (3000, 6000, 12_000, 45_000), (10, 20, 40, 100), (0.05, 0.15)
SMALL, SMALL_LABELLED, SMALL_SHARES, SEEDS = (150, 400, 2000), (20, 40), (0.1, 0.3), 12
DRAWS, QUICK_DRAWS = 12, 2  # piles of a group, size and number of labels
MOST_POSITIVES, MOST_NEGATIVES = 0.8, 0.85  # of those there are that a pile may take, so that new rows remain
SETTING, FIGURES = ("group", "rows", "labelled"), ("head", "ranking", "head, new rows", "linear head, new rows")


def cells(groups: list[str], draws: int, *, quick: bool) -> list[dict]:
    """Piles with one seed, and small ones with several."""
    sizes = [(rows, labelled, 1) for rows, labelled in product(SIZES[:1] if quick else SIZES, LABELLED)]
    sizes += [(rows, labelled, SEEDS) for rows, labelled in product(SMALL[:1] if quick else SMALL, SMALL_LABELLED)]
    names = (*SETTING, "seeds", "draw")
    return [
        dict(zip(names, (group, *size, draw), strict=True))
        for draw, group, size in product(range(draws), groups, sizes)
    ]


def measure(at: Location, group: str, rows: int, labelled: int, seeds: int, draw: int) -> dict:
    """AP of the heads of each seed on one pile; with one seed, all `FIGURES`."""
    generator = np.random.default_rng([rows, labelled, draw])
    X, y = reduced_rows(at, group, TASKS[group][generator.integers(len(TASKS[group]))])
    hidden = round((SHARES if seeds == 1 else SMALL_SHARES)[draw % 2] * rows)
    if labelled + hidden > MOST_POSITIVES * y.sum() or rows - hidden > MOST_NEGATIVES * (~y).sum():
        return {"ap": None}
    taken = pile_rows(y, labelled=labelled, hidden=hidden, unlabelled=rows, draw=generator)
    pile, truth, s = X[taken], y[taken], (np.arange(len(taken)) < labelled).astype(np.int8)
    models = [PULinearClassifier(random_state=draw + seed, device="cpu").fit(pile, s) for seed in range(seeds)]
    margins = [model.margins(pile) for model in models]
    found = {
        "ap": [average_precision_score(truth[s == 0], m[s == 0]) for m in margins],
        "silent": sum(not (m[s == 0] > model.threshold_).any() for m, model in zip(margins, models, strict=True)),
    }
    if seeds > 1:
        return found
    ranking = average_precision_score(truth[s == 0], with_neighbours(models[0], pile, s)[s == 0])
    new = np.setdiff1d(np.arange(len(X)), taken)
    linear = PULinearClassifier(random_state=draw, device="cpu", method="linear", penalty=models[0].penalty_)
    weights = np.where(y[new], hidden / rows / y[new].sum(), (1 - hidden / rows) / (~y[new]).sum())
    of_new = [
        average_precision_score(y[new], model.margins(X[new]), sample_weight=weights)
        for model in (models[0], linear.fit(pile, s))
    ]
    return found | {"figures": [*found["ap"], ranking, *of_new]}


def with_neighbours(model: PULinearClassifier, pile: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Scores of the rows of a pile as it is ranked: with neighbours where they count."""
    margins, scorer = model.margins(pile), NeighbourScores(model, chosen_weight(model))
    if not scorer.weight:
        return margins
    p = np.where(s == 1, np.float32(1), scorer.probabilities(margins))
    return scorer.scores(margins, neighbour_graph(pile, device="cpu").weighted_means(p))


def page(rows: list[dict]) -> str:
    rows = [row for row in rows if row["ap"]]
    lines, seeds = [], []
    for setting in dict.fromkeys(tuple(row[name] for name in SETTING) for row in rows):
        those = [row for row in rows if tuple(row[name] for name in SETTING) == setting]
        if those[0]["seeds"] == 1:
            figures = np.array([row["figures"] for row in those])
            gain = figures[:, 2] - figures[:, 3]
            lines.append([*setting, len(those), *(spread(column) for column in figures.T), spread(gain)])
        else:
            lost = np.array([np.mean(row["ap"]) - np.min(row["ap"]) for row in those])
            silent = sum(row["silent"] for row in those)
            seeds.append([*setting, len(those), spread(lost), f"{100 * lost.max():.2f}", (lost > 0.03).sum(), silent])
    head = ["group", "rows", "labels", "piles"]
    sections = [
        "# Size of the pile",
        f"`python -m benchmarks.quality.pile_sizes DIR --fashion SOURCE`: {len(rows)} piles. AP in points, mean ± "
        "standard deviation over the piles: of the default training among the unlabelled rows (its head, and its "
        "ranking with neighbours where they count), and on new rows beside the linear head of the same penalty.",
        table([*head, *FIGURES, "head less linear"], lines),
        "## The seed",
        f"{SEEDS} seeds on each pile: AP that the worst seed loses against their mean (over the piles: mean ± standard "
        "deviation, and greatest), piles where it is more than 3 points, and seeds that call nothing positive.",
        table([*head, "lost", "greatest", "above 3", "nothing called"], seeds),
        environment(),
    ]
    return "\n\n".join(sections) + "\n"


def main() -> None:
    parser = images_parser(__doc__)
    parser.add_argument("--draws", type=int, help=f"piles of each setting (default: {DRAWS}, quick: {QUICK_DRAWS})")
    options = parser.parse_args()
    at, draws = Location.of(options), options.draws or (QUICK_DRAWS if options.quick else DRAWS)
    groups = [name for name in GROUPS if name in opened(at).names]
    prepared(at, groups)
    wanted = cells(groups, draws, quick=options.quick)
    rows = measured(at.work, "pile-sizes", wanted, partial(measure, at), minutes=options.minutes, jobs=options.jobs)
    write_page(page(rows), options.out)


if __name__ == "__main__":
    main()
