"""Rows of the batches of the minibatch solver, on a GPU.

Batches are gathered on the device from the rows that lie there. What does not fit there is read and uploaded
batch by batch in each epoch, while the device trains on the batches before.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..storage.rows import row_slices
from .device_rows import free_memory, upload
from .problem import HeadProblem

WEIGHTS_SHARE = 0.5  # of the free memory that row weights may take
log = logging.getLogger("pucache")


@dataclass(frozen=True)
class Slots:
    """Positions of the rows in the batches; all batches have one size, so some slots of the last are empty.

    Attributes
    ----------
    rows : ndarray of int64, (batches, size)
        Row in each slot; 0 in empty ones. The positives come first in each batch.
    positive, unlabelled : ndarray of bool, (batches, size)
        Whether the row in a slot is one; both False in empty slots.
    """

    rows: np.ndarray
    positive: np.ndarray
    unlabelled: np.ndarray

    @classmethod
    def shuffled(cls, is_positive: np.ndarray, size: int, generator: torch.Generator) -> Slots:
        """Shuffle the rows and cut them into batches.

        Parameters
        ----------
        is_positive : ndarray of bool, (n,)
        size : int
            Rows of a batch; all rows where there are fewer.
        generator : torch.Generator
            Of the CPU.
        """
        n = len(is_positive)
        size = min(size, n)
        shape = (-(-n // size), size)
        rows, kind = np.zeros(shape, np.int64), np.full(shape, 2, np.int8)
        rows.ravel()[:n] = torch.randperm(n, generator=generator).numpy()
        kind.ravel()[:n] = ~is_positive[rows.ravel()[:n]]
        order = np.argsort(kind, axis=1, kind="stable")
        kind = np.take_along_axis(kind, order, axis=1)
        return cls(rows=np.take_along_axis(rows, order, axis=1), positive=kind == 0, unlabelled=kind == 1)

    @cached_property
    def positive_slots(self) -> np.ndarray:
        """Numbers of the slots of positives, int64, batch by batch."""
        return np.flatnonzero(self.positive)

    @cached_property
    def positive_rows(self) -> np.ndarray:
        """Rows of the positives, int64, ascending."""
        return np.sort(self.rows[self.positive])


class Lag:
    """Keeps the host no more than two marks ahead of the device, which bounds what is queued."""

    def __init__(self) -> None:
        self._events: deque[torch.cuda.Event] = deque()

    def mark(self) -> None:
        """Mark what has been queued so far, and wait for the second mark before."""
        event = torch.cuda.Event(blocking=True)
        event.record()
        self._events.append(event)
        if len(self._events) > 2:
            self._events.popleft().synchronize()


class BatchRows:
    """X and the row weights of batches, gathered on the device as far as they lie there.

    Parameters
    ----------
    problem : HeadProblem
    slots : Slots
    """

    def __init__(self, problem: HeadProblem, slots: Slots):
        self._device, self._weights = problem.device, problem.weights
        self._stored, self._numbers = problem.design.stored_rows()
        self._resident_weights = self._upload_weights()
        self._host_slots, self._host_rows = slots, slots.rows.copy()
        self._device_numbers, self._rows, self._positive_slots, self._positive_rows = (
            upload(values, self._device)
            for values in (self._numbers, slots.rows, slots.positive_slots, slots.positive_rows)
        )
        self._lag = Lag()

    @property
    def streams(self) -> bool:
        """Whether X or the row weights are uploaded in each epoch."""
        return self._stored.resident is None or (self._weights is not None and self._resident_weights is None)

    def shuffle(self, permutation: Tensor, order: Tensor) -> None:
        """Distribute the positives anew over their slots, and order the batches.

        Parameters
        ----------
        permutation : tensor of int64, (positives,)
        order : tensor of int64, (batches,)
            Both on the host.
        """
        permuted, self.order = (upload(values.numpy(), self._device) for values in (permutation, order))
        self._rows.view(-1).index_copy_(0, self._positive_slots, self._positive_rows.index_select(0, permuted))
        if self.streams:
            slots = self._host_slots
            self._host_rows.reshape(-1)[slots.positive_slots] = slots.positive_rows[permutation.numpy()]
            self._host_order = order.numpy()

    def take(self, part: slice) -> tuple[Tensor, Tensor | None]:
        """Rows of consecutive batches of the epoch.

        Parameters
        ----------
        part : slice
            Of the batches in their order.

        Returns
        -------
        X : tensor of float16 or float32, (batches * size, d)
            As it is stored.
        weights : tensor of float32, (batches * size, C), or None
        """
        rows = self._rows.index_select(0, self.order[part]).view(-1)
        on_host = self._host_rows[self._host_order[part]].reshape(-1) if self.streams else None
        if self._stored.resident is not None:
            X = self._stored.resident.index_select(0, self._device_numbers.index_select(0, rows))
        else:
            numbers, positions = np.unique(self._numbers[on_host], return_inverse=True)  # a file is read in its order
            X = self._stored.take(numbers).index_select(0, upload(positions, self._device))
        weights = None
        if self._resident_weights is not None:
            weights = self._resident_weights.index_select(0, rows)
        elif self._weights is not None:
            weights = upload(np.asarray(self._weights[on_host], np.float32), self._device)
        if self.streams:
            self._lag.mark()  # which bounds the pinned memory
        return X, weights

    def _upload_weights(self) -> Tensor | None:
        """Row weights on the device; None where there are none, or where they do not fit."""
        weights = self._weights
        if weights is None:
            return None
        size, free = 4 * weights.size, free_memory(self._device)
        if size > WEIGHTS_SHARE * free:
            log.warning(
                "row weights of %.1f GiB do not fit into %.1f GiB of free memory on %s: "
                "they are uploaded again in every pass, which takes longer",
                *(size / 2**30, free / 2**30, self._device),
            )
            return None
        resident = torch.empty(weights.shape, device=self._device)
        for rows in row_slices(*weights.shape):
            resident[rows] = upload(np.asarray(weights[rows], np.float32), self._device)
        return resident
