"""New images: the share of positives in them, decisions at that share, and whether they are of the same kind.

    python -m benchmarks.quality.new_images DIR [--fashion SOURCE] [--draws N] [--quick] [--out FILE]

Models are trained on 60 % of the training images; the new images are drawn from the others and from the test images,
which differ in nothing but the share of positives. Embeddings are reduced to 256 directions, so that a model takes a
third of the time. The seconds of the tests are those of `score` with a model less those with the same model without
its sample.
"""

import tempfile
import time
from collections.abc import Callable
from copy import copy
from functools import cache, partial
from io import BytesIO
from itertools import chain, product
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter
from sklearn.metrics import average_precision_score, f1_score

from benchmarks.common.attributes import grey, tinted
from benchmarks.common.cells import measured, table
from benchmarks.common.cifar import VEHICLES
from benchmarks.common.command_line import images_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.image_classes import ImageClasses, embedded
from benchmarks.common.piles import DIM, Directions
from benchmarks.common.planted_cache import planted_rows
from benchmarks.common.row_cache import write_row_cache
from benchmarks.common.tasks import CIFAR, FASHION, TASKS, Location, TaskGroups, opened, prepared
from pucache import PULinearClassifier
from pucache.estimates.dataset_shift import check_shift
from pucache.estimates.share_of_new_images import estimate_share
from pucache.scoring.score import score

PART, COMPARED = 0.6, 2000
PAPER = "vehicles"
SHARES, SIZES = (0.01, 0.05, 0.2, 0.4, 0.7), (200, 1000, 5000)
MIXED = (0.1, 0.3, 1.0)
CHANGED = 1000  # test images that are changed, evenly spaced
OTHER, NOISE, NOISY = "the other data set", "noise of 0.6 sd", 0.6  # standard deviations of each dimension
SEEDS, DRAWS, DRAWS_OF_PAPER, QUICK_DRAWS = 2, 20, 50, 3
MIXES = 4  # draws of the images that are changed, of a model
SCORED, QUICK_SCORED, ROUNDS = (1_000_000, 512), (100_000, 64), 5  # rows and dimensions; runs of each kind


def compressed(quality: int) -> Callable[[Image.Image], Image.Image]:
    """As JPEG of a quality shows it."""

    def change(image: Image.Image) -> Image.Image:
        file = BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file).convert("RGB")

    return change


def blurred(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(1))


def halved(image: Image.Image) -> Image.Image:
    return image.resize((image.width // 2, image.height // 2), Image.Resampling.BILINEAR)


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG quality 10": compressed(10),
    "JPEG quality 40": compressed(40),
    "grey": grey,
    "tint": tinted,
    "blur": blurred,
    "half size": halved,
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
    """Images of a group along the leading directions of its training images; changed ones besides."""

    def __init__(self, groups: TaskGroups, group: str):
        data = groups.data(group)
        assert isinstance(data, ImageClasses)
        directions = Directions(data.X)
        self.X = directions.reduce(np.concatenate([data.X, data.X_test]))
        self.label = np.concatenate([data.label, data.label_test])
        self.is_test = np.arange(len(self.X)) >= len(data.X)
        rows = np.linspace(0, len(data.X_test) - 1, min(CHANGED, len(data.X_test))).astype(int)
        changed = changed_images(data, groups.work, rows) if group == CIFAR else {}
        if changed and FASHION in groups.names:
            other = groups.data(FASHION)
            assert isinstance(other, ImageClasses)
            changed[OTHER] = other.X_test[np.linspace(0, len(other.X_test) - 1, len(rows)).astype(int)]
        spread = np.std(data.X[:: max(1, len(data.X) // 5000)], axis=0, dtype=np.float32)
        noise = np.random.default_rng(0).normal(0, NOISY, (len(rows), len(spread))).astype(np.float32) * spread
        changed[NOISE] = data.X_test[rows] + noise
        self.changed = {name: directions.reduce(X) for name, X in changed.items()}
        self.changed_rows = len(data.X) + rows


@cache
def reduced(at: Location, group: str) -> Reduced:
    """Once in each process."""
    return Reduced(opened(at), group)


def measure(at: Location, draws: int, group: str, task: str, labelled: int, share: float, seed: int) -> dict:
    """Figures of one model on draws of new images."""
    images = reduced(at, group)
    names = VEHICLES if task == PAPER else (task,)
    rng, y = np.random.default_rng(seed), np.isin(images.label, names)
    in_part = (rng.random(len(y)) < PART) & ~images.is_test
    positive, rest = rng.permutation(np.flatnonzero(y & in_part)), np.flatnonzero(~y & in_part)
    rows = np.sort(np.concatenate([positive[: labelled + round(share / (1 - share) * len(rest))], rest]))
    s = np.isin(rows, positive[:labelled]).astype(np.int8)
    model = PULinearClassifier(random_state=seed).fit(images.X[rows], s)
    margins = model.margins(images.X)
    positives, negatives = (np.flatnonzero(~in_part & (y == side)) for side in (True, False))
    figures = []
    for size, true, _ in product(SIZES, SHARES, range(DRAWS_OF_PAPER if (task, draws) == (PAPER, DRAWS) else draws)):
        count = min(round(true * size), len(positives))
        others = min(size - count, len(negatives))  # a quarter of the rows has fewer
        chosen = [rng.choice(positives, count, replace=False), rng.choice(negatives, others, replace=False)]
        drawn = rng.permutation(np.concatenate(chosen))  # the classifier sees the first of them
        figures.append({"size": size, "share": true} | of_draw(model, images, y, drawn, margins))
    return {"draws": figures, "changed": of_changed(model, images, y, margins, rng)}


def of_draw(model: PULinearClassifier, images: Reduced, y: np.ndarray, rows: np.ndarray, m: np.ndarray) -> dict:
    assert model.pile_margins_ is not None
    assert model.pile_sample_ is not None
    few = estimate_share(model.pile_margins_, model.tilt_.prior, m[rows], labels=model.figures_.labels)
    tilt, true = model.pile_margins_.tilt(model.tilt_.prior), float(y[rows].mean())
    assert few is not None
    shift = check_shift(model.pile_sample_, model.pile_margins_, tilt, images.X[rows[:COMPARED]], m[rows])
    shares = {"true": true, "auto": few.prior}
    thresholds = {name: model.at_share(share).threshold_ for name, share in shares.items() if share is not None}
    thresholds["own"] = model.threshold_
    f1 = {name: f1_score(y[rows], m[rows] > threshold, zero_division=0) for name, threshold in thresholds.items()}
    return {
        "true": true,
        "estimate": few.prior,
        "holds": bool(few.low <= true <= few.high),
        "width": few.high - few.low,
        "alarm": shift.differs,
        "auc": shift.auc,
        "f1": f1,
    }


def of_changed(model: PULinearClassifier, images: Reduced, y: np.ndarray, m: np.ndarray, rng) -> list[dict]:
    """Changed images mixed into 1,000 (or as many as there are) test images; images of the other set are negatives."""
    assert model.pile_margins_ is not None
    assert model.pile_sample_ is not None
    tilt, rows, cells = model.pile_margins_.tilt(model.tilt_.prior), images.changed_rows, []
    plain_ap = average_precision_score(y[rows], m[rows])
    for name, X in images.changed.items():
        changed = model.margins(X)
        for part, _ in product(MIXED, range(MIXES)):
            taken = rng.random(len(rows)) < part
            mixed, margins = np.where(taken[:, None], X, images.X[rows]), np.where(taken, changed, m[rows])
            shift = check_shift(model.pile_sample_, model.pile_margins_, tilt, mixed, margins)
            truth = y[rows] & ~taken if name == OTHER else y[rows]
            drop = plain_ap - average_precision_score(truth, margins) if truth.any() else None
            cells.append({"change": name, "part": part, "detected": shift.differs, "auc": shift.auc, "drop": drop})
    return cells


def seconds(work: Path, n: int, d: int) -> str:
    """What the share and the tests add to scoring a planted cache into a CSV table, as a sentence."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        y, blocks = planted_rows(n, d, str)
        cache = write_row_cache(Path(folder) / "rows.h5", np.concatenate([block.X for block in blocks]))
        rows, s = slice(0, n // 20), np.zeros(n // 20, np.int8)
        s[np.flatnonzero(y[rows])[:50]] = 1
        model = PULinearClassifier(random_state=0).fit(np.asarray(cache.X[rows]), s)
        model.encoder_, without = cache.encoder, copy(model)
        without.encoder_ = cache.encoder
        without.pile_margins_ = without.pile_sample_ = None
        taken: dict[bool, list[float]] = {False: [], True: []}
        for number in range(2 * ROUNDS + 2):
            began = time.perf_counter()
            score(model if number % 2 else without, cache, Path(folder) / "scores.csv")
            taken[bool(number % 2)].append(time.perf_counter() - began)
    plain, tested = (float(np.median(values[1:])) for values in taken.values())
    return (
        f"Scoring {n:,} x {d} into a CSV table takes {plain:.2f} s without share and tests, and {tested:.2f} s with "
        f"them: {100 * (tested / plain - 1):.0f} % more (medians of {ROUNDS} runs in turn, after one of each)."
    )


def page(rows: list[dict], groups: TaskGroups, draws: int, added: str) -> str:
    """The page."""
    flat = [draw | {k: row[k] for k in ("group", "task", "labelled")} for row in rows for draw in row["draws"]]
    changed = [one for row in rows for one in row["changed"] if row["labelled"] >= 100]

    def mean(values: list) -> str:
        known = [value for value in values if value is not None]
        return f"{np.mean(known):.3f}" if known else ""

    tables = []
    for labelled in sorted({one["labelled"] for one in flat}, reverse=True):
        lines = []
        for size in SIZES:
            for share in SHARES:
                those = [d for d in flat if (d["size"], d["share"], d["labelled"]) == (size, share, labelled)]
                lines.append(
                    [
                        size,
                        f"{100 * share:g} %",
                        len(those),
                        mean([d["estimate"] for d in those]),
                        f"{100 * np.mean([d['holds'] for d in those]):.0f} %",
                        mean([d["width"] for d in those]),
                        *(mean([d["f1"].get(name) for d in those]) for name in ("own", "auto", "true")),
                        f"{100 * np.mean([d['alarm'] for d in those]):.1f} %",
                    ]
                )
        head = ["images", "share", "draws", "estimate", "interval holds it", "width"]
        head += ["F1, threshold of the model", "F1, auto", "F1, true share", "false alarms"]
        tables += [
            f"## {labelled} labels and more" if labelled > 100 else f"## {labelled} labels",
            "",
            table(head, lines),
            "",
        ]
    lines = []
    for name in (*CHANGES, NOISE, OTHER):
        cells = [[one for one in changed if (one["change"], one["part"]) == (name, part)] for part in MIXED]
        figures = [
            [
                f"{100 * np.mean([one['detected'] for one in cell]):.0f} % ({mean([one['auc'] for one in cell])})",
                mean([one["drop"] for one in cell]),
            ]
            for cell in cells
            if cell
        ]
        lines += [[name, *chain.from_iterable(figures)]] if figures else []
    models = ", ".join(sorted({f"{row['task']} ({row['labelled']} labels)" for row in rows}))
    alarms = ", ".join(
        f"{sum(those)} of {len(those):,} draws of {size:,} images ({100 * np.mean(those):.2f} %)"
        for size in SIZES
        if (those := [d["alarm"] for d in flat if d["size"] == size])
    )
    return "\n".join(
        [
            "# New images",
            "",
            f"`python -m benchmarks.quality.new_images DIR --fashion SOURCE`: "
            f"{len(rows)} models, trained on 60 % of the training images, embeddings along {DIM} "
            f"directions: {models}. New images are drawn from the others "
            f"and from the test images, {draws} draws a line and model"
            f"{f', {DRAWS_OF_PAPER} of {PAPER}' if draws == DRAWS else ''}. One class has no more than some 3,000 "
            f"positives to draw, so that 70 % of 5,000 are 60 % to 68 %. {groups.describe()}",
            "",
            f"False alarms of both tests together: {alarms}. Intervals have a nominal coverage of 90 %; all of them "
            f"together hold the share in {100 * np.mean([d['holds'] for d in flat]):.0f} %. An estimate, and decisions "
            "at it, take 30 labels; below, `score` states no share: the intervals with 20 labels show why.",
            "",
            added,
            "",
            *tables,
            "## Images that were changed",
            "",
            "How often a difference is found among 1,000 test images of CIFAR-10 where so many of them are changed, "
            "or replaced by images of Fashion-MNIST, with the mean AUC of the classifier, and by how much the average "
            f"precision falls; models of 100 labels and more, {MIXES} draws each.",
            "",
            table(["change", *(cell for part in MIXED for cell in (f"{100 * part:g} %", "drop of AP"))], lines),
            "",
            environment(),
            "",
        ]
    )


def cells(groups: tuple[str, ...], quick: bool) -> list[dict]:
    """Models to train: the paper's task, and classes against the rest with 100, 40 and 20 labels."""
    wanted = [{"group": CIFAR, "task": PAPER, "labelled": 300 if quick else 600, "share": 0.07, "seed": 0}]
    piles = ((100, 0.05), (20, 0.05), (40, 0.25))  # with the last, the share among the new images mostly falls
    for seed, (labelled, share), group in product(range(1 if quick else SEEDS), piles, (CIFAR, FASHION)):
        if group in groups:
            task = TASKS[group][(3 * seed + 2 * (labelled != 100)) % 10]
            wanted.append({"group": group, "task": task, "labelled": labelled, "share": share, "seed": seed})
    return wanted


def main() -> None:
    parser = images_parser(__doc__)
    parser.add_argument("--draws", type=int, help=f"of a line and model (default: {DRAWS}, quick: {QUICK_DRAWS})")
    options = parser.parse_args()
    at, draws = Location.of(options), options.draws or (QUICK_DRAWS if options.quick else DRAWS)
    groups = prepared(at, [name for name in (CIFAR, FASHION) if name in opened(at).names])
    wanted, limits = cells(groups.names, options.quick), {"minutes": options.minutes, "jobs": options.jobs}
    name = f"{groups.prefix}new-images{'' if draws == DRAWS else f'-{draws}'}"
    rows = measured(at.work, name, wanted, partial(measure, at, draws), **limits)
    added = seconds(at.work, *(QUICK_SCORED if options.quick else SCORED))
    write_page(page(rows, groups, draws, added), options.out)


if __name__ == "__main__":
    main()
