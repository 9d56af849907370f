"""The training loop: from the last checkpoint to the end, a time limit or an interruption."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..encoders import pretrained_file
from ..errors import RunError
from ..progress import Progress
from ..storage.interrupts import deferred_signals
from . import checkpoints, process_group
from .dataset import TrainingImages
from .monitor import TrainingMonitor
from .run_folder import CHECKPOINTS
from .train_step import Training

log = logging.getLogger("pucache")

_LOG_INTERVAL = 50  # steps after which metrics are logged; also at the end of each epoch


class ResumePoint(NamedTuple):
    """Where training continues.

    Attributes
    ----------
    step : int
        Steps taken.
    losses : list of float
        Losses of the last of them, not logged yet.
    """

    step: int
    losses: list[float]


def resume(folder: Path, training: Training, images: int) -> ResumePoint:
    """Load the last checkpoint of a run into a training.

    Parameters
    ----------
    folder : Path
        Run folder.
    training : Training
    images : int
        Number of images that can be used now.

    Returns
    -------
    ResumePoint
        Step 0 if there is no checkpoint.

    Raises
    ------
    RunError
        All checkpoints are damaged, the processes see different ones, or the checkpoint is of another number
        of images.
    """
    state = None
    for first_turn in (True, False):  # the first process renames damaged checkpoints before the others read
        if (process_group.rank() == 0) == first_turn:
            state = checkpoints.load(folder / CHECKPOINTS, training.network, training.optimizer)
            if first_turn and state is not None:
                checkpoints.set_aside_after(folder / CHECKPOINTS, state["step"])
        process_group.barrier()
    step = None if state is None else state["step"]
    if process_group.broadcast_from_first(step) != step:
        raise RunError(
            f"process {process_group.rank()} finds the state after step {step} in {folder}, "
            "and the first process another; all need the same files"
        )
    if state is None:
        return ResumePoint(0, [])
    try:
        saved_images, losses = int(state["images"]), list(map(float, state["losses"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"the last checkpoint in {folder} lacks what pretrain writes; name another folder") from error
    if saved_images != images:
        raise RunError(
            f"{folder} was trained with {saved_images:,} images, and {images:,} can be used now; give the same "
            "images and the same --decode to go on, or name another folder"
        )
    return ResumePoint(int(state["step"]), losses)


class Trainer:
    """The training loop of one run.

    Parameters
    ----------
    folder : Path
        Run folder, which receives the checkpoints and the encoder.
    training : Training
        With the last checkpoint loaded, see `resume`.
    images : TrainingImages
    monitor : TrainingMonitor
        Only the first process has one with a log, and only that process writes files.
    progress : Progress

    Attributes
    ----------
    folder, training, images, monitor
        As passed.
    """

    def __init__(
        self, folder: Path, training: Training, images: TrainingImages, monitor: TrainingMonitor, progress: Progress
    ):
        self.folder, self.training, self.images, self.monitor = folder, training, images, monitor
        self._progress = progress
        self._writes = monitor.metrics_log is not None

    @property
    def step(self) -> int:
        """Number of steps taken."""
        return self.monitor.step

    def run(self, *, until: float, save_every: float) -> None:
        """Train to the end or a point in time. Saves at the end, on Ctrl-C and at intervals.

        Parameters
        ----------
        until : float
            Value of `time.monotonic` at which to stop.
        save_every : float
            Seconds between checkpoints.

        Raises
        ------
        RunError
            A loss or weight is not finite, or the device is out of memory.
        OutputError
            The folder cannot be written.
        """
        training = self.training
        self._progress.start((training.steps - self.step) * training.recipe.batch_size, "pretraining")
        self._begin()
        batches: Any = self.images.batches(training.batch_rows(self.step))
        with deferred_signals() as deliver_signals, contextlib.closing(batches):
            self.monitor.restart_clock()
            last_save = time.monotonic()
            stopped = False
            while self.step < training.steps and not stopped:
                self._take_step(batches)
                if self.step % _LOG_INTERVAL == 0 or self.step % training.steps_per_epoch == 0:
                    self.monitor.measure_and_log()
                stopped = self._should_stop(deliver_signals, until)  # after logging, so that the row is not lost
                if time.monotonic() - last_save > save_every:
                    started = time.monotonic()
                    self._save()
                    last_save = time.monotonic()
                    self.monitor.exclude(last_save - started)
            self.monitor.measure_rest()
            self._save()

    def _begin(self) -> None:
        if self.step == self.training.steps and self._writes:
            self._write_encoder()  # the file may be missing
            log.info("nothing is left to train; the encoder is written anew")
        if self.step == 0:
            self.monitor.probe_at_start()

    def _take_step(self, batches: Any) -> None:
        started = time.monotonic()
        images = next(batches)
        waited = time.monotonic() - started
        loss, z = self.training.step(self.step, images)
        self.monitor.record(loss, z, waited=waited)
        self._progress.advance(self.training.recipe.batch_size)

    def _should_stop(self, deliver_signals: Callable[[], None], until: float) -> bool:
        """Whether the time is up. Delivers a deferred Ctrl-C, after saving.

        All processes stop after the same step.
        """
        interruption = None
        try:
            deliver_signals()
        except BaseException as raised:  # whatever the signal handler raises
            interruption = raised
        time_is_up = self._writes and time.monotonic() > until
        if not process_group.any_process(interruption is not None or time_is_up):
            return False
        if process_group.any_process(interruption is not None):
            self._save()
            # wait for the process that saves: torchrun ends all processes when one exits
            process_group.barrier()
            raise interruption or KeyboardInterrupt
        return True

    def _save(self) -> None:
        """Write encoder and checkpoint, unless those of this step exist."""
        if not self._writes or self.step == self.monitor.saved_step:
            return
        losses = self.monitor.unlogged_losses
        self.monitor.require_finite_weights()
        self._write_encoder()  # first: a run with its last checkpoint counts as finished
        state = {"losses": losses, "images": len(self.images.keys)}
        checkpoints.save(self.folder / CHECKPOINTS, self.step, self.training.network, self.training.optimizer, state)
        self.monitor.saved_step = self.step

    def _write_encoder(self) -> None:
        network = self.training.network
        description = dataclasses.replace(network.description, steps=self.step)
        pretrained_file.write(self.folder / pretrained_file.NAME, network.backbone, description)
