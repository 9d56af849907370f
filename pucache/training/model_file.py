"""The model file: writing and reading the state of a fitted classifier, without torch.

The file is a sealed safetensors file (`pucache.storage.tensor_file`) with the tensors ``coef`` (d,)
float32 and ``numbers`` (7,) float64, those of `PileMargins` and `PileSample`, the heads of the K folds as
``fold_coef`` (K, d) and ``fold_intercept`` (K,) float32, and JSON for everything else.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import ModelError
from ..estimates.calibration import Tilt
from ..estimates.dataset_shift import PileSample
from ..estimates.figures import Figures
from ..estimates.label_requirements import LabelCount
from ..estimates.priors import PriorEstimate
from ..estimates.share_of_new_images import PileMargins
from ..labels.sample import UnlabelledSample
from ..storage import tensor_file
from ..version import __version__
from .neighbour_evidence import NeighbourSettings

FORMAT, VERSION = "pucache-model", 3
NO_SAMPLE = (
    "this model keeps no sample of the images it was trained on, so it says nothing about the share or the kind of new "
    "images: train again"
)
MAX_BYTES = 1 << 30  # a model is a few numbers a dimension; a larger file is something else
FILE_FORMAT = tensor_file.FileFormat(
    format=FORMAT,
    version=VERSION,
    noun="model",
    error=ModelError,
    expected="what train-pu wrote",
    remedy="train the model again",
)
_NUMBERS = ("intercept", "threshold", "prior", "share", "penalty")  # of the tensor; alpha and slope of the tilt follow
_MARGINS, _SAMPLE = ("positive", "unlabelled"), ("directions", "centre", "rows", "margins")  # tensors of the pile
_HEAD = {"coef", "numbers"}  # all that files of before 0.3 have
_PILE = _HEAD | {f"pile_{name}" for name in _MARGINS} | {f"sample_{name}" for name in _SAMPLE}  # of 0.3 and 0.4
_FOLDS = _PILE | {"fold_coef", "fold_intercept", "sample_fingerprints"}
# names in the JSON: parameters of `PULinearClassifier`; the file calls `sgd_settings` "protocol", and `seed_` "seed"
PARAMETERS = frozenset(
    (
        "prior loss surrogate target_prior penalty solver threshold deploy_prior n_folds seed device method pos_label"
    ).split()
)
SGD_SETTINGS = frozenset({"epochs", "min_steps", "batch_size", "learning_rate"})


@dataclass(kw_only=True, eq=False)
class FittedState:
    """Result of training: the fitted attributes that `pucache.PULinearClassifier` documents, and its file holds."""

    coef_: np.ndarray
    intercept_: np.ndarray
    threshold_: float
    prior_: float | None
    share_: float
    penalty_: float
    seed_: int
    tilt_: Tilt
    figures_: Figures
    n_labelled_: int
    n_unlabelled_: int
    n_confirmed_: int
    n_negatives_: int
    unlabelled_sample_: UnlabelledSample | None
    classes_: np.ndarray
    encoder_: EncoderSpec | None
    neighbours_: NeighbourSettings | None
    method_: str
    n_groups_: int | None = None
    pile_margins_: PileMargins | None = None
    pile_sample_: PileSample | None = None
    fold_coef_: np.ndarray | None = None
    fold_intercept_: np.ndarray | None = None

    @property
    def prior_estimate_(self) -> PriorEstimate | None:
        """`figures_.prior`."""
        return self.figures_.prior

    @property
    def estimates_(self) -> dict[str, Any]:
        """`figures_` as the file and ``--json`` have them."""
        return self.figures_.to_json()


@dataclass(kw_only=True, eq=False)
class TrainedState(FittedState):
    """Result of training, with the held-out margins (n,), which the file does not hold."""

    held_out_margins_: np.ndarray
    classifier_margins_: np.ndarray


def write_model(path: str | Path, parameters: dict[str, Any], state: FittedState) -> None:
    """Write a fitted classifier; a model is replaced as a whole."""
    parameters = {name: value for name, value in parameters.items() if name != "random_state"} | {"seed": state.seed_}
    if "sgd_settings" in parameters:
        parameters["protocol"] = vars(parameters.pop("sgd_settings"))
    content: dict[str, Any] = {
        "parameters": parameters,
        "estimates": state.figures_.to_json(),
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
    if state.n_groups_ is not None:
        content["groups"] = state.n_groups_
    tensors = {"coef": state.coef_[0], "numbers": _numbers(state)}
    if state.pile_margins_ is not None and state.pile_sample_ is not None:
        margins, sample = state.pile_margins_, vars(state.pile_sample_)
        tensors |= {f"pile_{name}": getattr(margins, name) for name in _MARGINS}
        tensors |= {f"sample_{name}": sample[name] for name in _SAMPLE}
        content["sample"] = {name: value for name, value in sample.items() if not isinstance(value, np.ndarray)}
        content["pile_prior"] = margins.prior
    if state.fold_coef_ is not None and state.fold_intercept_ is not None and state.pile_sample_ is not None:
        tensors |= {"fold_coef": state.fold_coef_, "fold_intercept": state.fold_intercept_}
        tensors["sample_fingerprints"] = state.pile_sample_.fingerprints
    tensor_file.write(path, FILE_FORMAT, tensors, content)


def read_model(path: str | Path) -> tuple[dict[str, Any], FittedState]:
    """Read and validate a fitted classifier.

    Parameters that are not None, `sgd_settings` as a dict of its fields, and the state. The file may come from an
    untrusted writer; raises `ModelError` where it is missing, no pucache model, of another format version, or damaged.
    """
    tensors, content = tensor_file.read(path, FILE_FORMAT, max_bytes=MAX_BYTES)
    if set(tensors) not in (_HEAD, _PILE, _FOLDS):
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
    parameters = content["parameters"]
    assumed = None if parameters.get("prior") is not None else values["prior"]
    count = LabelCount(n_labelled, grouped=content.get("groups") is not None)
    figures = Figures.from_json(content["estimates"], content["prior_estimate"], count, assumed)
    n_confirmed, n_negatives = content.get("reviewed", (0, 0))  # missing in files of before there were reviews
    classes, dtype = content["classes"]
    sample = content.get("unlabelled_sample")  # missing where all rows were trained on
    pile_margins, pile_sample = _parse_pile(tensors, content)
    return FittedState(
        coef_=tensors["coef"][None],
        intercept_=np.array([values["intercept"]]),
        threshold_=values["threshold"],
        prior_=parameters.get("prior", figures.prior.prior if figures.prior else None),
        share_=values["share"],
        penalty_=values["penalty"],
        seed_=parameters.get("seed", 0),
        tilt_=Tilt(alpha, slope, values["prior"]),
        figures_=figures,
        n_labelled_=n_labelled,
        n_unlabelled_=n_unlabelled,
        n_confirmed_=n_confirmed,
        n_negatives_=n_negatives,
        unlabelled_sample_=UnlabelledSample.from_json(sample) if sample else None,
        classes_=np.array(classes, dtype),
        encoder_=EncoderSpec.from_json(content["encoder"]) if content["encoder"] else None,
        neighbours_=NeighbourSettings.from_json(content["neighbours"]) if content.get("neighbours") else None,
        method_=content.get("method", "linear"),  # missing, as neighbours are, in files of version 0.1
        n_groups_=content.get("groups"),  # missing where rows are independent
        pile_margins_=pile_margins,
        pile_sample_=pile_sample,
        fold_coef_=tensors.get("fold_coef"),
        fold_intercept_=tensors.get("fold_intercept"),
    )


def _parse_pile(
    tensors: dict[str, np.ndarray], content: dict[str, Any]
) -> tuple[PileMargins, PileSample] | tuple[None, None]:
    if len(tensors) == 2:
        return None, None
    margins = PileMargins(**{name: tensors[f"pile_{name}"] for name in _MARGINS}, prior=content["pile_prior"])
    arrays: dict[str, Any] = {name: tensors[f"sample_{name}"] for name in _SAMPLE}
    if "sample_fingerprints" in tensors:
        arrays["fingerprints"] = tensors["sample_fingerprints"]
    sample = PileSample(**arrays, **content["sample"])
    margins.check()
    sample.check(len(tensors["coef"]))
    return margins, sample


def _parse_parameters(content: dict[str, Any]) -> dict[str, Any]:
    parameters = {name: value for name, value in content.items() if name != "draws"}  # version 0.2 had bootstrap draws
    settings = parameters.pop("protocol", None)
    _check_names(parameters, PARAMETERS, "parameters")
    parameters["random_state"] = parameters.pop("seed", 0)
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
    tilt = state.tilt_
    numbers = (state.threshold_, tilt.prior, state.share_, state.penalty_, tilt.alpha, tilt.slope)
    return np.array([*state.intercept_, *numbers], np.float64)


def _check(state: FittedState) -> None:
    """Raise `ValueError` or `TypeError` for a state that no fitted classifier has."""
    coef = state.coef_
    largest = np.abs(coef, dtype=np.float64).sum() * np.finfo(np.float16).max + np.abs(_numbers(state)).max()
    if coef.dtype.str != "<f4" or coef.ndim != 2 or not coef.size:
        raise ValueError("its coefficients are not those of a linear head")
    if not largest < np.finfo(np.float32).max:  # margins of float16 rows would overflow
        raise ValueError("its numbers are not those of a linear head")
    if not (0 < state.tilt_.prior < 1 and 0 < state.share_ < 1 and state.penalty_ >= 0):
        raise ValueError(f"its prior is {state.tilt_.prior}, its share {state.share_}, its penalty {state.penalty_}")
    if state.method_ not in ("linear", "distilled"):
        raise ValueError(f"its method is {state.method_!r}")
    if state.n_groups_ is not None and not (type(state.n_groups_) is int and state.n_groups_ > 0):
        raise ValueError(f"its number of groups is {state.n_groups_!r}")
    if state.fold_coef_ is not None and state.fold_intercept_ is not None:
        K, d = len(state.fold_intercept_), coef.shape[1]
        heads = np.column_stack([state.fold_coef_.reshape(K, d), state.fold_intercept_])
        sizes = np.abs(heads, dtype=np.float64).sum(1) * np.finfo(np.float16).max
        if heads.dtype.str != "<f4" or not K or not (sizes < np.finfo(np.float32).max).all():
            raise ValueError("the heads of its folds are not linear heads")
    if state.classes_.shape != (2,):
        raise ValueError("it does not have two classes")


def _check_names(values: dict[str, Any], names: frozenset[str], what: str) -> None:
    unknown = set(values) - names
    if unknown:
        raise ValueError(f"it has unknown {what}: {', '.join(sorted(unknown))}")
