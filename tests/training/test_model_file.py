import dataclasses
import json
import re

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from helpers.planted import planted
from helpers.refusals import one_line
from helpers.tiny import tiny_encoder
from sklearn.exceptions import NotFittedError

from pucache import PULinearClassifier, __version__
from pucache.errors import ModelError
from pucache.heads.minibatch import SGDSettings
from pucache.labels.sample import UnlabelledSample
from pucache.storage import tensor_file
from pucache.training.model_file import FILE_FORMAT, FORMAT, MAX_BYTES, FittedState, read_model
from pucache.training.neighbour_evidence import NeighbourEvidence

pytestmark = pytest.mark.usefixtures("one_thread")
X, S, _ = planted(240, labelled=40, apart=0.6)
NUMPY = {"random_state": np.int64(3), "threshold": np.float64(0.1), "target_prior": np.float16(0.5)}
PARAMETERS = {
    "automatic": {"threshold": "precision=0.9", "deploy_prior": 0.1},
    "text and groups": {"prior": np.float32(0.25), "loss": "nnpu", "n_folds": 3, "pos_label": "yes", **NUMPY},
    "protocol": {"solver": "sgd", "sgd_settings": SGDSettings(2, np.int32(9), 50, 0.02)},
}


def fit(name):
    """A model with these parameters; the automatic one has all that no training on bare arrays gives."""
    model, text = PULinearClassifier(penalty=1e-3, device="cpu", **PARAMETERS[name]), name == "text and groups"
    model.fit(X, np.array(["no", "yes"])[S] if text else S, groups=np.arange(len(X)) // 2 if text else None)
    if name == "automatic":
        model.encoder_, model.unlabelled_sample_ = tiny_encoder().spec, UnlabelledSample(50, 100, 7)
    return model


@pytest.fixture(scope="module")
def automatic(one_thread):
    return fit("automatic")


@pytest.fixture
def saved(automatic, tmp_path):
    path = tmp_path / "folder" / "model.safetensors"
    automatic.save(path)
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


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_saved_model_comes_back_the_same(tmp_path, automatic, name):
    model, path = automatic if name == "automatic" else fit(name), tmp_path / "model.safetensors"
    model.save(path)
    loaded = PULinearClassifier.load(str(path))
    assert loaded.get_params() == model.get_params() and loaded.n_features_in_ == 6
    for field in dataclasses.fields(FittedState):
        before, after = getattr(model, field.name), getattr(loaded, field.name)
        if not field.name.startswith("pile"):  # which the second file shows
            np.testing.assert_array_equal(after, before)
            assert not isinstance(before, np.ndarray) or after.dtype == before.dtype
    for method in ("margins", "decision_function", "predict_proba", "predict"):
        here, there = getattr(model, method)(X), getattr(loaded, method)(X)
        assert here.dtype == there.dtype and here.tobytes() == there.tobytes()
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    with pytest.raises(NotFittedError):
        PULinearClassifier(**PARAMETERS[name]).save(path)


def head_alone(tensors):
    for name in set(tensors) - {"coef", "numbers"}:
        del tensors[name]


def test_older_models_are_read_and_saved_again_without_what_they_lack(automatic, rewrite, tmp_path):
    def of_0_4(tensors, content):
        for name in ("fold_coef", "fold_intercept", "sample_fingerprints"):
            del tensors[name]
        evidence = {"agreement": [0.1, 0.2, 0.3], "held_out": [0.0, -0.1, 0.0], "labels": 10}
        content["neighbours"].update(evidence=evidence, weight=0.5)

    def of_0_1(tensors, content):
        head_alone(tensors)
        del content["neighbours"], content["method"], content["reviewed"], content["unlabelled_sample"]
        content["parameters"]["draws"] = 40  # of the bootstrap

    older, again = rewrite(of_0_4), tmp_path / "again.safetensors"
    PULinearClassifier.load(older).save(again)
    for path in (older, again):
        state = read_model(path)[1]
        assert state.fold_coef_ is None and state.pile_margins_ is not None
        assert not len(state.pile_sample_.fingerprints)
        assert state.neighbours_.weight == 0.5 and state.neighbours_.evidence == NeighbourEvidence(0.2, -0.1, 10)
    oldest = rewrite(of_0_1)
    PULinearClassifier.load(oldest).save(again)
    for path in (oldest, again):
        parameters, state = read_model(path)
        assert parameters.keys() & {"draws", "n_folds"} == {"n_folds"} and (state.coef_ == automatic.coef_).all()
        assert state.neighbours_ is state.unlabelled_sample_ is state.pile_margins_ is None
        assert (state.method_, state.n_confirmed_, state.n_negatives_) == ("linear", 0, 0)


# --- what is refused -----------------------------------------------------------------------------


def test_the_file_says_of_which_format_it_is_and_another_one_is_refused(saved):
    with safetensors.safe_open(saved, "numpy") as file:
        header = json.loads(file.metadata()[FORMAT])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert (header["format"], header["version"], header["pucache_version"]) == ("pucache-model", "3", __version__)
    for change, message in [
        ({"version": "1"}, "a model of format version 1; this pucache .* reads version 3: .*train the model again"),
        ({"version": "4"}, "a model of format version 4; this pucache .* reads version 3: upgrade pucache"),
        ({"state": "{}"}, "is damaged: content and checksum disagree; train the model again"),
    ]:
        safetensors.numpy.save_file(tensors, saved, {FORMAT: json.dumps(header | change)})
        text = one_line(ModelError, read_model, saved)
        assert re.search(message, text) and str(saved) in text


def content(**changed):
    return lambda _, content: content.update(changed)


def tensor(name, change):
    return lambda tensors, _: tensors.update({name: change(tensors[name]).copy()})


def number(position, value):
    return lambda tensors, _: tensors["numbers"].__setitem__(position, value)


def neighbours(**changed):
    return lambda _, content: content["neighbours"].update(changed)


def gains(agreement, labels=10):
    return neighbours(evidence={"agreement": agreement, "held_out": 0.1, "labels": labels})


def no_coefficients(tensors, _):
    head_alone(tensors)
    tensors["coef"] = tensors["coef"][:0]


def no_folds(tensors, _):
    tensors["fold_coef"], tensors["fold_intercept"] = tensors["fold_coef"][:0], tensors["fold_intercept"][:0]


STRANGE = {
    "no tensors": lambda tensors, _: tensors.clear(),
    "one tensor more": lambda tensors, _: tensors.update(more=np.ones(3)),
    "no coefficients": no_coefficients,
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
    "no groups": content(groups=0),
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
    "narrow heads of folds": tensor("fold_coef", lambda coef: coef[:, :4]),
    "wide heads of folds": tensor("fold_coef", lambda coef: coef.astype(np.float64)),
    "a head of a fold that is not a number": tensor("fold_coef", lambda coef: coef * np.nan),
    "heads of folds that overflow": tensor("fold_coef", lambda coef: coef * np.float32(1e35)),
    "two intercepts of folds": tensor("fold_intercept", lambda intercept: intercept[:2]),
    "no heads of folds": no_folds,
    "two fingerprints": tensor("sample_fingerprints", lambda hashes: hashes[:2]),
    "fingerprints that are no hashes": tensor("sample_fingerprints", lambda hashes: hashes.astype(np.float64)),
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE)
def test_a_model_that_a_stranger_made_and_sealed_is_refused_where_it_is_no_head(rewrite, change):
    refused = r"holds (no|other tensors than a) model of pucache .*; train the model again"
    assert re.search(refused, one_line(ModelError, read_model, rewrite(change)))
