"""Starts commands and functions as real processes, forked from one that has imported everything."""

import contextlib
import importlib
import multiprocessing
import operator
import os
import pickle
import pkgutil
import signal
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

import pytest  # noqa: F401  as the children import what was started, which is pytest
import torch

import pucache.cli.main
import pucache.pretraining.pretrain
from helpers.hangs import HANG_SECONDS
from pucache.pretraining.train_step import Training

for name in ("faiss", "h5py", "matplotlib.pyplot", "pyarrow.parquet", "sklearn.linear_model", "timm"):
    importlib.import_module(name)  # as each command would, for seconds

_context = multiprocessing.get_context("forkserver")


def _begin():
    """Let the process that children are forked from import this module; Python 3.11 does not tell it where that is."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), before]))
    _context.set_forkserver_preload([__name__])
    forkserver.ensure_running()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@dataclass(frozen=True)
class Strike:
    """A signal that a process sends itself, or an error that it meets, always at the same point of its work.

    Attributes
    ----------
    number : int
        Of the signal; of the error where it is negative.
    function : str
        Its full name, such as ``os.replace``.
    call : int
        At which call of it, from 1.
    of : str
        Calls without this in an argument do not count.
    after : bool
        When the function is done, and not before it begins.
    """

    number: int
    function: str
    call: int = 1
    of: str = ""
    after: bool = False

    def prepare(self):
        """Put what strikes in the place of the function."""
        place, _, name = self.function.rpartition(".")
        owner = pkgutil.resolve_name(place)
        genuine, calls = operator.attrgetter(name)(owner), 0

        def striking(*arguments, **named):
            nonlocal calls
            calls += not self.of or any(self.of in str(argument) for argument in arguments)
            due = calls == self.call
            calls += due  # once
            if due and self.number < 0:
                raise OSError(-self.number, os.strerror(-self.number))
            if due and not self.after:
                signal.raise_signal(self.number)
            result = genuine(*arguments, **named)
            if due and self.after:
                signal.raise_signal(self.number)
            return result

        setattr(owner, name, striking)


class Started:
    """`pucache` with some arguments, as a process that runs within `with` and not beyond.

    Parameters
    ----------
    arguments : sequence
    log : Path
        A new folder for what it says.
    strike : Strike, optional
        Or anything else with a method `prepare`, which is called before the command.
    environ : str
        Further variables.
    """

    def __init__(self, arguments, log, *, strike=None, **environ):
        self.log = log
        log.mkdir(parents=True)
        _begin()
        how = (list(map(str, arguments)), str(log), strike, environ)
        self._process = _context.Process(target=_be_pucache, args=how)

    def __enter__(self):
        self._process.start()
        return self

    def __exit__(self, *_):
        self._process.kill()  # whatever the test has come to: pytest would wait for it at its end
        self._process.join()

    def wait(self):
        """Its exit code; minus the number of the signal that ended it."""
        self._process.join(HANG_SECONDS)
        assert self._process.exitcode is not None, f"it does not end: {self.stderr}"
        return self._process.exitcode

    @property
    def running(self):
        return self._process.is_alive()

    @property
    def stdout(self):
        return (self.log / "stdout").read_text()

    @property
    def stderr(self):
        return (self.log / "stderr").read_text()

    @property
    def steps(self):
        """Numbers of the training steps that it took."""
        return list(map(int, (self.log / "steps").read_text().split()))


def in_two(work, *arguments):
    """What a function returns in each of two processes that know of each other as torchrun tells them."""
    _begin()
    pipes = [_context.Pipe(duplex=False) for _ in range(2)]
    with torchrun_says(2) as environs:
        both = [
            _context.Process(target=_tell, args=(pipe[1], environ, work, *arguments))
            for pipe, environ in zip(pipes, environs, strict=True)
        ]
        try:
            for process, (_, there) in zip(both, pipes, strict=True):
                process.start()
                there.close()  # so that its end is seen here
            return [_heard(here) for here, _ in pipes]
        finally:
            for process, (here, _) in zip(both, pipes, strict=True):
                here.close()
                if process.pid is not None:
                    process.kill()
                    process.join()


def _heard(pipe):
    assert pipe.poll(HANG_SECONDS), "it does not end"
    return pickle.loads(pipe.recv_bytes())


@contextlib.contextmanager
def torchrun_says(count):
    """Yield the variables that torchrun sets for each of so many processes; like it, keep the store where they meet."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(count),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    yield [{**shared, "RANK": str(number), "LOCAL_RANK": str(number)} for number in range(count)]


def _tell(pipe, environ, work, *arguments):
    os.environ.update(environ)
    torch.set_num_threads(1)
    pipe.send_bytes(pickle.dumps(work(*arguments)))  # tensors by value: they outlive this process


def _be_pucache(arguments, log, strike, environ):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environ)
    for number, name in ((1, "stdout"), (2, "stderr")):
        with Path(log, name).open("wb") as file:
            os.dup2(file.fileno(), number)
    torch.set_num_threads(1)
    _write_down_steps(Path(log, "steps"))
    if strike is not None:
        strike.prepare()
    pucache.cli.main.run(arguments)


def _write_down_steps(path):
    genuine = Training.step
    stream = path.open("wb", buffering=0)  # nothing of which is lost when it is killed

    def step(self, number, images):
        result = genuine(self, number, images)
        stream.write(b"%d\n" % number)
        return result

    Training.step = step
