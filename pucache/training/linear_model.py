"""The linear model of positive and unlabelled rows, without scikit-learn.

Commands train, score and rank with this class, because importing scikit-learn takes more than a
second. `pucache.PULinearClassifier` adds scikit-learn's interface to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..encoders.spec import ROUNDING, EncoderSpec
from ..errors import ModelError
from ..estimates.audited_prior import audited_figures
from ..estimates.calibration import Tilt, fit_tilt
from ..estimates.intervals import prior_range, stated_estimates
from ..estimates.label_requirements import ASSUMED_PRIOR, LabelCount
from ..estimates.priors import PriorEstimate
from ..estimates.review_weights import TrainingLabels
from ..estimates.thresholds import choose_threshold, near_share, parse_rule
from ..progress import Progress, Silent
from ..storage.rows import RowMatrix
from .model_file import PARAMETERS, ModelState, read_model, write_model
from .neighbour_evidence import NeighbourSettings

if TYPE_CHECKING:
    from ..heads.design_matrix import DesignMatrix
    from ..heads.minibatch import SGDSettings
    from ..labels.sample import UnlabelledSample
    from ..neighbours.graph import NeighbourGraph
    from .distillation import GraphSource
    from .train_head import Fit, FitSettings, NeighbourUse

_VALUES_AT_ONCE = 1 << 15  # values of X converted to float32 at once: they stay in the processor's cache
_WORTH_TORCH = 1 << 31  # values; torch converts float16 six times as fast as numpy, but takes seconds to import
_INTEGER = (int, np.integer)
_NUMBER = (*_INTEGER, float, np.floating)


class PULinearModel:
    """Linear model trained on labelled positives and unlabelled rows.

    Parameters and fitted attributes are those of `pucache.PULinearClassifier`, which documents them.
    """

    encoder_: EncoderSpec | None
    threshold_: float

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
        draws: int = 0,
        seed: int = 0,
        device: str = "auto",
        method: str | None = None,
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
        self.draws = draws
        self.seed = seed
        self.device = device
        self.method = method

    # --- training --------------------------------------------------------------------------------

    def train(
        self,
        design: DesignMatrix,
        labels: TrainingLabels,
        *,
        groups: np.ndarray | None = None,
        graph_source: GraphSource | None = None,
        sample: UnlabelledSample | None = None,
        progress: Progress | None = None,
    ) -> Fit:
        """Train on rows that have been checked, and set the fitted attributes.

        Parameters
        ----------
        design : DesignMatrix
            Finite rows, with ``labels.training_s``.
        labels : TrainingLabels
        groups : ndarray of int64, (n,), optional
            Rows of one group stay in one fold.
        graph_source : callable, optional
            Graph of the nearest neighbours of some rows, given their numbers, or of all rows, given None;
            computed from the rows by default.
        sample : UnlabelledSample, optional
            Of the unlabelled rows, where the matrix has not all of them.
        progress : Progress, optional

        Returns
        -------
        Fit
            With the cross-fit, from which further estimates can be made.

        Raises
        ------
        ValueError
            A parameter outside its domain.
        """
        from .train_head import fit_positive_unlabelled

        settings = self._fit_settings()
        if settings.prior is None and labels.audited is not None:
            settings = replace(settings, prior=labels.audited.likeliest)
        with progress or Silent() as shown_progress:
            fit = fit_positive_unlabelled(
                design, labels, groups, settings, shown_progress, graph_source or _graph_source(design)
            )
        self.unlabelled_sample_ = sample
        self.n_labelled_, self.n_unlabelled_ = int(labels.s.sum()), int((labels.s == 0).sum())
        if sample is not None:
            self.n_unlabelled_ = sample.unlabelled
        self._set_fitted(fit, labels, LabelCount.of(labels.s, groups=groups, weights=labels.weights))
        self.n_features_in_ = design.d
        return fit

    def _fit_settings(self) -> FitSettings:
        """Check the parameters."""
        from ..heads.risks import PURisk
        from ..heads.solve import SOLVERS
        from .train_head import METHODS, FitSettings

        self._check_shares()
        self._check_counts()
        if self.penalty != "auto" and not (isinstance(self.penalty, _NUMBER) and 0 <= self.penalty < np.inf):
            raise ValueError(f"penalty must be 'auto' or a finite number >= 0, got {self.penalty!r}")
        if self.solver not in SOLVERS:
            raise ValueError(f"unknown solver {self.solver!r}; use {' or '.join(SOLVERS)}")
        if self.sgd_settings is not None and self.solver != "sgd":
            raise ValueError("sgd_settings are for solver='sgd'; leave them out or choose that solver")
        of_default_risk = self.solver == "batch" and self.loss == "imbupu"
        method = self.method or ("distilled" if of_default_risk else "linear")
        if method not in METHODS:
            raise ValueError(f"unknown method {method!r}; use {' or '.join(METHODS)}")
        if method == "distilled" and self.solver != "batch":
            raise ValueError("method='distilled' needs solver='batch'; leave one of the two out")
        parse_rule(self.threshold)
        return FitSettings(
            risk=PURisk(self.loss, self.surrogate, target_prior=self.target_prior),
            prior=None if self.prior is None else float(self.prior),
            penalty=self.penalty,
            solver=self.solver,
            sgd_settings=self.sgd_settings,
            n_folds=int(self.n_folds),
            draws=int(self.draws),
            seed=int(self.seed),
            method=method,
        )

    def _check_shares(self) -> None:
        for name in ("prior", "deploy_prior"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, _NUMBER) and 0 < value < 1):
                raise ValueError(
                    f"{name} must lie strictly between 0 and 1, got {value!r}; it is a share of positives"
                    + (" among the unlabelled, or None to estimate it" if name == "prior" else "")
                )

    def _check_counts(self) -> None:
        for name, least in (("n_folds", 2), ("draws", 0), ("seed", 0)):
            value = getattr(self, name)
            if not (isinstance(value, _INTEGER) and value >= least):
                raise ValueError(f"{name} must be a whole number, at least {least}, got {value!r}")

    def _set_fitted(self, fit: Fit, labels: TrainingLabels, count: LabelCount) -> None:
        s = labels.s
        self.coef_, self.intercept_ = fit.head.coef[0], float(fit.head.intercept[0])
        self.penalty_, self.prior_, self.prior_estimate_ = fit.cross_fit.penalty, fit.prior, fit.prior_estimate
        if self.prior is None and not count.has_estimates:
            self.prior_, self.prior_estimate_ = float(np.clip(ASSUMED_PRIOR, *labels.bounds)), None
        audited = labels.audited if self.prior is None else None
        if audited is not None:
            self.prior_estimate_ = audited.estimate(self.prior_ if audited.likeliest is None else audited.likeliest)
            self.prior_ = self.prior_estimate_.prior
        self.held_out_margins_, self.method_ = fit.held_out_margins, fit.method
        self.classifier_margins_ = fit.classifier_cross_fit.margins
        self._calibrate(fit.held_out_margins, s, labels.weights)
        if not count.has_estimates and parse_rule(self.threshold)[0] == "f1":
            self.threshold_ = near_share(self.threshold_, fit.held_out_margins[s == 0], self.prior_)
        self.neighbours_ = None if fit.neighbours is None else self._neighbour_settings(fit.neighbours)
        self.estimates_ = {
            "risk": float(fit.head.risk[0]),
            "clamped": float(fit.head.clamped[0]),
            **stated_estimates(
                fit.held_out_margins,
                s,
                labels=count,
                prior=self.prior_,
                prior_range=prior_range(self.prior_, self.prior_estimate_),
                threshold=self.threshold_,
                seed=int(self.seed),
            ),
        }
        if audited is not None:
            self.estimates_ |= audited_figures(
                fit.held_out_margins[s == 0],
                labels.decided,
                audited,
                prior=self.prior_,
                threshold=self.threshold_,
                tilt=self.tilt_,
            )
        self.classes_ = np.array([0, 1], np.int8)
        self.n_confirmed_ = int((labels.training_s > s).sum())
        self.n_negatives_ = 0
        self.encoder_ = None

    def _calibrate(self, margins: np.ndarray, s: np.ndarray, weights: np.ndarray | None) -> None:
        self.tilt_ = fit_tilt(margins, s, weights, self.prior_)
        labelled_share = float(s.mean())
        if self.unlabelled_sample_ is not None:
            labelled_share = self.n_labelled_ / (self.n_labelled_ + self.n_unlabelled_)
        hidden = self.prior_ * self.n_unlabelled_
        # where not one positive is hidden, the unlabelled are negatives, and the model is for all rows
        all_rows = labelled_share + (1 - labelled_share) * self.prior_
        self.share_ = self.deploy_prior or (self.prior_ if hidden >= 1 else all_rows)
        self.threshold_ = choose_threshold(self.tilt_, margins[s == 0], self.threshold, self.share_)

    def _neighbour_settings(self, use: NeighbourUse) -> NeighbourSettings:
        return NeighbourSettings(
            evidence=use.evidence,
            search=use.search,
            share=use.share,
            tilt=use.tilt,
            threshold=choose_threshold(use.tilt, use.scores, self.threshold, self.share_),
        )

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
            X @ `coef_` + `intercept_`. The margin of a row does not depend on the other rows.
        """
        margins = np.empty(len(X), np.float32)
        step = max(1, _VALUES_AT_ONCE // X.shape[1])
        if isinstance(X, np.ndarray) and X.dtype not in (np.float16, np.float32):
            X = X.astype(np.float32)
        buffer = np.empty((step, X.shape[1]), np.float32)
        copy = _copy_with_torch if "torch" in sys.modules and X.dtype == np.float16 else np.copyto
        for start in range(0, len(X), step):
            block = X[start : start + step]
            rows = buffer[: len(block)]
            copy(rows, block)
            # row by row: a matrix product may round a row differently depending on the other rows of the block
            np.vecdot(rows, self.coef_, out=margins[start : start + step])
        return margins + np.float32(self.intercept_)

    def margins_of(self, cache: EmbeddingCache) -> Iterator[tuple[slice, np.ndarray]]:
        """Margins of every row of a cache, in blocks; the bytes read are verified.

        Parameters
        ----------
        cache : EmbeddingCache

        Yields
        ------
        rows : slice
            Rows of the cache.
        margins : ndarray of float32, (b,)

        Raises
        ------
        ModelError
            As `check_fits`.
        CacheError
            The cache is damaged, or holds embeddings that are not finite.
        """
        self.check_fits(cache)
        if len(cache) * cache.encoder.dim >= _WORTH_TORCH:
            import torch  # noqa: F401 - `margins` uses it where it is loaded
        for rows, X in cache.blocks(check=True):
            margins = self.margins(X)
            bad = np.flatnonzero(~np.isfinite(margins))
            if len(bad):
                raise cache.not_finite_error(bad + rows.start)
            yield rows, margins

    def posterior(self, margins: np.ndarray) -> np.ndarray:
        """Probability of being positive where the share of positives is `share_`.

        Parameters
        ----------
        margins : ndarray, (n,)
            By this model.

        Returns
        -------
        ndarray of float64, (n,)
        """
        return self.tilt_.posterior(margins, self.share_)

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

    # --- the file --------------------------------------------------------------------------------

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
        if not hasattr(self, "coef_"):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit before save")
        write_model(path, self._state())

    def _state(self) -> ModelState:
        names = sorted(PARAMETERS)
        return ModelState(
            coef=self.coef_,
            intercept=self.intercept_,
            threshold=self.threshold_,
            prior=self.prior_,
            share=self.share_,
            penalty=self.penalty_,
            alpha=self.tilt_.alpha,
            slope=self.tilt_.slope,
            parameters={name: getattr(self, name) for name in names if getattr(self, name) is not None},
            sgd_settings=None if self.sgd_settings is None else vars(self.sgd_settings),
            prior_estimate=None if self.prior_estimate_ is None else vars(self.prior_estimate_),
            estimates=self.estimates_,
            n_labelled=self.n_labelled_,
            n_unlabelled=self.n_unlabelled_,
            n_confirmed=self.n_confirmed_,
            n_negatives=self.n_negatives_,
            unlabelled_sample=self.unlabelled_sample_,
            classes=self.classes_,
            encoder=self.encoder_,
            neighbours=self.neighbours_,
            method=self.method_,
        )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model.

        Parameters
        ----------
        path : path or str
            A file of `save`, which may come from an untrusted writer.

        Returns
        -------
        PULinearModel
            Fitted; `held_out_margins_` is not in the file.

        Raises
        ------
        ModelError
            Missing, not a pucache model, of another format version, or damaged.
        """
        state = read_model(path)
        model = cls(**state.parameters)
        if state.sgd_settings is not None:
            from ..heads.minibatch import SGDSettings

            model.sgd_settings = SGDSettings(**state.sgd_settings)
        model._restore(state)
        return model

    def _restore(self, state: ModelState) -> None:
        """Set the fitted attributes."""
        self.coef_, self.intercept_, self.n_features_in_ = state.coef, state.intercept, len(state.coef)
        self.threshold_, self.prior_, self.share_ = state.threshold, state.prior, state.share
        self.penalty_, self.tilt_ = state.penalty, Tilt(state.alpha, state.slope, state.prior)
        self.estimates_, self.classes_, self.encoder_ = state.estimates, state.classes, state.encoder
        self.n_labelled_, self.n_unlabelled_ = state.n_labelled, state.n_unlabelled
        self.neighbours_, self.method_ = state.neighbours, state.method
        self.n_confirmed_, self.n_negatives_ = state.n_confirmed, state.n_negatives
        self.unlabelled_sample_ = state.unlabelled_sample
        self.prior_estimate_ = None if state.prior_estimate is None else PriorEstimate(**state.prior_estimate)


def _copy_with_torch(target: np.ndarray, source: np.ndarray) -> None:
    import torch

    to_tensor = torch.from_numpy if source.flags.writeable else torch.tensor  # the latter copies, for read-only maps
    torch.from_numpy(target).copy_(to_tensor(np.ascontiguousarray(source)))


def _graph_source(design: DesignMatrix) -> GraphSource:
    """Graphs of rows of a matrix; kept nowhere."""

    def graph(rows: np.ndarray | None) -> NeighbourGraph:
        from ..neighbours.graph import neighbour_graph

        return neighbour_graph(design.X, rows=rows, device=str(design.device))

    return graph
