"""New images: the share of positives in them, decisions at that share, and whether they are of the same kind.

    python -m benchmarks.quality.new_images DIR [--fashion SOURCE] [--quick] [--out docs/results/new-images.md]

Models are trained on piles of 3,000 unlabelled rows, on seeds that nothing was chosen on; the new images are drawn from
the rows that are left, training and test images, which differ in nothing but the share of positives. Embeddings are
reduced to 256 directions. Both estimates of the share stand side by side: by the heads of the folds, and by the final
head alone, as in models of 0.4.
"""

from functools import cache, partial
from itertools import product

import numpy as np
from sklearn.metrics import f1_score

from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import add_jobs, images_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.piles import DIM, Directions, pile_rows
from benchmarks.common.tasks import CIFAR, FASHION, KINDS, TASKS, TOPICS, Location, opened, prepared
from pucache import PULinearClassifier
from pucache.estimates.dataset_shift import check_shift
from pucache.estimates.share_of_new_images import estimate_share
from pucache.scoring.new_images import LEAST_LABELS_TO_DECIDE, NewImages
from pucache.training.sklearn_classifier import linear_margins

ROWS, NEW, COMPARED = 3000, 1000, 1000  # of a pile, new images, and rows that the classifier of the test sees
LABELLED, PILES, SHARES = (20, 40, 100, 300), (0.01, 0.05, 0.25), (0.01, 0.05, 0.25)
SETS = (CIFAR, FASHION, TOPICS, CIFAR, FASHION, KINDS)  # of a model, by its seed
MODELS, DRAWS, FIRST_SEED = 20, 5, 500  # models of a line, draws of each
QUICK_MODELS, QUICK_DRAWS = 2, 2
FEWEST = 1500  # positives of a task: those of a pile and of the new images


@cache
def reduced(at: Location, group: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rows of a set along the leading directions of its training rows, and which are positive by task; once in each
    process. Tasks have enough positives."""
    data = opened(at).data(group)
    if group in (TOPICS, KINDS):
        X, positive = data.X, {name: data.labels[name] for name in TASKS[group]}
    else:
        X = Directions(data.X).reduce(np.concatenate([data.X, data.X_test]))
        label = np.concatenate([data.label, data.label_test])
        positive = {name: label == name for name in TASKS[group]}
    return X, {name: y for name, y in positive.items() if FEWEST <= y.sum() <= len(y) - 2 * ROWS}


def measure(at: Location, draws: int, group: str, number: int, labelled: int, pile: float) -> dict:
    """Figures of one model on draws of new images."""
    X, tasks = reduced(at, group)
    generator = np.random.default_rng([FIRST_SEED + number, labelled, round(1000 * pile)])
    task = generator.choice(list(tasks))
    y = tasks[task]
    of_pile = pile_rows(y, labelled=labelled, hidden=round(pile * ROWS), unlabelled=ROWS, draw=generator)
    s = (np.arange(len(of_pile)) < labelled).astype(np.int8)
    model = PULinearClassifier(random_state=number).fit(X[of_pile], s)
    left = np.setdiff1d(np.arange(len(y)), of_pile)
    positive, negative = left[y[left]], left[~y[left]]
    figures = []
    for true, draw in product(SHARES, range(draws)):
        sides = [(positive, round(true * NEW)), (negative, NEW - round(true * NEW))]
        new = generator.permutation(np.concatenate([generator.choice(*side, replace=False) for side in sides]))
        figures.append({"share": true} | of_draw(model, X[new], y[new], tested=(true, draw) == (SHARES[1], 0)))
    return {"task": str(task), "draws": figures}


def of_draw(model: PULinearClassifier, X: np.ndarray, y: np.ndarray, *, tested: bool) -> dict:
    """Figures of one draw; with the test for a difference where it is `tested`."""
    pile, prior = model.pile_margins_, model.tilt_.prior
    m, true = model.margins(X), y.mean()
    found = estimate_share(pile, prior, linear_margins(X, model.fold_coef_, model.fold_intercept_))
    decides = NewImages(len(y), len(y), model.figures_.labels, model.share_, share=found).share_to_decide_at
    shares = {"own": None, "auto": decides, "true": true}
    models = {name: model if at is None else model.at_share(at) for name, at in shares.items()}
    return {
        "estimate": found.prior,
        "holds": bool(found.low <= true <= found.high),
        "width": found.high - found.low,
        "alarm": check_shift(model.pile_sample_, pile, pile.tilt(prior), X[:COMPARED], m).differs if tested else None,
        "f1": {name: f1_score(y, m > one.threshold_, zero_division=0) for name, one in models.items()},
    }


# --- the page ------------------------------------------------------------------------------------------


def mean(draws: list[dict], figure: str) -> float:
    return float(np.mean([draw[figure] for draw in draws]))


def held(draws: list[dict]) -> str:
    return f"{100 * mean(draws, 'holds'):.0f} %"


def by_class(draws: list[dict]) -> str:
    """Estimates of each class, the largest first."""
    cells = []
    for group, task in {(draw["group"], draw["task"]) for draw in draws}:
        those = [draw for draw in draws if (draw["group"], draw["task"]) == (group, task)]
        cells.append([group, task, len(those), mean(those, "estimate"), held(those)])
    cells.sort(key=lambda line: -line[3])
    head = ["set", "class", "draws", "mean estimate", "interval holds the share"]
    return table(head, [[*first, f"{estimate:.4f}", holds] for *first, estimate, holds in cells])


def page(rows: list[dict], data: str, draws: int) -> str:
    kept = ("group", "task", "labelled", "pile")
    flat = [draw | {name: row[name] for name in kept} for row in rows for draw in row["draws"]]
    lines, gains, holds = [], [], []
    for labelled, pile, share in product(LABELLED, PILES, SHARES):
        those = [d for d in flat if (d["labelled"], d["pile"], d["share"]) == (labelled, pile, share)]
        f1 = {name: float(np.mean([draw["f1"][name] for draw in those])) for name in ("own", "auto", "true")}
        gains += [f1["auto"] - f1["own"]] if labelled >= LEAST_LABELS_TO_DECIDE else []
        holds.append(100 * mean(those, "holds"))
        line = [labelled, f"{100 * pile:g} %", f"{100 * share:g} %", len(those)]
        line += [f"{mean(those, 'estimate'):.3f}", held(those), f"{mean(those, 'width'):.3f}"]
        lines.append([*line, *(f"{value:.3f}" for value in f1.values())])
    head = ["labels", "pile", "share", "draws", "estimate", "holds it", "width", "F1, share of the model"]
    head += ["F1 of `score`", "F1, true share"]
    rare = [draw for draw in flat if draw["share"] == SHARES[0]]
    alarms = [d["alarm"] for d in flat if d["alarm"] is not None]
    count = len({(row["group"], row["number"]) for row in rows})
    parts = [
        "# New images",
        f"`python -m benchmarks.quality.new_images DIR --fashion SOURCE`: {len(rows)} models on piles of {ROWS:,} "
        f"unlabelled rows, up to {count} of each number of labels and share of the pile, each of a class, topic or "
        f"kind drawn by its seed (from {FIRST_SEED}), embeddings along {DIM} directions; {draws} draws of {NEW:,} "
        f"new rows a line and model. {data}",
        f"Intervals have a nominal coverage of 90 %; {held(flat)} hold the share, with a mean width of "
        f"{mean(flat, 'width'):.3f}, and {min(holds):.0f} % in the line where they hold least. "
        f"Below {LEAST_LABELS_TO_DECIDE} labels `score` keeps the share of the model; from then on it decides at "
        "the estimate where its interval excludes that share, and its F1 less that at the share of the model is "
        f"{np.mean(gains):+.3f} in the mean over the lines, and {min(gains):+.3f} in the worst. The difference "
        f"test, on one draw a model, has {sum(alarms)} false alarms in {len(alarms)}.",
        "## By labels, share of the pile and share of the new rows",
        table(head, lines),
        "## By class, where 1 % of the new rows are positive",
        f"Mean of all estimates: {mean(rare, 'estimate'):.4f}, median: "
        f"{np.median([draw['estimate'] for draw in rare]):.4f}. Where negatives look "
        "like positives to the encoder, such as pullovers and shirts for a coat, no margin tells them apart, and the "
        "estimate counts them.",
        by_class(rare),
        environment(),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    options = add_jobs(images_parser(__doc__)).parse_args()
    at, draws = Location.of(options), QUICK_DRAWS if options.quick else DRAWS
    sets = [name for name in SETS if name in opened(at).names]
    groups = prepared(at, set(sets))
    wanted = [
        {"group": sets[number % len(sets)], "number": number, "labelled": labelled, "pile": pile}
        for number in range(QUICK_MODELS if options.quick else MODELS)
        for labelled, pile in product(LABELLED, PILES)
    ]
    rows = measured(at.work, f"{at.prefix}new-images", wanted, partial(measure, at, draws), jobs=options.jobs)
    write_page(page(rows, groups.describe(), draws), options.out)
