"""Training images that are decoded anew in every epoch, for disks without room for the decoded ones."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from ..devices import cores
from ..errors import ImageError, SourceError
from ..images.decoding import decode
from ..images.listing import Listing
from ..images.source import Source
from .squash import Squash

log = logging.getLogger("pucache")

_AHEAD = 3  # batches that are decoded at the same time
_MIN_SAMPLE = 1000  # images seen before a share of failures over one half ends the training


class StreamedImages:
    """Images that threads read and decode when they are needed; an unreadable one becomes black.

    Parameters
    ----------
    source : Source
    listing : Listing
    squash : Squash
    """

    def __init__(self, source: Source, listing: Listing, squash: Squash):
        self.keys = listing.keys
        self.failures: dict[str, str] = {}
        self._source, self._squash = source, squash
        self._decoded = 0

    def batches(self, plan: Iterable[np.ndarray]) -> Iterator[torch.Tensor]:
        """Yield batches; up to three are decoded at the same time."""
        with ThreadPoolExecutor(cores()) as threads:
            pending: deque[list[Future[torch.Tensor]]] = deque()
            try:
                for rows in plan:
                    pending.append([threads.submit(self._decode, int(row)) for row in rows])
                    if len(pending) >= _AHEAD:
                        yield self._stack(pending.popleft())
                while pending:
                    yield self._stack(pending.popleft())
            finally:
                threads.shutdown(wait=False, cancel_futures=True)

    def _decode(self, row: int) -> torch.Tensor:
        key = self.keys[row]
        try:
            return self._squash(decode(self._source.read(key), self._squash.sufficient_side)).contiguous()
        except ImageError as error:
            if key not in self.failures:
                self.failures[key] = str(error)
                log.warning("%r is left black: %s", key, error)
            return torch.zeros(*self._squash.input_size, 3, dtype=torch.uint8)

    def _stack(self, images: list[Future[torch.Tensor]]) -> torch.Tensor:
        batch = torch.stack([image.result() for image in images])
        self._decoded += len(batch)
        if 2 * len(self.failures) > min(len(self.keys), max(self._decoded, _MIN_SAMPLE)):
            key, reason = next(iter(self.failures.items()))
            raise SourceError(f"most images of {self._source.name} cannot be used ({key!r}: {reason})")
        return batch
