import dataclasses
import pickle
import warnings
from functools import partial
from inspect import signature

import numpy as np
import pandas as pd
import pytest
from helpers.planted import QUICK, planted, write_cache
from helpers.refusals import one_line
from helpers.tiny import tiny_encoder
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, UnsetMetadataPassedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pucache import Labels, PULinearClassifier
from pucache.errors import LabelError, ModelError
from pucache.estimates.calibration import fit_tilt
from pucache.estimates.metrics import from_pu
from pucache.heads.minibatch import SGDSettings
from pucache.heads.risks import RISKS

pytestmark = pytest.mark.usefixtures("one_thread")
N = 240
X, S, Y = planted(N, labelled=40, apart=0.6)


def classifier(**parameters):
    """Nothing chosen or estimated but the posterior and the threshold: quick."""
    return PULinearClassifier(**{"prior": 0.3, "penalty": 1e-3, "device": "cpu"} | parameters)


@pytest.fixture(scope="module")
def fitted(one_thread):
    return classifier().fit(X, S)


@pytest.fixture(scope="module")
def automatic(one_thread):
    return PULinearClassifier(device="cpu").fit(X, S)


def state(model, *, neighbours=True):
    """Everything a model is, comparable with ==."""
    arrays = [(array.dtype, array.tolist()) for array in (model.coef_, model.intercept_, model.classes_)]
    names = "threshold_ seed_ prior_ prior_estimate_ share_ penalty_ tilt_ estimates_ n_labelled_ n_unlabelled_"
    names += " method_" + " neighbours_" * neighbours
    rest = {name: getattr(model, name) for name in [*names.split(), "n_features_in_", "encoder_"]}
    return arrays, rest, model.get_params()


# --- scikit-learn ------------------------------------------------------------------------------


def expected_failures(_):
    return {
        "check_sample_weight_equivalence_on_dense_data": "cross-fitting deals rows into folds, not weights",
        "check_classifiers_classes": "labels that are text need pos_label",
    }


@parametrize_with_checks(
    [PULinearClassifier(device="cpu", n_folds=3, method="linear", penalty=0.01)],
    expected_failed_checks=expected_failures,
    **({"xfail_strict": True} if "xfail_strict" in signature(parametrize_with_checks).parameters else {}),
)
def test_scikit_learn_s_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("labels", [29, 30])
def test_probabilities_below_thirty_labels_are_cautious_and_come_with_one_warning(labels):
    s = np.where(np.cumsum(S) <= labels, S, 0)
    model = PULinearClassifier(prior=0.3, device="cpu", method="linear").fit(X, s)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        posterior = model.predict_proba(X)[:, 1]
    assert [f"{labels} labelled positives" in str(one.message) for one in warned] == [True] * (labels < 30)
    likeliest = fit_tilt(model.held_out_margins_, s, prior=0.3)
    assert (
        model.tilt_.slope < likeliest.slope and posterior[s == 0].mean() < likeliest.posterior(model.margins(X)).max()
    )


# --- fit and predict ---------------------------------------------------------------------------


def test_hidden_positives_are_found_with_nothing_given_but_the_labels(automatic):
    hidden = S == 0
    assert roc_auc_score(Y[hidden], automatic.decision_function(X[hidden])) > 0.9
    assert (automatic.predict(X) == Y).mean() > 0.85
    assert automatic.predict_proba(X[hidden])[:, 1].mean() == pytest.approx(0.3, abs=0.12)
    assert automatic.prior_ == pytest.approx(0.3, abs=0.12) == automatic.share_
    found = automatic.prior_estimate_
    assert (found.prior, found.draws, found.method) == (automatic.prior_, 0, "tilt")
    assert 0 < found.low <= found.prior <= found.high < 1 and found.low < found.high
    assert automatic.estimates_["auc"] > 0.9 and automatic.penalty_ > 0
    assert (automatic.n_labelled_, automatic.n_unlabelled_, automatic.n_features_in_) == (40, 200, 6)
    assert automatic.classes_.tolist() == [0, 1] and automatic.encoder_ is None


@pytest.mark.parametrize("loss", RISKS)
def test_every_loss_ranks_the_planted_positives(loss):
    model = classifier(loss=loss, prior=None, solver="sgd", sgd_settings=QUICK, penalty="auto").fit(X, S)
    assert roc_auc_score(Y[S == 0], model.decision_function(X[S == 0])) > 0.9
    assert 0.1 < model.prior_ < 0.5 and 0 < model.predict(X).sum() < N and model.penalty_ == 0


@pytest.mark.parametrize("rule", ["f1", "precision=0.9", "recall=0.5", -1.0])
def test_a_row_is_called_positive_where_its_margin_is_above_the_threshold(fitted, rule):
    model = clone(fitted).set_params(threshold=rule).fit(X, S)
    decision, predicted, probabilities = model.decision_function(X), model.predict(X), model.predict_proba(X)
    assert decision.shape == predicted.shape == (N,) and probabilities.shape == (N, 2)
    assert decision.dtype == np.float32 and predicted.dtype == S.dtype
    np.testing.assert_allclose(model.margins(X), X @ model.coef_[0] + model.intercept_, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(decision, model.margins(X) - model.threshold_, rtol=1e-4, atol=1e-4)
    assert (predicted == (decision > 0)).all() and 0 < predicted.sum() < N
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_allclose(probabilities[:, 1], model.posterior(model.margins(X)), rtol=1e-4, atol=1e-7)
    assert (np.diff(probabilities[np.argsort(decision), 1]) >= 0).all()
    if not isinstance(rule, str):
        assert model.threshold_ == rule


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_a_deployment_share_shifts_odds_and_threshold_and_no_margin(fitted, share):
    model = classifier(deploy_prior=share).fit(X, S)
    assert model.share_ == share and model.prior_ == 0.3 and (model.coef_ == fitted.coef_).all()
    q, moved = fitted.predict_proba(X).astype(np.longdouble), model.predict_proba(X).astype(np.longdouble)
    shift = share / (1 - share) / (0.3 / 0.7)
    sure = np.minimum(q, moved).min(1) > 1e-9
    assert sure.mean() > 0.5
    np.testing.assert_allclose((moved[:, 1] / moved[:, 0])[sure], (q[:, 1] / q[:, 0])[sure] * shift, rtol=1e-3)
    assert np.sign(fitted.threshold_ - model.threshold_) == np.sign(share - 0.3)


# --- labels, rows and weights ------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [S.astype(float), S.astype(bool), 2 * S - 1, S.tolist(), S + 1],
    ids=["float", "bool", "-1/1", "list", "12"],
)
def test_each_convention_of_labels_gives_the_same_model(fitted, labels):
    model = classifier().fit(X, labels)
    (*coef, classes), rest, parameters = state(model)
    assert (coef, rest, parameters) == (state(fitted)[0][:2], *state(fitted)[1:])
    assert classes[1] == np.unique(labels).tolist()
    predicted = model.predict(X)
    assert predicted.dtype == np.asarray(labels).dtype
    assert ((predicted == max(labels)) == (fitted.predict(X) == 1)).all()


def test_labels_that_are_text_need_the_positive_one(fitted):
    for kind in (str, object):
        text = np.array(["unknown", "deer"], kind)[S]
        with pytest.raises(ValueError, match=r"labels are text, 'deer' and 'unknown': .*pos_label='deer'") as caught:
            classifier().fit(X, text)
        assert "\n" not in str(caught.value)
        model = classifier(pos_label="deer").fit(X, text)
        assert model.classes_.tolist() == ["unknown", "deer"] and (model.coef_ == fitted.coef_).all()
        assert ((model.predict(X) == "deer") == (fitted.predict(X) == 1)).all()
        assert (model.predict_proba(X) == fitted.predict_proba(X)).all()
        assert model.score(X, text) == fitted.score(X, S)
    assert (classifier(pos_label=0).fit(X, 1 - S).coef_ == fitted.coef_).all()
    with pytest.raises(ValueError, match="pos_label is 'cat', but the labels are 0 and 1"):
        classifier(pos_label="cat").fit(X, S)


def test_the_random_state_follows_scikit_learn(fitted, tmp_path):
    linear = partial(classifier, method="linear")
    assert fitted.seed_ == 0 and linear(random_state=np.int64(7)).fit(X, S).seed_ == 7
    one, other = (linear(random_state=np.random.RandomState(5)).fit(X, S) for _ in range(2))
    assert one.seed_ == other.seed_ and (one.held_out_margins_ == other.held_out_margins_).all()
    assert one.fit(X, S).seed_ != other.seed_, "the second fit draws on"
    np.random.seed(3)
    drawn, next_drawn = (linear(random_state=None).fit(X, S) for _ in range(2))
    assert drawn.seed_ != next_drawn.seed_
    drawn.save(tmp_path / "model")
    assert PULinearClassifier.load(tmp_path / "model").random_state == drawn.seed_


def test_the_score_is_pauc_so_a_search_does_not_choose_the_strictest_threshold():
    grid = {"threshold": ["f1", "precision=0.99", 1e6], "penalty": [1e-3, 1e4]}
    search = GridSearchCV(classifier(method="linear"), grid, cv=3).fit(X, S)
    scores = search.cv_results_["mean_test_score"].reshape(2, 3)  # by penalty, then threshold
    assert (scores == scores[:, :1]).all(), "the threshold has no part in it"
    assert search.best_params_["threshold"] == "f1"
    model = search.best_estimator_
    assert model.score(X, S) == pytest.approx(from_pu(model.margins(X), S, 0.3)["pauc"], abs=1e-9)


def changed(value, at=(3, 2)):
    other = X.copy()
    other[at] = value
    return other


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"X": changed(np.nan)}, "contains NaN"),
        ({"X": changed(np.inf)}, "infinity"),
        ({"X": X[:, 0]}, "1D array"),
        ({"y": np.where(np.arange(N), S, np.nan)}, "NaN"),
        ({"y": S + np.linspace(0, 0.1, N)}, "Unknown label type"),
        ({"y": 0 * S}, "labels hold one class only, 0: some rows must be labelled positive"),
        ({"y": 0 * S + 1}, "labels hold one class only, 1: .* some unlabelled"),
        ({"y": np.arange(N) % 3}, "Only binary classification is supported.*with 3 values"),
        ({"sample_weight": np.where(S, 0, 1)}, "sample_weight leaves one class only"),
        ({"sample_weight": np.where(S, 1, 0)}, "sample_weight leaves one class only"),
        ({"sample_weight": np.full(N, np.nan)}, "NaN"),
    ],
)
def test_rows_labels_and_weights_that_cannot_be_trained_on_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        classifier().fit(**{"X": X, "y": S} | bad)


@pytest.mark.parametrize(
    "bad",
    [
        *({"prior": value} for value in (0, 1, -0.2, 1.5, float("nan"), True, "auto")),
        *({"deploy_prior": value} for value in (0, 1, 2, float("nan"), "0.1")),
        *({"penalty": value} for value in (-1, float("nan"), float("inf"), "strong", None)),
        *({"target_prior": value} for value in (0, 1, 1.5, float("nan"))),
        *({"n_folds": value} for value in (1, 0, 2.5, "5")),
        *({"random_state": value} for value in (-1, "0", 0.5)),
        *({"threshold": value} for value in ("f2", "precision=2", "recall=", None, float("nan"))),
        {"loss": "hinge"},
        {"method": "propagated"},
        {"method": "distilled", "solver": "sgd"},
        {"solver": "newton"},
        {"surrogate": "hinge"},
        {"surrogate": "sigmoid", "loss": "bce"},
        {"surrogate": "sigmoid", "loss": "weighted_bce"},
        {"device": "abacus"},
        {"sgd_settings": QUICK},
    ],
    ids=str,
)
def test_a_parameter_outside_its_domain_is_refused_by_name_in_one_line(bad):
    with pytest.raises(ValueError, match=next(iter(bad))) as caught:
        classifier(**bad).fit(X, S)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("labelled, unlabelled", [(1, 50), (50, 1), (1, 1), (3, 100)])
def test_few_rows_of_a_kind_are_enough(labelled, unlabelled):
    rows, s, _ = planted(labelled + unlabelled, labelled=labelled)
    model = PULinearClassifier(device="cpu").fit(rows, s)
    assert (model.n_labelled_, model.n_unlabelled_) == (labelled, unlabelled)
    assert np.isfinite(model.decision_function(rows)).all() and np.isfinite(model.predict_proba(rows)).all()
    assert 0 < model.tilt_.prior < 1 and 0 < model.share_ < 1


def test_groups_stay_together_and_may_be_of_any_kind():
    """Every row twice: without groups the copies make noise look learnt."""
    noise, s, _ = planted(60, d=100, labelled=20, apart=0.0)
    twice, labels, group = np.tile(noise, (2, 1)), np.tile(s, 2), np.tile(np.arange(60), 2)
    apart, together = (classifier(penalty=1e-6).fit(twice, labels, groups=of) for of in (None, group))
    assert roc_auc_score(labels, apart.held_out_margins_) > 0.8 > roc_auc_score(labels, together.held_out_margins_)
    named = classifier(penalty=1e-6).fit(twice, labels, groups=[f"image {number:02}" for number in group])
    assert state(named) == state(together)
    with pytest.raises(ValueError, match="expected one group for each of 120 rows"):
        classifier().fit(twice, labels, groups=group[:-1])


# --- the file ----------------------------------------------------------------------------------


SCALARS = {"random_state": np.int64(3), "threshold": np.float64(0.1), "target_prior": np.float16(0.5)}
PROTOCOL = SGDSettings(epochs=2, min_steps=np.int32(9), batch_size=50, learning_rate=0.02)


@pytest.mark.parametrize(
    "parameters",
    [
        {"prior": None, "penalty": "auto", "threshold": "precision=0.9", "deploy_prior": 0.1},
        {"prior": np.float32(0.25), "loss": "nnpu", "n_folds": 3, "pos_label": 1, **SCALARS},
        {"solver": "sgd", "sgd_settings": PROTOCOL},
    ],
    ids=["automatic", "numpy scalars", "protocol"],
)
def test_a_saved_model_comes_back_the_same(tmp_path, parameters):
    model = classifier(**parameters).fit(X[:60], np.arange(60) < 20)
    model.encoder_ = tiny_encoder().spec
    path = tmp_path / "folder" / "model.safetensors"
    model.save(path)
    loaded = PULinearClassifier.load(str(path))
    assert state(loaded) == state(model)
    for method in ("margins", "decision_function", "predict_proba", "predict"):
        here, there = getattr(model, method)(X), getattr(loaded, method)(X)
        assert here.dtype == there.dtype and here.tobytes() == there.tobytes()
    with pytest.raises(NotFittedError):
        classifier(**parameters).save(path)
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


# --- whose embeddings --------------------------------------------------------------------------


SPEC = dataclasses.replace(tiny_encoder().spec, dim=6)


@pytest.mark.parametrize("encoder", [SPEC, dataclasses.replace(SPEC, precision="bf16"), None], ids=str)
def test_the_same_encoder_fits_in_any_precision_and_bare_arrays_fit_by_length(fitted, tmp_path, encoder):
    model = pickle.loads(pickle.dumps(fitted))
    model.encoder_ = encoder and SPEC
    model.check_fits(write_cache(tmp_path / "cache.h5", X, encoder=encoder))
    with pytest.raises(ModelError, match=r"holds .*imported:planted"):
        model.check_fits(write_cache(tmp_path / "cache.h5", X[:, :4]))


NAMED = [f"row{row}" for row in range(120)]


@pytest.mark.parametrize("name", ["y", "sample_weight", "groups", "reviewed"])
def test_what_is_indexed_otherwise_than_a_frame_is_refused(name):
    X, s, _ = planted(120, labelled=30)
    frame, columns = pd.DataFrame(X, index=NAMED), {"y": s, name: s if name == "y" else np.zeros(120)}
    other = {**columns, name: pd.Series(columns[name], index=NAMED[::-1])}
    assert f"{name} has another index than X" in one_line(ValueError, PULinearClassifier().fit, frame, **other)


@pytest.mark.parametrize("name", ["X", "y", "sample_weight", "groups", "reviewed"])
def test_masked_values_are_refused(name):
    X, s, _ = planted(120, labelled=30)
    columns = {"X": X, "y": s, name: {"X": X, "y": s}.get(name, np.zeros(120))}
    columns[name] = np.ma.masked_array(columns[name], columns[name] == columns[name].flat[0])
    assert f"{name} has masked values" in one_line(ValueError, PULinearClassifier().fit, **columns)


def test_rows_of_no_group_are_refused():
    X, s, _ = planted(120, labelled=30)
    groups = np.where(np.arange(120) < 3, np.nan, 1.0)
    assert "groups has missing values" in one_line(ValueError, PULinearClassifier().fit, X, s, groups=groups)


def test_metadata_routing_passes_groups_and_weights_through_a_pipeline():
    pairs, groups = np.repeat(X, 2, axis=0), np.repeat(np.arange(len(X)), 2)
    with config_context(enable_metadata_routing=True):
        asked = PULinearClassifier(device="cpu", method="linear", penalty=0.01).set_fit_request(groups=True)
        assert clone(asked).get_metadata_routing().fit.requests == asked.get_metadata_routing().fit.requests
        pipeline = make_pipeline(StandardScaler(), asked).fit(pairs, np.repeat(S, 2), groups=groups)
        assert pipeline[-1].n_groups_ == len(X)
        with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
            make_pipeline(StandardScaler(), clone(asked)).fit(pairs, np.repeat(S, 2), sample_weight=np.ones(len(pairs)))


def test_a_classifier_that_0_4_pickled_is_refused_in_one_line():
    old = PULinearClassifier()
    with pytest.raises(ModelError, match=r"pickled by pucache 0\.4 or older; train it again"):
        old.__setstate__({"coef_": np.ones((1, 3)), "estimates_": {}})


def test_labels_of_0_4_name_what_they_are_called_now():
    with pytest.raises(LabelError, match=r"PULabels\(s, reviewed\)"):
        Labels(S, np.zeros_like(S))
