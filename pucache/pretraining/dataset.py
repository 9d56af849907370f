"""The images of a run, brought to one size: decoded once into a file that is mapped, or again in every epoch.

Sides are squashed to a square, in training and later in embedding alike, so nothing of an image is lost.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image

from ..devices import cores
from ..encoders.pretrained_file import Description
from ..errors import ImageError, SourceError
from ..images.decoding import DECODER, decode
from ..images.loader_processes import LoaderProcesses
from ..images.loading import Chunk, ChunkLoader, load_in_threads
from ..images.preprocessing import Preprocess
from ..images.source import Listing, Source
from ..progress import Progress
from ..storage.atomic import check_writable, replacing
from . import process_group
from .augmentations import View

log = logging.getLogger("pucache")

_FILE, _TOLD = "images.u8", "images.json"
_LEAST = 4  # pixels a side, of the original, in the smallest crop
_CHUNK = 64
_SPARE = 1 << 30  # bytes of disk that are left alone
_ON_DEVICE = 0.25  # share of what is free on a GPU that the images may take
_AHEAD = 3  # batches under way
_FEW = 1000  # images for which worker processes are not worth their start
_TELLING = 1000  # images after which it is clear whether most fail


class Pixels(Protocol):
    """Images by their row, uint8 (D, D, 3) each."""

    keys: list[str]
    failures: dict[str, str]

    def batches(self, plan: Iterable[np.ndarray]) -> Iterator[torch.Tensor]:
        """Yield the images of one array of rows after the other, (b, D, D, 3) uint8, prepared ahead."""


class Squash:
    """Bring an image to D x D pixels; picklable, so that worker processes can use it.

    Parameters
    ----------
    side : int
        D.
    interpolation : {"bilinear", "bicubic"}
    views : sequence of View
        What will be cropped: an image of which that would leave nearly nothing is refused.

    Attributes
    ----------
    told : dict
        What decides the pixels, JSON-able.
    """

    def __init__(self, side: int, interpolation: str, views: Sequence[View]):
        config = {"input_size": (3, side, side), "interpolation": interpolation, "crop_pct": 1.0, "crop_mode": "squash"}
        self._resize = Preprocess(config, _no_transform)
        self.input_size, self.sufficient_side = self._resize.input_size, self._resize.sufficient_side
        self._least = min(side, math.ceil(_LEAST / math.sqrt(min(v.area[0] / v.ratio for v in views))))
        self.told = {"side": side, "interpolation": interpolation, "least": self._least, "decoder": DECODER}

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Return uint8 (D, D, 3)."""
        if min(image.size) < self._least:
            raise ImageError(
                f"{image.width} x {image.height} pixels, too small for the crop: the smallest one would be under "
                f"{_LEAST} pixels (each side must have {self._least})"
            )
        return self._resize(image)


def _no_transform(image: Image.Image) -> torch.Tensor:
    raise AssertionError("squashing is fast")


def identity(listing: Listing) -> str:
    """Hash of what is listed: keys and sizes."""
    state = hashlib.sha256()
    for key, size in zip(listing.keys, listing.size_mtime[:, 0].tolist(), strict=True):
        state.update(f"{key}\0{size}\n".encode())
    return state.hexdigest()


def fits(folder: Path, images: int, side: int) -> bool:
    """Whether there is room on the disk of `folder` for so many images, or they are there already."""
    path = check_writable(folder / _FILE)  # which clears away what a killed run left behind
    there = path.stat().st_size if path.exists() else 0
    return images * side * side * 3 + _SPARE <= shutil.disk_usage(folder).free + there


# --- decoded once ------------------------------------------------------------------------------


class Mapped:
    """Images in a file of the run's folder, shared by all processes; on a GPU where they fit there.

    Parameters
    ----------
    folder : path
        Where `decode_all` put them.
    listing : Listing
    side : int
        D.
    device : torch.device
    """

    def __init__(self, folder: Path, listing: Listing, side: int, device: torch.device):
        told = json.loads((folder / _TOLD).read_text())
        self.failures: dict[str, str] = told["failures"]
        self.keys = [key for key in listing.keys if key not in self.failures]
        stored = np.memmap(folder / _FILE, np.uint8, "r", shape=(len(self.keys), side, side, 3))
        self._stored: np.ndarray | torch.Tensor = stored
        self._device = device
        if device.type == "cuda" and stored.nbytes < _ON_DEVICE * torch.cuda.mem_get_info(device)[0]:
            self._stored = torch.tensor(stored, device=device)

    def batches(self, plan: Iterable[np.ndarray]) -> Iterator[torch.Tensor]:
        """Yield batches; the next one is gathered while one is used."""
        with ThreadPoolExecutor(1) as thread:
            coming: deque[Future[torch.Tensor]] = deque()
            for rows in plan:
                coming.append(thread.submit(self._take, rows))
                if len(coming) > 1:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()

    def _take(self, rows: np.ndarray) -> torch.Tensor:
        if isinstance(self._stored, torch.Tensor):
            return self._stored[torch.from_numpy(rows).pin_memory().to(self._device, non_blocking=True)]
        batch = torch.from_numpy(self._stored[rows])
        return batch.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else batch


def decode_all(
    source: Source, listing: Listing, folder: Path, squash: Squash, *, workers: int, progress: Progress
) -> None:
    """Decode every image into the folder, unless they are there.

    Raises
    ------
    SourceError
        Not one could be read.
    OutputError
        The disk is full, or the folder cannot be written.
    """
    told = {"images": identity(listing), **squash.told}
    if _are_there(folder, told, len(listing.keys)):
        return
    failures: dict[str, str] = {}
    prepare = ChunkLoader(
        source, squash, listing.keys, listing.size_mtime[:, 0].tolist(), np.empty(0, "S32"), rows=_CHUNK
    )
    progress.start(len(listing.keys), "decoding")
    path = check_writable(folder / _FILE)
    (folder / _TOLD).unlink(missing_ok=True)  # it tells of other images than those that come
    content = hashlib.sha256()
    with replacing(path) as temporary, temporary.open("wb") as stream:
        for chunk in _chunks(prepare, workers):
            for position, outcome in enumerate(chunk.outcomes, chunk.first):
                if isinstance(outcome, str):
                    failures[listing.keys[position]] = outcome
            pixels = chunk.pixels.contiguous().numpy().data
            stream.write(pixels)
            content.update(pixels)
            progress.advance(len(chunk.outcomes))
            if failures:
                progress.remark(f"{len(failures):,} failed")
        if len(failures) == len(listing.keys):
            key, reason = next(iter(failures.items()))
            raise SourceError(f"none of the {len(failures)} images in {source.name} can be used ({key!r}: {reason})")
    with replacing(folder / _TOLD) as temporary:
        temporary.write_text(json.dumps({**told, "failures": failures, "sha256": content.hexdigest()}))


def remove(folder: Path) -> None:
    """Remove the decoded images, once they are of no more use."""
    for name in (_TOLD, _FILE):
        (folder / name).unlink(missing_ok=True)


def _are_there(folder: Path, told: dict[str, object], images: int) -> bool:
    try:
        found = json.loads((folder / _TOLD).read_text())
        size = (images - len(found["failures"])) * int(found["side"]) ** 2 * 3
        same = {**told, "failures": found["failures"], "sha256": found["sha256"]} == found
        if not same or (folder / _FILE).stat().st_size != size:
            return False
        with (folder / _FILE).open("rb") as stream:
            whole = hashlib.file_digest(stream, "sha256").hexdigest() == found["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if not whole:
        log.warning("%s is damaged; the images are decoded again", folder / _FILE)
    return whole


def _chunks(prepare: ChunkLoader, workers: int) -> Iterator[Chunk]:
    workers = min(workers, len(prepare))
    if workers:
        with LoaderProcesses(prepare, workers) as at_work:
            yield from at_work.chunks()
    else:
        with ThreadPoolExecutor(cores()) as threads:
            yield from load_in_threads(prepare, threads, 2 * cores())


# --- decoded in every epoch ----------------------------------------------------------------------


class Streamed:
    """Images that are read and decoded whenever they are needed, in threads; one that fails is left black.

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
        self._seen = 0

    def batches(self, plan: Iterable[np.ndarray]) -> Iterator[torch.Tensor]:
        """Yield batches; a few are under way at once."""
        with ThreadPoolExecutor(cores()) as threads:
            coming: deque[list[Future[torch.Tensor]]] = deque()
            try:
                for rows in plan:
                    coming.append([threads.submit(self._one, int(row)) for row in rows])
                    if len(coming) >= _AHEAD:
                        yield self._stacked(coming.popleft())
                while coming:
                    yield self._stacked(coming.popleft())
            finally:
                threads.shutdown(wait=False, cancel_futures=True)

    def _one(self, row: int) -> torch.Tensor:
        key = self.keys[row]
        try:
            return self._squash(decode(self._source.read(key), self._squash.sufficient_side)).contiguous()
        except ImageError as error:
            if key not in self.failures:
                self.failures[key] = str(error)
                log.warning("%r is left black: %s", key, error)
            return torch.zeros(*self._squash.input_size, 3, dtype=torch.uint8)

    def _stacked(self, images: list[Future[torch.Tensor]]) -> torch.Tensor:
        batch = torch.stack([image.result() for image in images])
        self._seen += len(batch)
        if 2 * len(self.failures) > min(len(self.keys), max(self._seen, _TELLING)):
            key, reason = next(iter(self.failures.items()))
            raise SourceError(f"most images of {self._source.name} cannot be used ({key!r}: {reason})")
        return batch


def squash_for(description: Description, views: Sequence[View]) -> Squash:
    """How the images of a network are kept: of those larger than its views some detail to spare, for the crops."""
    size = description.size
    side = size if size <= 64 else round(size * 8 / 7)
    return Squash(side, description.interpolation, views)


def opened(
    source: Source,
    listing: Listing,
    folder: Path,
    squash: Squash,
    *,
    device: torch.device,
    decoded: str,
    workers: int | None,
    progress: Progress,
) -> Pixels:
    """The images of a run, the same for all its processes, of which the first decodes them.

    Parameters
    ----------
    decoded : {"auto", "once", "always"}
        ``auto`` is ``once`` where the disk of `folder` has room.
    workers : int, optional
        By default one a core, up to 16, where there are many images.
    """
    first, side = process_group.rank() == 0, squash.input_size[0]
    if decoded == "auto":
        room = process_group.broadcast_from_first(first and fits(folder, len(listing.keys), side))
        decoded = "once" if room else "always"
        if first and not room:
            log.warning("%s has no room for the decoded images; they are decoded in every epoch", folder)
    if decoded == "always":
        return Streamed(source, listing, squash)
    if first:
        if workers is None:
            workers = min(16, cores()) if len(listing.keys) > _FEW else 0
        decode_all(source, listing, folder, squash, workers=workers, progress=progress)
    process_group.barrier()
    return Mapped(folder, listing, side, device)
