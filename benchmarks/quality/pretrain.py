"""Pretraining: gain in feature quality on small images, and the authors' task.

    python -m benchmarks.quality.pretrain DIR WORK [--quick] [--out docs/results/pretrain.md]
    python -m benchmarks.quality.pretrain DIR WORK --backbone resnet50 --epochs 100 --minutes 60    # for a GPU

DIR holds train/<class>/<index>.png and test/<class>/<index>.png of CIFAR-10. timm's `test_resnet` is trained on 5,504
images of the authors' task for each of three seeds, and the same PU head is put on its features before and after. Then
a network is trained on the authors' whole task, with their heads and pucache's: it stops after so many minutes, and
goes on where it was when it is run again.
"""

import argparse
import csv
import dataclasses
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score

from benchmarks.common.cells import spread, table
from benchmarks.common.cifar import HIDDEN, LABELLED, VEHICLES
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.image_classes import write_manifest
from pucache import EmbeddingCache, load_encoder, open_source, train_pu
from pucache.embedding.embed import run_embedding
from pucache.encoders import pretrained_file
from pucache.estimates.metrics import with_labels
from pucache.labels.read_labels import open_labels
from pucache.pretraining.network import NetworkConfig, build_network
from pucache.pretraining.pretrain import pretrain
from pucache.pretraining.recipes import RECIPES

SEEDS, SMALL_BACKBONE = (0, 1, 2), "test_resnet"
FIGURES = {"accuracy": "accuracy", "f1": "F1", "auc": "AUC", "ap": "AP among U"}
RECIPE = dataclasses.replace(RECIPES["modern"], batch_size=128, epochs=10)
SMALL = {"hidden": 100, "labelled": 25, "others": 834, "tested": 300}  # of each class
PAPER = "The paper: contrastive + nnPU 93.1 / 90.7, + imbnnPU 94.3 / 92.5; debiased + nnPU 92.8 / 90.2, + imbnnPU "
PAPER += "95.3 / 94.1 (accuracy / F1), ImPULSeS 95.3 / 94.0 / 99.0; 240 minutes of A100s for each 100 epochs at 224 px."


def split(
    folder: Path,
    *,
    hidden: int = HIDDEN,
    labelled: int = LABELLED,
    others: int | None = None,
    tested: int | None = None,
) -> tuple[list[str], list[str], list[str]]:
    """Keys of the pile, of the labelled positives in it, and of the test set: so many of each class, or all."""
    pile, positives = [], []
    for directory in sorted((folder / "train").iterdir()):
        keys = [f"train/{directory.name}/{path.name}" for path in sorted(directory.iterdir())]
        if directory.name in VEHICLES:
            positives += keys[HIDDEN : HIDDEN + labelled]
            keys = keys[:hidden] + keys[HIDDEN : HIDDEN + labelled]
        pile += keys[:others]
    classes = [sorted(directory.iterdir())[:tested] for directory in sorted((folder / "test").iterdir())]
    return pile, positives, [path.relative_to(folder).as_posix() for paths in classes for path in paths]


def is_positive(keys) -> np.ndarray:
    return np.array([key.split("/")[-2] in VEHICLES for key in keys])


class Task:
    """A pile with labelled positives, and a test set, as manifests of the CIFAR folder."""

    def __init__(self, folder: Path, work: Path, *, small: bool):
        pile, labelled, test = split(folder, **(SMALL if small else {}))
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
    recipe = dataclasses.replace(RECIPE, epochs=1) if options.quick else RECIPE
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


def main() -> None:
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backbone", default=SMALL_BACKBONE, help="of the authors' task (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="of the authors' task (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=15, help="of the authors' task (default: %(default)s)")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    folder, work = options.folder.resolve(), options.work
    sections = ["# Pretraining, small", *gains(folder, work, options)]
    sections += ["## The authors' task", *authors_task(folder, work, options)]
    write_page("\n\n".join([*sections, environment()]) + "\n", options.out)


if __name__ == "__main__":
    main()
