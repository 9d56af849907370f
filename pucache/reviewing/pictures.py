"""Pictures of rows for the page of a review: decoded, scaled, encoded again and kept in memory.

No byte of an image file reaches the browser: what is sent was encoded here from pixels.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from ..cache.embedding_cache import EmbeddingCache
from ..pages.thumbnails import RowImage, RowImages, encoded

PLACE = "place"  # the whole image of a part, with a frame around the part
SIDES = {"card": 640, "original": 4096, PLACE: 240}  # greatest width and height in pixels
SMALL = 256  # pixels; smaller pictures are encoded without loss, as every pixel of them is seen
MEMORY = 128 << 20  # bytes of encoded pictures that are kept
PROBLEM_SECONDS = 20.0  # for which an image that cannot be read is not tried again
THREADS = 2
SAMPLED = 5  # images that are looked at to see whether any can be shown
SAMPLE_SECONDS = 2.0
AHEAD = 240  # pictures that wait to be made in advance


@dataclass(frozen=True)
class Picture:
    """A picture as it is sent, or the reason why there is none."""

    data: bytes  # encoded; empty where there is no picture
    media_type: str
    problem: str = ""  # why there is no picture
    note: str = ""  # what is to be said of a picture that is shown: that the file has changed
    made: float = field(default_factory=time.monotonic)

    @property
    def bytes(self) -> int:
        """Memory that it takes, about."""
        return len(self.data) + 500


class Pictures:
    """Makes pictures of rows, in advance where told to, and keeps the latest ones.

    `images` is the source of the images, where they have moved since the cache was made; raises `SourceError` where it
    cannot be opened.
    """

    def __init__(self, cache: EmbeddingCache, images: str | Path | None = None):
        self._rows = len(cache)
        self._images = RowImages(cache, images)
        self._asked = ThreadPoolExecutor(THREADS, "picture")
        self._ahead = ThreadPoolExecutor(THREADS, "picture-ahead")
        self._lock = threading.Lock()
        self._pending: dict[tuple[int, str], Future[Picture]] = {}
        self._kept: OrderedDict[tuple[int, str], Picture] = OrderedDict()
        self._bytes = 0

    def get(self, row: int, size: str = "card", *, timeout: float | None = None) -> Picture | None:
        """The picture of a row in one of `SIDES`; None where there is no such row or size.

        With a `timeout` in seconds, None too where it is not made by then.
        """
        if not 0 <= row < self._rows or size not in SIDES:
            return None
        for _ in range(2):  # again where a picture's turn was given up between its look-up and the wait
            found = self._start(self._asked, (row, size), urgent=True)
            if isinstance(found, Picture):
                return found
            try:
                return found.result(timeout)
            except FutureTimeoutError:
                return None
            except CancelledError:
                continue
        return None

    def prefetch(self, rows: Iterable[int]) -> None:
        """Make the cards of the first `AHEAD` rows in advance."""
        for row in list(rows)[:AHEAD]:
            self._start(self._ahead, (row, "card"), urgent=False)

    def common_problem(self) -> str:
        """Why no image can be shown, where that is so for each of a few over the cache; else "".

        Waits `SAMPLE_SECONDS` at most.
        """
        until = time.monotonic() + SAMPLE_SECONDS
        problems = []
        for row in range(0, self._rows, max(1, self._rows // SAMPLED)):
            picture = self.get(row, timeout=max(0.0, until - time.monotonic()))
            if picture is None or not picture.problem:
                return ""
            problems.append(picture.problem)
        return problems[0] if problems else ""

    def close(self) -> None:
        """Make nothing more."""
        for pool in (self._asked, self._ahead):
            pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, pool: ThreadPoolExecutor, name: tuple[int, str], *, urgent: bool) -> Picture | Future[Picture]:
        """The picture, or who makes it; one that waits for its turn in advance is made at once where it is urgent."""
        with self._lock:
            picture = self._find(name)
            if picture is not None:
                return picture
            future = self._pending.get(name)
            if future is not None and not (urgent and future.cancel()):
                return future
            future = pool.submit(self._make, name)
            self._pending[name] = future
            return future

    def _find(self, name: tuple[int, str]) -> Picture | None:
        """A picture that is kept; a problem is looked at again after `PROBLEM_SECONDS`."""
        picture = self._kept.get(name)
        if picture is None:
            return None
        if picture.problem and time.monotonic() - picture.made > PROBLEM_SECONDS:
            self._forget(name)
            return None
        self._kept.move_to_end(name)
        return picture

    def _make(self, name: tuple[int, str]) -> Picture:
        row, size = name
        try:
            picture = self._encoded(self._images.read(row, SIDES[size], place=size == PLACE))
            with self._lock:
                self._keep(name, picture)
            return picture
        finally:
            with self._lock:
                self._pending.pop(name, None)

    def _encoded(self, image: RowImage) -> Picture:
        if image.pixels is None:
            return Picture(b"", "", problem=image.problem)
        data, media_type = encode(image.pixels)
        return Picture(data, media_type, note=image.problem)

    def _keep(self, name: tuple[int, str], picture: Picture) -> None:
        self._kept[name] = picture
        self._bytes += picture.bytes
        while self._bytes > MEMORY and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))

    def _forget(self, name: tuple[int, str]) -> None:
        self._bytes -= self._kept.pop(name).bytes


def encode(pixels: Image.Image) -> tuple[bytes, str]:
    """Encode 8-bit RGB for a browser: bytes and their media type.

    PNG for small pictures, JPEG for others: WebP takes ten times as long to encode.
    """
    if max(pixels.size) <= SMALL:
        return encoded(pixels, "PNG", compress_level=1), "image/png"
    return encoded(pixels, "JPEG", quality=88), "image/jpeg"
