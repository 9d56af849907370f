"""PU-Bench's tasks: labels drawn at random and with three biases, CIFAR-10 and Fashion-MNIST, and NcPU's task.

    python -m benchmarks.peers.pu_bench DIR [--fashion SOURCE] [--quick] [--out docs/results/pu-bench.md]

After PU-Bench (ICLR 2026, openreview tb8DabMbMq) and its repository XiXiphus/PU-Bench: which classes are positive, the
share of the positives that is labelled (c), and which of them: at random (S1), rather those that a logistic regression
of the pixels on the true labels takes for positive (S2), rather not (S3), or in proportion (S4). The pile is the
training set ("single"). NcPU's task (ICLR 2026): 1,000 labelled vehicles, 40,000 unlabelled images, .4 positive.
"""

from collections.abc import Callable
from functools import cache, partial

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from benchmarks.common.cells import measured, spread, table
from benchmarks.common.cifar import VEHICLES
from benchmarks.common.command_line import add_jobs, images_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.image_classes import ImageClasses, Task
from benchmarks.common.tasks import CIFAR, FASHION, Location, opened, prepared
from benchmarks.peers.learners import DEFAULT, LEARNERS, Truth

TOPS = ("t-shirt", "pullover", "dress", "coat", "shirt")
POSITIVES = {"CIFAR-10": VEHICLES, "Fashion-MNIST": TOPS}
GROUPS = {"CIFAR-10": CIFAR, "Fashion-MNIST": FASHION}
SEEDS = 3
SHRINK, POWER, UNIFORM = 1.0, 10, 0.1  # of S2 and S3
NCPU = "NcPU's task"
SETTINGS = [("S1", 0.05), ("S2", 0.05), ("S3", 0.05), ("S4", 0.05), ("S1", 0.1), ("S2", 0.5), ("S3", 0.5), ("S4", 0.5)]
PEERS = {"logistic regression, balanced, C=1", "pu-toolbox UPU, squared", "pu-toolbox nnPU"}
FIRST_SEED = {"pu-toolbox nnPU"}  # minutes a fit
FIGURES = ("accuracy", "F1", "AUC")


def at_random(p: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
    """S1: places among the positives, whatever their probabilities p (n,)."""
    return draw.choice(len(p), count, replace=False)


def likely(p: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
    """S2, LBE-A: rather the likely ones."""
    weight = (1 - UNIFORM) * p**POWER / (p**POWER).sum() + UNIFORM / len(p)
    return draw.choice(len(p), count, replace=False, p=weight / weight.sum())


def unlikely(p: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
    """S3, LBE-B: rather the unlikely ones."""
    weight = (1.5 + SHRINK - p) ** POWER
    return draw.choice(len(p), count, replace=False, p=weight / weight.sum())


def in_proportion(p: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
    """S4, PUSB: each accepted with its probability over the greatest; fewer than `count` where fewer are accepted."""
    return draw.permutation(np.flatnonzero(p / p.max() > draw.random(len(p))))[:count]


CHOICES: dict[str, Callable[..., np.ndarray]] = {
    "S1": at_random, "S2": likely, "S3": unlikely, "S4": in_proportion,
}  # fmt: skip


@cache
def by_pixels(images: ImageClasses, positives: tuple[str, ...]) -> np.ndarray:
    """Probability of each training image by logistic regression of its pixels on the true labels, float (n,)."""
    from PIL import Image

    pixels = np.stack([np.asarray(Image.open(images.folder / "train" / key)).ravel() for key in images.keys])
    y = np.isin(images.label, positives)
    return LogisticRegression(max_iter=100).fit(pixels.astype(np.float32) / 255, y).predict_proba(pixels / 255)[:, 1]


def task_of(images: ImageClasses, positives: tuple[str, ...], choice: str, c: float, seed: int) -> Task:
    """All training images, a share c of the positives labelled by a choice; for `NCPU` its sizes."""
    y, draw = np.isin(images.label, positives), np.random.default_rng(seed)
    s, pile = np.zeros(len(y), np.int8), np.ones(len(y), bool)
    rows = np.flatnonzero(y)
    if choice == NCPU:
        kept, negative = (
            draw.permutation(of)[: size // images.part] for of, size in ((rows, 17_000), (np.flatnonzero(~y), 24_000))
        )
        pile = np.isin(np.arange(len(y)), np.concatenate([kept, negative]))
        s[kept[: 1_000 // images.part]] = 1
    else:
        s[rows[CHOICES[choice](by_pixels(images, positives)[rows], round(c * len(rows)), draw)]] = 1
    return images.task(pile, s, np.array(positives))


def measure(at: Location, data: str, choice: str, c: float, seed: int, learner: str) -> dict[str, float]:
    """Figures of one fit on the test images."""
    task = task_of(opened(at).data(GROUPS[data]), POSITIVES[data], choice, c, seed)
    score = LEARNERS[learner].fit(task.X, task.s, Truth(task.prior, task.deploy_prior))
    ranked, called = score(task.X_test)
    y = task.y_test
    quality = (accuracy_score(y, called), f1_score(y, called), roc_auc_score(y, ranked))
    return dict(zip(FIGURES, map(float, quality), strict=True)) | {"labelled": int(task.s.sum())}


def cells(data: list[str], quick: bool) -> list[dict]:
    wanted = [(name, *setting) for name in data for setting in SETTINGS] + [("CIFAR-10", NCPU, 0.0)]
    learners = [DEFAULT] if quick else [DEFAULT, *sorted(PEERS)]
    return [
        {"data": name, "choice": choice, "c": c, "seed": seed, "learner": learner}
        for learner in learners
        for seed in range(1 if quick or learner in FIRST_SEED else SEEDS)
        for name, choice, c in wanted
    ]


def rows_of(fits: list[dict]) -> list[list[str]]:
    """A row for each setting and learner."""
    groups: dict[tuple, list[dict]] = {}
    for fit in fits:
        groups.setdefault((fit["data"], fit["choice"], fit["c"], fit["learner"]), []).append(fit)
    return [
        [data, choice, f"{c:g}" if c else "", f"{np.mean([fit['labelled'] for fit in of]):.0f}", learner, str(len(of))]
        + [spread([fit[name] for fit in of]) for name in FIGURES]
        for (data, choice, c, learner), of in sorted(groups.items())
    ]


def page(fits: list[dict]) -> str:
    head = ["data", "labels", "c", "labelled", "learner", "seeds", *FIGURES]
    told = (
        "Tasks of PU-Bench (ICLR 2026): the training set is the pile, a share c of its positives is labelled, and the "
        "test set is judged by the true labels. S1 labels at random; S2 rather the positives that a logistic "
        "regression of the pixels on the true labels takes for positive, S3 rather the others, S4 in proportion. "
        f"{NCPU} is that of NcPU (ICLR 2026): 1,000 labelled vehicles and 40,000 unlabelled images, 40 % of them "
        "vehicles. pucache is given no prior; uPU and nnPU are given the true one. Where labels are drawn with a bias, "
        "the share that pucache estimates from them is wrong, and so is its threshold; AUC is of the ranking alone. "
        "All learn from the "
        "embeddings of the bundled encoder, which was trained on ImageNet with labels, where the methods of these "
        "papers train networks on the images alone: their published figures (NcPU's task: accuracy 97.36) are "
        "no figures of the same game. Not run: the methods that train networks (VPU, Dist-PU, P3Mix, LBE, Self-PU, "
        "NcPU and others), PU-Bench's other data sets, and its second sampling, in which labelled images are "
        "unlabelled ones too."
    )
    return "\n\n".join(["# PU-Bench's tasks", told, table(head, rows_of(fits)), environment()]) + "\n"


if __name__ == "__main__":
    options = add_jobs(images_parser(__doc__)).parse_args()
    at = Location.of(options)
    data = [name for name, group in GROUPS.items() if group in opened(at).names]
    prepared(at, map(GROUPS.get, data))
    fits = measured(at.work, f"{at.prefix}pu-bench", cells(data, at.quick), partial(measure, at), jobs=options.jobs)
    write_page(page(fits), options.out)
