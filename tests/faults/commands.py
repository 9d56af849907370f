"""Runs `pucache` as real processes, which can be killed.

A *zygote* has imported everything the commands import, and forks a process for each command; that
takes some milliseconds where a fresh one takes seconds. `plain` starts a fresh one all the same.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.hangs import HANG_SECONDS

ROOT = Path(__file__).parents[2]
EPOCH = "1700000000"
BLOCK_ROWS = 16  # images in one part, so that a small source has several
SHOWN = re.compile(r"[a-z ]+ ([\d,]+)(/[\d,]+)?  .*/s.*")
GOING_ON = re.compile(r"going on from [\d,]+ images in .*")
PLAIN = "from pucache.cli.main import run; run()"
Twists = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit code (minus the signal that killed it), what it said, what it had made safe."""

    code: int
    stdout: str
    stderr: str
    acknowledged: int

    @property
    def said(self) -> list[str]:
        """Lines on stderr that tell neither progress nor what there was to go on from."""
        lines = [line for line in self.stderr.splitlines() if line]
        return [line for line in lines if not SHOWN.fullmatch(line) and not GOING_ON.fullmatch(line)]

    @property
    def result(self) -> dict[str, Any]:
        """What --json printed."""
        return dict(json.loads(self.stdout))


class Command:
    """A running command, in a session of its own, whose output goes to files in `log`."""

    def __init__(self, pid: int, log: Path):
        self.pid, self._log = pid, log
        self._outcome: Outcome | None = None

    def code(self, seconds: float) -> int | None:
        """The exit code, or None where it still runs after so many seconds."""
        raise NotImplementedError

    def signal(self, number: int) -> None:
        """Send a signal to it alone, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> Outcome:
        """Kill it and whatever it has started, as an out-of-memory killer or a lost machine does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self.wait()

    def interruptible(self) -> bool:
        """Whether it has begun: it handles SIGTERM."""
        with contextlib.suppress(OSError, IndexError):
            caught = Path(f"/proc/{self.pid}/status").read_text().split("SigCgt:")[1].split()[0]
            return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
        return True  # gone already

    def begun(self) -> None:
        """Wait until it is interruptible."""
        while self.code(0.002) is None and not self.interruptible():
            pass

    def wait(self, seconds: float = HANG_SECONDS) -> Outcome:
        """Wait for its end; one that does not end is killed, and an error."""
        if self._outcome is None:
            code = self.code(seconds)
            if code is None:
                os.killpg(self.pid, signal.SIGKILL)
                raise AssertionError(f"the command still ran after {seconds} s; {self._log}")
            acknowledged = self._log / "acknowledged"
            safe = sum(map(int, acknowledged.read_text().split())) if acknowledged.exists() else 0
            self._outcome = Outcome(code, *self._texts(), safe)
        return self._outcome

    def _texts(self) -> tuple[str, str]:
        """What it said on stdout and on stderr."""
        raise NotImplementedError


class _Forked(Command):
    def __init__(self, zygote: Zygote, pid: int, log: Path, pipes: list[int]):
        super().__init__(pid, log)
        self._zygote, self._pipes = zygote, pipes

    def code(self, seconds: float) -> int | None:
        return self._zygote.code(self.pid, seconds)

    def _texts(self) -> tuple[str, str]:
        stdout, stderr = map(_drain, self._pipes)
        return stdout, stderr


class _Plain(Command):
    def __init__(self, process: subprocess.Popen[bytes], log: Path):
        super().__init__(process.pid, log)
        self._process = process

    def code(self, seconds: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def _texts(self) -> tuple[str, str]:
        return (self._log / "stdout").read_text(), (self._log / "stderr").read_text()


class Zygote:
    """Starts commands; a context manager. `logs` is a folder for what they say."""

    def __init__(self, logs: Path):
        self._logs, self._count = logs, 0
        self._codes: dict[int, int] = {}

    def __enter__(self) -> Zygote:
        here, there = socket.socketpair()
        command = [sys.executable, "-m", "faults.commands", str(there.fileno())]
        environ = _environ() | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
        self._process = subprocess.Popen(
            command, pass_fds=[there.fileno()], env=environ, stdin=subprocess.DEVNULL, start_new_session=True
        )
        there.close()
        self._socket, self._stream = here, here.makefile("r")
        assert self._next(HANG_SECONDS) == {"ready": True}, "the zygote did not start"
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()
        self._socket.close()
        self._process.wait(HANG_SECONDS)

    def start(self, command: list[str], folder: Path, *, twists: Twists | None = None, **environ: str) -> Command:
        """Fork a process that runs `pucache` with these arguments in `folder`, with `twists` applied first."""
        log = self._log()
        pipes = [_pipe(log / name) for name in ("stdout", "stderr")]  # no files, on which the limits under test act too
        request = {
            "command": command, "folder": str(folder), "log": str(log), "twists": twists or [], "environ": environ
        }  # fmt: skip
        self._socket.sendall((json.dumps(request) + "\n").encode())
        while "started" not in (answer := self._next(HANG_SECONDS)):
            self._codes[answer["ended"]] = answer["code"]
        self._codes.pop(answer["started"], None)  # of an earlier process: numbers are used again
        return _Forked(self, answer["started"], log, pipes)

    def plain(self, command: list[str], folder: Path, **environ: str) -> Command:
        """Start the command as a user does, by a fresh interpreter; what it made safe is then not told."""
        log = self._log()
        with open(log / "stdout", "wb") as stdout, open(log / "stderr", "wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-c", PLAIN, *command],
                cwd=folder,
                env=_environ() | {"PYTHONPATH": str(ROOT)} | environ,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        return _Plain(process, log)

    def run(self, command: list[str], folder: Path, **options: Any) -> Outcome:
        """Start and wait."""
        return self.start(command, folder, **options).wait()

    def code(self, pid: int, seconds: float) -> int | None:
        """The exit code of a child, or None where it still runs after so many seconds."""
        ends = time.monotonic() + seconds
        while pid not in self._codes:
            try:
                answer = self._next(max(0.0005, ends - time.monotonic()))
            except TimeoutError:
                return None
            self._codes[answer["ended"]] = answer["code"]
        return self._codes[pid]

    def _next(self, seconds: float) -> dict[str, Any]:
        with selectors.DefaultSelector() as ready:
            ready.register(self._socket, selectors.EVENT_READ)
            if not ready.select(seconds):
                raise TimeoutError
        line = b""
        while not line.endswith(b"\n"):  # not through the buffer of a stream, of which select knows nothing
            byte = self._socket.recv(1)
            assert byte, "the zygote is gone"
            line += byte
        return dict(json.loads(line))

    def _log(self) -> Path:
        self._count += 1
        log = self._logs / f"{self._count:05}"
        log.mkdir()
        return log


def _environ() -> dict[str, str]:
    return {**os.environ, "SOURCE_DATE_EPOCH": EPOCH, "HF_HUB_OFFLINE": "1"}


def _pipe(path: Path) -> int:
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)  # nobody reads before the end
    return reader


def _drain(reader: int) -> str:
    said = b""
    with contextlib.suppress(BlockingIOError):
        while more := os.read(reader, 1 << 16):
            said += more
    os.close(reader)
    return said.decode()


# --- in the zygote -----------------------------------------------------------------------------


def _serve(channel: socket.socket) -> None:
    """Fork a child for each line that comes; say when it starts and ends. Ends, with all children, with the channel."""
    from faults import twists

    twists.warm()
    ready, children = selectors.DefaultSelector(), {}
    ready.register(channel, selectors.EVENT_READ)
    lines = channel.makefile("rb", buffering=0)
    channel.sendall(b'{"ready": true}\n')
    while True:
        for key, _ in ready.select():
            if key.fileobj is channel:
                request = lines.readline()
                if not request:
                    for pid in children.values():
                        os.killpg(pid, signal.SIGKILL)
                    return
                pid = os.fork()
                if pid == 0:
                    ready.close()
                    lines.close()
                    channel.close()
                    _end(_child(json.loads(request)))
                handle = os.pidfd_open(pid)
                children[handle] = pid
                ready.register(handle, selectors.EVENT_READ)
                channel.sendall(json.dumps({"started": pid}).encode() + b"\n")
            else:
                ready.unregister(key.fileobj)
                pid = children.pop(key.fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.close(key.fd)
                channel.sendall(json.dumps({"ended": pid, "code": code}).encode() + b"\n")


def _child(request: dict[str, Any]) -> int:
    """Become the command."""
    from faults import twists
    from pucache.cli.main import run

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = Path(request["log"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(log / name, os.O_WRONLY)
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.update(request["environ"])
    twists.acknowledge(str(log / "acknowledged"))
    for name, arguments in request["twists"]:
        getattr(twists, name)(**arguments)
    try:
        run(request["command"])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> None:
    """End as an interpreter does, but for the seconds that taking down so many modules takes; `plain` covers that."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
