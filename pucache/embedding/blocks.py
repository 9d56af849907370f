"""Loaded and embedded images -> blocks of rows, each of which becomes a part.

A block holds images that are adjacent in the listing, so its rows depend on the listing alone: not on timing,
on the number of workers, or on which machine did the work.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass

import numpy as np

from ..cache.layout import PARTIAL
from ..cache.writer import Rows
from ..encoders.encoder import Encoder
from ..errors import EncoderError
from ..images.decoding import Decoding
from ..images.loading import STAGES, Chunk, ChunkLoader
from ..images.source import Source
from ..progress import Progress
from .profile import Profile
from .resume import ContentLookup

BLOCK_ROWS = 2048  # images in one part; a kill costs at most one block, beside those being embedded
Embedded = tuple[list[int], np.ndarray]  # of a forward pass: rising positions of images, and their rows, float32 (b, d)


@dataclass(frozen=True)
class ImagesToEmbed:
    """Images that have no row yet, in the order of the listing."""

    source: Source
    encoder: Encoder
    keys: list[str]
    encoded_keys: np.ndarray  # (n,) of dtype S: the same keys as a cache stores them
    size_mtime: np.ndarray  # (n, 2), int64
    lookup: ContentLookup  # embeddings that are copied instead, by content

    def loader(self, rows: int) -> ChunkLoader:
        """Loader of the images, which prepares chunks of `rows` of them for the encoder."""
        return ChunkLoader(
            self.source,
            self.encoder.preprocess,
            self.keys,
            self.size_mtime[:, 0].tolist(),
            chunk_size=rows,
            embedded_digests=self.lookup.sorted_digests,
            decoding=Decoding.of(self.encoder.spec.decoder),
            tiles=self.encoder.spec.tiles,
        )


class BlockAssembler:
    """Assembles blocks of rows; counts the images that were embedded, copied by content, or could not be."""

    def __init__(self, images: ImagesToEmbed, dtype: np.dtype, profile: Profile):
        self._images, self._dtype, self._profile = images, dtype, profile
        self._open: dict[int, _Block] = {}  # by number
        self._complete: list[_Block] = []
        self.computed = self.reused = self.failed = 0
        self.peaks: Counter[int] = Counter()  # number of the images of 16 bits by their largest value

    def blocks(
        self, results: Iterable[Chunk | Embedded], progress: Progress
    ) -> Generator[tuple[Rows, dict[str, str]], None, None]:
        """Yield rows and failures of each complete block; the last of its images counts once the block is on disk."""
        for result in results:
            done = self._add_chunk(result) if isinstance(result, Chunk) else self._add_embeddings(*result)
            if done > len(self._complete):
                progress.advance(done - len(self._complete))
            progress.remark(f"encoder waited {self._profile.waited:.0%}, {self.failed:,} failed")
            while self._complete:
                yield self._rows_and_failures(self._complete.pop(0))
                progress.advance(1)

    def _add_chunk(self, chunk: Chunk) -> int:
        """Enter digests, failures and copied embeddings of a chunk; returns the number of the latter two."""
        self._profile.add(dict(zip(STAGES, chunk.seconds, strict=True)))
        self.peaks.update(chunk.peaks)
        to_embed, done = set(chunk.to_embed), 0
        for position, outcome in enumerate(chunk.outcomes, chunk.first):
            block = self._block_of(position)
            row = position - block.start
            if isinstance(outcome, str):
                self.failed += 1
                block.failures[row] = outcome
                done += self._count(block, 1)
                continue
            block.digests[row] = outcome
            if position in chunk.partial:
                block.partial[row] = PARTIAL + chunk.partial[position]
            if position not in to_embed:
                self.reused += 1
                if outcome in self._images.lookup.partial:
                    block.partial[row] = self._images.lookup.partial[outcome]
                block.X[row] = self._images.lookup[outcome]
                done += self._count(block, 1)
        return done

    def _add_embeddings(self, positions: list[int], X: np.ndarray) -> int:
        """Enter the result of a forward pass; returns their number."""
        first = done = 0
        self.computed += len(positions)
        while first < len(positions):
            block = self._block_of(positions[first])
            last = bisect.bisect_left(positions, block.start + len(block.X), first)
            block.X[[position - block.start for position in positions[first:last]]] = X[first:last]
            done += self._count(block, last - first)
            first = last
        return done

    def _block_of(self, position: int) -> _Block:
        number = position // BLOCK_ROWS
        if number not in self._open:
            start = number * BLOCK_ROWS
            rows = min(BLOCK_ROWS, len(self._images.keys) - start)
            self._open[number] = _Block(start, rows, self._images.encoder.spec.dim)
        return self._open[number]

    def _count(self, block: _Block, rows: int) -> int:
        """Count rows that a block has now; one that has all is complete."""
        block.missing -= rows
        if not block.missing:
            self._complete.append(self._open.pop(block.start // BLOCK_ROWS))
        return rows

    def _rows_and_failures(self, block: _Block) -> tuple[Rows, dict[str, str]]:
        precision = self._images.encoder.spec.precision
        remedy = "" if precision == "fp32" else "; write another cache with --precision fp32"
        for row in np.flatnonzero(~np.isfinite(block.X).all(1)).tolist():
            self.failed += 1
            block.failures[row] = f"the encoder gave NaN or infinite values{remedy}"
        records = block.partial | block.failures
        failures = {self._images.keys[block.start + row]: records[row] for row in sorted(records)}
        embedded = np.array([row for row in range(len(block.X)) if row not in block.failures], np.int64)
        embedded = embedded[np.argsort(self._images.encoded_keys[block.start + embedded], kind="stable")]
        digests = b"".join(block.digests[row] for row in embedded)
        rows = Rows(
            keys=self._images.encoded_keys[block.start + embedded],
            X=self._stored(block.X[embedded], block.start + embedded),
            digests=np.frombuffer(digests, np.uint8).reshape(-1, 32),
            size_mtime=self._images.size_mtime[block.start + embedded],
        )
        return rows, failures

    def _stored(self, X: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Embeddings in the type of the cache; raises `EncoderError` where that overflows."""
        with np.errstate(over="ignore"):
            stored = X.astype(self._dtype)
        overflow = positions[~np.isfinite(stored).all(1)]
        if len(overflow):
            key = self._images.keys[overflow[0]]
            raise EncoderError(
                f"the embedding of {key!r} overflows {self._dtype}; remove its .parts, and embed in Python "
                "with dtype='float32'"
            )
        return stored


class _Block:
    """Rows of one part while they are collected."""

    def __init__(self, start: int, rows: int, dim: int):
        self.start, self.missing = start, rows
        self.X = np.zeros((rows, dim), np.float32)
        self.digests = [b""] * rows
        self.failures: dict[int, str] = {}
        self.partial: dict[int, str] = {}  # what was not read of images that have an embedding
