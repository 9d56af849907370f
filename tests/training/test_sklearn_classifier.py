import copy
import dataclasses
import warnings
from inspect import signature

import numpy as np
import pandas as pd
import pytest
from helpers.planted import QUICK, planted, write_cache
from helpers.refusals import one_line
from helpers.tiny import tiny_encoder
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from pucache import Labels, PULinearClassifier
from pucache.errors import LabelError, ModelError
from pucache.estimates.calibration import fit_tilt
from pucache.estimates.metrics import from_pu
from pucache.heads.risks import RISKS

pytestmark = pytest.mark.usefixtures("one_thread")
N = 240
X, S, Y = planted(N, labelled=40, apart=0.6)


def classifier(**parameters):
    """Nothing chosen or estimated but the posterior and the threshold: quick."""
    given = {"prior": 0.3, "penalty": 1e-3, "device": "cpu"}
    return PULinearClassifier(**given | {"method": "linear"} | parameters)


@pytest.fixture(scope="module")
def fitted(one_thread):
    return classifier().fit(X, S)


def same(model, other):
    """Whether two models are one, but for what they call the classes."""
    numbers = [(one.coef_.tolist(), one.threshold_, one.tilt_, one.seed_) for one in (model, other)]
    return numbers[0] == numbers[1] and model.estimates_ == other.estimates_


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
    model = classifier(penalty="auto").fit(X, s)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        posterior = model.predict_proba(X)[:, 1]
    assert [f"{labels} labelled positives" in str(one.message) for one in warned] == [True] * (labels < 30)
    likeliest = fit_tilt(model.held_out_margins_, s, prior=0.3)
    assert model.tilt_.slope < likeliest.slope
    assert posterior[s == 0].mean() < likeliest.posterior(model.margins(X)).max()


# --- fit and predict ---------------------------------------------------------------------------


def test_hidden_positives_are_found_with_nothing_given_but_the_labels():
    automatic, hidden = PULinearClassifier(device="cpu").fit(X, S), S == 0
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
    assert isinstance(rule, str) or model.threshold_ == rule


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

TEXT = ["unknown", "deer"]
CONVENTIONS = [
    *({"y": labels} for labels in (S.astype(float), S.astype(bool), 2 * S - 1, S.tolist(), S + 1)),
    {"y": 1 - S, "pos_label": 0},
    *({"y": np.array(TEXT, kind)[S], "pos_label": "deer"} for kind in (str, object)),
]


@pytest.mark.parametrize("given", CONVENTIONS, ids=lambda given: str(given["y"][:2]))
def test_each_convention_of_labels_gives_the_same_model(fitted, given):
    labels = np.asarray(given["y"])
    model = classifier(pos_label=given.get("pos_label")).fit(X, given["y"])
    assert same(model, fitted) and model.classes_[1] == labels[S == 1][0]
    predicted = model.predict(X)
    assert predicted.dtype == labels.dtype and ((predicted == labels[S == 1][0]) == (fitted.predict(X) == 1)).all()
    assert (model.predict_proba(X) == fitted.predict_proba(X)).all()
    assert model.score(X, labels) == fitted.score(X, S)


def test_the_random_state_follows_scikit_learn(fitted, tmp_path):
    assert fitted.seed_ == 0 and classifier(random_state=np.int64(7)).fit(X, S).seed_ == 7
    one, other = (classifier(random_state=np.random.RandomState(5)).fit(X, S) for _ in range(2))
    assert one.seed_ == other.seed_ and (one.held_out_margins_ == other.held_out_margins_).all()
    assert one.fit(X, S).seed_ != other.seed_, "the second fit draws on"
    np.random.seed(3)
    drawn, next_drawn = (classifier(random_state=None).fit(X, S) for _ in range(2))
    assert drawn.seed_ != next_drawn.seed_
    drawn.save(tmp_path / "model")
    assert PULinearClassifier.load(tmp_path / "model").random_state == drawn.seed_


def test_the_score_is_pauc_so_a_search_does_not_choose_the_strictest_threshold():
    grid = {"threshold": ["f1", "precision=0.99", 1e6], "penalty": [1e-3, 1e4]}
    search = GridSearchCV(classifier(), grid, cv=3).fit(X, S)
    scores = search.cv_results_["mean_test_score"].reshape(2, 3)  # by penalty, then threshold
    assert (scores == scores[:, :1]).all(), "the threshold has no part in it"
    assert search.best_params_["threshold"] == "f1"
    model = search.best_estimator_
    assert model.score(X, S) == pytest.approx(from_pu(model.margins(X), S, 0.3)["pauc"], abs=1e-9)


DEER = np.array(TEXT)[S]
BAD = [
    ({}, {"y": 0 * S}, "labels hold one class only, 0: some rows must be labelled positive"),
    ({}, {"y": 0 * S + 1}, "labels hold one class only, 1: "),
    ({}, {"y": np.arange(N) % 3}, "with 3 values"),
    ({}, {"y": DEER}, "labels are text, 'deer' and 'unknown': "),
    ({"pos_label": "cat"}, {}, "pos_label is 'cat', but the labels are 0 and 1"),
    ({}, {"sample_weight": np.where(S, 0, 1)}, "sample_weight leaves one class only"),
    ({}, {"sample_weight": np.where(S, 1, 0)}, "sample_weight leaves one class only"),
    ({}, {"groups": np.arange(N - 1)}, "expected one group for each of 240 rows"),
    ({}, {"groups": np.where(np.arange(N) < 3, np.nan, 1.0)}, "groups has missing values"),
    *(({"prior": value}, {}, "prior") for value in (0, 1.5, float("nan"), True, "auto")),
    *(({"deploy_prior": value}, {}, "deploy_prior") for value in (1, float("nan"), "0.1")),
    *(({"penalty": value}, {}, "penalty") for value in (-1, float("inf"), "strong", None)),
    *(({"target_prior": value}, {}, "target_prior") for value in (1, float("nan"))),
    *(({"n_folds": value}, {}, "n_folds") for value in (1, 2.5, "5")),
    ({"threshold": "f2"}, {}, "threshold"),
    ({"loss": "hinge"}, {}, "loss"),
    ({"method": "propagated"}, {}, "method"),
    ({"method": "distilled", "solver": "sgd"}, {}, "method"),
    ({"solver": "newton"}, {}, "solver"),
    ({"surrogate": "hinge"}, {}, "surrogate"),
    ({"surrogate": "sigmoid", "loss": "bce"}, {}, "surrogate"),
    ({"surrogate": "sigmoid", "loss": "weighted_bce"}, {}, "surrogate"),
    ({"sgd_settings": QUICK}, {}, "sgd_settings"),
]


@pytest.mark.parametrize(("parameters", "columns", "message"), BAD)
def test_what_cannot_be_trained_on_is_refused_by_name_in_one_line(parameters, columns, message):
    assert message in one_line(ValueError, classifier(**parameters).fit, **{"X": X, "y": S} | columns)


@pytest.mark.parametrize("name", ["X", "y", "sample_weight", "groups", "reviewed"])
def test_values_that_are_masked_or_have_another_index_than_x_are_refused(name):
    values, index = {"X": X, "y": S}.get(name, np.zeros(N)), [f"row{row}" for row in range(N)]
    masked = {"X": X, "y": S, name: np.ma.masked_array(values, values == values.flat[0])}
    assert f"{name} has masked values" in one_line(ValueError, classifier().fit, **masked)
    if name != "X":
        columns = {"X": pd.DataFrame(X, index), "y": S, name: pd.Series(values, index[::-1])}
        assert f"{name} has another index than X" in one_line(ValueError, classifier().fit, **columns)


def test_groups_stay_together_and_may_be_of_any_kind():
    """Every row twice: without groups the copies make noise look learnt."""
    noise, s, _ = planted(60, d=100, labelled=20, apart=0.0)
    twice, labels, group = np.tile(noise, (2, 1)), np.tile(s, 2), np.tile(np.arange(60), 2)
    named = [f"image {number:02}" for number in group]
    apart, together, by_name = (classifier(penalty=1e-6).fit(twice, labels, groups=of) for of in (None, group, named))
    assert roc_auc_score(labels, apart.held_out_margins_) > 0.8 > roc_auc_score(labels, together.held_out_margins_)
    assert same(by_name, together)


SPEC = dataclasses.replace(tiny_encoder().spec, dim=6)


@pytest.mark.parametrize("encoder", [SPEC, dataclasses.replace(SPEC, precision="bf16"), None], ids=str)
def test_the_same_encoder_fits_in_any_precision_and_bare_arrays_fit_by_length(fitted, tmp_path, encoder):
    model = copy.copy(fitted)
    model.encoder_ = encoder and SPEC
    model.check_fits(write_cache(tmp_path / "cache.h5", X, encoder=encoder))
    with pytest.raises(ModelError, match=r"holds .*imported:planted"):
        model.check_fits(write_cache(tmp_path / "cache.h5", X[:, :4]))


def test_what_was_of_0_4_is_refused_with_what_to_do():
    old = PULinearClassifier()
    with pytest.raises(ModelError, match=r"pickled by pucache 0\.4 or older; train it again"):
        old.__setstate__({"coef_": np.ones((1, 3)), "estimates_": {}})
    with pytest.raises(LabelError, match=r"PULabels\(s, reviewed\)"):
        Labels(S, np.zeros_like(S))
