r"""Words by the classes that the bundled encoder was trained on: what ImageNet knows that is like them.

The encoder's own last layer, which embeddings leave out, gives each image a probability p_c of each of 1,000 classes.
A text stands for the classes whose names and definitions are nearest to it::

    score = sum_c a_c p_c,    a = softmax of cosine / 0.05 over the 60 classes nearest to the text

With several texts a is the mean of theirs, and that of the texts to avoid is subtracted.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from ..errors import OutputError
from ..storage.atomic import replacing
from .backbones import class_layer, class_texts
from .sentence_encoder import SentenceEncoder

_log = logging.getLogger("pucache")
_NEAREST, _TEMPERATURE = 60, 0.05
KNOWN = 0.4  # cosine of a text to a class below which nothing like it is known; set by eye on sixty phrases
_SHOWN = 3  # classes in a line
ScoreRows = Callable[[np.ndarray], np.ndarray]
"""Maps embeddings (b, d) to scores, float32 (b,): higher is more like the words."""


def score_by_classes(
    words: Sequence[str], not_words: Sequence[str], text_encoder: str | Path | None, folder: Path
) -> tuple[ScoreRows, str]:
    """Scores of embeddings of the bundled encoder, and a line on what the words stand for.

    Vectors of the classes' texts are kept in `folder`, as they take longer than the rest.

    Raises
    ------
    EncoderError
        There is no text encoder, or the bundled weights are missing.
    MissingExtraError
        The extra ``words`` is not installed.
    """
    encode, texts = SentenceEncoder(text_encoder), class_texts()
    of_classes, names = _kept_vectors(encode, texts, folder), [text.split(",")[0].split(":")[0] for text in texts]
    cosines = encode([*words, *not_words]) @ of_classes.T
    shares = np.array([_shares(row) for row in cosines])
    weights = shares[: len(words)].mean(0)
    if not_words:
        weights = weights - shares[len(words) :].mean(0)
    note = "; ".join(_known(text, row, names) for text, row in zip([*words, *not_words], cosines, strict=True))
    return _scoring(weights), note


def _scoring(weights: np.ndarray) -> ScoreRows:
    layer, bias = class_layer()
    of_class = torch.from_numpy(weights.astype(np.float32))

    def scores(X: np.ndarray) -> np.ndarray:
        probabilities = torch.softmax(torch.addmm(bias, torch.tensor(X, dtype=torch.float32), layer.T), 1)
        return np.asarray((probabilities @ of_class).numpy())

    return scores


def _shares(cosines: np.ndarray) -> np.ndarray:
    """Share of each class in what a text stands for, float64; they sum to 1."""
    nearest = np.argsort(-cosines, kind="stable")[:_NEAREST]
    shares = np.zeros(len(cosines))
    shares[nearest] = np.exp((cosines[nearest] - cosines.max()).astype(np.float64) / _TEMPERATURE)
    return shares / shares.sum()


def _known(text: str, cosines: np.ndarray, names: Sequence[str]) -> str:
    """What a text stands for, or that nothing like it is known."""
    nearest = ", ".join(names[place] for place in np.argsort(-cosines, kind="stable")[:_SHOWN].tolist())
    if cosines.max() < KNOWN:
        return f"nothing like {text!r} is known: the nearest of the encoder's 1,000 classes are {nearest}"
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
    _keep(path, vectors)
    return vectors


def _keep(path: Path, vectors: np.ndarray) -> None:
    with contextlib.suppress(OutputError, OSError):  # what cannot be kept is made again
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "wb") as stream:
            np.save(stream, vectors)
