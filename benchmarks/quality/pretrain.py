"""Pretraining: gain in feature quality, and training speed.

    python -m benchmarks.quality.pretrain DIR WORK [--out docs/results/pretrain.md]    # small, for a CPU: 5 minutes
    python -m benchmarks.quality.pretrain DIR WORK --speed [--out docs/results/pretrain-speed.md]
    python -m benchmarks.quality.pretrain DIR WORK --whole [--minutes 9] [--backbones resnet18,resnet50] [--epochs 100]

DIR holds train/<class>/<index>.png and test/<class>/<index>.png of CIFAR-10. The small version trains
timm's `test_resnet` on 5,504 images of the authors' task for each of three seeds and puts the same PU
head on its features before and after. `--whole` is the authors' task with their networks, for a GPU:
contrastive and debiased pretraining, imbnnPU and nnPU heads; it stops after so many minutes, and goes
on where it was when it is run again. `--speed` holds a step against the matrix rate of the device, the
input against the step, and both against what people would write.
"""

import csv
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from benchmarks.common.cells import spread
from benchmarks.common.cifar import is_positive, split, write_manifest
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from pucache import EmbeddingCache, load_encoder, open_source, train_pu
from pucache.allocator import keep_freed_memory
from pucache.devices import choose_device, choose_training_precision, torch_dtype
from pucache.embedding.embed import run_embedding
from pucache.encoders import pretrained_file
from pucache.estimates.metrics import with_labels
from pucache.labels.labels import Labels
from pucache.pretraining.augmentations import VIEWS, Augment, random_numbers
from pucache.pretraining.network import NetworkConfig, build_network
from pucache.pretraining.pretrain import pretrain
from pucache.pretraining.recipes import RECIPES, Recipe
from pucache.pretraining.train_step import Training

SEEDS = (0, 1, 2)
SMALL = dataclasses.replace(RECIPES["modern"], batch_size=128, epochs=10)
SMALL_VEHICLES, SMALL_LABELLED, SMALL_ANIMALS, SMALL_TEST = 125, 25, 834, 300  # of each class
PAPER = "The paper: contrastive + nnPU 93.1 / 90.7, + imbnnPU 94.3 / 92.5; debiased + nnPU 92.8 / 90.2, + imbnnPU "
PAPER += "95.3 / 94.1 (accuracy / F1), ImPULSeS 95.3 / 94.0 / 99.0; 240 minutes of A100s for each 100 epochs at 224 px."


class Task:
    """A pile with labelled positives, and a test set, as manifests of the CIFAR folder."""

    def __init__(self, folder: Path, work: Path, *, small: bool):
        pile, labelled, test = split(folder)
        if small:
            pile, labelled, test = _fewer(pile, labelled, test)
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
        s, y = Labels.read(pile, self.positives).s, is_positive(pile.keys)
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
    network = build_network(NetworkConfig(backbone, stem="small", size=32), norm=True, seed=seed)
    path.mkdir(parents=True, exist_ok=True)
    pretrained_file.write(path / pretrained_file.NAME, network.backbone, network.description)
    return path


# --- the small version -----------------------------------------------------------------------------


def small(folder: Path, work: Path, device: str) -> str:
    """Three seeds of a small network on a few thousand images."""
    task = Task(folder, work, small=True)
    rows: dict[str, list[dict]] = {"untrained": [], "pretrained": []}
    probes, seconds = [], []
    for seed in SEEDS:
        run = work / f"small-{seed}"
        report = pretrain(
            task.pile,
            run,
            NetworkConfig("test_resnet", stem="small", size=32),
            SMALL,
            seed=seed,
            device=device,
            positives=task.positives,
        )
        probes.append((report.probe_before, report.probe))
        seconds.append(report.seconds)
        default = {"head": {"seed": seed}}
        rows["untrained"].append(
            task.heads("untrained", untrained(work / f"untrained-{seed}", "test_resnet", seed), default, device)["head"]
        )
        rows["pretrained"].append(task.heads("pretrained", run, default, device)["head"])
    gains = [
        100 * (after["auc"] - before["auc"])
        for before, after in zip(rows["untrained"], rows["pretrained"], strict=True)
    ]
    lines = ["| features of test_resnet | accuracy | F1 | AUC | AP among U |", "|---|---|---|---|---|"]
    for name, metrics in rows.items():
        figures = [spread([row[metric] for row in metrics]) for metric in ("accuracy", "f1", "auc", "ap")]
        lines.append(f"| {name} | {' | '.join(figures)} |")
    return "\n".join(
        [
            "# Pretraining, small",
            "",
            f"`python -m benchmarks.quality.pretrain DIR WORK`: {task.sizes} (CIFAR-10, {task.prior:.1%} of the "
            "unlabelled are vehicles). timm's test_resnet (0.4 million weights) with a small stem at 32 px, "
            f"{SMALL.epochs} epochs of the modern recipe in batches of {SMALL.batch_size}; then the default head of "
            f"pucache, on the features before and after. Seeds {SEEDS}, mean ± sd, in %, at margin 0.",
            "",
            *lines,
            "",
            f"AUC rises by {', '.join(f'{gain:.1f}' for gain in gains)} points. The probe that `pretrain` itself shows "
            f"(held-out PAUC of the labelled): {', '.join(f'{a:.3f} to {b:.3f}' for a, b in probes)}. Pretraining took "
            f"{', '.join(f'{x:.0f}' for x in seconds)} s.",
            "",
            environment(),
            "",
        ]
    )


# --- the authors' task -----------------------------------------------------------------------------


LOSSES = {"debiased": 0.1, "contrastive": 0.0}  # to tau_plus


def whole(folder: Path, work: Path, device: str, backbones: list[str], epochs: int, minutes: float) -> str:
    """The authors' rows; finished rows are kept in WORK/whole.jsonl, unfinished ones are resumed."""
    until = time.monotonic() + 60 * minutes
    task = Task(folder, work, small=False)
    path = work / "whole.jsonl"
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for backbone in backbones:
        for loss in LOSSES:
            left = (until - time.monotonic()) / 60
            if any(row["name"] == f"{backbone}-{loss}-{epochs}" for row in done) or left <= 0:
                continue
            row = authors_row(task, backbone, loss, device=device, epochs=epochs, minutes=left)
            if row is None:
                break
            done.append(row)
            with path.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
    return _whole_table(task, done)


def authors_row(
    task: Task, backbone: str, loss: str, *, device: str, epochs: int, minutes: float, batch_size: int = 512
) -> dict | None:
    """Pretraining with one loss, then each head on the test set; None where the minutes end before it is finished."""
    name = f"{backbone}-{loss}-{epochs}"
    recipe = dataclasses.replace(RECIPES["modern"], epochs=epochs, batch_size=batch_size, tau_plus=LOSSES[loss])
    network = NetworkConfig(backbone, stem="small", size=32)
    settings = {"device": device, "positives": task.positives}
    report = pretrain(task.pile, task.work / name, network, recipe, minutes=minutes, **settings)
    print(f"{name}: step {report.steps} of {report.total}, {report.images_per_second:.0f} images/s", flush=True)
    if report.steps < report.total:
        return None
    authors = {"prior": task.prior, "solver": "sgd"}
    heads = {"imbnnpu": {"loss": "imbnnpu", **authors}, "nnpu": {"loss": "nnpu", **authors}, "default": {}}
    rate = usual_rate(task.work / name)
    return {
        "name": name,
        "images/s": rate,
        "minutes": report.total * recipe.batch_size / rate / 60,
        "probe": [report.probe_before, report.probe],
        "heads": task.heads(name, task.work / name, heads, device),
        "where": environment(),
    }


def usual_rate(run: Path) -> float:
    """Median images per second over the rows of a log; the first holds compiling and tuning, the last may be short."""
    with (run / "log.csv").open(newline="") as stream:
        rates = [float(row["images_per_second"]) for row in csv.DictReader(stream) if row["images_per_second"]]
    return float(np.median(rates))


def _whole_table(task: Task, done: list[dict]) -> str:
    lines = ["| pretraining | head | accuracy | F1 | AUC | AP among U | minutes |", "|---|---|---|---|---|---|---|"]
    for row in done:
        for head, metrics in row["heads"].items():
            figures = [f"{100 * metrics[metric]:.2f}" for metric in ("accuracy", "f1", "auc", "ap")]
            lines.append(f"| {row['name']} | {head} | {' | '.join(figures)} | {row['minutes']:.1f} |")
    wheres = sorted({row["where"] for row in done}) or ["Nothing is finished yet."]
    head = [
        "# Pretraining on the authors' task",
        "",
        f"`python -m benchmarks.quality.pretrain DIR WORK --whole`: {task.sizes}.",
    ]
    return "\n".join([*head, "", *lines, "", PAPER, "", *wheres, ""])


# --- speed -----------------------------------------------------------------------------------------


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


def step_speed(backbone: str, device: str, *, batch: int, size: int = 32) -> dict:
    """A step against the matrix rate of the device, and the input against the step."""
    where = choose_device(device)
    dtype = torch_dtype(choose_training_precision("auto", where))
    recipe: Recipe = dataclasses.replace(RECIPES["modern"], batch_size=batch)
    network = build_network(NetworkConfig(backbone, stem="small", size=size), norm=True, seed=0)
    flops = 3 * recipe.n_views * batch * forward_flops(network, size)  # backward costs twice the forward pass
    images = torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8, device=where)
    training = Training(network, recipe, images=4 * batch, seed=0, device=where, dtype=dtype)
    augment = Augment(VIEWS["natural"], size)
    step = timed(lambda: training.step(0, images), where)
    views = timed(lambda: augment(images, random_numbers(0, 0, images=batch, views=2).to(where)), where)
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


def others_views(device: str, size: int, batch: int) -> dict[str, float]:
    """Views per second of the authors' set: ours, kornia's, and torchvision's of one image after the other."""
    from torchvision.transforms import v2

    where = choose_device(device)
    images = torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8, device=where)
    ours = Augment(VIEWS["impulses"], size)

    def random_views(views: int) -> torch.Tensor:
        return random_numbers(0, 0, images=batch, views=views)

    rates = {"pucache": batch / timed(lambda: ours(images, random_views(1).to(where)), where)}
    chain = v2.Compose(
        [
            v2.RandomResizedCrop(size, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
            v2.RandomGrayscale(0.2),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    channels_first = images.permute(0, 3, 1, 2).contiguous()
    rates["torchvision, an image at a time"] = batch / timed(lambda: [chain(image) for image in channels_first], where)
    try:
        from kornia import augmentation as K
    except ImportError:
        return rates
    theirs = K.AugmentationSequential(
        K.RandomResizedCrop((size, size), resample="bilinear", cropping_mode="resample"),
        K.RandomHorizontalFlip(),
        K.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8),
        K.RandomGrayscale(p=0.2),
    )
    rates["kornia"] = batch / timed(lambda: theirs(channels_first.float() / 255), where)
    return rates


def plain_loop(folder: Path, backbone: str, device: str, *, batch: int, images: int) -> float:
    """Images per second of what people write first: PIL, torchvision's transforms, a DataLoader, float32."""
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision.transforms import v2

    where = choose_device(device)
    files = sorted(folder.rglob("*.png"))[:images]
    chain = v2.Compose(
        [
            v2.RandomResizedCrop(32),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
            v2.RandomGrayscale(0.2),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )

    class Views(Dataset):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            image = Image.open(files[index]).convert("RGB")
            return chain(image), chain(image)

    network = build_network(NetworkConfig(backbone, stem="small", size=32), norm=False, seed=0).to(where).train()
    optimizer = torch.optim.Adam(network.parameters(), 3e-4)
    loader = DataLoader(
        Views(), batch_size=batch, shuffle=True, drop_last=True, num_workers=min(16, torch.get_num_threads())
    )
    began, seen = 0.0, 0
    for number, (first, second) in enumerate(loader):
        if number == 2:
            if where.type == "cuda":
                torch.cuda.synchronize(where)
            began = time.perf_counter()
        z = torch.nn.functional.normalize(network(torch.cat([first, second]).to(where)))
        logits = (z @ z.T / 0.5).fill_diagonal_(-torch.inf)
        other = torch.arange(2 * batch, device=where).roll(batch)
        loss = torch.nn.functional.cross_entropy(logits, other)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += batch if number >= 2 else 0
    if where.type == "cuda":
        torch.cuda.synchronize(where)
    return seen / (time.perf_counter() - began)


def speed(folder: Path, device: str) -> str:
    """All of it, as a page."""
    small_network, count = "test_resnet", 4096
    plain = plain_loop(folder / "train", small_network, device, batch=256, images=count)  # as such a process starts
    keep_freed_memory()  # as `pretrain` does
    on_gpu = choose_device(device).type == "cuda"
    batches = {"test_resnet": 256, "resnet18": 512 if on_gpu else 64, "resnet50": 512 if on_gpu else 32}
    rows = [step_speed(name, device, batch=batch) for name, batch in batches.items()]
    lines = [f"| {' | '.join(rows[0])} |", "|" + "---|" * len(rows[0])]
    lines += [f"| {' | '.join(f'{x:.3g}' if isinstance(x, float) else str(x) for x in row.values())} |" for row in rows]
    views = {size: others_views(device, size, batch) for size, batch in ((32, 256), (224, 16))}
    table = ["| views/s | " + " | ".join(f"{size} px" for size in views) + " |", "|---|---|---|"]
    table += [f"| {name} | {views[32][name]:,.0f} | {views[224][name]:,.0f} |" for name in views[32]]
    ours = rows[0]["images/s"]
    return "\n".join(
        [
            "# Speed of pretraining",
            "",
            "`python -m benchmarks.quality.pretrain DIR WORK --speed`: 32 px, small stem, two views, modern recipe; "
            "medians; *views of it* and *gathering of it* are the two halves of the input as shares of the step; the "
            "gathering goes on beside it, in a thread. *Share of it*: the multiplications of the network, thrice those "
            "forward, "
            "per second, over those of a large square product in the same run.",
            "",
            *lines,
            "",
            *table,
            "",
            f"A plain loop (PIL, torchvision, DataLoader, float32) over {count:,} PNG files with {small_network}: "
            f"{plain:,.0f} images/s; pucache {ours:,.0f} ({ours / plain:.1f} times).",
            "",
            environment(),
            "",
        ]
    )


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--backbones", default="resnet18,resnet50")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=9)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    source, work = arguments.folder.resolve(), arguments.work
    if arguments.speed:
        page = speed(source, arguments.device)
    elif arguments.whole:
        names = arguments.backbones.split(",")
        page = whole(source, work, arguments.device, names, arguments.epochs, arguments.minutes)
    else:
        page = small(source, work, arguments.device)
    write_page(page, arguments.out)
