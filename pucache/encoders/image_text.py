"""Image-text encoders of open_clip: an image tower for embeddings, and the text tower of the same model for words.

The only user of open_clip. Both towers, the architecture, the preprocessing and the tokenizer are in the encoder's
description, so words are compared with embeddings of no other model.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import torch

from ..errors import EncoderError, MissingExtraError, UnknownEncoderError, one_line
from ..images.preprocessing import preprocessing
from ..storage.atomic import read_regular
from .backbones import digest
from .checkpoints import read_state, require_finite, shapes_of
from .deferred import find_weights
from .repositories import (
    HUB,
    OPEN_CLIP_CONFIG,
    card_licence,
    near_names,
    require_hub,
    require_network_of_weights,
    weights_file,
)
from .spec import EncoderSpec, preprocessing_fields, uncropped

PREFIX = "open_clip:"
_ITS = f"one with its {OPEN_CLIP_CONFIG} and weights"
_CROPS: dict[str, float | str] = {"shortest": 1.0, "squash": "squash"}  # how open_clip resizes
_EPSILON = 1e-12
# cleaning, case, punctuation, accents, padding and truncation of a tokenizer show in their tokens
_PROBES = ("a photo of a dog", "Two CATS, it's 10:30!", "l'été naïf & 日本", "a  b\n_c" + " word" * 300)


def load(name: str, weights: str | Path | None) -> tuple[Any, dict[str, Any]]:
    """Both towers of ``open_clip:MODEL`` or ``open_clip:MODEL:TAG``, and the preprocessing in timm's terms.

    ``weights`` is a folder with `open_clip_config.json`, as the hub has them, or the file of a tag's weights; without
    it they are fetched from the hub. The preprocessing is the folder's, or the tag's, and never a default.
    """
    model, _, config = _load(name, weights)
    return model, config


def score_by_text(
    words: Sequence[str], not_words: Sequence[str], spec: EncoderSpec, weights: Any
) -> tuple[Callable[[np.ndarray], np.ndarray], EncoderSpec]:
    """Scores of embeddings by the text tower, and the description of the encoder that it is of.

    A score is the cosine with the mean of the words' unit vectors, less that of what is not looked for.
    """
    model, tokenizer, config = _load(spec.name, weights or find_weights(spec))
    found = replace(
        spec,
        weights=digest(model),
        configuration=config.pop("configuration"),
        **preprocessing_fields(uncropped(config, spec.tiles)),
    )
    with torch.inference_mode():
        vectors = model.encode_text(tokenizer([*words, *not_words]), normalize=True).float().numpy()
    direction = vectors[: len(words)].mean(0)
    if not_words:
        direction = direction - vectors[len(words) :].mean(0)

    def scores(X: np.ndarray) -> np.ndarray:
        rows = np.asarray(X, np.float32)
        return np.asarray(rows @ direction / np.maximum(np.linalg.norm(rows, axis=1), _EPSILON))

    return scores, found


def _load(name: str, weights: str | Path | None) -> tuple[Any, Any, dict[str, Any]]:
    """Model, tokenizer and preprocessing."""
    try:
        import open_clip
    except ImportError as error:
        raise MissingExtraError(f"{name} needs open_clip; pip install -e '.[clip]'") from error
    architecture, _, tag = name.removeprefix(PREFIX).partition(":")
    card: str | Path | None = None
    holder: Path | None = None
    try:
        if weights is not None and os.path.isdir(weights):
            holder = Path(weights)
            source, given = _of_folder(open_clip, architecture, holder)
            pretrained, card = None, holder / "README.md"  # those of the folder
        elif tag and architecture + ":" == HUB and weights is None:
            require_hub(tag)
            source, pretrained, card = HUB + tag, None, tag
            holder = Path(huggingface_hub.hf_hub_download(tag, OPEN_CLIP_CONFIG)).parent
            open_clip.pretrained.download_pretrained_from_hf(tag)  # into this folder
            given = _read(holder / OPEN_CLIP_CONFIG).get("preprocess_cfg") or {}
        else:
            source, given = architecture, _of_tag(open_clip, architecture, tag)
            if weights is not None and not os.path.isfile(weights):
                raise EncoderError(f"no such weights file or folder: {weights}")
            pretrained = tag if weights is None else os.path.abspath(weights)  # which is no tag
            card = None if weights else given["hf_hub"].rpartition("/")[0]
            require_hub(card)
        if holder is not None:
            options = {"load_weights": False, "pretrained_text": False, "device": "meta"}
            plain = partial(open_clip.create_model, source, **options)
            content = read_state(weights_file(holder), "meta")
            require_network_of_weights(_read(holder / OPEN_CLIP_CONFIG)["model_cfg"], shapes_of(content), plain, holder)
        model = open_clip.create_model(source, pretrained, require_pretrained=True).eval()
        tokenizer = open_clip.get_tokenizer(source)
    except EncoderError:
        raise
    except ImportError as error:  # such as transformers, for a tokenizer
        raise MissingExtraError(f"{name} needs {error.name}; pip install {error.name}") from error
    except Exception as error:  # open_clip, torch and the hub's client raise almost anything
        reason = one_line(error).split(". ")[0][:160]
        raise EncoderError(
            f"cannot load {name} of {weights or 'the hub'} ({reason}); pass --weights FOLDER, {_ITS}, or with "
            f"{PREFIX}MODEL:TAG the file of that tag's weights"
        ) from error
    require_finite(model, weights or f"the hub's {name}")
    config = _preprocessing(given, model.visual.image_size, weights or name)
    config["licence"] = card_licence(card) if card else ""
    config["configuration"] = _digest_of_configuration(open_clip.get_model_config(source), tokenizer)
    return model, tokenizer, config


def _of_folder(open_clip: Any, architecture: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Name and preprocessing of a model that lies in a folder."""
    if not (folder / OPEN_CLIP_CONFIG).is_file():
        raise EncoderError(f"{folder} holds no {OPEN_CLIP_CONFIG}; expected a folder of open_clip, as its hub has them")
    content = _read(folder / OPEN_CLIP_CONFIG)
    described, known = _flat(content["model_cfg"]), open_clip.get_model_config(architecture)
    differing = sorted(_flat(known).items() ^ described.items()) if known else []
    if differing:
        raise EncoderError(
            f"{folder} does not hold {architecture}: it differs in {differing[0][0]}; name the model that it holds"
        )
    return f"local-dir:{folder}", content.get("preprocess_cfg") or {}


def _read(path: Path) -> dict[str, Any]:
    """The configuration in a file; raises `EncoderError` where it asks for code to be run."""
    content: dict[str, Any] = json.loads(read_regular(path))
    if any(name.endswith("trust_remote_code") for name in _flat(content["model_cfg"])):
        raise EncoderError(f"{path} asks for code of others to be run; take trust_remote_code out of it")
    return content


def _of_tag(open_clip: Any, architecture: str, tag: str) -> dict[str, Any]:
    """What open_clip knows of a tag, which stands for weights that were trained in one way."""
    models, own = open_clip.list_models(), f"--weights FOLDER, {_ITS}"
    if architecture not in models:
        hint = near_names(architecture, models) or f"; a model of your own needs {own}"
        raise UnknownEncoderError(f"open_clip has no model called {architecture!r}{hint}")
    tags = open_clip.list_pretrained_tags_by_model(architecture)  # of which it may have none
    if tag not in tags:
        some = ", ".join(tags[:4]) + ", ..." * (len(tags) > 4)
        problem = "does not say which weights are meant, of which the preprocessing follows"
        if tag:
            problem = f"has no weights of the tag {tag!r} in open_clip"
        raise UnknownEncoderError(
            f"{PREFIX}{architecture} {problem}; use {PREFIX}{architecture}:TAG ({some}), or {own}"
        )
    given: dict[str, Any] = open_clip.get_pretrained_cfg(architecture, tag)
    quick = bool(given.get("quick_gelu"))
    if quick != bool(open_clip.get_model_config(architecture).get("quick_gelu")):
        fitting = architecture.removesuffix("-quickgelu") + "-quickgelu" * quick
        raise UnknownEncoderError(
            f"{tag} was trained with another activation than {architecture} has; use {PREFIX}{fitting}:{tag}"
        )
    return given


def _preprocessing(given: dict[str, Any], size: Any, holder: object) -> dict[str, Any]:
    """Preprocessing in timm's terms; raises `EncoderError` where it is not stated, or of another kind."""
    mean, std = (_three_numbers(given.get(name)) for name in ("mean", "std"))
    mode, interpolation = given.get("resize_mode", "shortest"), given.get("interpolation", "bicubic")
    if not (mean and std and min(std) > 0) or mode not in _CROPS or interpolation not in ("bilinear", "bicubic"):
        raise EncoderError(
            f"{holder} has no preprocessing that pucache knows: expected mean and std of three numbers, bilinear or "
            f"bicubic, {' or '.join(_CROPS)}, in the preprocess_cfg of its {OPEN_CLIP_CONFIG}; got {str(given)[:200]}"
        )
    return preprocessing(size, mean, std, interpolation, _CROPS[mode])


def _three_numbers(values: Any) -> tuple[float, ...]:
    """The numbers, or none where they are not three."""
    if not isinstance(values, list | tuple) or [type(x) in (int, float) and abs(x) < 1e6 for x in values] != [True] * 3:
        return ()
    return tuple(map(float, values))


def _digest_of_configuration(architecture: dict[str, Any], tokenizer: Any) -> str:
    """sha256 over the architecture and the tokenizer: its vocabulary, and what it makes of some texts."""
    vocabulary = tokenizer.encoder if hasattr(tokenizer, "encoder") else tokenizer.tokenizer.get_vocab()
    content = [_flat(architecture), vocabulary, tokenizer(list(_PROBES)).tolist()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _flat(architecture: Any, prefix: str = "") -> dict[str, str]:
    """Entries of an architecture by dotted names, without where its parts and its tokenizer are fetched from."""
    entries: dict[str, str] = {}
    for name, value in architecture.items():
        if isinstance(value, dict):
            entries |= _flat(value, f"{prefix}{name}.")
        elif not name.endswith("_pretrained") and name != "hf_tokenizer_name":
            entries[prefix + name] = json.dumps(value)
    return entries
