"""Whether a network that somebody's configuration describes can have its weights, before memory is taken for it."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import EncoderError, one_line
from ..storage.limits import NETWORK_SIDE, NETWORK_TIMES

_COUNTS = re.compile(r"layer|depth|block|stage|repeat")  # names of numbers that count parts of a network
_SIDES = re.compile(r"size|width|dim|length|channel|chans|hidden|embed|features")


def require_network_of_weights(
    config: Any, shapes: Sequence[Sequence[int]], build: Callable[[], torch.nn.Module], holder: str | Path
) -> None:
    """Raise `EncoderError` where a configuration describes a larger network than its weights are of.

    No part of a network is without a tensor, no side of one longer than the longest, within `NETWORK_SIDE`; and what
    `build` makes, without memory, has at most `NETWORK_TIMES` as many parameters as there are numbers.
    """
    longest = max((side for shape in shapes for side in shape), default=0)
    for name, number in _numbers(config):
        if number > (len(shapes) if _COUNTS.search(name) else max(longest, NETWORK_SIDE)):
            found = f"{len(shapes):,} tensors, the longest side of which is {longest:,}"
            raise EncoderError(f"{holder} describes a network with {name} {number:,}, and its weights are {found}")
    held = sum(map(math.prod, shapes))
    heard = logging.root.manager.disable
    logging.disable(logging.WARNING)  # open_clip's, that no weights are loaded
    try:
        with torch.device("meta"):
            needed = sum(parameter.numel() for parameter in build().parameters())
    except Exception as error:  # torch and the libraries of networks raise almost anything
        raise EncoderError(f"{holder} describes no network that can be built ({one_line(error)[:160]})") from error
    finally:
        logging.disable(heard)
    if needed > NETWORK_TIMES * held:
        raise EncoderError(
            f"{holder} describes a network of {needed:,} parameters, more than {NETWORK_TIMES} times the {held:,} "
            "numbers of its weights"
        )


def _numbers(config: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Numbers of a configuration that count something or are the side of something, by their names."""
    if isinstance(config, dict):
        for each, value in config.items():
            yield from _numbers(value, str(each))
    elif isinstance(config, list):
        for value in config:
            yield from _numbers(value, name)
    elif isinstance(config, int | float) and (_COUNTS.search(name) or _SIDES.search(name)):
        yield name, config
