"""The training images of a run: decoded once or in every epoch, the same for all processes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from ..devices import cores
from ..errors import SourceError
from ..images.listing import Listing
from ..images.source import Source
from ..progress import Progress
from . import process_group
from .decoded_images import MappedImages, decode_all, has_room
from .squash import Squash
from .streamed_images import StreamedImages

log = logging.getLogger("pucache")

DECODE_MODES = ("auto", "once", "always")
_FEW_IMAGES = 1000  # fewer than these do not repay the start of worker processes


class TrainingImages(Protocol):
    """Images by row number, uint8 (D, D, 3) each."""

    keys: list[str]
    failures: dict[str, str]

    def batches(self, plan: Iterable[np.ndarray]) -> Iterator[torch.Tensor]:
        """Yield the images of each array of row numbers, (b, D, D, 3) uint8, prepared ahead."""


def list_images(source: Source) -> Listing:
    """List the images of a source.

    Raises
    ------
    SourceError
        There are none.
    """
    listing = source.scan()
    if not listing.keys:
        raise SourceError(f"no image in {source.name}")
    return listing


def open_images(
    source: Source,
    listing: Listing,
    folder: Path,
    squash: Squash,
    *,
    device: torch.device,
    decode: str,
    workers: int | None,
    progress: Progress,
) -> TrainingImages:
    """Open the training images; the first process decodes them for all.

    Parameters
    ----------
    source : Source
    listing : Listing
    folder : Path
        Run folder, which receives the decoded images.
    squash : Squash
    device : torch.device
    decode : {"auto", "once", "always"}
        ``auto`` means ``once`` if the disk of `folder` has room.
    workers : int, optional
        Number of processes that decode. By default one per core, at most 16; for few images none.
    progress : Progress

    Returns
    -------
    MappedImages or StreamedImages
    """
    is_first, side = process_group.rank() == 0, squash.input_size[0]
    if decode == "auto":
        room = process_group.broadcast_from_first(is_first and has_room(folder, len(listing.keys), side))
        decode = "once" if room else "always"
        if is_first and not room:
            log.warning("%s has no room for the decoded images; they are decoded in every epoch", folder)
    if decode == "always":
        return StreamedImages(source, listing, squash)
    if is_first:
        if workers is None:
            workers = min(16, cores()) if len(listing.keys) > _FEW_IMAGES else 0
        decode_all(source, listing, folder, squash, workers=workers, progress=progress)
    process_group.barrier()
    return MappedImages(folder, listing, side, device)
