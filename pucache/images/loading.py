"""Loading of images for an encoder: read, hash, look up, decode and resize.

Images are loaded in chunks, by threads or worker processes. An image that fails is recorded in its chunk and
does not affect the others.

The death of a worker process is noticed at once and reported with the image that it was loading. Processes write
pixels to an anonymous shared mapping that is created before they are forked: nothing is copied through pipes, and
the limit that containers set on ``/dev/shm`` does not apply.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import multiprocessing
import multiprocessing.connection
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from PIL import Image

from ..allocator import keep_freed_memory
from ..errors import ImageError, SourceError, picklable_error
from ..storage.limits import PIXEL_BYTES
from .decoding import USUAL, Decoding
from .listing import UNKNOWN
from .regions import split_key, whole_key
from .source import Source, image_digest, part_digest
from .tiling import Piece, decode_pieces

if TYPE_CHECKING:
    import torch

STAGES = ("reading", "hashing", "decoding", "resizing")
_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_QUEUED = 2  # chunks per worker process: one being loaded, and the next
_SLOTS = 3  # slots for pixels per worker process: those chunks, and one that waits for its turn


@dataclass
class Chunk:
    """Consecutive images after loading."""

    first: int  # position of the first image
    outcomes: list[bytes | str]  # for each image its content digest, or the reason why it failed
    to_embed: list[int]  # positions of the images in `pixels`, ascending
    pixels: torch.Tensor  # uint8, (len(to_embed), H, W, 3)
    seconds: list[float]  # in each of `STAGES`
    peaks: list[int] = field(default_factory=list)  # largest value of each image of 16 bits
    partial: dict[int, str] = field(default_factory=dict)  # what was not read of an image, by position


class Resizer(Protocol):
    """Brings an image to a fixed size; picklable."""

    @property
    def input_size(self) -> tuple[int, int]:
        """(H, W)."""

    @property
    def sufficient_side(self) -> int:
        """Length in pixels beyond which the shorter side of the original adds hardly any detail."""

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Return uint8 pixels, (H, W, 3); raise `ImageError` for an image that cannot be resized."""


class ChunkLoader:
    """Loads the images of a source, a chunk at a time; an image's position is the index of its key in `keys`.

    `sizes` are the bytes of each image when it was listed, or `UNKNOWN`. Images whose content digest is among
    `embedded_digests`, S32 and sorted, are neither decoded nor embedded. With `tiles` the keys are of parts of images:
    the parts of an image that follow each other are in one chunk, or in several where their pixels take more than
    `PIXEL_BYTES`; it is read and decoded once for them.
    """

    def __init__(
        self,
        source: Source,
        resize: Resizer,
        keys: list[str],
        sizes: list[int],
        *,
        chunk_size: int,
        embedded_digests: np.ndarray | None = None,
        decoding: Decoding = USUAL,
        tiles: str = "",
    ):
        self.keys = keys
        self._split = split_key if tiles else whole_key
        most = max(1, PIXEL_BYTES // (3 * math.prod(resize.input_size)))
        chunk_size = min(chunk_size, most)
        self._of_one: dict[int, range] = {}  # positions of the one image of which a chunk has some, by its number
        if tiles:
            self._starts = self._image_starts(chunk_size, most)
        else:
            self._starts = [*range(0, len(keys), chunk_size), len(keys)]
        largest = max([chunk_size, *(stop - start for start, stop in itertools.pairwise(self._starts))])
        self.shape = (largest, *resize.input_size, 3)  # of the pixels of a full chunk
        self._source, self._resize, self._sizes, self._decoding = source, resize, sizes, decoding
        self._embedded_digests = np.empty(0, "S32") if embedded_digests is None else embedded_digests
        self._shared: dict[int, _Image] = {}  # images of which several chunks have parts, by their first position
        self._lock = threading.Lock()

    def _image_starts(self, chunk_size: int, most: int) -> list[int]:
        """Positions at which chunks begin, and the end: each of whole images, or of at most so many parts of one."""
        starts = [0]
        for image in self._images(0, len(self.keys)):
            is_full = image.stop - starts[-1] > chunk_size or len(starts) - 1 in self._of_one
            starts += [image.start] * (is_full and image.start > starts[-1])
            if len(image) > most:
                more = range(image.start + most, image.stop, most)
                self._of_one |= dict.fromkeys(range(len(starts) - 1, len(starts) + len(more)), image)
                starts += more
        return [*starts, len(self.keys)] if self.keys else [0]

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self._starts) - 1

    def _images(self, start: int, stop: int) -> Iterator[range]:
        """Positions of each image: one, or those of its parts."""
        while start < stop:
            end, image = start + 1, self._split(self.keys[start])[0]
            while end < stop and self._split(self.keys[end])[0] == image:
                end += 1
            yield range(start, end)
            start = end

    def __call__(
        self,
        number: int,
        pixels: torch.Tensor | None = None,
        *,
        on_image: Callable[[int], None] | None = None,
    ) -> Chunk:
        """Load a chunk into ``pixels``, of `shape`; ``on_image`` is called with each position before it is read."""
        first, stop = self._starts[number : number + 2]
        if pixels is None:
            import torch

            pixels = torch.empty((stop - first, *self.shape[1:]), dtype=torch.uint8)
        chunk = Chunk(first=first, outcomes=[], to_embed=[], pixels=pixels, seconds=[0.0] * len(STAGES))
        for positions in self._images(first, stop):
            if on_image is not None:
                on_image(positions[0])
            chunk.outcomes += self._load(positions, self._of_one.get(number), chunk)
        chunk.pixels = pixels[: len(chunk.to_embed)]
        return chunk

    def _load(self, positions: range, of_one: range | None, chunk: Chunk) -> list[bytes | str]:
        """Load one image, or its parts, into the chunk; return the digest of each, or the reason why a part failed."""
        image = self._open(positions, chunk) if of_one is None else self._open_shared(of_one, positions, chunk)
        outcomes = image.outcomes[positions.start - image.first : positions.stop - image.first]
        began = time.perf_counter()
        for at, position in enumerate(positions):
            if position not in image.pieces:
                continue
            piece, cut_off = image.pieces[position]
            try:
                chunk.pixels[len(chunk.to_embed)] = self._resize(piece())
            except ImageError as error:
                outcomes[at] = str(error)
                continue
            chunk.to_embed.append(position)
            if partial := image.partial or cut_off:
                chunk.partial[position] = partial
        chunk.seconds[-1] += time.perf_counter() - began
        if image.peak is not None and positions.start == image.first:
            chunk.peaks.append(image.peak)
        return outcomes

    def _open_shared(self, positions: range, now: range, chunk: Chunk) -> _Image:
        """The image of which this chunk has some parts; it is kept until the chunk of its last ones takes it."""
        with self._lock:
            image = self._shared.get(positions.start) or self._open(positions, chunk)
            self._shared[positions.start] = image
            image.left -= len(now)
            if not image.left:
                del self._shared[positions.start]
            return image

    def forget(self, number: int) -> None:
        """Drop images of which chunks before this one had parts, and it has none."""
        first = self._starts[number]
        self._shared = {start: image for start, image in self._shared.items() if start + len(image.outcomes) > first}

    def _open(self, positions: range, chunk: Chunk) -> _Image:
        """Read and decode an image for its parts at these positions; adds the time that took to that of the chunk."""
        times = [time.perf_counter()]
        image = _Image(positions.start, [], left=len(positions))
        try:
            data = self._read(positions[0])
            times.append(time.perf_counter())
            regions = [self._split(self.keys[position])[1] for position in positions]
            digest = image_digest(data)
            digests = [part_digest(digest, region) for region in regions]
            times.append(time.perf_counter())
            wanted = [at for at, one in enumerate(digests) if not self._is_embedded(one)]
            image.outcomes = [*digests]
            if wanted:
                sides = self._resize.sufficient_side, max(self._resize.input_size)
                decoded, pieces = decode_pieces(data, [regions[at] for at in wanted], *sides, self._decoding)
                image.pieces = dict(zip((positions[at] for at in wanted), pieces, strict=True))
                image.partial, image.peak = decoded.partial, decoded.peak
        except ImageError as error:
            image.outcomes = [str(error)] * len(positions)
        times.append(time.perf_counter())
        for stage, (began, ended) in enumerate(itertools.pairwise(times)):
            chunk.seconds[stage] += ended - began
        return image

    def _read(self, position: int) -> bytes:
        data = self._source.read(self._split(self.keys[position])[0])
        listed = self._sizes[position]
        if listed not in (UNKNOWN, len(data)):
            raise ImageError(f"changed while it was read: {listed} bytes when listed, {len(data)} now; embed again")
        return data

    def _is_embedded(self, digest: bytes) -> bool:
        if not len(self._embedded_digests):
            return False
        index = np.searchsorted(self._embedded_digests, np.bytes_(digest))
        # compared as bytes, because numpy's S32 drops trailing zero bytes
        return self._embedded_digests[index : index + 1].tobytes() == digest


@dataclass
class _Image:
    """An image that is decoded, and what is to be known of it and of its parts."""

    first: int  # position of the first part
    outcomes: list[bytes | str]
    pieces: dict[int, Piece] = field(default_factory=dict)  # by position
    partial: str = ""
    peak: int | None = None
    left: int = 0  # parts that no chunk has taken


def load_in_threads(loader: ChunkLoader, pool: ThreadPoolExecutor, ahead: int) -> Iterator[Chunk]:
    """Yield every chunk, in order; up to ``ahead`` chunks are loaded in advance."""
    pending: deque[Future[Chunk]] = deque()
    for number in range(len(loader)):
        pending.append(pool.submit(loader, number))
        if len(pending) > ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


class LoaderProcesses:
    """A pool of ``count`` worker processes that load chunks; a context manager that ends them on exit."""

    def __init__(self, loader: ChunkLoader, count: int):
        import torch

        self._loader, self._count = loader, count
        shape = (_SLOTS * count, *loader.shape)
        self._pixels = torch.from_numpy(_shared_zeros(shape, np.uint8))
        self._positions = _shared_zeros((count,), np.int64)  # of the image that each worker is loading, or -1
        self._positions[:] = -1
        self._pipes: list[Any] = []
        self._processes: list[Any] = []

    def __enter__(self) -> LoaderProcesses:
        try:
            for worker in range(self._count):
                self._start(worker)
        except BaseException as error:
            self.__exit__()
            if isinstance(error, OSError):
                raise SourceError(f"cannot start worker processes: {error.strerror}; use fewer --workers") from error
            raise
        return self

    def _start(self, worker: int) -> None:
        context = multiprocessing.get_context("fork")
        parent_end, worker_end = context.Pipe()
        self._pipes.append(parent_end)
        process = context.Process(target=self._serve, args=(worker, worker_end), daemon=True)
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until the worker has its own handlers
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        worker_end.close()
        self._processes.append(process)

    def __exit__(self, *error: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()

    def chunks(self) -> Iterator[Chunk]:
        """Yield every chunk in order, a bounded number loaded in advance; `SourceError` where a worker died."""
        free_slots = deque(range(len(self._pixels)))
        idle = deque(list(range(self._count)) * _QUEUED)  # a worker once for each chunk that it has room for
        loaded: dict[int, tuple[int, Chunk]] = {}  # chunk number: slot and chunk
        submitted = 0
        for number in range(len(self._loader)):
            while number not in loaded:
                while idle and free_slots and submitted < len(self._loader):
                    slot = free_slots.popleft()
                    with contextlib.suppress(OSError):  # of a worker that died, which its next answer shows
                        self._pipes[idle.popleft()].send((submitted, slot))
                    submitted += 1
                for pipe in multiprocessing.connection.wait(self._pipes):
                    worker = self._pipes.index(pipe)
                    answered, slot, chunk = self._answer(worker)
                    idle.append(worker)
                    loaded[answered] = slot, chunk
            slot, chunk = loaded.pop(number)
            chunk.pixels = self._pixels[slot, : len(chunk.to_embed)].clone()
            free_slots.append(slot)
            yield chunk

    def _answer(self, worker: int) -> tuple[int, int, Chunk]:
        try:
            answer = self._pipes[worker].recv()
        except (EOFError, OSError):
            raise self._death(worker) from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _death(self, worker: int) -> SourceError:
        process, position = self._processes[worker], int(self._positions[worker])
        process.join(10)
        code = process.exitcode
        cause = f" of {signal.Signals(-code).name}" if code is not None and code < 0 else ""
        image = f" with {self._loader.keys[position]!r}" if position >= 0 else ""
        return SourceError(
            f"a worker process died{cause}{image} (out of memory, or an image that its decoder cannot take); what was "
            "finished is kept: run again, with fewer workers if memory is short"
        )

    def _serve(self, worker: int, pipe: Any) -> None:
        """In the worker process: load chunks until the parent closes the pipe."""
        import torch

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends the workers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        for inherited in self._pipes:  # a worker sees the parent's end of its pipe close only if no other holds it
            inherited.close()
        keep_freed_memory()
        torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
        with contextlib.suppress(EOFError, OSError):  # of the pipe alone: the parent has ended
            while True:
                number, slot = pipe.recv()
                try:
                    answer: Any = (number, slot, self._load(worker, number, slot))
                except Exception as error:  # a bug, for example in a source: the parent raises it
                    answer = picklable_error(error)
                pipe.send(answer)

    def _load(self, worker: int, number: int, slot: int) -> Chunk:
        def set_position(position: int) -> None:
            self._positions[worker] = position

        self._loader.forget(number)
        chunk = self._loader(number, self._pixels[slot], on_image=set_position)
        chunk.pixels = chunk.pixels[:0].clone()  # the pixels are in the slot
        set_position(-1)
        return chunk


def _shared_zeros(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Zeros in memory that forked processes share."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(mmap.mmap(-1, max(1, size)), np.uint8, size).view(dtype).reshape(shape)
