import dataclasses
import json
import pickle

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from planted import QUICK, planted, write_cache
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tiny import tiny_encoder

from pucache.classifier import PULinearClassifier
from pucache.encoder_spec import EncoderSpec
from pucache.errors import LabelError, ModelError, OutputError
from pucache.heads import Protocol

X, S, Y = planted()


def classifier(**parameters):
    return PULinearClassifier(**{"prior": 0.3, "protocol": QUICK, "device": "cpu"} | parameters)


@pytest.fixture(scope="module")
def fitted():
    return classifier().fit(X, S)


@pytest.fixture
def saved(fitted, tmp_path):
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    return path


def state(model):
    """Everything a model is, comparable with ==."""
    arrays = model.coef_, model.posterior_.margin, model.posterior_.value
    rest = model.intercept_, model.estimates_, model.n_labelled_, model.n_unlabelled_, model.n_features_in_
    return [(array.dtype, array.tolist()) for array in arrays], rest, model.encoder_, model.get_params()


# --- fit and predict ---------------------------------------------------------------------------


def test_hidden_positives_are_found(fitted):
    hidden = S == 0
    assert roc_auc_score(Y[hidden], fitted.decision_function(X[hidden])) > 0.98
    assert (fitted.predict(X) == Y).mean() > 0.93
    assert np.abs(fitted.predict_proba(X[hidden])[:, 1].mean() - 0.3) < 0.05
    assert fitted.estimates_["auc"] > 0.95 and 0 <= fitted.estimates_["clamped"] <= 1
    assert (fitted.n_labelled_, fitted.n_unlabelled_, fitted.n_features_in_) == (40, 360, 6)
    assert fitted.classes_.tolist() == [0, 1] and fitted.encoder_ is None


@pytest.mark.parametrize("threshold", [-3.0, 0.0, 3.0])
def test_a_row_is_called_positive_where_its_margin_is_above_the_threshold(fitted, threshold):
    model = clone(fitted).set_params(threshold=threshold).fit(X, S)
    margins, predicted, probabilities = model.decision_function(X), model.predict(X), model.predict_proba(X)
    assert margins.shape == predicted.shape == (400,) and probabilities.shape == (400, 2)
    assert margins.dtype == np.float32 and predicted.dtype == np.int64
    np.testing.assert_allclose(margins, X @ model.coef_ + model.intercept_, rtol=1e-4, atol=1e-5)
    assert (predicted == (margins > threshold)).all() and 0 < predicted.sum() < 400
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert (np.diff(probabilities[np.argsort(margins), 1]) >= 0).all()
    assert model.estimates_["share_predicted_positive"] == pytest.approx(predicted[S == 0].mean(), abs=0.05)


@pytest.mark.parametrize(
    "labels", [S, S.astype(float), S.astype(bool), 2 * S - 1, S.tolist()], ids=["int8", "float", "bool", "-1/1", "list"]
)
def test_each_convention_of_labels_gives_the_same_model(fitted, labels):
    assert state(classifier().fit(X, labels)) == state(fitted)


@pytest.mark.parametrize(
    "labels",
    [S * 2, S + 1, np.arange(400) % 3, S * 0.5, np.array(["no", "yes"])[S]],
    ids=["02", "12", "012", "half", "text"],
)
def test_any_other_labels_are_refused(labels):
    with pytest.raises(ValueError, match=r"labels must be 1 \(labelled positive\) and 0 or -1"):
        classifier().fit(X, labels)


def changed(value, at=(3, 2)):
    other = X.copy()
    other[at] = value
    return other


@pytest.mark.parametrize(
    "bad, labels, message",
    [
        (changed(np.nan), S, "contains NaN"),
        (changed(np.inf), S, "infinity"),
        (X[:, 0], S, "1D array"),
        (X[None], S, "dim 3"),
        (X[:-1], S, "inconsistent numbers of samples"),
        (X, np.where(np.arange(400), S, np.nan), "NaN"),
        (X, 0 * S, "no labelled positives"),
        (X, 0 * S - 1, "no labelled positives"),
        (X, 0 * S + 1, "all 400 rows are labelled positive"),
    ],
)
def test_rows_and_labels_that_cannot_be_trained_on_are_refused(bad, labels, message):
    with pytest.raises(ValueError, match=message):
        classifier().fit(bad, labels)


@pytest.mark.parametrize(
    "bad",
    [
        *({"prior": value} for value in (None, 0, 1, -0.2, 1.5, float("nan"))),
        *({"penalty": value} for value in (-1, float("nan"), float("inf"))),
        *({"target_prior": value} for value in (0, 1)),
        {"n_folds": 1},
        {"loss": "hinge"},
        {"device": "abacus"},
    ],
    ids=str,
)
def test_a_parameter_outside_its_domain_is_refused_by_name(bad):
    name = "risk" if "loss" in bad else next(iter(bad))
    with pytest.raises(ValueError, match=name):
        classifier(**bad).fit(X, S)


@pytest.mark.parametrize("bad", [X[:, :-1], changed(np.nan), X[0]], ids=["dims", "NaN", "1D"])
@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_rows_that_do_not_fit_the_model_are_refused(fitted, method, bad):
    with pytest.raises(ValueError):
        getattr(fitted, method)(bad)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function", "save"])
def test_an_unfitted_model_says_so(method, tmp_path):
    with pytest.raises(NotFittedError):
        getattr(classifier(), method)(tmp_path / "m" if method == "save" else X)


# --- what must not matter ----------------------------------------------------------------------


@pytest.mark.parametrize("factor", [2.0**-80, 2.0**-20, 2.0**30, 2.0**80], ids="{:.0e}".format)
def test_a_power_of_two_on_every_row_changes_no_margin(fitted, factor):
    scaled = classifier().fit(X * np.float32(factor), S)
    np.testing.assert_allclose(scaled.decision_function(X * np.float32(factor)), fitted.decision_function(X), rtol=1e-5)


@pytest.mark.parametrize("factor", [0.01, 1000.0])
def test_the_unit_of_the_rows_changes_no_prediction(fitted, factor):
    scaled = (X * factor).astype(np.float32)
    model = classifier().fit(scaled, S)
    clear = np.abs(fitted.decision_function(X)) > 1e-3
    assert clear.mean() > 0.99 and (model.predict(scaled) == fitted.predict(X))[clear].all()
    np.testing.assert_allclose(model.predict_proba(scaled), fitted.predict_proba(X), atol=1e-2)


def test_the_type_and_home_of_the_rows_do_not_matter(tmp_path):
    half = X.astype(np.float16)
    np.save(tmp_path / "X.npy", half)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    model = classifier().fit(half.astype(np.float32), S)
    for same in (half, mapped, np.asfortranarray(half), half.astype(np.float64), half.tolist()):
        assert state(classifier().fit(same, S)) == state(model)
        np.testing.assert_allclose(model.decision_function(same), model.decision_function(half), rtol=1e-5, atol=1e-5)


def test_training_leaves_the_caller_s_arrays_alone():
    rows, labels = X.copy(), S.copy()
    classifier().fit(rows, labels)
    assert (rows == X).all() and (labels == S).all()


def test_rows_of_zeros_only_still_train():
    model = classifier().fit(np.zeros((20, 3)), np.arange(20) < 5)
    assert np.isfinite(model.decision_function(np.zeros((2, 3)))).all()
    assert model.predict_proba(np.zeros((1, 3)))[0, 1] == pytest.approx(0.3, abs=1e-6)


# --- cross-fitting -----------------------------------------------------------------------------


@pytest.mark.parametrize("labelled, unlabelled", [(1, 50), (50, 1), (1, 1), (2, 2), (3, 300)])
def test_few_rows_of_a_kind_are_enough(labelled, unlabelled):
    rows, s, _ = planted(labelled + unlabelled, labelled=labelled)
    model = classifier().fit(rows, s)
    assert (model.n_labelled_, model.n_unlabelled_) == (labelled, unlabelled)
    assert np.isfinite(model.decision_function(rows)).all()
    assert all(0 <= value <= 1 for name, value in model.estimates_.items() if name != "risk")


def test_the_number_of_folds_leaves_the_classifier_itself_alone(fitted):
    model = classifier(n_folds=3).fit(X, S)
    np.testing.assert_allclose(model.coef_, fitted.coef_, atol=1e-4)
    assert model.posterior_.margin.tolist() != fitted.posterior_.margin.tolist()
    many = classifier(n_folds=300).fit(*planted(700, labelled=300)[:2])  # as many folds as there are positives
    assert (many.predict(X) == Y).mean() > 0.9


def test_estimates_are_of_rows_the_heads_did_not_see():
    noise, s, _ = planted(60, d=200, labelled=20, apart=0.0)  # more features than rows: seen rows fit perfectly
    model = classifier(protocol=Protocol(epochs=1, min_steps=300, learning_rate=0.02)).fit(noise, s)
    assert roc_auc_score(s, model.decision_function(noise)) > 0.95
    assert model.estimates_["pauc"] < 0.75


# --- scikit-learn ------------------------------------------------------------------------------


def test_a_clone_is_unfitted_and_has_the_same_parameters(fitted):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params() and not hasattr(copy, "coef_")
    assert copy.set_params(prior=0.1, seed=3).get_params() == fitted.get_params() | {"prior": 0.1, "seed": 3}


def test_a_pickled_model_is_the_same_model(fitted):
    assert state(pickle.loads(pickle.dumps(fitted))) == state(fitted)  # noqa: S301


def test_it_works_in_a_pipeline_and_in_cross_validation():
    pipeline = make_pipeline(StandardScaler(), classifier())
    assert (pipeline.fit(X, S).predict(X) == Y).mean() > 0.9
    margins = cross_val_predict(pipeline, X, S, cv=3, method="decision_function")
    posterior = cross_val_predict(pipeline, X, S, cv=3, method="predict_proba")
    assert roc_auc_score(Y[S == 0], margins[S == 0]) > 0.97 and posterior.shape == (400, 2)


# --- the file ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"protocol": None, "prior": 0.25, "threshold": -0.3, "penalty": 0.01, "seed": 5, "loss": "nnpu", "n_folds": 3},
        {"prior": np.float32(0.25), "seed": np.int64(3), "threshold": np.float64(0.1), "target_prior": np.float16(0.5)},
        {"protocol": Protocol(epochs=2, min_steps=np.int32(9), batch_size=50)},
    ],
    ids=["plain", "many", "numpy scalars", "protocol"],
)
@pytest.mark.parametrize("encoder", [None, EncoderSpec.imported("é", 6), tiny_encoder().spec], ids=str)
def test_a_saved_model_comes_back_the_same(tmp_path, parameters, encoder):
    model = classifier(**parameters).fit(X[:60], np.arange(60) < 20)
    model.encoder_ = encoder
    model.save(tmp_path / "folder" / "model.safetensors")
    loaded = PULinearClassifier.load(str(tmp_path / "folder" / "model.safetensors"))
    assert state(loaded) == state(model)
    assert (loaded.decision_function(X) == model.decision_function(X)).all()
    assert (loaded.predict_proba(X) == model.predict_proba(X)).all() and (loaded.predict(X) == model.predict(X)).all()
    clone(loaded).set_params(protocol=QUICK).fit(X, S)


def test_saving_again_replaces_the_file_and_leaves_nothing_beside_it(saved, fitted):
    saved.write_bytes(b"old")
    fitted.save(saved)
    assert state(PULinearClassifier.load(saved)) == state(fitted) and list(saved.parent.iterdir()) == [saved]


def test_a_model_that_cannot_be_written_is_an_output_error(fitted, tmp_path):
    with pytest.raises(OutputError, match="is a directory"):
        fitted.save(tmp_path)


def test_a_truncated_model_is_refused_at_every_length(saved):
    whole = saved.read_bytes()
    for length in [*range(0, len(whole), 37), len(whole) - 1]:
        saved.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"model\.safetensors cannot be read as safetensors"):
            PULinearClassifier.load(saved)


@pytest.mark.parametrize("mask", [0x20, 0xFF])
def test_a_flipped_byte_anywhere_is_refused_or_does_no_harm(saved, fitted, mask):
    whole, refused = saved.read_bytes(), 0
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= mask
        saved.write_bytes(damaged)
        try:
            assert state(PULinearClassifier.load(saved)) == state(fitted)
        except ModelError as error:
            assert "\n" not in str(error) and str(saved) in str(error)
            refused += 1
    assert refused > 0.9 * len(whole)


@pytest.fixture
def rewrite(saved):
    """Write the saved model again with other tensors or other metadata."""

    def make(tensors=None, **metadata):
        with safetensors.safe_open(saved, "numpy") as file:
            kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = json.loads(file.metadata()["pucache-model"])
        entry = {"pucache-model": json.dumps(header | metadata)}
        safetensors.numpy.save_file(tensors if tensors is not None else kept, saved, entry)
        return saved

    return make


@pytest.mark.parametrize(
    "change, message",
    [
        ({"version": "2"}, "format version 2; this pucache .* reads version 1: upgrade pucache"),
        ({"format": "other"}, "a safetensors file but not a pucache model"),
        ({"parameters": '{"prior": 0.9}'}, "damaged: content and checksum disagree"),
        ({"extra": "x"}, "damaged: content and checksum disagree"),
        ({"tensors": {"coef": np.zeros(6, np.float32)}}, "damaged: content and checksum disagree"),
        ({"tensors": {}}, "damaged: content and checksum disagree"),
    ],
    ids=str,
)
def test_a_model_that_was_meddled_with_is_refused_by_name(rewrite, change, message):
    with pytest.raises(ModelError, match=message):
        PULinearClassifier.load(rewrite(**change))


def test_tensors_of_a_type_that_numpy_lacks_are_refused(saved):
    with safetensors.safe_open(saved, "numpy") as file:
        header = file.metadata()
    safetensors.torch.save_file({"coef": torch.zeros(6, dtype=torch.bfloat16)}, saved, header)
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        PULinearClassifier.load(saved)


def test_a_further_tensor_is_meddling_too(rewrite, saved):
    tensors = safetensors.numpy.load_file(saved)
    with pytest.raises(ModelError, match="damaged"):
        PULinearClassifier.load(rewrite(tensors | {"more": np.zeros(1)}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_somebody_else_s_safetensors_are_refused(tmp_path, dtype):
    safetensors.torch.save_file({"coef": torch.zeros(3).to(dtype)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match=r"other\.safetensors.* not a pucache model"):
        PULinearClassifier.load(tmp_path / "other.safetensors")


@pytest.mark.parametrize("content", [b"", b"key\na.png\n", pickle.dumps({"coef": 1}), b"\xff" * 64], ids=len)
def test_what_is_no_safetensors_is_refused(tmp_path, content):
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        PULinearClassifier.load(tmp_path / "model")


@pytest.mark.parametrize("name", ["missing.safetensors", "."])
def test_a_model_that_is_not_there_or_a_folder_is_refused(tmp_path, name):
    with pytest.raises(ModelError, match=f"no such model: {tmp_path}"):
        PULinearClassifier.load(tmp_path / name)


# --- whose embeddings --------------------------------------------------------------------------


SPEC = dataclasses.replace(tiny_encoder().spec, dim=6)


@pytest.mark.parametrize("field, value", [("name", "other"), ("weights", "f" * 64), ("input_size", (64, 64))])
def test_a_cache_of_another_encoder_is_refused_and_both_are_named(tmp_path, field, value):
    model = classifier().fit(X, S)
    model.encoder_ = SPEC
    cache = write_cache(tmp_path / "cache.h5", X, encoder=dataclasses.replace(SPEC, **{field: value}))
    with pytest.raises(ModelError) as caught:
        model.check_fits(cache)
    for named in (str(SPEC), str(cache.encoder), cache.name, f"differ in {field}"):
        assert named in str(caught.value)


@pytest.mark.parametrize("encoder", [SPEC, dataclasses.replace(SPEC, precision="bf16"), None], ids=str)
def test_the_same_encoder_fits_in_any_precision_and_bare_arrays_fit_by_length(tmp_path, encoder):
    model = classifier().fit(X, S)
    model.encoder_ = encoder and SPEC
    model.check_fits(write_cache(tmp_path / "cache.h5", X, encoder=encoder))


def test_a_model_of_bare_arrays_refuses_rows_of_another_length(fitted, tmp_path):
    with pytest.raises(ModelError, match=r"expects 6-d rows; .* holds imported:planted"):
        fitted.check_fits(write_cache(tmp_path / "cache.h5", X[:, :4]))


def test_label_errors_are_value_errors_for_scikit_learn():
    assert issubclass(LabelError, ValueError)
