"""Worker processes that load chunks of images into memory shared with this process.

The death of a worker is noticed at once and reported with the image that it was loading. Pixels are
written to an anonymous shared mapping that is created before the workers are forked: nothing is copied
through pipes, and the limit that containers set on ``/dev/shm`` does not apply.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import multiprocessing.connection
import signal
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..allocator import keep_freed_memory
from ..errors import SourceError, picklable_error
from .loading import Chunk, ChunkLoader

_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_QUEUED = 2  # chunks per worker: one being loaded, and the next
_SLOTS = 3  # slots for pixels per worker: those chunks, and one that waits for its turn


class LoaderProcesses:
    """A pool of worker processes; a context manager that ends them on exit.

    Parameters
    ----------
    loader : ChunkLoader
    count : int
        Number of processes.

    Raises
    ------
    SourceError
        On entry: the processes cannot be started.
    """

    def __init__(self, loader: ChunkLoader, count: int):
        import torch

        self._loader = loader
        shape = (_SLOTS * count, *loader.shape)
        self._pixels = torch.from_numpy(_shared_zeros(int(np.prod(shape)), np.dtype(np.uint8)).reshape(shape))
        self._positions = _shared_zeros(count, np.dtype(np.int64))  # of the image that each worker is loading
        self._positions[:] = -1
        self._pipes: list[multiprocessing.connection.Connection] = []
        self._processes: list[Any] = []

    def __enter__(self) -> LoaderProcesses:
        try:
            for worker in range(len(self._positions)):
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
        """Yield every chunk, in order; a bounded number is loaded in advance.

        Raises
        ------
        SourceError
            A worker died.
        """
        free_slots = deque(range(len(self._pixels)))
        queue_lengths = [0] * len(self._pipes)
        loaded: dict[int, tuple[int, Chunk]] = {}  # chunk number: slot and chunk
        submitted = 0
        for number in range(len(self._loader)):
            while number not in loaded:
                for worker in sorted(range(len(queue_lengths)), key=queue_lengths.__getitem__):
                    if queue_lengths[worker] < _QUEUED and free_slots and submitted < len(self._loader):
                        self._send(worker, (submitted, free_slots.popleft()))
                        queue_lengths[worker] += 1
                        submitted += 1
                for worker, (answered, slot, chunk) in self._answers():
                    queue_lengths[worker] -= 1
                    loaded[answered] = slot, chunk
            slot, chunk = loaded.pop(number)
            chunk.pixels = self._pixels[slot, : len(chunk.to_embed)].clone()
            free_slots.append(slot)
            yield chunk

    def _answers(self) -> Iterator[tuple[int, tuple[int, int, Chunk]]]:
        """Wait for answers, and yield each with the number of its worker."""
        for pipe in multiprocessing.connection.wait(self._pipes):
            worker = self._pipes.index(pipe)  # type: ignore[arg-type]
            try:
                answer = self._pipes[worker].recv()
            except (EOFError, OSError):
                raise self._death(worker) from None
            if isinstance(answer, BaseException):
                raise answer
            yield worker, answer

    def _send(self, worker: int, task: tuple[int, int]) -> None:
        try:
            self._pipes[worker].send(task)
        except OSError:
            raise self._death(worker) from None

    def _death(self, worker: int) -> SourceError:
        process, position = self._processes[worker], int(self._positions[worker])
        process.join(10)
        code = process.exitcode
        cause = f" of {signal.Signals(-code).name}" if code is not None and code < 0 else ""
        image = f" with {self._loader.keys[position]!r}" if position >= 0 else ""
        return SourceError(
            f"a worker process died{cause}{image} (out of memory, or an image that its decoder cannot take); what was "
            "finished is kept: run again, with fewer --workers if memory is short"
        )

    # --- in the worker process -------------------------------------------------------------------

    def _serve(self, worker: int, pipe: Any) -> None:
        """Load chunks until the parent closes the pipe."""
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

        chunk = self._loader(number, self._pixels[slot], on_image=set_position)
        chunk.pixels = chunk.pixels[:0].clone()  # the pixels are in the slot
        set_position(-1)
        return chunk


def _shared_zeros(count: int, dtype: np.dtype) -> np.ndarray:
    """Zeros in memory that forked processes share."""
    return np.frombuffer(mmap.mmap(-1, max(1, count * dtype.itemsize)), dtype, count)
