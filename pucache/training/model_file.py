"""The model file: writing and reading the state of a fitted classifier, without torch.

The file is a sealed safetensors file (`pucache.storage.tensor_file`) with the tensors ``coef`` (d,)
float32 and ``numbers`` (7,) float64, and JSON for everything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import ModelError
from ..labels.sample import UnlabelledSample
from ..storage import tensor_file
from ..version import __version__
from .neighbour_evidence import NeighbourSettings

FORMAT, VERSION = "pucache-model", 3
MAX_BYTES = 1 << 30  # a model is a few numbers a dimension; a larger file is something else
TENSORS = ("coef", "numbers")
NUMBERS = ("intercept", "threshold", "prior", "share", "penalty", "alpha", "slope")  # in the order of the tensor
# names in the JSON: parameters of `PULinearClassifier`, whose `sgd_settings` the file calls "protocol"
PARAMETERS = frozenset(
    "prior loss surrogate target_prior penalty solver threshold deploy_prior n_folds draws seed device method".split()
)
SGD_SETTINGS = frozenset({"epochs", "min_steps", "batch_size", "learning_rate"})
PRIOR_ESTIMATE = frozenset({"method", "prior", "low", "high", "level", "draws"})


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """State of a fitted `pucache.training.sklearn_classifier.PULinearClassifier`, as its file holds it.

    Attributes
    ----------
    coef : ndarray of float32, (d,)
    intercept, threshold, prior, share, penalty : float
        The fitted attributes of these names.
    alpha, slope : float
        Of the tilt, see `pucache.estimates.calibration.Tilt`.
    parameters : dict
        Parameters of the classifier that are not None, but for `sgd_settings`.
    sgd_settings : dict or None
        Fields of `pucache.heads.minibatch.SGDSettings`.
    prior_estimate : dict or None
        Fields of `pucache.estimates.priors.PriorEstimate`.
    estimates : dict
        Held-out estimates of the metrics.
    n_labelled, n_unlabelled, n_confirmed, n_negatives : int
        Numbers of rows; of the unlabelled ones with those that were not trained on.
    unlabelled_sample : UnlabelledSample or None
        None where all unlabelled rows were trained on.
    classes : ndarray, (2,)
        Labels of the unlabelled and of the positives.
    encoder : EncoderSpec or None
        Encoder of the embeddings trained on.
    neighbours : NeighbourSettings or None
        None where neighbours were not looked at.
    method : {"linear", "distilled"}
        Kind of the head.
    """

    coef: np.ndarray
    intercept: float
    threshold: float
    prior: float
    share: float
    penalty: float
    alpha: float
    slope: float
    parameters: dict[str, Any]
    sgd_settings: dict[str, Any] | None = None
    prior_estimate: dict[str, Any] | None = None
    estimates: dict[str, Any] = field(default_factory=dict)
    n_labelled: int
    n_unlabelled: int
    n_confirmed: int = 0
    n_negatives: int = 0
    unlabelled_sample: UnlabelledSample | None = None
    classes: np.ndarray
    encoder: EncoderSpec | None = None
    neighbours: NeighbourSettings | None = None
    method: str = "linear"

    def check(self) -> None:
        """Raise `ValueError` or `TypeError` for a state that no fitted classifier has."""
        numbers = self.numbers()
        largest = np.abs(self.coef, dtype=np.float64).sum() * np.finfo(np.float16).max + np.abs(numbers).max()
        if self.coef.dtype.str != "<f4" or self.coef.ndim != 1 or not len(self.coef):
            raise ValueError("its coefficients are not those of a linear head")
        if not largest < np.finfo(np.float32).max:  # margins of float16 rows would overflow
            raise ValueError("its numbers are not those of a linear head")
        if not (0 < self.prior < 1 and 0 < self.share < 1 and self.penalty >= 0):
            raise ValueError(f"its prior is {self.prior}, its share {self.share}, its penalty {self.penalty}")
        if self.method not in ("linear", "distilled"):
            raise ValueError(f"its method is {self.method!r}")
        if self.classes.shape != (2,):
            raise ValueError("it does not have two classes")
        _check_names(self.parameters, PARAMETERS, "parameters")
        if self.sgd_settings is not None:
            _check_names(self.sgd_settings, SGD_SETTINGS, "settings of the protocol")
            settings = dict.fromkeys(SGD_SETTINGS, 1) | self.sgd_settings
            counts_fit = settings["epochs"] >= 1 and settings["batch_size"] >= 1 and settings["min_steps"] >= 0
            if not (counts_fit and settings["learning_rate"] > 0):
                raise ValueError(f"settings of its protocol are not positive: {self.sgd_settings}")
        if self.prior_estimate is not None and set(self.prior_estimate) != PRIOR_ESTIMATE:
            raise ValueError(f"its prior estimate has the fields {sorted(self.prior_estimate)}")

    def numbers(self) -> np.ndarray:
        """The tensor ``numbers``, float64 (7,)."""
        return np.array([getattr(self, name) for name in NUMBERS], np.float64)


def write_model(path: str | Path, state: ModelState) -> None:
    """Write the state of a fitted classifier; the file is replaced as a whole.

    Parameters
    ----------
    path : path or str
    state : ModelState

    Raises
    ------
    OutputError
        `path` cannot be written.
    """
    parameters = dict(state.parameters)
    if state.sgd_settings is not None:
        parameters["protocol"] = state.sgd_settings
    content = {
        "parameters": parameters,
        "estimates": state.estimates,
        "counts": [state.n_labelled, state.n_unlabelled],
        "reviewed": [state.n_confirmed, state.n_negatives],
        "classes": [state.classes.tolist(), state.classes.dtype.str],
        "prior_estimate": state.prior_estimate,
        "encoder": state.encoder.to_json() if state.encoder else "",
        "neighbours": None if state.neighbours is None else state.neighbours.to_json(),
        "method": state.method,
    }
    if state.unlabelled_sample is not None:
        content["unlabelled_sample"] = state.unlabelled_sample.to_json()
    write(path, {"coef": state.coef, "numbers": state.numbers()}, content)


def read_model(path: str | Path) -> ModelState:
    """Read and validate the state of a fitted classifier.

    Parameters
    ----------
    path : path or str
        A file of `write_model`, which may come from an untrusted writer.

    Returns
    -------
    ModelState

    Raises
    ------
    ModelError
        Missing, not a pucache model, of another format version, or damaged.
    """
    tensors, content = read(path, TENSORS)
    try:
        state = _parse(tensors, content)
        state.check()
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ModelError(f"{path} holds no model of pucache ({error!r}); train the model again") from error
    return state


def _parse(tensors: dict[str, np.ndarray], content: dict[str, Any]) -> ModelState:
    numbers = tensors["numbers"]
    if numbers.dtype.str != "<f8" or numbers.shape != (len(NUMBERS),):
        raise ValueError("its numbers are not those of a linear head")
    parameters = dict(content["parameters"])
    sgd_settings = parameters.pop("protocol", None)
    n_labelled, n_unlabelled = content["counts"]
    n_confirmed, n_negatives = content.get("reviewed", (0, 0))  # missing in files of before there were reviews
    values, dtype = content["classes"]
    sample = content.get("unlabelled_sample")  # missing where all rows were trained on
    return ModelState(
        coef=tensors["coef"],
        **dict(zip(NUMBERS, numbers.tolist(), strict=True)),
        parameters=parameters,
        sgd_settings=sgd_settings,
        prior_estimate=content["prior_estimate"] or None,
        estimates=content["estimates"],
        n_labelled=n_labelled,
        n_unlabelled=n_unlabelled,
        n_confirmed=n_confirmed,
        n_negatives=n_negatives,
        classes=np.array(values, dtype),
        encoder=EncoderSpec.from_json(content["encoder"]) if content["encoder"] else None,
        neighbours=NeighbourSettings.from_json(content["neighbours"]) if content.get("neighbours") else None,
        unlabelled_sample=UnlabelledSample.from_json(sample) if sample else None,
        method=content.get("method", "linear"),  # missing, as neighbours are, in files of version 0.1
    )


def _check_names(values: dict[str, Any], names: frozenset[str], what: str) -> None:
    unknown = set(values) - names
    if unknown:
        raise ValueError(f"it has unknown {what}: {', '.join(sorted(unknown))}")


def write(path: str | Path, tensors: dict[str, np.ndarray], content: dict[str, Any]) -> None:
    """Write tensors and JSON-able content as a model file.

    Raises
    ------
    OutputError
        `path` cannot be written.
    """
    tensor_file.write(path, _kind(), tensors, content)


def read(path: str | Path, expected: tuple[str, ...]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the tensors of the `expected` names, and the JSON content, of a model file.

    Raises
    ------
    ModelError
        Missing, not a pucache model, of another version, or damaged.
    """
    tensors, content = tensor_file.read(path, _kind(), max_bytes=MAX_BYTES)
    if set(tensors) != set(expected):
        raise ModelError(f"{path} holds other tensors than a model of pucache {__version__}; train the model again")
    return tensors, content


def _kind() -> tensor_file.Kind:
    return tensor_file.Kind(
        format=FORMAT,
        version=VERSION,
        noun="model",
        error=ModelError,
        expected="what train-pu wrote",
        remedy="train the model again",
    )
