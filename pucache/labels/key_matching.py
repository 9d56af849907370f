"""Keys that other tools have spelled: rules by which they name the images of a cache.

A rule is offered only where every unknown key names exactly one image by it, and no two keys name the same one.
"""

from __future__ import annotations

import logging
import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np

from ..errors import LabelError, counted

if TYPE_CHECKING:
    from ..cache.keys import Keys

RULES = {  # and what they do, in the order in which they are applied and named
    "quotes": "without the quotes or spaces around them",
    "slashes": "with slashes in place of backslashes",
    "url": "with %20 and the like decoded, and without what follows ? in a URL",
    "unicode": "with accents composed with their letters",
    "case": "without regard to case",
    "hash": "without what an upload put before the file name, such as 3f9a12bc-",
    "numbers": "without the zeros before numbers",
    "endings": "without the endings of file names",
    "folders": "without the folders before them",
    "ends": "as the ends of keys",
    "names": "by the file name alone",
}
_SPELLING = ("quotes", "slashes", "url", "unicode", "case")  # those by which two images hardly ever become one
_NAMES = ((), ("endings",), ("hash",), ("numbers",), ("hash", "endings"), ("numbers", "endings"))
_PLACES = ((), ("folders",), ("ends",), ("names",))
_ENDING = re.compile(r"\.[A-Za-z0-9]{1,5}\Z")
_HASH = re.compile(r"(\A|/)[0-9a-fA-F]{4,}[-_](?=[^/]+\Z)")
_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")
_FRACTION = re.compile(r"(?<=\d)\.0+\Z")  # of a spreadsheet's number
_SAMPLE = 200  # unknown keys that tell which rules are worth a look at all
_SEVERAL = -2

log = logging.getLogger("pucache")


def parse_rules(text: str) -> list[str]:
    """Rules joined by ``+``, in the order in which they are applied; raises ValueError for an unknown one."""
    given = [name.strip() for name in text.lower().split("+")]
    if not all(name in RULES for name in given):
        raise ValueError(f"match_keys must be auto, or of {', '.join(RULES)}, joined by +; got {text!r}")
    return [name for name in RULES if name in given]


def respelled(
    listed: Sequence[str], keys: Keys, rule: str | None, path: str | os.PathLike[str], *, partial: bool = False
) -> list[str]:
    """The listed keys as the cache spells them, where a rule tells; those that name no image are as they were.

    The `rule` is several joined by ``+``, ``auto`` for one that `offered_rule` finds, or None. With `partial`, keys
    that name no image are of no concern. Raises `LabelError` where a key of the file `path` names several images or two
    keys name one, and ValueError where there is no such rule.
    """
    if rule is None:
        return list(listed)
    rules = [] if rule == "auto" else parse_rules(rule)
    known = keys.rows(listed) >= 0
    unknown = list(dict.fromkeys(key for key, is_known in zip(listed, known, strict=True) if not is_known))
    others = {key for key, is_known in zip(listed, known, strict=True) if is_known}
    if rule == "auto":
        rules = parse_rules(offered) if (offered := offered_rule(keys, unknown, others, partial=partial)) else []
    if not unknown or not rules:
        return list(listed)
    name, rows = "+".join(rules), _rows(keys, unknown, rules)
    if several := [key for key, row in zip(unknown, rows, strict=True) if row == _SEVERAL]:
        raise LabelError(
            f"--match-keys {name} finds several images each for {counted(len(several), 'key')} in {path} "
            f"({several[0]!r}); take another rule, or correct the keys"
        )
    spelled = {key: keys[row] for key, row in zip(unknown, rows, strict=True) if row >= 0}
    if twice := _first_twice(spelled, others):
        raise LabelError(f"{twice} in {path} are one image by --match-keys {name}; keep one of them, or correct them")
    if spelled:
        first, image = next(iter(spelled.items()))
        log.info("%s: %s of %s keys are matched by %s, such as %r as %r", path, f"{len(spelled):,}",
                 f"{len(unknown) + len(others):,}", name, first, image)  # fmt: skip
    return [spelled.get(key, key) for key in listed]


def _first_twice(spelled: dict[str, str], known: Collection[str]) -> str:
    """Two listed keys that name one image, for a message; else ""."""
    seen = dict(zip(known, known, strict=True))
    for key, image in spelled.items():
        if image in seen:
            return f"{seen[image]!r} and {key!r}"
        seen[image] = key
    return ""


def offered_rule(keys: Keys, unknown: Sequence[str], known: Collection[str] = (), *, partial: bool = False) -> str:
    """The rules, joined by ``+``, by which each unknown key names an image of its own; "" where there are none.

    With `partial`, keys that resemble none of the images are of no concern.
    """
    unknown = list(dict.fromkeys(unknown))
    if partial:
        images = {_form(key, [*RULES]) for key in keys}
        unknown = [key for key in unknown if images & _resembling(key)]
    sample = unknown[:: max(1, len(unknown) // _SAMPLE)]
    wanted = set().union(*map(_resembling, sample)) if sample else set()
    pool = [key for key in keys if _form(key, [*RULES]) in wanted]
    for names, places in product(_NAMES, _PLACES):
        rules = [name for name in RULES if name in (*_SPELLING, *names, *places)]
        if not _holds(pool, sample, rules):
            continue
        for name in _SPELLING:
            fewer = [rule for rule in rules if rule != name]
            rules = fewer if fewer and _holds(pool, sample, fewer) else rules
        if _holds(keys, unknown, rules, known):
            return "+".join(rules)
    return ""


def _resembling(key: str) -> set[str]:
    """Forms of a listed key by the loosest rules, one of which each image has that any rules find."""
    without_hash = [rule for rule in RULES if rule != "hash"]
    return {*_candidates(key, [*RULES]), *_candidates(key, without_hash)}


def _holds(keys: Sequence[str], listed: Sequence[str], rules: Sequence[str], known: Collection[str] = ()) -> bool:
    """Whether each listed key names one image, which no other names."""
    rows = _rows(keys, listed, rules)
    if not len(rows) or rows.min() < 0 or len(np.unique(rows)) < len(rows):
        return False
    return not any(keys[row] in known for row in rows.tolist()) if known else True


def _rows(keys: Iterable[str], listed: Sequence[str], rules: Sequence[str]) -> np.ndarray:
    """Row of the one image that each listed key names, int64 (m,); -1 where there is none, -2 where there are more."""
    candidates = [_candidates(key, rules) for key in listed]
    wanted = {form for forms in candidates for form in forms}
    depths = sorted({form.count("/") + 1 for form in wanted}) if "ends" in rules else []
    found: dict[str, int] = {}
    for row, key in enumerate(keys):
        form = _form(key, rules)
        for end in _ends(form, depths) if depths else (form,):
            if end in wanted:
                found[end] = _SEVERAL if end in found else row
    named = ({found[form] for form in forms if form in found} for forms in candidates)
    return np.array([_SEVERAL if len(rows) > 1 else next(iter(rows), -1) for rows in named], np.int64)


def _candidates(key: str, rules: Sequence[str]) -> set[str]:
    """Forms that the key of the image may have; with "folders" any end of the path."""
    if "quotes" in rules:
        key = key.strip(" \"'\t")
    if "url" in rules and "://" in key:
        key = re.split("[?#]", key, maxsplit=1)[0]
    if "numbers" in rules:
        key = _FRACTION.sub("", key)
    whole = [rule for rule in rules if rule != "endings"]
    forms = {_form(key, rules), _form(key, whole)}  # a name without an ending may hold a dot
    if "hash" in rules:
        forms = {_HASH.sub(r"\1", form) for form in forms}
    if "folders" in rules and "names" not in rules:
        forms |= {form[place + 1 :] for form in forms for place, letter in enumerate(form) if letter == "/"}
    return forms - {""}


def _form(key: str, rules: Sequence[str]) -> str:
    """What is compared of a key, listed or of an image."""
    if "slashes" in rules:
        key = key.replace("\\", "/").removeprefix("./")
    if "url" in rules and "%" in key:
        key = unquote(key)
    if "unicode" in rules and not key.isascii():
        key = unicodedata.normalize("NFC", key)
    if "case" in rules:
        key = key.casefold()
    if "names" in rules:
        key = key.rpartition("/")[2]
    if "numbers" in rules:
        key = _ZEROS.sub("", key)
    return _ENDING.sub("", key) if "endings" in rules else key


def _ends(form: str, depths: Sequence[int]) -> Iterable[str]:
    """The last folders and the name of a path, at some depths."""
    parts = form.split("/")
    return ("/".join(parts[-depth:]) for depth in depths if depth <= len(parts))
