"""A cluster of Ray on this machine, made of the processes that one of many machines has, and commands that use it."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from helpers.hangs import HANG_SECONDS

TESTS = Path(__file__).parents[1]


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def variables(**further):
    """Of a process that imports what the tests do; Ray's workers give way to others no more than we do."""
    path = [further.pop("PYTHONPATH", ""), str(TESTS), os.environ.get("PYTHONPATH", "")]
    ray = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    return {**ray, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, path)), **further}


def eventually(happens, seconds=HANG_SECONDS):
    """Wait until something is so; returns whether it came to be."""
    deadline = time.monotonic() + seconds
    while not happens() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(happens())


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


class Cluster:
    """Nodes that run within `with` and not beyond."""

    def __enter__(self):
        self._folder = Path(tempfile.mkdtemp(prefix="ray-"))  # a short path: sockets lie in it
        self._nodes = []
        self.address = f"127.0.0.1:{free_port()}"
        return self

    def __exit__(self, *_):
        end(self._folder)  # asked to, Ray does so half a minute later
        for node in self._nodes:
            node.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self, *arguments, **environ):
        """Start a node, the first of which is the head; returns it."""
        role = [f"--address={self.address}"]
        if not self._nodes:
            role = ["--head", f"--port={self.address.split(':')[1]}", f"--temp-dir={self._folder}"]
            role += ["--include-dashboard=false", "--no-monitor"]
        command = [Path(sys.executable).with_name("ray"), "start", "--block", "--node-ip-address=127.0.0.1"]
        command += ["--include-log-monitor=false", *role, *arguments]
        with Path(self._folder, f"{len(self._nodes)}.txt").open("wb") as log:
            environ = {**os.environ, **variables(**environ)}
            node = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environ, cwd=self._folder
            )
        self._nodes.append(node)
        if len(self._nodes) == 1:
            assert eventually(lambda: self._answers() or node.poll() is not None) and self._answers(), self.logs
        return node

    def _answers(self):
        host, port = self.address.split(":")
        with socket.socket() as asking:
            return asking.connect_ex((host, int(port))) == 0

    @property
    def logs(self):
        """What the nodes have said."""
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.txt")))

    def stop(self, node):
        """End a node and everything that it started."""
        node.terminate()
        try:
            node.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()


class Command:
    """`pucache` with some arguments as a process, which runs within `with` and not beyond, nor what it has started."""

    def __init__(self, *arguments, **environ):
        self._folder = Path(tempfile.mkdtemp(prefix="ray-"))  # that it and all that it starts work in
        self._command = [sys.executable, "-m", "pucache", *map(str, arguments)]
        self._environ = {**os.environ, **variables(**environ)}

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
