"""Sources of tiny images for Ray's processes, which import this and no test; what they read is written down."""

import os
import signal

import numpy as np

from pucache.errors import ImageError
from pucache.images.listing import Listing


class Pile:
    """Images 0000.ppm, 0001.ppm, ...; the `broken` are no images.

    Attributes
    ----------
    log : Path
        A line for every image that is read, in whatever process.
    """

    def __init__(self, log, count, *, broken=()):
        self.log, self.name, self._count, self._broken = log, "pile", count, set(broken)

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
        return b"no image" if number in self._broken else b"P6 12 9 255\n" + np.random.default_rng(number).bytes(324)

    def times_read(self, number):
        """How often an image was read."""
        return self.log.read_text().split().count(f"{number:04}.ppm")


class Deadly(Pile):
    """Kills the process that reads a certain image, so many times."""

    number, times = 20, 10**6

    def befall(self, number):
        if number == self.number and self.times_read(number) <= self.times:
            os.kill(os.getpid(), signal.SIGKILL)


class DeadlyOnce(Deadly):
    """Kills the first process that reads a certain image."""

    times = 1


class Unmounted(Pile):
    """Images that some nodes do not see."""

    def befall(self, number):
        if os.environ.get("UNMOUNTED"):
            raise ImageError("cannot be read: No such file or directory")
