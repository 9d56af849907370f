"""Results of an engine -> blocks of rows, each of which becomes a part.

A block holds images that are adjacent in the listing, so its rows depend on the listing alone: not on timing,
on the number of workers, or on which machine did the work.
"""

from __future__ import annotations

import bisect
from collections.abc import Generator

import numpy as np

from ..cache.keys import encode_keys
from ..cache.writer import Rows
from ..errors import EncoderError
from ..images.loading import STAGES, Chunk
from ..progress import Progress
from .batching import EmbeddedImages
from .engine import Job, Results
from .profiling import Profile

BLOCK_ROWS = 2048  # images in one part; a kill costs at most one block, beside those being embedded


class BlockAssembler:
    """Assembles blocks of rows, and counts images.

    Parameters
    ----------
    job : Job
    profile : Profile

    Attributes
    ----------
    computed, reused, failed : int
        Images that were embedded, copied by content, or could not be.
    """

    def __init__(self, job: Job, profile: Profile):
        self._job, self._profile = job, profile
        self._open: dict[int, _Block] = {}  # by number
        self._complete: list[_Block] = []
        self.computed = self.reused = self.failed = 0

    def blocks(
        self, results: Results, dtype: np.dtype, progress: Progress
    ) -> Generator[tuple[Rows, dict[str, str]], None, None]:
        """Yield rows and failures of each complete block.

        Progress counts all images of a block but the last one, which the caller counts once the block is on disk.
        """
        for result in results:
            done = self._add_chunk(result) if isinstance(result, Chunk) else self._add_embeddings(result)
            if done:
                progress.advance(done)
            progress.remark(f"encoder waited {self._profile.waited:.0%}, {self.failed:,} failed")
            while self._complete:
                yield self._rows_and_failures(self._complete.pop(0), dtype)

    def _add_chunk(self, chunk: Chunk) -> int:
        """Enter digests, failures and copied embeddings of a chunk; returns the images to count as progress."""
        self._profile.seconds.update(dict(zip(STAGES, chunk.seconds, strict=True)))
        to_embed, done = set(chunk.to_embed), 0
        for position, outcome in enumerate(chunk.outcomes, chunk.first):
            if isinstance(outcome, str):
                done += self._fail(position, outcome)
                continue
            block = self._block_of(position)
            row = position - block.start
            block.digests[row] = outcome
            if position not in to_embed and position not in chunk.undecoded:
                self.reused += 1
                done += self._count(block, block.put([row], self._job.lookup[outcome]))
        return done

    def _add_embeddings(self, embedded: EmbeddedImages) -> int:
        """Enter the result of a forward pass; returns the images to count as progress."""
        positions, X, done = embedded.positions, embedded.X, 0
        for position, reason in embedded.failures.items():
            done += self._fail(position, reason)
        if embedded.failures:
            X = X[[position not in embedded.failures for position in positions]]
            positions = [position for position in positions if position not in embedded.failures]
        self.computed += len(positions)
        first = 0
        while first < len(positions):
            block = self._block_of(positions[first])
            last = bisect.bisect_left(positions, block.start + len(block.X), first)
            rows = [position - block.start for position in positions[first:last]]
            done += self._count(block, block.put(rows, X[first:last]))
            first = last
        return done

    def _fail(self, position: int, reason: str) -> int:
        self.failed += 1
        block = self._block_of(position)
        return self._count(block, block.fail(position - block.start, reason))

    def _block_of(self, position: int) -> _Block:
        number = position // BLOCK_ROWS
        if number not in self._open:
            start = number * BLOCK_ROWS
            rows = min(BLOCK_ROWS, len(self._job.keys) - start)
            self._open[number] = _Block(start, rows, self._job.encoder.spec.dim)
        return self._open[number]

    def _count(self, block: _Block, rows: int) -> int:
        """Images to count as progress: not the last one of a block, which waits until the block is on disk."""
        if block.missing:
            return rows
        self._complete.append(self._open.pop(block.start // BLOCK_ROWS))
        return rows - 1

    def _rows_and_failures(self, block: _Block, dtype: np.dtype) -> tuple[Rows, dict[str, str]]:
        keys = self._job.keys[block.start : block.start + len(block.X)]
        for row in np.flatnonzero(~np.isfinite(block.X).all(1)):
            self.failed += 1
            block.failures[int(row)] = f"the encoder gave NaN or infinite values{self._remedy()}"
        failures = {keys[row]: block.failures[row] for row in sorted(block.failures)}
        embedded = np.array([row for row in range(len(keys)) if row not in block.failures], np.int64)
        embedded_keys = [keys[row] for row in embedded]
        digests = b"".join(block.digests[row] for row in embedded)
        rows = Rows(
            keys=encode_keys(embedded_keys),
            X=_convert(block.X[embedded], embedded_keys, dtype),
            digests=np.frombuffer(digests, np.uint8).reshape(-1, 32),
            size_mtime=self._job.size_mtime[block.start : block.start + len(keys)][embedded],
        )
        return rows, failures

    def _remedy(self) -> str:
        precision = self._job.encoder.spec.precision
        return "" if precision == "fp32" else "; write another cache with --precision fp32"


class _Block:
    """Rows of one part while they are collected."""

    def __init__(self, start: int, rows: int, dim: int):
        self.start, self.missing = start, rows
        self.X = np.zeros((rows, dim), np.float32)
        self.digests = [b""] * rows
        self.failures: dict[int, str] = {}

    def put(self, rows: list[int], X: np.ndarray) -> int:
        self.X[rows] = X
        self.missing -= len(rows)
        return len(rows)

    def fail(self, row: int, reason: str) -> int:
        self.failures[row] = reason
        self.missing -= 1
        return 1


def _convert(X: np.ndarray, keys: list[str], dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        stored = X.astype(dtype)
    overflow = np.flatnonzero(~np.isfinite(stored).all(1))
    if len(overflow):
        raise EncoderError(
            f"the embedding of {keys[overflow[0]]!r} overflows {dtype}; remove its .parts and use --dtype float32"
        )
    return stored
