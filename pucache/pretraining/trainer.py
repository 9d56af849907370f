"""Training from where it was left to its end, or until the time is up, with what is seen and kept on the way."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..encoders import pretrained_file
from ..errors import RunError
from ..progress import Progress
from ..storage.interrupts import deferred_signals
from . import checkpoints, process_group
from .dataset import Pixels
from .metrics_log import History
from .probe import Figures, Probe
from .run_folder import CHECKPOINTS
from .train_step import Geometry, Training, geometry

log = logging.getLogger("pucache")

_LOOK = 50  # steps after which the losses are looked at, at the latest
_LOOKS = 10  # at the features, over a run
_COLLAPSED = 0.1  # spread of the projections under which they tell no images apart


@dataclass
class Speed:
    """How fast training is.

    Attributes
    ----------
    images : int
        Trained on, counted anew in every epoch.
    seconds : float
        That this took, without looking and saving.
    waited : float
        Of these, spent waiting for images.
    """

    images: int = 0
    seconds: float = 0.0
    waited: float = 0.0


def restore(folder: Path, training: Training, images: int) -> tuple[int, list[float]]:
    """Bring a training to its last checkpoint; returns the steps taken by then, and the losses not yet logged.

    Raises
    ------
    RunError
        No checkpoint is whole, processes find different ones, or it was trained with another number of images.
    """
    state = None
    for turn in (True, False):  # the first process sets damaged checkpoints aside before the others look
        if (process_group.rank() == 0) == turn:
            state = checkpoints.load(folder / CHECKPOINTS, training.network, training.optimizer)
            if turn and state is not None:
                checkpoints.set_aside_after(folder / CHECKPOINTS, state["step"])
        process_group.barrier()
    at = None if state is None else state["step"]
    if process_group.broadcast_from_first(at) != at:
        raise RunError(
            f"process {process_group.rank()} finds the state after step {at} in {folder}, and the first process another; "
            "all need the same files"
        )
    if state is None:
        return 0, []
    try:
        told, losses = int(state["images"]), list(map(float, state["losses"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"the last checkpoint in {folder} lacks what pretrain writes; name another folder") from error
    if told != images:
        raise RunError(
            f"{folder} was trained with {told:,} images, and {images:,} can be used now; give the same "
            "images and the same --decode to go on, or name another folder"
        )
    return int(state["step"]), losses


class Loop:
    """Training from a step on.

    Parameters
    ----------
    folder : Path
        Gets the checkpoints and the encoder.
    training : Training
        Brought to its last checkpoint.
    images : Pixels
    probe : Probe
    history : History, optional
        Of the first process; the others neither look at the features nor write anything.
    progress : Progress
    step, losses
        See `restore`.

    Attributes
    ----------
    step : int
        Taken so far.
    loss : float
        Mean of the last steps looked at.
    geometry, figures, speed
        As last seen.
    folder, training, images, history
        As given.
    """

    def __init__(
        self,
        folder: Path,
        training: Training,
        images: Pixels,
        probe: Probe,
        history: History | None,
        progress: Progress,
        *,
        step: int,
        losses: list[float],
    ):
        self.folder, self.training, self.images, self.history = folder, training, images, history
        self._probe, self._progress = probe, progress
        self.step = self._kept = step
        self.loss, self.geometry = float("nan"), Geometry(*[float("nan")] * 3)
        self.figures, self.speed = Figures(float("nan"), float("nan")), Speed()
        self._losses = losses  # of the steps since the last row of the log
        self._coming: list[torch.Tensor] = []  # the last of them, still on the device
        self._unseen = 0  # steps since the last look
        self._z: torch.Tensor | None = None
        self._warned = False
        self._recall()

    def _recall(self) -> None:
        """Know what was logged last; it is all there is to tell where nothing is left to do."""
        if self.history is None or not self.history.rows:
            return
        row = {name: float(text or "nan") for name, text in self.history.rows[-1].items()}
        self.loss = row["loss"]
        self.geometry = Geometry(*[row[field.name] for field in dataclasses.fields(Geometry)])

    def run(self, *, until: float, save_every: float) -> None:
        """Train until the end, or that time; save then, on Ctrl-C, and every so many seconds.

        Raises
        ------
        RunError
            A loss or a weight that is not finite; out of memory.
        OutputError
            The folder cannot be written.
        """
        training = self.training
        self._progress.start((training.steps - self.step) * training.recipe.batch_size, "pretraining")
        self._begin()
        batches: Any = self.images.batches(training.rows(self.step))
        with deferred_signals() as let_through, contextlib.closing(batches):
            self._clock = saved = time.monotonic()
            over = False
            while self.step < training.steps and not over:
                self._take_step(batches)
                if self.step % _LOOK == 0 or self.step % training.an_epoch == 0:
                    self._look()
                over = self._let(let_through, until)  # after the look, or the log would lack it
                if time.monotonic() - saved > save_every:
                    began = time.monotonic()
                    self._save()
                    saved = time.monotonic()
                    self._clock += saved - began  # training alone counts
            self._take_in()
            self._save()

    def _begin(self) -> None:
        if self.step == self.training.steps and self.history is not None:
            self._write_encoder()  # it may have been lost
            log.info("nothing is left to train; the encoder is written anew")
        if self.step == 0 and self.history is not None:
            self.figures = self._probe(self.training.network, self.training.device, self.training.numbers)
            self.history.add(step=0, epoch=0, **dataclasses.asdict(self.figures))

    def _take_step(self, batches: Any) -> None:
        asked = time.monotonic()
        images = next(batches)
        self.speed.waited += time.monotonic() - asked
        loss, self._z = self.training.step(self.step, images)
        self._coming.append(loss)
        self.step += 1
        self._unseen += 1
        self._progress.advance(self.training.recipe.batch_size)

    def _let(self, through: Callable[[], None], until: float) -> bool:
        """Let Ctrl-C through between two steps, with everything saved; returns whether the time is up.

        All processes stop after the same step.
        """
        stop = None
        try:
            through()
        except BaseException as raised:  # whatever a signal makes of itself
            stop = raised
        late = self.history is not None and time.monotonic() > until
        if not process_group.any_process(stop is not None or late):
            return False
        if process_group.any_process(stop is not None):
            self._save()
            process_group.barrier()  # else torchrun ends the one that saves when the first of the others is gone
            raise stop or KeyboardInterrupt
        return True

    # --- looking -----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Look at the losses since the last time, and at the features when it is their turn."""
        recipe, an_epoch = self.training.recipe, self.training.an_epoch
        images = self._unseen * recipe.batch_size
        self._fetch_losses()  # waits for the device
        seconds = time.monotonic() - self._clock
        self._unseen = 0
        self.loss = sum(self._losses) / len(self._losses)
        self._losses = []
        self.speed.images += images
        self.speed.seconds += seconds
        assert self._z is not None
        self.geometry = geometry(process_group.all_gather_with_gradients(self._z)[0])
        every = max(1, recipe.epochs // _LOOKS) * an_epoch
        if self.history is not None:
            self._log(self.step % every == 0 or self.step == self.training.steps, images / seconds)
        self._clock = time.monotonic()

    def _take_in(self) -> None:
        """Know the figures of the last steps, where training stops before they are logged."""
        if not self._unseen:
            return
        self.speed.images += self._unseen * self.training.recipe.batch_size
        self._fetch_losses()
        self.speed.seconds += time.monotonic() - self._clock
        self.loss = sum(self._losses) / len(self._losses)
        assert self._z is not None
        self.geometry = geometry(process_group.all_gather_with_gradients(self._z)[0])

    def _log(self, features: bool, images_per_second: float) -> None:
        """Add a row to the log, with or without a look at the features, and tell the user."""
        training, known = self.training, {}
        if features:
            self._require_finite()
            self.figures = self._probe(training.network, training.device, training.numbers)
            known = dataclasses.asdict(self.figures)
        epoch = self.step / training.an_epoch
        assert self.history is not None
        self.history.add(
            step=self.step,
            epoch=epoch,
            loss=self.loss,
            rate=training.recipe.rate(self.step - 1, training.steps),
            **dataclasses.asdict(self.geometry),
            **known,
            images_per_second=images_per_second,
        )
        told = f", probe {self.figures.probe:.4f}" if math.isfinite(self.figures.probe) else ""
        self._progress.remark(f"epoch {epoch:.1f}/{training.recipe.epochs}, loss {self.loss:.3f}{told}")
        self._warn_of_collapse()

    def _fetch_losses(self) -> None:
        """Fetch the losses of the last steps; raise where one is not finite."""
        if not self._coming:
            return
        losses = torch.stack(self._coming).float().cpu()
        bad = torch.nonzero(~losses.isfinite()).flatten()
        if len(bad):
            self._fail(f"the loss is {losses[bad[0]]}", self.step - len(losses) + int(bad[0]) + 1)
        self._losses += losses.tolist()
        self._coming = []

    def _require_finite(self) -> None:
        if not self.training.is_finite():
            self._fail("a weight of the network is not finite", self.step)

    def _fail(self, what: str, step: int) -> None:
        kept = f"the state after step {self._kept} is kept" if self._kept else "nothing had been saved yet"
        raise RunError(
            f"{what} at step {step} of {self.training.steps}; {kept}. Begin another folder with a lower --lr"
            f"{'' if self.training.numbers == torch.float32 else ', with --precision fp32'} or a higher --temperature"
        )

    def _warn_of_collapse(self) -> None:
        if self.collapsed and not self._warned:
            self._warned = True
            log.warning(
                "the projections have collapsed (spread %.3f of 1 after step %d): the network tells no images apart; "
                "use a lower --lr, a larger --batch-size, or other --views",
                self.geometry.spread,
                self.step,
            )

    @property
    def collapsed(self) -> bool:
        """Whether the projections tell no images apart."""
        return self.geometry.spread < _COLLAPSED

    # --- keeping -----------------------------------------------------------------------------------

    def _save(self) -> None:
        """Write encoder and checkpoint, unless that is done."""
        if self.history is None or self.step == self._kept:
            return
        self._fetch_losses()
        self._require_finite()
        self._write_encoder()  # first: a run whose last checkpoint is there is taken for done
        state = {"losses": self._losses, "images": len(self.images.keys)}
        checkpoints.save(self.folder / CHECKPOINTS, self.step, self.training.network, self.training.optimizer, state)
        self._kept = self.step

    def _write_encoder(self) -> None:
        network = self.training.network
        description = dataclasses.replace(network.description, steps=self.step)
        pretrained_file.write(self.folder / pretrained_file.NAME, network.backbone, description)
