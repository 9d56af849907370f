"""Names of concepts: each becomes the name of a model's file and of columns, so it must be a plain file name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from ..errors import LabelError

_PLAIN = re.compile(r"(?![. ])[^\x00-\x1f\x7f\ud800-\udfff/\\:*?\"<>|,]{1,100}(?<![. ])")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)  # no file names on Windows


def check_names(names: Iterable[str], where: str) -> None:
    """Raise `LabelError` for a name that is no plain file name, and for two that differ in case only."""
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not _PLAIN.fullmatch(name) or _RESERVED.fullmatch(name):
            raise LabelError(
                f"{where} has the concept {name!r:.120}; a concept is called by a plain file name of every system: at "
                'most 100 characters in UTF-8, none of / \\ : * ? " < > | and comma, no dot or space at its ends, and '
                "none of the names of devices such as CON, NUL and COM1"
            )
        other = seen.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other != name:
            raise LabelError(
                f"{where} has the concepts {other!r} and {name!r}, which are one file name on some machines; rename one"
            )
