"""Worker processes that prepare chunks of images, in memory that they share with this process.

A worker that dies is found at once and named by its image. Pixels go through one anonymous shared
mapping, made before the workers are forked: nothing is copied through pipes, and no limit of
``/dev/shm``, as containers set one, applies.
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
import torch

from ..allocator import keep_freed_memory
from ..errors import PUCacheError, SourceError
from .loading import Chunk, ChunkLoader

_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_QUEUED = 2  # chunks at a worker: one at work, one to go on with
_SLOTS = 3  # chunks of pixels a worker: those, and one that waits for its turn


class LoaderProcesses:
    """A few processes; a context manager, at the end of which they are gone.

    Parameters
    ----------
    prepare : Prepare
    count : int
        Processes.
    """

    def __init__(self, prepare: ChunkLoader, count: int):
        self._prepare = prepare
        shape = (_SLOTS * count, *prepare.shape)
        self._pixels = torch.from_numpy(_shared(int(np.prod(shape)), np.dtype(np.uint8)).reshape(shape))
        self._places = _shared(count, np.dtype(np.int64))
        self._places[:] = -1
        self._pipes: list[multiprocessing.connection.Connection] = []
        self._processes: list[Any] = []

    def __enter__(self) -> LoaderProcesses:
        context = multiprocessing.get_context("fork")
        try:
            for number in range(len(self._places)):
                here, there = context.Pipe()
                self._pipes.append(here)
                process = context.Process(target=self._serve, args=(number, there), daemon=True)
                before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until the worker has its own handlers
                try:
                    process.start()
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
                there.close()
                self._processes.append(process)
        except BaseException as error:
            self.__exit__()
            if isinstance(error, OSError):
                raise SourceError(f"cannot start worker processes: {error.strerror}; use fewer --workers") from error
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()

    def chunks(self) -> Iterator[Chunk]:
        """Yield every chunk, in order; a bounded number is prepared ahead.

        Raises
        ------
        SourceError
            A worker died.
        """
        free = deque(range(len(self._pixels)))
        queued = [0] * len(self._pipes)
        done: dict[int, tuple[int, Chunk]] = {}
        asked = 0
        for number in range(len(self._prepare)):
            while number not in done:
                for worker in sorted(range(len(queued)), key=queued.__getitem__):
                    if queued[worker] < _QUEUED and free and asked < len(self._prepare):
                        self._send(worker, (asked, free.popleft()))
                        queued[worker] += 1
                        asked += 1
                for worker, (which, slot, chunk) in self._answers():
                    queued[worker] -= 1
                    done[which] = slot, chunk
            slot, chunk = done.pop(number)
            chunk.pixels = self._pixels[slot, : len(chunk.to_embed)].clone()
            free.append(slot)
            yield chunk

    def _answers(self) -> Iterator[tuple[int, tuple[int, int, Chunk]]]:
        """Wait, and yield what workers have sent."""
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
        process, position = self._processes[worker], int(self._places[worker])
        process.join(10)
        code = process.exitcode
        how = f" of {signal.Signals(-code).name}" if code is not None and code < 0 else ""
        where = f" with {self._prepare.keys[position]!r}" if position >= 0 else ""
        return SourceError(
            f"a worker process died{how}{where} (out of memory, or an image that its decoder cannot take); what was "
            "finished is kept: run again, with fewer --workers if memory is short"
        )

    # --- in the worker ---------------------------------------------------------------------------

    def _serve(self, worker: int, pipe: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends the workers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        for inherited in self._pipes:  # else nobody would see the parent's end of a pipe close
            inherited.close()
        keep_freed_memory()
        torch.set_num_threads(1)  # also as OpenMP's threads do not outlive a fork
        with contextlib.suppress(EOFError, OSError):  # of the pipe alone: the parent is gone
            while True:
                number, slot = pipe.recv()
                try:
                    answer: Any = (number, slot, self._chunk(worker, number, slot))
                except Exception as error:  # a bug, in a source say: the parent raises it
                    answer = picklable_error(error)
                pipe.send(answer)

    def _chunk(self, worker: int, number: int, slot: int) -> Chunk:
        def at(position: int) -> None:
            self._places[worker] = position

        chunk = self._prepare(number, self._pixels[slot], at)
        chunk.pixels = chunk.pixels[:0].clone()  # they are in the slot
        at(-1)
        return chunk


def picklable_error(error: Exception) -> Exception:
    """Return the same error without its traceback; what cannot go through a pipe for certain, in words."""
    known = isinstance(error, PUCacheError) or type(error).__module__ == "builtins"
    if known and all(isinstance(argument, str | int | bytes) for argument in error.args):
        return type(error)(*error.args)
    return RuntimeError(f"{type(error).__name__}: {error}")


def _shared(count: int, dtype: np.dtype) -> np.ndarray:
    """Zeros that a fork shares."""
    return np.frombuffer(mmap.mmap(-1, max(1, count * dtype.itemsize)), dtype, count)
