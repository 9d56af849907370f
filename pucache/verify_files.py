"""The verb `verify`: checks caches, models and the files that pretrain writes.

Each kind of file is verified by the package that writes it; the imports are made when a file needs them,
so that caches and models are verified without torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .cache.embedding_cache import EmbeddingCache, expand_paths, list_caches
from .cache.reader import CacheFile
from .errors import PUCacheError, RunError
from .neighbours.graph_file import read_graph
from .neighbours.whitening import read_whitening
from .storage import tensor_file
from .storage.atomic import format_of
from .storage.urls import is_url

_KINDS = ("cache", "neighbours", "whitening", "model", "encoder", "checkpoint")


@dataclass(frozen=True)
class VerifiedFile:
    """Result for one file.

    Attributes
    ----------
    path : Path
    kind : {"cache", "neighbours", "whitening", "model", "encoder", "checkpoint", ""}
    rows : int
        Rows of a cache or of a graph of neighbours, dimensions of a whitening or a model, training steps of an
        encoder or a checkpoint; 0 if damaged.
    damage : str
        Error message; empty if the file is whole.
    """

    path: Path
    kind: str
    rows: int
    damage: str = ""


def verify(paths: str | Path | EmbeddingCache | Iterable[str | Path | EmbeddingCache]) -> list[VerifiedFile]:
    """Read every byte of files of pucache, and check it against what was written.

    Parameters
    ----------
    paths : str, path, EmbeddingCache, or an iterable of these
        Caches, folders of caches, graphs of neighbours, models, encoders, checkpoints, and run folders of pretrain.

    Returns
    -------
    list of VerifiedFile
        One per file. Damage is reported here, and does not raise.

    Raises
    ------
    CacheError
        There is no file to verify.
    """
    files = [file for path in list_caches(paths) for file in _files(path)]
    return [_verify(path) for path in files or expand_paths(())]


def _files(path: str | Path | EmbeddingCache) -> list[Path]:
    """List the files of a run folder with the caches in it; or the caches of a folder; or the file itself."""
    if isinstance(path, Path) or (isinstance(path, str) and not is_url(path)):
        path = Path(path)
        run = [*path.glob("encoder.safetensors"), *sorted(path.glob("checkpoints/*.safetensors"))]
        if run:
            return [*run, *sorted(path.glob("*.h5"))]
    return expand_paths(path)


def _verify(path: Path) -> VerifiedFile:
    kind = _kind(path)
    if not kind:
        damage = f"{path} is no file that verify checks; expected a cache, a model, or what pretrain wrote"
        return VerifiedFile(path, kind, 0, damage)
    try:
        return VerifiedFile(path, kind, _rows(path, kind))
    except PUCacheError as error:
        return VerifiedFile(path, kind, 0, str(error))


def _kind(path: Path) -> str:
    """Kind of a file by its name and first bytes; "" where neither names one."""
    kind = format_of(path).removeprefix("pucache-")
    if path.suffix == ".h5":
        return "cache"
    by_name = {".safetensors": "model", ".neighbours": "neighbours", ".whitening": "whitening"}
    return kind if kind in _KINDS else by_name.get(path.suffix, "" if path.is_file() else "cache")


def _rows(path: Path, kind: str) -> int:
    """Verify a file of one of `_KINDS`; returns `VerifiedFile.rows`."""
    if kind == "cache":
        file = CacheFile(path)
        EmbeddingCache(file).verify()
        return len(file)
    if kind == "neighbours":
        return len(read_graph(path)[0])
    if kind == "whitening":
        return len(read_whitening(path)[0].mean)
    if kind == "model":
        from .training.model_file import read_model

        return read_model(path)[1].coef_.shape[1]
    if kind == "encoder":
        from .encoders import pretrained_file

        return pretrained_file.read(path)[1].steps
    from .pretraining import run_folder

    _, state = tensor_file.read(path, run_folder.CHECKPOINT, max_bytes=run_folder.MAX_CHECKPOINT_BYTES)
    step = state.get("step")
    if type(step) is not int or step < 0:
        raise RunError(f"{path} does not say after which step it was written; {run_folder.CHECKPOINT.remedy}")
    return step
