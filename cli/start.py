"""The console script `pucache`: Ctrl-C and SIGTERM end it in one line from its first moment on.

Nothing is imported here that Python has not loaded itself; the commands are imported under the handler.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def run(arguments: list[str] | None = None) -> None:
    """Run `pucache` with `arguments`, by default those of the process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_before_the_command)
    _read_names_as_utf8()
    _require_standard_output()
    from .main import run as run_command

    run_command(arguments)


def _read_names_as_utf8() -> None:
    """Start anew where the locale has another encoding than UTF-8, in which names of files would be other names."""
    if sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606


def _require_standard_output() -> None:
    """End with 1 where the standard output is closed, as every command prints; no other file may take its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:  # neither progress nor log; the work is done all the same
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        os.write(2, b"Error: the standard output is closed; name a file, or discard it with > /dev/null\n")
        sys.exit(1)


def _end_before_the_command(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + number)
