"""Images x encoder -> cache, resumable.

What is unchanged is kept, what is known by content is copied, and the rest is embedded in blocks.
A finished block becomes a *part*, a small cache file of its own in ``CACHE.parts``; at the end old
rows and parts are merged into the cache in one rename. Killed at any moment, the next run goes on
from the parts. A block's rows depend on the listing alone, never on timing or workers, so an
interrupted run and an undisturbed one end in the same bytes (`pucache.embedding.local_engine`, `pucache.embedding.parts`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..cache.destination import open_destination
from ..cache.embedding_cache import expand_paths
from ..cache.layout import DTYPES
from ..cache.merging import merge
from ..cache.paths import writer_lock
from ..cache.reader import CacheFile
from ..cache.writer import Rows, creation_time
from ..encoders.encoder import Encoder
from ..encoders.spec import EncoderSpec
from ..errors import CacheError, SourceError
from ..images.listing import check_shard, take_shard
from ..images.source import Listing, Source
from ..progress import Progress, Silent
from .engine import Engine, Job
from .local_engine import Local
from .outcome import Outcome
from .parts import Known, Parts
from .profiling import Profile
from .resume import Earlier, open_earlier, require_encoder
from .row_blocks import Assembly


@dataclass(frozen=True)
class EmbedReport:
    """What one run of `embed` did.

    Attributes
    ----------
    cache : Path
        The file on this machine.
    name : str
        Its path, or the URL that it was sent to.
    rows : int
        Rows in the finished cache.
    computed, reused, kept : int
        Embedded now; copied because the content was known; unchanged since the last run.
    vanished : int
        Rows of files that are no longer in the source: still there, or dropped with `prune`.
    damaged : int
        Rows of the earlier cache that were not as they had been written, and were given up.
    failures : dict of str to str
        Key to reason.
    ignored : Counter
        Files left out by their ending.
    written : bool
        False where nothing had changed and the cache was left as it was.
    seconds : float
    profile : Profile
        Where they went.
    cosine : float or None
        Least cosine of the first embeddings with those of the same model in float32 by torch; None
        where nothing was computed, or in just that way.
    """

    cache: Path
    name: str
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
    source: Source,
    cache: str | Path,
    encoder: Encoder,
    *,
    reuse: Sequence[str | Path] = (),
    prune: bool = False,
    moved: bool = False,
    verify: bool = False,
    shard: tuple[int, int] = (1, 1),
    dtype: str | None = None,
    workers: int | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> EmbedReport:
    """Embed every image of a source into a cache file; run it again to go on or to update.

    Parameters
    ----------
    source : Source
        See `pucache.images.source.open_source`.
    cache : path or URL
        Cache file to write or update; at a URL, see `pucache.cache.remote.RemoteCache`.
    encoder : Encoder
        See `pucache.encoders.encoder.load_encoder`.
    reuse : sequence of paths
        Other caches of the same encoder; an image whose bytes they know is copied.
    prune : bool
        Drop rows of files that are gone from the source.
    moved : bool
        The cache was made from this source under another path or URL; without it that is refused,
        because the keys of two sources would mix.
    verify : bool
        Read every byte of an existing cache first, and embed anew what is damaged; without it that is
        done only where the cache is written anew.
    shard : (I, N)
        Take only the I-th of N shares of the keys, 1 <= I <= N.
    dtype : {"float16", "float32"}, optional
        Of the stored embeddings; by default what the cache has, or float16.
    workers : int, optional
        Processes that read and decode; 0 does it in this one.
    engine : Engine, optional
        Does the work elsewhere, such as `pucache.embedding.distributed.engine.RayEngine`; by default this machine does it.
    progress : Progress, optional

    Returns
    -------
    EmbedReport

    Raises
    ------
    SourceError
        The source is empty, or none of its images can be read.
    CacheError
        The cache, or one to reuse, is unusable, of another encoder or source, or being written by somebody else.
    EncoderError
        Embeddings overflow float16.
    OutputError
        The cache cannot be written.
    EngineError
        A cluster is not fit for the work.
    MissingExtraError
        What speaks to a store of this kind is not installed.
    ValueError
        An unknown dtype, a shard that does not exist, both workers and an engine, or SOURCE_DATE_EPOCH is no time.
    """
    began, profile = time.monotonic(), Profile()
    if engine is not None and workers is not None:
        raise ValueError("workers are those of the engine of this machine; give the other engine its own")
    place = open_destination(cache)
    place.check_writable()
    creation_time()  # before any work
    check_shard(shard)
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; use {' or '.join(DTYPES)}")
    cache = place.local
    with writer_lock(cache), progress or Silent() as progress:
        place.fetch()
        old = open_earlier(cache, encoder.spec, dtype)
        stored = DTYPES[dtype] if dtype else old.dtype if old else DTYPES["float16"]
        others = _open_reuse(reuse, encoder.spec, stored)
        parts = Parts(cache, encoder.spec, stored, name=place.name, safe=place.store_part)
        place.store_parts([file.path for file in parts.files])
        with profile.stage("listing"):
            listing = take_shard(source.scan(), shard)
        if not listing.keys and not listing.failures:
            raise SourceError(f"no image in {source.name}{_ignored_note(listing)}")
        if not moved:
            _require_source(source, [*filter(None, [old]), *parts.files])
        earlier = Earlier(old, listing)
        if verify:
            earlier.check()
        outcome = Outcome.of(listing, earlier, parts, prune, again=True)
        if (len(outcome.missing) or outcome.differs(source.name)) and earlier.check():
            outcome = Outcome.of(listing, earlier, parts, prune, again=True)
        plan = outcome.missing
        keys = [listing.keys[i] for i in plan]
        known = _known(earlier, others) if len(plan) else Known([])
        job = Job(source, encoder, keys, listing.size_mtime[plan], known)
        work = Assembly(job, profile)
        progress.start(len(plan), "embedding")
        if len(plan):
            results = (engine or Local(workers))(job, profile)
            with closing(results), closing(work.blocks(results, stored, progress)) as blocks:
                _write_blocks(blocks, parts, source.name, progress, profile)
            outcome = Outcome.of(listing, earlier, parts, prune)
        if not outcome.rows:
            if not any(map(len, parts.files)):  # rows of images that cannot be listed just now stay
                place.remove_parts()
                parts.remove()
            raise SourceError(_nothing_readable(source, outcome.failures))
        changed = outcome.differs(source.name)
        if changed:
            with profile.stage("merging"):
                picks, failures = outcome.picks, outcome.failures
                merge(cache, picks, encoder=encoder.spec, dtype=stored, source=source.name, failures=failures)
        place.publish()
        parts.remove()
    return EmbedReport(
        cache,
        place.name,
        outcome.rows,
        work.computed,
        work.reused,
        len(earlier.kept),
        len(earlier.vanished),
        earlier.damaged,
        outcome.failures,
        listing.ignored,
        changed,
        time.monotonic() - began,
        profile,
        encoder.runtime.cosine,
    )


def _write_blocks(
    blocks: Iterator[tuple[Rows, dict[str, str]]], parts: Parts, source: str, progress: Progress, profile: Profile
) -> None:
    """Write each block while the next one is computed; an interruption waits for the one being written."""

    def write(rows: Rows, failures: dict[str, str]) -> None:
        with profile.stage("writing"):
            parts.add(rows, failures, source)

    def safe(writing: Future[None]) -> None:
        writing.result()
        progress.advance(1)

    with ThreadPoolExecutor(1) as writer:
        writing = None
        for rows, failures in blocks:
            if writing:
                safe(writing)
            writing = writer.submit(write, rows, failures)
        if writing:
            safe(writing)


# --- what is there already ---------------------------------------------------------------------


def _known(earlier: Earlier, others: list[CacheFile]) -> Known:
    """What need not be computed because its content is known."""
    for file in others:
        file.verify()
    picks = [(file, np.arange(len(file))) for file in others]
    return Known(([] if earlier.file is None else [(earlier.file, earlier.good())]) + picks)


def _open_reuse(paths: Iterable[str | Path], spec: EncoderSpec, dtype: np.dtype) -> list[CacheFile]:
    files = [CacheFile(path) for path in expand_paths(paths)] if paths else []
    for file in files:
        require_encoder(file, spec)
        if file.dtype.itemsize < dtype.itemsize:
            raise CacheError(f"{file.path} holds {file.dtype}, too coarse to copy into {dtype}; leave out --reuse")
    return files


def _require_source(source: Source, files: list[CacheFile]) -> None:
    for file in files:
        if file.source != source.name:
            raise CacheError(
                f"{file.path} holds images of {file.source or 'no source'}, not of {source.name}; write another cache, "
                "or pass --moved if it is the same source under a new path"
            )


# --- messages ----------------------------------------------------------------------------------


def _ignored_note(listing: Listing) -> str:
    if not listing.ignored:
        return "; expected files such as .jpg, .png, .webp or .tif"
    kinds = ", ".join(f"{count} {ending}" for ending, count in listing.ignored.most_common(4))
    hint = "; pass the shards as 'FOLDER/*.tar'" if ".tar" in listing.ignored else ""
    hint += "; caches in a store are given one by one" if ".h5" in listing.ignored else ""
    return f" ({sum(listing.ignored.values())} files with other endings: {kinds}){hint}"


def _nothing_readable(source: Source, failures: dict[str, str]) -> str:
    key, reason = next(iter(failures.items()))
    return f"none of the {len(failures)} images in {source.name} can be read ({key!r}: {reason}); nothing was written"
