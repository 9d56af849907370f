"""Starts commands and functions as real processes, forked from one that has imported everything."""

import multiprocessing
import os
import pickle
import signal
import socket
from multiprocessing import forkserver
from pathlib import Path

import pytest  # noqa: F401  as the children import what was started, which is pytest
import torch

import pucache.cli.main
import pucache.pretrain

_context = multiprocessing.get_context("forkserver")


def _begin():
    """Let the process that children are forked from import this module; Python 3.11 does not tell it where that is."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    _context.set_forkserver_preload([__name__])
    forkserver.ensure_running()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


class Started:
    """`pucache` with some arguments, as a process of its own; `log` is a folder for what it says."""

    def __init__(self, arguments, log, **environ):
        self.log = log
        log.mkdir(parents=True)
        _begin()
        self._process = _context.Process(target=_be_pucache, args=(list(map(str, arguments)), str(log), environ))
        self._process.start()

    def signal(self, number):
        os.kill(self._process.pid, number)

    def running(self):
        return self._process.is_alive()

    def wait(self):
        """Its exit code; minus the number of the signal that ended it."""
        self._process.join(60)
        if self._process.is_alive():
            self._process.kill()
            raise AssertionError(f"it still ran after a minute: {self.stderr}")
        return self._process.exitcode

    @property
    def stdout(self):
        return (self.log / "stdout").read_text()

    @property
    def stderr(self):
        return (self.log / "stderr").read_text()


def in_two(work, *arguments):
    """What a function returns in each of two processes that know of each other as torchrun tells them."""
    _begin()
    pipes = [_context.Pipe(duplex=False) for _ in range(2)]
    both = [
        _context.Process(target=_tell, args=(pipe[1], place, work, *arguments))
        for pipe, place in zip(pipes, torchrun_says(2), strict=True)
    ]
    try:
        for process, (_, there) in zip(both, pipes, strict=True):
            process.start()
            there.close()  # so that its end is seen here
        return [_heard(here) for here, _ in pipes]
    finally:
        for process, (here, _) in zip(both, pipes, strict=True):
            here.close()
            process.kill()
            process.join()


def _heard(pipe):
    assert pipe.poll(60), "it did not end within a minute"
    return pickle.loads(pipe.recv_bytes())


def torchrun_says(count):
    """The variables that torchrun sets for each of so many processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    return [{**shared, "RANK": str(number), "LOCAL_RANK": str(number)} for number in range(count)]


def _tell(pipe, environ, work, *arguments):
    os.environ.update(environ)
    torch.set_num_threads(1)
    pipe.send_bytes(pickle.dumps(work(*arguments)))  # tensors by value: they outlive this process


def _be_pucache(arguments, log, environ):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environ)
    for number, name in ((1, "stdout"), (2, "stderr")):
        with Path(log, name).open("wb") as file:
            os.dup2(file.fileno(), number)
    torch.set_num_threads(1)
    pucache.cli.main.run(arguments)
