"""The `pucache` command: finds the commands by name, and turns errors into messages and exit codes."""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import sys
import threading
from collections import UserDict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

import click

from pucache.devices import device_memory_shortage
from pucache.errors import PUCacheError, UnknownEncoderError, one_line
from pucache.storage.interrupts import raise_after_imports
from pucache.threads import set_thread_defaults
from pucache.version import __version__

from .output import printable
from .removed import REMOVED

# Commands by heading, with the first sentence of their help: `pucache --help` imports none of them.
HEADINGS = {
    "Find and count": {
        "embed": "Embed images into a cache, once.",
        "review": "Accept and reject images, and see what is still hidden.",
        "audit": "Say how many positives a review has left hidden.",
        "labels": "Turn the labels of any program into one table.",
        "retrieve-positives": "Rank the unlabelled images, likely positives first.",
    },
    "Classify": {
        "train-pu": "Train a classifier on positives and unlabelled images.",
        "score": "Score a cache, or new images, with a model.",
        "evaluate": "Compute the metrics of scores against true labels.",
        "report": "Write a page: how many positives, how good the classifier.",
        "estimate-prior": "Estimate the share of positives among the unlabelled.",
        "sweep-priors": "Train at many priors, and say what the prior changes.",
    },
    "Caches": {
        "info": "Print what a cache holds.",
        "verify": "Check every byte of files that pucache wrote.",
        "pack": "Merge cache files of one encoder into one.",
        "export": "Write a cache as Parquet, or a model as ONNX.",
        "import-embeddings": "Make a cache of embeddings from another program.",
        "cache-dir": "Print the copies of remote caches on this machine.",
    },
    "Encoders and demo": {
        "pretrain": "Learn an encoder from your own images, without labels.",
        "demo": "Run all steps on images that come with pucache.",
    },
}
SENTENCES = {name: sentence for commands in HEADINGS.values() for name, sentence in commands.items()}
_IN_A_LINE = ("Caches",)  # headings whose commands are named alone


class LazyCommands(UserDict[str, Any]):
    """Commands by name; the module of a command is imported when the command is first asked for."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(command := super().__getitem__(name), click.Command):
            return command
        function = name.replace("-", "_")
        self[name] = getattr(import_module(f".{function}", __package__), function)
        return self[name]


_NO_DECOMPOSITION = (
    "the embeddings cannot be decomposed: a cache is damaged, or was overwritten while it was read; pucache verify "
    "FILE tells"
)
_NO_MEMORY = re.compile("an.t allocate memory|failed to map segment|bad_alloc|can't start new thread")


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled like Ctrl-C."""


class Failure(click.ClickException):
    """A problem with a file, a source or the machine: one line, exit code 1."""


class WrongUsage(click.ClickException):
    """An argument outside its domain: one line, exit code 2."""

    exit_code = 2


class Commands(click.Group):
    """Turns errors of the library into one line each; PUCACHE_DEBUG=1 shows the traceback instead."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings; the two options are named in the text."""
        formatter.write("\n")
        width = max(map(len, SENTENCES))
        for heading, commands in HEADINGS.items():
            formatter.write(f"{heading}\n")
            if heading in _IN_A_LINE:
                formatter.write(f"  {'  '.join(commands)}\n")
            else:
                formatter.write("".join(f"  {name:{width}}  {said}\n" for name, said in commands.items()))
        formatter.write("\nExit codes: 0 done, 1 failed, 2 wrong usage, 3 with failures, 130/143 stopped.\n")

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            for number in (signal.SIGINT, signal.SIGTERM):  # a second one would end as click's "Aborted!", with 1
                signal.signal(number, signal.SIG_IGN)
            click.echo("\ninterrupted: run the same command again; it goes on from what is on disk", err=True)
            ctx.exit(128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT))
        except click.ClickException as error:  # of click itself, which repeats arguments
            _refuse_removed(error)
            error.message = printable(error.message)  # type: ignore[misc]  # which is final for its children
            raise
        except (PUCacheError, ValueError, MemoryError) as error:
            if os.environ.get("PUCACHE_DEBUG"):
                raise
            wrong_usage = isinstance(error, ValueError) and not isinstance(error, PUCacheError)
            text = printable(" ".join(str(error).split()))
            if _of_linear_algebra(error):
                raise Failure(_NO_DECOMPOSITION) from error
            if isinstance(error, MemoryError):
                text = f"out of memory: {text}" if text else "out of memory"
            raise (WrongUsage if wrong_usage or isinstance(error, UnknownEncoderError) else Failure)(text) from error
        except (RuntimeError, ImportError) as error:
            shortage = device_memory_shortage(error)
            if shortage is None and _NO_MEMORY.search(str(error)):  # the operating system refused it
                shortage = f"out of memory: {one_line(error)}"
            elif shortage is None and _of_linear_algebra(error):
                shortage = _NO_DECOMPOSITION
            if shortage is None or os.environ.get("PUCACHE_DEBUG"):
                raise
            raise Failure(shortage) from error


def _of_linear_algebra(error: Exception) -> bool:
    """Whether NumPy or torch could not decompose a matrix, which finite embeddings of a sound cache always allow."""
    return type(error).__name__.endswith("LinAlgError")


def _refuse_removed(error: click.ClickException) -> None:
    """Raise `WrongUsage` with what to do instead where the error is about an option, or its value, that went."""
    command = context.info_name or "" if (context := getattr(error, "ctx", None)) else ""
    gone = REMOVED.get(command, {})
    if isinstance(error, click.NoSuchOption):
        name = error.option_name
    elif isinstance(error, click.BadParameter) and error.param:
        values = re.findall(r"'([^']*)' is not one of", error.message)
        name = f"{error.param.opts[0]} {''.join(values)}"
    else:
        return
    if instead := gone.get(name):
        raise WrongUsage(f"{command} has no {name} any more: {instead}") from error


@click.group(
    cls=Commands,
    commands=LazyCommands(SENTENCES),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(__version__)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Find positives hidden among unlabelled images, from a few examples or words.

    \b
    pucache embed photos/ cache.h5               images -> embeddings, once
    pucache review cache.h5 --words 'a ship'     accept, reject, count the hidden
    pucache train-pu cache.h5                    -> model.safetensors
    pucache score model.safetensors new/         -> new.scores.csv
    pucache report cache.h5                      -> report.html

    pucache COMMAND --help lists its options; pucache --version is the version.
    """
    _print_log_messages()
    ctx.with_resource(_interruptible())


def _print_log_messages() -> None:
    """Print the library's log on stderr, unless the program that calls has set up logging."""
    log = logging.getLogger("pucache")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_PrintableFormatter())
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False


class _PrintableFormatter(logging.Formatter):
    """Escapes what a terminal cannot show, and leaves out the secrets of URLs."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise on Ctrl-C and SIGTERM. Python drops either inside a `__del__`; it is then sent again."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    previous_hook = sys.unraisablehook

    def send_again(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            return previous_hook(dropped)
        number = signal.SIGTERM if isinstance(dropped.exc_value, Terminated) else signal.SIGINT
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()

    for number in previous:
        signal.signal(number, _interrupt)
    sys.unraisablehook = send_again
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
        sys.unraisablehook = previous_hook


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise_after_imports(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())


def run(arguments: list[str] | None = None) -> None:
    """Run `pucache`; a standard output that cannot be written, such as a full disk, is one line.

    A signal that arrives after the command has finished ends the process at once with the command's
    exit code, instead of a traceback from a library that is shutting down.
    """
    set_thread_defaults()  # before numpy and torch are imported
    code = 0
    try:
        main(arguments, prog_name="pucache")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        _discard_unwritten()
        raise
    except OSError as error:
        if error.errno is None or os.environ.get("PUCACHE_DEBUG"):
            raise
        code = 1
        Failure(printable(f"{error.filename or 'cannot write the standard output'}: {error.strerror}")).show()
        _discard_unwritten()
        sys.exit(code)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: os._exit(code))
        atexit.register(_ignore_signals)


def _discard_unwritten() -> None:
    """Discard what the standard output could not take: Python would try again at its end, and fail with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _ignore_signals() -> None:
    """Ignore signals while Python ends, as it puts the default handlers back, which would kill a finished command."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
