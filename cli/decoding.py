"""Options on the way from the bytes of images to their pixels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from pucache.images.decoding import Decoding

from . import options

_DECODING = options.all_of(
    options.option(
        "--white-level",
        type=click.IntRange(1, 65535),
        metavar="N",
        help="Value of 16-bit images that becomes white, such as 4095 where they use 12 bits.  [default: 65535, or "
        "that of the RUN_DIR]",
    ),
    options.option("--accept-truncated", is_flag=True, help="Take what is there of image files that are cut off."),
    options.option(
        "--large-images",
        is_flag=True,
        help="Take JPEG files of more than 178,956,970 pixels, at a part of their size.",
    ),
)


def decoding_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options on the way from bytes to pixels, which become `decoding`: None where none is given."""

    @functools.wraps(command)
    def run(*args: Any, **parameters: Any) -> Any:
        chosen = {name: parameters.pop(name) for name in ("white_level", "accept_truncated", "large_images")}
        chosen = {name: value for name, value in chosen.items() if value}
        return command(*args, decoding=Decoding(**chosen) if chosen else None, **parameters)

    return _DECODING(run)
