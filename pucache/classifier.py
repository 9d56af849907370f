"""`PULinearClassifier`: a linear classifier from positive and unlabelled rows, and its file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from . import __version__
from .cache import EmbeddingCache
from .calibration import Posterior, fit_posterior
from .durable import check_writable, replacing
from .encoder_spec import EncoderSpec
from .errors import ModelError
from .heads import Protocol, fit_heads
from .labels import check_labels, folds
from .metrics import from_pu
from .progress import Progress
from .risks import PURisk

FORMAT, VERSION = "pucache-model", 1
RMS = 0.5  # X is scaled to this root mean square: that of common encoders' raw features
_TENSORS = ("coef", "intercept", "posterior_margin", "posterior_value")


class PULinearClassifier(ClassifierMixin, BaseEstimator):
    """Linear classifier trained on labelled positives and unlabelled rows.

    The objective is a risk of `pucache.risks` (imbalanced nnPU by default), minimised as Dorigatti
    et al. do: Adam, 100 epochs, batches of 256, on features that are scaled by one number but
    neither centred nor standardised (measured: docs/results/cifar10.md). The
    posterior comes from cross-fitted margins, see `pucache.calibration`.

    Parameters
    ----------
    prior : float
        Share of positives among the unlabelled rows, in (0, 1).
    target_prior : float
        Weight of the positive part of the risk, in (0, 1).
    loss : {"imbnnpu", "imbupu", "nnpu", "upu"}
    threshold : float
        A row is called positive where its margin is above it.
    n_folds : int
        For cross-fitting the posterior and the estimates; fewer where there are fewer positives.
    penalty : float
        L2 penalty.
    protocol : Protocol, optional
        Epochs, batch size, learning rate.
    seed : int
    device : str

    Attributes
    ----------
    coef_ : ndarray of float32, (d,)
        On X as given.
    intercept_ : float
    classes_ : ndarray
        [0, 1].
    posterior_ : Posterior
    estimates_ : dict
        `pucache.metrics.from_pu` on cross-fitted margins, with the risk and the share of clamped steps.
    encoder_ : EncoderSpec or None
        Whose embeddings X are; set by `train_pu` and checked by `check_fits`.
    n_labelled_, n_unlabelled_ : int
    n_features_in_ : int
    """

    encoder_: EncoderSpec | None

    def __init__(
        self,
        prior: float | None = None,
        *,
        target_prior: float = 0.5,
        loss: str = "imbnnpu",
        threshold: float = 0.0,
        n_folds: int = 5,
        penalty: float = 0.0,
        protocol: Protocol | None = None,
        seed: int = 0,
        device: str = "auto",
    ):
        self.prior = prior
        self.target_prior = target_prior
        self.loss = loss
        self.threshold = threshold
        self.n_folds = n_folds
        self.penalty = penalty
        self.protocol = protocol
        self.seed = seed
        self.device = device

    def fit(self, X: ArrayLike, s: ArrayLike, progress: Progress | None = None) -> Self:
        """Train on embeddings and PU labels.

        Parameters
        ----------
        X : array of float16 or float32, (n, d)
        s : array, (n,)
            1 (or True) labelled positive; 0, -1 or False unlabelled.
        progress : Progress, optional

        Raises
        ------
        ValueError
            A parameter outside its domain; X with NaN, infinity or the wrong shape; labels of
            neither convention; no labelled or no unlabelled row.
        """
        risk, prior = self._checked_parameters()
        rows, labels = validate_data(self, X, s, dtype=[np.float32, np.float16])
        X, s = np.asarray(rows), _as_pu_labels(np.asarray(labels))
        self.classes_ = np.array([0, 1])
        weights, held_out = _cross_fitting(s, self.n_folds, self.seed)
        scale = np.float32(RMS / max(_root_mean_square(X), 1e-30))
        scaled = np.multiply(X, scale, dtype=np.float32)
        heads = fit_heads(
            scaled,
            s,
            prior=prior,
            weights=weights,
            penalty=self.penalty,
            seed=self.seed,
            risk=risk,
            protocol=self.protocol,
            device=self.device,
            progress=progress,
        )
        self.coef_, self.intercept_ = heads.coef[0] * scale, float(heads.intercept[0])
        margins = heads.margins(scaled)[np.arange(len(s)), held_out]
        self.posterior_ = fit_posterior(margins, s, prior)
        self.estimates_ = {
            "risk": float(heads.risk[0]),
            "clamped": float(heads.clamped[0]),
            **from_pu(margins, s, prior, self.threshold),
        }
        self.n_labelled_, self.n_unlabelled_ = int(s.sum()), int((s == 0).sum())
        self.encoder_ = None
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _checked_parameters(self) -> tuple[PURisk, float]:
        if self.prior is None or not 0 < self.prior < 1:
            raise ValueError(
                f"prior must lie strictly between 0 and 1, got {self.prior}; "
                "it is the share of positives among the unlabelled"
            )
        if self.n_folds < 2:
            raise ValueError(f"n_folds must be at least 2, got {self.n_folds}")
        if not 0 <= self.penalty < np.inf:
            raise ValueError(f"penalty must be finite and >= 0, got {self.penalty}")
        if not np.isfinite(self.threshold):
            raise ValueError(f"threshold must be a finite margin, got {self.threshold}")
        return PURisk(self.loss, target_prior=self.target_prior), float(self.prior)

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Margins, float32 (n,)."""
        check_is_fitted(self)
        return self.margins(np.asarray(validate_data(self, X, dtype=[np.float32, np.float16], reset=False)))

    def margins(self, X: np.ndarray) -> np.ndarray:
        """Margins of trusted embeddings, float32 (n,); nothing is checked."""
        return np.asarray(X, np.float32) @ self.coef_ + np.float32(self.intercept_)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Call each row 1 or 0 by the threshold on its margin."""
        return (self.decision_function(X) > self.threshold).astype(np.int64)

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Posterior among the unlabelled, float64 (n, 2): columns for classes 0 and 1."""
        margins = self.decision_function(X)
        posterior = self.posterior_(margins)
        return np.column_stack([1 - posterior, posterior])

    def check_fits(self, cache: EmbeddingCache) -> None:
        """Raise `ModelError` unless the model was trained on embeddings of the cache's encoder.

        The precision of the forward pass may differ: a model trained on one machine scores on another.
        """
        if self.encoder_ is None:
            if cache.encoder.dim != len(self.coef_):
                raise ModelError(f"the model expects {len(self.coef_)}-d rows; {cache.name} holds {cache.encoder}")
            return
        differing = self.encoder_.differences(cache.encoder, ignoring=["precision"])
        if differing:
            raise ModelError(
                f"{cache.name} holds embeddings of {cache.encoder}; the model expects {self.encoder_} (they differ in "
                f"{', '.join(differing)}): embed again with that encoder, or pass the matching model"
            )

    # --- the file ------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the model as safetensors: numbers as tensors, the rest as JSON metadata; no pickle.

        Raises
        ------
        OutputError
            `path` cannot be written.
        """
        check_is_fitted(self)
        tensors = {
            "coef": self.coef_,
            "intercept": np.array([self.intercept_]),
            "posterior_margin": self.posterior_.margin,
            "posterior_value": self.posterior_.value,
        }
        parameters = {name: value for name, value in self.get_params(deep=False).items() if name != "protocol"}
        if self.protocol is not None:
            parameters["protocol"] = vars(self.protocol)
        header = {
            "format": FORMAT,
            "version": str(VERSION),
            "pucache_version": __version__,
            "encoder": self.encoder_.to_json() if self.encoder_ else "",
            "parameters": json.dumps(parameters, sort_keys=True, default=np.generic.item),
            "estimates": json.dumps(self.estimates_, sort_keys=True),
            "counts": json.dumps([self.n_labelled_, self.n_unlabelled_]),
        }
        header["checksum"] = _checksum(tensors, header)
        with replacing(check_writable(path)) as temporary:
            # one entry, because safetensors writes several in random order
            safetensors.numpy.save_file(tensors, temporary, {FORMAT: json.dumps(header, sort_keys=True)})

    @classmethod
    def load(cls, path: str | Path) -> PULinearClassifier:
        """Read a model.

        Raises
        ------
        ModelError
            Missing, not a pucache model, of a newer version, or damaged.
        """
        path = Path(path)
        if not path.is_file():
            raise ModelError(f"no such model: {path}")
        try:
            with safetensors.safe_open(path, "numpy") as file:
                header = json.loads((file.metadata() or {}).get(FORMAT, "{}"))
                _check_format(path, header)
                names = set(file.keys())
                tensors = {name: file.get_tensor(name) for name in _TENSORS if name in names}
        except (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
            raise ModelError(
                f"{path} cannot be read as safetensors ({str(error)[:120]}); train the model again"
            ) from error
        stated = header.pop("checksum", "")
        if names != set(_TENSORS) or _checksum(tensors, header) != stated:
            raise ModelError(f"{path} is damaged: content and checksum disagree; train the model again")
        return cls._restore(tensors, header)

    @classmethod
    def _restore(cls, tensors: dict[str, np.ndarray], header: dict[str, Any]) -> PULinearClassifier:
        parameters = json.loads(header["parameters"])
        if "protocol" in parameters:
            parameters["protocol"] = Protocol(**parameters["protocol"])
        model = cls(**parameters)
        model.coef_, model.intercept_ = tensors["coef"], float(tensors["intercept"][0])
        model.posterior_ = Posterior(tensors["posterior_margin"], tensors["posterior_value"])
        model.estimates_ = json.loads(header["estimates"])
        model.n_labelled_, model.n_unlabelled_ = json.loads(header["counts"])
        model.encoder_ = EncoderSpec.from_json(header["encoder"]) if header["encoder"] else None
        model.classes_, model.n_features_in_ = np.array([0, 1]), len(model.coef_)
        return model


def _check_format(path: Path, header: dict[str, str]) -> None:
    if header.get("format") != FORMAT:
        raise ModelError(f"{path} is a safetensors file but not a pucache model; pass what train-pu wrote")
    if header.get("version") != str(VERSION):
        raise ModelError(
            f"{path} is a model of format version {header.get('version')}; this pucache {__version__} reads "
            f"version {VERSION}: upgrade pucache, or train again"
        )


def _as_pu_labels(s: np.ndarray) -> np.ndarray:
    values = set(np.unique(s).tolist())
    if not (values <= {0, 1} or values <= {-1, 1}):
        shown = ", ".join(map(str, sorted(values, key=str)[:5]))
        raise ValueError(f"labels must be 1 (labelled positive) and 0 or -1 (unlabelled), got {shown}")
    s = (s == 1).astype(np.int8)
    check_labels(s)
    return s


def _cross_fitting(s: np.ndarray, n_folds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row weights of head 0, which sees all rows, and of one head per fold, which does not see that fold.

    Returns the weights, (n, 1 + folds), and for each row the head that did not see it. With a
    single labelled positive there is nothing to hold out, and head 0 stands for all.
    """
    count = min(n_folds, int(s.sum()), int((s == 0).sum()))
    if count < 2:
        return np.ones((len(s), 1), np.float32), np.zeros(len(s), np.intp)
    held_out = folds(s, count, seed) + 1
    weights = np.ones((len(s), count + 1), np.float32)
    weights[np.arange(len(s)), held_out] = 0
    return weights, held_out


def _root_mean_square(X: np.ndarray) -> float:
    return float(
        np.sqrt(np.mean([np.square(block, dtype=np.float64).mean() for block in np.array_split(X, 64) if len(block)]))
    )


def _checksum(tensors: dict[str, np.ndarray], header: dict[str, str]) -> str:
    state = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in _TENSORS:
        if name in tensors:
            state.update(f"{name}{tensors[name].dtype}{tensors[name].shape}".encode())
            state.update(np.ascontiguousarray(tensors[name]).tobytes())
    return state.hexdigest()
