"""Fills disks at chosen points: a small real file system where one can be mounted, else a limit on files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from faults.commands import Outcome
from faults.places import Job, World, error_line, state

PAGE = 4096
FULL, TOO_LARGE = "No space left on device", "File too large"


@dataclass(frozen=True)
class Disk:
    """A mounted tmpfs."""

    folder: Path

    @property
    def used(self) -> tuple[int, int]:
        """Pages and inodes."""
        told = os.statvfs(self.folder)
        return told.f_blocks - told.f_bfree, told.f_files - told.f_ffree

    def resize(self, *, pages: int = 1 << 14, inodes: int = 1 << 14) -> None:
        """Make it so large, or as large as is ever needed."""
        _mount(f"remount,size={pages * PAGE},nr_inodes={inodes}", self.folder)


@contextmanager
def disk(folder: Path) -> Iterator[Disk]:
    """Mount a tmpfs; raises OSError where that is not permitted."""
    folder.mkdir()
    try:
        _mount("size=64m,nr_inodes=16384", folder)
    except OSError:
        folder.rmdir()
        raise
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()


def _mount(options: str, folder: Path) -> None:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.stderr.strip())


def can_mount(folder: Path) -> bool:
    """Whether this user may mount."""
    try:
        with disk(folder / "probe"):
            return True
    except OSError:
        return False


def fill_pages(world: World, job: Job, rooms: Iterator[int] | list[int] | range, *, inodes: bool = False) -> int:
    """Run a job with room for so many more pages (or inodes), for each of `rooms`; returns how many were too few."""
    struck = 0
    for room in rooms:
        world.undisturbed(job)
        with disk(world.folder / "disk") as full:
            world.place(job, full.folder)
            pages, files = full.used
            full.resize(**({"inodes": files + room} if inodes else {"pages": max(1, pages + room)}))
            done = world.zygote.run(job.command, full.folder)
            struck += check_struck(world, job, full.folder, done, FULL)
            full.resize()
            world.check_rerun(job, full.folder, done.acknowledged)
    return struck


def limit_files(world: World, job: Job, limits: list[int]) -> int:
    """Run a job where no file grows beyond so many bytes, for each of `limits`; returns how many were too few."""
    struck = 0
    for limit in limits:
        folder = world.place(job)
        done = world.zygote.run(job.command, folder, twists=[("small_files", {"limit": limit})])
        struck += check_struck(world, job, folder, done, TOO_LARGE)
        world.check_rerun(job, folder, done.acknowledged)
    return struck


def check_struck(world: World, job: Job, folder: Path, done: Outcome, reason: str) -> bool:
    """Where it failed: one line that names the file and the reason, and all that was there before is as it was."""
    world.check_interrupted(job, folder)
    if done.code == 0:
        world.check_finished(job, folder, done)
        return False
    error = error_line(done, reason)
    named = [Path(name).name for name in job.outputs]
    assert any(name in error for name in named), f"{error!r} names none of {named}"
    left = [name for name in state(folder) if name.endswith(".partial")]
    assert not left, f"{job.name} left {left}"
    return True
