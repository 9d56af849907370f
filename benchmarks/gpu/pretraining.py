"""Slices of pretraining: a step of training, and the authors' task."""

import tarfile
import time
from functools import partial
from pathlib import Path

from benchmarks.gpu.slices import Bench, Figure, LeftOut, Slice, Unfinished
from benchmarks.quality.pretrain import Task, authors_row, step_speed

MINUTES = 10.0  # target: 100 epochs of 33,000 images, ResNet-50
ROWS = {"accuracy": 95.3, "f1": 94.0, "auc": 99.0}  # targets, in percent, of debiased pretraining and imbnnPU
TARGET = "resnet50"


def step(bench: Bench, *, number: int, compiled: bool) -> list[Figure]:
    """A step at 32 px, beside the rate of a large product."""
    if number >= len(bench.size.backbones):
        raise LeftOut("a quick run has fewer networks")
    backbone = bench.size.backbones[number]
    if compiled and not bench.on_gpu:
        raise LeftOut("compiled steps are for a GPU")
    speed = step_speed(backbone, str(bench.device), batch=512 if bench.on_gpu else 32, compiled=compiled)
    name = f"{backbone}{', compiled' * compiled}"
    target = MINUTES if backbone == TARGET and compiled else None
    note = f"{speed['share of it']:.0%} of the matrix rate, {speed['matrix rate, Tflop/s']:.0f} Tflop/s"
    minutes = speed["100 epochs of 33,000, minutes"]
    limit = minutes * speed["share of it"]
    return [
        Figure(f"{name}: 100 epochs of 33,000 images", (minutes,), "min", target=target, limit=limit, note=note),
        Figure(f"{name}: step", (speed["step, ms"],), "ms", note=f"{speed['precision']}, batches of {speed['batch']}"),
        Figure(f"{name}: views, of a step", (speed["views of it"],), ""),
        Figure(f"{name}: gathering on the host, of a step", (speed["gathering of it"],), ""),
    ]


def authors(bench: Bench, *, number: int, loss: str) -> list[Figure]:
    """Pretraining on the authors' pile, which goes on in the next run where it is not finished, and its heads."""
    if bench.data is None:
        raise LeftOut("it needs CIFAR-10: --data DIR")
    if number >= len(bench.size.backbones):
        raise LeftOut("a quick run has fewer networks")
    backbone = bench.size.backbones[number]
    work = bench.work / "authors"
    work.mkdir(exist_ok=True)
    task = Task(unpacked(bench.data, bench.work), work, small=False)
    left = (bench.until - time.monotonic()) / 60
    how = {"device": str(bench.device), "epochs": bench.size.epochs, "batch_size": 512 if bench.on_gpu else 32}
    row = authors_row(task, backbone, loss, minutes=left, **how)
    if row is None:
        raise Unfinished(f"{backbone}, {loss}: it goes on in the next run with the same --work")
    name = f"{backbone}, {loss}"
    figures = [Figure(f"{name}: {bench.size.epochs} epochs", (row["minutes"],), "min", target=_minutes(backbone, loss))]
    for head, metrics in row["heads"].items():
        for metric, target in ROWS.items():
            wanted = target if (backbone, loss, head) == (TARGET, "debiased", "imbnnpu") else None
            value = 100 * metrics[metric]
            figures.append(Figure(f"{name}, {head}: {metric}", (value,), "%", target=wanted, at_least=True))
    return figures


def _minutes(backbone: str, loss: str) -> float | None:
    return MINUTES if (backbone, loss) == (TARGET, "debiased") else None


def unpacked(folder: Path, work: Path) -> Path:
    """The folder, or what the tar files in it hold."""
    parts = sorted(folder.glob("*.tar"))
    if not parts:
        return folder
    target = work / "cifar"
    if not target.exists():
        unfinished = work / "cifar-unfinished"
        for part in parts:
            with tarfile.open(part) as tar:
                tar.extractall(unfinished, filter="data")
        unfinished.rename(target)
    return target


SLICES = (
    Slice("step, first network, compiled", partial(step, number=0, compiled=True), 2),
    Slice("authors' task, first network, debiased", partial(authors, number=0, loss="debiased"), 2),
    Slice("step, first network", partial(step, number=0, compiled=False)),
    Slice("step, second network, compiled", partial(step, number=1, compiled=True), 2),
    Slice("authors' task, second network, debiased", partial(authors, number=1, loss="debiased"), 2),
    Slice("authors' task, first network, contrastive", partial(authors, number=0, loss="contrastive"), 2),
    Slice("authors' task, second network, contrastive", partial(authors, number=1, loss="contrastive"), 2),
)
