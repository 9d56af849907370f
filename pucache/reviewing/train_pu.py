"""`pucache.train_pu`: above the package `training`, because it reads the sessions of reviews."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from ..cache.embedding_cache import CacheLike, EmbeddingCache, open_cache
from ..heads.minibatch import SGDSettings
from ..labels.concepts import ConceptLabels, ConceptSource
from ..labels.groups import GroupSource, read_groups
from ..labels.labels import TWIN_COSINE, Labels
from ..labels.row_values import RowValues
from ..progress import Progress
from ..seeds import Seed, drawn_seed
from ..training.concept_models import ConceptModels
from ..training.labelled_cache import LabelledCache
from ..training.sklearn_classifier import PULinearClassifier
from ..training.train_on_cache import train_concepts, train_on_cache
from .session_labels import read_labels


@overload
def train_pu(
    cache: CacheLike,
    positives: str | Path | RowValues | Labels | None = None,
    *,
    concepts: None = None,
    **parameters: Any,
) -> PULinearClassifier: ...


@overload
def train_pu(cache: CacheLike, *, concepts: ConceptSource, **parameters: Any) -> ConceptModels: ...


def train_pu(  # type: ignore[misc]  # the overloads name few parameters
    cache: str | Path | Sequence[str | Path] | EmbeddingCache,
    positives: str | Path | RowValues | Labels | None = None,
    *,
    negatives: str | Path | RowValues | None = None,
    session: str | Path | None = None,
    beside: str | Path | None = None,
    concepts: ConceptSource | None = None,
    groups: GroupSource | None = None,
    exclusive: bool = False,
    twins: float | None = TWIN_COSINE,
    all_rows: bool = False,
    progress: Progress | None = None,
    prior: float | None = None,
    loss: str = "imbupu",
    surrogate: str | None = None,
    target_prior: float = 0.5,
    penalty: float | str = "auto",
    solver: str = "batch",
    sgd_settings: SGDSettings | None = None,
    threshold: float | str = "f1",
    deploy_prior: float | None = None,
    n_folds: int = 5,
    seed: Seed = 0,
    device: str = "auto",
    method: str | None = None,
) -> PULinearClassifier | ConceptModels:
    """Train a classifier on a cache, with labels or with the review of a session; or one for each of many concepts.

    Of more than a million unlabelled rows, or of more than 1 GiB of them, a reproducible sample is taken, by `seed`
    (`pucache.labels.sample`); all labelled positives are.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
    positives : path, str, RowValues or Labels
        A file of keys or a glob on keys; keys in a list, set or index; 1 and 0 by key in a dict, Series or table, or by
        position in an array (`pucache.labels.row_values.read_values`); or labels with a review.
    negatives : path, str or RowValues, optional
        Known negatives, in the same forms.
    session : path, optional
        Folder of a review, such as ``cache.h5.review``, in place of `positives` and `negatives`: its labels, and its
        audit, on which prior, recall, precision and F1 then rest. A folder of the sessions of concepts trains as
        `concepts` does.
    beside : path, optional
        Folder of a second reader's session: the labels are those of both, as for `pucache.audit`.
    concepts : path, str or mapping, optional
        In place of all of these, the positives of many concepts: a table ``key,concept``, a folder of lists, or a
        mapping, see `pucache.labels.concepts.open_concepts`.
    groups : path, str or RowValues, optional
        Rows that are not independent, such as those of one patient, video or site, as for
        `pucache.labels.groups.read_groups`: a table ``key,group``, a pattern on keys, or one group a key or row. They
        stay in one fold, count as one label, and intervals allow for them.
    exclusive : bool
        Only with `concepts`: an image has one of them at most, so that the positives of each are known negatives of the
        others.
    twins : float or None
        Cosine from which on two images count as the same picture; they stay in one fold. None: only
        images with equal bytes.
    all_rows : bool
        Take all unlabelled rows, however many there are.
    progress : Progress, optional
    prior, loss, surrogate, target_prior, penalty, solver, sgd_settings, threshold, deploy_prior, n_folds
        As for `pucache.PULinearClassifier`.
    seed : int, RandomState, Generator or None
        Of the sample, of folds and initial coefficients: `random_state` of `pucache.PULinearClassifier`. What is no
        number draws one, which is the model's `seed_`.
    device, method
        As for `pucache.PULinearClassifier`.

    Returns
    -------
    PULinearClassifier or ConceptModels
        Fitted; its `encoder_` is the encoder of the cache. With `concepts`, a mapping of such classifiers, whose
        ``failures`` say which concepts could not be trained, and why.

    Raises
    ------
    LabelError, CacheError
        As `LabelledCache.of`.
    SessionError
        As `pucache.reviewing.session_labels.read_labels`.
    ValueError
        A parameter outside its domain; both labels and a session, or neither.
    """
    given = [labels for labels in (positives, session, concepts) if labels is not None]
    if len(given) != 1 or (positives is None and negatives is not None):
        raise ValueError(
            "train_pu takes positives (and negatives), or a session, which has the labels of a review, or concepts"
        )
    if exclusive and concepts is None:
        raise ValueError(
            "exclusive is for concepts, of which an image has one; leave it out with one list of positives"
        )
    number = drawn_seed(seed)
    classifier = PULinearClassifier(
        prior,
        loss=loss,
        surrogate=surrogate,
        target_prior=target_prior,
        penalty=penalty,
        solver=solver,
        sgd_settings=sgd_settings,
        threshold=threshold,
        deploy_prior=deploy_prior,
        n_folds=n_folds,
        random_state=number,
        device=device,
        method=method,
    )
    opened = open_cache(cache)
    labels: Any = positives if session is None else read_labels(opened, session, beside=beside)
    rows: dict[str, Any] = {"all_rows": all_rows, "clusters": None if groups is None else read_groups(opened, groups)}
    concepts = labels if isinstance(labels, ConceptLabels) else concepts
    if concepts is not None:
        rows |= {"twins": twins, "excluding": exclusive}
        return train_concepts(opened, concepts, classifier, progress=progress, **rows)
    data = LabelledCache.of(opened, labels, twins, negatives=negatives, seed=number, device=device, **rows)
    return train_on_cache(classifier, data, progress=progress)
