"""The model file: writing and reading the state of a fitted classifier, without torch.

The file is a sealed safetensors file (`pucache.storage.tensor_file`) with the tensors ``coef`` (d,)
float32 and ``numbers`` (7,) float64, and JSON for everything else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import ModelError
from ..estimates.calibration import Tilt
from ..estimates.priors import PriorEstimate
from ..labels.sample import UnlabelledSample
from ..storage import tensor_file
from ..version import __version__
from .neighbour_evidence import NeighbourSettings

FORMAT, VERSION = "pucache-model", 3
MAX_BYTES = 1 << 30  # a model is a few numbers a dimension; a larger file is something else
KIND = tensor_file.Kind(
    format=FORMAT,
    version=VERSION,
    noun="model",
    error=ModelError,
    expected="what train-pu wrote",
    remedy="train the model again",
)
_NUMBERS = ("intercept", "threshold", "prior", "share", "penalty")  # of the tensor; alpha and slope of the tilt follow
# names in the JSON: parameters of `PULinearClassifier`, whose `sgd_settings` the file calls "protocol"
PARAMETERS = frozenset(
    "prior loss surrogate target_prior penalty solver threshold deploy_prior n_folds seed device method".split()
)
SGD_SETTINGS = frozenset({"epochs", "min_steps", "batch_size", "learning_rate"})


@dataclass(kw_only=True, eq=False)
class FittedState:
    """Result of training: the fitted attributes that `pucache.PULinearClassifier` documents, and its file holds."""

    coef_: np.ndarray
    intercept_: float
    threshold_: float
    prior_: float
    share_: float
    penalty_: float
    tilt_: Tilt
    prior_estimate_: PriorEstimate | None
    estimates_: dict[str, Any]
    n_labelled_: int
    n_unlabelled_: int
    n_confirmed_: int
    n_negatives_: int
    unlabelled_sample_: UnlabelledSample | None
    classes_: np.ndarray
    encoder_: EncoderSpec | None
    neighbours_: NeighbourSettings | None
    method_: str


def write_model(path: str | Path, parameters: dict[str, Any], state: FittedState) -> None:
    """Write a fitted classifier; the file is replaced as a whole.

    Parameters
    ----------
    path : path or str
    parameters : dict
        Parameters of the classifier that are not None.
    state : FittedState

    Raises
    ------
    OutputError
        `path` cannot be written.
    """
    parameters = dict(parameters)
    if "sgd_settings" in parameters:
        parameters["protocol"] = vars(parameters.pop("sgd_settings"))
    content = {
        "parameters": parameters,
        "estimates": state.estimates_,
        "counts": [state.n_labelled_, state.n_unlabelled_],
        "reviewed": [state.n_confirmed_, state.n_negatives_],
        "classes": [state.classes_.tolist(), state.classes_.dtype.str],
        "prior_estimate": None if state.prior_estimate_ is None else asdict(state.prior_estimate_),
        "encoder": state.encoder_.to_json() if state.encoder_ else "",
        "neighbours": None if state.neighbours_ is None else state.neighbours_.to_json(),
        "method": state.method_,
    }
    if state.unlabelled_sample_ is not None:
        content["unlabelled_sample"] = state.unlabelled_sample_.to_json()
    tensor_file.write(path, KIND, {"coef": state.coef_, "numbers": _numbers(state)}, content)


def read_model(path: str | Path) -> tuple[dict[str, Any], FittedState]:
    """Read and validate a fitted classifier.

    Parameters
    ----------
    path : path or str
        A file of `write_model`, which may come from an untrusted writer.

    Returns
    -------
    parameters : dict
        Parameters of the classifier that are not None; `sgd_settings` as a dict of its fields.
    state : FittedState

    Raises
    ------
    ModelError
        Missing, not a pucache model, of another format version, or damaged.
    """
    tensors, content = tensor_file.read(path, KIND, max_bytes=MAX_BYTES)
    if set(tensors) != {"coef", "numbers"}:
        raise ModelError(f"{path} holds other tensors than a model of pucache {__version__}; train the model again")
    try:
        state = _parse_state(tensors, content)
        _check(state)
        return _parse_parameters(content["parameters"]), state
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ModelError(f"{path} holds no model of pucache ({error!r}); train the model again") from error


def _parse_state(tensors: dict[str, np.ndarray], content: dict[str, Any]) -> FittedState:
    if tensors["numbers"].dtype.str != "<f8" or tensors["numbers"].shape != (len(_NUMBERS) + 2,):
        raise ValueError("its numbers are not those of a linear head")
    *numbers, alpha, slope = tensors["numbers"].tolist()
    values = dict(zip(_NUMBERS, numbers, strict=True))
    n_labelled, n_unlabelled = content["counts"]
    n_confirmed, n_negatives = content.get("reviewed", (0, 0))  # missing in files of before there were reviews
    classes, dtype = content["classes"]
    sample = content.get("unlabelled_sample")  # missing where all rows were trained on
    return FittedState(
        coef_=tensors["coef"],
        **{f"{name}_": value for name, value in values.items()},
        tilt_=Tilt(alpha, slope, values["prior"]),
        prior_estimate_=PriorEstimate(**content["prior_estimate"]) if content["prior_estimate"] else None,
        estimates_=content["estimates"],
        n_labelled_=n_labelled,
        n_unlabelled_=n_unlabelled,
        n_confirmed_=n_confirmed,
        n_negatives_=n_negatives,
        unlabelled_sample_=UnlabelledSample.from_json(sample) if sample else None,
        classes_=np.array(classes, dtype),
        encoder_=EncoderSpec.from_json(content["encoder"]) if content["encoder"] else None,
        neighbours_=NeighbourSettings.from_json(content["neighbours"]) if content.get("neighbours") else None,
        method_=content.get("method", "linear"),  # missing, as neighbours are, in files of version 0.1
    )


def _parse_parameters(content: dict[str, Any]) -> dict[str, Any]:
    parameters = {name: value for name, value in content.items() if name != "draws"}  # version 0.2 had bootstrap draws
    settings = parameters.pop("protocol", None)
    _check_names(parameters, PARAMETERS, "parameters")
    if settings is None:
        return parameters
    _check_names(settings, SGD_SETTINGS, "settings of the protocol")
    numbers = dict.fromkeys(SGD_SETTINGS, 1) | settings
    counts_fit = numbers["epochs"] >= 1 and numbers["batch_size"] >= 1 and numbers["min_steps"] >= 0
    if not (counts_fit and numbers["learning_rate"] > 0):
        raise ValueError(f"settings of its protocol are not positive: {settings}")
    return parameters | {"sgd_settings": settings}


def _numbers(state: FittedState) -> np.ndarray:
    """The tensor ``numbers``, float64 (7,)."""
    values = [getattr(state, f"{name}_") for name in _NUMBERS]
    return np.array([*values, state.tilt_.alpha, state.tilt_.slope], np.float64)


def _check(state: FittedState) -> None:
    """Raise `ValueError` or `TypeError` for a state that no fitted classifier has."""
    coef = state.coef_
    largest = np.abs(coef, dtype=np.float64).sum() * np.finfo(np.float16).max + np.abs(_numbers(state)).max()
    if coef.dtype.str != "<f4" or coef.ndim != 1 or not len(coef):
        raise ValueError("its coefficients are not those of a linear head")
    if not largest < np.finfo(np.float32).max:  # margins of float16 rows would overflow
        raise ValueError("its numbers are not those of a linear head")
    if not (0 < state.prior_ < 1 and 0 < state.share_ < 1 and state.penalty_ >= 0):
        raise ValueError(f"its prior is {state.prior_}, its share {state.share_}, its penalty {state.penalty_}")
    if state.method_ not in ("linear", "distilled"):
        raise ValueError(f"its method is {state.method_!r}")
    if state.classes_.shape != (2,):
        raise ValueError("it does not have two classes")


def _check_names(values: dict[str, Any], names: frozenset[str], what: str) -> None:
    unknown = set(values) - names
    if unknown:
        raise ValueError(f"it has unknown {what}: {', '.join(sorted(unknown))}")
