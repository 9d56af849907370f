"""Encoders that are loaded only once there is an image to embed.

An existing cache says which encoder it was made with. Where the one asked for has its name, decoding, weights (of a
file that `pretrain` wrote) and settings, a run compares encoders without building a network: neither torch nor
torchvision nor timm is imported. The network that is built in the end is compared once more.

Weights that the cache's encoder names and that are not given are looked for where the cache says, then in
``$PUCACHE_WEIGHTS``. A file, or folder, is the right one by the digest of its weights, as the encoder loads them.
Digests are remembered by path, size and time in ``weights.json`` of `pucache.storage.atomic.parent_folder`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..devices import choose_device, device_name
from ..errors import EncoderError, PUCacheError
from ..images.decoding import DECODER, Decoding
from ..storage.atomic import parent_folder, replacing
from . import pretrained_file
from .spec import BUNDLED, EncoderSpec, preprocessing_fields, uncropped, weights_digest

if TYPE_CHECKING:
    import torch

    from .encoder import Encoder


@dataclass(frozen=True)
class EncoderOptions:
    """Arguments of `pucache.load_encoder`.

    Parameters
    ----------
    name, weights, device, precision, runtime, batch_size, decoding, tiles, image_size, pooling, preprocess
        As for `pucache.load_encoder`; `weights` may also be the encoder itself, of `pucache.Encoder.of`.
    """

    name: str | Path = BUNDLED
    weights: str | Path | Encoder | None = None
    device: str | torch.device = "auto"
    precision: str = "auto"
    runtime: str = "auto"
    batch_size: int | None = None
    decoding: Decoding | None = None
    tiles: str = ""
    image_size: int | None = None
    pooling: str | None = None
    preprocess: Mapping[str, Any] | None = None

    def load(self, *, like: EncoderSpec | None) -> Encoder:
        """Load the encoder, see `pucache.load_encoder`; settings that are left to ``auto`` are taken from `like`."""
        if not isinstance(self.weights, str | os.PathLike | None):
            return self.weights
        from .encoder import load_encoder  # imports torch, torchvision and timm

        return load_encoder(**vars(self), like=like)


@dataclass(frozen=True)
class DeferredEncoder:
    """The encoder of an existing cache, loaded on demand."""

    spec: EncoderSpec
    options: EncoderOptions

    def load(self) -> Encoder:
        """Load the encoder; raises `EncoderError` where it is built in another way here than that of the cache."""
        encoder = self.options.load(like=self.spec)
        differing = self.spec.differences(encoder.spec)
        if differing:
            raise EncoderError(
                f"the encoder is now {encoder.spec}, the cache holds embeddings of {self.spec} (they differ in "
                f"{', '.join(differing)}); write another cache, or use the device and packages it was made with"
            )
        return encoder


def open_encoder(options: EncoderOptions, *, like: EncoderSpec | None = None) -> Encoder | DeferredEncoder:
    """Open a frozen encoder; one that is that of `like`, of an existing cache, is loaded on demand."""
    if like is not None and options.weights is None and options.name == like.name != BUNDLED:
        options = replace(options, weights=find_weights(like))
    if like is not None and _settings_agree(options, like) and _networks_agree(options, like):
        return DeferredEncoder(like, options)
    return options.load(like=like)


def _settings_agree(options: EncoderOptions, like: EncoderSpec) -> bool:
    """Whether the settings are those of `like`, or left open; raises `ValueError` for a device that is not there."""
    if device_name(options.device) not in ("auto", "cpu"):
        choose_device(options.device)  # imports torch
    is_sound = (options.batch_size is None or options.batch_size > 0) and not like.normalization
    is_sound = is_sound and options.tiles == like.tiles and (options.image_size or options.pooling) is None
    return is_sound and options.precision in ("auto", like.precision) and options.runtime in ("auto", like.runtime)


def _networks_agree(options: EncoderOptions, like: EncoderSpec) -> bool:
    """Whether name, decoding and weights are those of `like`; False also where `load_encoder` refuses them."""
    name, weights = os.fspath(options.name), options.weights
    if not isinstance(weights, str | os.PathLike | None):
        return False
    if name == BUNDLED:  # its package is of one version
        decoder = options.decoding.decoder if options.decoding else DECODER
        return weights is None and (like.name, like.decoder) == (BUNDLED, decoder)
    if name.startswith(("timm:", "open_clip:")):
        return False  # only these libraries know which tensors of a weights file they use
    if name.startswith(pretrained_file.PREFIX):
        return name == like.name and weights is not None and _pretrained_agrees(weights, like, options.decoding)
    return weights is None and os.path.lexists(name) and _pretrained_agrees(name, like, options.decoding)


def _pretrained_agrees(folder: str | Path, like: EncoderSpec, decoding: Decoding | None) -> bool:
    """Whether the encoder that `pretrain` wrote is that of `like`; dimension and pooling follow from the weights."""
    try:
        tensors, description = pretrained_file.read(folder)
    except EncoderError:
        return False  # `load_encoder` raises the error
    preprocessing = preprocessing_fields(uncropped(description.preprocessing(), like.tiles))
    decoder = decoding.decoder if decoding else description.decoder
    named: dict[str, Any] = {"name": description.encoder_name, "weights": weights_digest(tensors), "decoder": decoder}
    return replace(like, **named, **preprocessing) == like


VARIABLE = "PUCACHE_WEIGHTS"


def find_weights(spec: EncoderSpec) -> str | None:
    """Path of the weights of an encoder; where there are none of its digest, what the cache names, or None."""
    folder = os.environ.get(VARIABLE)
    named = [spec.origin] if spec.origin and os.path.exists(spec.origin) else []
    listed = sorted(str(path) for path in Path(folder).absolute().iterdir()) if folder and os.path.isdir(folder) else []
    return next((path for path in named + listed if _digest(path, spec) == spec.weights), next(iter(named), None))


def _digest(path: str, spec: EncoderSpec) -> str:
    """Digest of weights as an encoder has them; empty where they are not of its network."""
    known, identity = _index(), _identity(path, spec)
    if identity not in known:
        from .encoder import load_encoder  # which looks for weights here

        known[identity] = ""
        with contextlib.suppress(PUCacheError, ValueError):
            known[identity] = load_encoder(spec.name, weights=path, device="cpu", like=spec).spec.weights
        remember(path, spec, known[identity])
    return known[identity]


def remember(path: str, spec: EncoderSpec, digest: str) -> None:
    """Remember the digest of weights for an encoder of this name, size and pooling."""
    known, identity = _index(), _identity(path, spec)
    if known.get(identity) != digest:
        with contextlib.suppress(PUCacheError, OSError), replacing(parent_folder() / "weights.json") as temporary:
            temporary.write_text(json.dumps(known | {identity: digest}))


def _identity(path: str, spec: EncoderSpec) -> str:
    """What a digest is remembered by: the files, and how the network takes them."""
    files = sorted(Path(path).glob("*")) if os.path.isdir(path) else [Path(path)]
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return json.dumps([spec.name, spec.input_size, spec.pooling, stats])


def _index() -> dict[str, str]:
    try:
        return dict(json.loads((parent_folder() / "weights.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
