"""Forward passes of whole batches, several at once, in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from ..encoders.encoder import Encoder
from ..images.loading import Chunk
from .profile import Profile


@dataclass
class EmbeddedImages:
    """Result of a forward pass."""

    positions: list[int]  # of the images, rising
    X: np.ndarray  # (len(positions), d) float32


class BatchRunner:
    """Fills batches of the encoder across chunks; runs a bounded number of passes of about `images_per_call` images."""

    def __init__(self, encoder: Encoder, threads: ThreadPoolExecutor, images_per_call: int, profile: Profile):
        self._encoder, self._threads, self._profile = encoder, threads, profile
        self._images_per_call = images_per_call
        self._pixels: deque[tuple[torch.Tensor, list[int]]] = deque()  # waiting, with positions
        self._waiting = 0  # images in `_pixels`
        self._running: deque[Future[EmbeddedImages]] = deque()
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

    def finished(self) -> Iterator[EmbeddedImages]:
        """Yield finished passes; waits for one where too many are running."""
        while self._running and (len(self._running) > 2 * self._encoder.runtime.streams or self._running[0].done()):
            yield self._running.popleft().result()

    def flush(self) -> Iterator[EmbeddedImages]:
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

    def _embed(self, pieces: list[torch.Tensor], positions: list[int]) -> EmbeddedImages:
        with self._profile.forward_pass():
            pixels = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
            return EmbeddedImages(positions, self._encoder.runtime(pixels))


def whole_batches(batch_size: int, images: int) -> int:
    """Number of images to hand over at once: a batch, or as many batches as `images` hold."""
    return batch_size * max(1, images // batch_size)
