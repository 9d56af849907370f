"""Whether files are as they were written: caches, models and what pretrain writes, also such as a stranger made.

A file is first held against its seal, which takes no code but our own. Only then does the HDF5 library
see a cache, in a process of its own with bounds on time and memory: a hostile file, sealed like any
other, could make it loop, swell or crash.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import CacheError, PUCacheError, RunError
from ..storage import tensor_file
from .embedding_cache import expand
from .hdf5 import begins_as_hdf5
from .reader import CacheFile

SECONDS, MEMORY = 60, 1 << 30  # for reading the structure of one cache, which takes milliseconds and kilobytes


@dataclass(frozen=True)
class Verified:
    """One file.

    Attributes
    ----------
    path : Path
    kind : {"cache", "model", "encoder", "checkpoint"}
    rows : int
        Of a cache; the dimensions of a model; the steps of training behind an encoder or a checkpoint.
    damage : str
        What is wrong with it; empty where it is whole.
    """

    path: Path
    kind: str
    rows: int
    damage: str = ""


def verify(paths: Iterable[str | Path]) -> list[Verified]:
    """Read every byte of caches, folders of caches, models, encoders, checkpoints, and the folders of runs.

    Parameters
    ----------
    paths : iterable of path or str
        Files, folders of caches, or folders of runs.

    Returns
    -------
    list of Verified
        One a file; damage is told in it, and not raised.

    Raises
    ------
    CacheError
        Nothing is there to verify.
    """
    found = [file for path in map(Path, paths) for file in _files(path)]
    return [_verify(path) for path in found or expand(())]


def _files(path: Path) -> list[Path]:
    """What pretrain wrote into a folder, and the caches beside it; or the file, or the caches of a folder."""
    run = _of_run(path)
    return [*run, *sorted(path.glob("*.h5"))] if run else expand([path])


def _of_run(folder: Path) -> list[Path]:
    """The encoder and the checkpoints in the folder of a run."""
    return [*folder.glob("encoder.safetensors"), *sorted(folder.glob("checkpoints/*.safetensors"))]


def _verify(path: Path) -> Verified:
    kind = _kind(path)
    try:
        return Verified(path, kind, _READERS[kind](path))
    except PUCacheError as error:
        return Verified(path, kind, 0, str(error))


def _kind(path: Path) -> str:
    if begins_as_hdf5(path) or path.suffix == ".h5":
        return "cache"
    kind = tensor_file.format_of(path).removeprefix("pucache-")
    return kind if kind in _READERS else "model"


def _cache(path: Path) -> int:
    _open_elsewhere(path)
    file = CacheFile(path)
    file.verify()
    return len(file)


def _model(path: Path) -> int:
    from ..pu.classifier import PULinearClassifier

    return int(PULinearClassifier.load(path).n_features_in_)


def _encoder(path: Path) -> int:
    from ..encoders import pretrained_file

    return pretrained_file.read(path)[1].steps


def _checkpoint(path: Path) -> int:
    from ..pretraining import checkpoints

    _, state = tensor_file.read(path, checkpoints.KIND, max_bytes=checkpoints.MAX_BYTES)
    step = state.get("step")
    if type(step) is not int or step < 0:
        raise RunError(f"{path} does not say after which step it was written; {checkpoints.KIND.remedy}")
    return step


_READERS = {"cache": _cache, "model": _model, "encoder": _encoder, "checkpoint": _checkpoint}


def _open_elsewhere(path: Path) -> None:
    """Open a cache in a process that may crash."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "pucache.cache.verification",
        str(path),
    ]  # -P: no code from the working directory
    places = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]  # but from where ours is
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    try:
        ended = subprocess.run(  # noqa: S603 - our own module on a path; no shell
            command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL, env=environ
        )
    except subprocess.TimeoutExpired as error:
        raise CacheError(
            f"{path} is hostile or damaged: HDF5 does not come to an end with it; do not open it"
        ) from error
    if ended.returncode < 0:
        raise CacheError(
            f"{path} is hostile or damaged: HDF5 ends with signal {-ended.returncode} on it; do not open it"
        )
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
        raise CacheError(f"{path} could not be opened in a process of its own ({said[-1][:200]}); do not open it")
    said = json.loads(ended.stdout)
    if said:
        raise CacheError(said)


def _open_here(path: str) -> str:
    """In that process: what is wrong with opening a cache; empty where nothing is."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        CacheFile(path)
    except CacheError as error:
        return str(error)
    except MemoryError:
        return f"{path} is hostile or damaged: HDF5 asks for more than {MEMORY >> 20} MiB to open it; do not open it"
    return ""


if __name__ == "__main__":
    print(json.dumps(_open_here(sys.argv[1])))
