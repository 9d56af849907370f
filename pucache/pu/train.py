"""From a cache and labelled positives to a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import LabelError
from ..progress import Progress
from .classifier import PULinearClassifier
from .labels import Labels
from .near_duplicates import groups, unlabelled_twins
from .review_weights import Known
from .scar import ScarCheck, check_scar

TWINS = 0.999  # cosine from which on two images count as the same picture


@dataclass(frozen=True)
class PUData:
    """A cache with PU labels and groups of twins.

    Attributes
    ----------
    cache : EmbeddingCache
    labels : Labels
    group : ndarray of int64, (n,)
        See `pucache.pu.near_duplicates.groups`.
    """

    cache: EmbeddingCache
    labels: Labels
    group: np.ndarray

    @property
    def s(self) -> np.ndarray:
        """Labels that figures rest on, int8 (n,): 1 labelled positive, 0 all others, reviewed ones too."""
        return self.labels.s

    @property
    def known(self) -> Known:
        """What heads are trained on."""
        return Known.of(self.labels.s, self.labels.reviewed)

    @classmethod
    def of(
        cls,
        cache: EmbeddingCache,
        positives: str | Path | np.ndarray | Labels,
        twins: float | None = TWINS,
        *,
        negatives: str | Path | None = None,
    ) -> PUData:
        """Join a cache with labels: files of keys, globs on keys, s itself, or labels that were read.

        Parameters
        ----------
        cache : EmbeddingCache
        positives : path, str, ndarray of int8 (n,) or Labels
        twins : float or None
            As for `train_pu`.
        negatives : path or str, optional
            As for `train_pu`; only beside a file or a glob of positives.

        Raises
        ------
        LabelError
            As `Labels.read`; no labelled or no unlabelled row; an s of another length.
        CacheError
            The cache is damaged, or holds embeddings that are not finite.
        """
        if negatives is not None and not isinstance(positives, str | Path):
            raise ValueError("negatives go with a file or a glob of positives; give Labels that hold both instead")
        if isinstance(positives, str | Path):
            labels = Labels.read(cache, positives, negatives)
        else:
            labels = positives if isinstance(positives, Labels) else Labels.of(positives)
        if labels.s.shape != (len(cache),):
            raise LabelError(
                f"expected a label for each of {len(cache):,} rows of {cache.name}, got shape {labels.s.shape}"
            )
        labels.check()
        cache.verify()
        return cls(cache, labels, groups(cache.X, cache.digests, cosine=twins))

    def found(self) -> list[tuple[str, str]]:
        """Unlabelled images that are twins of labelled positives: (key, key of the positive)."""
        rows, labelled = unlabelled_twins(self.group, self.labels.positive.astype(np.int8))
        new = self.labels.unlabelled[rows]
        rows, labelled = rows[new], labelled[new]
        return [(self.cache.keys[int(a)], self.cache.keys[int(b)]) for a, b in zip(rows, labelled, strict=True)]


def train_pu(
    cache: EmbeddingCache,
    positives: str | Path | np.ndarray | Labels,
    *,
    negatives: str | Path | None = None,
    twins: float | None = TWINS,
    progress: Progress | None = None,
    **parameters: Any,
) -> PULinearClassifier:
    """Train a classifier on a cache.

    Parameters
    ----------
    cache : EmbeddingCache
    positives : path, str, ndarray of int8 (n,) or Labels
        A file of keys, a glob on keys, s itself, or all labels.
    negatives : path or str, optional
        A file of keys or a glob on keys of known negatives.
    twins : float or None
        Images with this cosine or more, or with equal bytes, stay in one fold; None: equal bytes
        only.
    progress : Progress, optional
    **parameters
        Of `PULinearClassifier`.

    Returns
    -------
    PULinearClassifier
        Fitted; its `encoder_` is the cache's.

    Raises
    ------
    LabelError, CacheError
        As `PUData.of`.
    ValueError
        A parameter outside its domain.
    """
    return train_on(PUData.of(cache, positives, twins, negatives=negatives), progress=progress, **parameters)


def train_on(data: PUData, *, progress: Progress | None = None, **parameters: Any) -> PULinearClassifier:
    """Train on data already joined; parameters are those of `PULinearClassifier`.

    Parameters
    ----------
    data : PUData
    progress : Progress, optional
    **parameters
        Of `PULinearClassifier`.

    Returns
    -------
    PULinearClassifier
        Fitted; its `encoder_` is the cache's.
    """
    model = PULinearClassifier(**parameters)
    model.fit(data.cache.X, data.s, groups=data.group, reviewed=data.labels.reviewed, progress=progress)
    model.encoder_ = data.cache.encoder
    return model


def scar_of(data: PUData, model: PULinearClassifier) -> ScarCheck:
    """Compare labelled with found positives, by the held-out margins of a model just trained on these data.

    Parameters
    ----------
    data : PUData
    model : PULinearClassifier
        Of `train_on`.

    Returns
    -------
    ScarCheck
    """
    return check_scar(
        data.cache.X, data.labels, model.held_out_margins_, model.tilt_, group=data.group, seed=model.seed
    )


def summary(model: PULinearClassifier) -> dict[str, Any]:
    """What a model is and what is estimated of it, ready for JSON (``metrics.json``).

    Parameters
    ----------
    model : PULinearClassifier
        Fitted by `train_pu` or `train_on`.

    Returns
    -------
    dict
    """
    chosen = ("loss", "target_prior", "solver", "deploy_prior")
    return {
        "encoder": str(model.encoder_),
        "labelled_positives": model.n_labelled_,
        "unlabelled": model.n_unlabelled_,
        "confirmed_positives": model.n_confirmed_,
        "known_negatives": model.n_negatives_,
        "prior": model.prior_,
        "prior_estimate": None if model.prior_estimate_ is None else vars(model.prior_estimate_),
        "penalty": model.penalty_,
        "threshold": model.threshold_,
        "threshold_rule": str(model.threshold),
        **{name: np.asarray(getattr(model, name)).item() for name in chosen},
        "estimates": model.estimates_,
    }
