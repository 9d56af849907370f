"""What the cells of a column of labels mean."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ..errors import LabelError

_MEANINGS = {
    **dict.fromkeys(("1", "true", "yes", "positive"), 1),
    **dict.fromkeys(("0", "-1", "false", "no", "negative"), 0),
}
_BLANK = {"", "nan", "none", "null", "na", "n/a", "<na>", "#n/a"}  # as programs write a missing value
_PLAIN = {"1", "0", "", None}  # cells that need no explanation
_SHOWN, _SHOWN_LENGTH = 8, 40  # kinds of cells in a line, and their characters
_WORDS = {"1": "positive", "0": "negative", "": "undecided"}

log = logging.getLogger("pucache")


def is_blank(cell: str | None) -> bool:
    """Whether a cell says nothing: the row is undecided."""
    return cell is None or cell.strip().casefold() in _BLANK


def meaning(cell: str | None) -> int | None:
    """1 or 0, by the usual words and numbers; None for another cell."""
    word = (cell or "").strip().casefold()
    if word in _MEANINGS:
        return _MEANINGS[word]
    try:
        return _MEANINGS.get(f"{float(word):g}")  # 1.0
    except ValueError:
        return None


def as_labels(rows: Sequence[dict[str, Any]], name: str, column: str, value: str | None, *, exact: bool) -> None:
    """Turn the cells ``label`` of rows into 1, 0 and blank where a `value` means 1, and log the cells that were met.

    `name` and `column` are those of messages. Raises `LabelError` where no cell is the value.
    """
    met = Counter(row["label"] for row in rows)
    if value is None:
        meanings = {cell: "" if is_blank(cell) else str(meaning(cell)) for cell in met}
    else:
        meanings = _compared(met, f"{name} has no {value!r} in the column {column!r}", value, exact)
        for row in rows:
            row["label"] = meanings[row["label"]]
    if value is not None or not met.keys() <= _PLAIN:
        _log_once(f"labels in {name}: {_described(met, meanings)}")


def _compared(met: Counter[str | None], problem: str, value: str, exact: bool) -> dict[str | None, str]:
    """1, 0 or blank for each cell."""

    def form(cell: str) -> str:
        return cell if exact else cell.strip().casefold()

    positive = {cell for cell in met if cell is not None and form(cell) == form(value)}
    if met and not positive:
        cells = sorted({cell if exact else cell.strip() for cell in met if cell is not None and not is_blank(cell)})
        shown = ", ".join(map(repr, cells[:5])) or "blank cells alone"
        raise LabelError(f"{problem}; it has {shown}" + (", compared exactly" if exact else ""))
    return {cell: "1" if cell in positive else "" if is_blank(cell) else "0" for cell in met}


def _described(met: Counter[str | None], meanings: dict[str | None, str]) -> str:
    kinds = [
        f"{(cell or '')[:_SHOWN_LENGTH]!r} {number:,} ({_WORDS.get(meanings[cell], 'unknown')})"
        for cell, number in met.most_common(_SHOWN)
    ]
    return ", ".join(kinds) + (f" and {len(met) - _SHOWN:,} other kinds" if len(met) > _SHOWN else "")


@lru_cache(256)
def _log_once(text: str) -> None:
    """Log a line; once, as a file of positives and negatives is read twice."""
    log.info(text)
