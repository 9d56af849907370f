"""What is to be embedded, and what an engine gives back: the seam between `embed` and where the work is done."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from ..encoders.encoder import Encoder
from ..images.device_decoding import device_can_decode
from ..images.loading import Chunk, ChunkLoader
from ..images.source import Source
from .batching import Embedded
from .parts import Known
from .profiling import Profile


@dataclass(frozen=True)
class Job:
    """Images that have no row yet.

    Attributes
    ----------
    source : Source
    encoder : Encoder
    keys : list of str
        In the order of the listing.
    size_mtime : ndarray of int64, (n, 2)
    known : Known
        Embeddings that are looked up by content instead.
    """

    source: Source
    encoder: Encoder
    keys: list[str]
    size_mtime: np.ndarray
    known: Known

    def prepare(self, rows: int) -> ChunkLoader:
        """Everything that happens to the images before the encoder, in chunks of so many."""
        leave = device_can_decode if self.encoder.decoder else None
        sizes = self.size_mtime[:, 0].tolist()
        known = self.known.sorted
        return ChunkLoader(
            self.source,
            self.encoder.preprocess,
            self.keys,
            sizes,
            chunk_size=rows,
            embedded_digests=known,
            leave_to_device=leave,
        )


Results = Generator[Chunk | Embedded, None, None]
"""What became of the images: every chunk, and beside or after it the embeddings of what is in it."""


class Engine(Protocol):
    """Does jobs somewhere: `pucache.embedding.local_engine.Local` on this machine, `pucache.embedding.distributed.engine.RayEngine` on many."""

    def device(self, asked: str = "auto") -> torch.device:
        """Device that encoders will run on; raise `ValueError` where there is none of that name.

        Parameters
        ----------
        asked : str
            auto, cpu, cuda, or cuda:N on this machine.

        Returns
        -------
        torch.device
            Which need not be of this machine.
        """

    def __call__(self, job: Job, profile: Profile) -> Results:
        """Do a job."""
