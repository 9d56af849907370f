"""Listed images -> blocks of rows: read, hash and decode in workers, embed in fixed batches.

A block's rows depend on the listing alone, never on timing or the number of workers.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from .cache_file import Rows
from .decoding import decode
from .encoders import Encoder, Preprocess
from .errors import EncoderError, ImageError, SourceError
from .images import UNKNOWN, Listing, Source, digest
from .keys import encode_keys
from .parts import Known
from .progress import Progress

BLOCK_ROWS = 2048  # images in one part: what a kill can cost
CHUNK_ROWS = 16  # images that a worker hands over at once
_FEW = 4 * CHUNK_ROWS  # below this, starting workers costs more than they save


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


class Work:
    """Turns the plan into blocks of rows, counting what was computed and what was known."""

    def __init__(self, source: Source, encoder: Encoder, listing: Listing, plan: np.ndarray, known: Known):
        self._source, self._encoder, self._known = source, encoder, known
        self._keys = [listing.keys[i] for i in plan]
        self._size_mtime = listing.size_mtime[plan]
        self.computed = self.reused = 0

    def blocks(self, workers: int | None, dtype: np.dtype, progress: Progress) -> Iterator[tuple[Rows, dict[str, str]]]:
        """Yield rows and failures of one block after the other, in key order."""
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
