"""What every check shares: how a wrong answer is reported, and what must hold of errors and of printed lines."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pucache.cli.main import main


class Wrong(Exception):
    """An answer that is not the one an independent reading gives, or an error that is not one line."""


def require(condition: object, complaint: str) -> None:
    if not condition:
        raise Wrong(complaint)


def one_line(text: str, what: str) -> None:
    require(text.strip() and "\n" not in text and "\r" not in text, f"{what} is not one line: {text[:300]!r}")


def without_controls(text: str, what: str) -> None:
    """A terminal acts on control characters, so none may come out of a file and reach it."""
    raw = {character for character in text if unicodedata.category(character) == "Cc"} - {"\n"}
    require(not raw, f"{what} holds the control characters {sorted(raw)!r}: {text[:300]!r}")


def snapshot(folder: Path, leaving_out: Path | None = None) -> dict[str, tuple[int, int]]:
    """Size and modification time of everything below a folder, links not followed."""
    found = {}
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if leaving_out is None or Path(path, name) != leaving_out]
        for name in (*folders, *files):
            info = os.lstat(os.path.join(path, name))
            found[os.path.join(path, name)] = (0 if name in folders else info.st_size, info.st_mtime_ns)
    return found


@contextlib.contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Whatever happens within writes nothing below `folder`."""
    before = snapshot(folder)
    try:
        yield
    finally:
        after = snapshot(folder)
        require(after == before, f"reading wrote {sorted(set(after.items()) ^ set(before.items()))[:3]}")


class Ended(NamedTuple):
    code: int
    stdout: str
    stderr: str


def command(*arguments: object) -> Ended:
    """Run the command in this process with its output going to real files, and check all that it prints."""
    texts, streams, before = [], (1, 2), (sys.stdout, sys.stderr)
    kept = [os.dup(number) for number in streams]
    files = [os.memfd_create("output") for _ in streams]
    for number, file in zip(streams, files, strict=True):
        os.dup2(file, number)
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(n, "w", closefd=False), "utf-8") for n in streams)
    try:
        main([str(argument) for argument in arguments], prog_name="pucache", color=True)  # as on a terminal: unfiltered
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before
        for number, old, file in zip(streams, kept, files, strict=True):
            os.dup2(old, number)
            texts.append(os.pread(file, 1 << 24, 0).decode())
            os.close(old)
            os.close(file)
    ended = Ended(code, *texts)
    _check(ended, arguments)
    return ended


def _check(ended: Ended, arguments: tuple[object, ...]) -> None:
    what = f"`pucache {arguments[0]}`"
    for text in (ended.stdout, ended.stderr):
        without_controls(text, f"the output of {what}")
        require("Traceback" not in text, f"{what} printed a traceback")
    require(ended.code in (0, 1, 2, 3), f"{what} ended with {ended.code}")
    if ended.code == 1:
        said = [line for line in ended.stderr.splitlines() if line.startswith("Error: ")]
        require(len(said) == 1, f"{what} failed with {len(said)} error lines: {ended.stderr[:300]!r}")
