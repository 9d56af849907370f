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
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from . import encoder_file
from .allocator import keep_freed_memory
from .decoding import decode
from .devices import PRECISIONS, choose_device, choose_precision, cores
from .durable import check_writable
from .errors import ImageError, RunError, SourceError
from .images import Listing, Source
from .progress import Progress, Silent
from .signals import deferred
from .simclr import checkpoints, pixels, processes, run_folder
from .simclr.augment import VIEWS, Augment, draw, preview
from .simclr.history import History
from .simclr.network import Network, build
from .simclr.probe import Figures, Probe
from .simclr.recipes import RECIPES, Recipe
from .simclr.training import Geometry, Training, geometry

log = logging.getLogger("pucache")

_LOOK = 50  # steps after which the losses are looked at, at the latest
_LOOKS = 10  # at the features, over a run
_COLLAPSED = 0.1  # spread of the projections under which they tell no images apart
_SHOWN = 8  # images in a preview
_FEW = 1000  # images for which worker processes are not worth their start


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
    keep_freed_memory()
    if decoded not in ("auto", "once", "always"):
        raise ValueError(f"decoded is auto, once or always, got {decoded!r}")
    if not minutes > 0 or not save_every >= 0:
        raise ValueError("minutes must be above 0, and those between checkpoints not below")
    if precision == "fp16":
        raise ValueError("fp16 is not for training; use bf16 or fp32")
    folder, start = Path(folder), start or Start()
    with ExitStack() as stack:
        where = choose_device(stack.enter_context(processes.joined(device)))
        first = processes.rank() == 0
        followed = stack.enter_context(progress if first and progress else Silent())
        if first:
            stack.enter_context(run_folder.locked(folder))
        numbers = _numbers(precision, where)
        network = build(
            start.backbone,
            stem=start.stem,
            size=start.size,
            weights=start.weights,
            norm=recipe.projector_norm,
            seed=start.seed,
        )
        listing = processes.from_first(_listing(source) if first else None)
        settings = {
            **{name: getattr(network.description, name) for name in ("architecture", "stem", "size")},
            "weights": start.weights or "random",
            "seed": start.seed,
            "precision": numbers,
            "images": pixels.identity(listing),
        }
        if first:
            provenance = {"source": source.name, "listed": len(listing.keys), "processes": processes.world()}
            run_folder.claim(folder, recipe, settings, provenance)
        images = _opened(source, listing, folder, network, recipe, where, workers, decoded, followed)
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
        at, losses = _restored(folder, training)
        history = stack.enter_context(History(folder, at, tensorboard=tensorboard)) if first else None
        run = _Run(folder, training, images, probe, history, where, PRECISIONS[numbers], followed)
        run.go(at, losses, until=began + 60 * minutes, save_every=60 * save_every)
        if first and run.step == training.steps:
            pixels.remove(folder)
        return run.report(listing, time.monotonic() - began)


def _numbers(precision: str, device: torch.device) -> str:
    chosen = choose_precision(precision, device)
    return "bf16" if chosen == "fp16" else chosen  # auto on CUDA


def _listing(source: Source) -> Listing:
    listing = source.scan()
    if not listing.keys:
        raise SourceError(f"no image in {source.name}")
    return listing


def _opened(
    source: Source,
    listing: Listing,
    folder: Path,
    network: Network,
    recipe: Recipe,
    device: torch.device,
    workers: int | None,
    decoded: str,
    progress: Progress,
) -> pixels.Pixels:
    """The images, decoded once if that is wanted or there is room."""
    size = network.description.size
    side = _side(size)
    squash = pixels.Squash(side, network.description.interpolation, VIEWS[recipe.views])
    first = processes.rank() == 0
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


def _side(size: int) -> int:
    """Side of the decoded images, for views of `size` pixels: crops of larger ones have detail to spare."""
    return size if size <= 64 else round(size * 8 / 7)


def _restored(folder: Path, training: Training) -> tuple[int, list[float]]:
    """Bring the training to its last checkpoint; returns the steps taken by then, and the losses not yet logged."""
    state = None
    for turn in (True, False):  # the first process sets damaged checkpoints aside before the others look
        if (processes.rank() == 0) == turn:
            state = checkpoints.load(folder / "checkpoints", training.network, training.optimizer)
            if turn and state is not None:
                checkpoints.set_aside_after(folder / "checkpoints", state["step"])
        processes.wait()
    return (0, []) if state is None else (int(state["step"]), list(map(float, state["losses"])))


class _Run:
    """Training from a step on, with what is seen and kept on the way."""

    def __init__(
        self,
        folder: Path,
        training: Training,
        images: pixels.Pixels,
        probe: Probe,
        history: History | None,
        device: torch.device,
        numbers: torch.dtype,
        progress: Progress,
    ):
        self._folder, self._training, self._images, self._probe = folder, training, images, probe
        self._history, self._device, self._numbers, self._progress = history, device, numbers, progress
        self._losses: list[torch.Tensor] = []  # not yet fetched from the device
        self._seen: list[float] = []  # not yet logged
        self._z: torch.Tensor | None = None
        self._saved = self.step = 0
        self._loss = float("nan")
        self._geometry = Geometry(*[float("nan")] * 3)
        self._figures = Figures(float("nan"), float("nan"))
        self._seconds = self._waited = 0.0
        self._trained = 0
        self._told = False

    def go(self, first: int, losses: list[float], *, until: float, save_every: float) -> None:
        """Train until the end, or that time; save at the end, on Ctrl-C and every so many seconds."""
        training, B = self._training, self._training.recipe.batch_size
        self.step = self._saved = first
        self._seen = losses
        self._progress.start((training.steps - first) * B, "pretraining")
        if first == 0:
            self._look_at_features(log_it=True)
        saved_at = time.monotonic()
        with deferred() as let_through:
            batches = self._images.batches(training.rows(first))
            self._clock = time.monotonic()
            for step in range(first, training.steps):
                asked = time.monotonic()
                images = next(batches)
                self._waited += time.monotonic() - asked
                loss, self._z = training.step(step, images)
                self._losses.append(loss)
                self.step = step + 1
                self._progress.advance(B)
                self._let(let_through)
                if self.step % _LOOK and self.step % training.an_epoch:
                    continue
                self._look()
                out_of_time = processes.from_first(time.monotonic() > until)
                if out_of_time or time.monotonic() - saved_at > save_every:
                    self._save()
                    saved_at = time.monotonic()
                    self._clock = time.monotonic()
                if out_of_time:
                    break
            batches.close() if hasattr(batches, "close") else None
        self._save()

    def _let(self, through: Callable[[], None]) -> None:
        """Let Ctrl-C through between two steps, with everything saved."""
        try:
            through()
        except KeyboardInterrupt:
            self._save()
            raise

    # --- looking -----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Look at the losses since the last time, and at the features when it is their turn."""
        training = self._training
        count = len(self._losses)
        self._fetch_losses()
        self._loss = sum(self._seen) / len(self._seen)
        self._seen = []
        now = time.monotonic()
        self._seconds += now - self._clock
        rate = count * training.recipe.batch_size / (now - self._clock)
        self._trained += count * training.recipe.batch_size
        assert self._z is not None
        self._geometry = geometry(self._z)
        epoch = self.step / training.an_epoch
        every = max(1, training.recipe.epochs // _LOOKS) * training.an_epoch
        features = self.step % every == 0 or self.step == training.steps
        if self._history is not None:
            if features:
                self._look_at_features()
            known = {"probe": self._figures.probe, "rank": self._figures.rank} if features else {}
            self._history.add(
                step=self.step,
                epoch=epoch,
                loss=self._loss,
                rate=training.recipe.rate(self.step - 1, training.steps),
                **dataclasses.asdict(self._geometry),
                **{name: value for name, value in known.items() if math.isfinite(value)},
                images_per_second=rate,
            )
        told = f", probe {self._figures.probe:.4f}" if math.isfinite(self._figures.probe) else ""
        self._progress.remark(f"epoch {epoch:.1f}/{training.recipe.epochs}, loss {self._loss:.3f}{told}")
        self._warn_of_collapse()
        self._clock = time.monotonic()

    def _fetch_losses(self) -> None:
        """Fetch the losses of the last steps; raise where one is not finite."""
        if not self._losses:
            return
        losses = torch.stack(self._losses).float().cpu()
        bad = torch.nonzero(~losses.isfinite()).flatten()
        if len(bad):
            self._fail(f"the loss is {losses[bad[0]]}", self.step - len(losses) + int(bad[0]) + 1)
        self._seen += losses.tolist()
        self._losses = []

    def _fail(self, what: str, step: int) -> None:
        kept = f"the state after step {self._saved} is kept" if self._saved else "nothing had been saved yet"
        raise RunError(
            f"{what} at step {step} of {self._training.steps}; {kept}. Begin another folder with a lower --lr"
            f"{'' if self._numbers == torch.float32 else ', with --precision fp32'} or a higher --temperature"
        )

    def _look_at_features(self, *, log_it: bool = False) -> None:
        if self._history is None:
            return
        self._figures = self._probe(self._training.network, self._device, self._numbers)
        if log_it:
            self._history.add(step=0, epoch=0, rank=self._figures.rank, **self._finite_probe())

    def _finite_probe(self) -> dict[str, float]:
        return {"probe": self._figures.probe} if math.isfinite(self._figures.probe) else {}

    def _warn_of_collapse(self) -> None:
        if self.collapsed and not self._told and self._history is not None:
            self._told = True
            log.warning(
                "the projections have collapsed (spread %.3f of 1 after step %d): the network tells no images apart; "
                "use a lower --lr, a larger --batch-size, or other --views",
                self._geometry.spread,
                self.step,
            )

    @property
    def collapsed(self) -> bool:
        """Whether the projections tell no images apart."""
        return self._geometry.spread < _COLLAPSED

    # --- keeping -----------------------------------------------------------------------------------

    def _save(self) -> None:
        """Write checkpoint and encoder, unless that is done."""
        if self._history is None or (self.step == self._saved and self._saved):
            return
        self._fetch_losses()
        if not self._training.is_finite():
            self._fail("a weight of the network is not finite", self.step)
        network = self._training.network
        checkpoints.save(
            self._folder / "checkpoints", self.step, network, self._training.optimizer, {"losses": self._seen}
        )
        description = dataclasses.replace(network.description, steps=self.step)
        encoder_file.write(self._folder / encoder_file.NAME, network.backbone, description)
        self._saved = self.step

    def report(self, listing: Listing, seconds: float) -> PretrainReport:
        """What has come of it."""
        history = self._history
        probes = history.column("probe") if history else []
        last = history.rows[-1] if history and history.rows else {}
        if history and math.isnan(self._loss) and last.get("loss"):  # nothing was left to do
            self._loss = float(last["loss"])
            self._geometry = Geometry(*[float(last[name]) for name in ("alignment", "uniformity", "spread")])
        ranks = history.column("rank") if history else []
        return PretrainReport(
            folder=self._folder,
            images=len(self._images.keys),
            failures={**listing.failures, **self._images.failures},
            steps=self.step,
            total=self._training.steps,
            loss=self._loss,
            geometry=self._geometry,
            probe_name=self._probe.name,
            probe_before=probes[0] if probes else float("nan"),
            probe=probes[-1] if probes else float("nan"),
            rank=ranks[-1] if ranks else float("nan"),
            collapsed=self.collapsed,
            seconds=seconds,
            images_per_second=self._trained / self._seconds if self._seconds else float("nan"),
            waited=self._waited / self._seconds if self._seconds else 0.0,
        )


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
    size = network.description.size
    squash = pixels.Squash(_side(size), network.description.interpolation, VIEWS[recipe.views])
    order = np.random.default_rng(start.seed).permutation(len(listing.keys))
    shown: list[torch.Tensor] = []
    for row in order[: 20 * _SHOWN]:
        with contextlib.suppress(ImageError):
            shown.append(squash(decode(source.read(listing.keys[row]), squash.sufficient)).contiguous())
        if len(shown) == _SHOWN:
            break
    if not shown:
        raise SourceError(f"none of {min(len(order), 20 * _SHOWN)} images of {source.name} can be used")
    preview(path, torch.stack(shown), Augment(VIEWS[recipe.views], size), draw(start.seed, 0, len(shown), 6))
    return len(shown)
