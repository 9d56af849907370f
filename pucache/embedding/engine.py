"""Loading and embedding images on this machine.

Images are loaded in threads or processes, a bounded number of them ahead of the encoder (`pucache.images.loading`).
Batches are filled across chunks and blocks, so that hardly any is padded. Several forward passes run at once, in
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import torch

from ..devices import cores
from ..images.loading import Chunk, LoaderProcesses, load_in_threads
from . import blocks
from .batching import BatchRunner, EmbeddedImages, whole_batches
from .blocks import ImagesToEmbed
from .profile import Profile

CHUNK_ROWS = 64  # images that are loaded and handed over together
_MOST_OPEN_BLOCKS = 4
_FEW_IMAGES = 64  # up to so many, starting processes costs more than it saves
_MOST_PROCESSES = 16


def embed_images(
    images: ImagesToEmbed, profile: Profile, *, workers: int | None = None
) -> Generator[Chunk | EmbeddedImages, None, None]:
    """Load and embed images: yields every chunk in order, and the embeddings of its images later.

    `workers` processes read and decode images; 0 does it in threads of this process. By default one per core up to 16
    with a GPU, and none on the CPU, where the encoder's threads load images. Of a source that is decoded from its
    beginning (Parquet, a compressed tar) one process at most reads images, and by default the threads do.
    """
    runtime = images.encoder.runtime
    on_cpu = runtime.device.type == "cpu"
    images_per_call = _images_per_call(len(images.keys), runtime.caller_threads)
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


def _images_per_call(count: int, threads: int) -> int:
    """Images to hand over to a thread at once; few where there are few images, so that every thread gets some."""
    return max(1, min(CHUNK_ROWS, count // (4 * threads)))


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
    return load_in_threads(images.loader(CHUNK_ROWS), _threads(stack, cores(), _use_one_thread), 2 * cores())


def _threads(stack: ExitStack, count: int, initializer: Callable[[], None]) -> ThreadPoolExecutor:
    """Threads that end with the stack; calls that have not begun are dropped."""
    pool = ThreadPoolExecutor(count, initializer=initializer)
    stack.callback(pool.shutdown, cancel_futures=True)
    return pool


def _use_one_thread() -> None:
    torch.set_num_threads(1)
