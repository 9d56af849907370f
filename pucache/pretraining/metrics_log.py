"""What a training has come to so far: a CSV, and TensorBoard's files beside it where they are asked for."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import MissingExtraError, OutputError, one_line
from ..storage.atomic import replacing

COLUMNS = ("step", "epoch", "loss", "rate", "alignment", "uniformity", "spread", "probe", "rank", "images_per_second")


class History:
    """Rows of figures, one every few steps; a context manager.

    Parameters
    ----------
    folder : path
        Gets ``log.csv``, and ``tensorboard/``.
    step : int
        That training goes on from; what was logged beyond it is dropped, at 0 everything.
    tensorboard : bool

    Raises
    ------
    OutputError
        The folder cannot be written.
    """

    def __init__(self, folder: Path, step: int, *, tensorboard: bool):
        self._path = folder / "log.csv"
        self.rows = [row for row in _read(self._path) if int(row["step"]) <= step] if step else []
        with replacing(self._path) as temporary, temporary.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        with self._written():
            self._stream = self._path.open("a", newline="")
            self._writer = csv.DictWriter(self._stream, COLUMNS, lineterminator="\n")
            self._board = _board(folder / "tensorboard", step) if tensorboard else None

    def add(self, **figures: float) -> None:
        """Add a row; a figure that is not known, or not finite, is left empty.

        Raises
        ------
        OutputError
            It cannot be written.
        """
        known = {name: value for name, value in figures.items() if math.isfinite(value)}
        row = {name: f"{known[name]:.6g}" if name in known else "" for name in COLUMNS}
        row["step"] = str(int(figures["step"]))
        self.rows.append(row)
        with self._written():
            self._writer.writerow(row)
            self._stream.flush()
            os.fsync(self._stream.fileno())  # the log is to be at least as far as the checkpoint
            if self._board is not None:
                for name in known.keys() - {"step"}:
                    self._board.add_scalar(name, known[name], int(figures["step"]))

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {one_line(error)}; make room and run again") from error

    def column(self, name: str) -> dict[int, float]:
        """What is known of one figure, by its step."""
        return {int(row["step"]): float(row[name]) for row in self.rows if row[name]}

    def __enter__(self) -> History:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):  # of what could not be written, and was said
            self._stream.close()
        if self._board is not None:
            with contextlib.suppress(OSError):
                self._board.close()


def _read(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", errors="replace") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, csv.Error):  # a log is no reason not to train
        return []
    return [row for row in rows if _is_row(row)]


def _is_row(row: dict[str, str]) -> bool:
    """Whether a row is whole; the last line of a killed run may be half a one."""
    return set(row) == set(COLUMNS) and all(map(_is_number, row.values())) and row["step"].isdecimal()


def _is_number(text: str | None) -> bool:
    try:
        return text == "" or math.isfinite(float(text or "nan"))
    except ValueError:
        return False


def require_tensorboard() -> None:
    """Raise `MissingExtraError` where TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtraError("TensorBoard is not installed; pip install 'pucache[tensorboard]'")


def _board(folder: Path, step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1)
