import dataclasses
import json
import re

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
from helpers.refusals import one_line
from helpers.tiny import tiny_encoder

from pucache import PULinearClassifier, __version__
from pucache.errors import ModelError
from pucache.estimates.calibration import Tilt
from pucache.estimates.dataset_shift import PileSample
from pucache.estimates.figures import Figures
from pucache.estimates.intervals import WITH_INTERVAL, Estimate
from pucache.estimates.label_requirements import LabelCount
from pucache.estimates.priors import PriorEstimate
from pucache.estimates.share_of_new_images import PileMargins
from pucache.heads.minibatch import SGDSettings
from pucache.labels.sample import UnlabelledSample
from pucache.storage import tensor_file
from pucache.training.model_file import (
    FILE_FORMAT,
    FORMAT,
    MAX_BYTES,
    VERSION,
    FittedState,
    read_model,
    write_model,
)
from pucache.training.neighbour_evidence import NeighbourEvidence, NeighbourSettings

PRIOR = PriorEstimate(method="tilt", prior=0.25, low=0.125, high=0.5, level=0.9)
PLAIN = {"loss": "imbupu", "n_folds": 5, "prior": np.float32(0.25)}
REFUSED = r"holds no model of pucache .*; train the model again"


def figures(prior=PRIOR, **changes):
    """Figures of 40 labels."""
    ends = {name: Estimate(0.5, 0.25, 0.75) for name in WITH_INTERVAL}
    counted = {"risk": 0.5, "clamped": 0.0, "share_predicted_positive": 0.25, "upu_risk": 0.125, "nnpu_risk": 0.5}
    known = {"labels": LabelCount(40), "estimates": ends, "counted": counted | {"collapsed": ""}, "prior": prior}
    return Figures(**known | changes)


def example_state(**changes):
    state = FittedState(
        coef_=np.linspace(-1, 1, 5).astype(np.float32)[None],
        intercept_=np.array([0.1]),
        threshold_=-2.0,
        prior_=0.25,
        seed_=7,
        share_=0.4,
        penalty_=0.01,
        tilt_=Tilt(0.5, np.pi, 0.3),
        figures_=figures(),
        n_labelled_=10,
        n_unlabelled_=100,
        n_confirmed_=2,
        n_negatives_=3,
        unlabelled_sample_=UnlabelledSample(50, 100, 7),
        classes_=np.array(["no", "yes"]),
        encoder_=tiny_encoder().spec,
        neighbours_=NeighbourSettings(
            evidence=NeighbourEvidence(agreement=0.2, held_out=-0.1, labels=10),
            search="exact search",
            share=0.2,
            tilt=Tilt(0.5, 1.5, 0.3),
            threshold=-1.0,
            weight=2.0,
        ),
        method_="distilled",
    )
    return dataclasses.replace(state, **changes)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.safetensors"
    write_model(path, PLAIN, example_state())
    return path


@pytest.fixture
def rewrite(saved):
    """Change the tensors and the content of a model as a stranger could, and seal it as it should be."""

    def make(change):
        tensors, content = tensor_file.read(saved, FILE_FORMAT, max_bytes=MAX_BYTES)
        tensors = {name: values.copy() for name, values in tensors.items()}
        change(tensors, content)
        tensor_file.write(saved, FILE_FORMAT, tensors, content)
        return saved

    return make


# --- what comes back -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "missing",
    [
        {},
        {"figures_": figures(None), "encoder_": None, "unlabelled_sample_": None},
        {"neighbours_": None, "method_": "linear"},
    ],
    ids=["all", "few", "linear"],
)
def test_a_state_comes_back_exactly(tmp_path, missing):
    state = example_state(**missing)
    write_model(tmp_path / "model", PLAIN | {"sgd_settings": SGDSettings()}, state)
    parameters, restored = read_model(str(tmp_path / "model"))
    assert parameters == PLAIN | {"random_state": 7, "sgd_settings": vars(SGDSettings())}
    for field in dataclasses.fields(FittedState):
        before, after = getattr(state, field.name), getattr(restored, field.name)
        np.testing.assert_array_equal(after, before)
        assert np.asarray(after).dtype == np.asarray(before).dtype
    write_model(tmp_path / "again", PLAIN | {"sgd_settings": SGDSettings()}, restored)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()


def test_the_file_tells_what_it_is_without_this_package(saved):
    with safetensors.safe_open(saved, "numpy") as file:
        header = json.loads(file.metadata()["pucache-model"])
        assert set(file.keys()) == {"coef", "numbers"}
    assert (header["format"], header["version"], header["pucache_version"]) == ("pucache-model", "3", __version__)
    assert json.loads(header["state"])["method"] == "distilled" and len(header["checksum"]) == 64
    assert (FORMAT, VERSION) == ("pucache-model", 3)


def test_a_model_of_version_0_2_is_read_without_its_bootstrap_draws(saved, rewrite):
    expected = read_model(saved)
    parameters, state = read_model(rewrite(lambda tensors, content: content["parameters"].update(draws=40)))
    assert parameters == expected[0] and (state.coef_ == expected[1].coef_).all() and state.tilt_ == expected[1].tilt_
    assert PULinearClassifier.load(saved).get_params()["n_folds"] == 5


def test_a_model_of_before_there_were_neighbours_and_reviews_is_linear(rewrite):
    def remove(_, content):
        del content["neighbours"], content["method"], content["reviewed"], content["unlabelled_sample"]

    state = read_model(rewrite(remove))[1]
    assert state.neighbours_ is None and state.method_ == "linear" and state.unlabelled_sample_ is None
    assert (state.n_confirmed_, state.n_negatives_) == (0, 0)


# --- what is refused -----------------------------------------------------------------------------


COEF = np.linspace(-1, 1, 5).astype(np.float32)
NUMBERS = np.zeros(7)
DAMAGED = "is damaged: content and checksum disagree; train the model again"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"version": "1"}, "a model of format version 1; .*train the model again"),
        ({"version": "2"}, "a model of format version 2; this pucache .* reads version 3: .*train the model again"),
        ({"version": "4"}, "a model of format version 4; this pucache .* reads version 3: upgrade pucache"),
        ({"format": "other"}, "a safetensors file but not a pucache model; pass what train-pu wrote"),
        ({"state": "{}"}, DAMAGED),
        ({"checksum": ""}, DAMAGED),
        ({"tensors": {"numbers": NUMBERS, "coef": np.zeros(5, np.float32)}}, DAMAGED),
        ({"tensors": {"coef": COEF}}, DAMAGED),
        ({"tensors": {}}, DAMAGED),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_file_that_was_meddled_with_is_refused_by_name(saved, change, message):
    with safetensors.safe_open(saved, "numpy") as file:
        header = json.loads(file.metadata()[FORMAT])
        tensors = {name: file.get_tensor(name) for name in ("coef", "numbers")}
    tensors = change.pop("tensors") if "tensors" in change else tensors
    safetensors.numpy.save_file(tensors, saved, {FORMAT: json.dumps(header | change)})
    text = one_line(ModelError, read_model, saved)
    assert re.search(message, text) and str(saved) in text


def test_damage_of_any_byte_is_refused(saved):
    whole = saved.read_bytes()
    for position in range(0, len(whole), 7):
        saved.write_bytes(whole[:position] + bytes([whole[position] ^ 0x20]) + whole[position + 1 :])
        assert str(saved) in one_line(ModelError, read_model, saved)


@pytest.mark.parametrize("tensors", [{}, {"coef": COEF}, {"coef": COEF, "numbers": NUMBERS, "more": COEF}], ids=len)
def test_a_sealed_file_of_other_tensors_is_refused(tmp_path, tensors):
    tensor_file.write(tmp_path / "model", FILE_FORMAT, tensors, {})
    with pytest.raises(ModelError, match="holds other tensors than a model of pucache"):
        read_model(tmp_path / "model")


def content(**changed):
    return lambda _, content: content.update(changed)


def tensor(name, change):
    return lambda tensors, _: tensors.update({name: change(tensors[name])})


def number(position, value):
    return lambda tensors, _: tensors["numbers"].__setitem__(position, value)


def neighbours(**changed):
    return lambda _, content: content["neighbours"].update(changed)


def gains(agreement, labels=10):
    return neighbours(evidence={"agreement": agreement, "held_out": 0.1, "labels": labels})


STRANGE = {
    "no coefficients": tensor("coef", lambda coef: coef[:0]),
    "wide coefficients": tensor("coef", lambda coef: coef.astype(np.float64)),
    "coefficients that overflow": tensor("coef", lambda coef: coef * np.float32(1e35)),
    "a coefficient that is not a number": tensor("coef", lambda coef: coef * np.nan),
    "six numbers": tensor("numbers", lambda numbers: numbers[:6]),
    "an infinite threshold": number(1, np.inf),
    "a prior of 1": number(2, 1),
    "a negative penalty": number(4, -1),
    "one class": content(classes=[[1], "<i8"]),
    "three classes": content(classes=[[0, 1, 2], "<i8"]),
    "no parameters": lambda _, content: content.pop("parameters"),
    "a parameter from elsewhere": content(parameters={"kernel": "rbf"}),
    "a protocol from elsewhere": content(parameters={"protocol": {"momentum": 0.9}}),
    "no epochs": content(parameters={"protocol": {"epochs": 0}}),
    "a prior estimate without interval": content(prior_estimate={"prior": 0.3}),
    "an unknown method": content(method="propagated"),
    "an encoder without sense": content(encoder="[]"),
    "a sample without its pile": content(unlabelled_sample={"rows": 1}),
    "a sample larger than its pile": content(unlabelled_sample={"rows": 5, "unlabelled": 2, "seed": 0}),
    "a sample of a row and a half": content(unlabelled_sample={"rows": 1.5, "unlabelled": 2, "seed": 0}),
    "a sample that is a list": content(unlabelled_sample=[1]),
    "neighbours in words": content(neighbours="exact"),
    "neighbours without evidence": content(neighbours={"search": "exact search"}),
    "evidence that is infinite": gains(float("inf")),
    "evidence of no labels": gains(0.1, -20),
    "a weight that no version chose": neighbours(weight=3),
    "a slope that is no number": neighbours(tilt={"alpha": 0.0, "slope": float("nan"), "prior": 0.5}),
    "neighbours with a prior of 1": neighbours(tilt={"alpha": 0.0, "slope": 1.0, "prior": 1.0}),
    "neighbours without a threshold": neighbours(threshold=None),
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE)
def test_a_model_that_a_stranger_made_and_sealed_is_refused_where_it_is_no_head(rewrite, change):
    assert re.search(REFUSED, one_line(ModelError, read_model, rewrite(change)))


def test_neighbours_of_a_model_of_0_4_keep_their_weight(rewrite):
    evidence = {"agreement": [0.1, 0.2, 0.3], "held_out": [0.0, -0.1, 0.0], "labels": 10}
    kept = read_model(rewrite(neighbours(evidence=evidence, weight=0.5)))[1].neighbours_
    assert kept.weight == 0.5 and kept.evidence == NeighbourEvidence(0.2, -0.1, 10)


# --- the pile and the heads of the folds ---------------------------------------------------------


def state_with_folds(**changes):
    sample = PileSample(
        directions=np.eye(5, 2, dtype=np.float16),
        centre=np.zeros(2, np.float32),
        spread=1.0,
        rows=np.zeros((3, 2), np.float16),
        margins=np.zeros(3, np.float32),
        n_labelled=1,
        fingerprints=np.arange(3, dtype=np.uint64),
    )
    heads = np.linspace(-1, 1, 18, dtype=np.float32).reshape(3, 6)
    known = {"fold_coef_": heads[:, :5].copy(), "fold_intercept_": heads[:, 5].copy(), "pile_sample_": sample}
    margins = PileMargins(*np.ones((2, 4, 2), np.float32), prior=None)
    return example_state(**known | {"pile_margins_": margins} | changes)


def test_the_heads_of_the_folds_come_back_and_a_model_of_0_4_has_none(tmp_path):
    state = state_with_folds()
    write_model(tmp_path / "model", PLAIN, state)
    restored = read_model(tmp_path / "model")[1]
    np.testing.assert_array_equal(restored.fold_coef_, state.fold_coef_)
    np.testing.assert_array_equal(restored.fold_intercept_, state.fold_intercept_)
    np.testing.assert_array_equal(restored.pile_sample_.fingerprints, state.pile_sample_.fingerprints)
    write_model(tmp_path / "older", PLAIN, state_with_folds(fold_coef_=None))
    older = read_model(tmp_path / "older")[1]
    assert older.fold_coef_ is None and older.pile_margins_ is not None and not len(older.pile_sample_.fingerprints)


@pytest.mark.parametrize(
    "change",
    [
        {"fold_coef_": np.ones((3, 4), np.float32)},
        {"fold_coef_": np.ones((3, 5))},
        {"fold_coef_": np.full((3, 5), np.nan, np.float32)},
        {"fold_coef_": np.full((3, 5), 1e35, np.float32)},
        {"fold_intercept_": np.ones(2, np.float32)},
        {"fold_coef_": np.ones((0, 5), np.float32), "fold_intercept_": np.ones(0, np.float32)},
        {"pile_sample_": dataclasses.replace(state_with_folds().pile_sample_, fingerprints=np.zeros(2, np.uint64))},
        {"pile_sample_": dataclasses.replace(state_with_folds().pile_sample_, fingerprints=np.zeros(3))},
    ],
    ids=["narrow", "float64", "not a number", "overflow", "two intercepts", "none", "two fingerprints", "no hashes"],
)
def test_heads_of_folds_that_are_none_are_refused(tmp_path, change):
    write_model(tmp_path / "model", PLAIN, state_with_folds(**change))
    assert re.search(REFUSED, one_line(ModelError, read_model, tmp_path / "model"))
