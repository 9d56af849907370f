"""Networks in ONNX files as encoders, run by onnxruntime: one input of images, one output of embeddings."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..devices import cores
from ..errors import EncoderError, MissingExtraError, one_line
from ..images.preprocessing import PREPROCESSOR_FILE, preprocessing, read_options
from ..storage.atomic import read_regular
from .inference import MOST_CPU_STREAMS

PREFIX = "onnx:"  # of encoder names in caches
_TYPES = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16, "tensor(uint8)": torch.uint8}
_UNSCALED = {"mean": (0.0,) * 3, "std": (1 / 255,) * 3}  # for a network that takes uint8


def is_onnx(name: str) -> bool:
    """Whether an encoder is named as in caches, ``FILE.onnx``, or ``FILE.onnx:OUTPUT``."""
    return name.startswith(PREFIX) or re.search(r"\.onnx(:|$)", name, re.IGNORECASE) is not None


def file_and_output(name: str) -> tuple[str, str]:
    """File, or what is behind ``onnx:`` in a cache, and the output that is named, or empty; outputs may have colons."""
    end = r":" if name.startswith(PREFIX) else r"(?<=\.onnx):"
    file, *outputs = re.split(end, name.removeprefix(PREFIX), maxsplit=1, flags=re.IGNORECASE)
    return file, "".join(outputs)


def load(
    name: str, weights: str | Path | None, device: torch.device, pooling: str | None, **stated: Any
) -> tuple[OnnxNetwork, dict[str, Any], str]:
    """The network, its preprocessing in timm's terms, and its name in caches.

    `stated` are arguments of `preprocessing`; others are those of ``preprocessor_config.json`` beside the file.
    """
    file, output = file_and_output(name)
    if name.startswith(PREFIX) and weights is None:
        raise EncoderError(f"{name} lies in an ONNX file; pass it as --weights, or name its folder in PUCACHE_WEIGHTS")
    path = Path(weights or file)
    network = OnnxNetwork(path, output, pooling, device)
    fixed: dict[str, Any] = {"image_size": network.image_size} if network.image_size else {}
    fixed |= {} if network.dtype.is_floating_point else _UNSCALED
    for option, value in fixed.items():
        if option in stated and not np.array_equal(np.broadcast_to(stated[option], len(value)), value):
            said = f"--{option.replace('_', '-')}"
            raise EncoderError(f"{path} takes pixels by its own {said}, {value}; leave out {said} {stated[option]}")
    beside = path.with_name(PREPROCESSOR_FILE)
    stated = (read_options(beside) if beside.is_file() else {}) | stated | fixed
    if missing := [f"--{each}" for each in ("image_size", "mean", "std") if each not in stated]:
        options = ", ".join(missing).replace("_", "-")
        raise EncoderError(
            f"{path} does not say how images are prepared; give {options} as in its training (and --interpolation and "
            f"--crop, if not bicubic and 1), or put its {PREPROCESSOR_FILE} beside it"
        )
    label = file if name.startswith(PREFIX) else path.stem.replace(":", "-")
    return network, preprocessing(**stated), f"{PREFIX}{label}:{output}".removesuffix(":")


class OnnxNetwork(torch.nn.Module):
    """Runs a file on batches of float32 (B, 3, H, W) on any device; gives float32 (B, d)."""

    def __init__(self, path: Path, output: str, pooling: str | None, device: torch.device):
        super().__init__()
        # the digest covers the file and those that hold its weights
        self.onnx_digest, self._session = _digest(path), _session(path, device)
        if {"threshold", "share"} <= self._session.get_modelmeta().custom_metadata_map.keys():
            raise EncoderError(f"{path} is a model that export wrote; expected an encoder, without a trained head")
        images, *others = self._session.get_inputs()
        channels = [axis for axis in (1, 3) if len(images.shape) == 4 and images.shape[axis] == 3]
        if others or not channels or images.type not in _TYPES:
            found = "; ".join(f"{each.name}: {each.type} {tuple(each.shape)}" for each in (images, *others))
            raise EncoderError(f"{path} takes {found}; expected one input (N, 3, H, W), float or uint8")
        batch, *sides = (size for axis, size in enumerate(images.shape) if axis != channels[0])
        # (height, width) where the file fixes it, else None
        self.image_size = tuple(sides) if all(isinstance(side, int) for side in sides) else None
        self._batch = batch if isinstance(batch, int) else 0
        self._input, self.dtype, self._channels_last = images.name, _TYPES[images.type], channels[0] == 3
        # token, avg or nothing
        self.global_pool, self._output = pooling or "", self._find_output(path, output, pooling)

    def _find_output(self, path: Path, name: str, pooling: str | None) -> str:
        ranks = {each.name: len(each.shape) for each in self._session.get_outputs()}
        if name not in ranks and (name or len(ranks) != 1):
            raise EncoderError(f"{path} gives {', '.join(ranks)}; name one: --encoder {path}:{next(iter(ranks))}")
        found = name or next(iter(ranks))
        # 0 where the file does not say; the first image shows it
        if ranks[found] and (ranks[found], pooling) not in ((2, None), (3, "token"), (3, "avg"), (4, None)):
            remedies = {2: "leave out --pooling", 3: "use --pooling token or avg", 4: "leave out --pooling"}
            remedy = remedies.get(ranks[found], "name another output")
            raise EncoderError(f"{path}: {found} has {ranks[found]} axes; {remedy}, for (N, d) or (N, tokens, d)")
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxNetwork:
        return self  # nothing here changes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map normalised images (B, 3, H, W) to embeddings (B, d)."""
        pixels = (x if self.dtype.is_floating_point else x.round()).cpu().to(self.dtype)
        pixels = pixels.permute(0, 2, 3, 1) if self._channels_last else pixels
        size = self._batch or len(pixels)
        padded = torch.cat([pixels, pixels.new_zeros((-len(pixels) % size, *pixels.shape[1:]))])
        batches = (batch.contiguous().numpy() for batch in padded.split(size))
        rows = [torch.from_numpy(self._session.run([self._output], {self._input: each})[0]) for each in batches]
        made = torch.cat(rows)[: len(pixels)].float()
        if self.global_pool:
            made = made[:, 0] if self.global_pool == "token" else made.mean(1)
        return (made.flatten(1) if made.shape[2:] == (1, 1) else made).to(x.device)


def _session(path: Path, device: torch.device) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = -(-cores() // MOST_CPU_STREAMS)  # passes run beside each other
    options.log_severity_level = 4
    gpu = ("CUDAExecutionProvider", {"device_id": device.index or 0, "use_tf32": 0})
    on_gpu = device.type == "cuda" and gpu[0] in onnxruntime.get_available_providers()
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=[gpu] * on_gpu + ["CPUExecutionProvider"])
    except Exception as error:  # of onnxruntime, which are its own
        raise EncoderError(f"onnxruntime cannot run {path} ({one_line(error, 300)}); export it anew") from error


def _digest(path: Path) -> str:
    """sha256 of a file, and of the files in its folder that hold weights; raises `EncoderError` for others."""
    if not all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))):
        raise MissingExtraError(f"{path} needs onnx and onnxruntime; pip install -e '.[onnx]'")
    import onnx

    try:
        content = read_regular(path)
        model = onnx.load_model_from_string(content)
    except OSError as error:
        raise EncoderError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:  # of protobuf
        raise EncoderError(f"{path} is no ONNX file ({one_line(error, 120)})") from error
    digest = hashlib.sha256(content)
    tensors = [tensor for graph in (model.graph, *model.functions) for tensor in _tensors(graph)]
    for name in sorted({each.value for tensor in tensors for each in tensor.external_data if each.key == "location"}):
        if os.path.isabs(name) or os.path.normpath(name).startswith(".."):
            raise EncoderError(f"{path} names weights outside its folder ({name}), which are not read; move them there")
        if not (path.parent / name).is_file():
            raise EncoderError(f"{path} lacks {name}, the file of its weights; put it beside it")
        with (path.parent / name).open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _tensors(graph: Any) -> Iterator[Any]:
    """Tensors of a graph or a function, of its nodes, and of the graphs within them."""
    yield from getattr(graph, "initializer", ())
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for inner in (attribute.g, *attribute.graphs):
            yield from _tensors(inner)
