"""Prepared images -> forward passes of whole batches, several at once, in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from ..encoders.encoder import Encoder
from ..images.loading import Chunk
from .profiling import ON_DEVICE, Profile


@dataclass
class Embedded:
    """What a forward pass gave."""

    positions: list[int]  # of the images, rising
    X: np.ndarray  # (len(positions), d) float32
    failures: dict[int, str]  # position to the reason; its row means nothing


class Passes:
    """Packs pixels into the encoder's batches and runs a bounded number of passes beside each other.

    Parameters
    ----------
    encoder : Encoder
    hands : ThreadPoolExecutor
        Threads to run them in.
    rows : int
        About how many images to hand over at once, at least; always a whole number of batches.
    profile : Profile
    """

    def __init__(self, encoder: Encoder, hands: ThreadPoolExecutor, rows: int, profile: Profile):
        self._encoder, self._hands, self._rows, self._profile = encoder, hands, rows, profile
        self._pieces: deque[tuple[torch.Tensor, list[int]]] = deque()
        self._waiting = 0
        self._undecoded: dict[int, bytes] = {}
        self._running: deque[Future[Embedded]] = deque()
        self._started = False

    def add(self, chunk: Chunk) -> None:
        """Take the pixels of a chunk, and the files in it that the device decodes; run what makes whole batches."""
        if chunk.to_embed or chunk.undecoded:
            self._start()
        rows = whole_batches(self._encoder.runtime.batch_size, self._rows)
        if chunk.to_embed:
            self._pieces.append((chunk.pixels, chunk.to_embed))
            self._waiting += len(chunk.to_embed)
        while self._waiting >= rows:
            self._submit(rows)
        self._undecoded.update(chunk.undecoded)
        while len(self._undecoded) >= rows:
            self._submit_undecoded(rows)

    def waiting_since(self, now: int) -> int:
        """Position of the first image that waits for others to fill a batch; `now` where none does."""
        return min([now, *(at[0] for _, at in self._pieces), *self._undecoded])

    def _start(self) -> None:
        if not self._started:
            with self._profile.stage("starting"):
                self._hands.submit(self._encoder.runtime.start).result()  # there, as its threads compile for themselves
            self._started = True

    def finished(self) -> Iterator[Embedded]:
        """Positions and embeddings of what is done; waits where too much is under way."""
        while self._running and (len(self._running) > 2 * self._encoder.runtime.streams or self._running[0].done()):
            yield self._running.popleft().result()

    def rest(self) -> Iterator[Embedded]:
        """Run what is less than a batch too, and wait for all."""
        if self._waiting:
            self._submit(self._waiting)
        if self._undecoded:
            self._submit_undecoded(len(self._undecoded))
        while self._running:
            yield self._running.popleft().result()

    def _submit(self, count: int) -> None:
        pieces: list[torch.Tensor] = []
        at: list[int] = []
        while len(at) < count:
            pixels, positions = self._pieces.popleft()
            take = min(len(positions), count - len(at))
            pieces.append(pixels[:take])
            at += positions[:take]
            if take < len(positions):
                self._pieces.appendleft((pixels[take:], positions[take:]))
        self._waiting -= count
        self._running.append(self._hands.submit(self._embed, pieces, at))

    def _submit_undecoded(self, count: int) -> None:
        some = {position: self._undecoded.pop(position) for position in list(self._undecoded)[:count]}
        self._running.append(self._hands.submit(self._decode_and_embed, some))

    def _embed(self, pieces: list[torch.Tensor], at: list[int]) -> Embedded:
        with self._profile.forward():
            return Embedded(at, self._encoder.forward(pieces[0] if len(pieces) == 1 else torch.cat(pieces)), {})

    def _decode_and_embed(self, files: dict[int, bytes]) -> Embedded:
        assert self._encoder.decoder is not None
        at = list(files)
        with self._profile.stage(ON_DEVICE):
            pixels, failures = self._encoder.decoder(list(files.values()))
        with self._profile.forward():
            X = self._encoder.forward(pixels)
            return Embedded(at, X, {at[number]: reason for number, reason in failures.items()})


def whole_batches(batch: int, rows: int) -> int:
    """Images to hand over at once: a batch, or as many small ones as `rows` hold."""
    return batch * max(1, rows // batch)
