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

import torch

import pucache.cli.main
from helpers import started
from helpers.hangs import HANG_SECONDS
from helpers.tiny import tiny_encoder
from pucache.embedding import row_blocks
from pucache.encoders import encoder
from pucache.images import source as images

TESTS = Path(__file__).parents[1]
BLOCK = 40  # rows


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
        ray = Path(sys.executable).with_name("ray")
        command = [
            ray,
            "start",
            "--block",
            "--node-ip-address=127.0.0.1",
            "--include-log-monitor=false",
            *role,
            *arguments,
        ]
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
    """`pucache embed` of a folder, or of a source and with an encoder of the tests; a process that runs within `with`.

    Parameters
    ----------
    source : Source or Path
    cache : Path
    options : str
    environ : str
        Further variables; an empty one is unset.
    """

    def __init__(self, source, cache, *options, **environ):
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))  # that it and all that it starts work in
        name = str(source) if isinstance(source, Path) else source.name
        arguments = ["embed", name, str(cache), "--engine", "ray", *options]
        started._begin()
        how = (arguments, source, str(self.folder), variables(**environ))
        self._process = started._context.Process(target=_be_command, args=how)

    def __enter__(self):
        self._process.start()
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.join()
        end(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def send(self, number):
        """Send a signal."""
        os.kill(self._process.pid, number)

    def wait(self):
        """Its exit code; minus the number of the signal that ended it."""
        self._process.join(HANG_SECONDS)
        assert self._process.exitcode is not None, f"it still runs: {self.stderr}"
        return self._process.exitcode

    def left(self, *, agents=True):
        """Processes that it has started, and they, and that still run, Ray's agents of a node among them or not."""
        return [number for number in working_in(self.folder, agents) if number != self._process.pid]

    @property
    def stdout(self):
        return (self.folder / "stdout").read_text()

    @property
    def stderr(self):
        return (self.folder / "stderr").read_text()


def _be_command(arguments, source, folder, environ):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environ)
    for name in [name for name in environ if not environ[name]]:
        del os.environ[name]
    os.chdir(folder)
    for number, name in ((1, "stdout"), (2, "stderr")):
        with Path(name).open("wb") as file:
            os.dup2(file.fileno(), number)
    torch.set_num_threads(1)
    if not isinstance(source, Path):
        row_blocks.BLOCK_ROWS = BLOCK
        images.open_source = lambda where: source
        encoder.load_encoder = lambda *arguments, **options: tiny_encoder()
    pucache.cli.main.run(arguments)
