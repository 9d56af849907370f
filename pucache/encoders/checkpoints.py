"""Weights in files of other programs: state dicts as training scripts save them, alone or within a checkpoint.

Nothing in a file is executed. torch's own unpickler for weights reads it; objects of other classes beside the tensors
(options, paths, numbers of numpy) become placeholders without content. Tensors of transformers' vision towers (ViT,
ViT-MAE, DINOv2, DINOv3, SigLIP and CLIP) get the names of timm.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import io
import logging
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from ..errors import EncoderError, one_line
from ..storage.atomic import check_regular, format_of

log = logging.getLogger("pucache")

Tensors = dict[str, torch.Tensor]

# The order in which equally complete weights are chosen: a teacher as the authors of DINO do it, averages (EMA) last.
_USUAL_PLACES = ("state_dict", "model", "net", "module", "teacher", "student")
_HEADS = frozenset(
    (
        "head heads fc classifier projector projection projection_head proj_head predictor prediction_head prototypes "
        "mlp_head pooler visual_projection last_linear AuxLogits"
    ).split()
)
_NEVER = ("mask_token", "masked_embed", "decoder")  # of training by masked images
_COUNT = "num_batches_tracked"  # of batch norms, which no embedding depends on
_WRAPPERS = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")  # within names too
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


def read_state(path: str | Path, device: str = "cpu") -> dict[Any, Any]:
    """Read a file of safetensors, or what torch.save wrote; raises `EncoderError` unless it holds a dictionary.

    On torch's device ``meta`` tensors of torch.save have shapes, and no content; those of safetensors are mapped.
    """
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
        content = safetensors.torch.load_file(path) if _is_safetensors(path) else _unpickled(path, device)
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
        raise EncoderError(f"{path} holds a {type(content).__name__}; expected a state dict: {_SAVE_ALONE}")
    return content


def shapes_of(content: dict[Any, Any]) -> list[torch.Size]:
    """Shape of each tensor in a checkpoint."""
    return [tensor.shape for _, tensors in _places(content) for tensor in tensors.values()]


def _is_safetensors(path: Path) -> bool:
    if path.suffix == ".safetensors":
        return True
    with path.open("rb") as stream:
        return stream.read(9)[8:] == b"{"


def _unpickled(path: Path, device: str) -> Any:
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
        return _load(path, device, dict.fromkeys(names, _Placeholder))
    except Exception as error:  # torch's unpickler has an error of pickle, which is not imported here
        if not any(words in str(error) for words in ("SETITEM", "item assignment")):  # torch 2.9 says the second
            raise
        stubs = {name: _Placeholder if name.startswith("numpy.") else _DictPlaceholder for name in names}
        return _load(path, device, stubs)


def _load(path: Path, device: str, placeholders: Mapping[str, Any]) -> Any:
    with torch.serialization.safe_globals([(stub, name) for name, stub in placeholders.items()]):
        return torch.load(path, map_location=device, weights_only=True)


def _may_execute(name: str) -> bool:
    """Whether a name is a function of Python's library, and not a class of plain data or of another package."""
    module, _, rest = name.partition(".")
    if module in ("builtins", "__builtin__"):
        return not isinstance(getattr(builtins, rest, None), type)
    return module in sys.stdlib_module_names and module not in _DATA_MODULES


# --- the tensors of an encoder -------------------------------------------------------------------


def encoder_tensors(
    content: dict[Any, Any],
    expected: Tensors,
    classifiers: tuple[str, ...],
    path: Path | str,
    convert: Callable[[Tensors], Tensors],
) -> Tensors:
    """The weights of a network within a checkpoint, under the network's own names.

    Of all dictionaries in `content`, and of all prefixes such as ``module.backbone.``, the one that holds most of the
    `expected` tensors is taken, once `convert` has brought names and shapes of its authors to the network's. What an
    encoder never has, such as classifiers, projection heads and decoders, is left out. One line of the log says what
    was chosen, left out and resampled.
    """
    choices = [
        _Choice.of(place, prefix, tensors, expected, convert)
        for place, tensors in _places(content)
        for prefix in _prefixes(tensors, expected)
    ]
    if not choices:
        raise EncoderError(f"{path} holds no tensors by name; expected a state dict: {_SAVE_ALONE}")
    most = max(choice.fitting for choice in choices)
    chosen, *others = [choice for choice in choices if choice.fitting == most]
    own = {name: tensor for name, tensor in chosen.tensors.items() if name not in expected}
    never = {name for name in own if name.startswith(tuple(f"{each}." for each in classifiers))}
    parts = _HEADS - {name.partition(".")[0] for name in (*expected, *classifiers)}
    heads = {name for name in own if name.partition(".")[0] in parts or name.startswith(_NEVER)} - never
    _log_choice(path, chosen, others, sorted({name.partition(".")[0] for name in heads} | chosen.outside))
    return {name: tensor for name, tensor in chosen.tensors.items() if name not in never | heads}


@dataclass(frozen=True)
class _Choice:
    """Tensors below a prefix in a dictionary of a checkpoint, by the network's names, and what was done to them."""

    place: str
    tensors: Tensors
    fitting: int  # number of tensors that the network has, with their shape
    outside: set[str]  # names beside the prefix, and of what no encoder has
    resampled: list[str]

    @classmethod
    def of(
        cls, place: str, prefix: str, tensors: Tensors, expected: Tensors, convert: Callable[[Tensors], Tensors]
    ) -> _Choice:
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        converted = convert(own)
        fitting = sum(name in expected and expected[name].shape == each.shape for name, each in converted.items())
        never = [name for name in own if name.startswith(_NEVER)]  # some of which `convert` drops
        outside = {
            name.partition(".")[0] for name in [*never, *(name for name in tensors if not name.startswith(prefix))]
        }
        resampled = [
            f"{name} resampled from {own[name].shape[-2]} to {tensor.shape[-2]} positions"
            for name, tensor in converted.items()
            if "pos" in name
            and name in own
            and own[name].ndim == tensor.ndim > 1
            and abs(own[name].shape[-2] - tensor.shape[-2]) > 1  # with registers by 1
        ]
        return cls(f"{place}{prefix}*", converted, fitting, outside, resampled)


def has_tensor(content: dict[Any, Any], name: str) -> bool:
    """Whether there is a tensor of this name, behind any prefix, in a checkpoint."""
    return any(each == name or each.endswith(f".{name}") for _, tensors in _places(content) for each in tensors)


def _places(content: dict[Any, Any], place: str = "", depth: int = 0) -> Iterator[tuple[str, Tensors]]:
    """Every dictionary with tensors in a checkpoint and where it is, those with usual names first."""
    order = {name: number for number, name in enumerate(_USUAL_PLACES)}
    nested = {str(name): value for name, value in content.items() if isinstance(value, dict)}
    if depth < _MAX_DEPTH:
        for name in sorted(nested, key=lambda name: ("ema" in name.lower(), order.get(name, len(order)))):
            yield from _places(nested[name], f"{place}{name}/", depth + 1)
    found = {_WRAPPERS.sub("", str(name)): each for name, each in content.items() if isinstance(each, torch.Tensor)}
    if tensors := {name: each for name, each in found.items() if not name.endswith(_COUNT)}:
        yield place, timm_names(tensors)


def _prefixes(tensors: Tensors, expected: Tensors) -> list[str]:
    """Prefixes of names below which there may be a network: where expected names are found; a teacher's first."""
    shared = os.path.commonprefix(list(tensors))  # noqa: RUF071
    found = {"": True, shared[: shared.rfind(".") + 1]: True}  # in the order of the file
    for name in tensors:
        parts = name.split(".")
        for start in range(min(len(parts), 2 * _MAX_DEPTH)):
            if ".".join(parts[start:]) in expected:
                found["".join(f"{part}." for part in parts[:start])] = True
    return sorted(found, key=lambda prefix: "teacher" not in prefix)


def _log_choice(path: Path | str, chosen: _Choice, others: list[_Choice], left_out: list[str]) -> None:
    """Say which weights were taken, where the file has others that fit as well, or more beside them."""
    remarks = [f"{', '.join(other.place for other in others[:3])} would fit too"] if others else []
    remarks += [f"{', '.join(left_out[:3])}{', ...' if len(left_out) > 3 else ''} left out"] if left_out else []
    remarks += chosen.resampled[:1]
    if remarks:
        log.info("%s: took the weights at %s; %s", path, chosen.place, "; ".join(remarks))


# --- names of transformers ----------------------------------------------------------------------


_RULES = {  # in this order; what stands before a name is kept
    r"head\.probe$": "attn_pool.latent",
    r"head\.attention\.in_proj_": "attn_pool.qkv.",
    r"head\.attention\.out_proj\.": "attn_pool.proj.",
    r"head\.layernorm\.": "attn_pool.norm.",
    r"head\.mlp\.": "attn_pool.mlp.",
    r"embeddings\.(cls_token|mask_token|register_tokens)$": r"\1",
    r"embeddings\.class_embedding$": "cls_token",
    r"embeddings\.position_embedding(?:s|\.weight)$": "pos_embed",
    r"embeddings\.patch_embedding(?:s\.projection|s)?\.": "patch_embed.proj.",
    r"(?:encoder\.|model\.)?layers?\.(\d+)\.": r"blocks.\1.",
    r"attention\.(?:attention|output)\.|attention\.(?=[qkvo])|self_attn\.": "attn.",
    r"attn\.(?:dense|o_proj|out_proj)\.": "attn.proj.",
    r"attn\.([qkv])(?:uery|ey|alue|_proj)\.": r"attn.\1.",
    r"layernorm_before\.|layer_norm1\.": "norm1.",
    r"layernorm_after\.|layer_norm2\.": "norm2.",
    r"layer_scale([12])\.lambda1$": r"ls\1.gamma",
    r"intermediate\.dense\.|mlp\.weights_in\.": "mlp.fc1.",
    r"output\.dense\.|mlp\.weights_out\.": "mlp.fc2.",
    r"pre_layrnorm\.": "norm_pre.",  # as transformers spells it
    r"(?:post_)?layernorm\.": "norm.",
}
_PLAIN_MLP = {"up_proj": "fc1", "down_proj": "fc2"}
_GATED_MLP = {"gate_proj": "w1", "up_proj": "w2", "down_proj": "w3"}  # as in DINOv3
# timm's functions for the names of others, of which those behind the first are for torchvision's
_FILTERS = ("checkpoint_filter_fn", "_filter_fn", "_filter_torchvision_pretrained")
# of a ResNet as a sequence of its children, which training scripts cut off before the classifier
_STAGES = {"0": "conv1", "1": "bn1"} | {str(stage + 3): f"layer{stage}" for stage in (1, 2, 3, 4)}
_PART = re.compile(r"attn\.([qkv])\.")


def timm_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors by other names, queries, keys and values in one; those of other programs as they are."""
    for end in [name for name in tensors if re.search(r"(^|\.)4\.0\.conv1\.weight$", name)]:
        start = re.escape(end.removesuffix("4.0.conv1.weight"))
        tensors = {
            re.sub(rf"^({start})([014567])\.", lambda found: f"{found[1]}{_STAGES[found[2]]}.", name): tensor
            for name, tensor in tensors.items()
        }
    if not any(re.search(r"(^|\.)embeddings\.patch_embeddings?\.", name) for name in tensors):
        return tensors
    mlp = _GATED_MLP if any(".gate_proj." in name for name in tensors) else _PLAIN_MLP
    rules = {rf"(?<![^.]){pattern}": name for pattern, name in _RULES.items()}
    rules |= {rf"mlp\.{old}\.": f"mlp.{new}." for old, new in mlp.items()}
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        for pattern, substitute in rules.items():
            name = re.sub(pattern, substitute, name)
        is_flat = name.endswith(("cls_token", "pos_embed")) and tensor.ndim < 3
        renamed[name] = tensor.view(1, -1, tensor.shape[-1]) if is_flat else tensor
    if not any(name.endswith("pos_embed") for name in renamed):  # DINOv3, whose authors name its registers otherwise
        renamed = {name.replace("register_tokens", "storage_tokens"): tensor for name, tensor in renamed.items()}
    return _joined(renamed)


def _joined(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Queries, keys and values as one tensor in each block, and as two in a pooling layer."""
    joined: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if "attn_pool.qkv." in name:
            third = len(tensor) // 3
            joined[name.replace("qkv", "q")], joined[name.replace("qkv", "kv")] = tensor[:third], tensor[third:]
        elif not _PART.search(name):
            joined[name] = tensor
        elif ".q." in name:
            parts = [tensors.get(_PART.sub(f"attn.{part}.", name), torch.zeros_like(tensor)) for part in "qkv"]
            joined[_PART.sub("attn.qkv.", name)] = torch.cat(parts)  # keys have no bias in DINOv3
    return joined


def load_weights(model: Any, name: str, content: dict[Any, Any], holder: str | Path) -> None:
    """Load the weights of a checkpoint into a network; weights of a classifier are left out."""
    classifiers = model.pretrained_cfg.get("classifier") or ()
    classifiers = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
    expected = {each: tensor for each, tensor in model.state_dict().items() if not each.endswith(_COUNT)}
    state = encoder_tensors(content, expected, classifiers, holder, partial(_converted, model, name))
    _require_same_tensors(state, expected, f"{holder} does not fit {name}")
    try:
        model.load_state_dict(state, strict=False)
    except RuntimeError as error:  # sparse or quantised tensors, say
        raise EncoderError(f"{holder} does not fit {name}: {one_line(error)}; pass plain tensors") from error


def _converted(model: Any, name: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors by names and in shapes of timm, whose filter knows those of many authors; positions are resampled."""
    if not any(each.startswith("blocks.0.0.") for each in model.state_dict()):  # DINOv2's trainings group the blocks
        tensors = {re.sub(r"^blocks\.\d+\.(?=\d)", "blocks.", each): tensor for each, tensor in tensors.items()}
    module = sys.modules[type(model).__module__]
    convert = next((getattr(module, each) for each in _FILTERS if hasattr(module, each)), None)
    if convert is None or "flexi" in name or "radio" in name:  # these are resampled in another way
        return tensors
    takes = inspect.signature(convert).parameters
    options = {each: value for each, value in (("model", model), ("adapt_layer_scale", True)) if each in takes}
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # timm prints what it has looked for
            converted: dict[str, torch.Tensor] = convert(dict(tensors), **options)
    except Exception:  # of tensors that are none of this network's
        return tensors
    resized = [each for each in converted if each in tensors and converted[each].numel() != tensors[each].numel()]
    return converted | {each: tensors[each] for each in resized if "pos" not in each}  # a patch of another size is none


def _require_same_tensors(state: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], problem: str) -> None:
    missing = [name for name in expected if name not in state]
    foreign = [name for name in state if name not in expected]
    both = [(name, state[name], tensor) for name, tensor in expected.items() if name in state]
    retyped = [
        name
        for name, one, other in both
        if (one.is_complex(), one.is_floating_point()) != (other.is_complex(), other.is_floating_point())
    ]
    reshaped = [name for name, one, other in both if one.shape != other.shape]
    problems = {
        "lacks": missing,
        "has unknown": foreign,
        "has another shape of": reshaped,
        "has another type of": retyped,  # such as quantised numbers, which mean nothing without their scale
    }
    for what, names in problems.items():
        if names:
            raise EncoderError(
                f"{problem}: it {what} {len(names)} of {len(expected)} tensors "
                f"({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}); pass the weights of that model, "
                "or export theirs to ONNX, its last layer replaced by torch.nn.Identity()"
            )


def require_finite(model: Any, holder: object) -> None:
    """Raise `EncoderError` where weights are NaN or infinite, or variances negative; `holder` names them."""
    wrong = [
        name
        for name, tensor in model.state_dict().items()
        if not tensor.isfinite().all() or (name.endswith("running_var") and (tensor < 0).any())
    ]
    if wrong:
        raise EncoderError(
            f"{holder} holds NaN, infinity or a negative variance in {len(wrong)} tensors ({', '.join(wrong[:3])}"
            f"{', ...' if len(wrong) > 3 else ''}); expected finite weights: take a copy or an earlier checkpoint"
        )
