"""What a loss of power can leave on disk, by a small model of a file system.

A write reaches the disk with an fsync of its file, an entry of a directory (a creation, rename or
removal) with an fsync of that directory; before that, either may be there or not. The journal runs
in the command and notes the possible disks before and after every call that changes or fsyncs
anything. The command is then held to what it had said by then, on each of these disks.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from faults.places import Job, World, acknowledged, differences, ended, state
from pucache import EmbeddingCache
from pucache.cache.reader import CacheFile
from pucache.errors import CacheError

CHANGES = ("fsync", "fdatasync", "replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir", "truncate")
END = "after the end"
UNSYNCED = {"empty": lambda content: b"", "zeros": lambda content: bytes(len(content)), "as written": None}
Inodes = dict[int, Any]  # number to the content of a file, or to the entries of a folder: name to number


@dataclass(frozen=True)
class Crash:
    """One possible disk, and how many rows were said to be safe by then (None: the command had succeeded)."""

    when: str
    safe: int | None
    files: dict[str, Any]


class Journal:
    """Watches a folder from within the process that writes to it, and records the `Crash` of every moment."""

    def __init__(self, folder: Path, record: Path):
        self._folder, self._record = folder, record

    def prepare(self) -> None:
        """Note what is possible around each change from now on."""
        self._root = os.stat(self._folder).st_ino
        self._lock, self._held = threading.RLock(), {}  # type: ignore[var-annotated]
        self._crashes: dict[str, Crash] = {}  # of equal disks the last, by which most was said
        self._contents: dict[bytes, bytes] = {}
        self._synced = self._look()  # what is on disk for sure
        for name in CHANGES:
            setattr(os, name, self._around(name, getattr(os, name)))
        Finalize(None, self._finish, exitpriority=0)

    def _around(self, name: str, call: Any) -> Any:
        def changed(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._note(f"before {name}")
                result = call(*arguments, **options)
                if name in ("fsync", "fdatasync"):  # only this file or directory is on disk now as it is
                    inode, now = os.fstat(arguments[0]).st_ino, self._look()
                    if inode in now:
                        self._synced[inode] = now[inode]
                self._note(f"after {name}")
                return result

        return changed

    def _look(self) -> Inodes:
        """Files and folders, as any process sees them now."""
        found: Inodes = {}
        below = [(str(self._folder), self._root)]
        while below:
            path, number = below.pop()
            entries = found[number] = {}
            for entry in os.scandir(path):
                if entry.name.endswith(".lock"):
                    continue
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile by another thread
                    inode = entry.inode()
                    if inode not in self._held:  # so that no number is used again
                        self._held[inode] = os.open(entry.path, os.O_RDONLY)
                    if entry.is_dir():
                        below.append((entry.path, inode))
                    else:
                        content = Path(entry.path).read_bytes()
                        found[inode] = self._contents.setdefault(content, content)
                    entries[entry.name] = inode
        return found

    def _note(self, when: str) -> None:
        safe = acknowledged(self._record)  # first, for more may become safe while we look
        now = self._look()
        for chosen, kept in itertools.product(self._choices(now), UNSYNCED):
            tree = self._tree(self._root, chosen, now, UNSYNCED[kept])
            crash = Crash(f"{when}, unsynced {kept}", None if when == END else safe, tree)
            self._crashes[hashlib.sha256(repr(sorted(tree.items())).encode()).hexdigest()] = crash

    def _choices(self, now: Inodes) -> Iterator[Inodes]:
        """Which entries reached the disk: those synced, all, and those synced with any one change since."""
        folders = {number: entries for number, entries in now.items() if isinstance(entries, dict)}
        synced = {number: self._synced.get(number, {}) for number in folders}
        yield synced
        yield folders
        for number, entries in folders.items():
            before = synced[number]
            for name in before.keys() | entries.keys():
                if entries.get(name) != before.get(name):
                    one = {other: inode for other, inode in before.items() if other != name}
                    yield {**synced, number: one | ({name: entries[name]} if name in entries else {})}

    def _tree(self, number: int, chosen: Inodes, now: Inodes, unsynced: Any) -> dict[str, Any]:
        """Files and folders below a directory, by name."""
        tree: dict[str, Any] = {}
        for name, inode in chosen.get(number, self._synced.get(number, {})).items():
            written = now.get(inode, self._synced.get(inode, b""))
            if isinstance(written, dict):
                tree[name] = self._tree(inode, chosen, now, unsynced)
            elif unsynced is None:
                tree[name] = written
            else:
                tree[name] = self._synced[inode] if inode in self._synced else unsynced(written)
        return tree

    def _finish(self) -> None:
        self._note(END)
        with open(self._record / "crashes", "wb") as stream:
            pickle.dump(list(self._crashes.values()), stream)


def crashes(world: World, job: Job) -> list[Crash]:
    """Run a job once under a journal and return the distinct disks that a crash could have left."""
    world.undisturbed(job)
    folder, log = world.place(job), world.new_log()
    with world.start(job.command, folder, Journal(folder, log), log=log) as started:
        world.check_finished(job, folder, ended(started))
    return pickle.loads((log / "crashes").read_bytes())


def check_crash(world: World, job: Job, crash: Crash) -> None:
    """What was said to be safe is there, nothing wrong is read, and a rerun ends in the same bytes."""
    folder = world.place(job)
    for path in sorted(folder.iterdir()):
        path.unlink()
    _build(folder, crash.files)
    whole, now = world.undisturbed(job), state(folder)
    for name in whole.before.keys() | set(job.outputs):
        sides = [whole.before.get(name), whole.after.get(name)]
        assert now.get(name) in sides, f"{crash.when}: {name} is neither the old nor the new one"
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
        EmbeddingCache(file).verify()
    except CacheError:
        return 0
    return len(file)


def _build(folder: Path, tree: dict[str, Any]) -> None:
    for name, content in tree.items():
        if isinstance(content, dict):
            (folder / name).mkdir()
            _build(folder / name, content)
        else:
            (folder / name).write_bytes(content)
