"""Recipes of pretraining, for a GPU that is lent in slices: a yardstick, candidates of equal seconds, the long run.

    python -m benchmarks.quality.pretrain_recipes rank DIR WORK [--minutes 12] [--only NAME ...]
    python -m benchmarks.quality.pretrain_recipes run DIR WORK [--minutes 9] [--candidate NAME]

DIR is CIFAR-10 as for benchmarks.quality.pretrain. The yardstick comes first: ResNet-18, 100 epochs of SimCLR on the
50,000 training images as published, and the top-1 of weighted kNN on the test images, 83 % as published. Then `rank`
trains a network by each candidate on the authors' pile without labels, for the seconds of 100 epochs of ResNet-18.
Their head is trained on one half of the pile and measured by the true labels of the other half; the test set is not
read for it. Each figure is a line of WORK/*-COMMIT.jsonl as soon as it is known, and not measured again: for a second
slice repeat the command with these files. Nothing is begun in the last two minutes of a slice.
`run` trains by the best candidate on the whole task for about so many minutes, goes on where it was stopped, and opens
the test set at its end (goal: accuracy 95.25, F1 94.0, AUC 99.0). ``--quick --device cpu`` tries either on 1,835
images.
"""

import argparse
import dataclasses
import math
import shutil
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier

from benchmarks.common.cells import measured, table
from benchmarks.common.cifar import is_positive, write_manifest
from benchmarks.common.environment import environment
from benchmarks.quality.pretrain import FIGURES, PAPER, SMALL_BACKBONE, Task, step_speed, usual_rate
from pucache import EmbeddingCache, load_encoder, open_source
from pucache.devices import choose_device
from pucache.embedding.embed import run_embedding
from pucache.heads.minibatch import SGDSettings
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads
from pucache.labels.read_labels import open_labels
from pucache.pretraining import trainer
from pucache.pretraining.augmentations import VIEWS
from pucache.pretraining.network import NetworkConfig
from pucache.pretraining.pretrain import pretrain
from pucache.pretraining.recipes import RECIPES, Recipe

NEIGHBOURS, TEMPERATURE, GOAL = 10, 0.1, 83.0
EPOCHS, LAST_BEGUN = 100, 2.0  # of ResNet-18; minutes before the end of a slice
ROOM = 0.9  # of the minutes of the long run; the rest is for reading and the heads
BASE = dataclasses.replace(RECIPES["modern"], batch_size=512)
# of published recipes for small images: without solarisation, less grey, five times the weight decay
PUBLISHED = {"weight_decay": 5e-4, "warmup": 0.05, "views": "plain"}


def peak(rate: float, batch_size: int = BASE.batch_size) -> dict[str, float]:
    """Settings by which the learning rate rises to `rate`, which a recipe states for batches of 256."""
    return {"lr": rate / math.sqrt(batch_size / 256), "batch_size": batch_size}


# by expected gain; ResNet-50 has 27 epochs in these seconds, too few to rank it
CANDIDATES: dict[str, dict] = {
    "modern": {},
    "published, 0.12": PUBLISHED | peak(0.12),
    "published, 0.24": PUBLISHED | peak(0.24),
    "published, 0.12, temperature 0.2": PUBLISHED | peak(0.12) | {"temperature": 0.2},
    "published, 0.06, four views of half the batch": PUBLISHED | peak(0.06, 256) | {"n_views": 4},
    "published, 0.12, resnet14t": PUBLISHED | peak(0.12) | {"backbone": "resnet14t"},
    "published, 0.12, resnet26": PUBLISHED | peak(0.12) | {"backbone": "resnet26"},
    "published, 0.12, tau-plus 0": PUBLISHED | peak(0.12) | {"tau_plus": 0.0},
    "weight decay 5e-4": {"weight_decay": 5e-4},
    "plain views": {"views": "plain"},
}
YARDSTICK = "published, 0.12, tau-plus 0"
QUICK = ("modern", "published, 0.06, four views of half the batch")


def recipe_of(candidate: str, epochs: int, *, quick: bool) -> Recipe:
    settings = {name: value for name, value in CANDIDATES[candidate].items() if name != "backbone"}
    recipe = dataclasses.replace(BASE, **settings, epochs=epochs)
    return dataclasses.replace(recipe, batch_size=recipe.batch_size // 8) if quick else recipe


def backbone_of(candidate: str, *, quick: bool) -> str:
    return SMALL_BACKBONE if quick else CANDIDATES[candidate].get("backbone", "resnet18")


# --- the yardstick ---------------------------------------------------------------------------------


def knn_accuracy(X: np.ndarray, y: np.ndarray, test: np.ndarray, y_test: np.ndarray) -> float:
    """Top-1 of the nearest rows by cosine, each with weight exp(cosine / 0.1) (Wu et al. 2018)."""
    weights = lambda distances: np.exp((1 - distances) / TEMPERATURE)  # noqa: E731
    knn = KNeighborsClassifier(NEIGHBOURS, weights=weights, metric="cosine", algorithm="brute")
    return float(knn.fit(X, y).score(test, y_test))


def yardstick(candidate: str, length: int, *, folder: Path, options: argparse.Namespace) -> dict:
    """A published result of SimCLR by pucache: all training images, kNN on the test images."""
    run, caches = options.work / "yardstick", []
    for part, few in (("train", 100), ("test", 50)):
        classes = [sorted(path.glob("*.png"))[: few if options.quick else None] for path in (folder / part).iterdir()]
        keys = [str(path.relative_to(folder)) for paths in classes for path in paths]
        manifest = write_manifest(options.work / f"yardstick-{part}.csv", folder, keys)
        if part == "train":
            network = NetworkConfig(backbone_of(candidate, quick=options.quick), size=32)
            recipe = recipe_of(candidate, length, quick=options.quick)
            report = pretrain(manifest, run, network, recipe, device=options.device)
        run_embedding(open_source(manifest), run / f"{part}.h5", load_encoder(str(run), device=options.device))
        caches.append(EmbeddingCache(run / f"{part}.h5"))
    (X, y), (test, y_test) = ((np.asarray(cache.X), [key.split("/")[1] for key in cache.keys]) for cache in caches)
    accuracy = knn_accuracy(X, np.array(y), test, np.array(y_test))
    shutil.rmtree(run)
    return {"kNN": 100 * accuracy, "images": len(X), "test images": len(test), "seconds": report.seconds}


def told_yardstick(found: list[dict]) -> str:
    if not found:
        return "The yardstick is not measured, so nothing here says how good these recipes are; run `rank` first."
    row = found[0]
    verdict = "reached" if row["kNN"] >= GOAL else "missed: what follows compares recipes and claims nothing else"
    sizes = f"{row['images']:,} images, {row['test images']:,} test images"
    return f"Yardstick, {sizes}: kNN top-1 {row['kNN']:.1f} %, published {GOAL:.0f} %: {verdict}."


# --- candidates of equal seconds -------------------------------------------------------------------


def equal_epochs(candidate: str, length: int, task: Task, options: argparse.Namespace) -> int:
    """Epochs that take as long as those of ResNet-18 by the first recipe; the throughputs are measured once."""

    def rate(backbone: str, batch: int, n_views: int) -> dict:
        compiled = choose_device(options.device).type == "cuda"
        speed = step_speed(backbone, options.device, batch=batch, n_views=n_views, compiled=compiled)
        return {"images/s": speed["images/s"]}

    cells = []
    for name in ("modern", candidate):
        recipe = recipe_of(name, length, quick=options.quick)
        backbone = backbone_of(name, quick=options.quick)
        cells.append({"backbone": backbone, "batch": recipe.batch_size, "n_views": recipe.n_views})
    base, own = (measured(task.work, "rates", [cell], rate)[0]["images/s"] for cell in cells)
    return max(1, round(length * own / base))


def held_out_auc(task: Task, encoder: Path, options: argparse.Namespace) -> float:
    """AUC of the authors' head, trained on the even rows of the pile, among the unlabelled odd rows by their truth."""
    cache = encoder / "pile.h5"
    run_embedding(open_source(task.pile), cache, load_encoder(str(encoder), device=options.device))
    pile = EmbeddingCache(cache)
    X, s, y = np.asarray(pile.X), open_labels(pile, task.positives).only.s, is_positive(pile.keys)
    protocol = SGDSettings(epochs=2 if options.quick else 100)
    how = {"solver": "sgd", "sgd_settings": protocol, "risk": PURisk("imbnnpu"), "prior": float(task.prior)}
    heads = fit_heads(X[::2], s[::2], device=options.device, **how)
    hidden = s[1::2] == 0
    return float(roc_auc_score(y[1::2][hidden], heads.margins(X[1::2][hidden])[:, 0]))


def ranked(candidate: str, length: int, *, task: Task, options: argparse.Namespace) -> dict:
    """One candidate: its features on held-out labels."""
    run = task.work / f"rank-{length}-{list(CANDIDATES).index(candidate)}"
    network = NetworkConfig(backbone_of(candidate, quick=options.quick), size=32)
    epochs = equal_epochs(candidate, length, task, options)
    recipe = recipe_of(candidate, epochs, quick=options.quick)
    report = pretrain(task.pile, run, network, recipe, device=options.device)
    auc = held_out_auc(task, run, options)
    shutil.rmtree(run)
    backbone = network.backbone
    return {"held-out AUC": auc, "backbone": backbone, "epochs": epochs, "loss": report.loss, "seconds": report.seconds}


# --- the long run ----------------------------------------------------------------------------------


def long_run(candidate: str, epochs: int, task: Task, options: argparse.Namespace) -> list[str]:
    """One run of the whole task; its heads on the test set once it is finished."""
    backbone, recipe = backbone_of(candidate, quick=options.quick), recipe_of(candidate, epochs, quick=options.quick)
    folder = task.work / f"run-{list(CANDIDATES).index(candidate)}-{epochs}"
    settings = {"device": options.device, "positives": task.positives, "minutes": options.minutes}
    report = pretrain(task.pile, folder, NetworkConfig(backbone, size=32), recipe, **settings)
    if report.steps < report.total:
        return [f"Not finished: step {report.steps} of {report.total}. Run the command again."]
    heads = {"imbnnpu": {"loss": "imbnnpu", "prior": task.prior, "solver": "sgd"}, "default": {}}
    found = task.heads(folder.name, folder, heads, options.device)
    lines = [[head, *(f"{100 * values[figure]:.2f}" for figure in FIGURES)] for head, values in found.items()]
    minutes = report.total * recipe.batch_size / usual_rate(folder) / 60
    told = f"{task.sizes}. {backbone}, {recipe.epochs} epochs by `{candidate}`, {minutes:.1f} minutes; margin 0."
    return [told, table(["head", *FIGURES.values()], lines), PAPER]


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rank", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int, help="of the long run (default: those that fit the minutes)")
    parser.add_argument("--minutes", type=float, help="default: 12 to rank, 9 to run")
    parser.add_argument("--only", nargs="+", choices=CANDIDATES, metavar="CANDIDATE", help="default: all")
    parser.add_argument("--candidate", choices=CANDIDATES, metavar="CANDIDATE", help="default: the best")
    parser.add_argument("--quick", action="store_true", help="a small network on 1,835 images, one epoch")
    options = parser.parse_args(words)
    options.minutes = options.minutes or (12 if options.what == "rank" else 9)
    options.work.mkdir(parents=True, exist_ok=True)
    trainer.COMPILING_REPAYS = 30  # seconds: ResNet-18 compiles in 20, and saves 70 of 160 in 100 epochs
    VIEWS["plain"] = tuple(dataclasses.replace(view, grey=0.1, solarize=0.0) for view in VIEWS["natural"])
    folder, work, length = options.folder.resolve(), options.work, 1 if options.quick else EPOCHS
    task = Task(folder, work, small=options.quick, part=3 if options.quick else 1)
    begin = options.minutes - (0 if options.quick else LAST_BEGUN) if options.what == "rank" else 0
    began = time.monotonic()

    cell = {"candidate": YARDSTICK, "length": length}
    found = measured(work, "yardstick", [cell], partial(yardstick, folder=folder, options=options), minutes=begin)
    print(told_yardstick(found), flush=True)
    names = options.only or (QUICK if options.quick else list(CANDIDATES))
    cells = [{"candidate": name, "length": length} for name in names]
    begin -= (time.monotonic() - began) / 60
    rows = measured(work, "recipes", cells, partial(ranked, task=task, options=options), minutes=begin)
    rows.sort(key=lambda row: -row["held-out AUC"])
    if rows:
        print(table(list(rows[0]), [[_rounded(value) for value in row.values()] for row in rows]))
    if options.what == "rank":
        print(f"{len(cells) - len(rows)} of {len(cells)} candidates are left. {environment()}")
        return
    row = next((row for row in rows if options.candidate in (None, row["candidate"])), None)
    if row is None:
        parser.error("the candidate is not ranked yet; run `rank` with this WORK first")
    epochs = options.epochs or max(1, int(ROOM * row["epochs"] * 60 * options.minutes / row["seconds"]))
    print("\n\n".join(long_run(row["candidate"], length if options.quick else epochs, task, options)))


def _rounded(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


if __name__ == "__main__":
    main(sys.argv[1:])
