"""Power of the SCAR check, on labelled positives that are and are not a random sample of the positives.

    python -m benchmarks.quality.scar DIR [--quick] [--work W] [--out docs/results/scar.md]

DIR holds train/<class>/*.png and test/<class>/*.png of CIFAR-10. Vehicles are the positives, as in the
authors' task: 600 of each class are hidden among the 30,000 animals, and others are labelled, in fair
and in unfair ways. Then the check on one-vs-rest tasks whose labels are fair counts false alarms. pucache
runs at its defaults, given no prior; what a broken sample does to its prior and recall stands beside.
"""

import argparse
import io
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.linear_model import LogisticRegression

from benchmarks.common.cells import measured, spread, table
from benchmarks.common.cifar import HIDDEN, VEHICLES, Cifar
from benchmarks.common.environment import environment
from pucache import PULinearClassifier, load_encoder
from pucache.pu.labels import Labels
from pucache.pu.scar import check_scar

SEEDS, SIZES = (0, 1, 2), (600, 100)
QUICK_SEEDS, QUICK_SIZES = (0,), (600,)
FAIR = (("airplane", "cat", "frog", "truck"), (0.01, 0.05), (20, 100, 500))
QUICK_FAIR = (("airplane", "cat"), (0.05,), (100,))
JPEG_QUALITY = 10


class Vehicles:
    """Rows of the vehicles, and by how much they stand out, for ways of choosing whom to label."""

    def __init__(self, data: Cifar):
        self.data, self.rows = data, np.flatnonzero(np.isin(data.label, VEHICLES))
        self.animals = np.flatnonzero(~np.isin(data.label, VEHICLES))

    def ease(self) -> np.ndarray:
        """Margin of each vehicle by a head trained on true labels and half of the images."""
        data, half = self.data, np.random.default_rng(0).random(len(self.data.label)) < 0.5
        head = LogisticRegression(C=1e-4, max_iter=200).fit(data.X[half], np.isin(data.label[half], VEHICLES))
        return head.decision_function(data.X[self.rows])

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


def chances(vehicles: Vehicles, way: str) -> np.ndarray:
    """How likely each vehicle is to be labelled, relative to the others."""
    label = vehicles.data.label[vehicles.rows]
    if way.startswith("classes"):
        shares = dict(zip(VEHICLES, map(float, way.split()[1].split("/")), strict=True))
        return np.array([shares[name] for name in label])
    if way in ("easy", "bright"):
        value = vehicles.ease() if way == "easy" else vehicles.brightness()
        return (value >= np.median(value)).astype(float)
    return np.ones(len(label))


WAYS = {
    "fair": "drawn at random",
    "classes 40/40/10/10": "airplanes and cars four times as often as ships and trucks",
    "classes 70/20/5/5": "mostly airplanes",
    "classes 50/50/0/0": "airplanes and cars only",
    "easy": "the half that a supervised head is surest of",
    "bright": "the brighter half",
    "recoded": "at random, but compressed as JPEG at quality 10",
}


def task(vehicles: Vehicles, way: str, labelled: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, s and y with so many labelled in a way, and `HIDDEN` of each class among the animals."""
    data, draw = vehicles.data, np.random.default_rng([seed, labelled])
    chance = chances(vehicles, way)
    chosen = draw.choice(vehicles.rows, labelled // data.part, replace=False, p=chance / chance.sum())
    hidden = []
    for name in VEHICLES:
        rest = np.setdiff1d(vehicles.rows[data.label[vehicles.rows] == name], chosen)
        hidden.append(draw.choice(rest, HIDDEN // data.part, replace=False))
    rows = np.concatenate([chosen, *hidden, vehicles.animals])
    X = data.X[rows]
    if way == "recoded":
        X[: len(chosen)] = vehicles.recoded(chosen)
    return X, (np.arange(len(rows)) < len(chosen)).astype(np.int8), np.isin(data.label[rows], VEHICLES)


def measure(X: np.ndarray, s: np.ndarray, y: np.ndarray) -> dict:
    model = PULinearClassifier(method="linear").fit(X, s)
    margins = model.held_out_margins_
    check = check_scar(X, Labels.of(s), margins, model.tilt_)
    hidden = (s == 0) & y
    likely = check.rows_by_likeness[s[check.rows_by_likeness] == 0]
    return check.to_dict() | {
        "prior": model.prior_,
        "true_prior": y[s == 0].mean(),
        "recall": model.estimates_["recall"],
        "true_recall": (margins[hidden] > model.threshold_).mean(),
        "true_precision": float(y[likely].mean()) if len(check.rows_by_likeness) else None,
    }


def of_ways(vehicles: Vehicles, work: Path, quick: bool) -> list[dict]:
    seeds, sizes = (QUICK_SEEDS, QUICK_SIZES) if quick else (SEEDS, SIZES)
    wanted = [{"way": way, "labelled": labelled, "seed": seed} for labelled, way, seed in product(sizes, WAYS, seeds)]
    return measured(work, f"scar-ways-{vehicles.data.part}", wanted, lambda **of: _way(vehicles, **of))


def _way(vehicles: Vehicles, way: str, labelled: int, seed: int) -> dict:
    # the count that was asked for is the cell's name; what was compared stands beside it
    found = measure(*task(vehicles, way, labelled, seed))
    return {"compared": found.pop("labelled"), **found}


def of_fair(data: Cifar, work: Path, quick: bool) -> list[dict]:
    classes, shares, sizes = QUICK_FAIR if quick else FAIR
    wanted = [
        {"class": name, "share": share, "labelled": labelled, "seed": 0}
        for name, share, labelled in product(classes, shares, sizes)
    ]

    def fair(**of):
        cell = data.one_vs_rest(of["class"], of["share"], max(12, of["labelled"] // data.part), of["seed"])
        found = measure(cell.X, cell.s, cell.y)
        return {"compared": found.pop("labelled"), **found}

    return measured(work, f"scar-fair-{data.part}", wanted, fair)


def verdicts(cells: list[dict]) -> str:
    """How many say that labels are not fair: that labelled and found differ, or that nothing is found."""
    counts = [sum(cell["verdict"] == verdict for cell in cells) for verdict in ("differ", "none found")]
    return f"{counts[0]} of {len(cells)}" + (f", and {counts[1]} that none is found" if counts[1] else "")


def row(name: list, cells: list[dict]) -> list:
    told = [cell for cell in cells if cell["auc"] is not None]
    return [
        *name,
        " / ".join(f"{np.mean([cell[key] for cell in cells]):.0f}" for key in ("compared", "found")),
        spread([cell["auc"] for cell in told], 1, 3),
        spread([cell["explained"] for cell in told], 1, 3),
        spread([0.5 + (1 - cell["true_precision"]) / 2 for cell in told], 1, 3),
        verdicts(cells),
        " / ".join(f"{np.mean([cell[key] for cell in cells]):.3f}" for key in ("prior", "true_prior")),
        " / ".join(f"{np.mean([cell[key] for cell in cells]):.2f}" for key in ("recall", "true_recall")),
    ]


COLUMNS = [
    "rows compared: labelled / found",
    "AUC",
    "explained",
    "explained, by the truth",
    "said to differ",
    "prior: estimated / true",
    "recall: estimated / true",
]


def report(data: Cifar, ways: list[dict], fair: list[dict]) -> str:
    broken = [
        row([labelled, WAYS[way]], [cell for cell in ways if (cell["labelled"], cell["way"]) == (labelled, way)])
        for labelled, way in dict.fromkeys((cell["labelled"], cell["way"]) for cell in ways)
    ]
    sound = [
        row(
            [f"{labelled}, {share:.0%}"],
            [cell for cell in fair if (cell["labelled"], cell["share"]) == (labelled, share)],
        )
        for labelled, share in dict.fromkeys((cell["labelled"], cell["share"]) for cell in fair)
    ]
    alarms = [cell for cell in fair + ways if cell.get("way", "fair") == "fair"]
    return "\n".join(
        [
            "# Is a sample that is not fair seen?",
            "",
            f"`python -m benchmarks.quality.scar DIR`: CIFAR-10, encoder {data.encoder}. Labelled and found positives "
            "(unlabelled rows with a held-out posterior of at least one half) are told apart by their nearest "
            "neighbours; AUC is the effect size, and `explained` what negatives among the found could account for at "
            "most. They are said to differ where p < 0.01 and the AUC is more than 1.645 standard errors beyond that. "
            "Mean ± sd over seeds "
            f"{tuple(dict.fromkeys(cell['seed'] for cell in ways))}.",
            "",
            "## Ways to label",
            "",
            "Vehicles hidden among 30,000 animals, 600 of each of four classes, and others labelled:",
            "",
            table(["labelled", "who is labelled", *COLUMNS], broken),
            "",
            "What is never found cannot be compared: the narrower the labels, the more the classifier finds only their "
            "like, and the less the check can see. The last columns say what the labels did to the figures.",
            "",
            "## False alarms",
            "",
            f"One-vs-rest tasks ({', '.join(dict.fromkeys(cell['class'] for cell in fair))}) with fair labels, a row "
            "for each number of labels and share among the unlabelled:",
            "",
            table(["labelled, share", *COLUMNS], sound),
            "",
            f"Fair labels were said to differ in {verdicts(alarms)} cells; in "
            f"{sum(cell['auc'] is None for cell in alarms)} of them there was too little to compare.",
            "",
            environment(),
            "",
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true", help="a quarter of the images, fewer cells")
    parser.add_argument("--work", type=Path, help="where caches and cells are kept (default: DIR/pucache-bench)")
    parser.add_argument("--out", type=Path, help="write the page here too")
    arguments = parser.parse_args()
    work = arguments.work or arguments.folder / "pucache-bench"
    cifar = Cifar(arguments.folder, work, quick=arguments.quick)
    text = report(cifar, of_ways(Vehicles(cifar), work, arguments.quick), of_fair(cifar, work, arguments.quick))
    print(text)
    if arguments.out:
        arguments.out.write_text(text)
