"""Verification of one cache file, which may come from an untrusted writer.

The file is first checked against its checksums, which takes no code but pucache's own. HDF5 then opens
it in a process of its own with limits on time and memory: a hostile file with valid checksums could make
HDF5 loop, swell or crash. Only after that is the file opened in this process.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

from ..errors import CacheError
from .reader import CacheFile

SECONDS, MEMORY = 60, 1 << 30  # limits for opening one cache, which takes milliseconds and kilobytes


def verify_cache_file(path: Path) -> int:
    """Check every byte of a cache file.

    Parameters
    ----------
    path : Path

    Returns
    -------
    int
        Number of rows.

    Raises
    ------
    CacheError
        The file is damaged or hostile, or cannot be read.
    """
    _open_in_child(path)
    file = CacheFile(path)
    file.verify()
    return len(file)


def _open_in_child(path: Path) -> None:
    """Open a cache in a child process; raises `CacheError` if that fails in any way, a crash included."""
    # -P: no module of the working directory is imported
    command = [sys.executable, "-P", "-m", "pucache.cache.verification", str(path)]
    # instead, pucache is imported from where this process has it
    modules = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(modules)}
    try:
        child = subprocess.run(  # noqa: S603 - our own module on a path; no shell
            command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise CacheError(
            f"{path} is hostile or damaged: HDF5 does not come to an end with it; do not open it"
        ) from error
    if child.returncode < 0:
        raise CacheError(
            f"{path} is hostile or damaged: HDF5 ends with signal {-child.returncode} on it; do not open it"
        )
    if child.returncode:
        messages = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
        raise CacheError(f"{path} could not be opened in a process of its own ({messages[-1][:200]}); do not open it")
    problem = json.loads(child.stdout)
    if problem:
        raise CacheError(problem)


def _open_with_limits(path: str) -> str:
    """In the child process: limit its memory, open a cache, and return the error message; empty if it opens."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        CacheFile(path)
    except CacheError as error:
        return str(error)
    except MemoryError:
        return f"{path} is hostile or damaged: HDF5 asks for more than {MEMORY >> 20} MiB to open it; do not open it"
    return ""


if __name__ == "__main__":
    print(json.dumps(_open_with_limits(sys.argv[1])))
