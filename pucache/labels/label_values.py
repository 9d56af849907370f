"""Cells of a column of labels, as other programs write them: what means 1, what 0, and what is undecided."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import LabelError, counted
from ..storage.table_formats import Several

_POSITIVE = {"true", "yes", "positive"}
_NEGATIVE = {"false", "no", "negative"}
_BLANK = {"", "nan", "none", "null", "na", "n/a", "<na>", "#n/a"}  # as programs write a missing value
_WORDS = {1: "positive", 0: "negative", -1: "undecided"}
_PLAIN = {"1", "0", "", None}  # cells that need no explanation
_SHOWN, _SHOWN_LENGTH = 8, 40  # kinds of cells in a line, and their characters
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))\.0+")  # as programs write a whole number that they keep as a float
# between the labels of a cell that has several, also in JSON and as Python writes a list
_SEVERAL = re.compile(r"""(?:[|,;#\s"\[\]]|\B'|'\B)+""")
_MARKS = "\"'|;,# "  # that --label-separator may be
_NOT = {"no", "not", "non", "without"}  # of a cell that has what is not there

log = logging.getLogger("pucache")


@dataclass(frozen=True)
class LabelRule:
    """What the cells of a column of labels mean; blank ones say nothing."""

    # cell that means 1, whatever its case and the spaces around it; others mean 0. None: the usual words and numbers
    value: str | None = None
    separator: str | None = None  # between the labels of a cell that has several, of which the value is one
    undecided: Sequence[str] = ()  # cells that say nothing

    def meanings(self, met: Mapping[str | None, int], where: str) -> dict[str | None, int | None]:
        """1, 0 or -1 (undecided) for each cell; None for one that means nothing. `met` counts the cells.

        Raises `LabelError` where no cell is the value, or where -1 stands beside 1 and 0: negative, or not known?
        """
        blank = {self._form(text) for text in self.undecided}
        found = {cell: -1 if self._form(cell or "") in blank else self._meaning(cell) for cell in met}
        if self.value is not None and met and 1 not in found.values():
            self._refuse(met, where)
        below = [cell for cell in met if found[cell] == 0 and _number(cell) == -1]
        if self.value is None and below and any(found[cell] == 0 and cell not in below for cell in met):
            raise LabelError(
                f"{where} has {below[0]!r} beside 1 and 0: negative, or not known? Give pucache labels "
                f"--undecided={(below[0] or '').strip()}, or write 0 for what is negative"
            )
        return found

    def _form(self, cell: str) -> str:
        """The cell as it is compared: -1.0 is -1, but the codes 03 and 1e2 are not 3 and 100."""
        cell = cell.strip().casefold()
        return whole[1] if (whole := _WHOLE.fullmatch(cell)) else cell

    def _meaning(self, cell: str | None) -> int | None:
        if self.value is None:
            return usual_meaning(cell)
        if cell is not None and self._form(self.value) in self._labels(cell):
            return 1
        number = _number(cell)
        return -1 if is_blank(cell) or (number is not None and number < 0) else 0  # a class below 0: none is known

    def _labels(self, cell: str) -> list[str]:
        parts = [cell] if self.separator is None else cell.split(self.separator)
        parts = cell.parts if isinstance(cell, Several) else parts
        return list(map(self._form, parts))

    def _refuse(self, met: Mapping[str | None, int], where: str) -> None:
        cells = sorted({cell.strip() for cell in met if cell is not None and not is_blank(cell)})
        shown = ", ".join(repr(cell[:_SHOWN_LENGTH]) for cell in cells[:5]) or "blank cells alone"
        raise LabelError(f"{where} has no {self.value!r}; it has {shown}{self._within(met)}")

    def _within(self, met: Mapping[str | None, int]) -> str:
        """What is to be said of cells that hold the value among other labels."""
        if self.value is None:
            return ""
        wanted = self._form(self.value)
        texts = [cell for cell in met if cell and not isinstance(cell, Several)]
        several = [cell for cell in texts if wanted not in self._labels(cell) and wanted in _parts(self._form(cell))]
        if not several:
            return ""
        number, first = sum(met[cell] for cell in several), several[0]
        text = f"; {self.value!r} is one of several in {counted(number, 'cell')}, such as {first[:_SHOWN_LENGTH]!r}"
        mark = next((mark for mark in _MARKS if wanted in map(self._form, first.split(mark))), "")
        return f"{text}: pucache labels --label-separator {mark!r} takes them as positive" if mark else text

    def describe(self, met: Counter[str | None], found: Mapping[str | None, int | None]) -> str:
        """The cells that were met, with counts and what each was taken for; "" where they need no explanation."""
        if self.value is None and met.keys() <= _PLAIN:
            return ""
        kinds = [
            f"{(cell or '')[:_SHOWN_LENGTH]!r} {number:,} ({_WORDS.get(found[cell], 'unknown')})"  # type: ignore[arg-type]
            for cell, number in met.most_common(_SHOWN)
        ]
        more = f" and {len(met) - _SHOWN:,} other kinds" if len(met) > _SHOWN else ""
        return ", ".join(kinds) + more + self._within(met)


def read_values(
    cells: Sequence[str | None], lines: Sequence[int], rule: LabelRule, name: str, column: str
) -> list[int]:
    """Label of each cell: 1, 0, or -1 where it is undecided; `lines` are their numbers in the file `name`.

    Logs what was met. Raises `LabelError` for a cell without a meaning, and as `LabelRule.meanings`.
    """
    met = Counter(cells)
    found = rule.meanings(met, f"the {column} column of {name}")
    if (odd := next((cell for cell in met if found[cell] is None), "")) or None in found.values():
        line = next(line for cell, line in zip(cells, lines, strict=True) if cell == odd)
        raise LabelError(
            f"{name} has the {column} {odd!r:.80}; expected 1 or 0 (or true/false, yes/no) in row {line}, or name the "
            "value that means 1: pucache labels --label-value"
        )
    if said := rule.describe(met, found):
        log.info("labels in %s: %s", name, said)
    return [found[cell] for cell in cells]  # type: ignore[misc]


def is_blank(cell: str | None) -> bool:
    """Whether a cell of labels says nothing: the row is undecided."""
    return cell is None or cell.strip().casefold() in _BLANK


def usual_meaning(cell: str | None) -> int | None:
    """1, 0 or -1 for a blank cell, by the usual words and numbers; None for another cell."""
    word = (cell or "").strip().casefold()
    if is_blank(cell):
        return -1
    number = _number(word)
    if number is not None:
        return {1.0: 1, 0.0: 0, -1.0: 0}.get(number)
    return 1 if word in _POSITIVE else 0 if word in _NEGATIVE else None


def _number(cell: str | None) -> float | None:
    try:
        return None if cell is None or "_" in cell else float(cell)
    except ValueError:
        return None


def _parts(form: str) -> list[str]:
    parts = [part for part in _SEVERAL.split(form) if part]
    return [] if _NOT.intersection(parts) else parts
