"""Loading and embedding images on this machine.

Images are loaded in threads or processes, a bounded number of them ahead of the encoder (`pucache.images.loading`).
Batches are filled across chunks and blocks, so that hardly any is padded. Several forward passes run at once, in
threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import torch

from ..devices import cores
from ..encoders.encoder import Encoder
from ..images.loading import Chunk, LoaderProcesses, load_in_threads
from . import blocks
from .blocks import Embedded, ImagesToEmbed
from .profile import Profile

CHUNK_ROWS = 64  # images that are loaded and handed over together
_MOST_OPEN_BLOCKS = 4
_FEW_IMAGES = 64  # up to so many, starting processes costs more than it saves
_MOST_PROCESSES = 16


def embed_images(
    images: ImagesToEmbed, profile: Profile, *, workers: int | None = None
) -> Generator[Chunk | Embedded, None, None]:
    """Load and embed images: yields every chunk in order, and the embeddings of its images later.

    `workers` processes read and decode images; 0 does it in threads of this process. By default one per core up to 16
    with a GPU, and none on the CPU, where the encoder's threads load images. Of a source that is decoded from its
    beginning (Parquet, a compressed tar) one process at most reads images, and by default the threads do.
    """
    runtime = images.encoder.runtime
    on_cpu = runtime.device.type == "cpu"
    # to hand over to a thread at once; few where there are few images, so that every thread gets some
    images_per_call = max(1, min(CHUNK_ROWS, len(images.keys) // (4 * runtime.caller_threads)))
    profile.begin(runtime.streams if on_cpu else 1)
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())  # the threads below change the default
        threads = _threads(stack, runtime.caller_threads, runtime.enter_thread)
        runner = BatchRunner(images.encoder, threads, images_per_call, profile)
        chunks = _chunks(stack, images, _processes(images, workers), threads, images_per_call)
        if not len(images.lookup.sorted_digests):  # else perhaps no image needs the network
            runner.start()  # while the first images are loaded
        for chunk in chunks:
            yield chunk
            runner.add(chunk)
            # a block stays open as long as one of its images waits for others to fill a batch
            lag = chunk.first - runner.oldest_waiting(chunk.first)
            yield from runner.flush() if lag > _MOST_OPEN_BLOCKS * blocks.BLOCK_ROWS else runner.finished()
        yield from runner.flush()
        profile.end()


def _processes(images: ImagesToEmbed, workers: int | None) -> int:
    sequential = getattr(images.source, "sequential", False)
    if workers is None:
        on_gpu = images.encoder.runtime.device.type == "cuda" and len(images.keys) > _FEW_IMAGES
        workers = min(_MOST_PROCESSES, cores()) if on_gpu and not sequential else 0
    return min(workers, 1 if sequential else -(-len(images.keys) // CHUNK_ROWS))


def _chunks(
    stack: ExitStack, images: ImagesToEmbed, workers: int, encoder_threads: ThreadPoolExecutor, images_per_call: int
) -> Iterator[Chunk]:
    """Loaded images: by processes, by the threads of the encoder, or by threads of their own beside a GPU."""
    runtime = images.encoder.runtime
    if workers:  # forked before the encoder starts threads
        return stack.enter_context(LoaderProcesses(images.loader(CHUNK_ROWS), workers)).chunks()
    if runtime.device.type == "cpu":  # chunks of whole batches need not be concatenated
        rows = min(whole_batches(runtime.batch_size, images_per_call), CHUNK_ROWS)
        return load_in_threads(images.loader(rows), encoder_threads, 2 * runtime.caller_threads)
    return load_in_threads(
        images.loader(CHUNK_ROWS), _threads(stack, cores(), partial(torch.set_num_threads, 1)), 2 * cores()
    )


def _threads(stack: ExitStack, count: int, initializer: Callable[[], None]) -> ThreadPoolExecutor:
    """Threads that end with the stack; calls that have not begun are dropped."""
    pool = ThreadPoolExecutor(count, initializer=initializer)
    stack.callback(pool.shutdown, cancel_futures=True)
    return pool


class BatchRunner:
    """Fills batches of the encoder across chunks; runs a bounded number of passes of about `images_per_call` images."""

    def __init__(self, encoder: Encoder, threads: ThreadPoolExecutor, images_per_call: int, profile: Profile):
        self._encoder, self._threads, self._profile = encoder, threads, profile
        self._images_per_call = images_per_call
        self._pixels: deque[tuple[torch.Tensor, list[int]]] = deque()  # waiting, with positions
        self._waiting = 0  # images in `_pixels`
        self._running: deque[Future[Embedded]] = deque()
        self._starting: Future[None] | None = None

    def add(self, chunk: Chunk) -> None:
        """Take the pixels of a chunk, and start passes of whole batches."""
        if not chunk.to_embed:
            return
        self.start().result()
        self._pixels.append((chunk.pixels, chunk.to_embed))
        self._waiting += len(chunk.to_embed)
        count = whole_batches(self._encoder.runtime.batch_size, self._images_per_call)
        while self._waiting >= count:
            self._submit(count)

    def oldest_waiting(self, default: int) -> int:
        """Position of the first image that waits for others to fill a batch; `default` where none waits."""
        return min([default, *(positions[0] for _, positions in self._pixels)])

    def start(self) -> Future[None]:
        """Build the network, once, in one of the threads that run passes: torch compiles for the calling thread."""
        if self._starting is None:
            self._starting = self._threads.submit(self._build)
        return self._starting

    def _build(self) -> None:
        with self._profile.stage("starting"):
            self._encoder.runtime.start()

    def finished(self) -> Iterator[Embedded]:
        """Yield finished passes; waits for one where too many are running."""
        while self._running and (len(self._running) > 2 * self._encoder.runtime.streams or self._running[0].done()):
            yield self._running.popleft().result()

    def flush(self) -> Iterator[Embedded]:
        """Run what is waiting, less than a batch, and yield all passes."""
        if self._waiting:
            self._submit(self._waiting)
        while self._running:
            yield self._running.popleft().result()

    def _submit(self, count: int) -> None:
        pieces: list[torch.Tensor] = []
        positions: list[int] = []
        while len(positions) < count:
            pixels, piece_positions = self._pixels.popleft()
            take = min(len(piece_positions), count - len(positions))
            pieces.append(pixels[:take])
            positions += piece_positions[:take]
            if take < len(piece_positions):
                self._pixels.appendleft((pixels[take:], piece_positions[take:]))
        self._waiting -= count
        self._running.append(self._threads.submit(self._embed, pieces, positions))

    def _embed(self, pieces: list[torch.Tensor], positions: list[int]) -> Embedded:
        with self._profile.forward_pass():
            pixels = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
            return positions, self._encoder.runtime(pixels)


def whole_batches(batch_size: int, images: int) -> int:
    """Number of images to hand over at once: a batch, or as many batches as `images` hold."""
    return batch_size * max(1, images // batch_size)
