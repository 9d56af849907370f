"""Runs of `embed`: their sources, what interrupts them, and what must hold of the cache."""

import os
import signal
import zlib
from pathlib import Path

import numpy as np
import pytest

from helpers.tiny import tiny_encoder
from pucache import EmbeddingCache
from pucache.embedding.embed import EmbedOptions, run_embedding
from pucache.errors import ImageError
from pucache.images.decoding import decode
from pucache.images.listing import Listing
from pucache.images.source import image_digest
from pucache.progress import Silent


def picture(number):
    """The bytes of a tiny image; different numbers give different images."""
    return b"P6 12 9 255\n" + np.random.default_rng(number).bytes(12 * 9 * 3)


def pictures(count, broken=()):
    """Tiny images 0000.ppm, 0001.ppm, ... by key; the `broken` are no images."""
    return {f"{number:04}.ppm": b"no image" if number in broken else picture(number) for number in range(count)}


class MemorySource:
    """A source of bytes by key; the `gone` vanish after they were listed."""

    def __init__(self, files, gone=(), name="memory"):
        self.name, self._files, self._gone = name, files, set(gone)

    def scan(self):
        keys = sorted(self._files)
        return Listing(keys, np.array([[len(self._files[key]), zlib.crc32(self._files[key])] for key in keys]))

    def read(self, key):
        if key in self._gone:
            raise ImageError("cannot be read: No such file or directory")
        return self._files[key]


class Pile(MemorySource):
    """`pictures`; reading them is written down, in whatever process.

    Attributes
    ----------
    log : Path
        A line for every image that is read.
    """

    def __init__(self, log, count, *, broken=()):
        super().__init__(pictures(count, broken), name="pile")
        self.log = log
        log.touch()

    def read(self, key):
        with self.log.open("a") as log:
            log.write(f"{key}\n")
        self.befall(key)
        return super().read(key)

    def befall(self, key):
        """What happens to who reads an image."""

    @property
    def reads(self):
        """Keys of all images that were read."""
        return self.log.read_text().split()


class Deadly(Pile):
    """Kills the process that reads a certain image, as the kernel does when memory is short; so many times."""

    def __init__(self, log, count, *, deadly="0020.ppm", times=10**6):
        super().__init__(log, count)
        self._deadly, self._times = deadly, times

    def befall(self, key):
        if key == self._deadly and self.reads.count(key) <= self._times:
            os.kill(os.getpid(), signal.SIGKILL)


class Unmounted(Pile):
    """Images that some nodes do not see."""

    def befall(self, key):
        if os.environ.get("UNMOUNTED"):
            raise ImageError("cannot be read: No such file or directory")


def run(source, cache, encoder=None, *, workers=0, progress=None, listing=None, **options):
    chosen = {"options": EmbedOptions(**options), "listing": listing, "workers": workers, "progress": progress}
    return run_embedding(source, cache, encoder or tiny_encoder(), **chosen)


class StopAfter(Silent):
    """Ctrl-C once so many more blocks are safe, 0 being before the first."""

    def __init__(self, cache, blocks):
        self._cache, self._blocks = cache, blocks

    def start(self, total, what):
        self._before = len(parts_of(self._cache))
        self.advance(0)

    def advance(self, steps):
        if len(parts_of(self._cache)) >= self._before + self._blocks:
            raise KeyboardInterrupt


class During(Silent):
    """Calls a function once, when more than so many steps of a stage are done."""

    _counts = False

    def __init__(self, stage, steps, action):
        self._stage, self._left, self._action = stage, steps, action

    def start(self, total, what):
        self._counts = what == self._stage

    def advance(self, steps):
        self._left -= steps * self._counts
        if self._left < 0 and self._action:
            action, self._action = self._action, None
            action()


def ctrl_c():
    raise KeyboardInterrupt


def interrupt(source, cache, blocks, encoder=None, **options):
    with pytest.raises(KeyboardInterrupt):
        run(source, cache, encoder, progress=StopAfter(cache, blocks), **options)


def parts_of(cache):
    return sorted(cache.with_name(f"{cache.name}.parts").glob("part-*.h5"))


def work(report):
    return report.computed, report.reused, report.kept


def identity(path):
    return path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()


def expect_current(cache, folder):
    """Every row is what the tiny encoder gives for the file of its key, now; returns the opened cache."""
    written = EmbeddingCache(cache)
    written.verify()
    data = [Path(folder, key).read_bytes() for key in written.keys]
    np.testing.assert_array_equal(written.X, tiny_encoder()(map(decode, data)).astype(written.X.dtype))
    assert [row.tobytes() for row in written.digests] == [image_digest(d) for d in data]
    stats = [Path(folder, key).stat() for key in written.keys]
    assert written.files[0].size_mtime.tolist() == [[s.st_size, s.st_mtime_ns] for s in stats]
    assert len({row.tobytes() for row in written.X}) == len(set(data))  # the encoder tells images apart
    return written
