"""Everything that happens to an image before the encoder: read, hashed, looked up, decoded, resized.

Runs in threads or in worker processes, a chunk of images at a time; one bad image is an outcome of
its own and costs the others nothing.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from PIL import Image

from ..errors import ImageError
from .decoding import decode
from .source import UNKNOWN, Source, image_digest

STAGES = ("reading", "hashing", "decoding", "resizing")


@dataclass
class Chunk:
    """What became of a few images: one outcome each, and the pixels of those to embed."""

    first: int  # position of the first image
    outcomes: list[bytes | str]  # content digest, or the reason of a failure
    to_embed: list[int]  # positions
    pixels: torch.Tensor  # (len(to_embed), H, W, 3) uint8
    undecoded: dict[int, bytes]  # files that are left to the device to decode, by position
    seconds: list[float]  # spent in each of STAGES


class Resizer(Protocol):
    """Brings an image to the size that is wanted; picklable."""

    @property
    def input_size(self) -> tuple[int, int]:
        """(H, W)."""

    @property
    def sufficient_side(self) -> int:
        """Short side in pixels beyond which more detail of the original hardly matters."""

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Return uint8 pixels, (H, W, 3); raise `ImageError` where that cannot be."""


class ChunkLoader:
    """Prepares chunk after chunk of the images at hand.

    Parameters
    ----------
    source : Source
    preprocess : Resize
    keys : list of str
    sizes : list of int
        Bytes of each image when it was listed, or `UNKNOWN`.
    known : ndarray of S32
        Sorted digests of images that need not be embedded.
    rows : int
        Images in a chunk.
    leave : callable, optional
        Tells from a file's bytes whether it is left to the device to decode.

    Attributes
    ----------
    shape : tuple of int
        Of the pixels of a chunk: (rows, H, W, 3).
    """

    def __init__(
        self,
        source: Source,
        preprocess: Resizer,
        keys: list[str],
        sizes: list[int],
        known: np.ndarray,
        *,
        rows: int,
        leave: Callable[[bytes], bool] | None = None,
    ):
        self.keys = keys
        self.shape = (rows, *preprocess.input_size, 3)
        self._source, self._preprocess = source, preprocess
        self._sizes, self._known, self._leave = sizes, known, leave

    def __len__(self) -> int:
        return -(-len(self.keys) // self.shape[0])

    def __call__(
        self, number: int, pixels: torch.Tensor | None = None, at: Callable[[int], None] | None = None
    ) -> Chunk:
        """Prepare one chunk.

        Parameters
        ----------
        number : int
        pixels : uint8 tensor of `shape`, optional
            Where to put the pixels; new memory by default.
        at : callable, optional
            Told the position of each image before it is read.
        """
        rows = self.shape[0]
        first = number * rows
        if pixels is None:
            pixels = torch.empty(self.shape, dtype=torch.uint8)
        chunk = Chunk(first, [], [], pixels, {}, [0.0] * len(STAGES))
        for position in range(first, min(len(self.keys), first + rows)):
            if at is not None:
                at(position)
            try:
                chunk.outcomes.append(self._one(position, chunk))
            except ImageError as error:
                chunk.outcomes.append(str(error))
        chunk.pixels = pixels[: len(chunk.to_embed)]
        return chunk

    def _one(self, position: int, chunk: Chunk) -> bytes:
        times = [time.perf_counter()]
        try:
            data = self._read(position)
            times.append(time.perf_counter())
            content = image_digest(data)
            times.append(time.perf_counter())
            if self._is_known(content):
                pass
            elif self._leave is not None and self._leave(data):
                chunk.undecoded[position] = data
            else:
                image = decode(data, self._preprocess.sufficient_side)
                times.append(time.perf_counter())
                chunk.pixels[len(chunk.to_embed)] = self._preprocess(image)
                chunk.to_embed.append(position)
            return content
        finally:
            times.append(time.perf_counter())
            for stage, (began, ended) in enumerate(itertools.pairwise(times)):
                chunk.seconds[stage] += ended - began

    def _read(self, position: int) -> bytes:
        data = self._source.read(self.keys[position])
        listed = self._sizes[position]
        if listed not in (UNKNOWN, len(data)):
            raise ImageError(f"changed while it was read: {listed} bytes when listed, {len(data)} now; embed again")
        return data

    def _is_known(self, content: bytes) -> bool:
        if not len(self._known):
            return False
        at = np.searchsorted(self._known, np.bytes_(content))
        return self._known[at : at + 1].tobytes() == content  # as bytes: numpy's text drops zero bytes at the end


def load_in_threads(prepare: ChunkLoader, threads: ThreadPoolExecutor, ahead: int) -> Iterator[Chunk]:
    """Yield every chunk, in order, so many being prepared ahead."""
    coming: deque[Future[Chunk]] = deque()
    for number in range(len(prepare)):
        coming.append(threads.submit(prepare, number))
        if len(coming) > ahead:
            yield coming.popleft().result()
    while coming:
        yield coming.popleft().result()
