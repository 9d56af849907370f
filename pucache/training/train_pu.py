"""Training on a cache: `train_pu`.

The way of one list of positives, and of each of several concepts:

1. `open_cache`; `read_labels` joins the labels with its rows, `Labels` of one list or of K concepts.
2. `TrainingRows.of_cache`: a sample of the unlabelled rows, or one pass over all that verifies checksums, finds
   duplicates and sums moments, once; `find_unnamed_groups` looks whether the labels lie in few groups.
3. `TrainingRows.labelled_by`: the rows with the labels of one concept, a `TrainingSet`.
4. `PULinearClassifier.train` → `train_head`: `deal_folds`; `CrossFitter.cross_fit` at each penalty; `halves_of` and
   `agreement_gains` weigh the neighbours; `distil`.
5. `profile_interval`, or `AuditedPrior.combined` after a review; `fit_tilt`; `choose_threshold`.
6. `Figures.of`, `Figures.reviewed`, `Figures.with_prior`: what may be stated.

A concept that fails stops no other; its reason is in ``failures``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

from ..cache.embedding_cache import CacheLike, open_cache
from ..heads.minibatch import SGDSettings
from ..labels.labels import TWIN_COSINE, Labels, PULabels
from ..labels.read_labels import open_labels
from ..labels.row_values import RowValues
from ..progress import Progress
from ..seeds import Seed, drawn_seed
from .concept_models import ConceptModels
from .sklearn_classifier import PULinearClassifier
from .training_set import TrainingRows, TrainingSet


@overload
def train_pu(
    cache: CacheLike, positives: str | Path | RowValues | PULabels, **parameters: Any
) -> PULinearClassifier: ...


@overload
def train_pu(cache: CacheLike, positives: Labels, **parameters: Any) -> PULinearClassifier | ConceptModels: ...


def train_pu(  # type: ignore[misc]  # the overloads name few parameters
    cache: CacheLike,
    positives: str | Path | RowValues | PULabels | Labels,
    *,
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
    """Train a classifier on a cache; or one for each concept of its labels.

    Of more than a million unlabelled rows, or of more than 1 GiB of them, a reproducible sample is taken, by `seed`
    (`pucache.labels.sample`); all labelled positives are.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
    positives : path, str, RowValues, PULabels or Labels
        Positives: a file of keys or a glob on keys; keys in a list, set or index; 1 and 0 by key in a dict, Series or
        table, or by position in an array (`pucache.labels.row_values.read_values`). What is 0 in them is left aside,
        and counts as unlabelled. Known negatives, groups and several concepts come as `Labels`: from
        `pucache.read_labels`, or from `pucache.session_labels` with the audit of a review, on which prior, recall,
        precision and F1 then rest.
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
        Fitted; its `encoder_` is the encoder of the cache. With the labels of concepts, a mapping of such classifiers,
        whose ``failures`` say which concepts could not be trained, and why.

    Raises
    ------
    LabelError, CacheError
        As `pucache.read_labels`; the cache is damaged, or holds embeddings that are not finite.
    ValueError
        A parameter outside its domain.
    """
    number = drawn_seed(seed)
    parameters: dict[str, Any] = {"prior": prior, "loss": loss, "surrogate": surrogate, "target_prior": target_prior}
    parameters |= {"penalty": penalty, "solver": solver, "sgd_settings": sgd_settings, "threshold": threshold}
    parameters |= {"deploy_prior": deploy_prior, "n_folds": n_folds, "device": device, "method": method}
    opened = open_cache(cache)
    labels = open_labels(opened, positives)
    rows = TrainingRows.of_cache(opened, labels, twins=twins, all_rows=all_rows, seed=number, device=device)

    def train(_: str, data: TrainingSet) -> PULinearClassifier:
        return PULinearClassifier(**parameters, random_state=number).train(data, progress)

    models = rows.map(labels, train)
    if labels.is_one:
        return models[""]
    for model in models.values():  # margins would grow with the concepts
        del model.held_out_margins_, model.classifier_margins_
    return ConceptModels(models, models.failures)
