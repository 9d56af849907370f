"""The interface between `embed` and the machines that do the work: a job, its results, and the engine."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..encoders.encoder import Encoder
from ..images.device_decoding import device_can_decode
from ..images.loading import Chunk, ChunkLoader
from ..images.source import Source
from .batching import EmbeddedImages
from .content_lookup import ContentLookup
from .profiling import Profile

if TYPE_CHECKING:
    import torch


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
    lookup : ContentLookup
        Embeddings that are copied instead, by content.
    """

    source: Source
    encoder: Encoder
    keys: list[str]
    size_mtime: np.ndarray
    lookup: ContentLookup

    def loader(self, rows: int) -> ChunkLoader:
        """Loader of the images, which prepares chunks of `rows` of them for the encoder."""
        return ChunkLoader(
            self.source,
            self.encoder.preprocess,
            self.keys,
            self.size_mtime[:, 0].tolist(),
            chunk_size=rows,
            embedded_digests=self.lookup.sorted_digests,
            leave_to_device=device_can_decode if self.encoder.decoder else None,
        )


Results = Generator[Chunk | EmbeddedImages, None, None]
"""Every chunk, in any order, and the embeddings of its images beside it or later."""


class Engine(Protocol):
    """Runs jobs: `pucache.embedding.local_engine.LocalEngine` on this machine, or
    `pucache.embedding.distributed.engine.RayEngine` on many.
    """

    def device(self, requested: str | torch.device = "auto") -> str | torch.device:
        """Device on which the engine will run encoders, as `pucache.load_encoder` takes it.

        Parameters
        ----------
        requested : str or torch.device
            auto, cpu, cuda, or cuda:N on this machine.

        Returns
        -------
        str or torch.device
            A `torch.device` may be one of another machine.

        Raises
        ------
        ValueError
            The engine has no such device.
        """

    def __call__(self, job: Job, profile: Profile) -> Results:
        """Run a job."""
