"""Listed images -> blocks of rows: prepared in threads or workers, embedded in fixed batches.

Images are prepared ahead of the encoder (`pucache.prepare`), a bounded number of them; batches are
filled across chunks and blocks, so that hardly any is padded; forward passes run beside each
other in threads. A block's rows depend on the listing alone, never on timing or the number of workers.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import torch

from .cache_writer import Rows
from .device_decoding import suits_device
from .devices import cores
from .encoders import Encoder
from .errors import EncoderError
from .images import Listing, Source
from .keys import encode_keys
from .parts import Known
from .passes import Embedded, Passes, whole_batches
from .prepare import STAGES, Chunk, Prepare, in_threads
from .profile import Profile
from .progress import Progress
from .workers import Workers

BLOCK_ROWS = 2048  # images in one part: what a kill can cost, beside those in flight
CHUNK_ROWS = 64  # images that are handed over at once
_MOST_BLOCKS = 4  # under way at once
_FEW = 64  # with fewer images, starting workers costs more than they save


def default_workers(encoder: Encoder) -> int:
    """One per core up to 16 beside a GPU; none on the CPU, where the threads of the encoder prepare images too."""
    return min(16, cores()) if encoder.runtime.device.type == "cuda" else 0


def rows_at_once(images: int, hands: int) -> int:
    """About how many images to hand over at once: few where there are few, so that every hand gets some."""
    return max(1, min(CHUNK_ROWS, images // (4 * hands)))


class Work:
    """Turns the plan into blocks of rows, counting what was computed and what was known."""

    def __init__(
        self, source: Source, encoder: Encoder, listing: Listing, plan: np.ndarray, known: Known, profile: Profile
    ):
        self._source, self._encoder, self._known = source, encoder, known
        self._keys = [listing.keys[i] for i in plan]
        self._size_mtime = listing.size_mtime[plan]
        self._profile = profile
        self._blocks: deque[_Block] = deque()
        self.computed = self.reused = self.failed = 0

    def blocks(
        self, workers: int | None, dtype: np.dtype, progress: Progress
    ) -> Generator[tuple[Rows, dict[str, str]], None, None]:
        """Yield rows and failures of one block after the other, in key order.

        All images of a block count as progress but the last, which the caller counts once the block is safe.
        """
        if workers is None:
            workers = default_workers(self._encoder) if len(self._keys) > _FEW else 0
        workers = min(workers, -(-len(self._keys) // CHUNK_ROWS))
        threads = torch.get_num_threads()
        runtime = self._encoder.runtime
        on_cpu = runtime.device.type == "cpu"
        self._profile.begin(hands=runtime.hands, workers=workers, passes=runtime.streams if on_cpu else 1)
        with ExitStack() as stack:
            stack.callback(torch.set_num_threads, threads)  # the threads below change what later ones begin with
            hands = _threads(stack, runtime.hands, runtime.enter_thread)
            at_once = rows_at_once(len(self._keys), runtime.hands)
            if workers:  # forked before the encoder starts threads
                chunks = stack.enter_context(Workers(self._prepare(CHUNK_ROWS), workers)).chunks()
            elif on_cpu:  # chunks of whole batches, so that these need no copying together
                rows = min(whole_batches(runtime.batch_size, at_once), CHUNK_ROWS)
                chunks = in_threads(self._prepare(rows), hands, 2 * runtime.hands)
            else:
                chunks = in_threads(self._prepare(CHUNK_ROWS), _threads(stack, cores(), _one_thread), 2 * cores())
            passes = Passes(self._encoder, hands, at_once, self._profile)
            for chunk in chunks:
                self._take(chunk, passes, progress)
                full = len(self._blocks) > _MOST_BLOCKS  # maybe an early one waits for images too few for a batch
                self._put(passes.rest() if full else passes.finished(), progress)
                yield from self._whole(dtype)
            self._put(passes.rest(), progress)
            yield from self._whole(dtype)
            self._profile.end()

    def _prepare(self, rows: int) -> Prepare:
        sizes = self._size_mtime[:, 0].tolist()
        leave = suits_device if self._encoder.decoder else None
        known = self._known.sorted
        return Prepare(self._source, self._encoder.preprocess, self._keys, sizes, known, rows=rows, leave=leave)

    # --- blocks ----------------------------------------------------------------------------------

    def _take(self, chunk: Chunk, passes: Passes, progress: Progress) -> None:
        """Enter the outcomes of a chunk, and hand its pixels to the encoder."""
        self._profile.seconds.update(dict(zip(STAGES, chunk.seconds, strict=True)))
        to_embed, done = set(chunk.to_embed), 0
        for position, outcome in enumerate(chunk.outcomes, chunk.first):
            block = self._block_of(position)
            row = position - block.start
            if isinstance(outcome, str):
                self.failed += 1
                done += block.fail(row, outcome)
                continue
            block.digests[row] = outcome
            if position not in to_embed and position not in chunk.undecoded:
                self.reused += 1
                done += block.put([row], self._known[outcome])
        if done:
            progress.advance(done)
        if chunk.to_embed:
            passes.add(chunk.pixels, chunk.to_embed)
        if chunk.undecoded:
            passes.add_undecoded(chunk.undecoded)

    def _put(self, embedded: Iterator[Embedded], progress: Progress) -> None:
        """Enter what the encoder gave."""
        for positions, X, failures in embedded:
            first, done = 0, 0
            for position, reason in failures.items():
                self.failed += 1
                block = self._block_of(position)
                done += block.fail(position - block.start, reason)
            if failures:
                X = X[[position not in failures for position in positions]]
                positions = [position for position in positions if position not in failures]
            self.computed += len(positions)
            while first < len(positions):
                block = self._block_of(positions[first])
                last = bisect.bisect_left(positions, block.start + len(block.X), first)
                done += block.put([position - block.start for position in positions[first:last]], X[first:last])
                first = last
            if done:
                progress.advance(done)
            progress.remark(f"encoder waited {self._profile.waited:.0%}, {self.failed:,} failed")

    def _block_of(self, position: int) -> _Block:
        number = position // BLOCK_ROWS
        while not self._blocks or self._blocks[-1].start < number * BLOCK_ROWS:
            start = self._blocks[-1].start + BLOCK_ROWS if self._blocks else number * BLOCK_ROWS
            self._blocks.append(_Block(start, min(BLOCK_ROWS, len(self._keys) - start), self._encoder.spec.dim))
        return self._blocks[number - self._blocks[0].start // BLOCK_ROWS]

    def _whole(self, dtype: np.dtype) -> Iterator[tuple[Rows, dict[str, str]]]:
        """Blocks at the front of which nothing is missing any more."""
        while self._blocks and not self._blocks[0].missing:
            block = self._blocks.popleft()
            keys = self._keys[block.start : block.start + len(block.X)]
            for row in np.flatnonzero(~np.isfinite(block.X).all(1)):
                self.failed += 1
                block.failures[int(row)] = f"the encoder gave NaN or infinite values{self._remedy()}"
            failures = {keys[row]: block.failures[row] for row in sorted(block.failures)}
            good = np.array([row for row in range(len(keys)) if row not in block.failures], np.int64)
            named = [keys[row] for row in good]
            size_mtime = self._size_mtime[block.start : block.start + len(keys)][good]
            X = _store(block.X[good], named, dtype)
            digests = np.frombuffer(b"".join(block.digests[row] for row in good), np.uint8).reshape(-1, 32)
            yield Rows(encode_keys(named), X, digests, size_mtime), failures

    def _remedy(self) -> str:
        return "" if self._encoder.runtime.precision == "fp32" else "; write another cache with --precision fp32"


class _Block:
    """Rows that become one part."""

    def __init__(self, start: int, rows: int, dim: int):
        self.start, self.missing = start, rows
        self.X = np.zeros((rows, dim), np.float32)
        self.digests = [b""] * rows
        self.failures: dict[int, str] = {}

    def put(self, rows: list[int], X: np.ndarray) -> int:
        self.X[rows] = X
        return self._count(len(rows))

    def fail(self, row: int, reason: str) -> int:
        self.failures[row] = reason
        return self._count(1)

    def _count(self, rows: int) -> int:
        """By how many images progress can be counted: not the last, which waits for the block to be safe."""
        self.missing -= rows
        return rows - (self.missing == 0)


def _threads(stack: ExitStack, count: int, enter: Callable[[], None] | None = None) -> ThreadPoolExecutor:
    """Threads that end with the stack, dropping what they have not begun."""
    pool = ThreadPoolExecutor(count, initializer=enter)
    stack.callback(pool.shutdown, cancel_futures=True)
    return pool


def _one_thread() -> None:
    torch.set_num_threads(1)


def _store(X: np.ndarray, keys: list[str], dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        stored = X.astype(dtype)
    overflow = np.flatnonzero(~np.isfinite(stored).all(1))
    if len(overflow):
        raise EncoderError(
            f"the embedding of {keys[overflow[0]]!r} overflows {dtype}; remove its .parts and use --dtype float32"
        )
    return stored
