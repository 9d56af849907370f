"""What an output may replace: never a file that is read, and without `force` only a file of its own kind.

docs/durability.md says the rules in words. Nothing is read or listed where there is nothing to replace.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import fnmatch
import os
import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

from ..errors import OutputError
from .atomic import check_writable, is_standard_output, read_regular, remove_partials
from .file_kinds import EMPTY, IMAGE_ENDINGS, JSON, ONNX, PAGE, TABLE, TEXT, is_of_pucache, kind_of
from .urls import is_url, path_or_url, without_secrets

_NOT_READ_FROM_FOLDERS = (TABLE, JSON, PAGE, ONNX)
# files of sessions and of runs of pretraining, which nothing but these replaces
_OWN_NAMES = re.compile(r"\.|decisions\.sqlite|(?:reviewed|log)\.csv$|(?:run|finished|images)\.json$")
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
Paths = Iterable[str | os.PathLike[str]]


def check_output(path: str | Path, kind: str, *, inputs: Paths = (), force: bool = False) -> Path:
    """Check, before any work is done, that a file of a `kind` can be written, and return its path; else `OutputError`.

    `inputs` are paths and URLs that are read: files, folders, globs and manifests. No file among them is ever replaced;
    a file of another kind (`pucache.storage.file_kinds`) is replaced where `force` is set.
    """
    path = check_writable(path, is_table=kind == TABLE)
    if not is_standard_output(path) and path.exists():
        check_replaces(str(path), kind, kind_of(path), inputs, force=force)
    return path


def check_replaces(name: str, kind: str, existing: str, inputs: Paths, *, force: bool) -> None:
    """Raise `OutputError` unless an output of a `kind` may replace the file `name`, of the kind `existing`."""
    shown = without_secrets(name)
    if any(is_read(name, os.fspath(one), kind, existing) for one in inputs):
        raise OutputError(f"{shown} is also an input, which would be overwritten; name another file to write")
    if not force and existing not in (kind, EMPTY):
        what = f"{shown} is {existing}, where {kind} is to be written"
        raise OutputError(f"{what}; remove it first, or name another file")


def may_replace_derived(path: Path, inputs: Paths = ()) -> bool:
    """Whether a file whose name nobody gave may be written: nothing is there, or what pucache wrote, and no input.

    Leftovers of killed writers are removed.
    """
    with contextlib.suppress(OSError):  # whoever writes it says so
        remove_partials(path)
    if not os.path.lexists(path):
        return True
    kind = kind_of(path)
    return is_of_pucache(path) and not any(is_read(str(path), os.fspath(one), kind, kind) for one in inputs)


def check_distinct(outputs: Sequence[tuple[str, str | Path]]) -> None:
    """Raise `ValueError` where two outputs, each the name of its option and its path, are one file."""
    for (option, path), (other, second) in combinations(outputs, 2):
        if not is_standard_output(path) and _is_same(os.fspath(path), os.fspath(second)):
            raise ValueError(f"{option} and {other} are one file, {path}; name two")


def _is_same(one: str, other: str) -> bool:
    one, other = path_or_url(one), path_or_url(other)
    if is_url(one) or is_url(other):
        return one == other
    both_exist = os.path.exists(one) and os.path.exists(other)
    return os.path.samefile(one, other) if both_exist else os.path.realpath(one) == os.path.realpath(other)


# --- inputs ------------------------------------------------------------------------------------


def is_read(output: str, where: str, kind: str, existing: str) -> bool:
    """Whether an existing output belongs to an input: it is that file, lies in that folder, or is named by that list.

    In a folder, or among the files of a glob, a file of the output's own `kind` is what an earlier run has written,
    unless it is a picture that pucache did not write, or a file of a session or a run.
    """
    name = path_or_url(output)
    for link in map(path_or_url, path_or_url(where).split("::")):  # fsspec's zip://inner.png::archive.zip
        if not os.path.exists(link):
            link = link.partition("#")[0]  # options of a Parquet source
        if is_url(name) or is_url(link):
            below = name.startswith(link.rstrip("/") + "/") or fnmatch.fnmatchcase(name, _pattern(link))
            exact, member = name == link, is_url(name) and below
        else:
            exact, member = _is_file(name, link, existing), _is_member(name, link)
        if exact or (member and _reads_members(name, kind, existing)):
            return True
    return False


def _reads_members(name: str, kind: str, existing: str) -> bool:
    """Whether a file of a folder that is an input must be taken for one that is read."""
    if any(_OWN_NAMES.match(os.path.basename(one)) for one in (name, os.path.realpath(name))):
        return True
    if _is_picture(name, existing):
        return kind != existing or not is_of_pucache(Path(name))
    return existing != kind and existing not in _NOT_READ_FROM_FOLDERS


def _is_picture(name: str, existing: str) -> bool:
    return existing.endswith(" picture") or name.lower().endswith(IMAGE_ENDINGS)


def _is_file(path: str, where: str, existing: str) -> bool:
    """Whether a path is the file `where`, or an image that this list names."""
    if not os.path.isfile(where):
        return False
    return os.path.samefile(path, where) or (_is_picture(path, existing) and _is_listed(path, where))


def _is_member(path: str, where: str) -> bool:
    """Whether a path lies in the folder `where`, by any of its names, or matches this glob."""
    names = {os.path.abspath(path), os.path.realpath(path)}
    if os.path.isdir(where):
        return any(os.path.samefile(parent, where) for name in names for parent in Path(name).parents)
    pattern = _pattern(os.path.abspath(where))
    return not os.path.exists(where) and any(fnmatch.fnmatch(name, pattern) for name in names)


def _pattern(where: str) -> str:
    """A glob whose braces, such as ``{00000..00009}``, stand for any text."""
    return re.sub(r"\{[^{}]*\}", "*", where)


def _rows(texts: list[str], mark: str) -> list[list[str]]:
    try:
        return list(csv.reader(texts, delimiter=mark))
    except csv.Error:  # a cell that is longer than csv reads
        return []


def _is_listed(path: str, listing: str) -> bool:
    """Whether a cell of a list or a table is the path of a file, from the folder of the list."""
    if kind_of(listing) not in (TEXT, TABLE, JSON):
        return False
    content, name = read_regular(listing), os.fsencode(os.path.basename(path))
    if content.startswith(_UTF_16):
        content = content.decode("utf-16", "replace").encode("utf-8", "surrogatepass")
    folder, spelled = os.path.dirname(os.path.abspath(listing)), {name, name.replace(b'"', b'""')}  # inside quotes
    lines = [line for line in content.splitlines() if any(one in line for one in spelled)]
    texts = [os.fsdecode(line) for line in lines]
    rows = [row for mark in ",;\t" for row in _rows(texts, mark)]
    cells = {cell.strip() for row in [texts, *rows, *(text.split('"') for text in texts)] for cell in row}
    candidates = [os.path.join(folder, cell) for cell in cells if cell]
    return any(os.path.exists(one) and os.path.samefile(path, one) for one in candidates)
