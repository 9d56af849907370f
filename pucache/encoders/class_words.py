r"""Words by the classes that the bundled encoder was trained on: what ImageNet knows that is like them.

The encoder's own last layer, which embeddings leave out, gives each image a probability p_c of each of 1,000 classes.
A text stands for the classes whose names and definitions are nearest to it::

    score = sum_c a_c p_c,    a = softmax of cosine / 0.05 over the 60 classes nearest to the text

With several texts a is the mean of theirs, and that of the texts to avoid is subtracted.

The denominator of p_c takes all 1,000 logits. Those of the classes with a_c = 0 are taken in the 128 principal
directions of the logits of a sample of rows, each class weighted by the root of its mean probability: 3.5 times fewer
products.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from ..errors import OutputError
from ..storage.atomic import replacing
from ..threads import limited_threads
from .backbones import class_layer, class_texts
from .sentence_encoder import SentenceEncoder

_log = logging.getLogger("pucache")
_NEAREST, _TEMPERATURE = 60, 0.05
KNOWN = 0.48  # cosine of a text to a class below which none is near; docs/results/decisions.md
_SHOWN = 3  # classes in a line
SAMPLE = 4096  # rows whose logits give the directions of a denominator
_DIRECTIONS = 128
_LEAST_SHARE = 1e-7  # of a class, in the mean of its probability over the sample
ScoreRows = Callable[[np.ndarray], np.ndarray]
"""Maps embeddings (b, d) to scores, float32 (b,): higher is more like the words."""


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
