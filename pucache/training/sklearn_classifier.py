"""`PULinearClassifier`: a scikit-learn classifier for positive and unlabelled rows."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ..devices import choose_device
from ..errors import LabelError
from ..estimates.review_weights import TrainingLabels
from ..heads.design_matrix import DesignMatrix
from ..progress import Progress
from ..storage.rows import rows_not_finite
from .linear_model import PULinearModel


class PULinearClassifier(ClassifierMixin, PULinearModel, BaseEstimator):
    """Linear classifier trained on labelled positives and unlabelled rows.

    It needs nothing but the labels. The penalty is chosen by how high held-out positives rank
    (`pucache.training.cross_fitting`), the prior is estimated with an interval (`pucache.estimates.priors`), and
    held-out margins calibrate the posterior and the threshold (`pucache.estimates.calibration`). The
    minimiser of the default risk, unclamped imbalanced uPU with the sigmoid loss, does not depend on
    the prior, so a wrong prior does not change the ranking (`pucache.heads.risks`).

    Parameters
    ----------
    prior : float, optional
        Share of positives among the unlabelled rows, in (0, 1); estimated by default.
    loss : {"imbupu", "imbnnpu", "upu", "nnpu", "weighted_bce", "bce"}
        Risk to minimise, see `pucache.heads.risks`. A risk that depends on the prior is trained with an
        estimate of it where none is given.
    surrogate : {"sigmoid", "logistic"}, optional
        Loss of a margin. Sigmoid by default; logistic for the two ``bce``.
    target_prior : float
        Weight of the positive part of the imbalanced risks, in (0, 1).
    penalty : float or "auto"
        L2 penalty relative to the spread of the rows, see `pucache.heads.solve.fit_heads`. ``auto``
        chooses it by cross-fitting; with ``sgd``, ``auto`` means 0, as in Dorigatti et al.
    solver : {"batch", "sgd"}
        ``batch`` trains to convergence; ``sgd`` is the protocol of Dorigatti et al.
    sgd_settings : SGDSettings, optional
        Epochs, batch size and learning rate of ``sgd``.
    threshold : float or str
        A row is called positive where its margin is above: ``f1`` (greatest expected F1),
        ``precision=P`` or ``recall=R`` (expected to be at least that), or a margin.
    deploy_prior : float, optional
        Share of positives where the classifier will be used, for posterior and threshold; the share
        among the unlabelled by default.
    n_folds : int
        Folds of the cross-fit; fewer are used where there are fewer positives.
    draws : int
        0: the interval of an estimated prior is that of its profile likelihood. Otherwise the number of
        bootstrap draws that it comes from.
    seed : int
        Seed of folds, initial coefficients and draws.
    device : str
        ``auto``, ``cpu``, ``cuda`` or ``cuda:N``, for training.
    method : {"distilled", "linear"}, optional
        ``distilled`` propagates the classifier's probabilities over the graph of nearest neighbours and
        trains the head on them, where the labels show that neighbours help
        (`pucache.training.neighbour_evidence`, `pucache.training.distillation`). ``linear`` trains on the labels alone.
        ``distilled`` by default; ``linear`` with the solver ``sgd`` or another loss than ``imbupu``.

    Attributes
    ----------
    coef_ : ndarray of float32, (d,)
        Coefficients for X as given.
    intercept_ : float
    threshold_ : float
        Margin above which a row is called positive.
    classes_ : ndarray, (2,)
        The two labels; the second, larger one is that of the labelled positives.
    prior_ : float
        Given or estimated. With fewer than ten labelled positives, where an estimate could lie anywhere, it is an
        assumption (`pucache.estimates.label_requirements.ASSUMED_PRIOR`), and commands do not state it.
    prior_estimate_ : PriorEstimate or None
        None where the prior was given or assumed.
    share_ : float
        Share of positives that posterior and threshold are for: `deploy_prior`, or else `prior_`;
        where that means less than one hidden positive, the share among all rows trained on.
    penalty_ : float
    tilt_ : Tilt
        Posterior as a function of the margin.
    estimates_ : dict
        `pucache.estimates.intervals.stated_estimates` on cross-fitted margins, with the risk and the clamp's
        activity. Figures that the labels are too few for are None.
    method_ : {"distilled", "linear"}
        Kind of the head; ``linear`` where neighbours do not help or the labels are too few to tell.
    neighbours_ : NeighbourSettings or None
        Evidence on what neighbours are worth, their weight in rankings, and the calibration of scores with
        neighbours; None where they were not looked at.
    held_out_margins_ : ndarray of float32, (n,)
        Margin of each row trained on (see `unlabelled_sample_`), by a head that did not see its label; not saved.
    classifier_margins_ : ndarray of float32, (n,)
        The same by the classifier before distillation; not saved.
    encoder_ : EncoderSpec or None
        Encoder of X; set by `train_pu` and checked by `check_fits`.
    n_labelled_, n_unlabelled_ : int
        Numbers of rows by the labels that estimates use; reviewed rows count as unlabelled, and so do rows of a
        cache that are not in the sample.
    unlabelled_sample_ : UnlabelledSample or None
        Sample of the unlabelled rows of a cache that `train_pu` took; None where it took all, and after `fit`.
    n_confirmed_, n_negatives_ : int
        Numbers of reviewed rows: confirmed positives and known negatives.
    n_features_in_ : int
    """

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        reviewed: ArrayLike | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Train on embeddings and PU labels.

        Parameters
        ----------
        X : array of float16 or float32, (n, d)
        y : array, (n,)
            The PU labels s: 1 (or True) labelled positive; 0, -1 or False unlabelled. Any other two
            values are taken too; the larger one marks the positives.
        sample_weight : array, (n,), optional
            Row weights >= 0, normalised within the positives and within the unlabelled.
        groups : array of int, (n,), optional
            Rows of one group stay in one fold, such as `pucache.labels.near_duplicates.groups`.
        reviewed : array of int, (n,), optional
            For rows that `y` calls unlabelled: 1 confirmed positive, -1 known negative, 0 not reviewed.
            Heads are trained on them, but no estimate uses them, see `pucache.estimates.review_weights`.
        progress : Progress, optional

        Returns
        -------
        PULinearClassifier
            Itself.

        Raises
        ------
        ValueError
            A parameter outside its domain; X with NaN, infinity or the wrong shape; other than two
            classes of labels; no weight on P or on U.
        """
        self._fit_settings()
        rows, labels = validate_data(self, X, y, dtype=[np.float32, np.float16], ensure_all_finite=False)
        X = np.asarray(rows)
        classes, s = _pu_labels(np.asarray(labels))
        bad = rows_not_finite(X)  # in blocks, as X may be larger than memory
        if len(bad):
            raise ValueError(f"Input X contains NaN or infinity, first in row {bad[0]}")
        decisions = None if reviewed is None else _decisions(reviewed, s)
        training_labels = TrainingLabels.of(s, decisions, _row_weights(sample_weight, X, s))
        design = DesignMatrix(X, training_labels.training_s, None, choose_device(self.device))
        group_numbers = None if groups is None else np.unique(groups, return_inverse=True)[1]
        self.train(design, training_labels, groups=group_numbers, progress=progress)
        self.classes_ = classes
        self.n_negatives_ = 0 if reviewed is None else int((np.asarray(reviewed) == -1).sum())
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Margins less `threshold_`: rows above 0 are called positive.

        Parameters
        ----------
        X : array of float16 or float32, (n, d)
            Finite.

        Returns
        -------
        ndarray of float32, (n,)
        """
        return self.margins(self._validated(X)) - np.float32(self.threshold_)

    def _validated(self, X: ArrayLike) -> np.ndarray:
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, dtype=[np.float32, np.float16], reset=False))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Predict one of `classes_` for each row, by the threshold on its margin.

        Parameters
        ----------
        X : array of float16 or float32, (n, d)
            Finite.

        Returns
        -------
        ndarray, (n,)
            Of the type of the labels given to `fit`.
        """
        called = self.decision_function(X) > 0
        return self.classes_[called.astype(np.intp)]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probability of each of `classes_`.

        Parameters
        ----------
        X : array of float16 or float32, (n, d)
            Finite.

        Returns
        -------
        ndarray of float64, (n, 2)
            Columns in the order of `classes_`; the second one is that of the positives.
        """
        posterior = self.posterior(self.margins(self._validated(X)))
        return np.column_stack([1 - posterior, posterior])


def _pu_labels(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two classes, (2,), and s, int8 (n,)."""
    check_classification_targets(y)
    classes = np.unique(y)
    if len(classes) > 2:
        raise LabelError(
            "Only binary classification is supported: labels are 1 (labelled positive) and 0 or -1 (unlabelled). "
            f"The type of the target is {type_of_target(y)}, with {len(classes)} values."
        )
    if len(classes) < 2:
        raise LabelError(
            f"labels hold one class only, {classes[0]}: some rows must be labelled positive (1) "
            "and some unlabelled (0 or -1)"
        )
    return classes, (y == classes[1]).astype(np.int8)


def _decisions(reviewed: ArrayLike, s: np.ndarray) -> np.ndarray:
    decisions = np.asarray(reviewed)
    if decisions.shape != s.shape:
        raise ValueError(f"expected a decision for each of {len(s)} rows, got reviewed {decisions.shape}")
    if not np.isin(decisions, (-1, 0, 1)).all():
        raise ValueError("reviewed must be 1 (confirmed positive), -1 (known negative) or 0, got other values")
    if (decisions[s == 1] == -1).any():
        raise ValueError("rows that are labelled positive are known negatives in `reviewed`; decide which")
    if not (s[decisions == 0] == 0).any():
        raise ValueError("every row is labelled or reviewed; some must be unlabelled, or there is nothing to find")
    return np.where(s == 1, 0, decisions).astype(np.int8)


def _row_weights(sample_weight: ArrayLike | None, X: np.ndarray, s: np.ndarray) -> np.ndarray | None:
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float32, ensure_non_negative=True)
    if not weights[s == 1].any() or not weights[s == 0].any():
        raise ValueError(
            "sample_weight leaves one class only: some labelled positives and some unlabelled rows need one"
        )
    return None if np.ptp(weights) == 0 else np.asarray(weights)
