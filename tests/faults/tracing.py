"""Lets chosen system calls of a command fail, or be its last, with strace."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from helpers.hangs import HANG_SECONDS

from faults.commands import Outcome, Twists
from faults.places import Job, World

READS = "read,pread64,readv,preadv"
WRITES = "write,pwrite64,writev,pwritev"
RENAMES = "rename,renameat,renameat2"


@functools.cache
def can_trace() -> bool:
    """Whether strace is here and may trace."""
    if not shutil.which("strace"):
        return False
    with subprocess.Popen(["sleep", "5"]) as sleeping:
        command = ["strace", "-o", os.devnull, "-p", str(sleeping.pid)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stderr is not None
            attached = "attached" in tracer.stderr.readline()
            tracer.terminate()
        sleeping.kill()
    return attached


def run_traced(
    world: World, job: Job, folder: Path, inject: str, *, only: Iterable[Path] = (), twists: Twists | None = None
) -> Outcome:
    """Run a job under ``strace -e inject=...``, on some paths only where they are given."""
    command = world.zygote.start(job.command, folder, twists=[*(twists or []), ("traced", {})])
    calls = inject.partition(":")[0]
    options = ["-e", f"trace={calls}", "-e", f"inject={inject}"]
    options += [word for path in only for word in ("-P", str(path))]
    tracer = subprocess.Popen(
        ["strace", "-q", "-f", "-o", os.devnull, *options, "-p", str(command.pid)], stderr=subprocess.DEVNULL
    )
    try:
        return command.wait()
    finally:
        if tracer.poll() is None:
            time.sleep(0.01)
            tracer.terminate()
        tracer.wait(HANG_SECONDS)


def run_unwritable(world: World, job: Job, folder: Path, error: str = "EIO") -> Outcome:
    """Run a job where no byte can be written to its outputs, though they can be created."""
    names = [f"{number:08}" for number in range(20)]
    outputs = [folder / name for name in job.outputs]
    partials = [path.with_name(f".{path.name}.{name}.partial") for path in outputs for name in names]
    twists: Twists = [("known_names", {"names": names})]
    return run_traced(world, job, folder, f"{WRITES}:error={error}", only=partials, twists=twists)


def count_calls(world: World, job: Job, calls: str, log: Path) -> int:
    """How many such calls an undisturbed run makes in the thread that makes most of them."""
    folder = world.place(job)
    command = world.zygote.start(job.command, folder, twists=[("traced", {})])
    strace = ["strace", "-q", "-ff", "-o", str(log), "-e", f"trace={calls}", "-p", str(command.pid)]
    with subprocess.Popen(strace, stderr=subprocess.DEVNULL) as tracer:
        assert command.wait().code == 0
        tracer.wait(HANG_SECONDS)
    counts = [path.read_text().count("(") for path in log.parent.glob(f"{log.name}.*")]
    return max(counts, default=0)
