"""The training images of a run: decoded once, and brought to one square size.

The sides are squashed, in training as later in embedding, so that no part of an image is lost. The decoded images
lie in a file of the run folder that all processes map.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ..devices import cores
from ..encoders.pretrained_file import Description
from ..errors import ImageError, OutputError, SourceError
from ..images.decoding import DECODER, Decoding
from ..images.listing import UNKNOWN, Listing, in_reading_order
from ..images.loading import Chunk, ChunkLoader, LoaderProcesses, load_in_threads
from ..images.preprocessing import Preprocess
from ..images.source import Source
from ..progress import Progress
from ..storage.atomic import check_writable, replacing
from ..threads import prefetch
from . import process_group
from .augmentations import View

log = logging.getLogger("pucache")

_FEW_IMAGES = 1000  # fewer than these do not repay the start of worker processes
_MIN_CROP_SIDE = 4  # pixels of the original image in the smallest crop
_SMALL_VIEW = 64  # views up to this size are cut from images of their own size
_PIXELS, _DESCRIPTION = "images.u8", "images.json"
_CHUNK = 64  # images per task of a worker
_RESERVE = 1 << 30  # bytes of disk that are left free


def list_images(source: Source) -> Listing:
    """List the images of a source in reading order; `SourceError` if it holds none."""
    listing = source.scan()
    if not listing.keys:
        raise SourceError(f"no image in {source.name}")
    order = in_reading_order(listing, np.arange(len(listing.keys)))
    return Listing([listing.keys[at] for at in order], listing.size_mtime[order], listing.failures, listing.ignored)


class Squash:
    """Resize an image to D x D pixels; picklable, so that worker processes can use it.

    An image is refused if the smallest crop of the views, which are cropped later, would have fewer than 4 pixels a
    side.
    """

    def __init__(self, side: int, interpolation: str, views: Sequence[View], decoder: str = DECODER):
        config = {"input_size": (3, side, side), "interpolation": interpolation, "crop_pct": 1.0, "crop_mode": "squash"}
        self._resize = Preprocess(config, _no_transform)
        self.input_size, self.sufficient_side = self._resize.input_size, self._resize.sufficient_side
        self._min_side = min(side, math.ceil(_MIN_CROP_SIDE / math.sqrt(min(v.area[0] / v.ratio for v in views))))
        # everything that determines the pixels, as JSON values
        self.settings = {"side": side, "interpolation": interpolation, "least": self._min_side, "decoder": decoder}
        self.decoding = Decoding.of(decoder)

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Return uint8 (D, D, 3)."""
        if min(image.size) < self._min_side:
            raise ImageError(
                f"{image.width} x {image.height} pixels, too small for the crop: the smallest one would be under "
                f"{_MIN_CROP_SIDE} pixels (each side must have {self._min_side})"
            )
        return self._resize(image)


def _no_transform(image: Image.Image) -> torch.Tensor:
    raise AssertionError("squashing needs no transform of timm's")


def squash_for(description: Description, views: Sequence[View]) -> Squash:
    """Resizing for a network: views over 64 pixels are cut from images 8/7 as large, so that crops keep detail."""
    size = description.size
    side = size if size <= _SMALL_VIEW else round(size * 8 / 7)
    return Squash(side, description.interpolation, views, description.decoder)


def open_images(
    source: Source,
    listing: Listing,
    folder: Path,
    squash: Squash,
    *,
    workers: int | None,
    progress: Progress,
) -> MappedImages:
    """Open the training images; the first process decodes them for all.

    `folder` is the run folder, which receives the decoded images. `workers` processes decode: by default one per core,
    at most 16; for few images none. Raises `OutputError` where its disk has no room.
    """
    side = squash.input_size[0]
    if process_group.rank() == 0:
        require_room(folder, len(listing.keys), side)
        if workers is None:
            in_threads = len(listing.keys) <= _FEW_IMAGES or getattr(source, "sequential", False)
            workers = 0 if in_threads else min(16, cores())
        decode_all(source, listing, folder, squash, workers=workers, progress=progress)
    process_group.barrier()
    return MappedImages(folder, listing, side)


def listing_digest(listing: Listing) -> str:
    """SHA-256 of the keys and file sizes (where these are unknown, times) of a listing, as hex."""
    digest = hashlib.sha256()
    for key, (size, mtime) in zip(listing.keys, listing.size_mtime.tolist(), strict=True):
        digest.update(f"{key}\0{mtime if size == UNKNOWN else size}\n".encode())
    return digest.hexdigest()


def require_room(folder: Path, images: int, side: int) -> None:
    """Raise `OutputError` where the disk of `folder` has no room for the decoded images; those there count as free."""
    path = check_writable(folder / _PIXELS)  # also removes the temporary files of a killed run
    present = path.stat().st_size if path.exists() else 0
    needed, free = images * side * side * 3 + _RESERVE, shutil.disk_usage(folder).free + present
    if needed > free:
        raise OutputError(
            f"{images:,} decoded images of {side} x {side} pixels, and {_RESERVE / 1e9:.1f} GB to spare, need "
            f"{needed / 1e9:,.1f} GB in {folder}, which has {free / 1e9:,.1f} GB; use another disk, or a smaller --size"
        )


class MappedImages:
    """Images that `decode_all` wrote into the run folder, shared by all processes."""

    def __init__(self, folder: Path, listing: Listing, side: int):
        description = json.loads((folder / _DESCRIPTION).read_text())
        self.failures: dict[str, str] = description["failures"]
        self.keys = [key for key in listing.keys if key not in self.failures]
        self._pixels = np.memmap(folder / _PIXELS, np.uint8, "r", shape=(len(self.keys), side, side, 3))

    def batches(self, plan: Iterable[np.ndarray]) -> Iterator[torch.Tensor]:
        """Yield batches; the next one is gathered while the caller uses the present one."""
        return prefetch(torch.from_numpy(self._pixels[rows]) for rows in plan)


def decode_all(
    source: Source, listing: Listing, folder: Path, squash: Squash, *, workers: int, progress: Progress
) -> None:
    """Decode every image into the folder, unless that has been done.

    Raises `SourceError` where no image could be read, and `OutputError` where the disk is full.
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
    sizes = listing.size_mtime[:, 0].tolist()
    loader = ChunkLoader(source, squash, listing.keys, sizes, chunk_size=_CHUNK, decoding=squash.decoding)
    workers = min(workers, 1 if getattr(source, "sequential", False) else len(loader))
    if workers:
        with LoaderProcesses(loader, workers) as processes:
            yield from processes.chunks()
    else:
        with ThreadPoolExecutor(cores()) as threads:
            yield from load_in_threads(loader, threads, 2 * cores())
