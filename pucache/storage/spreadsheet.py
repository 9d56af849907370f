"""Cells of a workbook, read in a process of its own: a few bytes may ask for any memory, and the reader then aborts.

Run as a program, which imports nothing of pucache: the arguments are the limits, the workbook comes on the standard
input, and its sheets leave on the standard output.
"""

from __future__ import annotations

import io
import json
import re
import resource
import subprocess
import sys
import zipfile
from typing import Any

_WITHOUT_VALUE = re.compile(
    rb'<c [^>]*t="e"|<f[^>]*(?:/>|>[^<]*</f>)\s*(?:<v/>|<v></v>)?\s*</c>|calcext:value-type="error"'
)
Sheets = dict[str, list[tuple[int, list[Any]]]]  # by title: the number of each row that is not blank, and its cells


def read_sheets(data: bytes, cells: int, memory: int, seconds: int) -> tuple[Sheets, int]:
    """The visible sheets of .xlsx, .ods or .xls, and how many cells have an error, or a formula without a value.

    These are blank in the sheets. Raises ValueError where it is no such file, or exceeds a limit.
    """
    limits = map(str, (cells, memory, seconds))
    child = subprocess.run(  # noqa: S603 - our own module; no shell
        [sys.executable, "-P", __file__, *limits], input=data, capture_output=True, check=False
    )
    if child.returncode:
        raise ValueError(f"it spans more than {memory >> 20:,} MB of memory, or {seconds} seconds; remove far cells")
    sheets, without_value, problem = json.loads(child.stdout)
    if problem:
        raise ValueError(problem)
    return {title: [(number, row) for number, row in rows] for title, rows in sheets.items()}, without_value


def _without_value(data: bytes) -> int:
    """Cells of .xlsx and .ods with an error, or with a formula whose value was not saved."""
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return 0
    with zipfile.ZipFile(io.BytesIO(data)) as book:
        names = [name for name in book.namelist() if "worksheets/sheet" in name or name == "content.xml"]
        return sum(len(_WITHOUT_VALUE.findall(book.read(name))) for name in names)


def _sheets(data: bytes, cells: int) -> Sheets:
    import python_calamine

    with python_calamine.load_workbook(io.BytesIO(data)) as book:
        return {
            sheet.name: _rows(book.get_sheet_by_name(sheet.name), cells)
            for sheet in book.sheets_metadata
            if str(sheet.visible).endswith(".Visible") and str(sheet.typ).endswith(".WorkSheet")
        }


def _rows(sheet: Any, cells: int) -> list[tuple[int, list[Any]]]:
    if sheet.total_height * sheet.total_width > cells:
        raise ValueError(f"the sheet {sheet.name!r} spans more than {cells:,} cells; remove those far from the table")
    rows = sheet.to_python(skip_empty_area=False)
    for (top, left), (bottom, _) in sheet.merged_cell_ranges or ():  # the other rows of such a cell have no content
        for row in rows[top + 1 : bottom + 1]:
            row[left] = rows[top][left]
    plain = ([cell if isinstance(cell, str | int | float) else str(cell) for cell in row] for row in rows)  # no dates
    return [(number, row) for number, row in enumerate(plain, 1) if any(cell not in ("", None) for cell in row)]


def _main() -> None:
    cells, memory, seconds = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    try:
        data = sys.stdin.buffer.read()
        answer: tuple[Sheets, int, str] = (_sheets(data, cells), _without_value(data), "")
    except BaseException as error:  # a panic of Rust is no Exception
        answer = ({}, 0, str(error) or type(error).__name__)
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    _main()
