"""The stages of one run of `embed`: plan what is missing, embed it in blocks, finish the cache."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..cache.destination import CacheDestination
from ..cache.embedding_cache import open_files
from ..cache.keys import encode_keys
from ..cache.layout import DTYPES
from ..cache.merging import merge
from ..cache.reader import CacheFile
from ..cache.writer import Rows
from ..encoders.deferred import DeferredEncoder
from ..encoders.spec import EncoderSpec
from ..errors import CacheError, SourceError
from ..images.listing import Listing, check_shard, take_shard
from ..images.source import Source
from ..progress import Progress
from .content_lookup import ContentLookup
from .parts import Parts
from .profiling import Profile
from .resume import ExistingCache, Inventory, open_existing, require_encoder, take_inventory

if TYPE_CHECKING:
    from ..encoders.encoder import Encoder
    from .engine import Engine


@dataclass(frozen=True)
class EmbedOptions:
    """What a run of `embed` takes, keeps and checks.

    Attributes
    ----------
    reuse : sequence of paths
        Other caches of the same encoder; embeddings of images with the same bytes are copied from them.
    prune : bool
        Drop rows of images that are gone from the source.
    moved : bool
        The cache was made from this source under another path or URL. Without it a cache of another source
        is refused, because keys of two sources would mix.
    verify : bool
        Check every byte of an existing cache first, and embed damaged rows again. Without it that is done
        only where the cache is written anew.
    shard : (I, N)
        Take only the I-th of N shares of the keys, 1 <= I <= N.
    dtype : {"float16", "float32"}, optional
        Of the stored embeddings; by default that of the existing cache, or float16.
    """

    reuse: Sequence[str | Path] = ()
    prune: bool = False
    moved: bool = False
    verify: bool = False
    shard: tuple[int, int] = (1, 1)
    dtype: str | None = None

    def check(self) -> None:
        """Raise `ValueError` for a shard that does not exist or an unknown dtype."""
        check_shard(self.shard)
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ValueError(f"unknown dtype {self.dtype!r}; use {' or '.join(DTYPES)}")


@dataclass(frozen=True)
class RunCounts:
    """What `EmbedPlan.run` did.

    Attributes
    ----------
    computed, reused : int
        Images that were embedded, and images whose embedding was copied because the content was known.
    cosine : float or None
        See `pucache.embedding.embed.EmbedReport`.
    loading_seconds : float
        Spent on loading the encoder, where that was deferred until now.
    """

    computed: int = 0
    reused: int = 0
    cosine: float | None = None
    loading_seconds: float = 0.0


class EmbedPlan:
    """What is to be embedded into one cache: `run` embeds it, `finish` writes the cache.

    To be made, run and finished while the writer's lock is held.

    Parameters
    ----------
    source : Source
    destination : CacheDestination
        With the existing cache and parts fetched.
    spec : EncoderSpec
    options : EmbedOptions
    profile : Profile

    Attributes
    ----------
    listing : Listing
    existing : ExistingCache
    inventory : Inventory

    Raises
    ------
    SourceError
        The source holds no image.
    CacheError
        The cache, its parts or a cache to reuse are unusable, or of another encoder, dtype or source.
    """

    def __init__(
        self,
        source: Source,
        destination: CacheDestination,
        *,
        spec: EncoderSpec,
        options: EmbedOptions,
        profile: Profile,
    ):
        self._source, self._destination, self._spec = source, destination, spec
        self._options, self._profile = options, profile
        file = open_existing(destination.local, spec, options.dtype)
        self._dtype = DTYPES[options.dtype] if options.dtype else file.dtype if file else DTYPES["float16"]
        self._reusable = _open_reusable(options.reuse, spec, self._dtype)
        self._parts = Parts(
            destination.local, spec, self._dtype, name=destination.name, on_written=destination.store_part
        )
        destination.store_parts([part.path for part in self._parts.files])
        with profile.stage("listing"):
            self.listing = take_shard(source.scan(), options.shard)
        if not self.listing.keys and not self.listing.failures:
            raise SourceError(f"no image in {source.name}{_ignored_note(self.listing)}")
        if not options.moved:
            _require_source(source, [*([file] if file else []), *self._parts.files])
        self._keys = encode_keys(self.listing.keys)
        self.existing = ExistingCache(file, self.listing, self._keys)
        if options.verify:
            self.existing.check()
        self.inventory = self._take_inventory(retry_failures=True)
        will_write = len(self.inventory.missing) or self.inventory.changes_cache(source.name)
        if will_write and self.existing.check():
            self.inventory = self._take_inventory(retry_failures=True)

    def _take_inventory(self, *, retry_failures: bool = False) -> Inventory:
        return take_inventory(
            self.listing,
            self._keys,
            existing=self.existing,
            parts=self._parts,
            prune=self._options.prune,
            retry_failures=retry_failures,
        )

    def run(self, encoder: Encoder | DeferredEncoder, engine: Engine, progress: Progress) -> RunCounts:
        """Embed the missing images, block by block; each finished block becomes a part.

        Parameters
        ----------
        encoder : Encoder or DeferredEncoder
            Loaded only where an image is missing.
        engine : Engine
        progress : Progress
        """
        missing = self.inventory.missing
        if not len(missing):
            progress.start(0, "embedding")
            return RunCounts()
        from .engine import Job  # imports torch
        from .row_blocks import BlockAssembler

        started = time.monotonic()
        loaded = encoder.load()
        loading_seconds = time.monotonic() - started
        progress.start(len(missing), "embedding")
        job = Job(
            source=self._source,
            encoder=loaded,
            keys=[self.listing.keys[position] for position in missing],
            size_mtime=self.listing.size_mtime[missing],
            lookup=self._content_lookup(),
        )
        assembler = BlockAssembler(job, self._profile)
        results = engine(job, self._profile)
        with closing(results), closing(assembler.blocks(results, self._dtype, progress)) as blocks:
            self._write_parts(blocks, progress)
        self.inventory = self._take_inventory()
        return RunCounts(
            computed=assembler.computed,
            reused=assembler.reused,
            cosine=loaded.runtime.cosine,
            loading_seconds=loading_seconds,
        )

    def _content_lookup(self) -> ContentLookup:
        for file in self._reusable:
            file.verify()
        picks = [(file, np.arange(len(file))) for file in self._reusable]
        if self.existing.file is not None:
            picks = [(self.existing.file, self.existing.intact_rows()), *picks]
        return ContentLookup(picks)

    def _write_parts(self, blocks: Iterator[tuple[Rows, dict[str, str]]], progress: Progress) -> None:
        """Write each block while the next one is computed; an interruption waits for the block being written."""

        def write(rows: Rows, failures: dict[str, str]) -> None:
            with self._profile.stage("writing"):
                self._parts.add(rows, failures, self._source.name)

        def wait(writing: Future[None]) -> None:
            writing.result()
            progress.advance(1)  # the last image of the block, which is now on disk

        with ThreadPoolExecutor(1) as writer:
            writing = None
            for rows, failures in blocks:
                if writing:
                    wait(writing)
                writing = writer.submit(write, rows, failures)
            if writing:
                wait(writing)

    def finish(self) -> bool:
        """Merge kept rows and parts into the cache, unless nothing has changed; returns whether it was written.

        Raises
        ------
        SourceError
            None of the images can be read.
        """
        inventory = self.inventory
        if not inventory.rows:
            if not any(map(len, self._parts.files)):  # parts of images that cannot be listed at the moment stay
                self._destination.remove_parts()
                self._parts.remove()
            raise SourceError(_nothing_readable(self._source, inventory.failures))
        changed = inventory.changes_cache(self._source.name)
        if changed:
            with self._profile.stage("merging"):
                merge(
                    self._destination.local,
                    inventory.picks,
                    encoder=self._spec,
                    dtype=self._dtype,
                    source=self._source.name,
                    failures=inventory.failures,
                )
        self._destination.publish()
        self._parts.remove()
        return changed


def _open_reusable(paths: Sequence[str | Path], spec: EncoderSpec, dtype: np.dtype) -> list[CacheFile]:
    files = open_files(paths) if paths else []
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
