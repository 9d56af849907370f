r"""A reproducible sample of the unlabelled rows, for caches with more of them than training needs.

Every key has a number by a hash, and the sample is the unlabelled rows of the smallest numbers. So it is a random
sample, whatever the order of the keys, and depends on the keys and the seed alone: not on how rows are divided into
files, nor on the order of the files. Other labels replace only the rows that they concern.

Shares are the same in the sample and in all unlabelled rows, so the prior, precision, recall and thresholds are
estimated on it. Numbers of images are shares times the number of all unlabelled rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..cache.keys import Keys, key_numbers
from .labels import PULabels

SAMPLE_ROWS, SAMPLE_BYTES = 1_000_000, 1 << 30  # greatest sample of rows, and of their embeddings as they are stored
LEAST_HIDDEN = 300  # hidden positives in a sample, below which its share of positives is known to more than 6 %
_KEYS_AT_ONCE = 1 << 14  # numbered at once: they stay in the processor's cache


@dataclass(frozen=True)
class UnlabelledSample:
    """Size of a sample of the unlabelled rows.

    Attributes
    ----------
    rows : int
        Unlabelled rows in the sample.
    unlabelled : int
        Unlabelled rows in all.
    seed : int
        That the sample was drawn by.
    """

    rows: int
    unlabelled: int
    seed: int

    @property
    def sentence(self) -> str:
        """What was taken."""
        return (
            f"trained on {self.rows:,} of {self.unlabelled:,} unlabelled rows, drawn by seed {self.seed}; "
            "train-pu --all takes all"
        )

    def note(self, prior: float | None) -> str:
        """Sentence on a sample that holds few hidden positives; empty where there are enough, or no prior is known."""
        if prior is None or prior * self.rows >= LEAST_HIDDEN:
            return ""
        return (
            f"about {prior * self.rows:,.0f} positives are hidden in this sample; prior and threshold rest on few of "
            "them, and train-pu --all takes all rows"
        )

    def to_json(self) -> dict[str, Any]:
        """Fields by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> UnlabelledSample:
        """Read the fields that `to_json` returned; `ValueError` for others."""
        if set(fields) != {"rows", "unlabelled", "seed"} or not all(type(value) is int for value in fields.values()):
            raise ValueError(f"its sample of unlabelled rows is {fields!r}")
        sample = cls(**fields)
        if not 0 < sample.rows <= sample.unlabelled or sample.seed < 0:
            raise ValueError(f"its sample of unlabelled rows is {fields!r}")
        return sample


def copied_rows(cache: EmbeddingCache, rows: np.ndarray) -> np.ndarray:
    """Copy some rows of a cache, (m, d), given their ascending numbers, while all of it is verified in one read."""
    X = np.empty((len(rows), cache.encoder.dim), cache.files[0].dtype)
    for block_rows, block in cache.verified_blocks():
        begin, end = np.searchsorted(rows, (block_rows.start, block_rows.stop))
        X[begin:end] = block[rows[begin:end] - block_rows.start]
    return X


def sample_size(row_bytes: int) -> int:
    """Greatest number of unlabelled rows that training takes, for rows of so many bytes as they are stored."""
    return max(1, min(SAMPLE_ROWS, SAMPLE_BYTES // row_bytes))


def draw_sample(
    keys: Keys, labels: PULabels, *, row_bytes: int, seed: int = 0
) -> tuple[UnlabelledSample, np.ndarray] | None:
    """Draw a sample where there are more unlabelled rows than training takes; None where all are taken.

    Returns it, and the rows of all labelled positives and of the sample, int64 (m,), ascending. Nothing is drawn after
    a review: reviewed rows are no random sample of the unlabelled rows, and counts by an audit are of all of them.
    """
    size, unlabelled, seed = sample_size(row_bytes), int((labels.s == 0).sum()), int(seed)
    if unlabelled <= size or labels.reviewed.any() or labels.hidden is not None:
        return None
    drawn = smallest_numbers(keys, labels.s == 0, size, seed)
    rows = np.sort(np.concatenate([np.flatnonzero(labels.s == 1), drawn]))
    return UnlabelledSample(rows=size, unlabelled=unlabelled, seed=seed), rows


def smallest_numbers(keys: Keys, among: np.ndarray, size: int, seed: int) -> np.ndarray:
    """The `size` rows whose keys have the smallest numbers, of those that are `among`, bool (n,), in no order."""
    rows, numbers = np.flatnonzero(among), np.empty(len(keys), np.uint64)
    for start in range(0, len(keys), _KEYS_AT_ONCE):
        part = slice(start, start + _KEYS_AT_ONCE)
        numbers[part] = key_numbers(keys.encoded(part), seed)
    return rows if size >= len(rows) else rows[np.argpartition(numbers[rows], size)[:size]]
