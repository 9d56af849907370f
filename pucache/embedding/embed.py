"""Images and an encoder -> a cache; a run can be interrupted and repeated.

Rows of unchanged images are kept, embeddings of images whose content is known are copied, and the other
images are embedded in blocks. Each finished block becomes a *part*, a small cache file in ``CACHE.parts``.
At the end old rows and parts are merged into the cache in one rename. A run that was killed continues from
the parts. The rows of a block depend on the listing alone, not on timing or on the number of workers, so an
interrupted and an uninterrupted run write the same bytes.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..cache.destination import encoder_of_existing, open_destination
from ..cache.embedding_cache import EmbeddingCache
from ..cache.writer import creation_time
from ..encoders.deferred import DeferredEncoder, EncoderOptions, open_encoder
from ..encoders.spec import BUNDLED, EncoderSpec
from ..images.source import Source, open_source
from ..progress import Progress, Silent
from .plan import EmbedOptions, EmbedPlan
from .profiling import Profile

if TYPE_CHECKING:
    import torch

    from ..encoders.encoder import Encoder
    from .engine import Engine


@dataclass(frozen=True)
class EmbedReport:
    """What one run of `run_embedding` did.

    Attributes
    ----------
    cache : Path
        The cache file on this machine.
    name : str
        Its path, or the URL that it was sent to.
    encoder : EncoderSpec
    rows : int
        Rows in the finished cache.
    computed, reused, kept : int
        Images that were embedded; images whose embedding was copied because the content was known; images
        that are unchanged since the last run.
    vanished : int
        Rows of images that are no longer in the source: kept, or dropped with `prune`.
    damaged : int
        Rows of the existing cache that were damaged and given up.
    failures : dict of str to str
        Key to reason.
    ignored : Counter
        Number of files left out, by ending.
    written : bool
        False where nothing had changed and the cache was left as it was.
    seconds : float
        Without loading the encoder.
    profile : Profile
        Seconds by stage.
    cosine : float or None
        Least cosine between the first embeddings and those of the same model in float32 by torch. None
        where nothing was embedded, or where the model ran in float32 by torch.
    """

    cache: Path
    name: str
    encoder: EncoderSpec
    rows: int
    computed: int
    reused: int
    kept: int
    vanished: int
    damaged: int
    failures: dict[str, str]
    ignored: Counter[str]
    written: bool
    seconds: float
    profile: Profile
    cosine: float | None


def embed(
    source: str | Path | Source,
    cache: str | Path,
    encoder: str | Path | Encoder = BUNDLED,
    *,
    weights: str | Path | None = None,
    device: str | torch.device = "auto",
    precision: str = "auto",
    runtime: str = "auto",
    decode: str = "auto",
    batch_size: int | None = None,
    reuse: Sequence[str | Path] = (),
    prune: bool = False,
    moved: bool = False,
    verify: bool = False,
    shard: tuple[int, int] = (1, 1),
    dtype: str | None = None,
    workers: int | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> EmbeddingCache:
    """Embed every image of a source into a cache file; run it again to continue or to update the cache.

    Parameters
    ----------
    source : str, Path or Source
        Folder, manifest or tar shards; see `pucache.open_source`.
    cache : path or URL
        Cache file to write or update.
    encoder : str, path or Encoder
        ``bundled``, ``timm:NAME`` or the folder of an encoder from `pretrain`; see `pucache.load_encoder`.
    weights, device, precision, runtime, decode, batch_size
        See `pucache.load_encoder`; for an encoder by name alone. Where they are ``auto``, the settings of an
        existing cache are used if this machine supports them.
    reuse, prune, moved, verify, shard, dtype
        See `pucache.embedding.plan.EmbedOptions`.
    workers : int, optional
        Processes that read and decode images; 0 does it in threads. By default one per core, up to 16, where
        the encoder runs on CUDA, else 0.
    engine : Engine, optional
        Runs the work elsewhere, such as `pucache.embedding.distributed.engine.RayEngine`; by default this
        machine does it.
    progress : Progress, optional

    Returns
    -------
    EmbeddingCache

    Raises
    ------
    SourceError
        The source is empty, or none of its images can be read.
    CacheError
        The cache, or one to reuse, is unusable, of another encoder or source, or being written by another process.
    EncoderError
        The encoder is unusable, or embeddings overflow float16.
    OutputError
        The cache cannot be written.
    EngineError
        A cluster cannot do the work.
    MissingExtraError
        The package for a store of this kind is not installed.
    ValueError
        An unknown dtype, a shard that does not exist, both workers and an engine, settings for an encoder
        that is loaded already, or SOURCE_DATE_EPOCH is not a time.
    """
    settings = EncoderOptions(
        weights=weights, device=device, precision=precision, runtime=runtime, decode=decode, batch_size=batch_size
    )
    if isinstance(encoder, str | os.PathLike):
        encoder_or_options: EncoderOptions | Encoder = dataclasses.replace(settings, name=encoder)
    elif settings != EncoderOptions():
        raise ValueError("the encoder is loaded already; pass weights, device and precision to load_encoder")
    else:
        encoder_or_options = encoder
    report = run_embedding(
        source,
        cache,
        encoder_or_options,
        options=EmbedOptions(reuse=reuse, prune=prune, moved=moved, verify=verify, shard=shard, dtype=dtype),
        workers=workers,
        engine=engine,
        progress=progress,
    )
    return EmbeddingCache(report.cache)


def run_embedding(
    source: str | Path | Source,
    cache: str | Path,
    encoder: EncoderOptions | Encoder | DeferredEncoder,
    *,
    options: EmbedOptions | None = None,
    workers: int | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> EmbedReport:
    """Do what `embed` does, and report what was done.

    Parameters
    ----------
    source : str, Path or Source
    cache : path or URL
    encoder : EncoderOptions, Encoder or DeferredEncoder
        Options of an encoder to open, or an encoder. One that is provably that of the existing cache is
        loaded only where an image is to be embedded.
    options : EmbedOptions, optional
    workers, engine, progress
        See `embed`.

    Returns
    -------
    EmbedReport

    Raises
    ------
    PUCacheError, ValueError
        As `embed`.
    """
    profile, options = Profile(), options or EmbedOptions()
    if engine is not None and workers is not None:
        raise ValueError("workers are those of the engine of this machine; give the other engine its own")
    destination = open_destination(cache)
    destination.check_writable()
    creation_time()  # raises before any work
    options.check()
    if isinstance(source, str | os.PathLike):
        source = open_source(source)
    if isinstance(encoder, EncoderOptions):
        encoder = _open_encoder(encoder, cache, engine)
    if engine is None:
        from .local_engine import LocalEngine

        engine = LocalEngine(workers)
    started = time.monotonic()
    with destination.exclusive(), progress or Silent() as progress:
        destination.fetch()
        plan = EmbedPlan(source, destination, spec=encoder.spec, options=options, profile=profile)
        counts = plan.run(encoder, engine, progress)
        written = plan.finish()
    return EmbedReport(
        cache=destination.local,
        name=destination.name,
        encoder=encoder.spec,
        rows=plan.inventory.rows,
        computed=counts.computed,
        reused=counts.reused,
        kept=len(plan.existing.unchanged),
        vanished=len(plan.existing.vanished),
        damaged=plan.existing.damaged,
        failures=plan.inventory.failures,
        ignored=plan.listing.ignored,
        written=written,
        seconds=time.monotonic() - started - counts.loading_seconds,
        profile=profile,
        cosine=counts.cosine,
    )


def _open_encoder(options: EncoderOptions, cache: str | Path, engine: Engine | None) -> Encoder | DeferredEncoder:
    if engine is not None:
        options = dataclasses.replace(options, device=engine.device(options.device))
    return open_encoder(options, like=encoder_of_existing(cache))
