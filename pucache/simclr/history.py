"""What a training has come to so far: a CSV, and TensorBoard's files beside it where they are asked for."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from ..durable import replacing
from ..errors import MissingExtraError

COLUMNS = ("step", "epoch", "loss", "rate", "alignment", "uniformity", "spread", "probe", "rank", "images_per_second")


class History:
    """Rows of figures, one every few steps; a context manager.

    Parameters
    ----------
    folder : path
        Gets ``log.csv``, and ``tensorboard/``.
    step : int
        That training goes on from; what was logged beyond it is dropped.
    tensorboard : bool

    Raises
    ------
    MissingExtraError
        TensorBoard is asked for and not installed.
    OutputError
        The folder cannot be written.
    """

    def __init__(self, folder: Path, step: int, *, tensorboard: bool):
        self.rows = [row for row in _read(folder / "log.csv") if int(row["step"]) <= step]
        self._board = _board(folder / "tensorboard", step) if tensorboard else None
        with replacing(folder / "log.csv") as temporary, temporary.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        self._stream = (folder / "log.csv").open("a", newline="")
        self._writer = csv.DictWriter(self._stream, COLUMNS, lineterminator="\n")

    def add(self, **figures: float) -> None:
        """Add a row; a figure that is not known is left empty."""
        row = {name: f"{figures[name]:.6g}" if name in figures else "" for name in COLUMNS}
        row["step"] = str(int(figures["step"]))
        self.rows.append(row)
        self._writer.writerow(row)
        self._stream.flush()
        if self._board is not None:
            for name, value in figures.items():
                if name != "step" and math.isfinite(value):
                    self._board.add_scalar(name, value, int(figures["step"]))

    def column(self, name: str) -> list[float]:
        """What is known of one figure, in order."""
        return [float(row[name]) for row in self.rows if row[name]]

    def __enter__(self) -> History:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()
        if self._board is not None:
            self._board.close()


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", errors="replace") as stream:
        rows = list(csv.DictReader(stream))
    # the last line of a killed run may be half a line
    return [row for row in rows if set(row) == set(COLUMNS) and all(_is_number(value) for value in row.values())]


def _is_number(text: str | None) -> bool:
    try:
        return text == "" or math.isfinite(float(text or "nan"))
    except ValueError:
        return False


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("TensorBoard is not installed; pip install 'pucache[tensorboard]'") from error
    return SummaryWriter(str(folder), purge_step=step + 1)
