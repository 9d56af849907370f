"""Variables of Ray's processes on this machine, and commands that use it."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from helpers.hangs import HANG_SECONDS

TESTS = Path(__file__).parents[1]


def variables(**further):
    """Of a process that imports what the tests do; Ray's workers give way to others no more than we do."""
    path = [further.pop("PYTHONPATH", ""), str(TESTS), os.environ.get("PYTHONPATH", "")]
    ray = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    return {**ray, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, path)), **further}


def working_in(folder, agents=True):
    """Processes whose working folder this is, which is also that of those that they start."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            agent = b"Agent" in (place / "cmdline").read_bytes()
            if (place / "cwd").readlink() == folder and (agents or not agent):
                found.append(int(place.name))
        except OSError:
            continue  # it has ended, or is not ours
    return found


def end(folder):
    """Kill all that work in a folder."""
    while found := working_in(folder):
        for number in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.05)


class Command:
    """`pucache` with some arguments as a process, which runs within `with` and not beyond, nor what it has started."""

    def __init__(self, *arguments):
        self._folder = Path(tempfile.mkdtemp(prefix="ray-"))  # that it and all that it starts work in
        self._command = [sys.executable, "-m", "pucache", *map(str, arguments)]
        self._environ = {**os.environ, **variables()}

    def __enter__(self):
        with Path(self._folder, "stdout").open("wb") as out, Path(self._folder, "stderr").open("wb") as err:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=err, env=self._environ, cwd=self._folder)
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        end(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)

    def send(self, number):
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self):
        """Its exit code; minus the number of the signal that ended it."""
        return self._process.wait(HANG_SECONDS)

    def left(self):
        """Processes that it has started and that still run, but for the agents of a node, which go by themselves."""
        return [number for number in working_in(self._folder, agents=False) if number != self._process.pid]

    @property
    def stdout(self):
        return Path(self._folder, "stdout").read_text()

    @property
    def stderr(self):
        return Path(self._folder, "stderr").read_text()
