"""The engine of one machine: images prepared in threads or workers, embedded in fixed batches.

Images are prepared ahead of the encoder (`pucache.images.loading`), a bounded number of them; batches are
filled across chunks and blocks, so that hardly any is padded; forward passes run beside each
other in threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import torch

from ..devices import choose_device, cores
from ..encoders.encoder import Encoder
from ..images.loader_processes import LoaderProcesses
from ..images.loading import load_in_threads
from . import row_blocks
from .batching import Passes, whole_batches
from .engine import Job, Results
from .profiling import Profile

CHUNK_ROWS = 64  # images that are handed over at once
_MOST_BLOCKS = 4  # under way at once
_FEW = 64  # with fewer images, starting workers costs more than they save


def default_workers(encoder: Encoder) -> int:
    """One per core up to 16 beside a GPU; none on the CPU, where the threads of the encoder prepare images too."""
    return min(16, cores()) if encoder.runtime.device.type == "cuda" else 0


def rows_at_once(images: int, hands: int) -> int:
    """About how many images to hand over at once: few where there are few, so that every hand gets some."""
    return max(1, min(CHUNK_ROWS, images // (4 * hands)))


class Local:
    """Does a job on this machine.

    Parameters
    ----------
    workers : int, optional
        Processes that read and decode; 0 does it in threads of this one.
    """

    def __init__(self, workers: int | None = None):
        self._workers = workers

    def device(self, asked: str = "auto") -> torch.device:
        """See `pucache.devices.choose_device`.

        Parameters
        ----------
        asked : str
            auto, cpu, cuda or cuda:N.

        Returns
        -------
        torch.device
        """
        return choose_device(asked)

    def __call__(self, job: Job, profile: Profile) -> Results:
        """Do it: chunks in order, embeddings as they come."""
        workers = self._workers
        if workers is None:
            workers = default_workers(job.encoder) if len(job.keys) > _FEW else 0
        workers = min(workers, -(-len(job.keys) // CHUNK_ROWS))
        threads = torch.get_num_threads()
        runtime = job.encoder.runtime
        on_cpu = runtime.device.type == "cpu"
        profile.begin(hands=runtime.caller_threads, workers=workers, passes=runtime.streams if on_cpu else 1)
        with ExitStack() as stack:
            stack.callback(torch.set_num_threads, threads)  # the threads below change what later ones begin with
            hands = _threads(stack, runtime.caller_threads, runtime.enter_thread)
            at_once = rows_at_once(len(job.keys), runtime.caller_threads)
            if workers:  # forked before the encoder starts threads
                chunks = stack.enter_context(LoaderProcesses(job.prepare(CHUNK_ROWS), workers)).chunks()
            elif on_cpu:  # chunks of whole batches, so that these need no copying together
                rows = min(whole_batches(runtime.batch_size, at_once), CHUNK_ROWS)
                chunks = load_in_threads(job.prepare(rows), hands, 2 * runtime.caller_threads)
            else:
                chunks = load_in_threads(job.prepare(CHUNK_ROWS), _threads(stack, cores(), _one_thread), 2 * cores())
            passes = Passes(job.encoder, hands, at_once, profile)
            for chunk in chunks:
                yield chunk
                passes.add(chunk)
                # else a block would stay open as long as it has an image that waits for others to fill a batch
                waited = chunk.first - passes.waiting_since(chunk.first)
                yield from passes.rest() if waited > _MOST_BLOCKS * row_blocks.BLOCK_ROWS else passes.finished()
            yield from passes.rest()
            profile.end()


def _threads(stack: ExitStack, count: int, enter: Callable[[], None] | None = None) -> ThreadPoolExecutor:
    """Threads that end with the stack, dropping what they have not begun."""
    pool = ThreadPoolExecutor(count, initializer=enter)
    stack.callback(pool.shutdown, cancel_futures=True)
    return pool


def _one_thread() -> None:
    torch.set_num_threads(1)
