"""`PULinearClassifier`: a linear classifier from positive and unlabelled rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ..cache.embedding_cache import EmbeddingCache
from ..encoders.spec import ROUNDING, EncoderSpec
from ..errors import LabelError, ModelError
from ..heads.fit import SOLVERS, Protocol
from ..heads.risks import PURisk
from ..progress import Progress, Silent
from ..storage.mapped_arrays import rows_not_finite
from . import fitting, model_file
from .calibration import Tilt, fit_tilt
from .fitting import Plan
from .metrics import from_pu
from .priors import PriorEstimate
from .review_weights import TrainingLabels
from .thresholds import choose_threshold, parse_rule

_AT_ONCE = 1 << 15  # numbers turned into float32: so few that torch does it in this thread, in the processor's memory
_WHOLE = (int, np.integer)
_NUMBER = (*_WHOLE, float, np.floating)


class PULinearClassifier(ClassifierMixin, BaseEstimator):
    """Linear classifier trained on labelled positives and unlabelled rows.

    Nothing but the labels need be given: the penalty is chosen by how held-out positives rank
    (`pucache.pu.cross_fitting`), the prior is estimated with an interval (`pucache.pu.priors`), and margins of
    rows that a head did not see calibrate the posterior and the threshold (`pucache.pu.calibration`).
    The default risk, unclamped imbalanced uPU with the sigmoid loss, has the same minimiser
    whatever the prior, so a wrong prior does no harm to the ranking (`pucache.heads.risks`).

    Parameters
    ----------
    prior : float, optional
        Share of positives among the unlabelled rows, in (0, 1); estimated by default.
    loss : {"imbupu", "imbnnpu", "upu", "nnpu", "weighted_bce", "bce"}
        See `pucache.heads.risks`. Losses that depend on a prior that is not given are trained with an
        estimate of it.
    surrogate : {"sigmoid", "logistic"}, optional
        Sigmoid by default, logistic for the two ``bce``.
    target_prior : float
        Weight of the positive part of the imbalanced risks, in (0, 1).
    penalty : float or "auto"
        L2 penalty, relative to the spread of the rows, see `pucache.heads.fit.fit_heads`. ``auto``
        chooses it; with ``sgd`` it stands for the authors' 0.
    solver : {"batch", "sgd"}
        Convergence, or the protocol of Dorigatti et al.
    protocol : Protocol, optional
        Epochs, batch size and learning rate of ``sgd``.
    threshold : float or str
        A row is called positive where its margin is above: ``f1`` (greatest expected F1),
        ``precision=P`` or ``recall=R`` (expected to be at least that), or a margin.
    deploy_prior : float, optional
        Share of positives where the classifier will be used, for the posterior and the threshold;
        that among the unlabelled by default.
    n_folds : int
        For cross-fitting; fewer where there are fewer positives.
    draws : int
        Bootstrap draws for the interval of an estimated prior; 0 for none.
    seed : int
        Of folds, initial coefficients and draws.
    device : str

    Attributes
    ----------
    coef_ : ndarray of float32, (d,)
        On X as given.
    intercept_ : float
    threshold_ : float
        The margin above which a row is called positive.
    classes_ : ndarray, (2,)
        Of the labels that were given; the second, larger one is the labelled positives'.
    prior_ : float
        Given or estimated.
    prior_estimate_ : PriorEstimate or None
        Where it was estimated.
    share_ : float
        Share of positives that posterior and threshold are for: `deploy_prior`, or else `prior_`;
        where that means less than one hidden positive, the share among all rows trained on.
    penalty_ : float
    tilt_ : Tilt
        Posterior as a function of the margin.
    estimates_ : dict
        `pucache.pu.metrics.from_pu` on cross-fitted margins, with the risk and the clamp's activity.
    held_out_margins_ : ndarray of float32, (n,)
        Margin of each row trained on, by a head that did not see it; not saved.
    encoder_ : EncoderSpec or None
        Whose embeddings X are; set by `train_pu` and checked by `check_fits`.
    n_labelled_, n_unlabelled_ : int
        Of the labels that figures rest on; rows that were reviewed are among the unlabelled.
    n_confirmed_, n_negatives_ : int
        Of the rows that were reviewed.
    n_features_in_ : int
    """

    encoder_: EncoderSpec | None

    def __init__(
        self,
        prior: float | None = None,
        *,
        loss: str = "imbupu",
        surrogate: str | None = None,
        target_prior: float = 0.5,
        penalty: float | str = "auto",
        solver: str = "batch",
        protocol: Protocol | None = None,
        threshold: float | str = "f1",
        deploy_prior: float | None = None,
        n_folds: int = 5,
        draws: int = 20,
        seed: int = 0,
        device: str = "auto",
    ):
        self.prior = prior
        self.loss = loss
        self.surrogate = surrogate
        self.target_prior = target_prior
        self.penalty = penalty
        self.solver = solver
        self.protocol = protocol
        self.threshold = threshold
        self.deploy_prior = deploy_prior
        self.n_folds = n_folds
        self.draws = draws
        self.seed = seed
        self.device = device

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
            values do too, the larger one for the positives.
        sample_weight : array, (n,), optional
            Row weights >= 0, normalised within the positives and within the unlabelled.
        groups : array of int, (n,), optional
            Rows of one group stay in one fold, such as `pucache.pu.near_duplicates.groups`.
        reviewed : array of int, (n,), optional
            Of rows that `y` calls unlabelled: 1 confirmed positive, -1 known negative, 0 not looked
            at. Heads are trained on them, but no figure rests on them, see `pucache.pu.review_weights`.
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
        plan = self._plan()
        rows, labels = validate_data(self, X, y, dtype=[np.float32, np.float16], ensure_all_finite=False)
        X, s = np.asarray(rows), self._as_pu_labels(np.asarray(labels))
        bad = rows_not_finite(X)  # in blocks, as X may be larger than memory
        if len(bad):
            raise ValueError(f"Input X contains NaN or infinity, first in row {bad[0]}")
        weights = _row_weights(sample_weight, X, s)
        known = TrainingLabels.of(s, None if reviewed is None else _review(reviewed, s), weights)
        group = None if groups is None else np.unique(groups, return_inverse=True)[1]
        with progress or Silent() as progress:
            found = fitting.fit(X, known, group, plan, progress)
        self.coef_, self.intercept_ = found.head.coef[0], float(found.head.intercept[0])
        self.penalty_, self.prior_, self.prior_estimate_ = found.penalty, found.prior, found.estimate
        self.held_out_margins_ = found.held_out
        self._calibrate(found.held_out, s, weights)
        self.estimates_ = {
            "risk": float(found.head.risk[0]),
            "clamped": float(found.head.clamped[0]),
            **from_pu(found.held_out, s, self.prior_, self.threshold_),
        }
        self.n_labelled_, self.n_unlabelled_ = int(s.sum()), int((s == 0).sum())
        self.n_confirmed_ = int((known.trained > s).sum())
        self.n_negatives_ = 0 if reviewed is None else int((np.asarray(reviewed) == -1).sum())
        self.encoder_ = None
        return self

    def _plan(self) -> Plan:
        """Check the parameters."""
        for name in ("prior", "deploy_prior"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, _NUMBER) and 0 < value < 1):
                raise ValueError(
                    f"{name} must lie strictly between 0 and 1, got {value!r}; it is a share of positives"
                    + (" among the unlabelled, or None to estimate it" if name == "prior" else "")
                )
        for name, least in (("n_folds", 2), ("draws", 0), ("seed", 0)):
            value = getattr(self, name)
            if not (isinstance(value, _WHOLE) and value >= least):
                raise ValueError(f"{name} must be a whole number, at least {least}, got {value!r}")
        if self.penalty != "auto" and not (isinstance(self.penalty, _NUMBER) and 0 <= self.penalty < np.inf):
            raise ValueError(f"penalty must be 'auto' or a finite number >= 0, got {self.penalty!r}")
        if self.solver not in SOLVERS:
            raise ValueError(f"unknown solver {self.solver!r}; use {' or '.join(SOLVERS)}")
        if self.protocol is not None and self.solver != "sgd":
            raise ValueError("a protocol is for solver='sgd'; leave it out or choose that solver")
        parse_rule(self.threshold)
        return Plan(
            PURisk(self.loss, self.surrogate, target_prior=self.target_prior),
            None if self.prior is None else float(self.prior),
            self.penalty,
            self.solver,
            self.protocol,
            int(self.n_folds),
            int(self.draws),
            int(self.seed),
            self.device,
        )

    def _as_pu_labels(self, y: np.ndarray) -> np.ndarray:
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) > 2:
            raise LabelError(
                "Only binary classification is supported: labels are 1 (labelled positive) and 0 or -1 (unlabelled). "
                f"The type of the target is {type_of_target(y)}, with {len(self.classes_)} values."
            )
        if len(self.classes_) < 2:
            raise LabelError(
                f"labels hold one class only, {self.classes_[0]}: some rows must be labelled positive (1) "
                "and some unlabelled (0 or -1)"
            )
        return (y == self.classes_[1]).astype(np.int8)

    def _calibrate(self, margins: np.ndarray, s: np.ndarray, weights: np.ndarray | None) -> None:
        self.tilt_ = fit_tilt(margins, s, weights, self.prior_)
        labelled = float(s.mean())
        hidden = self.prior_ * (s == 0).sum()
        # where not one positive is hidden, the unlabelled are negatives, and these rows are all there is
        self.share_ = self.deploy_prior or (self.prior_ if hidden >= 1 else labelled + (1 - labelled) * self.prior_)
        self.threshold_ = choose_threshold(self.tilt_, margins[s == 0], self.threshold, self.share_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Margins less `threshold_`: rows above 0 are called positive; float32 (n,).

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

    def margins(self, X: np.ndarray) -> np.ndarray:
        """Margins of trusted embeddings, float32 (n,); nothing is checked.

        Parameters
        ----------
        X : ndarray, (n, d)
            May be a memory map.

        Returns
        -------
        ndarray of float32, (n,)
            X @ `coef_` + `intercept_`, of each row the same in whatever company.
        """
        margins = np.empty(len(X), np.float32)
        step = max(1, _AT_ONCE // X.shape[1])
        rows = torch.empty((step, X.shape[1]))  # one piece of memory, filled by torch: several times as fast as numpy
        if X.dtype not in (np.float16, np.float32):
            X = X.astype(np.float32)
        to_tensor = torch.from_numpy if X.flags.writeable else torch.tensor  # which copies, what is mapped say
        for start in range(0, len(X), step):
            some = to_tensor(np.ascontiguousarray(X[start : start + step]))
            # row by row: a matrix product would round a row differently in different company, or in other strides
            np.vecdot(rows[: len(some)].copy_(some).numpy(), self.coef_, out=margins[start : start + step])
        return margins + np.float32(self.intercept_)

    def margins_of(self, cache: EmbeddingCache) -> Iterator[tuple[slice, np.ndarray]]:
        """Margins of every row of a cache, block by block, held against its seal: (row slice, float32 (b,)) pairs.

        Parameters
        ----------
        cache : EmbeddingCache

        Yields
        ------
        rows : slice
            Of the cache.
        margins : ndarray of float32, (b,)

        Raises
        ------
        ModelError
            As `check_fits`.
        CacheError
            The cache is damaged, or holds embeddings that are not finite.
        """
        self.check_fits(cache)
        for rows, X in cache.blocks(check=True):
            margins = self.margins(X)
            bad = np.flatnonzero(~np.isfinite(margins))
            if len(bad):
                raise cache.not_finite(bad + rows.start)
            yield rows, margins

    def posterior(self, margins: np.ndarray) -> np.ndarray:
        """Probability of being positive where a share of `share_` is, float64 (n,).

        Parameters
        ----------
        margins : ndarray, (n,)
            Of this model.

        Returns
        -------
        ndarray of float64, (n,)
        """
        return self.tilt_.posterior(margins, self.share_)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Call each row one of `classes_`, by the threshold on its margin.

        Parameters
        ----------
        X : array of float16 or float32, (n, d)
            Finite.

        Returns
        -------
        ndarray, (n,)
            Of the type of the labels that were given.
        """
        called = self.decision_function(X) > 0
        return self.classes_[called.astype(np.intp)]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Probability of each of `classes_`, float64 (n, 2).

        Parameters
        ----------
        X : array of float16 or float32, (n, d)
            Finite.

        Returns
        -------
        ndarray of float64, (n, 2)
            Columns in the order of `classes_`: the positives' is the second.
        """
        posterior = self.posterior(self.margins(self._validated(X)))
        return np.column_stack([1 - posterior, posterior])

    def check_fits(self, cache: EmbeddingCache) -> None:
        """Raise `ModelError` unless the model was trained on embeddings of the cache's encoder.

        Precision and runtime of the forward pass may differ: a model trained on one machine scores on another.

        Parameters
        ----------
        cache : EmbeddingCache
        """
        if self.encoder_ is None:
            if cache.encoder.dim != len(self.coef_):
                raise ModelError(f"the model expects {len(self.coef_)}-d rows; {cache.name} holds {cache.encoder}")
            return
        differing = self.encoder_.differences(cache.encoder, ignoring=ROUNDING)
        if differing:
            raise ModelError(
                f"{cache.name} holds embeddings of {cache.encoder}; the model expects {self.encoder_} (they differ in "
                f"{', '.join(differing)}): embed again with that encoder, or pass the matching model"
            )

    def save(self, path: str | Path) -> None:
        """Write the model as safetensors: numbers as tensors, the rest as JSON metadata; no pickle.

        Parameters
        ----------
        path : path or str
            The file is replaced as a whole.

        Raises
        ------
        OutputError
            `path` cannot be written.
        """
        check_is_fitted(self)
        parameters = {name: value for name, value in self.get_params(deep=False).items() if value is not None}
        if self.protocol is not None:
            parameters["protocol"] = vars(self.protocol)
        estimated = None if self.prior_estimate_ is None else vars(self.prior_estimate_)
        state = {
            "parameters": parameters,
            "estimates": self.estimates_,
            "counts": [self.n_labelled_, self.n_unlabelled_],
            "reviewed": [self.n_confirmed_, self.n_negatives_],
            "classes": [self.classes_.tolist(), self.classes_.dtype.str],
            "prior_estimate": estimated,
            "encoder": self.encoder_.to_json() if self.encoder_ else "",
        }
        numbers = [
            self.intercept_,
            self.threshold_,
            self.prior_,
            self.share_,
            self.penalty_,
            self.tilt_.alpha,
            self.tilt_.slope,
        ]
        model_file.write(path, {"coef": self.coef_, "numbers": np.array(numbers)}, state)

    @classmethod
    def load(cls, path: str | Path) -> PULinearClassifier:
        """Read a model.

        Parameters
        ----------
        path : path or str
            What `save` wrote; it may be a stranger's.

        Returns
        -------
        PULinearClassifier
            Fitted; `held_out_margins_` is not in the file.

        Raises
        ------
        ModelError
            Missing, not a pucache model, of another format version, or damaged.
        """
        tensors, state = model_file.read(path, ("coef", "numbers"))
        try:
            return cls._restored(tensors, state)
        except (
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:  # a stranger's
            raise ModelError(f"{path} holds no model of pucache ({error!r}); train the model again") from error

    @classmethod
    def _restored(cls, tensors: dict[str, np.ndarray], state: dict[str, Any]) -> PULinearClassifier:
        coef, numbers = tensors["coef"], tensors["numbers"]
        largest = np.abs(coef, dtype=np.float64).sum() * np.finfo(np.float16).max + np.abs(numbers).max()
        types = [(tensor.dtype.str, tensor.ndim) for tensor in (coef, numbers)]
        if types != [("<f4", 1), ("<f8", 1)] or not len(coef) or not largest < np.finfo(np.float32).max:
            raise ValueError("its numbers are not those of a linear head")
        parameters = state["parameters"]
        if "protocol" in parameters:
            parameters["protocol"] = Protocol(**parameters["protocol"])
        model = cls(**parameters)
        intercept, threshold, prior, share, penalty, alpha, slope = numbers.tolist()
        model.coef_, model.intercept_, model.n_features_in_ = coef, intercept, len(coef)
        if not (0 < prior < 1 and 0 < share < 1 and penalty >= 0):
            raise ValueError(f"its prior is {prior}, its share {share}, its penalty {penalty}")
        model.threshold_, model.prior_, model.share_, model.penalty_ = threshold, prior, share, penalty
        model.tilt_ = Tilt(alpha, slope, prior)
        model.estimates_, model.classes_ = state["estimates"], np.array(*state["classes"])
        if model.classes_.shape != (2,):
            raise ValueError("it knows other than two classes")
        model.n_labelled_, model.n_unlabelled_ = state["counts"]
        model.n_confirmed_, model.n_negatives_ = state.get("reviewed", (0, 0))
        model.prior_estimate_ = PriorEstimate(**state["prior_estimate"]) if state["prior_estimate"] else None
        model.encoder_ = EncoderSpec.from_json(state["encoder"]) if state["encoder"] else None
        return model


def _review(reviewed: ArrayLike, s: np.ndarray) -> np.ndarray:
    told = np.asarray(reviewed)
    if told.shape != s.shape:
        raise ValueError(f"expected a decision for each of {len(s)} rows, got reviewed {told.shape}")
    if not np.isin(told, (-1, 0, 1)).all():
        raise ValueError("reviewed must be 1 (confirmed positive), -1 (known negative) or 0, got other values")
    if (told[s == 1] == -1).any():
        raise ValueError("rows that are labelled positive are known negatives in `reviewed`; decide which")
    if not (s[told == 0] == 0).any():
        raise ValueError("every row is labelled or reviewed; some must be unlabelled, or there is nothing to find")
    return np.where(s == 1, 0, told).astype(np.int8)


def _row_weights(sample_weight: ArrayLike | None, X: np.ndarray, s: np.ndarray) -> np.ndarray | None:
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float32, ensure_non_negative=True)
    if not weights[s == 1].any() or not weights[s == 0].any():
        raise ValueError(
            "sample_weight leaves one class only: some labelled positives and some unlabelled rows need one"
        )
    return None if np.ptp(weights) == 0 else np.asarray(weights)
