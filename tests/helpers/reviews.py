"""Reviews on small caches with real pictures, served in this process or in one of their own."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
from PIL import Image

from helpers.hangs import HANG_SECONDS
from helpers.pictured import shaded
from helpers.pictures import encode
from helpers.review_client import ReviewClient
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.keys import encode_keys
from pucache.cache.writer import Rows, write_file
from pucache.encoders.spec import EncoderSpec
from pucache.images.source import image_digest
from pucache.reviewing.app import Application
from pucache.reviewing.pictures import Pictures
from pucache.reviewing.queue import NextImages
from pucache.reviewing.serve import Server, identifier, listening_socket, printed_url
from pucache.reviewing.service import ReviewService
from pucache.reviewing.session import open_session

TOKEN = "secret" * 8


def pictured_pile(folder, n=60, *, broken=(), positives=4, dim=6):
    """A cache of `n` pictures, all different; rows in `broken` are no images. `found.txt` lists the first ones."""
    width = max(3, len(str(n - 1)))  # a cache is sorted by key
    keys = [f"{row:0{width}}.png" for row in range(n)]
    (folder / "images").mkdir()
    digests = []
    for row, key in enumerate(keys):
        data = b"no image" if row in broken else encode(shaded(40 + row, 30, 100 + row))
        (folder / "images" / key).write_bytes(data)
        digests.append(list(image_digest(data)))
    X = np.random.default_rng(0).normal(size=(n, dim)).astype(np.float32)
    X[: n // 4] += 2
    encoded = encode_keys(keys)
    rows = Rows(encoded, X, np.array(digests, np.uint8), np.full((n, 2), -1))
    shape = (n, encoded.itemsize, X.dtype)
    spec = EncoderSpec.imported("planted", dim)
    write_file(folder / "pile.h5", spec, str(folder / "images"), [rows], shape=shape, failures={})
    (folder / "found.txt").write_text("".join(f"{key}\n" for key in keys[:positives]))
    return EmbeddingCache(folder / "pile.h5")


class Opened:
    """A review without a trainer, and its application."""

    def __init__(self, cache, folder, positives=None, **settings):
        self.session = open_session(cache, positives, folder=folder)
        self.queue = NextImages(self.session, np.random.default_rng(0))
        vars(self.queue).update(settings)
        self.pictures = Pictures(cache)
        name = identifier(self.session, TOKEN)
        self.service = ReviewService(self.session, self.queue, self.pictures, identifier=name, reviewer="tester")
        self.application = Application([self.service], TOKEN)

    def close(self):
        self.service.close()
        self.session.close()


class Served:
    """An application on a real socket, in a thread."""

    def __init__(self, application, host="127.0.0.1"):
        listener = listening_socket(host, 0)
        self.port = listener.getsockname()[1]
        self.url = printed_url(host, self.port, TOKEN)
        self._server = Server(application)
        started = threading.Event()
        self._server.on_start = started.set
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]})
        self._thread.start()
        assert started.wait(HANG_SECONDS)

    def client(self, tab=None):
        return ReviewClient(self.url, tab).enter()

    def close(self):
        self._server.should_exit = True
        self._thread.join(HANG_SECONDS)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def served(cache, folder, positives=None, *, begin=True, **settings):
    """A review in this process; yields what it consists of, and the server."""
    opened = Opened(cache, folder, positives, **settings)
    if begin:
        opened.service.begin(None)
    server = Served(opened.application)
    try:
        yield opened, server
    finally:
        server.close()
        opened.close()


class ReviewProcess:
    """`pucache review` as users start it; killed at the end of the `with` block."""

    def __init__(self, folder, *arguments, cache="pile.h5", browser=False, **environ):
        self._log = open(folder / f"review-{time.monotonic_ns()}.log", "w+b")  # noqa: SIM115
        command = [sys.executable, "-m", "pucache", "review", cache, *map(str, arguments)]
        self.process = subprocess.Popen(
            [*command, *([] if browser else ["--no-browser"])],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environ},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()

    @property
    def printed(self):
        return os.pread(self._log.fileno(), 1 << 20, 0).decode()

    @property
    def url(self):
        """The printed address, once it is there."""
        until = time.monotonic() + HANG_SECONDS
        while not (found := re.search(r"^open (http\S+)$", self.printed, re.MULTILINE)):
            assert self.process.poll() is None and time.monotonic() < until, self.printed
            time.sleep(0.02)
        return found[1]

    def client(self, tab=None):
        return ReviewClient(self.url, tab).enter()

    def end(self, number=signal.SIGINT):
        """Exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(HANG_SECONDS)


def picture_of(content):
    """The picture in an answer."""
    picture = Image.open(io.BytesIO(content))
    picture.load()
    return picture
