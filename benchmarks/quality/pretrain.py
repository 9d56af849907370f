"""Pretraining: gain in feature quality on small images, the authors' task, and the speed of a step.

    python -m benchmarks.quality.pretrain DIR WORK [--quick] [--out docs/results/pretrain.md]
    python -m benchmarks.quality.pretrain DIR WORK --backbone resnet50 --epochs 100 --minutes 60    # for a GPU

DIR holds train/<class>/<index>.png and test/<class>/<index>.png of CIFAR-10. timm's `test_resnet` is trained on 5,504
images of the authors' task for each of three seeds, and the same PU head is put on its features before and after. Then
a network is trained on the authors' whole task, with their heads and pucache's: it stops after so many minutes, and
goes on where it was when it is run again. Last, a step of it beside the matrix rate of the device.
"""

import argparse
import csv
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from benchmarks.common.cells import spread, table
from benchmarks.common.cifar import is_positive, split, write_manifest
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from pucache import EmbeddingCache, load_encoder, open_source, train_pu
from pucache.allocator import keep_freed_memory
from pucache.devices import choose_device, choose_training_precision, torch_dtype
from pucache.embedding.embed import run_embedding
from pucache.encoders import pretrained_file
from pucache.estimates.metrics import with_labels
from pucache.labels.read_labels import open_labels
from pucache.pretraining.augmentations import VIEWS, Augment, random_numbers
from pucache.pretraining.network import NetworkConfig, build_network
from pucache.pretraining.pretrain import pretrain
from pucache.pretraining.recipes import RECIPES, Recipe
from pucache.pretraining.train_step import Training

SEEDS, SMALL_BACKBONE = (0, 1, 2), "test_resnet"
FIGURES = {"accuracy": "accuracy", "f1": "F1", "auc": "AUC", "ap": "AP among U"}
SMALL = dataclasses.replace(RECIPES["modern"], batch_size=128, epochs=10)
SMALL_VEHICLES, SMALL_LABELLED, SMALL_ANIMALS, SMALL_TEST = 125, 25, 834, 300  # of each class
PAPER = "The paper: contrastive + nnPU 93.1 / 90.7, + imbnnPU 94.3 / 92.5; debiased + nnPU 92.8 / 90.2, + imbnnPU "
PAPER += "95.3 / 94.1 (accuracy / F1), ImPULSeS 95.3 / 94.0 / 99.0; 240 minutes of A100s for each 100 epochs at 224 px."


class Task:
    """A pile with labelled positives, and a test set, as manifests of the CIFAR folder; one image in `part`."""

    def __init__(self, folder: Path, work: Path, *, small: bool, part: int = 1):
        pile, labelled, test = split(folder)
        if small:
            pile, labelled, test = _fewer(pile, labelled, test)
        pile, test = pile[::part], test[::part]
        labelled = sorted(set(labelled) & set(pile))
        self.work, self.prior = work, is_positive([key for key in pile if key not in set(labelled)]).mean()
        self.pile = write_manifest(work / "pile.csv", folder, pile)
        self.test = write_manifest(work / "test.csv", folder, test)
        self.positives = work / "positives.txt"
        self.positives.write_text("\n".join(labelled) + "\n")
        self.sizes = f"{len(pile):,} images, {len(labelled)} labelled; {len(test):,} test images"

    def heads(self, name: str, encoder: str | Path, settings: dict[str, dict], device: str) -> dict[str, dict]:
        """Embed with an encoder, train each head, and measure it on the test set at margin 0."""
        loaded = load_encoder(str(encoder), device=device)
        caches = []
        for manifest in (self.pile, self.test):
            path = self.work / f"{name}-{manifest.stem}.h5"
            path.unlink(missing_ok=True)
            run_embedding(open_source(manifest), path, loaded)
            caches.append(EmbeddingCache(path))
        pile, test = caches
        s, y = open_labels(pile, self.positives).only.s, is_positive(pile.keys)
        by_head = {}
        for head, setting in settings.items():
            model = train_pu(pile, s, device=device, **setting)
            margins = model.margins(test.X)
            figures = with_labels(is_positive(test.keys).astype(int), margins, (margins > 0).astype(int))
            hidden = average_precision_score(y[s == 0], model.margins(np.asarray(pile.X)[s == 0]))
            by_head[head] = {**{name: figures[name] for name in ("accuracy", "f1", "auc")}, "ap": float(hidden)}
        return by_head


def _fewer(pile: list[str], labelled: list[str], test: list[str]) -> tuple[list[str], list[str], list[str]]:
    def first(keys: list[str], count: Callable[[str], int]) -> list[str]:
        seen: dict[str, int] = {}
        kept = []
        for key in keys:
            name = key.split("/")[1]
            seen[name] = seen.get(name, 0) + 1
            if seen[name] <= count(name):
                kept.append(key)
        return kept

    marked = set(labelled)
    hidden = first([key for key in pile if key not in marked], lambda name: _of_class(name) - _marked(name))
    labelled = first(labelled, _marked)
    return sorted(hidden + labelled), labelled, first(test, lambda name: SMALL_TEST)


def _of_class(name: str) -> int:
    return SMALL_VEHICLES if is_positive([f"train/{name}/0"])[0] else SMALL_ANIMALS


def _marked(name: str) -> int:
    return SMALL_LABELLED if is_positive([f"train/{name}/0"])[0] else 0


def untrained(path: Path, backbone: str, seed: int) -> Path:
    """An encoder with the weights that a training of this seed begins with."""
    network = build_network(NetworkConfig(backbone, size=32), norm=True, seed=seed)
    path.mkdir(parents=True, exist_ok=True)
    pretrained_file.write(path / pretrained_file.NAME, network.backbone, network.description)
    return path


def gains(folder: Path, work: Path, options: argparse.Namespace) -> list[str]:
    """Seeds of a small network on a few thousand images: the page's first part."""
    task, device = Task(folder, work, small=True), options.device
    seeds = SEEDS[:1] if options.quick else SEEDS
    recipe = dataclasses.replace(SMALL, epochs=1) if options.quick else SMALL
    network = NetworkConfig(SMALL_BACKBONE, size=32)
    rows: dict[str, list[dict]] = {"untrained": [], "pretrained": []}
    reports = []
    for seed in seeds:
        run = work / f"small-{seed}"
        reports.append(pretrain(task.pile, run, network, recipe, seed=seed, device=device, positives=task.positives))
        before = untrained(work / f"untrained-{seed}", SMALL_BACKBONE, seed)
        for name, encoder in (("untrained", before), ("pretrained", run)):
            rows[name].append(task.heads(name, encoder, {"head": {"seed": seed}}, device)["head"])
    rises = [100 * (after["auc"] - before["auc"]) for before, after in zip(*rows.values(), strict=True)]
    lines = [[name, *(spread([row[figure] for row in found]) for figure in FIGURES)] for name, found in rows.items()]
    probes = ", ".join(f"{report.probe_before:.3f} to {report.probe:.3f}" for report in reports)
    return [
        f"`python -m benchmarks.quality.pretrain DIR WORK`: {task.sizes} (CIFAR-10, {task.prior:.1%} of the unlabelled "
        f"are vehicles). timm's {SMALL_BACKBONE} (0.4 million weights) with a small stem at 32 px, {recipe.epochs} "
        f"epochs of the modern recipe in batches of {recipe.batch_size}; then the default head of pucache, on the "
        f"features before and after. Seeds {seeds}, mean ± sd, in %, at margin 0.",
        table([f"features of {SMALL_BACKBONE}", *FIGURES.values()], lines),
        f"AUC rises by {', '.join(f'{rise:.1f}' for rise in rises)} points. The probe that `pretrain` itself shows "
        f"(held-out PAUC of the labelled): {probes}. Pretraining took "
        f"{', '.join(f'{report.seconds:.0f}' for report in reports)} s.",
    ]


def authors_task(folder: Path, work: Path, options: argparse.Namespace) -> list[str]:
    """The debiased loss on the whole task, then each head on the test set; nothing where it is not finished."""
    backbone, device = options.backbone, options.device
    epochs = 1 if options.quick else options.epochs
    task, run = Task(folder, work, small=options.quick), work / f"{backbone}-{epochs}"
    recipe = dataclasses.replace(RECIPES["modern"], epochs=epochs, batch_size=512)
    settings = {"device": device, "positives": task.positives}
    network = NetworkConfig(backbone, size=32)
    report = pretrain(task.pile, run, network, recipe, minutes=options.minutes, **settings)
    if report.steps < report.total:
        return [f"Not finished: step {report.steps} of {report.total}. Run the command again."]
    authors = {"prior": task.prior, "solver": "sgd"}
    heads = {"imbnnpu": {"loss": "imbnnpu", **authors}, "nnpu": {"loss": "nnpu", **authors}, "default": {}}
    lines = [
        [head, *(f"{100 * metrics[figure]:.2f}" for figure in FIGURES)]
        for head, metrics in task.heads(run.name, run, heads, device).items()
    ]
    return [
        f"{task.sizes}. {backbone}, {epochs} epochs with the debiased loss (tau-plus {recipe.tau_plus}), one seed, "
        f"{report.total * recipe.batch_size / usual_rate(run) / 60:.1f} minutes; margin 0. `imbnnpu` and `nnpu` are "
        "the authors' heads (Adam, 100 epochs, raw features, true prior), `default` is pucache's, given no prior.",
        table(["head", *FIGURES.values()], lines),
        PAPER,
    ]


def usual_rate(run: Path) -> float:
    """Median images per second over the rows of a log; the first holds compiling and tuning, the last may be short."""
    with (run / "log.csv").open(newline="") as stream:
        rates = [float(row["images_per_second"]) for row in csv.DictReader(stream) if row["images_per_second"]]
    return float(np.median(rates))


def timed(call: Callable[[], object], device: torch.device, least: float = 2.0) -> float:
    """Median seconds of a call, over at least five times about so many seconds, after a few to warm up.

    On a GPU ten calls stand between two waits for it, as training does not wait either.
    """
    on_gpu = device.type == "cuda"
    together = 10 if on_gpu else 1
    took: list[float] = []
    for _ in range(200):
        began = time.perf_counter()
        for _ in range(together):
            call()
        if on_gpu:
            torch.cuda.synchronize(device)
        took.append((time.perf_counter() - began) / together)
        if len(took) >= 7 and together * sum(took[2:]) > least:
            break
    return float(np.median(took[2:]))


def step_speed(
    backbone: str, device: str, *, batch: int, n_views: int = 2, size: int = 32, compiled: bool = False
) -> dict:
    """A step, compiled or not, against the matrix rate of the device, and the input against the step."""
    where = choose_device(device)
    dtype = torch_dtype(choose_training_precision("auto", where))
    recipe: Recipe = dataclasses.replace(RECIPES["modern"], batch_size=batch, n_views=n_views)
    network = build_network(NetworkConfig(backbone, size=size), norm=True, seed=0)
    flops = 3 * recipe.n_views * batch * forward_flops(network, size)  # backward costs twice the forward pass
    images = torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8, device=where)
    training = Training(network, recipe, images=4 * batch, seed=0, device=where, dtype=dtype)
    augment = Augment(VIEWS["natural"], size, where)
    began = time.perf_counter()
    if compiled:
        training.compile(0, images)
    compiling = time.perf_counter() - began
    step = timed(lambda: training.step(0, images), where)
    views = timed(lambda: augment(images, random_numbers(0, 0, images=batch, views=n_views).to(where)), where)
    store = np.random.default_rng(0).integers(0, 256, (33_000, size, size, 3), np.uint8)
    rows = np.random.default_rng(1).permutation(33_000)[:batch]
    gather = timed(lambda: torch.from_numpy(store[rows]), where)
    side = 8192 if where.type == "cuda" else 2048
    A = torch.randn(side, side, device=where).to(dtype)
    rate = 2 * side**3 / timed(lambda: A @ A, where)
    return {
        "backbone": backbone,
        "batch": batch,
        "precision": str(dtype),
        "images/s": batch / step,
        "step, ms": 1e3 * step,
        "compiling, s": compiling,
        "views of it": views / step,
        "gathering of it": gather / step,
        "matrix rate, Tflop/s": rate / 1e12,
        "share of it": flops / step / rate,
        "100 epochs of 33,000, minutes": 100 * (33_000 // batch) * step / 60,
    }


def forward_flops(network: torch.nn.Module, size: int) -> float:
    """Of one view."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.eval()(torch.zeros(1, 3, size, size))
    return float(counter.get_total_flops())


def speed(options: argparse.Namespace) -> list[str]:
    """A step of the network."""
    keep_freed_memory()  # as `pretrain` does
    on_gpu = choose_device(options.device).type == "cuda"
    step = step_speed(options.backbone, options.device, batch=512 if on_gpu else 256)
    shown = [f"{value:.3g}" if isinstance(value, float) else value for value in step.values()]
    return [
        "32 px, small stem, two views, modern recipe; medians. *Views of it* and *gathering of it* are the two halves "
        "of the input as shares of the step. *Share of it*: the multiplications of the network, thrice those forward, "
        "per second, over those of a large square product in the same run.",
        table(list(step), [shown]),
    ]


def main() -> None:
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backbone", default=SMALL_BACKBONE, help="of the authors' task (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="of the authors' task (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=15, help="of the authors' task (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one seed and one epoch on a few thousand images")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    folder, work = options.folder.resolve(), options.work
    sections = ["# Pretraining, small", *gains(folder, work, options)]
    sections += ["## The authors' task", *authors_task(folder, work, options), "## Speed", *speed(options)]
    write_page("\n\n".join([*sections, environment()]) + "\n", options.out)


if __name__ == "__main__":
    main()
