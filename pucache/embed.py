"""Images x encoder -> cache, resumable.

What is unchanged is kept, what is known by content is copied, and the rest is embedded in blocks.
A finished block becomes a *part*, a small cache file of its own in ``CACHE.parts``; at the end old
rows and parts are merged into the cache in one rename. Killed at any moment, the next run goes on
from the parts. A block's rows depend on the listing alone, never on timing or workers, so an
interrupted run and an undisturbed one end in the same bytes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import signal
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import filelock
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from .cache import DTYPES, CacheFile, Rows, encode_keys, expand, find, merge, write_file
from .durable import check_writable, remove_partials
from .encoder_spec import EncoderSpec
from .encoders import Encoder, Preprocess
from .errors import CacheError, CacheLockedError, EncoderError, ImageError, SourceError
from .images import UNKNOWN, Listing, Source, decode, digest
from .progress import Progress, Silent

log = logging.getLogger("pucache")

BLOCK_ROWS = 2048  # images in one part: what a kill can cost
CHUNK_ROWS = 16  # images that a worker hands over at once
_FEW = 4 * CHUNK_ROWS  # below this, starting workers costs more than they save


@dataclass(frozen=True)
class EmbedReport:
    """What one run of `embed` did.

    Attributes
    ----------
    cache : Path
    rows : int
        Rows in the finished cache.
    computed, reused, kept : int
        Embedded now; copied because the content was known; unchanged since the last run.
    vanished : int
        Rows of files that are no longer in the source: still there, or dropped with `prune`.
    failures : dict of str to str
        Key to reason.
    ignored : Counter
        Files left out by their ending.
    written : bool
        False where nothing had changed and the cache was left as it was.
    seconds : float
    """

    cache: Path
    rows: int
    computed: int
    reused: int
    kept: int
    vanished: int
    failures: dict[str, str]
    ignored: Counter[str]
    written: bool
    seconds: float


def embed(
    source: Source,
    cache: str | Path,
    encoder: Encoder,
    *,
    reuse: Sequence[str | Path] = (),
    prune: bool = False,
    moved: bool = False,
    shard: tuple[int, int] = (1, 1),
    dtype: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> EmbedReport:
    """Embed every image of a source into a cache file; run it again to go on or to update.

    Parameters
    ----------
    source : Source
        See `pucache.images.open_source`.
    cache : path
        Cache file to write or update.
    encoder : Encoder
        See `pucache.encoders.load_encoder`.
    reuse : sequence of paths
        Other caches of the same encoder; an image whose bytes they know is copied.
    prune : bool
        Drop rows of files that are gone from the source.
    moved : bool
        The cache was made from this source under another path or URL; without it that is refused,
        because the keys of two sources would mix.
    shard : (I, N)
        Take only the I-th of N shares of the keys, 1 <= I <= N.
    dtype : {"float16", "float32"}, optional
        Of the stored embeddings; by default what the cache has, or float16.
    workers : int, optional
        Processes that read and decode; 0 does it in this one.
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
    """
    began = time.monotonic()
    cache = check_writable(cache)
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; use {' or '.join(DTYPES)}")
    with writer_lock(cache), progress or Silent() as progress:
        remove_partials(cache)
        old = _open_old(cache, encoder.spec, dtype)
        stored = DTYPES[dtype] if dtype else old.dtype if old else DTYPES["float16"]
        others = _open_reuse(reuse, encoder.spec, stored)
        parts = _Parts(cache, encoder.spec, stored)
        listing = _take_shard(source.scan(), shard)
        if not listing.keys and not listing.failures:
            raise SourceError(f"no image in {source.name}{_ignored_note(listing)}")
        if not moved:
            _require_source(source, [*filter(None, [old]), *parts.files])
        kept, unseen, vanished = _split_old(old, listing)
        kept_keys = encode_keys([]) if old is None else np.asarray(old.raw_keys[kept])
        plan = _plan(listing, kept_keys, parts)
        work = _Work(source, encoder, listing, plan, _Known([*filter(None, [old]), *others] if len(plan) else []))
        progress.start(len(plan), "embedding")
        for rows, failures in work.blocks(workers, stored, progress):
            parts.add(rows, failures, source.name)
        picks, failed = parts.current(listing, kept_keys)
        failures = {**listing.failures, **failed}
        fresh = len(picks) > 0
        if old is not None:
            picks.append((old, np.sort(np.concatenate([kept, unseen, *([] if prune else [vanished])]))))
        total = sum(len(rows) for _, rows in picks)
        if not total:
            parts.remove()
            raise SourceError(_nothing_readable(source, failures))
        changed = old is None or fresh or total != len(old) or failures != old.failures or old.source != source.name
        if changed:
            if old is not None and not len(plan):  # else it was verified for the work
                old.verify()
            merge(cache, picks, encoder=encoder.spec, dtype=stored, source=source.name, failures=failures)
        parts.remove()
    return EmbedReport(
        cache,
        total,
        work.computed,
        work.reused,
        len(kept),
        len(vanished),
        failures,
        listing.ignored,
        changed,
        time.monotonic() - began,
    )


@contextmanager
def writer_lock(cache: Path) -> Iterator[None]:
    """Keep a second writer of `cache` away; the lock dies with the process that holds it."""
    lock = filelock.FileLock(cache.with_name(f".{cache.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise CacheLockedError(
            f"{cache} is being written by another process (lock {lock.lock_file}); wait for it"
        ) from error
    try:
        yield
    finally:
        lock.release()


# --- what is there already ---------------------------------------------------------------------


def _open_old(cache: Path, spec: EncoderSpec, dtype: str | None) -> CacheFile | None:
    if not cache.exists():
        return None
    old = CacheFile(cache)
    _require_encoder(old, spec)
    if dtype is not None and old.dtype != DTYPES[dtype]:
        raise CacheError(f"{cache} holds {old.dtype}, asked for {dtype}; leave out --dtype, or write another cache")
    return old


def _open_reuse(paths: Iterable[str | Path], spec: EncoderSpec, dtype: np.dtype) -> list[CacheFile]:
    files = [CacheFile(path) for path in expand(paths)] if paths else []
    for file in files:
        _require_encoder(file, spec)
        if file.dtype.itemsize < dtype.itemsize:
            raise CacheError(f"{file.path} holds {file.dtype}, too coarse to copy into {dtype}; leave out --reuse")
    return files


def _require_encoder(file: CacheFile, spec: EncoderSpec) -> None:
    differing = file.encoder.differences(spec)
    if differing:
        raise CacheError(
            f"{file.path} holds embeddings of {file.encoder}, not of {spec} (they differ in {', '.join(differing)}); "
            "write another cache, or pass the encoder and precision it was made with"
        )


def _require_source(source: Source, files: list[CacheFile]) -> None:
    for file in files:
        if file.source != source.name:
            raise CacheError(
                f"{file.path} holds images of {file.source or 'no source'}, not of {source.name}; write another cache, "
                "or pass --moved if it is the same source under a new path"
            )


def _split_old(old: CacheFile | None, listing: Listing) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of the old cache that still hold, that lie in folders which cannot be listed now, and that are gone."""
    if old is None:
        return (np.empty(0, np.int64),) * 3
    rows = find(old.raw_keys, encode_keys(listing.keys))
    gone = np.ones(len(old), bool)
    gone[rows[rows >= 0]] = False
    gone[[row for row in find(old.raw_keys, encode_keys(list(listing.failures))) if row >= 0]] = False
    unseen = np.zeros(len(old), bool)
    for folder in (key.encode() for key in listing.failures if key.endswith("/")):
        first, last = np.searchsorted(old.raw_keys, np.array([folder, folder[:-1] + b"0"]))  # "0" follows "/"
        unseen[first:last] = gone[first:last]
    there = rows >= 0
    same = there.copy()
    same[there] = (old.size_mtime[rows[there]] == listing.size_mtime[there]).all(1)
    same &= (listing.size_mtime != UNKNOWN).all(1)  # no time, no proof: its content decides
    return rows[same], np.flatnonzero(unseen), np.flatnonzero(gone & ~unseen)


def _plan(listing: Listing, kept: np.ndarray, parts: _Parts) -> np.ndarray:
    """Positions in the listing that are neither kept nor in a part."""
    keys = encode_keys(listing.keys)
    picks, failed = parts.current(listing, kept)
    todo = np.ones(len(keys), bool)
    todo[find(keys, kept)] = False
    todo[find(keys, encode_keys(list(failed)))] = False
    for file, rows in picks:
        todo[find(keys, np.asarray(file.raw_keys[rows]))] = False
        file.release()
    return np.flatnonzero(todo)


class _Parts:
    """The finished blocks of an unfinished cache: small cache files in ``CACHE.parts``."""

    def __init__(self, cache: Path, spec: EncoderSpec, dtype: np.dtype):
        self.folder = cache.with_name(cache.name + ".parts")
        self._spec, self._dtype = spec, dtype
        self.files: list[CacheFile] = []
        for path in sorted(self.folder.glob("part-*.h5")):
            self._adopt(path)
        if self.files:
            log.warning("going on from %d images in %s", sum(map(len, self.files)), self.folder)

    def _adopt(self, path: Path) -> None:
        try:
            part = CacheFile(path)
            part.verify()
        except CacheError as error:
            aside = path.with_suffix(".damaged")
            path.replace(aside)
            log.warning("%s; set aside as %s, its images are embedded again", error, aside.name)
            return
        if part.encoder.differences(self._spec) or part.dtype != self._dtype:
            raise CacheError(
                f"{self.folder} holds unfinished work of {part.encoder} in {part.dtype}, not of {self._spec} in "
                f"{self._dtype}; finish it with the command it was begun with, or remove the folder"
            )
        part.release()
        self.files.append(part)

    def add(self, rows: Rows, failures: dict[str, str], source: str) -> None:
        """Write one block durably, under a name that says what it holds."""
        self.folder.mkdir(exist_ok=True)
        content = hashlib.sha256(b"\0".join(rows.keys.tolist()) + rows.size_mtime.tobytes())
        content.update("\0".join(failures).encode())
        path = self.folder / f"part-{content.hexdigest()[:16]}.h5"
        shape = (len(rows.keys), rows.keys.itemsize, self._dtype)
        write_file(path, self._spec, source, [rows], shape=shape, failures=failures)
        self.files.append(CacheFile(path))

    def current(self, listing: Listing, kept: np.ndarray) -> tuple[list[tuple[CacheFile, np.ndarray]], dict[str, str]]:
        """What of this run and the interrupted one still counts, beside the keys kept from the old cache.

        Returns
        -------
        picks : list of (CacheFile, ndarray of int)
            Rows of each part whose file is still as it was when it was embedded.
        failures : dict of str to str
            Listed images that could not be read and have no row.
        """
        keys, picks, failures = encode_keys(listing.keys), [], {}
        taken = np.zeros(len(keys), bool)
        taken[find(keys, kept)] = True
        for file in self.files:
            at = find(keys, file.raw_keys)
            good = at >= 0
            good[good] = (file.size_mtime[good] == listing.size_mtime[at[good]]).all(1) & ~taken[at[good]]
            taken[at[good]] = True
            if good.any():
                picks.append((file, np.flatnonzero(good)))
            failures.update(file.failures)
            file.release()  # there may be more parts than file descriptors
        at = find(keys, encode_keys(list(failures)))
        counts = at >= 0
        counts[counts] = ~taken[at[counts]]
        return picks, {key: reason for (key, reason), here in zip(failures.items(), counts, strict=True) if here}

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.files = []


class _Known:
    """Embeddings by content digest, over any number of cache files."""

    def __init__(self, files: list[CacheFile]):
        self._files = files
        for file in files:
            file.verify()  # a damaged row must not be copied under a new checksum
        digests = [np.ascontiguousarray(file.digests).reshape(-1).view("S32") for file in files]
        everything = np.concatenate(digests) if digests else np.empty(0, "S32")
        self._order = np.argsort(everything)
        self.sorted = everything[self._order]
        self._starts = np.cumsum([0, *map(len, files)])

    def __getitem__(self, content: bytes) -> np.ndarray:
        row = self._order[np.searchsorted(self.sorted, np.bytes_(content))]
        number = int(np.searchsorted(self._starts, row, "right")) - 1
        return self._files[number].X[row - self._starts[number]]


# --- the work ----------------------------------------------------------------------------------


@dataclass
class _Chunk:
    """What a worker made of a few images: one outcome each, and the pixels of those to embed."""

    outcomes: list[bytes | str]  # content digest, or the reason of a failure
    to_embed: list[int]
    pixels: torch.Tensor | None  # (len(to_embed), 3, H, W) uint8


class _Chunks(Dataset[_Chunk]):
    """Reads, hashes and decodes, a chunk at a time; runs in worker processes."""

    def __init__(self, source: Source, preprocess: Preprocess, keys: list[str], sizes: list[int], known: np.ndarray):
        self._source, self._preprocess = source, preprocess
        self._keys, self._sizes, self._known = keys, sizes, known

    def __len__(self) -> int:
        return -(-len(self._keys) // CHUNK_ROWS)

    def __getitem__(self, number: int) -> _Chunk:
        chunk, pixels = _Chunk([], [], None), []
        for position in range(number * CHUNK_ROWS, min(len(self._keys), (number + 1) * CHUNK_ROWS)):
            try:
                data = self._read(position)
                content = digest(data)
                if not self._is_known(content):
                    pixels.append(self._preprocess(decode(data)))
                    chunk.to_embed.append(len(chunk.outcomes))
                chunk.outcomes.append(content)
            except ImageError as error:
                chunk.outcomes.append(str(error))
        chunk.pixels = torch.stack(pixels) if pixels else None
        return chunk

    def _read(self, position: int) -> bytes:
        data = self._source.read(self._keys[position])
        listed = self._sizes[position]
        if listed not in (UNKNOWN, len(data)):
            raise ImageError(f"changed while it was read: {listed} bytes when listed, {len(data)} now; embed again")
        return data

    def _is_known(self, content: bytes) -> bool:
        at = np.searchsorted(self._known, np.bytes_(content))
        return self._known[at : at + 1].tobytes() == content  # as bytes: numpy's text drops zero bytes at the end


def default_workers(encoder: Encoder) -> int:
    """One per core up to 8 beside a GPU; on the CPU, where they take from the forward pass, one per four cores."""
    cores = os.cpu_count() or 1
    return cores // 4 if encoder.forward.device.type == "cpu" else min(8, cores)


class _Work:
    """Turns the plan into blocks of rows, counting what was computed and what was known."""

    def __init__(self, source: Source, encoder: Encoder, listing: Listing, plan: np.ndarray, known: _Known):
        self._source, self._encoder, self._known = source, encoder, known
        self._keys = [listing.keys[i] for i in plan]
        self._size_mtime = listing.size_mtime[plan]
        self.computed = self.reused = 0

    def blocks(self, workers: int | None, dtype: np.dtype, progress: Progress) -> Iterator[tuple[Rows, dict[str, str]]]:
        chunks = iter(self._loader(workers))
        for start in range(0, len(self._keys), BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, len(self._keys))
            yield self._block(chunks, start, stop, dtype, progress)
            progress.advance((stop - start - 1) % CHUNK_ROWS + 1)  # the last chunk, now that the block is safe

    def _loader(self, workers: int | None) -> DataLoader[_Chunk]:
        sizes = self._size_mtime[:, 0].tolist()
        chunks = _Chunks(self._source, self._encoder.preprocess, self._keys, sizes, self._known.sorted)
        if workers is None:
            workers = default_workers(self._encoder)
        if len(self._keys) <= _FEW:
            workers = 0
        return DataLoader(
            chunks,
            batch_size=None,
            num_workers=workers,
            prefetch_factor=4 if workers else None,
            worker_init_fn=_ignore_interrupt if workers else None,
        )

    def _next(self, chunks: Iterator[_Chunk], first: int) -> _Chunk:
        try:
            return next(chunks)
        except (RuntimeError, OSError, EOFError) as error:  # the last two where it dies while handing over
            if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                raise
            raise SourceError(
                f"a worker process died while reading ahead of {self._keys[first]!r} (out of memory?); what was "
                "finished is kept: run again, with fewer --workers if memory is short"
            ) from error

    def _block(
        self, chunks: Iterator[_Chunk], start: int, stop: int, dtype: np.dtype, progress: Progress
    ) -> tuple[Rows, dict[str, str]]:
        n = stop - start
        X = np.empty((n, self._encoder.spec.dim), np.float32)
        digests = np.zeros((n, 32), np.uint8)
        failures: dict[str, str] = {}
        queue = _Batches(self._encoder, X)
        for first in range(start, stop, CHUNK_ROWS):
            chunk = self._next(chunks, first)
            for offset, outcome in enumerate(chunk.outcomes):
                row = first - start + offset
                if isinstance(outcome, str):
                    failures[self._keys[start + row]] = outcome
                    continue
                digests[row] = np.frombuffer(outcome, np.uint8)
                if offset not in chunk.to_embed:
                    X[row] = self._known[outcome]
                    self.reused += 1
            if chunk.pixels is not None:
                queue.add(chunk.pixels, [first - start + offset for offset in chunk.to_embed])
            if first + CHUNK_ROWS < stop:
                progress.advance(CHUNK_ROWS)
        queue.flush()
        self.computed += queue.rows
        for row in queue.unusable:
            failures[self._keys[start + row]] = "the encoder gave NaN or infinite values"
        good = np.array([row for row in range(n) if self._keys[start + row] not in failures], np.int64)
        keys = [self._keys[start + row] for row in good]
        rows = Rows(encode_keys(keys), _store(X[good], keys, dtype), digests[good], self._size_mtime[start:stop][good])
        return rows, failures


class _Batches:
    """Packs pixels into the encoder's batch shape and scatters the embeddings into `out`."""

    def __init__(self, encoder: Encoder, out: np.ndarray):
        self._encoder, self._out = encoder, out
        self._pixels: list[torch.Tensor] = []
        self._at: list[int] = []
        self.rows = 0
        self.unusable: list[int] = []

    def add(self, pixels: torch.Tensor, at: list[int]) -> None:
        self._pixels += list(pixels)
        self._at += at
        while len(self._at) >= self._encoder.batch_size:
            self._run(self._encoder.batch_size)

    def flush(self) -> None:
        if self._at:
            self._run(len(self._at))

    def _run(self, count: int) -> None:
        at, self._at = self._at[:count], self._at[count:]
        batch, self._pixels = torch.stack(self._pixels[:count]), self._pixels[count:]
        embeddings = self._encoder.forward(batch)
        self._out[at] = embeddings
        self.unusable += [row for row, good in zip(at, np.isfinite(embeddings).all(1), strict=True) if not good]
        self.rows += count


def _store(X: np.ndarray, keys: list[str], dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        stored = X.astype(dtype)
    overflow = np.flatnonzero(~np.isfinite(stored).all(1))
    if len(overflow):
        raise EncoderError(
            f"the embedding of {keys[overflow[0]]!r} overflows {dtype}; remove its .parts and use --dtype float32"
        )
    return stored


def _ignore_interrupt(worker: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the whole group; the parent ends the workers
        signal.signal(number, signal.SIG_IGN)


# --- messages ----------------------------------------------------------------------------------


def _take_shard(listing: Listing, shard: tuple[int, int]) -> Listing:
    number, count = shard
    if not 1 <= number <= count:
        raise ValueError(f"shard {number}/{count} is not one of 1/{count} to {count}/{count}")
    if count == 1:
        return listing
    # by a hash of the key, so that a file added later moves no other one to another shard
    mine = [zlib.crc32(key.encode()) % count == number - 1 for key in listing.keys]
    failures = {k: r for k, r in listing.failures.items() if zlib.crc32(k.encode()) % count == number - 1}
    keys = [key for key, here in zip(listing.keys, mine, strict=True) if here]
    return Listing(keys, listing.size_mtime[mine], failures, listing.ignored)


def _ignored_note(listing: Listing) -> str:
    if not listing.ignored:
        return "; expected files such as .jpg, .png, .webp or .tif"
    kinds = ", ".join(f"{count} {ending}" for ending, count in listing.ignored.most_common(4))
    hint = "; pass the shards as 'FOLDER/*.tar'" if ".tar" in listing.ignored else ""
    return f" ({sum(listing.ignored.values())} files with other endings: {kinds}){hint}"


def _nothing_readable(source: Source, failures: dict[str, str]) -> str:
    key, reason = next(iter(failures.items()))
    return f"none of the {len(failures)} images in {source.name} can be read ({key!r}: {reason}); nothing was written"
