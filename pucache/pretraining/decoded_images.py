"""Training images that are decoded once, into a file of the run folder that is memory-mapped."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from ..devices import cores
from ..errors import SourceError
from ..images.listing import Listing
from ..images.loading import Chunk, ChunkLoader, LoaderProcesses, load_in_threads
from ..images.source import Source
from ..progress import Progress
from ..storage.atomic import check_writable, replacing
from ..storage.prefetch import prefetch
from .squash import Squash

log = logging.getLogger("pucache")

_PIXELS, _DESCRIPTION = "images.u8", "images.json"
_CHUNK = 64  # images per task of a worker
_RESERVE = 1 << 30  # bytes of disk that are left free
_GPU_SHARE = 0.25  # share of the free GPU memory that the images may take


def listing_digest(listing: Listing) -> str:
    """SHA-256 of the keys and file sizes of a listing, as hex."""
    digest = hashlib.sha256()
    for key, size in zip(listing.keys, listing.size_mtime[:, 0].tolist(), strict=True):
        digest.update(f"{key}\0{size}\n".encode())
    return digest.hexdigest()


def has_room(folder: Path, images: int, side: int) -> bool:
    """Whether the disk of `folder` has room for the decoded images; those already there count as free space."""
    path = check_writable(folder / _PIXELS)  # also removes the temporary files of a killed run
    present = path.stat().st_size if path.exists() else 0
    return images * side * side * 3 + _RESERVE <= shutil.disk_usage(folder).free + present


class MappedImages:
    """Decoded images in the run folder, shared by all processes; copied to the GPU if they fit there.

    Parameters
    ----------
    folder : path
        Where `decode_all` wrote them.
    listing : Listing
    side : int
        D.
    device : torch.device
    """

    def __init__(self, folder: Path, listing: Listing, side: int, device: torch.device):
        description = json.loads((folder / _DESCRIPTION).read_text())
        self.failures: dict[str, str] = description["failures"]
        self.keys = [key for key in listing.keys if key not in self.failures]
        mapped = np.memmap(folder / _PIXELS, np.uint8, "r", shape=(len(self.keys), side, side, 3))
        self._pixels: np.ndarray | torch.Tensor = mapped
        self._device = device
        if device.type == "cuda" and mapped.nbytes < _GPU_SHARE * torch.cuda.mem_get_info(device)[0]:
            try:
                self._pixels = torch.tensor(mapped, device=device)
            except torch.OutOfMemoryError:  # another process was faster
                log.warning("too little memory on %s for the images; they are copied there batch by batch", device)

    def batches(self, plan: Iterable[np.ndarray]) -> Iterator[torch.Tensor]:
        """Yield batches; the next one is gathered while the caller uses the present one."""
        return prefetch(self._gather(rows) for rows in plan)

    def _gather(self, rows: np.ndarray) -> torch.Tensor:
        if isinstance(self._pixels, torch.Tensor):
            return self._pixels[torch.from_numpy(rows).pin_memory().to(self._device, non_blocking=True)]
        batch = torch.from_numpy(self._pixels[rows])
        return batch.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else batch


def decode_all(
    source: Source, listing: Listing, folder: Path, squash: Squash, *, workers: int, progress: Progress
) -> None:
    """Decode every image into the folder, unless that has been done.

    Raises
    ------
    SourceError
        No image could be read.
    OutputError
        The disk is full, or the folder cannot be written.
    """
    settings = {"images": listing_digest(listing), **squash.settings}
    if _is_complete(folder, settings, len(listing.keys)):
        return
    failures: dict[str, str] = {}
    path = check_writable(folder / _PIXELS)
    # the old description is removed first, so that it is never taken for that of the new pixels
    (folder / _DESCRIPTION).unlink(missing_ok=True)
    digest = hashlib.sha256()
    progress.start(len(listing.keys), "decoding")
    with replacing(path) as temporary, temporary.open("wb") as stream:
        for chunk in _decoded_chunks(source, listing, squash, workers=workers):
            for position, outcome in enumerate(chunk.outcomes, chunk.first):
                if isinstance(outcome, str):
                    failures[listing.keys[position]] = outcome
            pixels = chunk.pixels.contiguous().numpy().data
            stream.write(pixels)
            digest.update(pixels)
            progress.advance(len(chunk.outcomes))
            if failures:
                progress.remark(f"{len(failures):,} failed")
        if len(failures) == len(listing.keys):
            key, reason = next(iter(failures.items()))
            raise SourceError(f"none of the {len(failures)} images in {source.name} can be used ({key!r}: {reason})")
    with replacing(folder / _DESCRIPTION) as temporary:
        temporary.write_text(json.dumps({**settings, "failures": failures, "sha256": digest.hexdigest()}))


def remove_decoded(folder: Path) -> None:
    """Remove the decoded images from the run folder."""
    for name in (_DESCRIPTION, _PIXELS):
        (folder / name).unlink(missing_ok=True)


def _is_complete(folder: Path, settings: dict[str, object], images: int) -> bool:
    """Whether the folder holds undamaged pixels of these images with these settings."""
    try:
        description = json.loads((folder / _DESCRIPTION).read_text())
        size = (images - len(description["failures"])) * int(description["side"]) ** 2 * 3
        expected = {**settings, "failures": description["failures"], "sha256": description["sha256"]}
        if description != expected or (folder / _PIXELS).stat().st_size != size:
            return False
        with (folder / _PIXELS).open("rb") as stream:
            undamaged = hashlib.file_digest(stream, "sha256").hexdigest() == description["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if not undamaged:
        log.warning("%s is damaged; the images are decoded again", folder / _PIXELS)
    return undamaged


def _decoded_chunks(source: Source, listing: Listing, squash: Squash, *, workers: int) -> Iterator[Chunk]:
    """Decoded chunks in the order of the listing."""
    loader = ChunkLoader(source, squash, listing.keys, listing.size_mtime[:, 0].tolist(), chunk_size=_CHUNK)
    workers = min(workers, len(loader))
    if workers:
        with LoaderProcesses(loader, workers) as processes:
            yield from processes.chunks()
    else:
        with ThreadPoolExecutor(cores()) as threads:
            yield from load_in_threads(loader, threads, 2 * cores())
