"""`PULinearClassifier`: a scikit-learn classifier for positive and unlabelled rows.

It follows scikit-learn's conventions without its base classes: importing scikit-learn takes more than a second, and
commands train, score and rank without it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ..cache.embedding_cache import EmbeddingCache
from ..devices import choose_device
from ..encoders.spec import ROUNDING
from ..errors import LabelError, ModelError
from ..estimates.label_requirements import AT_AN_END
from ..estimates.review_weights import TrainingLabels
from ..labels.labels import PULabels
from ..labels.row_values import check_same_rows
from ..progress import Progress, Silent
from ..seeds import Seed
from ..storage.rows import RowMatrix, as_float32, rows_not_finite
from ..threads import one_blas_thread
from .model_file import NO_SAMPLE, FittedState, read_model, write_model

if TYPE_CHECKING:
    from ..heads.minibatch import SGDSettings
    from .training_set import TrainingSet

_VALUES_AT_ONCE = 1 << 15  # values of X converted to float32 at once: they stay in the processor's cache
_WORTH_TORCH = 1 << 31  # values; torch converts float16 six times as fast as numpy, but takes seconds to import


class PULinearClassifier(FittedState):
    """Linear classifier trained on labelled positives and unlabelled rows.

    It needs nothing but the labels. The penalty is chosen by the likelihood of held-out labels
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
    random_state : int, RandomState, Generator or None
        Of folds and initial coefficients, as in scikit-learn: None draws another seed at each `fit`, a
        `numpy.random.RandomState` or `numpy.random.Generator` the next one from it. The default
        is 0, so that fits repeat.
    device : str
        ``auto``, ``cpu``, ``cuda`` or ``cuda:N``, for training.
    method : {"distilled", "linear"}, optional
        ``distilled`` propagates the classifier's probabilities over the graph of nearest neighbours and
        trains the head on them, where the labels show that neighbours help
        (`pucache.training.neighbour_evidence`, `pucache.training.distillation`). ``linear`` trains on the labels alone.
        ``distilled`` by default; ``linear`` with the solver ``sgd`` or another loss than ``imbupu``.
    pos_label : int, float, bool or str, optional
        Label of the labelled positives in y. By default the larger of two numbers; labels that are text need it.

    Attributes
    ----------
    coef_ : ndarray of float32, (1, d)
        Coefficients for X as given.
    intercept_ : ndarray of float64, (1,)
    threshold_ : float
        Margin above which a row is called positive.
    classes_ : ndarray, (2,)
        The two labels; the second one is that of the labelled positives.
    prior_ : float or None
        As given, or as estimated. None where the estimate, or the high end of its interval, lies at an end of what is
        possible, as nothing follows from it, and where the labels are too few for a number, as in the commands
        (`pucache.estimates.label_requirements`): with 10 to 29 labelled positives `prior_estimate_` has an interval
        alone, with fewer there is none, and posterior and threshold assume ``tilt_.prior``, which is no estimate.
    prior_estimate_ : PriorEstimate or None
        None where the prior was given or assumed.
    share_ : float
        Share of positives that posterior and threshold are for: `deploy_prior`, or else ``tilt_.prior``;
        where that means less than one hidden positive, the share among all rows trained on.
    penalty_ : float
    seed_ : int
        Seed of folds and initial coefficients, by `random_state`.
    tilt_ : Tilt
        Posterior as a function of the margin; its `prior` is the one it rests on.
    figures_ : Figures
        Figures of cross-fitted margins, as far as they may be stated (`pucache.estimates.figures`); ``estimates_`` are
        the same as a dict.
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
    n_groups_ : int or None
        Number of groups among the rows trained on, where groups were given.
    n_confirmed_, n_negatives_ : int
        Numbers of reviewed rows: confirmed positives and known negatives.
    pile_margins_ : PileMargins or None
        Held-out margins in bins, by which the share of positives among new images is estimated
        (`pucache.estimates.share_of_new_images`); None in models of before 0.3, as `pile_sample_`.
    pile_sample_ : PileSample or None
        Rows that new images are compared with (`pucache.estimates.dataset_shift`).
    fold_coef_, fold_intercept_ : ndarray of float32, (K, d) and (K,), or None
        Heads of the folds, whose margins of new images give the share of positives among these; None in models of 0.4
        and older.
    n_features_in_ : int
    """

    held_out_margins_: np.ndarray
    classifier_margins_: np.ndarray
    n_features_in_: int

    def __init__(
        self,
        prior: float | None = None,
        *,
        loss: str = "imbupu",
        surrogate: str | None = None,
        target_prior: float = 0.5,
        penalty: float | str = "auto",
        solver: str = "batch",
        sgd_settings: SGDSettings | None = None,
        threshold: float | str = "f1",
        deploy_prior: float | None = None,
        n_folds: int = 5,
        random_state: Seed = 0,
        device: str = "auto",
        method: str | None = None,
        pos_label: float | str | None = None,
    ):
        self.prior = prior
        self.loss = loss
        self.surrogate = surrogate
        self.target_prior = target_prior
        self.penalty = penalty
        self.solver = solver
        self.sgd_settings = sgd_settings
        self.threshold = threshold
        self.deploy_prior = deploy_prior
        self.n_folds = n_folds
        self.random_state = random_state
        self.device = device
        self.method = method
        self.pos_label = pos_label

    # --- scikit-learn's conventions ----------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; `deep` is without effect, as no parameter is an estimator."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters by name, and return the classifier itself; raises `ValueError` for an unknown name."""
        unknown = set(parameters) - set(self.get_params())
        if unknown:
            raise ValueError(f"{type(self).__name__} has no parameter {', '.join(sorted(unknown))}")
        vars(self).update(parameters)
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "coef_" in state and "figures_" not in state:
            raise ModelError(
                "this classifier was pickled by pucache 0.4 or older; train it again, or load the file that save wrote"
            )
        vars(self).update(state)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(multi_class=False),
        )

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        parameters = self.get_params().items()
        changed = {name: value for name, value in parameters if repr(value) != repr(defaults[name].default)}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        reviewed: ArrayLike | None = None,
        progress: Progress | None = None,
    ) -> PULinearClassifier:
        """Train on embeddings and PU labels.

        Parameters
        ----------
        X : array of float16 or float32, (n, d)
        y : array, (n,)
            The PU labels s: 1 (or True) labelled positive; 0, -1 or False unlabelled. Any other two
            values are taken too; `pos_label` names the positive one, by default the larger of two numbers.
        sample_weight : array, (n,), optional
            Row weights >= 0, normalised within the positives and within the unlabelled.
        groups : array of int or str, (n,), optional
            Rows that are not independent, such as those of one patient, video or site: they stay in one fold, count as
            one label, and intervals allow for them (`pucache.estimates.label_requirements`).
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
            classes of labels, or text without `pos_label`; no weight on P or on U; another index than that of a
            DataFrame X.
        """
        from sklearn.utils.validation import validate_data

        from .train_head import TrainingSettings
        from .training_set import TrainingRows, TrainingSet

        TrainingSettings.of(self.get_params())  # wrong ones are refused before X is read
        check_same_rows(X, y=y, sample_weight=sample_weight, groups=groups, reviewed=reviewed)
        checked, y = validate_data(self, X, y, dtype=[np.float32, np.float16], ensure_all_finite=False)
        rows = np.asarray(checked)
        classes, s = _pu_labels(np.asarray(y), self.pos_label)
        bad = rows_not_finite(rows)  # in blocks, as X may be larger than memory
        if len(bad):
            raise ValueError(f"Input X contains NaN or infinity, first in row {bad[0]}, or numbers beyond float32")
        labels = PULabels(s, np.zeros_like(s) if reviewed is None else _decisions(reviewed, s))
        training = TrainingLabels.of(s, labels.reviewed, _row_weights(sample_weight, rows, s))
        group = None if groups is None else np.unique(groups, return_inverse=True)[1]
        self.train(TrainingSet(TrainingRows(rows, choose_device(self.device), group=group), labels, training), progress)
        self.classes_ = classes
        return self

    def train(self, data: TrainingSet, progress: Progress | None = None) -> Self:
        """Train on rows of a cache, or of a matrix, with labels."""
        from .train_head import TrainingSettings, train_head

        return self.adopt(train_head(data, TrainingSettings.of(self.get_params()), progress))

    def adopt(self, state: FittedState) -> Self:
        """Take the fitted attributes from the result of training, or of a file."""
        vars(self).update(vars(state))
        self.n_features_in_ = state.coef_.shape[1]
        return self

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
        from sklearn.utils.validation import check_is_fitted, validate_data

        check_is_fitted(self)
        return np.asarray(validate_data(self, X, dtype=[np.float32, np.float16], reset=False))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Predict one of `classes_` for each row, by the threshold on its margin.

        The positive class is predicted where the margin is above `threshold_`, which by default is that of the greatest
        expected F1. There `predict_proba` is usually not 0.5: with ``threshold="f1"`` rows below 0.5 may be called
        positive. For decisions at 0.5 use ``predict_proba(X)[:, 1] > 0.5``.

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
        """Probability of each of `classes_`, where the share of positives is `share_`.

        `predict` does not cut it at 0.5, but the margin at `threshold_`; use ``predict_proba(X)[:, 1] > 0.5`` for that.
        Below 30 labelled positives, or where these do not limit the prior, the commands state no probabilities; here
        they come with a `UserWarning`.

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
        if not self.figures_.has_probabilities:
            reason = self.figures_.labels.sentence or AT_AN_END
            warnings.warn(f"probabilities may be far off; use them to rank. {reason}", stacklevel=2)
        return np.column_stack([1 - posterior, posterior])

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """PAUC: share of pairs of a labelled positive and an unlabelled row with the higher margin at the positive.

        Ties count one half. It orders models as the AUC of the true classes does, needs no prior, and says nothing
        about the threshold (docs/trust.md): a grid search that maximises it chooses how to rank. Accuracy on PU
        labels would be highest where hardly anything is called positive. No classifier reaches 1, as unlabelled rows
        include positives: the best has about 1 - prior / 2.

        Parameters
        ----------
        X : array of float16 or float32, (n, d)
            Finite.
        y : array, (n,)
            PU labels, of `classes_`.
        sample_weight : array, (n,), optional

        Returns
        -------
        float
        """
        from sklearn.metrics import roc_auc_score

        check_same_rows(X, y=y, sample_weight=sample_weight)
        margins = self.margins(self._validated(X))
        return float(roc_auc_score(np.asarray(y) == self.classes_[1], margins, sample_weight=sample_weight))

    # --- scoring ---------------------------------------------------------------------------------

    def margins(self, X: RowMatrix) -> np.ndarray:
        """Margins of embeddings, without any check.

        Parameters
        ----------
        X : ndarray or StackedRows, (n, d)
            May be mapped.

        Returns
        -------
        ndarray of float32, (n,)
            X @ ``coef_[0]`` + `intercept_`. The margin of a row does not depend on the other rows.
        """
        return linear_margins(X, self.coef_, self.intercept_)[:, 0]

    def margins_of(self, cache: EmbeddingCache) -> Iterator[tuple[slice, np.ndarray]]:
        """Margins of every row of a cache, in blocks: rows as a slice, margins float32 (b,); bytes are verified.

        Raises `ModelError` as `check_fits`, and `CacheError` where the cache is damaged or a row is not finite.
        """
        self.check_fits(cache)
        for rows, margins in cache_margins(cache, self.coef_, self.intercept_):
            yield rows, margins[:, 0]

    def all_margins(self, cache: EmbeddingCache, progress: Progress | None = None) -> np.ndarray:
        """Margins of every row of a cache, float32 (n,), as `margins_of`."""
        margins, progress = np.empty(len(cache), np.float32), progress or Silent()
        progress.start(len(cache), "scoring")
        for rows, block in self.margins_of(cache):
            margins[rows] = block
            progress.advance(len(block))
        return margins

    def posterior(self, margins: np.ndarray) -> np.ndarray:
        """Probability of being positive, float64 (n,), given margins (n,), where the share of positives is `share_`."""
        return self.tilt_.posterior(margins, self.share_)

    def stated_posterior(self, margins: np.ndarray) -> np.ndarray | None:
        """`posterior`, as far as it is stated (`pucache.estimates.figures.Figures.has_probabilities`), or else None."""
        return self.posterior(margins) if self.figures_.has_probabilities else None

    def at_share(self, share: float) -> Self:
        """Return this model with posterior and threshold for another share of positives; the margins stay.

        Parameters
        ----------
        share : float
            Share of positives where the model is used, in (0, 1), as the parameter `deploy_prior`.

        Returns
        -------
        PULinearClassifier

        Raises
        ------
        ValueError
            `share` is outside its domain.
        ModelError
            The model is of a file of before 0.3, which does not hold what a threshold is chosen by.
        """
        if not 0 < share < 1:
            raise ValueError(f"deploy_prior must lie strictly between 0 and 1; got {share}")
        if self.pile_margins_ is None:
            raise ModelError(NO_SAMPLE)
        model = copy(self)
        model.deploy_prior = model.share_ = share
        if share != self.share_:  # else the threshold is that of training, by all margins in place of their bins
            tilt, labels = self.tilt_, self.figures_.labels
            model.threshold_ = self.pile_margins_.threshold(self.threshold, tilt.prior, share, labels)
        return model

    def check_fits(self, cache: EmbeddingCache) -> None:
        """Raise `ModelError` unless the model was trained on embeddings of the cache's encoder.

        Precision and runtime of the forward pass may differ: a model trained on one machine scores on another.
        """
        if self.encoder_ is None:
            if cache.encoder.dim != self.n_features_in_:
                raise ModelError(f"the model expects {self.n_features_in_}-d rows; {cache.name} holds {cache.encoder}")
            return
        differing = self.encoder_.differences(cache.encoder, ignoring=ROUNDING)
        if differing:
            raise ModelError(
                f"{cache.name} holds embeddings of {cache.encoder}; the model expects {self.encoder_} (they differ in "
                f"{', '.join(differing)}): embed again with that encoder, or pass the matching model"
            )

    # --- the file --------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Counts, chosen parameters and estimates of a trained model: the content of ``model.metrics.json``.

        Returns
        -------
        dict
            ``encoder``; the counts ``labelled_positives``, ``unlabelled`` (with reviewed rows), ``confirmed_positives``
            and ``known_negatives``; ``unlabelled_sample``, fields of `pucache.labels.sample.UnlabelledSample` or None;
            ``prior``, `PULinearClassifier.prior_`, and ``prior_estimate``, fields of `prior_estimate_`, both None where
            the labels are too few for them; ``penalty``, ``threshold``, ``threshold_rule``, ``loss``, ``target_prior``,
            ``solver``, ``deploy_prior``; ``estimates``, `PULinearClassifier.estimates_`; ``note``, what is not stated
            because the labels are too few, or ""; where groups were given, ``groups``, their number.
        """
        estimate, sample = self.prior_estimate_, self.unlabelled_sample_
        groups = {} if self.n_groups_ is None else {"groups": self.n_groups_}
        return {
            "encoder": str(self.encoder_),
            "labelled_positives": self.n_labelled_,
            "unlabelled": self.n_unlabelled_,
            "unlabelled_sample": None if sample is None else sample.to_json(),
            "confirmed_positives": self.n_confirmed_,
            "known_negatives": self.n_negatives_,
            "prior": self.prior_,
            "prior_estimate": None if estimate is None else asdict(estimate),
            "penalty": self.penalty_,
            "threshold": self.threshold_,
            "threshold_rule": str(self.threshold),
            "loss": self.loss,
            "target_prior": float(self.target_prior),
            "solver": self.solver,
            "deploy_prior": None if self.deploy_prior is None else float(self.deploy_prior),
            "estimates": self.estimates_,
            "note": self.figures_.note,
        } | groups

    def save(self, path: str | Path) -> None:
        """Write the model as safetensors: numbers as tensors, the rest as JSON metadata; no pickle.

        Parameters
        ----------
        path : path or str
            A model that is there is replaced as a whole.

        Raises
        ------
        OutputError
            `path` cannot be written, or is a file of another kind.
        """
        if not hasattr(self, "coef_"):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit before save")
        parameters = {name: value for name, value in sorted(self.get_params().items()) if value is not None}
        write_model(path, parameters, self)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model.

        Parameters
        ----------
        path : path or str
            A file of `save`, which may come from an untrusted writer.

        Returns
        -------
        PULinearClassifier
            Fitted; `held_out_margins_` is not in the file, and `random_state` is the seed that was used.

        Raises
        ------
        ModelError
            Missing, not a pucache model, of another format version, or damaged.
        """
        parameters, state = read_model(path)
        if "sgd_settings" in parameters:
            from ..heads.minibatch import SGDSettings

            parameters["sgd_settings"] = SGDSettings(**parameters["sgd_settings"])
        return cls(**parameters).adopt(state)


def cache_margins(cache: EmbeddingCache, coef: np.ndarray, intercept: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Margins of every row of a cache by K heads, in blocks, float32 (b, K); the bytes read are verified.

    Raises `CacheError` where the cache is damaged, or holds embeddings that are not finite.
    """
    if len(cache) * cache.encoder.dim >= _WORTH_TORCH:
        import torch  # noqa: F401 - `linear_margins` uses it where it is loaded
    for rows, X in cache.blocks(check=True):
        with one_blas_thread:
            margins = linear_margins(X, coef, intercept)
        bad = np.flatnonzero(~np.isfinite(margins).all(1))
        if len(bad):
            raise cache.not_finite_error(bad + rows.start)
        yield rows, margins


def linear_margins(X: RowMatrix, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
    """Margins of embeddings (n, d) by K heads, float32 (n, K).

    Those of a row by one head depend on no other row. By several, their last bits depend on where the row lies.
    """
    margins = np.empty((len(X), len(coef)), np.float32)
    step = max(1, _VALUES_AT_ONCE // X.shape[1])
    buffer = np.empty((step, X.shape[1]), np.float32)
    for start in range(0, len(X), step):
        block = X[start : start + step]
        rows, out = as_float32(block, buffer[: len(block)]), margins[start : start + step]
        if len(coef) > 1:
            np.matmul(rows, coef.T, out=out)
        else:  # a matrix product may round a row differently depending on the other rows of the block
            np.vecdot(rows[:, None], coef, out=out)
    margins += intercept.astype(np.float32)
    return margins


def _pu_labels(y: np.ndarray, pos_label: float | str | None) -> tuple[np.ndarray, np.ndarray]:
    """The two classes, (2,), the positive one last, and s, int8 (n,)."""
    from sklearn.utils.multiclass import check_classification_targets, type_of_target

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
    one, other = classes.tolist()
    if pos_label is None and isinstance(one, str):
        raise LabelError(
            f"labels are text, {one!r} and {other!r}: say which marks the labelled positives, such as pos_label={one!r}"
        )
    if pos_label is not None and pos_label not in (one, other):
        raise LabelError(f"pos_label is {pos_label!r}, but the labels are {one!r} and {other!r}")
    if pos_label == one:
        classes = classes[::-1].copy()
    return classes, (y == classes[1]).astype(np.int8)


def _decisions(reviewed: ArrayLike, s: np.ndarray) -> np.ndarray:
    decisions = np.asarray(reviewed)
    if decisions.shape != s.shape:
        raise ValueError(f"expected a decision for each of {len(s)} rows, got reviewed {decisions.shape}")
    if not np.isin(decisions, (-1, 0, 1)).all():
        raise ValueError("reviewed must be 1 (confirmed positive), -1 (negative) or 0, got other values")
    if (decisions[s == 1] == -1).any():
        raise ValueError("rows that are labelled positive are negatives in `reviewed`; decide which")
    if not (s[decisions == 0] == 0).any():
        raise ValueError("every row is labelled or reviewed; some must be unlabelled, or there is nothing to find")
    return np.where(s == 1, 0, decisions).astype(np.int8)


def _row_weights(sample_weight: ArrayLike | None, X: np.ndarray, s: np.ndarray) -> np.ndarray | None:
    if sample_weight is None:
        return None
    from sklearn.utils.validation import _check_sample_weight

    weights = _check_sample_weight(sample_weight, X, dtype=np.float32, ensure_non_negative=True)
    if not weights[s == 1].any() or not weights[s == 0].any():
        raise ValueError(
            "sample_weight leaves one class only: some labelled positives and some unlabelled rows need one"
        )
    return None if np.ptp(weights) == 0 else np.asarray(weights)
