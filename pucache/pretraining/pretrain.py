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
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..allocator import keep_freed_memory
from ..devices import PRECISIONS, choose_device, choose_training_precision
from ..encoders.backbones import digest
from ..encoders.pretrained_file import Description
from ..encoders.spec import BUNDLED
from ..errors import ImageError, SourceError
from ..images.decoding import decode
from ..images.source import Listing, Source
from ..progress import Progress, Silent
from ..storage.atomic import check_writable
from . import dataset, process_group, report, run_folder
from .augmentations import VIEWS, Augment, draw, preview
from .metrics_log import History, require_tensorboard
from .network import Network, build
from .probe import Probe
from .recipes import RECIPES, Recipe
from .report import PretrainReport
from .train_step import Training, check_batch, check_compiled
from .trainer import Loop, restore

log = logging.getLogger("pucache")

_SHOWN = 8  # images in a preview
_LOOKED_AT = 9  # images whose size is looked at
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
        A file, the folder of an earlier run, or ``hub``; random ones by default, and of ``bundled`` its own.
    seed : int
    """

    backbone: str = "resnet50"
    stem: str = "standard"
    size: int | None = None
    weights: str | None = None
    seed: int = 0

    @property
    def is_random(self) -> bool:
        """Whether the weights are drawn."""
        return self.weights is None and self.backbone != BUNDLED

    def __post_init__(self) -> None:
        if self.stem not in ("standard", "small"):
            raise ValueError(f"unknown stem {self.stem!r}; use standard or small")
        if not 0 <= self.seed < _SEEDS:
            raise ValueError(f"the seed must be at least 0 and below 2 to the 63rd, got {self.seed}")


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
        See `pucache.images.source.open_source`.
    folder : path
        Of the run: gets ``encoder.safetensors``, which `pucache.encoders.encoder.load_encoder` takes, the
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
    with process_group.joined(device) as own, ExitStack() as stack:
        where, first = choose_device(own), process_group.rank() == 0
        followed = stack.enter_context(progress if first and progress else Silent())
        if first:
            stack.enter_context(run_folder.locked(folder))
        network = _network(start, recipe)
        numbers = choose_training_precision(precision, where)
        listing = process_group.broadcast_from_first(_listing(source) if first else None)
        squash = dataset.squash_for(network.description, VIEWS[recipe.views])
        if first:
            _compare_sizes(source, listing, network.description)
        # what is wrong is said before hours of decoding
        check_batch(len(listing.keys), recipe)
        check_compiled(compiled)
        Probe(dataset.Streamed(source, listing, squash), positives=positives, labels=labels)
        if first:
            settings = {
                **{name: getattr(network.description, name) for name in ("architecture", "stem", "size")},
                "weights": "random" if start.is_random else digest(network.backbone),
                "seed": start.seed,
                "precision": numbers,
                "images": dataset.identity(listing),
            }
            provenance = {"source": source.name, "listed": len(listing.keys), "processes": process_group.world_size()}
            run_folder.claim(folder, recipe, settings, provenance)
        done = process_group.broadcast_from_first(report.of_finished(folder, recipe) if first else None)
        if done is not None:
            dataset.remove(folder)  # a kill may have come before that
            return dataclasses.replace(done, seconds=time.monotonic() - began)
        images = dataset.opened(
            source, listing, folder, squash, device=where, decoded=decoded, workers=workers, progress=followed
        )
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
        if first:
            log.info("%s", "; ".join(_plan(training, numbers, start, len(images.keys), step)))
        history = stack.enter_context(History(folder, step, tensorboard=tensorboard)) if first else None
        loop = Loop(folder, training, images, probe, history, followed, step=step, losses=losses)
        loop.run(until=began + 60 * minutes, save_every=60 * save_every)
        told = report.of(loop, listing, probe.name if positives or labels else "", began)
        if first and loop.step == training.steps:
            report.keep(folder, recipe, told)
            dataset.remove(folder)
        return told


def _check(precision: str, decoded: str, minutes: float, save_every: float, tensorboard: bool) -> None:
    if decoded not in ("auto", "once", "always"):
        raise ValueError(f"decoded is auto, once or always, got {decoded!r}")
    if not minutes > 0:
        raise ValueError(f"--minutes must be above 0, got {minutes:g}")
    if not save_every >= 0:
        raise ValueError(f"--save-every must be 0 or more minutes, got {save_every:g}")
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


def _plan(training: Training, numbers: str, start: Start, images: int, step: int) -> Iterator[str]:
    """What is about to be done, for the user."""
    told, recipe = training.network.description, training.recipe
    begun = "random weights" if start.is_random else f"weights of {start.weights or start.backbone}"
    yield f"{images:,} images"
    yield f"{told.architecture}, {told.stem} stem, {begun}, views of {told.size} px"
    yield f"batches of {recipe.batch_size:,}, {recipe.epochs:,} epochs, {training.steps:,} steps"
    yield f"{training.device} in {numbers}"
    if step:
        yield f"going on after step {step:,}"


def _compare_sizes(source: Source, listing: Listing, told: Description) -> None:
    """Say so where the images are far larger or smaller than what the network would see of them."""
    sides = []
    for row in np.linspace(0, len(listing.keys) - 1, _LOOKED_AT).astype(int):
        with contextlib.suppress(ImageError):
            sides.append(min(decode(source.read(listing.keys[row])).size))
    side = int(np.median(sides)) if sides else told.size
    if 2 * side < told.size:
        log.warning(
            "the images are of about %d px and would be enlarged to %d; --stem small --size %d is many times as fast",
            side,
            told.size,
            max(32, side),
        )
    elif told.stem == "small" and side > 4 * told.size:
        log.warning("the images are of about %d px and would be shrunk to %d; --size says to what", side, told.size)


def _listing(source: Source) -> Listing:
    listing = source.scan()
    if not listing.keys:
        raise SourceError(f"no image in {source.name}")
    return listing


def show_views(source: Source, path: str | Path, start: Start, recipe: Recipe) -> int:
    """Draw a few images of a source and their views into a PNG; returns how many.

    Parameters
    ----------
    source : Source
    path : path or str
        Of the PNG.
    start : Start
        Its seed draws images and views.
    recipe : Recipe
        Whose views are shown.

    Returns
    -------
    int
        Images drawn.

    Raises
    ------
    SourceError
        No image, or none that can be used.
    OutputError
        The PNG cannot be written.
    """
    check_writable(path)
    listing = _listing(source)
    network = _network(start, recipe)
    squash = dataset.squash_for(network.description, VIEWS[recipe.views])
    order = np.random.default_rng(start.seed).permutation(len(listing.keys))
    shown: list[torch.Tensor] = []
    for row in order[: 20 * _SHOWN]:
        with contextlib.suppress(ImageError):
            shown.append(squash(decode(source.read(listing.keys[row]), squash.sufficient_side)).contiguous())
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
