"""Metrics of a running training: loss, projection geometry, probe and throughput."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from dataclasses import dataclass

import torch

from ..errors import RunError
from ..progress import Progress
from . import process_group
from .metrics_log import MetricsLog
from .probe import Probe, ProbeResult
from .projection_geometry import ProjectionGeometry, projection_geometry
from .train_step import Training

log = logging.getLogger("pucache")

_PROBES = 10  # times that the features are probed during a run
_COLLAPSED = 0.1  # spread of the projections below which they no longer distinguish images


@dataclass
class Throughput:
    """Throughput of training.

    Attributes
    ----------
    images : int
        Images trained on, counted again in each epoch.
    seconds : float
        Training time, without probing and saving.
    waited : float
        Seconds of it spent waiting for images.
    """

    images: int = 0
    seconds: float = 0.0
    waited: float = 0.0


class TrainingMonitor:
    """Measure a training, log its metrics and stop it when a value is not finite.

    Parameters
    ----------
    training : Training
    probe : Probe
    metrics_log : MetricsLog, optional
        Of the first process. Without it nothing is logged and the features are not probed.
    progress : Progress
    losses : list of float
        Losses that the checkpoint holds because they were not yet logged.
    step : int
        Steps taken.

    Attributes
    ----------
    loss : float
        Mean over the steps since the previous row of the log.
    geometry : ProjectionGeometry
        Of the last batch that was measured.
    probe_result : ProbeResult
        The last one.
    throughput : Throughput
    metrics_log
        As passed.
    step : int
        Steps taken.
    saved_step : int
        Step of the last checkpoint; set by `Trainer`.
    """

    def __init__(
        self,
        training: Training,
        probe: Probe,
        metrics_log: MetricsLog | None,
        progress: Progress,
        *,
        losses: list[float],
        step: int,
    ):
        self._training, self._probe, self._progress = training, probe, progress
        self.metrics_log = metrics_log
        self.loss, self.geometry = float("nan"), ProjectionGeometry()
        self.probe_result, self.throughput = ProbeResult(), Throughput()
        self.step = self.saved_step = step
        self._losses = losses  # of the steps since the last row of the log
        self._device_losses: list[torch.Tensor] = []  # the most recent ones, still on the device
        self._unmeasured_steps = 0
        self._z: torch.Tensor | None = None
        self._warned = False
        self._started = time.monotonic()
        self._restore_last_row()

    def _restore_last_row(self) -> None:
        """Take loss and geometry from the log, for a run with no steps left."""
        if self.metrics_log is None or not self.metrics_log.rows:
            return
        row = {name: float(text or "nan") for name, text in self.metrics_log.rows[-1].items()}
        self.loss = row["loss"]
        self.geometry = ProjectionGeometry(row["alignment"], row["uniformity"], row["spread"])

    @property
    def collapsed(self) -> bool:
        """Whether the projections have collapsed to nearly one point."""
        return self.geometry.spread < _COLLAPSED

    @property
    def unlogged_losses(self) -> list[float]:
        """Losses of the steps since the last row of the log, fetched from the device."""
        self._fetch_losses()
        return self._losses

    def restart_clock(self) -> None:
        """Measure training time from now on."""
        self._started = time.monotonic()

    def exclude(self, seconds: float) -> None:
        """Subtract time that was not spent on training."""
        self._started += seconds

    def probe_at_start(self) -> None:
        """Probe the features before the first step, and log the result."""
        if self.metrics_log is not None:
            self._run_probe()
            self.metrics_log.append(step=0, epoch=0, **dataclasses.asdict(self.probe_result))

    def record(self, loss: torch.Tensor, z: torch.Tensor, *, waited: float) -> None:
        """Record one step: loss () and projections (b, M, d) on the device, and the seconds spent waiting."""
        self._device_losses.append(loss)
        self._z = z
        self.step += 1
        self._unmeasured_steps += 1
        self.throughput.waited += waited

    def measure_and_log(self) -> None:
        """Measure the steps since the last call, append a row to the log and probe the features when due."""
        images, seconds = self._measure()
        self._losses = []
        interval = max(1, self._training.recipe.epochs // _PROBES) * self._training.steps_per_epoch
        if self.metrics_log is not None:
            probe_due = self.step % interval == 0 or self.step == self._training.steps
            self._log(self.metrics_log, probe_due=probe_due, images_per_second=images / seconds)
        self.restart_clock()

    def measure_rest(self) -> None:
        """Measure steps that are not logged because training stops before the next row."""
        if self._unmeasured_steps:
            self._measure()

    def _measure(self) -> tuple[int, float]:
        """Update loss, geometry and throughput; returns the images and seconds that were added."""
        images = self._unmeasured_steps * self._training.recipe.batch_size
        self._fetch_losses()  # waits for the device
        seconds = time.monotonic() - self._started
        self._unmeasured_steps = 0
        self.throughput.images += images
        self.throughput.seconds += seconds
        self.loss = sum(self._losses) / len(self._losses)
        assert self._z is not None
        self.geometry = projection_geometry(process_group.all_gather_with_gradients(self._z)[0])
        return images, seconds

    def _run_probe(self) -> None:
        training = self._training
        self.probe_result = self._probe(training.network, training.device, training.dtype)

    def _log(self, metrics_log: MetricsLog, *, probe_due: bool, images_per_second: float) -> None:
        """Append a row to the log and show its main values."""
        training = self._training
        probe_metrics: dict[str, float] = {}
        if probe_due:
            self.require_finite_weights()
            self._run_probe()
            probe_metrics = dataclasses.asdict(self.probe_result)
        epoch = self.step / training.steps_per_epoch
        metrics_log.append(
            step=self.step,
            epoch=epoch,
            loss=self.loss,
            rate=training.recipe.learning_rate(self.step - 1, training.steps),
            **dataclasses.asdict(self.geometry),
            **probe_metrics,
            images_per_second=images_per_second,
        )
        probe_text = f", probe {self.probe_result.probe:.4f}" if math.isfinite(self.probe_result.probe) else ""
        self._progress.remark(f"epoch {epoch:.1f}/{training.recipe.epochs}, loss {self.loss:.3f}{probe_text}")
        self._warn_of_collapse()

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

    def require_finite_weights(self) -> None:
        """Raise `RunError` if a weight of the network is not finite."""
        if not self._training.is_finite():
            self._fail("a weight of the network is not finite", self.step)

    def _fail(self, problem: str, step: int) -> None:
        kept = f"the state after step {self.saved_step} is kept" if self.saved_step else "nothing had been saved yet"
        precision = "" if self._training.dtype == torch.float32 else ", with --precision fp32"
        raise RunError(
            f"{problem} at step {step} of {self._training.steps}; {kept}. Begin another folder with a lower --lr"
            f"{precision} or a higher --temperature"
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
