"""The `pucache` command: registers all commands, and turns errors into messages and exit codes."""

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
from pucache.threads import set_thread_defaults
from pucache.version import __version__

from .audit import audit
from .cache_dir import cache_dir
from .demo import demo
from .embed import embed
from .estimate_prior import estimate_prior
from .evaluate import evaluate
from .export import export
from .import_embeddings import import_embeddings
from .info import info
from .output import printable
from .pack import pack
from .pretrain import pretrain
from .report import report
from .retrieve_positives import retrieve_positives
from .review import review
from .score import score
from .sweep_priors import sweep_priors
from .train_pu import train_pu
from .verify import verify


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled like Ctrl-C."""


class Failure(click.ClickException):
    """A problem with a file, a source or the machine: one line, exit code 1."""


class WrongUsage(click.ClickException):
    """An argument outside its domain: one line, exit code 2."""

    exit_code = 2


class Commands(click.Group):
    """Turns errors of the library into one line each; PUCACHE_DEBUG=1 shows the traceback instead."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the whole first sentence of each command's help, which click would shorten."""
        rows = [(name, command.get_short_help_str(limit=200)) for name, command in sorted(self.commands.items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
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
        except RuntimeError as error:
            from pucache.devices import device_memory_shortage

            shortage = None if os.environ.get("PUCACHE_DEBUG") else device_memory_shortage(error)
            if shortage is None:
                raise
            raise Failure(shortage) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Find the positives hidden among unlabelled images, from a few labelled ones.

    \b
    pucache embed photos/ cache.h5                      images -> embeddings, once
    pucache review cache.h5 --positives found.txt       look, decide, and see what is still hidden
    pucache train-pu cache.h5 --positives found.txt
    pucache retrieve-positives cache.h5 --positives found.txt
    pucache score model.safetensors cache.h5

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done with failures under --strict, 130 or 143
    interrupted.
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
    """Escapes what a terminal cannot show."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C. Python drops either inside a `__del__`; it is then sent again."""
    previous_handler, previous_hook = signal.getsignal(signal.SIGTERM), sys.unraisablehook

    def send_again(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            return previous_hook(dropped)
        number = signal.SIGTERM if isinstance(dropped.exc_value, Terminated) else signal.SIGINT
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()

    signal.signal(signal.SIGTERM, _raise_terminated)
    sys.unraisablehook = send_again
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
        sys.unraisablehook = previous_hook


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated


for _command in (
    embed,
    import_embeddings,
    pretrain,
    train_pu,
    sweep_priors,
    estimate_prior,
    retrieve_positives,
    review,
    score,
    evaluate,
    report,
    audit,
    info,
    verify,
    pack,
    export,
    cache_dir,
    demo,
):
    main.add_command(_command)


def run(arguments: list[str] | None = None) -> None:
    """Run `pucache`, the console script.

    A signal that arrives after the command has finished ends the process at once with the command's
    exit code, instead of a traceback from a library that is shutting down.
    """
    set_thread_defaults()  # before numpy and torch are imported
    code = 0
    try:
        main(arguments, prog_name="pucache")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: os._exit(code))
