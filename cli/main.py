"""The `pucache` command: its verbs, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from pucache.errors import PUCacheError
from pucache.version import __version__

from .demo import demo
from .embed import embed
from .estimate_prior import estimate_prior
from .evaluate import evaluate
from .import_embeddings import import_embeddings
from .info import info
from .output import printable
from .pack import pack
from .pretrain import pretrain
from .report import report
from .retrieve_positives import retrieve_positives
from .score import score
from .sweep_priors import sweep_priors
from .train_pu import train_pu
from .verify import verify


class Terminated(KeyboardInterrupt):
    """SIGTERM, treated as Ctrl-C is."""


class Failure(click.ClickException):
    """A file, a source or a machine would not do: one line, exit code 1."""


class WrongUsage(click.ClickException):
    """An argument outside its domain: one line, exit code 2."""

    exit_code = 2


class Verbs(click.Group):
    """Turns the library's errors into one line each; PUCACHE_DEBUG=1 shows the traceback instead."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence of each verb's help to its end, which click would cut off."""
        rows = [(name, verb.get_short_help_str(limit=200)) for name, verb in sorted(self.commands.items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            click.echo("\ninterrupted; nothing is lost: run the same command again to go on", err=True)
            ctx.exit(128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT))
        except (PUCacheError, ValueError, MemoryError) as error:
            if os.environ.get("PUCACHE_DEBUG"):
                raise
            wrong_usage = isinstance(error, ValueError) and not isinstance(error, PUCacheError)
            text = printable(" ".join(str(error).split())) or "out of memory"
            raise (WrongUsage if wrong_usage else Failure)(text) from error


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Find the positives hidden among unlabelled images, from a few labelled ones.

    \b
    pucache embed photos/ cache.h5                      images -> embeddings, once
    pucache train-pu cache.h5 --positives found.txt
    pucache retrieve-positives cache.h5 --positives found.txt
    pucache score model.safetensors cache.h5

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done with failures under --strict, 130 or 143
    interrupted.
    """
    _say_what_the_library_logs()
    ctx.with_resource(_interruptible())


def _say_what_the_library_logs() -> None:
    log = logging.getLogger("pucache")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_OneLine())
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False


class _OneLine(logging.Formatter):
    """A message as it can be shown on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C; send either again where it struck inside a `__del__`, in which Python drops it."""
    terminate, report = signal.getsignal(signal.SIGTERM), sys.unraisablehook

    def send_again(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            return report(dropped)
        number = signal.SIGTERM if isinstance(dropped.exc_value, Terminated) else signal.SIGINT
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()

    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = send_again
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, terminate)
        sys.unraisablehook = report


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


for verb in (
    embed,
    import_embeddings,
    pretrain,
    train_pu,
    sweep_priors,
    estimate_prior,
    retrieve_positives,
    score,
    evaluate,
    report,
    info,
    verify,
    pack,
    demo,
):
    main.add_command(verb)


def run(arguments: list[str] | None = None) -> None:
    """Be the program `pucache`: run the command, and let nothing interrupt the end.

    Everything is written and said by then. A signal that comes later ends the process at once, with
    the exit code there is, rather than with a traceback of some library that was clearing up.
    """
    code = 0
    try:
        main(arguments, prog_name="pucache")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: os._exit(code))
