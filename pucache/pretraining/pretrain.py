"""Pretraining: an encoder is trained on unlabelled images by debiased SimCLR, resumably.

The run folder is the encoder. The state after a step depends only on the state before it, the seed and the
number of the step. On the CPU a run that was killed and resumed therefore gives the same bits as an
uninterrupted one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..allocator import keep_freed_memory
from ..devices import choose_device, choose_training_precision, torch_dtype
from ..encoders.backbones import digest
from ..encoders.pretrained_file import Description
from ..errors import ImageError
from ..images.decoding import decode as decode_image
from ..images.listing import Listing
from ..images.source import Source, open_source
from ..progress import Progress, Silent
from . import process_group, run_folder
from .augmentations import VIEWS
from .dataset import DECODE_MODES, TrainingImages, list_images, open_images
from .decoded_images import listing_digest, remove_decoded
from .metrics_log import MetricsLog, require_tensorboard
from .monitor import TrainingMonitor
from .network import Network, NetworkConfig, build_network
from .probe import Probe
from .recipes import Recipe, find_recipe
from .run_folder import Provenance, RunSettings
from .squash import squash_for
from .streamed_images import StreamedImages
from .train_step import Training, check_batch, check_compiled
from .trainer import Trainer, resume
from .training_summary import PretrainReport, load_summary, save_summary, summarize

log = logging.getLogger("pucache")

_SIZE_SAMPLE = 9  # images whose size is compared with that of the views


def pretrain(
    source: str | os.PathLike[str] | Source,
    run_dir: str | os.PathLike[str],
    network: NetworkConfig | None = None,
    recipe: str | Recipe = "modern",
    *,
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    compiled: bool = False,
    workers: int | None = None,
    decode: str = "auto",
    positives: str | Path | None = None,
    labels: str | Path | None = None,
    minutes: float = math.inf,
    save_every: float = 5.0,
    tensorboard: bool = False,
    progress: Progress | None = None,
) -> PretrainReport:
    """Train an encoder on the images of a source, without labels. Call it again to continue a run.

    Under ``torchrun`` the processes share every batch.

    Parameters
    ----------
    source : str, path or Source
        What `pucache.images.source.open_source` takes or returns.
    run_dir : str or path
        Run folder. It receives ``encoder.safetensors``, which `pucache.load_encoder` reads, the checkpoints
        and ``log.csv``.
    network : NetworkConfig, optional
        By default a ResNet-50 with random weights.
    recipe : str or Recipe
        ``modern``, ``impulses`` or a `Recipe`.
    seed : int
        Seed of random weights, of the order of the images and of their views.
    device : str
        auto, cpu, cuda or cuda:N.
    precision : {"auto", "fp32", "bf16"}
        Precision of the matrix products in the network. ``auto`` is bf16 on processors that support it natively.
    compiled : bool
        Train with torch.compile.
    workers : int, optional
        Number of processes that decode images before training; 0 uses threads.
    decode : {"auto", "once", "always"}
        Decode all images once, into the run folder, or in every epoch. ``auto`` is ``once`` if the disk has
        room.
    positives : path or glob, optional
        Labelled positives to evaluate the features with; they are not used for training.
    labels : path, optional
        Instead of positives a CSV ``key,label`` with any classes.
    minutes : float
        Stop after this time; the run can be continued.
    save_every : float
        Minutes between checkpoints.
    tensorboard : bool
        Also log for TensorBoard.
    progress : Progress, optional

    Returns
    -------
    PretrainReport

    Raises
    ------
    SourceError
        The source holds no image, or none that can be used.
    RunError
        The folder is in use, damaged or of another configuration; the loss is not finite; the device is out
        of memory.
    EncoderError
        The network is unknown, or the weights do not fit it.
    LabelError
        The positives or labels do not match the images.
    ValueError
        There are fewer images than a batch, or an argument is outside its domain.
    """
    started = time.monotonic()
    options = _Options(
        seed=seed,
        precision=precision,
        compiled=compiled,
        workers=workers,
        decode=decode,
        positives=positives,
        labels=labels,
        until=started + 60 * minutes,
        save_every=60 * save_every,
        tensorboard=tensorboard,
    )
    _check_times(minutes, save_every)
    recipe = find_recipe(recipe)
    keep_freed_memory()
    source = open_source(source) if isinstance(source, str | os.PathLike) else source
    folder = Path(run_dir)
    with process_group.joined(device) as own_device, ExitStack() as stack:
        is_first = process_group.rank() == 0
        progress = stack.enter_context(progress if is_first and progress else Silent())
        if is_first:
            stack.enter_context(run_folder.locked(folder))
        run = _prepare(source, folder, network or NetworkConfig(), recipe, options, choose_device(own_device))
        summary = process_group.broadcast_from_first(load_summary(folder, recipe) if is_first else None)
        if summary is not None:
            remove_decoded(folder)  # a run killed at its very end leaves them
            return dataclasses.replace(summary, seconds=time.monotonic() - started)
        trainer, probe = _open_trainer(run, options, progress, stack)
        trainer.run(until=options.until, save_every=options.save_every)
        summary = summarize(trainer, run.listing, probe.name if positives or labels else "", started=started)
        if is_first and trainer.step == trainer.training.steps:
            save_summary(folder, recipe, summary)
            remove_decoded(folder)
        return summary


@dataclass(frozen=True)
class _Options:
    """Arguments of `pretrain` beside source, folder, network and recipe; times in seconds."""

    seed: int
    precision: str
    compiled: bool
    workers: int | None
    decode: str
    positives: str | Path | None
    labels: str | Path | None
    until: float
    save_every: float
    tensorboard: bool

    def __post_init__(self) -> None:
        if self.decode not in DECODE_MODES:
            raise ValueError(f"decode is auto, once or always, got {self.decode!r}")
        if self.tensorboard:
            require_tensorboard()


def _check_times(minutes: float, save_every: float) -> None:
    if not minutes > 0:
        raise ValueError(f"--minutes must be above 0, got {minutes:g}")
    if not save_every >= 0:
        raise ValueError(f"--save-every must be 0 or more minutes, got {save_every:g}")


@dataclass(frozen=True)
class _Run:
    """A run whose folder is claimed and whose arguments have been checked."""

    source: Source
    listing: Listing
    folder: Path
    network: Network
    initial_weights: str
    recipe: Recipe
    device: torch.device
    precision: str


def _prepare(
    source: Source, folder: Path, config: NetworkConfig, recipe: Recipe, options: _Options, device: torch.device
) -> _Run:
    """Build the network, list the images, check all arguments and claim the folder."""
    is_first = process_group.rank() == 0
    network = build_network(config, norm=recipe.projector_norm, seed=options.seed)
    precision = choose_training_precision(options.precision, device)
    listing = process_group.broadcast_from_first(list_images(source) if is_first else None)
    if is_first:
        _compare_sizes(source, listing, network.description)
    # all checks come before decoding, which may take hours
    check_batch(len(listing.keys), recipe)
    check_compiled(options.compiled)
    squash = squash_for(network.description, VIEWS[recipe.views])
    Probe(StreamedImages(source, listing, squash), positives=options.positives, labels=options.labels)
    if is_first:
        settings = RunSettings(
            architecture=network.description.architecture,
            stem=network.description.stem,
            size=network.description.size,
            weights="random" if config.has_random_weights else digest(network.backbone),
            seed=options.seed,
            precision=precision,
            images=listing_digest(listing),
        )
        provenance = Provenance(source.name, listed=len(listing.keys), processes=process_group.world_size())
        run_folder.claim(folder, recipe, settings, provenance)
    return _Run(
        source=source,
        listing=listing,
        folder=folder,
        network=network,
        initial_weights=config.initial_weights,
        recipe=recipe,
        device=device,
        precision=precision,
    )


def _open_trainer(run: _Run, options: _Options, progress: Progress, stack: ExitStack) -> tuple[Trainer, Probe]:
    """Decode the images if needed, and resume training from the last checkpoint."""
    is_first = process_group.rank() == 0
    images = open_images(
        run.source,
        run.listing,
        run.folder,
        squash_for(run.network.description, VIEWS[run.recipe.views]),
        device=run.device,
        decode=options.decode,
        workers=options.workers,
        progress=progress,
    )
    training = Training(
        run.network,
        run.recipe,
        images=len(images.keys),
        seed=options.seed,
        device=run.device,
        dtype=torch_dtype(run.precision),
        compiled=options.compiled,
    )
    probe = Probe(images, positives=options.positives, labels=options.labels, seed=options.seed)
    step, losses = resume(run.folder, training, len(images.keys))
    if is_first:
        log.info("%s", _plan(run, training, images, step))
    metrics_log = (
        stack.enter_context(MetricsLog(run.folder, step, tensorboard=options.tensorboard)) if is_first else None
    )
    monitor = TrainingMonitor(training, probe, metrics_log, progress, losses=losses, step=step)
    return Trainer(run.folder, training, images, monitor, progress), probe


def _plan(run: _Run, training: Training, images: TrainingImages, step: int) -> str:
    """What the run will do, for the user."""
    description, recipe = run.network.description, run.recipe
    parts = [
        f"{len(images.keys):,} images",
        f"{description.architecture}, {description.stem} stem, {run.initial_weights}, views of {description.size} px",
        f"batches of {recipe.batch_size:,}, {recipe.epochs:,} epochs, {training.steps:,} steps",
        f"{training.device} in {run.precision}",
    ]
    if step:
        parts.append(f"going on after step {step:,}")
    return "; ".join(parts)


def _compare_sizes(source: Source, listing: Listing, description: Description) -> None:
    """Warn if the images are much larger or smaller than the views."""
    sides = []
    for row in np.linspace(0, len(listing.keys) - 1, _SIZE_SAMPLE).astype(int):
        with contextlib.suppress(ImageError):
            sides.append(min(decode_image(source.read(listing.keys[row])).size))
    side = int(np.median(sides)) if sides else description.size
    if 2 * side < description.size:
        log.warning(
            "the images are of about %d px and would be enlarged to %d; --stem small --size %d is many times as fast",
            side,
            description.size,
            max(32, side),
        )
    elif description.stem == "small" and side > 4 * description.size:
        log.warning(
            "the images are of about %d px and would be shrunk to %d; --size says to what", side, description.size
        )
