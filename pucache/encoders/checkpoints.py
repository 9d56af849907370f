"""Weights in files of other programs: state dicts as training scripts save them, alone or within a checkpoint.

Nothing in a file is executed. torch's own unpickler for weights reads it; objects of other classes beside the tensors
(options, paths, numbers of numpy) become placeholders without content.
"""

from __future__ import annotations

import builtins
import logging
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from ..errors import EncoderError
from ..storage.atomic import check_regular, format_of

log = logging.getLogger("pucache")

Tensors = dict[str, torch.Tensor]

# The order in which equally complete weights are chosen: a teacher as the authors of DINO do it, averages (EMA) last.
_USUAL_PLACES = ("state_dict", "model", "net", "module", "teacher", "student")
_HEADS = frozenset(
    (
        "head heads fc classifier projector projection projection_head proj_head predictor prediction_head prototypes "
        "mlp_head"
    ).split()
)
_MAX_DEPTH = 4  # of dictionaries in a checkpoint
# Modules of Python's library whose classes only hold data; a file that names another one is refused.
_DATA_MODULES = frozenset("argparse collections copyreg datetime decimal enum pathlib types typing uuid".split())
_LEGACY_GLOBALS = ("argparse.Namespace", "pathlib.PosixPath", "pathlib.PurePosixPath")
_SAVE_ALONE = "save the weights alone: torch.save(model.state_dict(), 'weights.pth')"


class _Placeholder:
    """Takes the place of an object that is not needed; whatever the file says about it is ignored."""

    def __init__(self, *ignored: Any):
        pass

    def __new__(cls, *ignored: Any) -> _Placeholder:
        """Create one from any arguments."""
        return object.__new__(cls)

    def __setstate__(self, ignored: Any) -> None:
        pass


class _DictPlaceholder:
    """Takes the place of an object of a class derived from dict: torch fills no other mapping than its own and this."""

    def __new__(cls, *ignored: Any) -> Any:
        """Create a plain dictionary."""
        return OrderedDict()


def read_state(path: str | Path) -> dict[Any, Any]:
    """Read a file of safetensors, or what torch.save wrote; raises `EncoderError` unless it holds a dictionary."""
    path = Path(path)
    try:
        check_regular(path)
    except FileNotFoundError as error:
        raise EncoderError(f"no such weights file: {path}") from error
    except OSError as error:
        raise EncoderError(f"cannot read weights from {path}: {error.strerror}") from error
    if format_of(path).startswith("pucache-"):
        kind = format_of(path).replace("-", " ")
        raise EncoderError(f"{path} is a {kind}, not weights of timm; expected a state dict, or RUN_DIR as --encoder")
    try:
        content = safetensors.torch.load_file(path) if _is_safetensors(path) else _unpickled(path)
    except EncoderError:
        raise
    except Exception as error:
        reason = str(error).split(". ")[0].split("\n")[0][:200]
        raise EncoderError(
            f"cannot read weights from {path} ({reason}); expected safetensors or a state dict saved by torch.save"
        ) from error
    if isinstance(content, _Placeholder):
        raise EncoderError(f"{path} holds a whole network, which only its own code can load; there {_SAVE_ALONE}")
    if not isinstance(content, dict):
        raise EncoderError(f"{path} holds a {type(content).__name__}; expected a state dict")
    return content


def _is_safetensors(path: Path) -> bool:
    if path.suffix == ".safetensors":
        return True
    with path.open("rb") as stream:
        return stream.read(9)[8:] == b"{"


def _unpickled(path: Path) -> Any:
    """Read what torch.save wrote, with placeholders for objects that are no tensors."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except ValueError as error:
        if "torchscript" in str(error):
            script = f"torch.save(torch.jit.load({str(path)!r}).state_dict(), 'weights.pth')"
            raise EncoderError(f"{path} is a TorchScript program; save its weights alone: {script}") from error
        names = list(_LEGACY_GLOBALS)  # a file of before torch 1.6, whose names cannot be listed
    if refused := sorted(filter(_may_execute, names)):
        raise EncoderError(
            f"{path} holds more than data: it names {', '.join(refused[:3])}, which is not loaded; where you trust its "
            f"source, {_SAVE_ALONE}"
        )
    try:
        return _load(path, dict.fromkeys(names, _Placeholder))
    except Exception as error:  # torch's unpickler has an error of pickle, which is not imported here
        if "SETITEM" not in str(error):
            raise
        return _load(path, {name: _Placeholder if name.startswith("numpy.") else _DictPlaceholder for name in names})


def _load(path: Path, placeholders: Mapping[str, Any]) -> Any:
    with torch.serialization.safe_globals([(stub, name) for name, stub in placeholders.items()]):
        return torch.load(path, map_location="cpu", weights_only=True)


def _may_execute(name: str) -> bool:
    """Whether a name is a function of Python's library, and not a class of plain data or of another package."""
    module, _, rest = name.partition(".")
    if module in ("builtins", "__builtin__"):
        return not isinstance(getattr(builtins, rest, None), type)
    return module in sys.stdlib_module_names and module not in _DATA_MODULES


# --- the tensors of an encoder -------------------------------------------------------------------


def encoder_tensors(content: dict[Any, Any], expected: Tensors, classifiers: tuple[str, ...], path: Path) -> Tensors:
    """The weights of a network within a checkpoint, under the network's own names.

    Of all dictionaries in `content`, and of all prefixes such as ``module.backbone.``, the one with most of the
    `expected` tensors is taken. Classifiers and projection heads are left out; one line of the log says what was chosen
    where there was a choice.
    """
    places = [
        (count, place, prefix, tensors)
        for place, tensors in _places(content)
        for prefix, count in _prefixes(tensors, expected)
    ]
    if not places:
        return {}
    most = max(count for count, *_ in places)
    (_, place, prefix, tensors), *others = [each for each in places if each[0] == most]
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    outside = sorted({name.partition(".")[0] for name in tensors if not name.startswith(prefix)})
    known = {name.partition(".")[0] for name in (*expected, *classifiers)}
    heads = {name.partition(".")[0] for name in own} & _HEADS - known
    _log_choice(path, place, prefix, [f"{at}{start}*" for _, at, start, _ in others], outside + sorted(heads))
    left_out = (*(f"{name}." for name in classifiers), *(f"{name}." for name in heads))
    return {name: tensor for name, tensor in own.items() if not name.startswith(left_out)}


def _places(content: dict[Any, Any], place: str = "", depth: int = 0) -> Iterator[tuple[str, Tensors]]:
    """Every dictionary with tensors in a checkpoint and where it is, those with usual names first."""
    order = {name: number for number, name in enumerate(_USUAL_PLACES)}
    nested = {str(name): value for name, value in content.items() if isinstance(value, dict)}
    if depth < _MAX_DEPTH:
        for name in sorted(nested, key=lambda name: ("ema" in name.lower(), order.get(name, len(order)))):
            yield from _places(nested[name], f"{place}{name}/", depth + 1)
    tensors = {str(name): value for name, value in content.items() if isinstance(value, torch.Tensor)}
    if tensors:
        yield place, tensors


def _prefixes(tensors: Tensors, expected: Tensors) -> list[tuple[str, int]]:
    """Prefixes of names, and how many of the expected tensors are found under each; a teacher's first."""
    found = Counter({"": 0})
    for name, tensor in tensors.items():
        parts = name.split(".")
        for start in range(min(len(parts), 2 * _MAX_DEPTH)):
            rest = ".".join(parts[start:])
            if rest in expected and expected[rest].shape == tensor.shape:
                found["".join(f"{part}." for part in parts[:start])] += 1
    return sorted(found.items(), key=lambda pair: "teacher" not in pair[0])


def _log_choice(path: Path, place: str, prefix: str, others: list[str], left_out: list[str]) -> None:
    """Say which weights were taken, where the file has others that fit as well, or more beside them."""
    remarks = [f"{', '.join(others[:3])} would fit too"] if others else []
    remarks += [f"{', '.join(left_out[:3])}{', ...' if len(left_out) > 3 else ''} left out"] if left_out else []
    if remarks:
        log.info("%s: took the weights at %s*; %s", path, f"{place}{prefix}", "; ".join(remarks))
