"""What a loss of power can leave on disk, by a small model of a file system.

A write reaches the disk with an fsync of its file, an entry of a directory (a creation, rename or
removal) with an fsync of that directory; before that, either may be there or not. The journal runs
in the command and notes the possible disks before and after every call that changes or fsyncs
anything. The command is then held to what it had said by then, on each of these disks.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.places import Job, World, differences, state
from pucache.cache.reader import CacheFile
from pucache.errors import CacheError

CHANGES = ("fsync", "fdatasync", "replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir", "truncate")
END = "after the end"
CONTENTS = ("synced, or empty", "synced, or zeros", "as written")
Entries = dict[str, int]  # name -> inode


class Journal:
    """Watches a folder from within the process that writes to it.

    Parameters
    ----------
    folder : Path
    record : Path
        Folder for what is seen: contents by their sha256, and ``disks.jsonl``.
    honest : bool
        False: fsync does nothing, as on a disk that lies; then something must be lost.
    """

    def __init__(self, folder: Path, record: Path, honest: bool):
        self._folder, self._record, self._honest = folder, record, honest
        self._lock = threading.RLock()
        self._held: dict[int, int] = {}  # inode -> descriptor, so that no number is used again
        self._root = os.stat(folder).st_ino
        self._acknowledged = 0
        self._entries, self._contents = self._look()  # what is on disk for sure

    def watch(self) -> None:
        """Note what is possible around each change from now on, and what is said to be safe."""
        from pucache.cache.parts import Parts

        for name in CHANGES:
            setattr(os, name, self._around(name, getattr(os, name)))

        def add(parts: Parts, rows: Any, *rest: Any, add: Any = Parts.add, **options: Any) -> None:
            add(parts, rows, *rest, **options)
            with self._lock:
                self._acknowledged += len(rows.keys)
                self._note("a part is said to be safe")

        Parts.add = add  # type: ignore[method-assign]
        atexit.register(self._note, END)

    def _around(self, name: str, call: Any) -> Any:
        def changed(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._note(f"before {name}")
                result = call(*arguments, **options)
                if name in ("fsync", "fdatasync") and self._honest:
                    self._sync(arguments[0])
                self._note(f"after {name}")
                return result

        return changed

    def _sync(self, descriptor: int) -> None:
        """Only this file or directory is on disk now as it is."""
        inode = os.fstat(descriptor).st_ino
        entries, contents = self._look()
        if inode in entries:
            self._entries[inode] = entries[inode]
        elif inode in contents:
            self._contents[inode] = contents[inode]

    def _look(self) -> tuple[dict[int, Entries], dict[int, str]]:
        """Entries of each directory and content of each file, as any process sees them now."""
        entries: dict[int, Entries] = {}
        contents: dict[int, str] = {}
        below = [(str(self._folder), self._root)]
        while below:
            path, number = below.pop()
            here = entries.setdefault(number, {})
            for entry in os.scandir(path):
                if entry.name.endswith(".lock"):
                    continue
                try:
                    self._hold(entry)
                    if entry.is_dir():
                        below.append((entry.path, entry.inode()))
                    else:
                        contents[entry.inode()] = self._keep(Path(entry.path).read_bytes())
                    here[entry.name] = entry.inode()
                except FileNotFoundError:
                    continue  # removed meanwhile by another thread
        return entries, contents

    def _hold(self, entry: os.DirEntry[str]) -> None:
        if entry.inode() not in self._held:
            self._held[entry.inode()] = os.open(entry.path, os.O_RDONLY)

    def _keep(self, content: bytes) -> str:
        name = hashlib.sha256(content).hexdigest()
        if not (self._record / name).exists():
            (self._record / name).write_bytes(content)
        return name

    def _note(self, when: str) -> None:
        safe = self._acknowledged  # first, for more may become safe while we look
        entries, contents = self._look()
        with open(self._record / "disks.jsonl", "a") as stream:
            for chosen, kept in itertools.product(self._choices(entries), CONTENTS):
                tree = self._tree(self._root, chosen, entries, contents, kept)
                stream.write(json.dumps({"when": when, "safe": safe, "kept": kept, "files": tree}) + "\n")

    def _choices(self, entries: dict[int, Entries]) -> Iterator[dict[int, Entries]]:
        """Which entries reached the disk: those synced, all, and those synced with any one change since."""
        synced = {number: self._entries.get(number, {}) for number in entries}
        yield synced
        yield entries
        for number, now in entries.items():
            before = synced[number]
            for name in sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name)):
                one = {other: number for other, number in before.items() if other != name}
                yield {**synced, number: one | ({name: now[name]} if name in now else {})}

    def _tree(
        self, number: int, chosen: dict[int, Entries], now: dict[int, Entries], written: dict[int, str], kept: str
    ) -> dict[str, Any]:
        """Files and folders below a directory, by name: the name of a content, or a tree."""
        tree: dict[str, Any] = {}
        for name, inode in chosen.get(number, self._entries.get(number, {})).items():
            if inode in now or inode in self._entries:
                tree[name] = self._tree(inode, chosen, now, written, kept)
            elif kept == "as written" and inode in written:
                tree[name] = written[inode]
            elif inode in self._contents:
                tree[name] = self._contents[inode]
            else:
                zeros = len((self._record / written[inode]).read_bytes()) if inode in written else 0
                tree[name] = self._keep(bytes(zeros) if kept == "synced, or zeros" else b"")
        return tree


# --- in the test -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Crash:
    """One possible disk, and how many rows were said to be safe by then (None: the command had succeeded)."""

    when: str
    safe: int | None
    files: dict[str, Any]


def crashes(world: World, job: Job, record: Path, *, honest: bool = True) -> list[Crash]:
    """Run a job once under a journal and return the distinct disks that a crash could have left."""
    record.mkdir(parents=True)
    folder = world.place(job)
    done = world.zygote.run(
        job.command, folder, twists=[("journal", {"folder": str(folder), "record": str(record), "honest": honest})]
    )
    world.check_finished(job, folder, done)
    lines = [json.loads(line) for line in (record / "disks.jsonl").read_text().splitlines()]
    found: dict[str, Crash] = {}
    for line in lines:  # of equal disks the last, by which most was said
        safe = None if line["when"] == END else line["safe"]
        found[json.dumps(line["files"], sort_keys=True)] = Crash(f"{line['when']}, {line['kept']}", safe, line["files"])
    return list(found.values())


def check_crash(world: World, job: Job, crash: Crash, record: Path) -> None:
    """What was said to be safe is there, nothing wrong is read, and a rerun ends in the same bytes."""
    folder = world.place(job)
    for path in sorted(folder.iterdir()):
        path.unlink()
    _build(folder, crash.files, record)
    whole, now = world.undisturbed(job), state(folder)
    for name in job.outputs:
        allowed = [side.get(name) for side in (whole.before, whole.after)]
        assert now.get(name) in allowed, f"{crash.when}: {name} is neither the old nor the new one"
    inputs = {name: content for name, content in whole.before.items() if name not in job.outputs}
    missing = {name for name in inputs if now.get(name) != inputs[name]}
    assert not missing, f"{crash.when}: {missing} changed"
    if crash.safe is None:
        lost = {name: told for name, told in differences(whole.after, now).items() if name in job.outputs}
        assert not lost, f"{crash.when}: {lost}"
    rows = sum(map(_rows, folder.glob("*.parts/part-*.h5")))
    merged = now.get(job.outputs[0]) == whole.after[job.outputs[0]]
    assert merged or rows >= (crash.safe or 0), f"{crash.when}: {crash.safe} rows were safe, {rows} are there"
    world.check_rerun(job, folder, crash.safe or 0)


def _rows(part: Path) -> int:
    """Whole rows in a part; none in a damaged one, which the next run sets aside."""
    try:
        file = CacheFile(part)
        file.verify()
    except CacheError:
        return 0
    return len(file)


def _build(folder: Path, tree: dict[str, Any], record: Path) -> None:
    for name, content in tree.items():
        if isinstance(content, dict):
            (folder / name).mkdir()
            _build(folder / name, content, record)
        else:
            (folder / name).write_bytes((record / content).read_bytes())
