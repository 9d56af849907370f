"""Repositories of networks, on the hub or in a folder: their library, weights and licence.

Before memory is taken for a network that somebody's configuration describes, it is compared with its weights.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import torch

from ..errors import EncoderError, one_line
from ..storage.atomic import read_regular
from ..storage.limits import NETWORK_SIDE, NETWORK_TIMES

HUB, FOLDER = "hf-hub:", "local-dir:"  # before what timm and open_clip do not know by name
OPEN_CLIP_CONFIG = "open_clip_config.json"
_USUAL = ("model.safetensors", "pytorch_model.bin")
_WEIGHTS = (*(f"open_clip_{name}" for name in _USUAL), *_USUAL, "*.safetensors", "*.bin", "*.pth")  # in a folder


def canonical_name(name: str) -> str:
    """Name of a network in caches: timm's where timm has it, else ``hf-hub:ORG/NAME``."""
    repository = name.removeprefix(HUB)
    own = repository.removeprefix("timm/")
    return own if "/" not in own else HUB + repository


def is_repository(folder: str) -> bool:
    """Whether a folder is one as the hub has them."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in (OPEN_CLIP_CONFIG, "config.json"))


def library_of(repository: str) -> str:
    """``open_clip:`` or ``timm:``, by the configuration that a repository of the hub, or a folder, holds."""
    if os.path.isdir(repository):
        return "open_clip:" if Path(repository, OPEN_CLIP_CONFIG).is_file() else "timm:"
    reason = "it has neither"
    try:
        require_hub(repository)
        for file, library in ((OPEN_CLIP_CONFIG, "open_clip:"), ("config.json", "timm:")):
            with contextlib.suppress(huggingface_hub.errors.EntryNotFoundError):
                huggingface_hub.hf_hub_download(repository, file)
                return library
    except Exception as error:  # of the hub's client
        reason = one_line(error, 120)
    raise EncoderError(
        f"cannot find {OPEN_CLIP_CONFIG} or config.json of {HUB}{repository} ({reason}); name another repository, or a "
        "folder with its files"
    )


def configuration_of(folder: Path) -> dict[str, Any]:
    """The configuration of timm's network in a folder as the hub has them, with its name as ``architecture``.

    Raises `EncoderError` for one of another kind.
    """
    try:
        config = dict(json.loads(read_regular(folder / "config.json")))
    except (OSError, ValueError, TypeError) as error:
        raise EncoderError(
            f"{folder} has no config.json to read ({one_line(error, 120)}); expected a folder as the hub has them"
        ) from error
    if "architecture" in config:
        return config
    raise EncoderError(
        f"{folder} holds {config.get('model_type', 'no model')} of transformers, whose name in timm it does not say; "
        "use --encoder timm:NAME --weights FILE, or export it to ONNX"
    )


def weights_file(folder: Path) -> Path:
    """The file of weights in a folder as the hub has them."""
    files = [path for pattern in _WEIGHTS for path in sorted(folder.glob(pattern))]
    if not files:
        raise EncoderError(f"{folder} holds no weights; expected {' or '.join(_USUAL)} beside its configuration")
    return files[0]


def card_licence(card: str | Path) -> str:
    """Licence that the card of a repository, or a file, states; empty where there is no card, or it states none."""
    try:
        return str(huggingface_hub.ModelCard.load(card, ignore_metadata_errors=True).data.license or "")
    except Exception:  # the hub's client and parsers of YAML raise almost anything
        return ""


def near_names(name: str, names: Sequence[str]) -> str:
    """End of a message on a name that is none of these."""
    by_lower = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), by_lower, 3)
    return f"; did you mean {', '.join(by_lower[each] for each in near)}?" if near else ""


def require_hub(repository: str | None) -> None:
    """Raise at once where neither the hub nor a download is in reach; the hub's client retries for a minute."""
    if not repository:
        return
    if Path(huggingface_hub.constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}").is_dir():
        return
    with contextlib.suppress(huggingface_hub.errors.HfHubHTTPError):  # the hub answered; timm reports its error
        huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(repository, "config.json"), timeout=10)


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
        raise EncoderError(f"{holder} describes no network that can be built ({one_line(error, 160)})") from error
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
