"""Reviews on small caches with real pictures, served in this process or in one of their own; and logs without any."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
from PIL import Image

from helpers.hangs import HANG_SECONDS
from helpers.pictured import folder_of, shaded
from helpers.pictures import encode
from helpers.review_client import ReviewClient
from pucache import read_labels
from pucache.reviewing.access import listening_socket, printed_url
from pucache.reviewing.app import Application
from pucache.reviewing.history import History
from pucache.reviewing.log import LABELS, Choice, Entry, Stream
from pucache.reviewing.pictures import Pictures
from pucache.reviewing.queue import NextImages
from pucache.reviewing.serve import Server, identifier, open_concept_sessions
from pucache.reviewing.service import ReviewService
from pucache.reviewing.session import open_session

TOKEN = "secret" * 8


def pictured_pile(folder, n=60, *, broken=(), positives=4):
    """A cache of `n` pictures, all different; rows in `broken` are no images. `found.txt` lists the first ones."""
    files = {
        f"{row:03}.png": f"no image {row}".encode() if row in broken else encode(shaded(40 + row, 30, 100 + row))
        for row in range(n)
    }
    X = np.random.default_rng(0).normal(size=(n, 6)).astype(np.float32)
    X[: n // 4] += 2
    (folder / "found.txt").write_text("".join(f"{key}\n" for key in [*files][:positives]))
    return folder_of(folder, files, cache="pile.h5", X=X)


class SilentTrainer:
    """Keeps the labels that it is to train on, and never says anything."""

    def __init__(self):
        self.submitted = []

    def busy(self, session):
        return bool(self.submitted)

    def submit(self, serial, s, reviewed, session):
        self.submitted.append((serial, s.copy(), reviewed.copy()))

    def prefer(self, session):
        pass


class Served:
    """An application on a real socket, in a thread."""

    def __init__(self, application, port=0):
        listener = listening_socket("127.0.0.1", port)
        self.port = listener.getsockname()[1]
        self.url = printed_url("127.0.0.1", self.port, TOKEN)
        self._server, started = Server(application), threading.Event()
        self._server.on_start = started.set
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]})
        self._thread.start()
        assert started.wait(HANG_SECONDS)

    def client(self):
        return ReviewClient(self.url).enter()

    def close(self):
        self._server.should_exit = True
        self._thread.join(HANG_SECONDS)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def served(cache, folder, labels=None, *, concepts=False, begin=True, trainer=None, port=0, conflicts=(), **settings):
    """A review in this process; yields what it consists of, and the server.

    With `concepts`, `labels` is a table of theirs, and a list of reviews is yielded. `settings` are those of the queue.
    """
    with contextlib.ExitStack() as stack:
        if concepts:
            sessions, _ = open_concept_sessions(cache, read_labels(cache, labels), folder, None, stack)
        else:
            sessions = {"": stack.enter_context(open_session(cache, labels, folder=folder))}
        reviews, pictures = [], Pictures(cache)
        for name, session in sessions.items():
            queue, own = NextImages(session, np.random.default_rng(0)), identifier(session, TOKEN, name)
            vars(queue).update(settings)
            service = ReviewService(session, queue, pictures, identifier=own, reviewer="tester", conflicts=conflicts)
            stack.callback(service.close)
            if begin:
                service.begin(trainer)
            reviews.append(SimpleNamespace(session=session, queue=queue, pictures=pictures, service=service))
        services = [review.service for review in reviews]
        server = Served(Application(services, TOKEN, concepts=list(filter(None, sessions))), port)
        stack.callback(server.close)
        yield reviews if concepts else reviews[0], server


class ReviewProcess:
    """`pucache review` as users start it; killed at the end of the `with` block."""

    def __init__(self, folder, *arguments, browser=False, **environ):
        self._log = open(folder / f"review-{time.monotonic_ns()}.log", "w+b")  # noqa: SIM115
        command = [sys.executable, "-m", "pucache", "review", "pile.h5", *map(str, arguments)]
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

    def client(self):
        return ReviewClient(self.url).enter()

    def end(self, number=signal.SIGINT):
        """Exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(HANG_SECONDS)


def picture_of(content):
    """The picture in an answer."""
    picture = Image.open(io.BytesIO(content))
    picture.load()
    return picture


class Log:
    """Entries as a session writes them, without a session. `copies`: rows of each group."""

    def __init__(self, copies):
        self.copies = [1] * copies if isinstance(copies, int) else list(copies)
        self.entries, self.drawn, self.rechecked, self.gone = [], set(), set(), set()
        self.stacks = {}  # by group the decisions not taken back: choice, number, whether it had been drawn
        self.in_force = {}  # last choice; none for a skip from before a draw, which does not answer it

    @property
    def pile(self):
        return sum(self.copies)

    @property
    def left(self):
        """Groups that have neither been labelled nor drawn."""
        return [group for group, copies in enumerate(self.copies) if copies and group not in self.gone]

    def common(self, group):
        return {
            "serial": len(self.entries) + 1,
            "row": group,
            "group": group,
            "copies": self.copies[group],
            "unknown": self.pile - sum(self.copies[one] for one in self.gone),
            "time": 0.0,
        }

    def draw(self, group, choice=None, *, stream=Stream.AUDIT):
        self.entries.append(Entry(stream=stream, **self.common(group)))
        if stream is Stream.AUDIT:
            self.drawn.add(group)
            self.gone.add(group)
            self.in_force.pop(group, None)
        else:
            self.rechecked.add(group)
        return self if choice is None else self.decide(group, choice)

    def decide(self, group, choice, *, stream=None):
        stream = stream or (
            Stream.RECHECK if group in self.rechecked else Stream.AUDIT if group in self.drawn else Stream.RANKED
        )
        stack, fields = self.stacks.setdefault(group, []), self.common(group) | {"choice": choice}
        if choice is not Choice.UNDONE:
            stack.append((choice, fields["serial"], group in self.drawn))
        elif stack:
            fields["replaces"] = stack.pop()[1]
            if stack:  # what lay below is in force again
                fields["choice"], fields["restores"], was_drawn = stack.pop()
                stack.append((fields["choice"], fields["serial"], was_drawn))
        else:
            return self
        self.entries.append(Entry(request=f"r{len(self.entries)}", stream=stream, **fields))
        self.in_force[group] = fields["choice"]
        if fields["choice"] is Choice.SKIP and group in self.drawn and not stack[-1][2]:
            self.in_force.pop(group)
        if fields["choice"] in LABELS:
            self.gone.add(group)
        return self

    def history(self):
        return History([self.pile], self.entries)

    def limits(self, **options):
        return self.history().limits(**options)
