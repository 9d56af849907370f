"""Result of a pretraining run, as returned, printed and stored in the run folder."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

from ..encoders import pretrained_file
from ..errors import EncoderError
from ..images.listing import Listing
from . import run_folder
from .projection_geometry import ProjectionGeometry
from .recipes import Recipe
from .trainer import Trainer

_NAN = float("nan")


@dataclass(frozen=True)
class PretrainReport:
    """Result of a pretraining run.

    Attributes
    ----------
    folder : Path
        Run folder.
    images : int
        Number of images trained on.
    failures : dict of str to str
        Key to reason, for images that could not be used.
    steps, total : int
        Steps taken so far, and steps of the whole run.
    loss : float
        Mean over the last steps that were measured.
    geometry : ProjectionGeometry
        Of the last batch that was measured.
    probe_name : str
        Name of the probe's metric.
    probe_before, probe : float
        Probe before the first step and now; NaN without positives or labels.
    rank : float
        Effective rank of the features.
    collapsed : bool
        Whether the projections have collapsed to nearly one point.
    seconds : float
        Duration of this call.
    images_per_second : float
        While training; NaN if no step was taken.
    waited : float
        Share of the training time spent waiting for images.
    """

    folder: Path
    images: int
    failures: dict[str, str]
    steps: int
    total: int
    loss: float
    geometry: ProjectionGeometry
    probe_name: str
    probe_before: float
    probe: float
    rank: float
    collapsed: bool
    seconds: float
    images_per_second: float
    waited: float


def summarize(trainer: Trainer, listing: Listing, probe_name: str, *, started: float) -> PretrainReport:
    """Summarise a training.

    Parameters
    ----------
    trainer : Trainer
    listing : Listing
    probe_name : str
        Name of the probe's metric; empty if there are neither positives nor labels.
    started : float
        Value of `time.monotonic` at the start of the call.

    Returns
    -------
    PretrainReport
    """
    monitor, metrics_log = trainer.monitor, trainer.monitor.metrics_log
    throughput = monitor.throughput
    probes = metrics_log.column("probe") if metrics_log and probe_name else {}
    ranks = metrics_log.column("rank") if metrics_log else {}
    return PretrainReport(
        folder=trainer.folder,
        images=len(trainer.images.keys),
        failures={**listing.failures, **trainer.images.failures},
        steps=trainer.step,
        total=trainer.training.steps,
        loss=monitor.loss,
        geometry=monitor.geometry,
        probe_name=probe_name,
        probe_before=probes.get(0, _NAN),
        probe=_last(probes),
        rank=_last(ranks),
        collapsed=monitor.collapsed,
        seconds=time.monotonic() - started,
        images_per_second=throughput.images / throughput.seconds if throughput.seconds else _NAN,
        waited=throughput.waited / throughput.seconds if throughput.seconds else 0.0,
    )


def _last(values: dict[int, float]) -> float:
    return values[max(values)] if values else _NAN


def save_summary(folder: Path, recipe: Recipe, report: PretrainReport) -> None:
    """Store the report of a finished run in its folder."""
    fields = {name: value for name, value in dataclasses.asdict(report).items() if name != "folder"}
    run_folder.write_result(folder, recipe, fields)


def load_summary(folder: Path, recipe: Recipe) -> PretrainReport | None:
    """Load the report of a finished run whose encoder is present, else None."""
    fields = run_folder.read_result(folder, recipe)
    try:
        if fields is None or pretrained_file.read(folder)[1].steps != fields["total"]:
            return None
        missing = dict.fromkeys(("probe_before", "probe", "rank", "loss"), _NAN)  # NaN values are not stored
        now = {"folder": folder, "images_per_second": _NAN, "waited": 0.0}
        geometry = {"geometry": ProjectionGeometry(**fields["geometry"])}
        return PretrainReport(**{**missing, **fields, **now, **geometry})
    except (EncoderError, KeyError, TypeError):
        return None
