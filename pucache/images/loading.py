"""Loading of images for an encoder: read, hash, look up, decode and resize.

Images are loaded in chunks, by threads or worker processes. An image that fails is recorded in its chunk
and does not affect the others.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from PIL import Image

from ..errors import ImageError
from .decoding import decode
from .source import UNKNOWN, Source, image_digest

if TYPE_CHECKING:
    import torch

STAGES = ("reading", "hashing", "decoding", "resizing")


@dataclass
class Chunk:
    """Consecutive images after loading.

    Attributes
    ----------
    first : int
        Position of the first image.
    outcomes : list of bytes or str
        For each image its content digest, or the reason why it failed.
    to_embed : list of int
        Positions of the images in ``pixels``, ascending.
    pixels : uint8 tensor, (len(to_embed), H, W, 3)
    undecoded : dict of int to bytes
        Files for the device to decode, by position.
    seconds : list of float
        Time spent in each of `STAGES`.
    """

    first: int
    outcomes: list[bytes | str]
    to_embed: list[int]
    pixels: torch.Tensor
    undecoded: dict[int, bytes]
    seconds: list[float]


class Resizer(Protocol):
    """Brings an image to a fixed size; picklable."""

    @property
    def input_size(self) -> tuple[int, int]:
        """(H, W)."""

    @property
    def sufficient_side(self) -> int:
        """Length in pixels beyond which the shorter side of the original adds hardly any detail."""

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Return uint8 pixels, (H, W, 3); raise `ImageError` for an image that cannot be resized."""


class ChunkLoader:
    """Loads the images of a source, a chunk at a time.

    Parameters
    ----------
    source : Source
    resize : Resizer
    keys : list of str
        Images to load; an image's position is its index in this list.
    sizes : list of int
        Bytes of each image when it was listed, or `UNKNOWN`.
    chunk_size : int
        Images per chunk.
    embedded_digests : ndarray of S32, optional
        Sorted content digests of images whose embeddings exist; these are neither decoded nor embedded.
    leave_to_device : callable, optional
        Takes a file's bytes; true where the device decodes the file.

    Attributes
    ----------
    shape : tuple of int
        (chunk_size, H, W, 3), the shape of the pixels of a full chunk.
    """

    def __init__(
        self,
        source: Source,
        resize: Resizer,
        keys: list[str],
        sizes: list[int],
        *,
        chunk_size: int,
        embedded_digests: np.ndarray | None = None,
        leave_to_device: Callable[[bytes], bool] | None = None,
    ):
        self.keys = keys
        self.shape = (chunk_size, *resize.input_size, 3)
        self._source, self._resize, self._sizes = source, resize, sizes
        self._embedded_digests = np.empty(0, "S32") if embedded_digests is None else embedded_digests
        self._leave_to_device = leave_to_device

    def __len__(self) -> int:
        """Number of chunks."""
        return -(-len(self.keys) // self.shape[0])

    def __call__(
        self, number: int, pixels: torch.Tensor | None = None, *, on_image: Callable[[int], None] | None = None
    ) -> Chunk:
        """Load one chunk.

        Parameters
        ----------
        number : int
            0 <= number < len(self).
        pixels : uint8 tensor of `shape`, optional
            Where to write the pixels; allocated by default.
        on_image : callable, optional
            Called with the position of each image before it is read.

        Returns
        -------
        Chunk
        """
        chunk_size = self.shape[0]
        first = number * chunk_size
        if pixels is None:
            import torch

            pixels = torch.empty(self.shape, dtype=torch.uint8)
        chunk = Chunk(first=first, outcomes=[], to_embed=[], pixels=pixels, undecoded={}, seconds=[0.0] * len(STAGES))
        for position in range(first, min(len(self.keys), first + chunk_size)):
            if on_image is not None:
                on_image(position)
            try:
                chunk.outcomes.append(self._load(position, chunk))
            except ImageError as error:
                chunk.outcomes.append(str(error))
        chunk.pixels = pixels[: len(chunk.to_embed)]
        return chunk

    def _load(self, position: int, chunk: Chunk) -> bytes:
        """Load one image into the chunk and return its digest."""
        times = [time.perf_counter()]
        try:
            data = self._read(position)
            times.append(time.perf_counter())
            digest = image_digest(data)
            times.append(time.perf_counter())
            if self._is_embedded(digest):
                pass
            elif self._leave_to_device is not None and self._leave_to_device(data):
                chunk.undecoded[position] = data
            else:
                image = decode(data, self._resize.sufficient_side)
                times.append(time.perf_counter())
                chunk.pixels[len(chunk.to_embed)] = self._resize(image)
                chunk.to_embed.append(position)
            return digest
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

    def _is_embedded(self, digest: bytes) -> bool:
        if not len(self._embedded_digests):
            return False
        index = np.searchsorted(self._embedded_digests, np.bytes_(digest))
        # compared as bytes, because numpy's S32 drops trailing zero bytes
        return self._embedded_digests[index : index + 1].tobytes() == digest


def load_in_threads(loader: ChunkLoader, pool: ThreadPoolExecutor, ahead: int) -> Iterator[Chunk]:
    """Yield every chunk, in order; up to ``ahead`` chunks are loaded in advance.

    Parameters
    ----------
    loader : ChunkLoader
    pool : ThreadPoolExecutor
    ahead : int

    Yields
    ------
    Chunk
    """
    pending: deque[Future[Chunk]] = deque()
    for number in range(len(loader)):
        pending.append(pool.submit(loader, number))
        if len(pending) > ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
