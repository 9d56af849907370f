"""Sources of tiny images for Ray's processes, which import this and no test; what they read is written down."""

import io
import os
import signal
import time

import numpy as np
from PIL import Image

from pucache.errors import ImageError
from pucache.images.source import Listing


class Pile:
    """Images 0000.ppm, 0001.ppm, ...; the `broken` are no images, and from `distinct` on they repeat.

    Attributes
    ----------
    log : Path
        A line for every image that is read, in whatever process.
    """

    def __init__(self, log, count, *, broken=(), distinct=10**6, name="pile"):
        self.log, self.name = log, name
        self._count, self._broken, self._distinct = count, set(broken), distinct

    def scan(self):
        keys = [f"{number:04}.ppm" for number in range(self._count)]
        return Listing(keys, np.array([[len(self._bytes(number)), 1] for number in range(self._count)], np.int64))

    def read(self, key):
        log = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, f"{key}\n".encode())
        os.close(log)
        self.befall(int(key[:4]))
        return self._bytes(int(key[:4]))

    def befall(self, number):
        """What happens to who reads an image."""

    def _bytes(self, number):
        number %= self._distinct
        return b"no image" if number in self._broken else self.picture(number)

    def picture(self, number):
        """Bytes of an image; different numbers give different images."""
        return b"P6 12 9 255\n" + np.random.default_rng(number).bytes(12 * 9 * 3)

    def begun(self):
        """Numbers of the images that were read, but for the first one, which every node tries."""
        lines = self.log.read_text().split() if self.log.exists() else []
        return [int(line[:4]) for line in lines if line != "0000.ppm"]


class Mixed(Pile):
    """Every third image is a JPEG file, which the device can decode; a broken one is found there."""

    def _bytes(self, number):
        if number % 3:
            return super()._bytes(number)
        stream = io.BytesIO()
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (9, 12, 3), np.uint8)).save(stream, "JPEG")
        return stream.getvalue()[: 300 if number in self._broken else None]


class Deadly(Pile):
    """Kills the process that reads a certain image, so many times."""

    number, times = 50, 10**6

    def befall(self, number):
        if number == self.number and self.begun().count(number) <= self.times:
            os.kill(os.getpid(), signal.SIGKILL)


class Buggy(Pile):
    """A source with a bug."""

    def befall(self, number):
        if number == 50:
            raise RuntimeError("a bug in a source")


class DeadlyOnce(Deadly):
    """Kills the first process that reads a certain image."""

    times = 1


class Held(Pile):
    """Nobody gets beyond a certain image, of the third block, until the file `log`.go is there."""

    number = 100

    def befall(self, number):
        while number >= self.number and not self.log.with_suffix(".go").exists():
            time.sleep(0.05)


class Unmounted(Pile):
    """Images that some nodes do not see."""

    def befall(self, number):
        if os.environ.get("UNMOUNTED"):
            raise ImageError("cannot be read: No such file or directory")
