"""Names under which columns go in tables of other people, and finding the columns of a table by them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..errors import LabelError, MissingColumnError

# The most usual first; case, spaces, hyphens and underscores make no difference where no name fits as it is
_FILE_NAMES = ("image", "file", "file_path", "image_file", "image_name", "img")
KEY_NAMES = ("key", "image_path", "path", "file_name", "filename", *_FILE_NAMES, "url", "id", "image_id", "uid")
IMPORT_NAMES = tuple(sorted(KEY_NAMES, key=lambda name: name in _FILE_NAMES))  # those of 0.3 first
PATH_NAMES = tuple(  # of a manifest
    dict.fromkeys(("path", "image", "file", "filename", "url", "key", "image_path", "file_name", *_FILE_NAMES))
)
LABEL_NAMES = ("label", "labels", "class", "is_positive", "positive", "target", "truth", "choice")
GROUP_NAMES = ("group", "groups", "group_id", "patient", "patient_id", "subject", "subject_id", "video", "site")
# Columns by their meaning, and the names under which each may go; a table must have the first
Wanted = Mapping[str, Sequence[str]]
KEY_COLUMNS: Wanted = {"key": KEY_NAMES}
MANIFEST_COLUMNS: Wanted = {"path": PATH_NAMES, "key": ("key",)}
_REVIEW = {"reviewed": ("reviewed",), "digest": ("digest",)}
LABEL_COLUMNS: Wanted = {"key": KEY_NAMES, "label": LABEL_NAMES, **_REVIEW}
CANONICAL_COLUMNS: Wanted = {
    "key": KEY_NAMES,
    "concept": ("concept",),
    "label": LABEL_NAMES,
    "group": ("group",),
    **_REVIEW,
}
GROUP_COLUMNS: Wanted = {"key": KEY_NAMES, "group": GROUP_NAMES}
_OPTIONS = {"path": "--key-column", "group": "--groups TABLE:COLUMN"}
_OPTIONS |= {name: f"pucache labels --{name}-column" for name in ("key", "label")}  # the only command that has both


def plain_name(name: object) -> str:
    """Name of a column in lower case, without spaces around it."""
    return str(name).strip().lower()


def _loose_name(name: str) -> str:
    return re.sub(r"[\s_-]", "", plain_name(name))


def find_column(columns: Sequence[str], names: Sequence[str], where: str, meaning: str = "key") -> str | None:
    """The column that goes under the first of the names that any has; None where none has one.

    Raises `LabelError` where two columns have that name.
    """
    for form in (plain_name, _loose_name):
        for name in names:
            fitting = [column for column in columns if form(column) == form(name)]
            if len(fitting) > 1:
                first, second, *_ = fitting
                remedy = f", or name the one to take: {_OPTIONS[meaning]}" if meaning in _OPTIONS else ""
                raise LabelError(
                    f"{where} has columns {first!r} and {second!r}, and either may be the {meaning}; rename one{remedy}"
                )
            if fitting:
                return fitting[0]
    return None


def find_columns(columns: Sequence[str], wanted: Wanted, where: str) -> dict[str, str]:
    """Columns of a table by their meaning; raises `LabelError` where two may be one that is wanted."""
    found: dict[str, str] = {}
    for meaning, names in wanted.items():
        left = [column for column in columns if column not in found.values()]
        if (column := find_column(left, names, where, meaning)) is not None:
            found[meaning] = column
    return found


def check_found(found: Mapping[str, str], columns: Sequence[str], wanted: Wanted, named: Wanted, where: str) -> None:
    """Raise `LabelError` where the first of the wanted columns is missing, or one that the user has named."""
    for meaning in dict.fromkeys([next(iter(wanted)), *named]):
        if meaning in found:
            continue
        listed = " ".join(", ".join(columns).split()) or "(none)"
        first, *more = named.get(meaning) or wanted[meaning]
        text = f"{where} has columns {listed}; expected one called {first!r}"
        if any(re.search(r"\.(?:jpe?g|png|tiff?|webp)\Z", column) for column in map(plain_name, columns)):
            text = f"{where} begins with a row: {listed}; write the names of the columns above it, such as key,label"
        elif [*columns] == ["key"]:
            text = f"{where} lists keys alone; expected a table with a column {first!r} too"
            text += ": leave out --label-value where all are positive" if meaning == "label" else ""
        elif "" in columns:
            text += ": the first row must name every column"
        elif len(columns) == 1 and "," in columns[0]:
            text += ": each row is one quoted cell, remove the quotes around rows"
        elif more:
            text += f", {', '.join(more[:4])} or the like: name the one to take by {_OPTIONS[meaning]}"
        raise MissingColumnError(text, first if meaning in named else "")
