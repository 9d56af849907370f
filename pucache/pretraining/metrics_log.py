"""Metrics of a training by step: log.csv, and TensorBoard files on request."""

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
from ..storage.tables import table_writer

COLUMNS = ("step", "epoch", "loss", "rate", "alignment", "uniformity", "spread", "probe", "rank", "images_per_second")


class MetricsLog:
    """Rows of metrics, appended every few steps; a context manager.

    Parameters
    ----------
    folder : path
        Run folder, which receives ``log.csv`` and ``tensorboard/``.
    step : int
        Step from which training continues. Later rows of an existing log are dropped; at 0, all of them.
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
            write_row = table_writer(stream)
            for cells in [COLUMNS, *map(_cells, self.rows)]:
                write_row(cells)
        with self._report_write_errors():
            self._stream = self._path.open("a", newline="")
            self._write_row = table_writer(self._stream)
            self._board = _board(folder / "tensorboard", step) if tensorboard else None

    def append(self, **metrics: float) -> None:
        """Append a row; missing and non-finite values leave their column empty.

        Raises
        ------
        OutputError
            The row cannot be written.
        """
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        row = {name: f"{finite[name]:.6g}" if name in finite else "" for name in COLUMNS}
        row["step"] = str(int(metrics["step"]))
        self.rows.append(row)
        with self._report_write_errors():
            self._write_row(_cells(row))
            self._stream.flush()
            os.fsync(self._stream.fileno())  # the log must not fall behind the checkpoint
            if self._board is not None:
                for name in finite.keys() - {"step"}:
                    self._board.add_scalar(name, finite[name], int(metrics["step"]))

    @contextlib.contextmanager
    def _report_write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {one_line(error)}; make room and run again") from error

    def column(self, name: str) -> dict[int, float]:
        """Values of one metric by step."""
        return {int(row["step"]): float(row[name]) for row in self.rows if row[name]}

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):  # of buffered rows whose failure `append` has reported
            self._stream.close()
        if self._board is not None:
            with contextlib.suppress(OSError):
                self._board.close()


def _cells(row: dict[str, str]) -> list[str]:
    return [row[name] for name in COLUMNS]


def _read(path: Path) -> list[dict[str, str]]:
    """Rows of an existing log; an unreadable log does not prevent training."""
    try:
        with path.open(newline="", errors="replace") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, csv.Error):
        return []
    return [row for row in rows if _is_row(row)]


def _is_row(row: dict[str, str]) -> bool:
    """Whether a row is complete; a killed run may leave half a line."""
    return set(row) == set(COLUMNS) and all(map(_is_number, row.values())) and row["step"].isdecimal()


def _is_number(text: str | None) -> bool:
    try:
        return text == "" or math.isfinite(float(text or "nan"))
    except ValueError:
        return False


def require_tensorboard() -> None:
    """Raise `MissingExtraError` if TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtraError("TensorBoard is not installed; pip install 'pucache[tensorboard]'")


def _board(folder: Path, step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1)
