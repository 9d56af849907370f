"""The whitening of a cache, kept beside it, so that a later ranking reads every row once.

The file ``cache.h5.whitening`` is a safetensors file of pucache (`pucache.storage.tensor_file`): every byte is covered
by a checksum, and the checksums of the cache files tell whose whitening it is.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import CacheError
from ..storage import tensor_file
from .graph_file import keep_beside, sidecar_path
from .row_source import RowSource
from .whitening import Whitening

_log = logging.getLogger(__name__)

FILE_FORMAT = tensor_file.FileFormat(
    format="pucache-whitening",
    version=1,
    noun="whitening",
    error=CacheError,
    expected="the file that pucache keeps beside a cache",
    remedy="remove it, and it is made anew",
)
SUFFIX = "whitening"
_MAX_BYTES = 1 << 30
_ARRAYS = ("mean", "directions", "variances")


def cached_whitening(cache: EmbeddingCache) -> tuple[Whitening, bool]:
    """Whitening of a cache, and whether all rows were read and verified for it.

    They were not where it is kept beside the cache: whoever uses it verifies them then. Otherwise it is estimated and
    kept, where it can be. Raises `CacheError` where a cache is damaged or holds embeddings that are not finite.
    """
    path = sidecar_path(cache, SUFFIX)
    try:
        kept, checksums = read_whitening(path)
        if (checksums, len(kept.mean)) == (cache.checksums, cache.encoder.dim):
            return kept, False
    except CacheError as error:
        _log.debug("%s; making it anew", error)
    whitening = Whitening.estimate(cache)
    tensors = {name: getattr(whitening, name) for name in _ARRAYS}
    if not whitening.directions.flags.c_contiguous:  # of fewer rows than dimensions; products have the same bits again
        tensors["directions"] = whitening.directions.T
    state = {"checksums": cache.checksums, "residual_variance": whitening.residual_variance}
    keep_beside("the whitening", lambda: tensor_file.write(path, FILE_FORMAT, tensors, state))
    return whitening, True


def whitening_of(source: RowSource) -> Whitening:
    """Whitening of all rows of a source; those of a cache have been verified."""
    if not isinstance(source.X, EmbeddingCache) or source.rows is not None:
        return Whitening.estimate(source)
    whitening, verified = cached_whitening(source.X)
    if not verified:
        for _ in source.blocks(check=True):
            pass
    return whitening


def read_whitening(path: str | Path) -> tuple[Whitening, list[str]]:
    """Read a whitening and the checksums of its cache's files; `CacheError` if missing, damaged or another file."""
    tensors, state = tensor_file.read(path, FILE_FORMAT, max_bytes=_MAX_BYTES)
    try:
        mean, directions, variances = (tensors[name] for name in _ARRAYS)
        residual, checksums = float(state["residual_variance"]), [str(checksum) for checksum in state["checksums"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CacheError(f"{path} is a whitening of another version of pucache; {FILE_FORMAT.remedy}") from error
    directions = directions if len(directions) == len(variances) else directions.T
    shapes = mean.shape, variances.shape, directions.shape
    if shapes != ((mean.size,), (variances.size,), (variances.size, mean.size)) or any(
        array.dtype != np.float32 for array in (mean, directions, variances)
    ):
        raise CacheError(f"{path} holds no whitening; {FILE_FORMAT.remedy}")
    return Whitening(mean, directions, variances, residual), checksums
