"""The engine of one machine: images are loaded in threads or processes and embedded in full batches.

A bounded number of images is loaded ahead of the encoder (`pucache.images.loading`). Batches are filled across
chunks and blocks, so that hardly any is padded. Several forward passes run at once, in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ..devices import cores

# torch, and what imports it, is imported once there is work: a run without new images does not need it
if TYPE_CHECKING:
    import torch

    from ..encoders.encoder import Encoder
    from ..images.loading import Chunk
    from .engine import Job, Results
    from .profiling import Profile

CHUNK_ROWS = 64  # images that are loaded and handed over together
_MOST_OPEN_BLOCKS = 4
_FEW_IMAGES = 64  # up to so many, starting processes costs more than it saves


def default_workers(encoder: Encoder) -> int:
    """Loader processes: one per core up to 16 with a GPU; none on the CPU, where the encoder's threads load images."""
    return min(16, cores()) if encoder.runtime.device.type == "cuda" else 0


def images_per_call(images: int, threads: int) -> int:
    """Images to hand over to a thread at once; few where there are few images, so that every thread gets some."""
    return max(1, min(CHUNK_ROWS, images // (4 * threads)))


class LocalEngine:
    """Runs jobs on this machine.

    Parameters
    ----------
    workers : int, optional
        Processes that read and decode images; 0 does it in threads of this process. By default see
        `default_workers`.
    """

    def __init__(self, workers: int | None = None):
        self._workers = workers

    def device(self, requested: str | torch.device = "auto") -> str | torch.device:
        """Return the requested device, which `pucache.load_encoder` checks.

        Parameters
        ----------
        requested : str or torch.device
            auto, cpu, cuda or cuda:N.

        Returns
        -------
        str or torch.device
        """
        return requested

    def __call__(self, job: Job, profile: Profile) -> Results:
        """Run a job: yields chunks in order, and embeddings as they are done."""
        import torch

        from . import row_blocks
        from .batching import BatchRunner

        runtime = job.encoder.runtime
        on_cpu = runtime.device.type == "cpu"
        workers = self._processes(job)
        at_once = images_per_call(len(job.keys), runtime.caller_threads)
        profile.begin(threads=runtime.caller_threads, workers=workers, passes=runtime.streams if on_cpu else 1)
        with ExitStack() as stack:
            stack.callback(torch.set_num_threads, torch.get_num_threads())  # the threads below change the default
            threads = _threads(stack, runtime.caller_threads, runtime.enter_thread)
            runner = BatchRunner(job.encoder, threads, at_once, profile)
            for chunk in _chunks(stack, job, workers, threads, at_once):
                yield chunk
                runner.add(chunk)
                # a block stays open as long as one of its images waits for others to fill a batch
                lag = chunk.first - runner.oldest_waiting(chunk.first)
                yield from runner.flush() if lag > _MOST_OPEN_BLOCKS * row_blocks.BLOCK_ROWS else runner.finished()
            yield from runner.flush()
            profile.end()

    def _processes(self, job: Job) -> int:
        workers = self._workers
        if workers is None:
            workers = default_workers(job.encoder) if len(job.keys) > _FEW_IMAGES else 0
        return min(workers, -(-len(job.keys) // CHUNK_ROWS))


def _chunks(
    stack: ExitStack, job: Job, workers: int, encoder_threads: ThreadPoolExecutor, at_once: int
) -> Iterator[Chunk]:
    """Loaded images: by processes, by the threads of the encoder, or by threads of their own beside a GPU."""
    from ..images.loader_processes import LoaderProcesses
    from ..images.loading import load_in_threads
    from .batching import whole_batches

    runtime = job.encoder.runtime
    if workers:  # forked before the encoder starts threads
        return stack.enter_context(LoaderProcesses(job.loader(CHUNK_ROWS), workers)).chunks()
    if runtime.device.type == "cpu":  # chunks of whole batches need not be concatenated
        rows = min(whole_batches(runtime.batch_size, at_once), CHUNK_ROWS)
        return load_in_threads(job.loader(rows), encoder_threads, 2 * runtime.caller_threads)
    return load_in_threads(job.loader(CHUNK_ROWS), _threads(stack, cores(), _use_one_thread), 2 * cores())


def _threads(stack: ExitStack, count: int, initializer: Callable[[], None] | None = None) -> ThreadPoolExecutor:
    """Threads that end with the stack; calls that have not begun are dropped."""
    pool = ThreadPoolExecutor(count, initializer=initializer)
    stack.callback(pool.shutdown, cancel_futures=True)
    return pool


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)
