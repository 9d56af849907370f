"""Description of an encoder, which can be read and compared without loading one, and the digest of its weights."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "tuple[int, ...]": list,
    "tuple[float, ...]": list,
}


BUNDLED = "bundled"  # name of the encoder whose weights an installed package carries
OPTIONAL = {"normalization", "configuration", "origin", "tiles"}  # fields that JSON leaves out where they are empty
ROUNDING = ("precision", "runtime")  # fields that change no more than the rounding of an embedding


@dataclass(frozen=True)
class EncoderSpec:
    """Everything that determines the embeddings of a cache. Caches with equal specs can be merged.

    Attributes
    ----------
    name : str
        ``bundled``, ``timm:NAME``, ``timm:hf-hub:ORG/NAME``, ``open_clip:MODEL``, ``open_clip:MODEL:TAG``,
        ``open_clip:hf-hub:ORG/NAME``, ``pretrained:NAME``, ``onnx:FILE``, ``onnx:FILE:OUTPUT``, ``python:NAME`` or
        ``imported:NAME``.
    weights : str
        sha256 over names, shapes, types and bytes of the weights; empty for imported embeddings.
    input_size : tuple of int
        (height, width) in pixels.
    mean, std : tuple of float
        Per channel, of pixels in [0, 1].
    interpolation, crop_pct, crop_mode : str, float, str
        How an image is resized to `input_size`, in timm's terms.
    decoder : str
        Name of the recipe from bytes to pixels, and the choices in it (`pucache.Decoding.decoder`).
    pooling : str
        Pooling of the last feature map, in timm's terms.
    dim : int
        d, the length of an embedding.
    precision, runtime : str
        Of the forward pass: ``fp32``, ``bf16`` or ``fp16``; ``torch``, ``openvino`` or ``onnxruntime``, in older caches
        ``compile``.
    normalization : str
        ``l2`` if each embedding was scaled to length 1 after the encoder, else empty.
    configuration : str
        sha256 over architecture and tokenizer of an image-text model of open_clip; else empty.
    origin : str
        Absolute path of the file or folder that embeddings were imported from, or that held the weights; else empty. It
        is not compared.
    tiles : str
        How images are cut into the parts that are embedded: ``3x3``, ``512``, ``512 overlap 64`` (pixels), or ``boxes``
        of a manifest; empty for whole images. Parts are resized to `input_size` without a crop.
    """

    name: str
    weights: str = ""  # this and what follows is empty for imported embeddings, but for `dim`
    input_size: tuple[int, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    interpolation: str = ""
    crop_pct: float = 0.0
    crop_mode: str = ""
    decoder: str = ""
    pooling: str = ""
    dim: int = 0
    precision: str = ""
    runtime: str = ""
    normalization: str = ""
    configuration: str = ""
    origin: str = field(default="", compare=False)
    tiles: str = ""

    @classmethod
    def imported(cls, name: str, dim: int) -> EncoderSpec:
        """Describe embeddings of length `dim` that were made elsewhere, and where."""
        return cls(name=f"imported:{name}", dim=dim)

    def to_json(self) -> str:
        """Canonical JSON: sorted names, no spaces. Fields of `OPTIONAL` are left out where they are empty."""
        fields = {name: value for name, value in dataclasses.asdict(self).items() if value or name not in OPTIONAL}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> EncoderSpec:
        """Read what `to_json` wrote; raises `ValueError` where a field is missing, unknown or of another type.

        ``runtime`` may be absent: it was torch before it was recorded. The fields of `OPTIONAL` may be absent.
        """
        fields = json.loads(text)
        if isinstance(fields, dict) and "precision" in fields:  # written before it was recorded
            fields.setdefault("runtime", fields["precision"] and "torch")
        names = {each.name for each in dataclasses.fields(cls)}
        if not isinstance(fields, dict) or set(fields) | OPTIONAL != names:
            raise ValueError("not an encoder description")
        for each in dataclasses.fields(cls):
            value = fields.setdefault(each.name, each.default)
            if not isinstance(value, _JSON_TYPES[str(each.type)]):
                raise ValueError(f"not an encoder description: {each.name} is {value!r}")
            if isinstance(value, list):
                fields[each.name] = tuple(value)
        return cls(**fields)

    def differences(self, other: EncoderSpec, *, ignoring: Iterable[str] = ()) -> list[str]:
        """Names of the fields in which two specs differ, but for those of `ignoring`."""
        return [
            each.name
            for each in dataclasses.fields(self)
            if each.compare and each.name not in ignoring and getattr(self, each.name) != getattr(other, each.name)
        ]

    def __repr__(self) -> str:
        return f"EncoderSpec({self})"

    def __str__(self) -> str:
        weights = f", weights {self.weights[:8]}" if self.weights else ""
        computation = f", {self.precision} {self.runtime}" if self.precision else ""
        decoder = f", decoder {self.decoder}" if self.decoder.startswith("torchvision") else ""
        decoder += "".join(f", {choice}" for choice in self.decoder.split(";")[1:])
        normalization = f", {self.normalization}-normalized" if self.normalization else ""
        tiles = f", tiles {self.tiles}" if self.tiles else ""
        return f"{self.name} ({self.dim}-d{weights}{computation}{decoder}{normalization}{tiles})"


def uncropped(config: dict[str, Any], tiles: str) -> dict[str, Any]:
    """timm's configuration for parts of images, of which the whole is resized: a crop would lose what is at seams."""
    return config | {"crop_pct": 1.0, "crop_mode": "squash"} if tiles else config


def preprocessing_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a spec that follow from timm's configuration of preprocessing."""
    return {
        "input_size": tuple(config["input_size"][1:]),
        "mean": tuple(config["mean"]),
        "std": tuple(config["std"]),
        **{name: config[name] for name in ("interpolation", "crop_pct", "crop_mode")},
    }


def weights_digest(state: Mapping[str, Any], content: Callable[[Any], bytes] = np.ndarray.tobytes) -> str:
    """Digest by which caches know the weights of an encoder, whatever file format they came from.

    sha256 over names, shapes, types (as torch prints them) and bytes of all tensors but the step counters of batch
    norms. ``state`` maps names to arrays, or to tensors of which ``content`` gives the bytes in row-major order.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        if not name.endswith("num_batches_tracked"):
            dtype = str(state[name].dtype).removeprefix("torch.")
            digest.update(f"{name} {tuple(state[name].shape)} torch.{dtype}\n".encode())
            digest.update(content(state[name]))
    return digest.hexdigest()
