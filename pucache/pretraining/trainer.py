"""The training loop: from the last checkpoint to the end, a time limit or an interruption."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..encoders import pretrained_file
from ..errors import RunError
from ..progress import Progress
from ..storage.interrupts import deferred_signals
from . import process_group
from .dataset import MappedImages
from .losses import ProjectionGeometry, projection_geometry
from .probe import Probe
from .run_folder import PretrainReport, RunFolder, restore
from .train_step import Training

log = logging.getLogger("pucache")

_LOG_INTERVAL = 50  # steps after which metrics are logged; also at the end of each epoch
_PROBES = 10  # times that the features are probed during a run
SAVE_EVERY = 300.0  # seconds between checkpoints
COMPILING_REPAYS = 300  # seconds of training left on a GPU: compiling takes a minute, and saves some 40 % of a step
_COLLAPSED = 0.1  # spread of the projections below which they no longer distinguish images


def resume(folder: RunFolder | None, training: Training, images: int) -> tuple[int, list[float]]:
    """Load the last checkpoint of a run into the training of every process.

    Returns the steps taken, 0 if there is no checkpoint, and the losses of the last of them, not logged yet. The first
    process reads for all, and alone has a `folder`; `images` is the number that can be used now. Raises `RunError`
    where all checkpoints are damaged, or the checkpoint is of another number of images.
    """
    found = folder.load(training.network, training.optimizer) if folder else None
    found = process_group.broadcast_from_first(found)
    if found is None:
        return 0, []
    tensors, state = found
    if folder is None:
        restore(Path("the checkpoint"), tensors, training.network, training.optimizer)
    try:
        saved_images, losses = int(state["images"]), list(map(float, state["losses"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RunError("the last checkpoint lacks what pretrain writes; name another folder") from error
    if saved_images != images:
        raise RunError(
            f"the run was trained with {saved_images:,} images, and {images:,} can be used now; give the same "
            "images to go on, or name another folder"
        )
    return int(state["step"]), losses


class Trainer:
    """The training loop of one run: it measures the steps, logs metrics and saves.

    The first process alone has a `folder`, probes the features and writes files; its log has been started. `step` and
    `losses` are as `resume` returned them.
    """

    def __init__(
        self,
        folder: RunFolder | None,
        training: Training,
        images: MappedImages,
        probe: Probe,
        progress: Progress,
        *,
        step: int,
        losses: list[float],
    ):
        self._folder, self._training, self._images = folder, training, images
        self._probe, self._progress = probe, progress
        self.step = self._saved_step = step
        self._losses = losses  # of the steps since the last row of the log
        self._device_losses: list[torch.Tensor] = []  # the most recent ones, still on the device
        self._z: torch.Tensor | None = None  # projections of a step that is not measured yet
        self._unmeasured_steps = self._measured_images = 0
        self._started, self._seconds, self._waited = 0.0, 0.0, 0.0  # training time, without probing and saving
        self._loss, self._geometry = math.nan, ProjectionGeometry()
        if folder and folder.rows:  # for a run with no steps left
            row = {name: float(text or "nan") for name, text in folder.rows[-1].items()}
            self._loss = row["loss"]
            self._geometry = ProjectionGeometry(row["alignment"], row["uniformity"], row["spread"])
        self._warned = False
        self._may_compile = (
            training.device.type == "cuda"
            and process_group.world_size() == 1
            and os.environ.get("TORCH_COMPILE_DISABLE") != "1"
        )
        self._is_compile_due = False

    # --- the loop ----------------------------------------------------------------------------------

    def run(self, *, until: float) -> None:
        """Train to the end or until `time.monotonic` is `until`. Saves at the end, on Ctrl-C and every `SAVE_EVERY`.

        Raises `RunError` where a loss or weight is not finite, or the device is out of memory.
        """
        training = self._training
        self._progress.start((training.steps - self.step) * training.recipe.batch_size, "pretraining")
        if self._folder and self.step == training.steps:
            self._write_encoder(self._folder)  # the file may be missing
            log.info("nothing is left to train; the encoder is written anew")
        if self._folder and self.step == 0:
            self._folder.append(step=0, epoch=0, **self._probed())
        batches: Any = self._images.batches(training.batch_rows(self.step))
        with deferred_signals() as deliver_signals, contextlib.closing(batches):
            self._started = last_save = time.monotonic()
            stopped = False
            while self.step < training.steps and not stopped:
                self._take_step(batches)
                if self.step % _LOG_INTERVAL == 0 or self.step % training.steps_per_epoch == 0:
                    self._measure_and_log(until)
                stopped = self._should_stop(deliver_signals, until)  # after logging, so that the row is not lost
                if time.monotonic() - last_save > SAVE_EVERY:
                    begun = time.monotonic()
                    self._save()
                    last_save = time.monotonic()
                    self._started += last_save - begun
            if self._z is not None:
                self._measure()
            self._save()

    def _take_step(self, batches: Any) -> None:
        begun = time.monotonic()
        images = next(batches)
        self._waited += time.monotonic() - begun
        if self._is_compile_due:
            self._compile_step(images)
        loss, self._z = self._training.step(self.step, images)
        self._device_losses.append(loss)
        self.step += 1
        self._unmeasured_steps += 1
        self._progress.advance(self._training.recipe.batch_size)

    def _compile_step(self, images: torch.Tensor) -> None:
        """Compile the step, once, outside the time of training."""
        begun = time.monotonic()
        self._may_compile = self._is_compile_due = False
        log.info("compiling the training step, which may take a minute or two; TORCH_COMPILE_DISABLE=1 goes without")
        self._training.compile(self.step, images)
        self._started += time.monotonic() - begun

    def _does_compiling_repay(self, images_per_second: float, until: float) -> bool:
        """Whether much training is left, by the throughput once kernels have been chosen."""
        training = self._training
        if not self._may_compile:
            return False
        seconds = (training.steps - self.step) * training.recipe.batch_size / images_per_second
        has_settled = self._measured_images > _LOG_INTERVAL * training.recipe.batch_size
        return has_settled and min(seconds, until - time.monotonic()) > COMPILING_REPAYS

    def _should_stop(self, deliver_signals: Callable[[], None], until: float) -> bool:
        """Whether the time is up, for all processes after the same step. Delivers a deferred Ctrl-C, after saving."""
        interruption = None
        try:
            deliver_signals()
        except BaseException as raised:  # whatever the signal handler raises
            interruption = raised
        time_is_up = self._folder is not None and time.monotonic() > until
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
        if self._folder is None or self.step == self._saved_step:
            return
        self._fetch_losses()
        self._require_finite_weights()
        state = {"losses": self._losses, "images": len(self._images.keys)}
        if self._saved_step:
            self._write_encoder(self._folder)  # first: a run with its last checkpoint counts as finished
        self._folder.save(self.step, self._training.network, self._training.optimizer, state)
        if not self._saved_step:  # then: an encoder without any checkpoint says that these are lost
            self._write_encoder(self._folder)
        self._saved_step = self.step

    def _write_encoder(self, folder: RunFolder) -> None:
        network = self._training.network
        description = dataclasses.replace(network.description, steps=self.step)
        pretrained_file.write(folder.path / pretrained_file.NAME, network.backbone, description)

    # --- measuring ---------------------------------------------------------------------------------

    def _measure(self) -> float:
        """Update loss, geometry and throughput; returns the images per second since the last call."""
        images = self._unmeasured_steps * self._training.recipe.batch_size
        self._fetch_losses()  # waits for the device
        seconds = time.monotonic() - self._started
        self._measured_images += images
        self._seconds += seconds
        self._loss = sum(self._losses) / len(self._losses)
        assert self._z is not None
        with process_group.lost_processes_reported():
            self._geometry = projection_geometry(process_group.gather(self._z)[0])
        self._unmeasured_steps, self._z = 0, None
        return images / seconds

    def _measure_and_log(self, until: float) -> None:
        """Measure the steps since the last call, append a row to the log and probe the features when due."""
        images_per_second = self._measure()
        self._is_compile_due = self._does_compiling_repay(images_per_second, until)
        self._losses = []
        if self._folder:
            self._log(self._folder, images_per_second)
        self._started = time.monotonic()

    def _log(self, folder: RunFolder, images_per_second: float) -> None:
        training, epochs = self._training, self._training.recipe.epochs
        interval = max(1, epochs // _PROBES) * training.steps_per_epoch
        probed: dict[str, float] = {}
        if self.step % interval == 0 or self.step == training.steps:
            self._require_finite_weights()
            probed = self._probed()
        epoch = self.step / training.steps_per_epoch
        folder.append(
            step=self.step,
            epoch=epoch,
            loss=self._loss,
            rate=training.recipe.learning_rate(self.step - 1, training.steps),
            **vars(self._geometry),
            **probed,
            images_per_second=images_per_second,
        )
        probes = folder.column("probe")
        probe_text = f", probe {probes[max(probes)]:.4f}" if probes else ""
        self._progress.remark(f"epoch {epoch:.1f}/{epochs}, loss {self._loss:.3f}{probe_text}")
        if self._collapsed and not self._warned:
            self._warned = True
            log.warning(
                "the projections have collapsed (spread %.3f of 1 after step %d): the network tells no images apart; "
                "use a lower --lr, a larger --batch-size, or other --views",
                self._geometry.spread,
                self.step,
            )

    @property
    def _collapsed(self) -> bool:
        return self._geometry.spread < _COLLAPSED

    def _probed(self) -> dict[str, float]:
        training = self._training
        quality, rank = self._probe(training.network, training.device, training.dtype)
        return {"probe": quality, "rank": rank}

    def _fetch_losses(self) -> None:
        """Copy the losses of the last steps from the device; raise if one is not finite."""
        if not self._device_losses:
            return
        losses = torch.stack(self._device_losses).float().cpu()
        bad = torch.nonzero(~losses.isfinite()).flatten()
        if len(bad):
            self._fail(f"the loss is {losses[bad[0]]}", self.step - len(losses) + int(bad[0]) + 1)
        self._losses += losses.tolist()
        self._device_losses = []

    def _require_finite_weights(self) -> None:
        if not self._training.is_finite():
            self._fail("a weight of the network is not finite", self.step)

    def _fail(self, problem: str, step: int) -> None:
        kept = f"the state after step {self._saved_step} is kept" if self._saved_step else "nothing had been saved yet"
        precision = "" if self._training.dtype == torch.float32 else ", with --precision fp32"
        raise RunError(
            f"{problem} at step {step} of {self._training.steps}; {kept}. Begin another folder with a lower --lr"
            f"{precision} or a higher --temperature"
        )

    def report(self, folder: Path, failures: dict[str, str], probe_name: str, *, started: float) -> PretrainReport:
        """Summarise the training since `started`, by `time.monotonic`; `failures` are files that were not listed."""
        probes = self._folder.column("probe") if self._folder else {}
        ranks = self._folder.column("rank") if self._folder else {}
        return PretrainReport(
            folder=folder,
            images=len(self._images.keys),
            failures={**failures, **self._images.failures},
            steps=self.step,
            total=self._training.steps,
            loss=self._loss,
            geometry=self._geometry,
            probe_name=probe_name,
            probe_before=probes.get(0, math.nan) if probe_name else math.nan,
            probe=_last(probes) if probe_name else math.nan,
            rank=_last(ranks),
            collapsed=self._collapsed,
            seconds=time.monotonic() - started,
            images_per_second=self._measured_images / self._seconds if self._seconds else math.nan,
            waited=self._waited / self._seconds if self._seconds else 0.0,
        )


def _last(values: dict[int, float]) -> float:
    return values[max(values)] if values else math.nan
