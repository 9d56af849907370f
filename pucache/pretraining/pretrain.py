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
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch.nn.functional import interpolate
from torchvision.utils import make_grid

from ..allocator import keep_freed_memory
from ..cache.embedding_cache import files_read
from ..devices import choose_device, choose_training_precision, torch_dtype
from ..encoders.backbones import digest
from ..encoders.pretrained_file import Description
from ..errors import ImageError, SourceError
from ..images.decoding import DECODER
from ..images.decoding import decode as decode_image
from ..images.listing import Listing
from ..images.source import Source, open_source
from ..progress import Progress, Silent
from ..storage.atomic import replacing
from ..storage.file_kinds import MARK, PNG
from ..storage.outputs import check_output
from . import process_group
from .augmentations import VIEWS, Augment, random_numbers
from .dataset import list_images, listing_digest, open_images, remove_decoded, squash_for
from .network import Network, NetworkConfig, build_network
from .probe import Probe, check_positives
from .recipes import Recipe, find_recipe
from .run_folder import PretrainReport, RunFolder
from .train_step import Training, check_batch
from .trainer import Trainer, resume

log = logging.getLogger("pucache")

_SIZE_SAMPLE = 9  # images whose size is compared with that of the views
_IMAGES, _VIEWS = 8, 6  # rows and columns of the sheet
_MAX_ATTEMPTS = 20 * _IMAGES  # images that are tried
_GAP = 4  # pixels


def pretrain(
    source: str | os.PathLike[str] | Source,
    run_dir: str | os.PathLike[str],
    network: NetworkConfig | None = None,
    recipe: str | Recipe = "modern",
    *,
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    workers: int | None = None,
    positives: str | Path | None = None,
    minutes: float = math.inf,
    progress: Progress | None = None,
) -> PretrainReport:
    """Train an encoder on the images of a source, without labels. Call it again to continue a run.

    Under ``torchrun`` the processes share every batch. On a GPU one process compiles the training step where more
    than five minutes are left, which changes no more than roundings, unless TORCH_COMPILE_DISABLE is 1.

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
    workers : int, optional
        Number of processes that decode images before training; 0 uses threads.
    positives : path or glob, optional
        Labelled positives to evaluate the features with; they are not used for training.
    minutes : float
        Stop after this time; the run can be continued.
    progress : Progress, optional

    Returns
    -------
    PretrainReport

    Raises
    ------
    SourceError
        The source holds no image, or none that can be used.
    OutputError
        The disk has no room for the decoded images, or the folder cannot be written.
    RunError
        The folder is in use, damaged or of another configuration; the loss is not finite; the device is out
        of memory.
    EncoderError
        The network is unknown, or the weights do not fit it.
    LabelError
        The positives do not match the images.
    ValueError
        There are fewer images than a batch, or an argument is outside its domain.
    """
    started = time.monotonic()
    if not minutes > 0:
        raise ValueError(f"--minutes must be above 0, got {minutes:g}")
    config, recipe, path = network or NetworkConfig(), find_recipe(recipe), Path(run_dir)
    keep_freed_memory()
    source = open_source(source)
    with process_group.joined(device) as own_device, ExitStack() as stack:
        # of several processes the first one lists, decodes, logs and saves
        is_first = process_group.rank() == 0
        progress = stack.enter_context(progress if is_first and progress else Silent())
        folder = stack.enter_context(RunFolder(path)) if is_first else None
        torch_device = choose_device(own_device)
        stem = process_group.broadcast_from_first(folder and folder.stem)
        model = build_network(config, norm=recipe.projector_norm, seed=seed, stem=stem)
        precision = choose_training_precision(precision, torch_device)
        listing = process_group.broadcast_from_first(list_images(source) if is_first else None)
        if is_first:
            _compare_sizes(source, listing, model.description)

        # all checks come before decoding, which may take hours
        check_batch(len(listing.keys), recipe)
        squash = squash_for(model.description, VIEWS[recipe.views])
        if positives is not None:
            check_positives(positives, listing.keys)
        if folder:
            settings = _settings(model, config, listing, seed=seed, precision=precision)
            processes = process_group.world_size()
            folder.claim(recipe, settings, {"source": source.name, "listed": len(listing.keys), "processes": processes})
        finished = process_group.broadcast_from_first(folder and folder.finished(recipe))
        if finished:
            remove_decoded(path)  # a run killed at its very end leaves them
            return dataclasses.replace(finished, seconds=time.monotonic() - started)

        images = open_images(source, listing, path, squash, workers=workers, progress=progress)
        training = Training(
            model,
            recipe,
            images=len(images.keys),
            seed=seed,
            device=torch_device,
            dtype=torch_dtype(precision),
        )
        probe = Probe(images, positives=positives, seed=seed)
        step, losses = resume(folder, training, len(images.keys))
        if folder:
            log.info("%s", _plan(config, training, len(images.keys), precision, step))
            folder.start_log(step)
        trainer = Trainer(folder, training, images, probe, progress, step=step, losses=losses)
        trainer.run(until=started + 60 * minutes)
        probe_name = probe.name if positives else ""
        report = trainer.report(path, listing.failures, probe_name, started=started)
        if folder and trainer.step == training.steps:
            folder.finish(recipe, report)
            remove_decoded(path)
        return report


def _settings(
    model: Network, config: NetworkConfig, listing: Listing, *, seed: int, precision: str
) -> dict[str, str | int]:
    """Settings beside the recipe that change the result of a run."""
    return {
        "architecture": model.description.architecture,
        "stem": model.description.stem,
        "size": model.description.size,
        **({"decoder": model.description.decoder} if model.description.decoder != DECODER else {}),
        "weights": "random" if config.has_random_weights else digest(model.backbone),
        "seed": seed,
        "precision": precision,
        "images": listing_digest(listing),
    }


def _plan(config: NetworkConfig, training: Training, images: int, precision: str, step: int) -> str:
    """What the run will do, for the user."""
    encoder, recipe = training.network.description, training.recipe
    parts = [
        f"{images:,} images",
        f"{encoder.architecture}, {encoder.stem} stem, {config.initial_weights}, views of {encoder.size} px",
        f"batches of {recipe.batch_size:,}, {recipe.epochs:,} epochs, {training.steps:,} steps",
        f"{training.device} in {precision}",
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
            "the images are of about %d px and would be enlarged to %d; --size %d is many times as fast",
            side,
            description.size,
            max(32, side),
        )
    elif description.stem == "small" and side > 4 * description.size:
        log.warning(
            "the images are of about %d px and would be shrunk to %d; --size says to what", side, description.size
        )


def show_views(
    source: str | os.PathLike[str] | Source,
    path: str | Path,
    network: NetworkConfig | None = None,
    recipe: str | Recipe = "modern",
    *,
    seed: int = 0,
) -> int:
    """Draw a few images of a source, each beside its views, into a PNG; returns the number of images drawn.

    `source` is what `pucache.open_source` takes or returns. The network determines the size of the views, the recipe
    the views, and `seed` the choice of images. Raises `SourceError` where the source holds no image, or none
    that can be used, and `OutputError` where the PNG cannot be written, as over a file of another kind.
    """
    path = check_output(path, PNG, inputs=files_read(source))
    recipe = find_recipe(recipe)
    source = open_source(source)
    listing = list_images(source)
    model = build_network(network or NetworkConfig(), norm=recipe.projector_norm, seed=seed)
    squash = squash_for(model.description, VIEWS[recipe.views])
    order = np.random.default_rng(seed).permutation(len(listing.keys))[:_MAX_ATTEMPTS]
    images: list[torch.Tensor] = []
    for row in order:
        with contextlib.suppress(ImageError):
            image = decode_image(source.read(listing.keys[row]), squash.sufficient_side, squash.decoding)
            images.append(squash(image).contiguous())
        if len(images) == _IMAGES:
            break
    if not images:
        raise SourceError(f"none of {len(order)} images of {source.name} can be used")
    size, pixels = model.description.size, torch.stack(images)  # (b, D, D, 3)
    views = Augment(VIEWS[recipe.views], size)(pixels, random_numbers(seed, 0, images=len(images), views=_VIEWS))
    side = max(96, min(size, 224))
    columns = [pixels.permute(0, 3, 1, 2) / 255, *views]  # the image and its views, (b, 3, H, W) each
    tiles = torch.stack([interpolate(column, side, mode="nearest-exact") for column in columns], 1)
    sheet = make_grid(tiles.flatten(0, 1), nrow=len(columns), padding=_GAP, pad_value=1)
    mark = PngInfo()
    mark.add_text("Software", MARK)
    with replacing(path) as temporary:
        Image.fromarray((sheet * 255 + 0.5).clamp(0, 255).byte().permute(1, 2, 0).numpy()).save(
            temporary, "PNG", pnginfo=mark
        )
    return len(images)
