"""The folder of a run: its configuration, checkpoints, log and result, written by one process.

``run.json`` holds the configuration and ``finished.json`` the report of a finished run. The last two states lie in
``checkpoints/``, so that a damaged one costs only a little work. ``log.csv`` has a row of metrics every few steps.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import json
import logging
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..encoders import pretrained_file
from ..errors import EncoderError, OutputError, RunError, one_line
from ..storage import tensor_file
from ..storage.atomic import (
    check_writable,
    fsync_directory,
    locked_folder,
    make_folder,
    replacing,
)
from ..storage.table_writer import write_rows
from ..version import __version__
from .losses import ProjectionGeometry
from .recipes import Recipe

log = logging.getLogger("pucache")

FORMAT, VERSION = "pucache-run", 1
_CONFIGURATION, _RESULT, _LOG, _CHECKPOINTS = "run.json", "finished.json", "log.csv", "checkpoints"
_MAX_SETTING_LENGTH = 40  # characters of a setting in an error message
_LOCK = ".lock"
_KEPT = 2  # number of checkpoints that stay on disk
CHECKPOINT = tensor_file.FileFormat(
    format="pucache-checkpoint",
    version=1,
    noun="checkpoint",
    error=RunError,
    expected="one that pretrain wrote",
    remedy="an earlier one is needed",
)
MAX_CHECKPOINT_BYTES = 1 << 36
COLUMNS = ("step", "epoch", "loss", "rate", "alignment", "uniformity", "spread", "probe", "rank", "images_per_second")


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
        Name of the probe's metric; empty without positives.
    probe_before, probe : float
        Probe before the first step and now; NaN without positives.
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


class RunFolder:
    """The folder of one run, locked for one writer until the end of a ``with``.

    Raises `RunError` where another process is training in it or it holds other files, and `OutputError`.
    """

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[dict[str, str]] = []  # the log, see `start_log`
        self._run = ""  # what checkpoints are of, see `claim`
        self._open = contextlib.ExitStack()
        self._refuse_other_files()
        in_use = RunError(f"{path} is being trained in by another process; wait for it, or name another folder")
        check_writable(path / _LOCK)
        self._open.enter_context(locked_folder(path, _LOCK, in_use))

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def _refuse_other_files(self) -> None:
        """Refuse a folder that holds something else, such as the images."""
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(f"{self.path} is a file; RUN_DIR is a folder, new or empty or of an earlier run")
        if not self.path.is_dir() or (self.path / _CONFIGURATION).exists() or self._has_trained():
            return
        others = sorted(path.name for path in self.path.iterdir() if not path.name.startswith((".", "images.")))
        if others:
            raise RunError(
                f"{self.path} holds other files ({', '.join(map(repr, others[:3]))}); name a new or empty folder"
            )

    def _has_trained(self) -> bool:
        return (self.path / pretrained_file.NAME).exists() or bool(self._checkpoints())

    @property
    def stem(self) -> str | None:
        """Stem of the network that was trained here, None where nothing was."""
        path = self.path / _CONFIGURATION
        return _read_configuration(path)[0].get("stem") if path.exists() and self._has_trained() else None

    # --- configuration and result ------------------------------------------------------------------

    def claim(self, recipe: Recipe, settings: dict[str, Any], provenance: dict[str, Any]) -> None:
        """Write the configuration of a new run, or check it against that of the existing run.

        A run may continue with more epochs if its learning rate is constant. A run that has written no encoder and no
        checkpoint yet may be replaced by one of another configuration; any other raises `RunError`. `settings` beside
        the recipe change the result, and their ``images`` is the digest of the listing; `provenance` does not.
        """
        path = self.path / _CONFIGURATION
        fixed = {name: value for name, value in vars(recipe).items() if name != "epochs"}  # more may follow
        self._run = hashlib.sha256(json.dumps([fixed, settings], sort_keys=True).encode()).hexdigest()[:16]
        differences: list[str] = []
        if path.exists():
            differences = _differences(*_read_configuration(path), settings, recipe)
        elif self._has_trained():
            raise RunError(
                f"{self.path} holds an encoder or checkpoints, and no {_CONFIGURATION} beside them; name another folder"
            )
        if differences and self._has_trained():
            raise RunError(
                f"{self.path} holds a run of another configuration: {'; '.join(differences)}; "
                "name another folder, or give the same options to go on"
            )
        provenance = {**provenance, "pucache": __version__}
        header = {"format": FORMAT, "version": VERSION}
        _write_json(path, {**header, "recipe": vars(recipe), "settings": settings, "provenance": provenance})

    def finish(self, recipe: Recipe, report: PretrainReport) -> None:
        """Store the report of a finished run; NaN values are left out."""
        fields = dataclasses.asdict(report)
        del fields["folder"]
        fields = {name: value for name, value in fields.items() if value == value}
        _write_json(self.path / _RESULT, {"recipe": vars(recipe), "result": fields})

    def finished(self, recipe: Recipe) -> PretrainReport | None:
        """Report of the finished run of a recipe whose encoder is present, else None."""
        try:
            content = json.loads((self.path / _RESULT).read_text())
            fields = dict(content["result"])
            steps = pretrained_file.read(self.path)[1].steps
            if content["recipe"] != vars(recipe) or steps != fields["total"]:
                return None
            missing = dict.fromkeys(("probe_before", "probe", "rank", "loss"), math.nan)
            fields["geometry"] = ProjectionGeometry(**fields["geometry"])
            now = {"folder": self.path, "images_per_second": math.nan, "waited": 0.0}
            return PretrainReport(**{**missing, **fields, **now})
        except (EncoderError, OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    # --- checkpoints -------------------------------------------------------------------------------

    def _checkpoints(self) -> list[tuple[int, Path]]:
        """Step and path of each checkpoint, damaged or not, by step."""
        paths = (self.path / _CHECKPOINTS).glob("*.safetensors")
        return sorted((int(path.stem), path) for path in paths if re.fullmatch(r"\d{10}", path.stem))

    def save(self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Write the state after a step, with further JSON values, and remove all checkpoints but the last two."""
        tensors = {f"model.{name}": _array(tensor) for name, tensor in model.state_dict().items()}
        for number, values in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": _array(x) for name, x in values.items() if x is not None}
        path = self.path / _CHECKPOINTS / f"{step:010}.safetensors"
        try:
            make_folder(path.parent)
            tensor_file.write(path, CHECKPOINT, tensors, {**state, "step": step, "run": self._run})
            for _, older in self._checkpoints()[:-_KEPT]:
                older.unlink(missing_ok=True)
            fsync_directory(path.parent)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {one_line(error)}; the one before it is untouched") from error

    def load(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Load the last undamaged checkpoint into a model and its optimiser, and set later ones aside.

        Returns its tensors and the `state` that was saved, with ``step``; None if there is no checkpoint. Raises
        `RunError` if all are damaged or of another network.
        """
        damaged: list[Path] = []
        for step, path in reversed(self._checkpoints()):
            try:
                tensors, state = tensor_file.read(path, CHECKPOINT, max_bytes=MAX_CHECKPOINT_BYTES)
                if state.get("step") != step:
                    raise RunError(f"{path} is the checkpoint of another step; an earlier one is needed")
                if state.get("run", self._run) != self._run:  # of before 0.4: not noted
                    raise RunError(f"{path} is the checkpoint of another run; an earlier one is needed")
                restore(path, tensors, model, optimizer)
            except RunError as error:
                log.warning("%s", error)
                damaged.append(path)
                continue
            if damaged:
                log.warning("going back to the state after step %d", step)
            for later in damaged:  # saves to come must not count them as the last two
                with contextlib.suppress(OSError):
                    later.rename(later.with_suffix(".damaged"))
            return tensors, state
        if damaged:
            folder = self.path / _CHECKPOINTS
            raise RunError(f"no checkpoint in {folder} is whole; remove that folder to begin anew, or copy one back")
        self._keep_learned_encoder()
        return None

    def _keep_learned_encoder(self) -> None:
        """Set aside an encoder that has learned something, as a run that begins anew would replace it."""
        encoder = self.path / pretrained_file.NAME
        with contextlib.suppress(EncoderError):  # none, or a damaged one
            steps = pretrained_file.read(self.path)[1].steps
            if steps:
                aside = encoder.with_suffix(".before.safetensors")
                try:
                    encoder.replace(aside)
                except OSError as error:
                    raise OutputError(
                        f"cannot write to {self.path}: {one_line(error)}; make room and run again"
                    ) from error
                log.warning(
                    "%s holds no checkpoint, so the run begins anew; the encoder beside it, of %d steps, is kept as "
                    "%s: to go on from there, end the run and copy the checkpoints back",
                    self.path / _CHECKPOINTS,
                    steps,
                    aside.name,
                )

    # --- the log -----------------------------------------------------------------------------------

    def start_log(self, step: int) -> None:
        """Go on with the log after a step; later rows of an existing one are dropped, at 0 all of them."""
        rows = _read_log(self.path / _LOG) if step else []
        if step and not rows:
            log.warning("%s holds no row up to step %d; it begins there", self.path / _LOG, step)
        self.rows = [row for row in rows if int(row["step"]) <= step]
        self._write_log()

    def append(self, **metrics: float) -> None:
        """Append a row to the log; missing and non-finite values leave their column empty."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        row = {name: f"{finite[name]:.6g}" if name in finite else "" for name in COLUMNS}
        row["step"] = str(int(metrics["step"]))
        self.rows.append(row)
        self._write_log()

    def column(self, name: str) -> dict[int, float]:
        """Values of one metric by step."""
        return {int(row["step"]): float(row[name]) for row in self.rows if row[name]}

    def _write_log(self) -> None:
        """Write all rows; at the disk before the next checkpoint is."""
        write_rows(self.path / _LOG, [COLUMNS, *([row[name] for name in COLUMNS] for row in self.rows)])


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def _read_configuration(path: Path) -> tuple[dict[str, Any], Recipe]:
    """Settings and recipe of the run in a folder; `RunError` if `RunFolder.claim` did not write the file."""
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"format {content['format']!r}, version {content['version']!r}")
        return dict(content["settings"]), Recipe(**content["recipe"])
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}; expected a folder that pretrain wrote") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{path} is not the configuration of a run ({one_line(error, 120)}); name another folder"
        ) from error


def _differences(
    earlier_settings: dict[str, Any], earlier_recipe: Recipe, settings: dict[str, Any], recipe: Recipe
) -> list[str]:
    """What differs from the configuration of an earlier run, as text."""
    names = [name for name in {**settings, **earlier_settings} if name != "images"]
    pairs = [(name, earlier_settings.get(name), settings.get(name)) for name in names]
    if not earlier_recipe.can_continue_as(recipe):
        pairs += [(name, getattr(earlier_recipe, name), value) for name, value in vars(recipe).items()]
    texts = [f"{name} {_shorten(old)} (now {_shorten(new)})" for name, old, new in pairs if old != new]
    if earlier_settings.get("images") != settings["images"]:
        texts.append(
            "other images than those it was begun with (--weights takes what it has learned to another folder)"
        )
    return texts


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MAX_SETTING_LENGTH else text[: _MAX_SETTING_LENGTH // 2] + "..."


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().contiguous().numpy()


def restore(
    path: Path, tensors: dict[str, np.ndarray], model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Load the tensors of a checkpoint into a model and its optimiser; `RunError` if they do not fit.

    Optimiser states take the strides of their parameters, which fused optimisers assume and torch does not check.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    weights: dict[str, torch.Tensor] = {}
    states: dict[int, dict[str, torch.Tensor]] = {}
    try:
        for name, values in tensors.items():
            part, _, rest = name.partition(".")
            tensor = torch.from_numpy(values)
            if part == "model":
                weights[rest] = tensor
            elif part == "optimizer":
                number, _, field = rest.partition(".")
                states.setdefault(int(number), {})[field] = _with_strides_of(parameters[int(number)], tensor)
        model.load_state_dict(weights)
        optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    except (RuntimeError, ValueError, KeyError, IndexError) as error:
        raise RunError(f"{path} is of another network or optimiser") from error


def _with_strides_of(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.ndim:
        return tensor
    if tensor.shape != parameter.shape:
        raise ValueError("a state has another shape than its parameter")
    return torch.empty_like(parameter, dtype=tensor.dtype, device="cpu").copy_(tensor)


def _read_log(path: Path) -> list[dict[str, str]]:
    """Complete rows of an existing log; an unreadable one does not prevent training."""
    try:
        with path.open(newline="", errors="replace") as stream:
            return [row for row in csv.DictReader(stream) if set(row) == set(COLUMNS) and _is_row(row)]
    except (OSError, csv.Error):
        return []


def _is_row(row: dict[str, str]) -> bool:
    try:
        return row["step"].isdecimal() and all(text == "" or math.isfinite(float(text)) for text in row.values())
    except (ValueError, TypeError, AttributeError):
        return False
