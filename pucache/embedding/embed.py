"""Images and an encoder -> a cache; a run can be interrupted and repeated.

`run_embedding` is the pipeline: plan, load and embed, seal. Rows of unchanged images are kept, embeddings of images
whose content is known are copied, and the other images are embedded in blocks. Each finished block becomes a *part*, a
small cache file in ``CACHE.parts``. At the end old rows and parts are merged into the cache in one rename. A run that
was killed continues from the parts. The rows of a block depend on the listing alone, not on timing or on the number of
workers, so an interrupted and an uninterrupted run write the same bytes.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..cache.destination import Destination, encoder_of_existing, open_destination
from ..cache.embedding_cache import EmbeddingCache, open_files
from ..cache.keys import encode_keys
from ..cache.layout import DTYPES
from ..cache.merging import merge, partial_rows
from ..cache.parts import Parts
from ..cache.reader import CacheFile
from ..cache.writer import creation_time
from ..encoders.deferred import DeferredEncoder, EncoderOptions, open_encoder
from ..encoders.spec import BUNDLED, EncoderSpec
from ..errors import CacheError, SourceError
from ..images.decoding import Decoding
from ..images.listing import Listing, check_shard, check_shard_images, in_reading_order, take_shard
from ..images.regions import BOXES
from ..images.source import Source, open_source
from ..images.tiling import list_images
from ..images.white_level import range_note
from ..progress import Progress, Silent
from .profile import Profile
from .resume import ContentLookup, ExistingCache, known_sizes, open_existing, require_encoder, require_source

if TYPE_CHECKING:
    import torch

    from ..encoders.encoder import Encoder

log = logging.getLogger("pucache")


@dataclass(frozen=True)
class EmbedOptions:
    """What a run of `embed` takes, keeps and checks.

    Attributes
    ----------
    reuse : sequence of paths
        Other caches of the same encoder; embeddings of images with the same bytes are copied from them.
    prune : bool
        Drop rows of images that are gone from the source.
    verify : bool
        Check every byte of an existing cache first, and embed damaged rows again. Without it that is done
        only where the cache is written anew.
    shard : (I, N)
        Take only the I-th of N shares of the keys, 1 <= I <= N.
    dtype : {"float16", "float32"}, optional
        Of the stored embeddings; by default that of the existing cache, or float16.
    force : bool
        Replace a cache behind a URL that somebody else has changed meanwhile.
    """

    reuse: Sequence[str | Path] = ()
    prune: bool = False
    verify: bool = False
    shard: tuple[int, int] = (1, 1)
    dtype: str | None = None
    force: bool = False

    def check(self) -> None:
        """Raise `ValueError` for a shard that does not exist or an unknown dtype."""
        check_shard(self.shard)
        if self.dtype is not None and self.dtype not in DTYPES:
            raise ValueError(f"unknown dtype {self.dtype!r}; use {' or '.join(DTYPES)}")

    @property
    def shard_name(self) -> str:
        """``I/N`` where the images are shared, else ""."""
        number, count = self.shard
        return f"{number}/{count}" if count > 1 else ""


@dataclass(frozen=True)
class EmbedReport:
    """What one run of `run_embedding` did, or the sum over the shards of `pucache.embed_shards`.

    Attributes
    ----------
    cache : Path or str
        The cache file on this machine; of shards, their folder or its URL.
    name : str
        Path of the cache, or the URL that it was sent to.
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
    partial : dict of str to str
        What was not read, by key of every image that has a row all the same.
    peaks : Counter
        Number of the images of 16 bits that were embedded, by their largest value.
    ignored : Counter
        Number of files left out, by ending.
    written : bool
        False where nothing had changed and the cache was left as it was.
    seconds : float
        Without loading the encoder.
    profile : Profile or None
        Seconds by stage; None of shards.
    licence : str
        Of the encoder's weights, where timm or their card states one and an image was embedded; else empty.
    cosine : float or None
        Least cosine between the first embeddings and those of the same model in float32 by torch. None
        where nothing was embedded, or where the model ran in float32 by torch.
    """

    cache: Path | str
    name: str
    encoder: EncoderSpec
    rows: int
    computed: int
    reused: int
    kept: int
    vanished: int
    damaged: int
    failures: dict[str, str]
    partial: dict[str, str]
    peaks: Counter[int]
    ignored: Counter[str]
    written: bool
    seconds: float
    profile: Profile | None
    cosine: float | None
    licence: str = ""

    @property
    def range_note(self) -> str:
        """One line where 16-bit images came out dark, or too white; else ""."""
        return range_note(self.peaks, Decoding.of(self.encoder.decoder).white_level)


def embed(
    source: str | Path | Source,
    cache: str | Path,
    encoder: str | Path | Encoder = BUNDLED,
    *,
    weights: str | Path | None = None,
    device: str | torch.device = "auto",
    precision: str = "auto",
    runtime: str = "auto",
    batch_size: int | None = None,
    decoding: Decoding | None = None,
    tiles: str = "",
    image_size: int | None = None,
    pooling: str | None = None,
    reuse: Sequence[str | Path] = (),
    prune: bool = False,
    verify: bool = False,
    shard: tuple[int, int] = (1, 1),
    dtype: str | None = None,
    force: bool = False,
    workers: int | None = None,
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
        ``bundled``, ``timm:NAME``, ``open_clip:MODEL:TAG``, ``FILE.onnx``, the folder of an encoder from `pretrain`, or
        what else `pucache.load_encoder` knows; or an encoder that it or `pucache.Encoder.of` returned.
    weights, device, precision, runtime, batch_size, decoding, tiles, image_size, pooling
        See `pucache.load_encoder`; for an encoder by name alone. Where they are ``auto``, the settings of an
        existing cache are used if this machine supports them. A manifest with columns x, y, w and h has ``boxes``.
    reuse, prune, verify, shard, dtype, force
        See `pucache.embedding.embed.EmbedOptions`.
    workers : int, optional
        Processes that read and decode images; 0 does it in threads. By default one per core, up to 16, where
        the encoder runs on CUDA, else 0.
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
        The cache cannot be written, or was changed by somebody else meanwhile.
    MissingExtraError
        The package for a store of this kind is not installed.
    ValueError
        An unknown dtype, a shard that does not exist, settings for an encoder that is loaded already, or
        SOURCE_DATE_EPOCH is not a time.
    """
    settings = EncoderOptions(
        BUNDLED, weights, device, precision, runtime, batch_size, decoding, tiles, image_size, pooling
    )
    if isinstance(encoder, str | os.PathLike):
        settings = dataclasses.replace(settings, name=encoder)
    elif not hasattr(encoder, "spec"):
        raise ValueError(
            f"expected the name of an encoder, or one that load_encoder returned; got {type(encoder).__name__}"
        )
    elif settings != EncoderOptions():
        raise ValueError("the encoder is loaded already; pass weights, device and precision to load_encoder")
    opened = settings if isinstance(encoder, str | os.PathLike) else encoder
    options = EmbedOptions(reuse=reuse, prune=prune, verify=verify, shard=shard, dtype=dtype, force=force)
    report = run_embedding(source, cache, opened, options=options, workers=workers, progress=progress)
    if report.range_note:
        log.warning("%s", report.range_note)
    return EmbeddingCache(report.cache)


def run_embedding(
    source: str | Path | Source,
    cache: str | Path,
    encoder: EncoderOptions | Encoder | DeferredEncoder,
    *,
    options: EmbedOptions | None = None,
    listing: Listing | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> EmbedReport:
    """Do what `embed` does, and report what was done.

    An encoder that is that of the existing cache is loaded only where an image is to be embedded. `listing` are the
    images of the shard, where the source has been listed already.
    """
    options, profile = options or EmbedOptions(), Profile()
    options.check()
    creation_time()  # raises before any work
    destination = open_destination(cache)
    destination.check()
    source = open_source(source)
    with destination.exclusive(), progress or Silent() as progress:
        existing = destination.existing()
        started = time.monotonic()
        if isinstance(encoder, EncoderOptions):
            with profile.stage("loading"):
                encoder = open_encoder(with_boxes(encoder, source), like=encoder_of_existing(cache))
        file = open_existing(existing, encoder.spec, options.dtype)
        if listing is None:
            with profile.stage("listing"):
                decoding = Decoding.of(encoder.spec.decoder)
                everything = list_images(source, encoder.spec.tiles, decoding, known_sizes(file))
                listing = take_shard(everything, options.shard)
                check_shard_images(listing, options.shard, everything, source.name)
        plan = _Plan(source, destination, file, listing, encoder.spec, options)
        plan.embed_missing(encoder, profile, workers, progress)
        with profile.stage("merging"):
            path, written = plan.seal()
    return EmbedReport(
        cache=path,
        name=destination.name,
        encoder=encoder.spec,
        rows=plan.inventory.rows,
        computed=plan.computed,
        reused=plan.reused,
        kept=len(plan.existing.unchanged),
        vanished=len(plan.existing.vanished),
        damaged=plan.existing.damaged,
        failures=plan.inventory.failures,
        partial=plan.partial,
        peaks=plan.peaks,
        ignored=listing.ignored,
        written=written,
        seconds=time.monotonic() - started - profile.seconds["loading"],
        profile=profile,
        cosine=plan.cosine,
        licence=plan.licence,
    )


def with_boxes(encoder: EncoderOptions, source: Source) -> EncoderOptions:
    """Options of an encoder for the boxes that a manifest names, where it names any and no tiles are asked for."""
    return dataclasses.replace(encoder, tiles=encoder.tiles or (BOXES if getattr(source, "boxes", None) else ""))


class _Plan:
    """What is to be embedded into one cache, and what was; made and sealed while the writer's lock is held.

    `keys` (n,) of dtype S are those of the listing, encoded; `inventory` has what the cache would hold now, and which
    images are missing.
    """

    computed = reused = 0
    cosine: float | None = None
    licence = ""
    partial: dict[str, str]
    peaks: Counter[int]

    def __init__(
        self,
        source: Source,
        destination: Destination,
        file: CacheFile | None,
        listing: Listing,
        spec: EncoderSpec,
        options: EmbedOptions,
    ):
        self.source, self.destination, self.listing = source, destination, listing
        self.spec, self.options, self.keys = spec, options, encode_keys(listing.keys)
        self.peaks = Counter()
        if file and file.shard and file.shard != options.shard_name:
            raise CacheError(
                f"{file.path} holds share {file.shard} of the images, asked for {options.shard_name or 'all of them'}; "
                f"write another cache, with --reuse {file.path}"
            )
        self.dtype = DTYPES[options.dtype] if options.dtype else file.dtype if file else DTYPES["float16"]
        self._reusable = _open_reusable(options.reuse, spec, self.dtype)
        self.parts = Parts(destination.local, spec, self.dtype, name=destination.name)
        for one in [*([file] if file else []), *self.parts.files]:
            require_source(one, source)
        self.existing = ExistingCache(file, listing, self.keys, spec.tiles)
        if options.verify:
            self.existing.check()
        self.inventory = self.existing.inventory(self.parts, prune=options.prune)
        will_write = len(self.inventory.missing) or self.existing.differs_from(self.inventory, source.name)
        if will_write and self.existing.check():
            self.inventory = self.existing.inventory(self.parts, prune=options.prune)

    def known_content(self) -> ContentLookup:
        """Embeddings that are copied, by content: those of the existing cache and of caches to reuse."""
        for file in self._reusable:
            EmbeddingCache(file).verify()
        picks = [(file, np.arange(len(file))) for file in self._reusable]
        if self.existing.file is not None:
            picks = [(self.existing.file, self.existing.intact), *picks]
        return ContentLookup(picks)

    def embed_missing(
        self, encoder: Encoder | DeferredEncoder, profile: Profile, workers: int | None, progress: Progress
    ) -> None:
        """Embed the missing images, block by block; each finished block becomes a part.

        The encoder is loaded only where an image is missing.
        """
        missing = in_reading_order(self.listing, self.inventory.missing)
        progress.start(len(missing), "embedding")
        if not len(missing):
            return
        from .blocks import BlockAssembler, ImagesToEmbed  # imports torch, as the encoder does
        from .engine import embed_images

        with profile.stage("loading"):
            loaded = encoder.load()
        images = ImagesToEmbed(
            source=self.source,
            encoder=loaded,
            keys=[self.listing.keys[position] for position in missing],
            encoded_keys=self.keys[missing],
            size_mtime=self.listing.size_mtime[missing],
            lookup=self.known_content(),
        )
        assembler = BlockAssembler(images, self.dtype, profile)
        results = embed_images(images, profile, workers=workers)
        with closing(results), closing(assembler.blocks(results, progress)) as blocks:
            for rows, failures in blocks:
                with profile.stage("writing"):
                    self.parts.add(rows, failures, self.source.name)
        self.inventory = self.existing.inventory(self.parts, prune=self.options.prune, retry_failures=False)
        self.computed, self.reused, self.cosine = assembler.computed, assembler.reused, loaded.runtime.cosine
        self.peaks, self.licence = assembler.peaks, loaded.licence

    def seal(self) -> tuple[Path, bool]:
        """Merge kept rows and parts into the cache and publish it; returns its path, and whether it was written.

        Nothing is written where nothing has changed. A source of which no image can be read raises `SourceError`.
        """
        inventory = self.inventory
        self.partial = partial_rows(inventory.picks)
        if not inventory.rows:
            if not any(map(len, self.parts.files)):  # parts of images that cannot be listed at the moment stay
                self.parts.remove()
            key, reason = next(iter(inventory.failures.items()))
            unread = f"none of the {len(inventory.failures)} images in {self.source.name} can be read"
            raise SourceError(f"{unread} ({key!r}: {reason}); nothing was written")
        if not self.existing.differs_from(inventory, self.source.name):
            self.parts.remove()
            assert self.existing.file is not None
            return self.existing.file.path, False
        was_reordered = self.existing.file is not None and self.existing.file.reordered
        keeps_more = bool(len(self.existing.vanished)) and not self.options.prune
        merge(
            self.destination.local,
            inventory.picks,
            encoder=self.spec,
            dtype=self.dtype,
            source=self.source.name,
            failures=inventory.failures,
            shard=self.options.shard_name,
            reordered=self.listing.reordered or (was_reordered and keeps_more),
        )
        path = self.destination.publish(force=self.options.force)
        self.parts.remove()
        return path, True


def _open_reusable(paths: Sequence[str | Path], spec: EncoderSpec, dtype: np.dtype) -> list[CacheFile]:
    files = open_files(paths) if paths else []
    for file in files:
        require_encoder(file, spec, "leave out --reuse, or pass the encoder and options it was made with")
        if file.dtype.itemsize < dtype.itemsize:
            raise CacheError(f"{file.path} holds {file.dtype}, too coarse to copy into {dtype}; leave out --reuse")
    return files
