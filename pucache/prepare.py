"""Everything that happens to an image before the encoder: read, hashed, looked up, decoded, resized.

Runs in threads or in worker processes, a chunk of images at a time; one bad image is an outcome of
its own and costs the others nothing.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from .decoding import decode
from .errors import ImageError
from .images import UNKNOWN, Source, digest
from .preprocess import Preprocess

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


class Prepare(Dataset[Chunk]):
    """Prepares chunk after chunk of the images at hand.

    Parameters
    ----------
    source : Source
    preprocess : Preprocess
    keys : list of str
    sizes : list of int
        Bytes of each image when it was listed, or `UNKNOWN`.
    known : ndarray of S32
        Sorted digests of images that need not be embedded.
    rows : int
        Images in a chunk.
    leave : callable, optional
        Tells from a file's bytes whether it is left to the device to decode.
    workers : int
        Processes that run this, for which it keeps where they are.
    """

    def __init__(
        self,
        source: Source,
        preprocess: Preprocess,
        keys: list[str],
        sizes: list[int],
        known: np.ndarray,
        *,
        rows: int,
        leave: Callable[[bytes], bool] | None = None,
        workers: int = 0,
    ):
        self._source, self._preprocess = source, preprocess
        self._keys, self._sizes, self._known, self._rows, self._leave = keys, sizes, known, rows, leave
        self._places = torch.full((workers, 2), -1, dtype=torch.int64).share_memory_() if workers else None

    def __len__(self) -> int:
        return -(-len(self._keys) // self._rows)

    def __getitem__(self, number: int) -> Chunk:
        first = number * self._rows
        positions = range(first, min(len(self._keys), first + self._rows))
        pixels = torch.empty((len(positions), *self._preprocess.input_size, 3), dtype=torch.uint8)
        chunk = Chunk(first, [], [], pixels, {}, [0.0] * len(STAGES))
        for position in positions:
            self._say_where(position)
            try:
                chunk.outcomes.append(self._one(position, chunk))
            except ImageError as error:
                chunk.outcomes.append(str(error))
        self._say_where(-1)
        chunk.pixels = pixels[: len(chunk.to_embed)]
        return chunk

    def _one(self, position: int, chunk: Chunk) -> bytes:
        times = [time.perf_counter()]
        try:
            data = self._read(position)
            times.append(time.perf_counter())
            content = digest(data)
            times.append(time.perf_counter())
            if self._is_known(content):
                pass
            elif self._leave is not None and self._leave(data):
                chunk.undecoded[position] = data
            else:
                image = decode(data, self._preprocess.sufficient)
                times.append(time.perf_counter())
                chunk.pixels[len(chunk.to_embed)] = self._preprocess(image)
                chunk.to_embed.append(position)
            return content
        finally:
            times.append(time.perf_counter())
            for stage, (began, ended) in enumerate(itertools.pairwise(times)):
                chunk.seconds[stage] += ended - began

    def _read(self, position: int) -> bytes:
        data = self._source.read(self._keys[position])
        listed = self._sizes[position]
        if listed not in (UNKNOWN, len(data)):
            raise ImageError(f"changed while it was read: {listed} bytes when listed, {len(data)} now; embed again")
        return data

    def _is_known(self, content: bytes) -> bool:
        if not len(self._known):
            return False
        at = np.searchsorted(self._known, np.bytes_(content))
        return self._known[at : at + 1].tobytes() == content  # as bytes: numpy's text drops zero bytes at the end

    # --- where a worker is, for whom it may concern once it is dead ---------------------------------

    def _say_where(self, position: int) -> None:
        worker = get_worker_info()
        if worker is not None and self._places is not None:
            self._places[worker.id, 0], self._places[worker.id, 1] = os.getpid(), position

    def place_of(self, message: str) -> str | None:
        """Key at which a worker was whose process id `message` names."""
        processes = re.findall(r"\d+", message)
        for process, position in [] if self._places is None else self._places.tolist():
            if position >= 0 and str(process) in processes:
                return self._keys[position]
        return None
