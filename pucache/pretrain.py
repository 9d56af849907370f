"""Learns an encoder from unlabelled images by debiased SimCLR, resumable; the run's folder is the encoder.

The state after a step depends on the state before it, the seed and the number of the step alone, so a
run that was killed and taken up again ends, on the CPU, in the same bits as one that was not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import encoder_file
from .allocator import keep_freed_memory
from .decoding import decode
from .devices import PRECISIONS, choose_device, choose_precision, cores
from .durable import check_writable
from .encoder_file import Description
from .errors import EncoderError, ImageError, SourceError
from .images import Listing, Source
from .progress import Progress, Silent
from .simclr import pixels, processes, run_folder
from .simclr.augment import VIEWS, Augment, draw, preview
from .simclr.history import History, require_tensorboard
from .simclr.loop import Loop, restore
from .simclr.network import Network, build
from .simclr.probe import Probe
from .simclr.recipes import RECIPES, Recipe
from .simclr.training import Geometry, Training, check_batch

log = logging.getLogger("pucache")

_SHOWN = 8  # images in a preview
_FEW = 1000  # images for which worker processes are not worth their start
_SEEDS = 1 << 63


@dataclass(frozen=True)
class Start:
    """What training begins with.

    Attributes
    ----------
    backbone : str
        A network of timm, or ``bundled``.
    stem : {"standard", "small"}
        ``small`` is for images of some 32 to 64 pixels.
    size : int, optional
        Side of the views, in pixels; by default what timm says, or 32 with a small stem.
    weights : str, optional
        A file, the folder of an earlier run, or ``hub``; random ones by default.
    seed : int
    """

    backbone: str = "resnet50"
    stem: str = "standard"
    size: int | None = None
    weights: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.stem not in ("standard", "small"):
            raise ValueError(f"unknown stem {self.stem!r}; use standard or small")
        if not 0 <= self.seed < _SEEDS:
            raise ValueError(f"the seed must be at least 0 and below 2 to the 63rd, got {self.seed}")


@dataclass(frozen=True)
class PretrainReport:
    """What a run has come to.

    Attributes
    ----------
    folder : Path
    images : int
        Trained on.
    failures : dict of str to str
        Key to reason, of those that could not be used.
    steps, total : int
        Taken so far, and in a whole run.
    loss : float
        Mean of the last steps looked at.
    geometry : Geometry
    probe_name : str
        What the probe measures.
    probe_before, probe : float
        With the weights that training began with, and now; NaN without positives or labels.
    rank : float
        Dimensions that the features effectively fill.
    collapsed : bool
        Whether the projections tell no images apart.
    seconds : float
        Of this call.
    images_per_second : float
        While training.
    waited : float
        Share of that time spent waiting for images.
    """

    folder: Path
    images: int
    failures: dict[str, str]
    steps: int
    total: int
    loss: float
    geometry: Geometry
    probe_name: str
    probe_before: float
    probe: float
    rank: float
    collapsed: bool
    seconds: float
    images_per_second: float
    waited: float


def pretrain(
    source: Source,
    folder: str | Path,
    start: Start | None = None,
    recipe: Recipe = RECIPES["modern"],
    *,
    device: str = "auto",
    precision: str = "auto",
    compiled: bool = False,
    workers: int | None = None,
    decoded: str = "auto",
    positives: str | Path | None = None,
    labels: str | Path | None = None,
    minutes: float = math.inf,
    save_every: float = 5.0,
    tensorboard: bool = False,
    progress: Progress | None = None,
) -> PretrainReport:
    """Learn an encoder from the images of a source; call it again to go on.

    Under ``torchrun`` the processes share every batch.

    Parameters
    ----------
    source : Source
        See `pucache.images.open_source`.
    folder : path
        Of the run: gets ``encoder.safetensors``, which `pucache.encoders.load_encoder` takes, the
        checkpoints and ``log.csv``.
    start : Start, optional
    recipe : Recipe
    device : str
        auto, cpu, cuda or cuda:N.
    precision : {"auto", "fp32", "bf16"}
        Of the products in the network; ``auto`` is bf16 where the processor multiplies it natively.
    compiled : bool
        Train by ``torch.compile``.
    workers : int, optional
        Processes that decode the images beforehand; 0 does it in threads.
    decoded : {"auto", "once", "always"}
        Decode all images once, into the folder, or whenever they are needed; ``auto`` is ``once`` where
        the disk has room.
    positives : path or glob, optional
        Labelled positives, by which to tell how good the features are; training does not see them.
    labels : path, optional
        The same with a CSV ``key,label`` of any classes.
    minutes : float
        Stop after so many, resumably.
    save_every : float
        Minutes between checkpoints.
    tensorboard : bool
    progress : Progress, optional

    Returns
    -------
    PretrainReport

    Raises
    ------
    SourceError
        No image, or none that can be used.
    RunError
        The folder is in use, damaged or of another configuration; the loss is not finite; out of memory.
    EncoderError
        An unknown network, or weights that do not fit it.
    LabelError
        Positives or labels that are not those of the images.
    ValueError
        Fewer images than a batch, or an argument outside its domain.
    """
    began = time.monotonic()
    _check(precision, decoded, minutes, save_every, tensorboard)
    keep_freed_memory()
    folder, start = Path(folder), start or Start()
    with processes.joined(device) as own, ExitStack() as stack:
        where, first = choose_device(own), processes.rank() == 0
        followed = stack.enter_context(progress if first and progress else Silent())
        if first:
            stack.enter_context(run_folder.locked(folder))
        network = _network(start, recipe)
        numbers = _numbers(precision, where)
        listing = processes.from_first(_listing(source) if first else None)
        squash = _squash(network.description, recipe)
        # what is wrong is said before hours of decoding
        check_batch(len(listing.keys), recipe)
        Probe(pixels.Streamed(source, listing, squash), positives=positives, labels=labels)
        if first:
            _claim(folder, recipe, start, network.description, numbers, source, listing)
        done = processes.from_first(_finished(folder, recipe) if first else None)
        if done is not None:
            return dataclasses.replace(done, seconds=time.monotonic() - began)
        images = _opened(source, listing, folder, squash, where, workers, decoded, followed)
        training = Training(
            network,
            recipe,
            images=len(images.keys),
            seed=start.seed,
            device=where,
            numbers=PRECISIONS[numbers],
            compiled=compiled,
        )
        probe = Probe(images, positives=positives, labels=labels, seed=start.seed)
        step, losses = restore(folder, training, len(images.keys))
        history = stack.enter_context(History(folder, step, tensorboard=tensorboard)) if first else None
        loop = Loop(folder, training, images, probe, history, followed, step=step, losses=losses)
        loop.run(until=began + 60 * minutes, save_every=60 * save_every)
        judged = positives is not None or labels is not None
        report = _report(loop, listing, probe.name, judged, began)
        if first and loop.step == training.steps:
            _finish(folder, recipe, report)
        return report


def _check(precision: str, decoded: str, minutes: float, save_every: float, tensorboard: bool) -> None:
    if decoded not in ("auto", "once", "always"):
        raise ValueError(f"decoded is auto, once or always, got {decoded!r}")
    if not minutes > 0 or not save_every >= 0:
        raise ValueError("minutes must be above 0, and those between checkpoints not below")
    if precision == "fp16":
        raise ValueError("fp16 is not for training; use bf16 or fp32")
    if tensorboard:
        require_tensorboard()


def _network(start: Start, recipe: Recipe) -> Network:
    return build(
        start.backbone,
        stem=start.stem,
        size=start.size,
        weights=start.weights,
        norm=recipe.projector_norm,
        seed=start.seed,
    )


def _numbers(precision: str, device: torch.device) -> str:
    chosen = choose_precision(precision, device)
    return "bf16" if chosen == "fp16" else chosen  # auto on CUDA


def _listing(source: Source) -> Listing:
    listing = source.scan()
    if not listing.keys:
        raise SourceError(f"no image in {source.name}")
    return listing


def _squash(description: Description, recipe: Recipe) -> pixels.Squash:
    """How images are kept: crops of larger ones than the views have detail to spare."""
    size = description.size
    side = size if size <= 64 else round(size * 8 / 7)
    return pixels.Squash(side, description.interpolation, VIEWS[recipe.views])


def _claim(
    folder: Path,
    recipe: Recipe,
    start: Start,
    description: Description,
    numbers: str,
    source: Source,
    listing: Listing,
) -> None:
    settings = {
        **{name: getattr(description, name) for name in ("architecture", "stem", "size")},
        "weights": start.weights or "random",
        "seed": start.seed,
        "precision": numbers,
        "images": pixels.identity(listing),
    }
    provenance = {"source": source.name, "listed": len(listing.keys), "processes": processes.world()}
    if not run_folder.claim(folder, recipe, settings, provenance):
        pixels.remove(folder)  # they may have been decoded in another way


def _opened(
    source: Source,
    listing: Listing,
    folder: Path,
    squash: pixels.Squash,
    device: torch.device,
    workers: int | None,
    decoded: str,
    progress: Progress,
) -> pixels.Pixels:
    """The images, decoded once if that is wanted or there is room."""
    first, side = processes.rank() == 0, squash.input_size[0]
    if decoded == "auto":
        decoded = processes.from_first(
            "once" if not first or pixels.fits(folder, len(listing.keys), side) else "always"
        )
        if decoded == "always" and first:
            log.warning("%s has no room for the decoded images; they are decoded in every epoch", folder)
    if decoded == "always":
        return pixels.Streamed(source, listing, squash)
    if first:
        if workers is None:
            workers = min(16, cores()) if len(listing.keys) > _FEW else 0
        pixels.decode_all(source, listing, folder, squash, workers=workers, progress=progress)
    processes.wait()
    return pixels.Mapped(folder, listing, side, device)


# --- what has come of it -------------------------------------------------------------------------


def _report(loop: Loop, listing: Listing, probe_name: str, judged: bool, began: float) -> PretrainReport:
    speed, history = loop.speed, loop.history
    probes = history.column("probe") if history and judged else {}
    ranks = history.column("rank") if history else {}
    return PretrainReport(
        folder=loop.folder,
        images=len(loop.images.keys),
        failures={**listing.failures, **loop.images.failures},
        steps=loop.step,
        total=loop.training.steps,
        loss=loop.loss,
        geometry=loop.geometry,
        probe_name=probe_name,
        probe_before=probes.get(0, float("nan")),
        probe=_last(probes),
        rank=_last(ranks),
        collapsed=loop.collapsed,
        seconds=time.monotonic() - began,
        images_per_second=speed.images / speed.seconds if speed.seconds else float("nan"),
        waited=speed.waited / speed.seconds if speed.seconds else 0.0,
    )


def _last(figures: dict[int, float]) -> float:
    return figures[max(figures)] if figures else float("nan")


def _finish(folder: Path, recipe: Recipe, report: PretrainReport) -> None:
    """Write the report down, and remove what is of no more use."""
    told = {name: value for name, value in dataclasses.asdict(report).items() if name != "folder"}
    run_folder.finish(folder, recipe, told)
    pixels.remove(folder)


def _finished(folder: Path, recipe: Recipe) -> PretrainReport | None:
    """The report of a run that is done, and whose encoder is there."""
    told: dict[str, Any] | None = run_folder.finished(folder, recipe)
    try:
        if told is None or encoder_file.read(folder)[1].steps != told["total"]:
            return None
        told["geometry"] = Geometry(**told["geometry"])
        unknown = dict.fromkeys(("probe_before", "probe", "rank", "loss"), float("nan"))
        told |= {"folder": folder, "images_per_second": float("nan"), "waited": 0.0}
        return PretrainReport(**{**unknown, **told})
    except (EncoderError, KeyError, TypeError):
        return None


def show_views(source: Source, path: str | Path, start: Start, recipe: Recipe) -> int:
    """Draw a few images of a source and their views into a PNG; returns how many.

    Raises
    ------
    SourceError
        No image, or none that can be used.
    OutputError
        The PNG cannot be written.
    """
    check_writable(path)
    listing = _listing(source)
    network = build(start.backbone, stem=start.stem, size=start.size, weights=None, norm=False, seed=start.seed)
    squash = _squash(network.description, recipe)
    order = np.random.default_rng(start.seed).permutation(len(listing.keys))
    shown: list[torch.Tensor] = []
    for row in order[: 20 * _SHOWN]:
        with contextlib.suppress(ImageError):
            shown.append(squash(decode(source.read(listing.keys[row]), squash.sufficient)).contiguous())
        if len(shown) == _SHOWN:
            break
    if not shown:
        raise SourceError(f"none of {min(len(order), 20 * _SHOWN)} images of {source.name} can be used")
    preview(
        path,
        torch.stack(shown),
        Augment(VIEWS[recipe.views], network.description.size),
        draw(start.seed, 0, len(shown), 6),
    )
    return len(shown)
