"""What is different in a forked command from one that a user starts: smaller parts, and the fault under test."""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from faults.commands import BLOCK_ROWS

COMMANDS = "embed import_embeddings train_pu sweep_priors retrieve_positives score info pack verify".split()
LIBRARIES = (
    "encodings.utf_8_sig",
    "faiss",
    "h5py",
    "matplotlib.pyplot",
    "pyarrow.parquet",
    "sklearn.linear_model",
    "timm",
)
PR_SET_PTRACER, ANY = 0x59616D61, ctypes.c_ulong(-1)


def warm() -> None:
    """Import everything that commands import, and make parts small and every step of progress told."""
    import torch

    torch.set_num_threads(1)
    for name in (*LIBRARIES, *(f"pucache.cli.{verb}" for verb in COMMANDS)):
        importlib.import_module(name)
    package = Path(__file__).parents[2] / "pucache"
    for path in package.rglob("*.py"):
        if (
            path.stem[:2] != "__" and "scaling" not in path.parts and "distributed" not in path.parts
        ):  # Ray is loaded by who asks for it
            importlib.import_module(f"pucache.{path.relative_to(package).with_suffix('').as_posix().replace('/', '.')}")
    from pucache.cli import progress
    from pucache.embedding import blocks, engine

    blocks.BLOCK_ROWS, engine.CHUNK_ROWS = BLOCK_ROWS, BLOCK_ROWS // 2
    progress.EVERY_SECONDS = 0


def acknowledge(path: str) -> None:
    """Note the rows of each part once it is said to be safe. (Progress lines run ahead: they tell of images done.)"""
    from pucache.cache.parts import Parts

    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)  # now, as permissions may go

    def add(self: Parts, rows: Any, *rest: Any, add: Any = Parts.add, **named: Any) -> None:
        add(self, rows, *rest, **named)
        os.write(file, f"{len(rows.keys)}\n".encode())

    Parts.add = add  # type: ignore[method-assign]


def small_files(limit: int) -> None:
    """No file can grow beyond so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def nobody() -> None:
    """Root may do everything, so become a user who may not."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def traced() -> None:
    """Wait for the tracer, which must not miss a call."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANY, 0, 0, 0)
    while "TracerPid:\t0" in Path("/proc/self/status").read_text():
        time.sleep(0.001)


def die_in_replace(call: int) -> None:
    """Be killed instead of renaming for the n-th time."""
    replace, calls = os.replace, 0

    def killed(*arguments: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*arguments, **options)

    os.replace = killed


def slow(seconds: float) -> None:
    """Take so long over each batch."""
    from pucache.encoders.inference import Runtime

    def forward(self: Runtime, pixels: Any, forward: Any = Runtime.__call__) -> Any:
        time.sleep(seconds)
        return forward(self, pixels)

    Runtime.__call__ = forward  # type: ignore[method-assign]


def slow_replace(seconds: float) -> None:
    """Wait so long before each renaming."""
    replace = os.replace

    def late(*arguments: Any, **options: Any) -> None:
        time.sleep(seconds)
        replace(*arguments, **options)

    os.replace = late


def known_names(names: list[str]) -> None:
    """Give temporary files these names, one after the other."""
    tempfile._name_sequence = iter(names)  # type: ignore[attr-defined]


def clock(jumps: list[float], every: int = 50) -> None:
    """Let the time of day jump by so many seconds, to the next of `jumps` after so many looks at the clock."""
    real, looks = time.time_ns, 0

    def now() -> int:
        nonlocal looks
        looks += 1
        return real() + int(jumps[looks // every % len(jumps)] * 1e9)

    gmtime, localtime = time.gmtime, time.localtime
    time.time_ns = now
    time.time = lambda: now() / 1e9
    time.gmtime = lambda seconds=None: gmtime(now() / 1e9 if seconds is None else seconds)  # type: ignore[assignment]
    time.localtime = lambda seconds=None: localtime(now() / 1e9 if seconds is None else seconds)  # type: ignore[assignment]


def journal(folder: str, record: str, honest: bool = True) -> None:
    """Record what a loss of power could leave of `folder` at any moment."""
    from faults.powerloss import Journal

    Journal(Path(folder), Path(record), honest).watch()
