"""Frozen encoders: images in, embeddings out.

Images are preprocessed as timm's configuration of the network says, or as they were when `pretrain`
trained it, so a network sees images as in its training.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..devices import choose_device, choose_precision, choose_runtime, follow
from ..errors import EncoderError, UnknownEncoderError, one_line
from ..images.decoding import DECODER, Decoding
from ..images.preprocessing import Preprocess, preprocessing
from ..images.regions import check_tiles
from ..storage.atomic import format_of
from . import image_text, pretrained_file
from .backbones import authors_choice, bundled, configuration, digest, from_timm, pooling_of, transform
from .checkpoints import require_finite
from .deferred import find_weights, remember
from .inference import PixelModel, Runtime
from .onnx_file import PREFIX as ONNX
from .onnx_file import file_and_output, is_onnx
from .onnx_file import load as load_onnx
from .repositories import HUB, canonical_name, configuration_of, is_repository, library_of
from .spec import BUNDLED, EncoderSpec, preprocessing_fields, uncropped

PYTHON = "python:"  # before the name of a network of a Python program


class Encoder:
    """A frozen encoder, ready to run.

    Attributes
    ----------
    spec : EncoderSpec
    preprocess : Preprocess
        PIL image to uint8 pixels, (H, W, 3).
    runtime : Runtime
        uint8 pixels (b, H, W, 3) to embeddings, float32 (b, d).
    licence : str
        Of the weights, where timm or the card of their repository states one; else empty.
    """

    licence = ""

    def __repr__(self) -> str:
        return f"Encoder({self.spec})"

    def __init__(self, spec: EncoderSpec, preprocess: Preprocess, runtime: Runtime):
        self.spec, self.preprocess, self.runtime = spec, preprocess, runtime

    @classmethod
    def of(
        cls, module: torch.nn.Module, *, name: str, preprocess: Mapping[str, Any], tiles: str = "", **running: Any
    ) -> Encoder:
        """Make an encoder of a network of one's own.

        `pucache.embed` takes it in place of a name; `pucache.score`, `pucache.review` and others take it as
        ``weights``, and refuse another one: a cache of it records the preprocessing, and a digest of the weights and of
        what it makes of fixed images, so that a changed ``forward`` shows.

        Parameters
        ----------
        module : torch.nn.Module
            Maps normalised images, float32 (B, 3, H, W), to embeddings (B, d), each row for itself. It is put in
            evaluation mode and frozen.
        name : str
            Its name in caches, behind ``python:``.
        preprocess : mapping
            Arguments of `pucache.images.preprocessing.preprocessing`: ``image_size``, ``mean`` and ``std``,
            and possibly ``interpolation`` and ``crop``.
        tiles : str
            As for `load_encoder`.
        **running
            ``device``, ``precision``, ``runtime`` and ``batch_size``, as for `load_encoder`.

        Returns
        -------
        Encoder

        Raises
        ------
        ValueError, TypeError
            The preprocessing lacks something or makes no sense, or a setting cannot be used.
        EncoderError
            The network does not give one vector per image, or holds NaN.
        """
        require_finite(module, name)
        config = preprocessing(**preprocess)
        weights = _digest_with_probe(module.eval(), config)
        return _built(module, config, PYTHON + name, weights=weights, tiles=tiles, **running)

    def load(self) -> Encoder:
        """Return the encoder itself; a `DeferredEncoder` loads one here."""
        return self

    def __call__(self, images: Iterable[Image.Image]) -> np.ndarray:
        """Embed RGB images of PIL; returns float32, (n, d)."""
        pixels = [self.preprocess(image) for image in images]
        return self.runtime(torch.stack(pixels)) if pixels else np.empty((0, self.spec.dim), np.float32)


def load_encoder(
    name: str | Path = BUNDLED,
    *,
    weights: str | Path | None = None,
    device: str | torch.device = "auto",
    precision: str = "auto",
    runtime: str = "auto",
    batch_size: int | None = None,
    decoding: Decoding | None = None,
    tiles: str = "",
    image_size: int | None = None,
    pooling: str | None = None,
    preprocess: Mapping[str, Any] | None = None,
    like: EncoderSpec | None = None,
) -> Encoder:
    """Load a frozen encoder.

    Parameters
    ----------
    name : str or path
        ``bundled`` (ImageNet EfficientNet-Lite0 from an installed package, needs no network), ``timm:NAME``
        (any model of timm), ``open_clip:MODEL:TAG`` (image-text models), ``hf-hub:ORG/NAME`` (of either library, by
        its configuration), a folder with the files of such a repository, a file ``FILE.onnx`` (or
        ``FILE.onnx:OUTPUT``), or the folder that `pucache.pretraining.pretrain.pretrain` wrote.
    weights : path, optional
        Safetensors file, or a state dict saved by torch; read without executing pickled code. By default
        timm and open_clip fetch the pretrained weights from their hub. For ``open_clip:MODEL`` also a folder with
        its configuration and weights. For an encoder named ``pretrained:NAME`` or ``onnx:FILE`` in a
        cache: the folder that `pretrain` wrote, or the file. By default those of `like`, where
        `pucache.encoders.deferred` finds them.
    device, precision, runtime : str
        See `pucache.devices`. ``auto`` is the fastest choice that is not measurably less accurate. A
        `torch.device` is not checked, because it may be a device of another machine. An ONNX file has its own
        precision.
    batch_size : int, optional
        Images per forward pass. By default 16 on the CPU, 4 with OpenVINO, and on CUDA 512 or what fits.
    decoding : Decoding, optional
        Choices on the way from bytes to pixels, such as the white level of 16-bit images; by default the usual ones, or
        those that an encoder from `pretrain` was trained with. Embeddings of other choices are never mixed.
    tiles : str
        How images are cut into parts, each of which becomes a row: rows and columns such as ``3x3``, a side in pixels
        such as ``512`` or ``512 overlap 64``, or ``boxes`` for those of a manifest. By default images are whole.
    image_size : int, optional
        Side of the network's input in pixels; for timm's networks and ONNX files of any size. By default that of
        `like`, else that of the network's authors (`pucache.encoders.backbones.FAMILIES`), else timm's.
    pooling : str, optional
        ``token``, ``avg``, ``map`` or what else timm's network offers; ``token`` or ``avg`` for an ONNX file that gives
        tokens. By default as for `image_size`.
    preprocess : mapping, optional
        Only for an ONNX file: ``mean``, ``std``, ``interpolation`` and ``crop``, as for
        `pucache.images.preprocessing.preprocessing`; by default those of `like`, or of a file
        ``preprocessor_config.json`` beside it.
    like : EncoderSpec, optional
        Encoder of an existing cache. Where settings are left out or ``auto``, its are
        used if this machine supports them, so that the cache can be continued.

    Returns
    -------
    Encoder

    Raises
    ------
    EncoderError
        The name is unknown, or the weights are missing or of another model; the network lacks the size or pooling.
    ValueError
        The device, precision, runtime, batch size, tiles or preprocessing cannot be used.
    """
    name, weights = _resolved(os.fspath(name), weights)
    given: dict[str, Any] = {"image_size": image_size, "pooling": pooling, **(preprocess or {})}
    given = {option: value for option, value in given.items() if value is not None}
    fitting = given.keys() if is_onnx(name) else {"image_size", "pooling"} if name.startswith("timm:") else set()
    if unfit := sorted(given.keys() - fitting):
        raise ValueError(f"{', '.join(unfit)} cannot be chosen for {name}; leave it out")
    if like is not None and (like.name == name or (is_onnx(name) and is_onnx(like.name))):
        weights = find_weights(like) if weights is None and like.name == name else weights
        given = _choices_of(like) | given
    model, config, stored = _network(name, weights, choose_device(device), given)
    licence, decoder = config.pop("licence", ""), config.pop("decoder", DECODER)
    held = weights or (name if stored != name else "")
    encoder = _built(
        model,
        config,
        stored,
        device=device,
        precision=precision,
        runtime=runtime,
        batch_size=batch_size,
        tiles=tiles,
        like=like,
        decoder=decoding.decoder if decoding else decoder,
        origin=os.path.abspath(file_and_output(str(held))[0]) if held else "",
    )
    encoder.licence = licence
    if encoder.spec.origin:
        remember(encoder.spec.origin, encoder.spec, encoder.spec.weights)
    return encoder


def _built(
    model: Any,
    config: dict[str, Any],
    name: str,
    *,
    weights: str = "",
    device: str | torch.device = "auto",
    precision: str = "auto",
    runtime: str = "auto",
    batch_size: int | None = None,
    like: EncoderSpec | None = None,
    tiles: str = "",
    **fields: Any,
) -> Encoder:
    """An encoder whose network is ready for its device, and what a cache records of it."""
    check_tiles(tiles)
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch size must be at least 1, got {batch_size}")
    device = choose_device(device)
    if is_onnx(name):
        if precision not in ("auto", "fp32") or runtime == "openvino":
            raise ValueError(f"{name} is run by onnxruntime in its own precision; leave out precision and runtime")
        precision, runtime = "fp32", "torch"  # which prepares the batches
    else:
        precision = follow(like.precision if like else None, choose_precision, precision, device)
        runtime = follow(like.runtime if like else None, choose_runtime, runtime, device)
    configuration, config = config.pop("configuration", ""), uncropped(config, tiles)
    weights = weights or getattr(model, "onnx_digest", "") or digest(model)  # of an image-text model both towers'
    model = model.visual if configuration else model
    spec = EncoderSpec(
        name=name,
        weights=weights,
        **preprocessing_fields(config),
        pooling=pooling_of(model),
        dim=_dim(model, name, config["input_size"]),
        precision=precision,
        runtime="onnxruntime" if is_onnx(name) else runtime,
        configuration=configuration,
        tiles=tiles,
        **{"decoder": DECODER} | fields,
    )
    if batch_size is not None:
        _check_memory(batch_size, spec.input_size)
    settings: dict[str, Any] = {"device": device, "precision": precision, "runtime": runtime, "batch_size": batch_size}
    built = Runtime(model, spec.mean, spec.std, input_size=config["input_size"][1:], **settings)
    return Encoder(spec, Preprocess(config, transform(config)), built)


def _check_memory(batch_size: int, input_size: tuple[int, ...]) -> None:
    """Raise `ValueError` where the pixels of a batch, in float32, are more than the memory of this machine."""
    needed = batch_size * 3 * math.prod(input_size) * 4
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise ValueError(
            f"batch size {batch_size:,} is too large: the pixels alone take {needed / 1e9:,.0f} GB, this machine has "
            f"{memory / 1e9:,.0f}; use a smaller one"
        )


def _resolved(name: str, weights: str | Path | None) -> tuple[str, str | Path | None]:
    """Name of the encoder with its library, and its weights, for a repository of the hub or a folder as it has them."""
    has_its_own = os.path.lexists(name) or (is_onnx(name) and not name.startswith(ONNX))
    if has_its_own and weights is not None:
        raise EncoderError(f"{name} has its own weights; leave out --weights")
    if name.startswith(HUB):
        name = library_of(name.removeprefix(HUB)) + name
    elif os.path.isdir(name) and is_repository(name):
        library, folder = library_of(name), Path(name).resolve()
        return library + (str(configuration_of(folder)["architecture"]) if library == "timm:" else folder.name), name
    if name.startswith("timm:"):
        name = "timm:" + canonical_name(name.removeprefix("timm:"))
    return name, weights


def _choices_of(spec: EncoderSpec) -> dict[str, Any]:
    """Size, pooling and preprocessing of the encoder of an existing cache."""
    choices = {field: getattr(spec, field) for field in ("mean", "std", "interpolation")}
    choices |= {} if spec.pooling == "model" else {"pooling": spec.pooling}
    return choices | {"image_size": spec.input_size, "crop": spec.crop_pct if spec.crop_mode == "center" else "squash"}


def _network(
    name: str, weights: str | Path | None, device: torch.device, choices: dict[str, Any]
) -> tuple[Any, dict[str, Any], str]:
    """Network, preprocessing in timm's terms, and name of the encoder in caches."""
    if is_onnx(name):
        return load_onnx(name, weights, device, **{"pooling": None} | choices)
    if name.startswith("timm:"):
        if weights is not None and pretrained_file.is_pretrained(weights):
            raise EncoderError(f"{weights} is an encoder that pretrain wrote; pass it as --encoder, without --weights")
        network = name.removeprefix("timm:")
        pooling, side = authors_choice(network)
        size = choices.get("image_size", side)
        size = (size, size) if isinstance(size, int) else size
        model = from_timm(network, weights, image_size=size, pooling=choices.get("pooling", pooling))
        return model, configuration(model) | {"licence": model.pretrained_cfg.get("license") or ""}, name
    if name == BUNDLED:
        model = bundled(weights)
        return model, configuration(model), name
    if name.startswith(image_text.PREFIX):
        model, config = image_text.load(name, weights)
        return model, config, name
    if name.startswith(pretrained_file.PREFIX):
        if weights is None:
            raise EncoderError(f"{name} lies in the folder that pretrain wrote; pass that folder as --weights")
        model, config, stored_name = pretrained_file.load(weights)
        if stored_name != name:
            raise EncoderError(f"{weights} holds {stored_name}, not {name}; pass the folder of {name} as --weights")
        return model, config, name
    if os.path.lexists(name):
        if os.path.isfile(name) and not format_of(name):
            raise EncoderError(f"{name} does not say of which network it is; use --encoder timm:NAME --weights {name}")
        return pretrained_file.load(name)
    if name.startswith(PYTHON):
        raise EncoderError(f"{name} is a network of a Python program; pass its pucache.Encoder there as weights")
    hub = re.fullmatch(r"(?:hf_hub:|(?:https://)?(?:huggingface|hf)\.co/)?([\w.-]+/[\w.-]+)(?:/|/tree/\S+)?", name)
    meant = f"'hf-hub:{hub[1]}' for the repository of this name, " if hub else ""
    raise UnknownEncoderError(
        f"unknown encoder {name!r}; use {meant}'bundled', 'timm:NAME' such as timm:resnet50, 'open_clip:MODEL:TAG' "
        "such as open_clip:ViT-B-32:laion2b_s34b_b79k, 'hf-hub:ORG/NAME', FILE.onnx, or a folder that pretrain wrote"
    )


def _dim(model: torch.nn.Module, name: str, input_size: tuple[int, ...]) -> int:
    """Length of an embedding, from one black image; on a CPU a whole batch may take a large model a minute."""
    if input_size[0] != 3:
        raise EncoderError(f"{name} takes {input_size[0]} channels; only RGB models are supported")
    try:
        with torch.inference_mode():
            row = model.eval()(torch.zeros(1, *input_size))
    except Exception as error:  # of an image that is too small, say
        size = " x ".join(map(str, input_size[1:]))
        raise EncoderError(f"{name} cannot take images of {size} pixels: {one_line(error, 160)}") from error
    if not isinstance(row, torch.Tensor) or row.ndim != 2:
        raise EncoderError(f"{name} does not give one vector per image; choose a pooled model")
    return row.shape[1]


@torch.inference_mode()
def _digest_with_probe(model: torch.nn.Module, config: dict[str, Any]) -> str:
    """Digest of the weights, and of what the network makes of fixed pixels, in float64 so that machines agree."""
    draw = np.random.default_rng(0).integers(0, 256, (2, *config["input_size"][1:], 3), np.uint8)
    probe = PixelModel(copy.deepcopy(model).cpu(), config["mean"], config["std"]).convert(torch.float64)
    X = torch.nn.functional.normalize(probe(torch.from_numpy(draw)))
    directions = torch.cos(torch.outer(torch.arange(X.shape[-1]), torch.arange(1, 5)).double())
    seen = (X.double() @ directions).mul(1000).round().int().tolist()
    return hashlib.sha256(f"{digest(model)} {seen}".encode()).hexdigest()
