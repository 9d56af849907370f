"""What a run has come to, as it is told and kept."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..encoders import pretrained_file
from ..errors import EncoderError
from ..images.source import Listing
from . import run_folder
from .recipes import Recipe
from .train_step import Geometry
from .trainer import Loop


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


def of(loop: Loop, listing: Listing, probe_name: str, began: float) -> PretrainReport:
    """What a loop has come to; without a name of the probe there is none."""
    speed, history = loop.speed, loop.history
    probes = history.column("probe") if history and probe_name else {}
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


def keep(folder: Path, recipe: Recipe, report: PretrainReport) -> None:
    """Write down the report of a run that is done."""
    told = {name: value for name, value in dataclasses.asdict(report).items() if name != "folder"}
    run_folder.finish(folder, recipe, told)


def of_finished(folder: Path, recipe: Recipe) -> PretrainReport | None:
    """The report of a run that is done, and whose encoder is there."""
    told: dict[str, Any] | None = run_folder.finished(folder, recipe)
    try:
        if told is None or pretrained_file.read(folder)[1].steps != told["total"]:
            return None
        told["geometry"] = Geometry(**told["geometry"])
        unknown = dict.fromkeys(("probe_before", "probe", "rank", "loss"), float("nan"))
        told |= {"folder": folder, "images_per_second": float("nan"), "waited": 0.0}
        return PretrainReport(**{**unknown, **told})
    except (EncoderError, KeyError, TypeError):
        return None
