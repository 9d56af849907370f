"""Recipes of pretraining for a GPU: candidates by short runs, and the one long run of the authors' task.

    python -m benchmarks.quality.pretrain_recipes rank DIR WORK [--epochs 100] [--minutes 10] [--only NAME ...]
    python -m benchmarks.quality.pretrain_recipes run DIR WORK [--candidate NAME] [--epochs 150] [--minutes 9]

DIR is CIFAR-10 as for benchmarks.quality.pretrain. `rank` trains a network by each candidate on the pile without
labels: ResNet-18 for 100 epochs, as the best rate depends on the length. The authors' head is trained on one half of
the pile and measured by the true labels of the other half; the test set is never read. Each finished candidate is a
line of WORK/recipes-COMMIT.jsonl and is not run again.
`run` trains by one candidate on the whole task, goes on where it was stopped, and opens the test set at its end (goal:
accuracy 95.25, F1 94.0, AUC 99.0). ``--quick --device cpu`` tries either on a few thousand images.
"""

import argparse
import dataclasses
import math
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.common.cells import measured, table
from benchmarks.common.cifar import is_positive
from benchmarks.quality.pretrain import FIGURES, PAPER, SMALL_BACKBONE, Task, usual_rate
from pucache import EmbeddingCache, load_encoder, open_source
from pucache.embedding.embed import run_embedding
from pucache.heads.minibatch import SGDSettings
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads
from pucache.labels.read_labels import open_labels
from pucache.pretraining.augmentations import VIEWS
from pucache.pretraining.network import NetworkConfig
from pucache.pretraining.pretrain import pretrain
from pucache.pretraining.recipes import RECIPES, Recipe

STRONG = {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}  # SimCLR's full colour strength
BASE = dataclasses.replace(RECIPES["modern"], batch_size=512)
# of published recipes for small images: without solarisation, less grey, five times the weight decay
PUBLISHED = {"weight_decay": 5e-4, "warmup": 0.05, "views": "plain"}


def peak(rate: float, batch_size: int = BASE.batch_size) -> dict[str, float]:
    """Settings by which the learning rate rises to `rate`, which a recipe states for batches of 256."""
    return {"lr": rate / math.sqrt(batch_size / 256), "batch_size": batch_size}


CANDIDATES: dict[str, dict] = {
    "modern": {},
    "weight decay 5e-4": {"weight_decay": 5e-4},
    "plain views": {"views": "plain"},
    "published, 0.12": PUBLISHED | peak(0.12),
    "published, 0.24": PUBLISHED | peak(0.24),
    "published, 0.06, four views of half the batch": PUBLISHED | peak(0.06, 256) | {"n_views": 4},
    "published, 0.12, resnet50": PUBLISHED | peak(0.12) | {"backbone": "resnet50"},
    "published, 0.12, resnet26": PUBLISHED | peak(0.12) | {"backbone": "resnet26"},
    "published, 0.12, resnet14t": PUBLISHED | peak(0.12) | {"backbone": "resnet14t"},
    "lr 0.12": {"lr": 0.12},
    "lr 0.25": {"lr": 0.25},
    "lr 0.5": {"lr": 0.5},
    "temperature 0.2": {"temperature": 0.2},
    "tau-plus 0": {"tau_plus": 0.0},
    "strong colours": {"views": "strong"},
    "views of impulses": {"views": "impulses"},
    "warm-up 5 %": {"warmup": 0.05},
    "batch 256": {"batch_size": 256},
    "batch 1024": {"batch_size": 1024},
    "lr 0.25, temperature 0.2": {"lr": 0.25, "temperature": 0.2},
    "lr 0.25, temperature 0.2, strong colours": {"lr": 0.25, "temperature": 0.2, "views": "strong"},
    "lr 0.25, temperature 0.2, strong colours, batch 1024": {
        "lr": 0.25, "temperature": 0.2, "views": "strong", "batch_size": 1024,
    },
}  # fmt: skip


def add_views() -> None:
    """Add natural views that no option of `pretrain` names: of SimCLR's full colour strength, and plain ones."""
    VIEWS["strong"] = tuple(dataclasses.replace(view, **STRONG) for view in VIEWS["natural"])
    VIEWS["plain"] = tuple(dataclasses.replace(view, grey=0.1, solarize=0.0) for view in VIEWS["natural"])


def recipe_of(candidate: str, options: argparse.Namespace) -> Recipe:
    settings = {name: value for name, value in CANDIDATES[candidate].items() if name != "backbone"}
    recipe = dataclasses.replace(BASE, **settings, epochs=options.epochs)
    return dataclasses.replace(recipe, batch_size=recipe.batch_size // 8) if options.quick else recipe


def backbone_of(candidate: str, options: argparse.Namespace) -> str:
    """That of --backbone, else the candidate's own."""
    default = "resnet18" if options.what == "rank" else "resnet50"
    return options.backbone or CANDIDATES[candidate].get("backbone", default)


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


def ranked(candidate: str, backbone: str, epochs: int, *, task: Task, options: argparse.Namespace) -> dict:
    """One candidate: a short run, and its features on held-out labels."""
    run = task.work / f"rank-{backbone}-{epochs}-{list(CANDIDATES).index(candidate)}"
    report = pretrain(
        task.pile, run, NetworkConfig(backbone, size=32), recipe_of(candidate, options), device=options.device
    )
    auc = held_out_auc(task, run, options)
    shutil.rmtree(run)
    return {"held-out AUC": auc, "loss": report.loss, "images/s": report.images_per_second, "seconds": report.seconds}


def rank(task: Task, options: argparse.Namespace) -> list[str]:
    """All candidates that the time permits, best first."""
    cells = [
        {"candidate": name, "backbone": backbone_of(name, options), "epochs": options.epochs} for name in options.only
    ]
    measure = partial(ranked, task=task, options=options)
    rows = measured(task.work, "recipes", cells, measure, minutes=options.minutes)
    rows.sort(key=lambda row: -row["held-out AUC"])
    names = ["candidate", "backbone", "held-out AUC", "loss", "images/s", "seconds"]
    lines = [[f"{row[name]:.4g}" if isinstance(row[name], float) else row[name] for name in names] for row in rows]
    left = f"{len(cells) - len(rows)} of {len(cells)} candidates are left; run the command again."
    return [table(names, lines), left if len(rows) < len(cells) else f"{options.epochs} epochs."]


def long_run(task: Task, options: argparse.Namespace) -> list[str]:
    """One run of the whole task; its heads on the test set once it is finished."""
    backbone = backbone_of(options.candidate, options)
    folder = task.work / f"run-{backbone}-{options.epochs}"
    recipe = recipe_of(options.candidate, options)
    settings = {"device": options.device, "positives": task.positives, "minutes": options.minutes}
    report = pretrain(task.pile, folder, NetworkConfig(backbone, size=32), recipe, **settings)
    if report.steps < report.total:
        return [f"Not finished: step {report.steps} of {report.total}. Run the command again."]
    heads = {"imbnnpu": {"loss": "imbnnpu", "prior": task.prior, "solver": "sgd"}, "default": {}}
    found = task.heads(folder.name, folder, heads, options.device)
    lines = [[head, *(f"{100 * values[figure]:.2f}" for figure in FIGURES)] for head, values in found.items()]
    minutes = report.total * recipe.batch_size / usual_rate(folder) / 60
    told = f"{task.sizes}. {backbone}, {recipe.epochs} epochs by `{options.candidate}`, {minutes:.1f} minutes."
    return [told, table(["head", *FIGURES.values()], lines), PAPER]


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rank", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backbone", help="default: that of the candidate, else resnet18 to rank, resnet50 to run")
    parser.add_argument("--epochs", type=int, help="default: 100 to rank, 150 to run")
    parser.add_argument("--minutes", type=float, help="default: 10 to rank, 9 to run")
    parser.add_argument("--only", nargs="+", default=list(CANDIDATES), choices=CANDIDATES, metavar="CANDIDATE")
    parser.add_argument("--candidate", default="modern", choices=CANDIDATES, metavar="CANDIDATE")
    parser.add_argument("--quick", action="store_true", help="a small network on a few thousand images, one epoch")
    options = parser.parse_args(words)
    defaults = (1 if options.quick else 100, 10.0) if options.what == "rank" else (1 if options.quick else 150, 9.0)
    options.epochs, options.minutes = options.epochs or defaults[0], options.minutes or defaults[1]
    options.backbone = options.backbone or (SMALL_BACKBONE if options.quick else None)
    options.work.mkdir(parents=True, exist_ok=True)
    add_views()
    task = Task(options.folder.resolve(), options.work, small=options.quick)
    print("\n\n".join(rank(task, options) if options.what == "rank" else long_run(task, options)))


if __name__ == "__main__":
    main(sys.argv[1:])
