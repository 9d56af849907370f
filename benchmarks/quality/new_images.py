"""New images: the share of positives in them, decisions at that share, and whether they are of the same kind.

    python -m benchmarks.quality.new_images DIR [--fashion SOURCE] [--draws N] [--changed] [--quick] [--out FILE]

Models are trained on piles of 3,000 unlabelled rows, on seeds that nothing was chosen on; the new images are drawn from
the rows that are left, training and test images, which differ in nothing but the share of positives. Embeddings are
reduced to 256 directions. Both estimates of the share stand side by side: by the heads of the folds, and by the final
head alone, as in models of 0.4.
"""

from collections.abc import Callable
from functools import cache, partial
from io import BytesIO
from itertools import chain, product
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter
from sklearn.metrics import average_precision_score, f1_score

from benchmarks.common.attributes import grey
from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import images_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.image_classes import ImageClasses, embedded
from benchmarks.common.piles import DIM, Directions, pile_rows
from benchmarks.common.tasks import CIFAR, FASHION, KINDS, TASKS, TOPICS, Location, TaskGroups, opened, prepared
from benchmarks.common.texts import Texts
from pucache import PULinearClassifier
from pucache.estimates.dataset_shift import check_shift
from pucache.estimates.share_by_final_head import estimate_by_final_head
from pucache.estimates.share_of_new_images import estimate_share
from pucache.scoring.new_images import LEAST_LABELS_TO_DECIDE, NewImages
from pucache.training.sklearn_classifier import linear_margins

ROWS, NEW, COMPARED = 3000, 1000, 1000  # of a pile, new images, and rows that the classifier of the test sees
LABELLED, PILES, SHARES = (20, 40, 100, 300), (0.01, 0.05, 0.25), (0.01, 0.05, 0.25)
SETS = (CIFAR, FASHION, TOPICS, CIFAR, FASHION, KINDS)  # of a model, by its seed
MODELS, DRAWS, FIRST_SEED = 20, 5, 500  # models of a line, draws of each
QUICK_MODELS, QUICK_DRAWS = 2, 2
FEWEST = 1500  # positives of a task: those of a pile and of the new images
MIXED = (0.1, 0.3, 1.0)
CHANGED = 1000  # test images that are changed, evenly spaced
OTHER = "the other data set"
WITH_CHANGES = (100, 0.05, 4)  # labels and share of the pile of the models that see changed images; how many


def compressed(quality: int) -> Callable[[Image.Image], Image.Image]:
    """As JPEG of a quality shows it."""

    def change(image: Image.Image) -> Image.Image:
        file = BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file).convert("RGB")

    return change


def blurred(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(1))


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG quality 10": compressed(10),
    "grey": grey,
    "blur": blurred,
}


def changed_images(data: ImageClasses, work: Path, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Embeddings of test images, each changed in every way."""
    prefix = data.prefix if data.part == 1 else data.quick_prefix
    X = {}
    for name, change in CHANGES.items():
        changed = f"{prefix}-{name.replace(' ', '-')}"
        folder = work / "changed" / changed
        folder.mkdir(parents=True, exist_ok=True)
        for row in rows:
            target = folder / f"{row:05}.png"
            if not target.exists():
                with Image.open(data.folder / "test" / data.keys_test[row]) as image:
                    change(image.convert("RGB")).save(target)
        X[name] = np.array(embedded(folder, work / f"changed-{changed}.h5").X)
    return X


class Reduced:
    """Rows of a set along the leading directions of its training rows; changed images besides."""

    def __init__(self, groups: TaskGroups, group: str):
        data = groups.data(group)
        if isinstance(data, Texts):
            self.X = data.X
            self.positive = {name: data.labels[name] for name in (*TASKS[TOPICS], *TASKS[KINDS])}
            return
        assert isinstance(data, ImageClasses)
        self.directions = Directions(data.X)
        self.X = self.directions.reduce(np.concatenate([data.X, data.X_test]))
        label = np.concatenate([data.label, data.label_test])
        self.positive = {name: label == name for name in TASKS[group]}

    @property
    def tasks(self) -> list[str]:
        """Those with enough positives."""
        return [name for name, y in self.positive.items() if FEWEST <= y.sum() <= len(y) - 2 * ROWS]


@cache
def reduced(at: Location, group: str) -> Reduced:
    """Once in each process."""
    return Reduced(opened(at), group)


def measure(at: Location, draws: int, changes: bool, group: str, number: int, labelled: int, pile: float) -> dict:
    """Figures of one model on draws of new images."""
    rows, generator = reduced(at, group), np.random.default_rng([FIRST_SEED + number, labelled, round(1000 * pile)])
    task = generator.choice([name for name in rows.tasks if name in TASKS[group]])
    y = rows.positive[task]
    of_pile = pile_rows(y, labelled=labelled, hidden=round(pile * ROWS), unlabelled=ROWS, draw=generator)
    s = (np.arange(len(of_pile)) < labelled).astype(np.int8)
    model = PULinearClassifier(random_state=number).fit(rows.X[of_pile], s)
    left = np.setdiff1d(np.arange(len(y)), of_pile)
    positive, negative = left[y[left]], left[~y[left]]
    figures = []
    for true, draw in product(SHARES, range(draws)):
        sides = [(positive, round(true * NEW)), (negative, NEW - round(true * NEW))]
        new = generator.permutation(np.concatenate([generator.choice(*side, replace=False) for side in sides]))
        figures.append({"share": true} | of_draw(model, rows.X[new], y[new], tested=(true, draw) == (SHARES[1], 0)))
    with_changes = changes and group == CIFAR and number < WITH_CHANGES[2] and (labelled, pile) == WITH_CHANGES[:2]
    return {"task": str(task), "draws": figures, "changed": of_changed(at, model, y, generator) if with_changes else []}


def of_draw(model: PULinearClassifier, X: np.ndarray, y: np.ndarray, *, tested: bool) -> dict:
    """Figures of one draw; with the test for a difference where it is `tested`."""
    pile, sample, prior = model.pile_margins_, model.pile_sample_, model.tilt_.prior
    m, true = model.margins(X), y.mean()
    assert pile is not None
    assert sample is not None
    assert model.fold_coef_ is not None
    assert model.fold_intercept_ is not None
    found = estimate_share(pile, prior, linear_margins(X, model.fold_coef_, model.fold_intercept_))
    earlier = estimate_by_final_head(pile, prior, m)
    decides = NewImages(len(y), len(y), model.figures_.labels.labels, model.share_, share=found).share_to_decide_at
    shares = {"own": None, "auto": decides, "true": true}
    models = {name: model if at is None else model.at_share(at) for name, at in shares.items()}
    return {
        "estimate": found.prior,
        "holds": bool(found.low <= true <= found.high),
        "width": found.high - found.low,
        "earlier": earlier.prior,
        "earlier_holds": bool(earlier.low <= true <= earlier.high),
        "earlier_width": earlier.high - earlier.low,
        "alarm": check_shift(sample, pile, pile.tilt(prior), X[:COMPARED], m).differs if tested else None,
        "f1": {name: f1_score(y, m > one.threshold_, zero_division=0) for name, one in models.items()},
    }


def of_changed(at: Location, model: PULinearClassifier, y: np.ndarray, generator: np.random.Generator) -> list[dict]:
    """Changed images mixed into test images; images of the other set are negatives."""
    groups, images = opened(at), reduced(at, CIFAR)
    data = groups.data(CIFAR)
    assert isinstance(data, ImageClasses)
    kept = np.linspace(0, len(data.X_test) - 1, min(CHANGED, len(data.X_test))).astype(int)
    changed = changed_images(data, groups.work, kept)
    if FASHION in groups.names:
        other = groups.data(FASHION)
        assert isinstance(other, ImageClasses)
        changed[OTHER] = other.X_test[np.linspace(0, len(other.X_test) - 1, len(kept)).astype(int)]
    pile, sample = model.pile_margins_, model.pile_sample_
    assert pile is not None
    assert sample is not None
    rows, cells = len(data.X) + kept, []
    tilt, m = pile.tilt(model.tilt_.prior), model.margins(images.X[rows])
    plain_ap = average_precision_score(y[rows], m)
    for name, part in product(changed, MIXED):
        X = images.directions.reduce(changed[name])
        taken = generator.random(len(rows)) < part
        mixed, margins = np.where(taken[:, None], X, images.X[rows]), np.where(taken, model.margins(X), m)
        shift = check_shift(sample, pile, tilt, mixed, margins)
        truth = y[rows] & ~taken if name == OTHER else y[rows]
        drop = plain_ap - average_precision_score(truth, margins) if truth.any() else None
        cells.append({"change": name, "part": part, "detected": shift.differs, "auc": shift.auc, "drop": drop})
    return cells


def mean(values: list) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.3f}" if known else ""


def percent(values: list) -> str:
    return f"{100 * np.mean(values):.0f} %"


def _of_changes(rows: list[dict]) -> list[str]:
    """The section on changed images, where there are any."""
    changed = [one for row in rows for one in row["changed"]]
    if not changed:
        return []
    of_changes = []
    for name in dict.fromkeys(one["change"] for one in changed):
        cells = [[one for one in changed if (one["change"], one["part"]) == (name, part)] for part in MIXED]
        figures = [
            (f"{percent([one['detected'] for one in cell])} ({mean([one['auc'] for one in cell])})", mean(drops))
            for cell in cells
            if (drops := [one["drop"] for one in cell])
        ]
        of_changes.append([name, *chain.from_iterable(figures)])
    return [
        "## Images that were changed",
        "",
        f"How often a difference is found among {CHANGED:,} test images of CIFAR-10 where so many of them are "
        "changed, or replaced by images of Fashion-MNIST, with the mean AUC of the classifier, and by how much the "
        f"average precision falls; {sum(bool(row['changed']) for row in rows)} models of {WITH_CHANGES[0]} labels.",
        "",
        table(["change", *(cell for part in MIXED for cell in (f"{100 * part:g} %", "drop of AP"))], of_changes),
        "",
    ]


def _of_classes(flat: list[dict]) -> list[str]:
    """The section on what the new images have one positive in a hundred of, the largest estimate first."""
    rare = [draw for draw in flat if draw["share"] == SHARES[0]]
    cells = []
    for group, task in {(draw["group"], draw["task"]) for draw in rare}:
        those = [draw for draw in rare if (draw["group"], draw["task"]) == (group, task)]
        estimate = float(np.mean([draw["estimate"] for draw in those]))
        cells.append((estimate, [group, task, len(those), f"{estimate:.4f}", percent([d["holds"] for d in those])]))
    cells.sort(reverse=True)
    return [
        "## By class, where 1 % of the new rows are positive",
        "",
        f"Median of all estimates: {np.median([draw['estimate'] for draw in rare]):.4f}. Where negatives look like "
        "positives to the encoder, such as pullovers and shirts for a coat, no margin tells them apart, and the "
        "estimate counts them.",
        "",
        table(["set", "class", "draws", "mean estimate", "interval holds the share"], [cell for _, cell in cells]),
        "",
    ]


def page(rows: list[dict], groups: TaskGroups, draws: int) -> str:
    """The page."""
    kept = ("group", "task", "labelled", "pile")
    flat = [draw | {name: row[name] for name in kept} for row in rows for draw in row["draws"]]
    lines, gains, holds = [], [], []
    for labelled, pile, share in product(LABELLED, PILES, SHARES):
        those = [d for d in flat if (d["labelled"], d["pile"], d["share"]) == (labelled, pile, share)]
        if not those:
            continue
        f1 = {name: float(np.mean([d["f1"][name] for d in those])) for name in ("own", "auto", "true")}
        gains += [f1["auto"] - f1["own"]] if labelled >= LEAST_LABELS_TO_DECIDE else []
        holds.append(100 * np.mean([d["holds"] for d in those]))
        line = [labelled, f"{100 * pile:g} %", f"{100 * share:g} %", len(those)]
        for kind in ("", "earlier_"):
            line += [mean([d[kind.rstrip("_") or "estimate"] for d in those])]
            line += [percent([d[f"{kind}holds"] for d in those]), mean([d[f"{kind}width"] for d in those])]
        lines.append([*line, *(f"{value:.3f}" for value in f1.values())])
    head = ["labels", "pile", "share", "draws", "estimate", "holds it", "width"]
    head += [
        "final head: estimate",
        "holds it",
        "width",
        "F1, share of the model",
        "F1 of `score`",
        "F1, true share",
    ]
    summary = []
    for kind, name in (("", "by the heads of the folds"), ("earlier_", "by the final head")):
        rare = [d[kind.rstrip("_") or "estimate"] for d in flat if d["share"] == SHARES[0]]
        found, width = [d[f"{kind}holds"] for d in flat], [d[f"{kind}width"] for d in flat]
        summary.append([name, f"{np.mean(rare):.4f}", percent(found), mean(width)])
    alarms = [d["alarm"] for d in flat if d["alarm"] is not None]
    count = len({(row["group"], row["number"]) for row in rows})
    return "\n".join(
        [
            "# New images",
            "",
            f"`python -m benchmarks.quality.new_images DIR --fashion SOURCE`: {len(rows)} models on piles of {ROWS:,} "
            f"unlabelled rows, up to {count} of each number of labels and share of the pile, each of a class, topic or "
            f"kind drawn by its seed (from {FIRST_SEED}), embeddings along {DIM} directions; {draws} draws of {NEW:,} "
            f"new rows a line and model. {groups.describe()}",
            "",
            f"Intervals have a nominal coverage of 90 %; in the line where they hold least, {min(holds):.0f} % do. "
            f"Below {LEAST_LABELS_TO_DECIDE} labels `score` keeps the share of the model; from then on it decides at "
            "the estimate where its interval excludes that share, and its F1 less that at the share of the model is "
            f"{np.mean(gains):+.3f} in the mean over the lines, and {min(gains):+.3f} in the worst. The difference "
            f"test, on one draw a model, has {sum(alarms)} false alarms in {len(alarms)}.",
            "",
            table(["estimate", "mean at 1 %", "interval holds the share", "width"], summary),
            "",
            "## By labels, share of the pile and share of the new rows",
            "",
            table(head, lines),
            "",
            *_of_classes(flat),
            *_of_changes(rows),
            environment(),
            "",
        ]
    )


def main() -> None:
    parser = images_parser(__doc__)
    parser.add_argument("--draws", type=int, help=f"of a line and model (default: {DRAWS}, quick: {QUICK_DRAWS})")
    parser.add_argument("--changed", action="store_true", help="changed images besides: 3,000 are embedded")
    options = parser.parse_args()
    at, draws = Location.of(options), options.draws or (QUICK_DRAWS if options.quick else DRAWS)
    groups = prepared(at, {name for name in SETS if name in opened(at).names})
    sets = [name for name in SETS if name in groups.names]
    wanted = [
        {"group": sets[number % len(sets)], "number": number, "labelled": labelled, "pile": pile}
        for number in range(QUICK_MODELS if options.quick else MODELS)
        for labelled, pile in product(LABELLED, PILES)
    ]
    limits = {"minutes": options.minutes, "jobs": options.jobs}
    rows = measured(
        at.work, f"{groups.prefix}new-images-{draws}", wanted, partial(measure, at, draws, options.changed), **limits
    )
    write_page(page(rows, groups, draws), options.out)


if __name__ == "__main__":
    main()
