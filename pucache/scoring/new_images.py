"""New images beside the pile of a model: the share of positives among them, and whether they are of the same kind."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import CacheLike, open_cache
from ..cache.importing import are_rows, cache_of_rows
from ..errors import counted
from ..estimates.dataset_shift import DatasetShift, check_shift
from ..estimates.label_requirements import LabelCount, format_share
from ..estimates.priors import PriorEstimate
from ..estimates.share_of_new_images import LEAST_IMAGES, estimate_share
from ..storage.rows import evenly_spaced
from ..threads import one_blas_thread
from ..training.concept_models import ConceptModels
from ..training.model_file import NO_SAMPLE
from ..training.sklearn_classifier import PULinearClassifier, linear_margins

LEAST_LABELS_TO_DECIDE, LEAST_IMAGES_TO_DECIDE = 40, 1000  # for decisions at the share among new images
_LEAST_SHARE = 1e-4  # that decisions are made at
_OF_PILE = 0.5  # share of the images; from then on they are the pile
_MOST, _MOST_COMPARED = 20_000, 2000  # evenly spaced new images: for the share and the margins, for the embeddings
_NAMED = 3  # in a line
_OLDER = "models of 0.4 and older keep no heads of their folds, by which a share is estimated: train again"


@dataclass(frozen=True)
class NewImages:
    """What the embeddings of new images say beside those of the pile that a model was trained on.

    Attributes
    ----------
    n_images, n_sampled : int
        New images, and how many of them were looked at.
    labels : LabelCount
        Labels that the figures of the model rest on.
    own_share : float
        Share that posterior and threshold of the model are for.
    share : PriorEstimate or None
        Of positives among the new images; its interval holds unless they differ (`differs`). None below 30 labels, for
        fewer than 30 images, for the model's own pile, after a prior that its labels exclude, and of before 0.5.
    shift : DatasetShift or None
        None below 10 labelled positives, and where the images are too few, or the pile's, or the model is of before
        0.3.
    most_different : list of str
        Keys of the images that differ most from the pile's, at most 20; empty where no difference was found.
    note : str
        Why no share is stated, or nothing is said; "" otherwise.
    """

    n_images: int
    n_sampled: int
    labels: LabelCount
    own_share: float
    share: PriorEstimate | None = None
    shift: DatasetShift | None = None
    most_different: list[str] = field(default_factory=list)
    note: str = ""

    @property
    def share_text(self) -> str:
        """The share in a sentence, or why it is not stated; "" where there is none."""
        if self.share is None or not self.share.has_interval:
            return ""
        if self.shift is not None and not self.shift.is_mixture:
            return "the share of positives among the new images is not stated, as none fits their margins"
        assert self.share.prior is not None  # below 30 labels there is no share at all
        interval, level = self.share.interval_text(percent), self.share.level_text
        of = "the new images" if self.n_sampled == self.n_images else f"the new images, by {self.n_sampled:,} of them"
        if self.differs:
            return (
                f"about {percent(self.share.prior)} of {of} would be positive ({level} interval {interval}) if they "
                "were like those that the model was trained on, which they are not: the true share may lie outside"
            )
        return f"about {percent(self.share.prior)} of {of} are positive ({level} interval {interval})"

    @property
    def differs(self) -> bool:
        """Whether a difference from the pile was found, so that the share may be wrong."""
        return self.shift is not None and self.shift.differs

    @property
    def share_to_decide_at(self) -> float | None:
        """The share, where decisions at it are better than at the model's own; `why_own_share` says where not."""
        if self.why_own_share or self.share is None or self.share.prior is None:
            return None
        return float(np.clip(self.share.prior, _LEAST_SHARE, 1 - _LEAST_SHARE))

    @property
    def why_own_share(self) -> str:
        """Why decisions are made at the model's own share; "" where they are not."""
        if self.share is None:
            return self.note
        if self.differs:
            return "the new images differ from those that the model was trained on"
        if self.n_images < LEAST_IMAGES_TO_DECIDE:
            return f"decisions at the share among new images take {LEAST_IMAGES_TO_DECIDE:,} of them"
        if self.labels.labels < LEAST_LABELS_TO_DECIDE:
            least = replace(self.labels, labels=LEAST_LABELS_TO_DECIDE)
            return f"decisions at the share among new images take {least.text}"
        if self.share.low <= self.own_share <= self.share.high:
            return "the share among the new images is not known to differ"
        return ""

    @property
    def warning(self) -> str:
        """A sentence on the difference that was found; "" where none was."""
        if self.shift is None or not self.differs:
            return ""
        found = []
        if self.shift.is_told_apart:
            beyond = f"{100 * self.shift.beyond:.0f}% of them lie beyond 98% of the others"
            found.append(
                f"a classifier tells them apart with AUC {self.shift.auc:.2f}, where 0.5 is guessing; {beyond}"
            )
        if not self.shift.is_mixture:
            found.append(f"their margins fit no share of positives (distance {self.shift.distance:.2f})")
        return (
            f"the new images differ from those that the model was trained on: {'; '.join(found)}. Whether decisions on "
            "them suffer is not known: check some. Most different: " + ", ".join(self.most_different[:_NAMED])
        )

    def to_dict(self) -> dict[str, Any]:
        """Figures for JSON."""
        shift = {} if self.shift is None else {k: v for k, v in vars(self.shift).items() if k != "most_different"}
        return {
            "images": self.n_images,
            "sampled": self.n_sampled,
            "share": None if self.share is None else asdict(self.share),
            "share_holds": None if self.share is None else not self.differs,
            "shift": shift | {"differs": self.shift.differs} if self.shift else None,
            "most_different": self.most_different,
            "note": self.note,
        }


def check_new_images(
    model: PULinearClassifier | str | Path, images: CacheLike, *, rows: np.ndarray | None = None
) -> NewImages:
    """Estimate the share of positives among new images, and test whether they are of the kind of the pile.

    Parameters
    ----------
    model : PULinearClassifier or path
    images : EmbeddingCache, path, sequence of paths, or array, (n, d)
        Embeddings of the new images, by the model's encoder. Of many, 20,000 are read.
    rows : ndarray of int64, ascending, optional
        Which rows are new; all by default.

    Returns
    -------
    NewImages

    Raises
    ------
    ModelError
        The model is of another encoder.
    CacheError
        The embeddings are not finite.
    """
    model = ConceptModels.open(model).of("")
    cache = cache_of_rows(images, model.encoder_) if are_rows(images) else open_cache(images)
    model.check_fits(cache)
    count = len(cache) if rows is None else len(rows)
    sampled = evenly_spaced(count, _MOST)
    labels, pile = model.figures_.labels, model.pile_margins_
    known = (labels, model.share_)
    if pile is None or model.pile_sample_ is None:
        return NewImages(count, 0, *known, note=NO_SAMPLE)
    if not labels.has_estimates or count < LEAST_IMAGES:
        words, number = (counted(count, "new image"), count) if labels.has_estimates else (labels.text, labels.labels)
        note = f"{words} {'is' if number == 1 else 'are'} too few to estimate a share of positives among new images"
        return NewImages(count, 0, *known, note=note)
    numbers = sampled if rows is None else rows[sampled]
    X = cache.take(numbers)
    margins = model.margins(X)
    if not np.isfinite(margins).all():
        raise cache.not_finite_error(numbers[~np.isfinite(margins)])
    part = model.pile_sample_.part_of_pile(X, model.n_labelled_, model.n_unlabelled_)
    if part >= _OF_PILE:
        return NewImages(count, len(X), *known, note="the model was trained on these images, or on most of them")
    tilt = pile.tilt(model.tilt_.prior)
    compared = evenly_spaced(len(X), _MOST_COMPARED)
    shift = check_shift(model.pile_sample_, pile, tilt, X[compared], margins)
    keys = cache.keys[numbers[compared[shift.most_different]]] if shift.differs else []
    why = ""
    if not labels.has_points:  # with 20, where few images are positive, half of the intervals missed the share
        why = f"{labels.text} are too few to state a share of positives among new images"
    elif model.prior is not None and model.figures_["auc"].interval is None:
        why = "the prior that was given in training is too large for its labels"
    if why or model.fold_coef_ is None or model.fold_intercept_ is None:
        return NewImages(count, len(X), *known, shift=shift, most_different=keys, note=why or _OLDER)
    with one_blas_thread:
        by_folds = linear_margins(X, model.fold_coef_, model.fold_intercept_)
    share = estimate_share(pile, model.tilt_.prior, by_folds)
    return NewImages(count, len(X), *known, share=share, shift=shift, most_different=keys)


def percent(share: float) -> str:
    """A share for a sentence."""
    return f"{format_share(share, 3, whole=100)}%"
