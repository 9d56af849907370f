"""The choice of cuDNN's kernels."""

from __future__ import annotations

import threading

import torch


class TimedKernels:
    """Lets cuDNN time its kernels once for each shape and keep the fastest: a context for passes of fixed shapes.

    The setting is one for the process. It is restored when the last of the threads within leaves.
    """

    def __init__(self) -> None:
        self._lock, self._within, self._before = threading.Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._within:
                self._before = torch.backends.cudnn.benchmark
                torch.backends.cudnn.benchmark = True
            self._within += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._within -= 1
            if not self._within:
                torch.backends.cudnn.benchmark = self._before


TIMED_KERNELS = TimedKernels()
