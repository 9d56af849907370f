"""A small real disk to fill or to protect from writing, where one can be mounted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PAGE = 4096


@dataclass(frozen=True)
class Disk:
    """A mounted tmpfs."""

    folder: Path

    @property
    def used(self) -> tuple[int, int]:
        """Pages and inodes."""
        told = os.statvfs(self.folder)
        return told.f_blocks - told.f_bfree, told.f_files - told.f_ffree

    def resize(self, *, pages: int = 1 << 14, inodes: int = 1 << 14, mode: str = "rw") -> None:
        """Make it so large, or as large as is ever needed; with mode "ro" nothing can be written."""
        _mount(f"remount,{mode},size={pages * PAGE},nr_inodes={inodes}", self.folder)


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
