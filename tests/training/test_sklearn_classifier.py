import dataclasses
import pickle

import numpy as np
import pytest
from helpers.planted import QUICK, planted, write_cache
from helpers.slow import slow
from helpers.tiny import tiny_encoder
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pucache.encoders.spec import EncoderSpec
from pucache.errors import ModelError
from pucache.heads.minibatch import SGDSettings
from pucache.heads.risks import RISKS
from pucache.training.sklearn_classifier import PULinearClassifier

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
    arrays = [(array.dtype, array.tolist()) for array in (model.coef_, model.classes_)]
    names = "intercept_ threshold_ prior_ prior_estimate_ share_ penalty_ tilt_ estimates_ n_labelled_ n_unlabelled_"
    names += " method_" + " neighbours_" * neighbours
    rest = {name: getattr(model, name) for name in [*names.split(), "n_features_in_", "encoder_"]}
    return arrays, rest, model.get_params()


# --- scikit-learn ------------------------------------------------------------------------------


def expected_failures(_):
    return {"check_sample_weight_equivalence_on_dense_data": "cross-fitting deals rows into folds, not weights"}


@parametrize_with_checks(
    [PULinearClassifier(device="cpu", n_folds=3, method="linear")],
    expected_failed_checks=expected_failures,
    xfail_strict=True,
)
def test_scikit_learn_s_own_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [PULinearClassifier(device="cpu", n_folds=3)], expected_failed_checks=expected_failures, xfail_strict=True
)
def test_scikit_learn_s_own_checks_where_the_method_is_chosen(estimator, check):
    check(estimator)


def test_a_clone_is_unfitted_and_has_the_same_parameters(fitted):
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params() and not hasattr(copy, "coef_")
    assert copy.set_params(prior=0.1, seed=3).get_params() == fitted.get_params() | {"prior": 0.1, "seed": 3}


def test_a_pickled_model_is_the_same_model(automatic):
    copy = pickle.loads(pickle.dumps(automatic))
    assert state(copy) == state(automatic) and (copy.predict_proba(X) == automatic.predict_proba(X)).all()


@pytest.mark.slow
def test_it_works_in_a_pipeline_and_in_cross_validation():
    pipeline = make_pipeline(StandardScaler(), classifier())
    assert (pipeline.fit(X, S).predict(X) == Y).mean() > 0.85
    margins = cross_val_predict(pipeline, X, S, cv=3, method="decision_function")
    posterior = cross_val_predict(pipeline, X, S, cv=3, method="predict_proba")
    assert roc_auc_score(Y[S == 0], margins[S == 0]) > 0.95 and posterior.shape == (N, 2)
    assert roc_auc_score(Y[S == 0], posterior[S == 0, 1]) > 0.92  # of three models, each calibrated for itself


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


def test_a_given_prior_is_kept_and_not_estimated(fitted):
    assert fitted.prior_ == fitted.share_ == fitted.tilt_.prior == 0.3 and fitted.prior_estimate_ is None
    estimate = classifier(prior=None).fit(X, S).prior_estimate_
    assert estimate.has_interval and estimate.low < estimate.prior < estimate.high


def test_the_default_risk_has_one_minimiser_whatever_the_prior(fitted):
    other = classifier(prior=0.05).fit(X, S)
    cosine = other.coef_ @ fitted.coef_ / np.linalg.norm(other.coef_) / np.linalg.norm(fitted.coef_)
    assert cosine > 0.9999 and other.threshold_ != fitted.threshold_


@pytest.mark.parametrize("loss", RISKS)
@pytest.mark.parametrize(
    "more", [{"prior": None}, {"solver": "sgd", "sgd_settings": QUICK, "penalty": "auto"}], ids=str
)
def test_every_loss_ranks_the_planted_positives(loss, more):
    model = classifier(loss=loss, **more).fit(X, S)
    assert roc_auc_score(Y[S == 0], model.decision_function(X[S == 0])) > 0.9
    assert 0.1 < model.prior_ < 0.5 and 0 < model.predict(X).sum() < N
    assert model.penalty_ == (0.0 if "solver" in more else 1e-3)


@pytest.mark.parametrize("rule", ["f1", "precision=0.9", "precision=0.99", "recall=0.9", "recall=0.5", -1.0, 0.0, 2])
def test_a_row_is_called_positive_where_its_margin_is_above_the_threshold(fitted, rule):
    model = clone(fitted).set_params(threshold=rule).fit(X, S)
    decision, predicted, probabilities = model.decision_function(X), model.predict(X), model.predict_proba(X)
    assert decision.shape == predicted.shape == (N,) and probabilities.shape == (N, 2)
    assert decision.dtype == np.float32 and predicted.dtype == S.dtype
    np.testing.assert_allclose(model.margins(X), X @ model.coef_ + model.intercept_, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(decision, model.margins(X) - model.threshold_, rtol=1e-4, atol=1e-4)
    assert (predicted == (decision > 0)).all() and 0 < predicted.sum() < N
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_allclose(probabilities[:, 1], model.posterior(model.margins(X)), rtol=1e-4, atol=1e-7)
    assert (np.diff(probabilities[np.argsort(decision), 1]) >= 0).all()
    if not isinstance(rule, str):
        assert model.threshold_ == rule


def test_the_rules_of_the_threshold_hold_on_the_truth():
    rows, s, y = planted(3000, labelled=300, apart=0.4)
    u, thresholds = s == 0, {}
    for rule in ("precision=0.9", "recall=0.9", "recall=0.5", "f1"):
        model = classifier(threshold=rule, penalty=1e-2).fit(rows, s)
        thresholds[rule] = model.threshold_
        called = model.predict(rows[u]) == 1
        reached = {"precision": y[u][called].mean(), "recall": called[y[u] == 1].mean()}
        kind, _, target = rule.partition("=")
        if target:
            assert reached[kind] == pytest.approx(float(target), abs=0.05), rule
    assert thresholds["recall=0.9"] < thresholds["f1"] < thresholds["precision=0.9"]
    assert thresholds["recall=0.9"] < thresholds["recall=0.5"]


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


def test_where_no_hidden_positive_is_expected_the_share_is_that_among_all_rows():
    few = classifier(prior=0.004).fit(X, S)  # 0.8 of 200
    assert few.share_ == pytest.approx(40 / N + (1 - 40 / N) * 0.004)
    assert few.posterior(np.array([few.threshold_]))[0] == pytest.approx(0.5)
    assert classifier(prior=0.006).fit(X, S).share_ == 0.006  # 1.2 of 200
    assert classifier(prior=0.004, deploy_prior=0.1).fit(X, S).share_ == 0.1


# --- labels, rows and weights ------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [S, S.astype(float), S.astype(bool), 2 * S - 1, S.tolist(), np.array(["no", "yes"])[S], S + 1],
    ids=["int8", "float", "bool", "-1/1", "list", "text", "12"],
)
def test_each_convention_of_labels_gives_the_same_model(fitted, labels):
    model = classifier().fit(X, labels)
    (coef, classes), rest, parameters = state(model)
    assert (coef, rest, parameters) == (state(fitted)[0][0], *state(fitted)[1:])
    assert classes[1] == np.unique(labels).tolist()
    predicted = model.predict(X)
    assert predicted.dtype == np.asarray(labels).dtype
    assert ((predicted == max(labels)) == (fitted.predict(X) == 1)).all()


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
        (X[:0], S[:0], r"0 sample\(s\)"),
        (X[:, :0], S, r"0 feature\(s\)"),
        (np.full((N, 2), "a"), S, "could not convert string"),
        (X + 1j, S, "Complex data not supported"),
        (X, np.where(np.arange(N), S, np.nan), "NaN"),
        (X, np.stack([S, S], 1), "1d array"),
        (X, S + np.linspace(0, 0.1, N), "Unknown label type"),
        (X, 0 * S, "labels hold one class only, 0: some rows must be labelled positive"),
        (X, 0 * S + 1, "labels hold one class only, 1: .* some unlabelled"),
        (X, np.arange(N) % 3, "Only binary classification is supported.*with 3 values"),
    ],
)
def test_rows_and_labels_that_cannot_be_trained_on_are_refused(bad, labels, message):
    with pytest.raises(ValueError, match=message):
        classifier().fit(bad, labels)


@pytest.mark.parametrize(
    "bad",
    [
        *({"prior": value} for value in (0, 1, -0.2, 1.5, float("nan"), True, "auto")),
        *({"deploy_prior": value} for value in (0, 1, 2, float("nan"), "0.1")),
        *({"penalty": value} for value in (-1, float("nan"), float("inf"), "strong", None)),
        *({"target_prior": value} for value in (0, 1, float("nan"))),
        *({"n_folds": value} for value in (1, 0, 2.5, "5")),
        *({"seed": value} for value in (-1, None, 0.5)),
        *({"threshold": value} for value in ("f2", "precision=2", "recall=", None, float("nan"))),
        {"loss": "hinge"},
        {"solver": "newton"},
        {"surrogate": "hinge"},
        {"surrogate": "sigmoid", "loss": "bce"},
        {"device": "abacus"},
        {"sgd_settings": QUICK},
    ],
    ids=str,
)
def test_a_parameter_outside_its_domain_is_refused_by_name_in_one_line(bad):
    with pytest.raises(ValueError, match=next(iter(bad))) as caught:
        classifier(**bad).fit(X, S)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [X[:, :-1], changed(np.nan), X[0], X[:0]], ids=["dims", "NaN", "1D", "none"])
@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_rows_that_do_not_fit_the_model_are_refused(fitted, method, bad):
    with pytest.raises(ValueError):
        getattr(fitted, method)(bad)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function", "save"])
def test_an_unfitted_model_says_so(method, tmp_path):
    with pytest.raises(NotFittedError):
        getattr(classifier(), method)(tmp_path / "m" if method == "save" else X)


@pytest.mark.parametrize("factor", [2.0**-30, 2.0**-20, 2.0**20, 2.0**40], ids="{:.0e}".format)
def test_a_power_of_two_on_every_row_changes_next_to_nothing(fitted, factor):
    scaled = X * np.float32(factor)
    model = classifier().fit(scaled, S)
    spread = fitted.decision_function(X).std()
    np.testing.assert_allclose(model.decision_function(scaled), fitted.decision_function(X), atol=1e-2 * spread)


def test_the_type_and_home_of_the_rows_do_not_matter(tmp_path):
    half = X.astype(np.float16)
    np.save(tmp_path / "X.npy", half)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    model = classifier().fit(half.astype(np.float32), S)
    for same in (half, mapped, np.asfortranarray(half), half.astype(np.float64), half.tolist()):
        of_same = classifier().fit(same, S)
        assert state(of_same, neighbours=False) == state(model, neighbours=False)
        np.testing.assert_allclose(of_same.neighbours_.evidence.total, model.neighbours_.evidence.total, atol=1e-3)
        assert (model.decision_function(same) == model.decision_function(half)).all()


def test_training_leaves_the_caller_s_arrays_alone_and_repeats_exactly(automatic):
    rows, labels, weights = X.copy(), S.copy(), np.linspace(1, 2, N)
    classifier().fit(rows, labels, sample_weight=weights)
    assert (rows == X).all() and (labels == S).all() and (weights == np.linspace(1, 2, N)).all()
    assert state(clone(automatic).fit(X, S)) == state(automatic)


def test_a_row_s_margin_does_not_depend_on_its_company(fitted):
    alone = np.concatenate([fitted.decision_function(row[None]) for row in X[:50]])
    assert (alone == fitted.decision_function(X)[:50]).all()


def test_rows_all_alike_say_nothing_and_constant_features_do_no_harm(fitted):
    for value in (0, 7):
        model = classifier().fit(np.full((20, 3), value, np.float32), np.arange(20) < 5)
        assert model.predict_proba(np.full((1, 3), value))[0, 1] == pytest.approx(0.3, abs=1e-3)
        assert np.isfinite(model.decision_function(np.ones((2, 3)))).all()
    wider = np.column_stack([X, np.full(N, 100, np.float32)])
    model = classifier().fit(wider, S)
    assert (model.predict(wider) == fitted.predict(X)).mean() > 0.98 and abs(model.coef_[-1]) < 1e-2


@pytest.mark.parametrize("parameters", [{}, {"prior": None, "penalty": "auto", "seed": 3}, {"loss": "nnpu"}], ids=str)
@pytest.mark.parametrize("labelled, unlabelled", [(1, 50), (50, 1), (1, 1), (2, 2), (3, 100)])
def test_few_rows_of_a_kind_are_enough(labelled, unlabelled, parameters):
    rows, s, _ = planted(labelled + unlabelled, labelled=labelled)
    model = classifier(**parameters).fit(rows, s)
    assert (model.n_labelled_, model.n_unlabelled_) == (labelled, unlabelled)
    assert np.isfinite(model.decision_function(rows)).all() and np.isfinite(model.predict_proba(rows)).all()
    assert 0 < model.prior_ < 1 and 0 < model.share_ < 1


def test_estimates_are_of_rows_the_heads_did_not_see():
    noise, s, _ = planted(60, d=200, labelled=20, apart=0.0)  # more features than rows: seen rows fit perfectly
    model = classifier(penalty=1e-6).fit(noise, s)
    assert roc_auc_score(s, model.decision_function(noise)) > 0.95 and roc_auc_score(s, model.held_out_margins_) < 0.75


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


def test_equal_weights_are_no_weights_and_their_scale_within_a_kind_does_not_train_otherwise(fitted):
    assert state(classifier().fit(X, S, sample_weight=np.full(N, 7))) == state(fitted)
    weights = np.random.default_rng(0).uniform(0.1, 2, N)
    for method, tolerance in (("linear", 1e-3), ("distilled", 0.1)):  # the latter is coarsely trained, three times
        first, scaled = (classifier(method=method).fit(X, S, sample_weight=weights * np.where(S, k, 1)) for k in (1, 8))
        np.testing.assert_allclose(scaled.margins(X), first.margins(X), atol=tolerance * first.margins(X).std())
    assert np.abs(first.coef_ - fitted.coef_).max() > 0.01


def test_rows_without_weight_have_no_part_in_the_head_or_the_tilt():
    """They do in scaling X, dealing folds, the threshold and the estimates: these go by rows, not by weight."""
    y = S.copy()
    wrong = np.flatnonzero((Y == 0) & (S == 0))[:40]
    y[wrong] = 1
    weights = np.ones(N)
    weights[wrong] = 0
    options = {"threshold": 0.0, "prior": None, "n_folds": 4}
    kept = np.delete(np.arange(N), wrong)
    clean = classifier(**options).fit(X[kept], y[kept])
    weighted = classifier(**options).fit(X, y, sample_weight=weights)
    spoilt = classifier(**options).fit(X, y)

    def cosine(model):
        return model.coef_ @ clean.coef_ / np.linalg.norm(model.coef_) / np.linalg.norm(clean.coef_)

    assert cosine(weighted) > 0.99 > cosine(spoilt)
    assert weighted.prior_ == pytest.approx(clean.prior_, abs=0.05)


@pytest.mark.parametrize(
    "weights, message",
    [
        (np.where(S, 0, 1), "sample_weight leaves one class only"),
        (np.where(S, 1, 0), "sample_weight leaves one class only"),
        (-np.ones(N), "[Nn]egative"),
        (np.full(N, np.nan), "NaN"),
        (np.ones(N - 1), "sample_weight.shape"),
    ],
    ids=["no P", "no U", "negative", "NaN", "short"],
)
def test_weights_that_cannot_be_trained_with_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        classifier().fit(X, S, sample_weight=weights)


# --- the file ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"prior": None, "penalty": "auto", "threshold": "precision=0.9", "deploy_prior": 0.1},
        {"prior": 0.25, "threshold": -0.3, "seed": 5, "loss": "nnpu", "n_folds": 3, "surrogate": "logistic"},
        {"prior": np.float32(0.25), "seed": np.int64(3), "threshold": np.float64(0.1), "target_prior": np.float16(0.5)},
        {
            "solver": "sgd",
            "sgd_settings": SGDSettings(epochs=2, min_steps=np.int32(9), batch_size=50, learning_rate=0.02),
        },
    ],
    ids=["plain", "automatic", "many", "numpy scalars", "protocol"],
)
@pytest.mark.parametrize("encoder", [slow(None), slow(EncoderSpec.imported("é", 6)), tiny_encoder().spec], ids=str)
def test_a_saved_model_comes_back_the_same(tmp_path, parameters, encoder):
    model = classifier(**parameters).fit(X[:60], np.arange(60) < 20)
    model.encoder_ = encoder
    path = tmp_path / "folder" / "model.safetensors"
    model.save(path)
    loaded = PULinearClassifier.load(str(path))
    assert state(loaded) == state(model)
    for method in ("margins", "decision_function", "predict_proba", "predict"):
        here, there = getattr(model, method)(X), getattr(loaded, method)(X)
        assert here.dtype == there.dtype and here.tobytes() == there.tobytes()
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_a_loaded_model_can_be_trained_again(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    assert state(PULinearClassifier.load(tmp_path / "model").fit(X, S)) == state(fitted)


def test_training_twice_writes_the_same_bytes(automatic, tmp_path):
    for number, model in enumerate((automatic, clone(automatic).fit(X, S))):
        model.save(tmp_path / str(number))
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()


# --- whose embeddings --------------------------------------------------------------------------


SPEC = dataclasses.replace(tiny_encoder().spec, dim=6)


@pytest.mark.parametrize("field, value", [("name", "other"), ("weights", "f" * 64), ("input_size", (64, 64))])
def test_a_cache_of_another_encoder_is_refused_and_both_are_named(fitted, tmp_path, field, value):
    model = pickle.loads(pickle.dumps(fitted))
    model.encoder_ = SPEC
    cache = write_cache(tmp_path / "cache.h5", X, encoder=dataclasses.replace(SPEC, **{field: value}))
    with pytest.raises(ModelError) as caught:
        model.check_fits(cache)
    for named in (str(SPEC), str(cache.encoder), cache.name, f"differ in {field}"):
        assert named in str(caught.value)


@pytest.mark.parametrize("encoder", [SPEC, dataclasses.replace(SPEC, precision="bf16"), None], ids=str)
def test_the_same_encoder_fits_in_any_precision_and_bare_arrays_fit_by_length(fitted, tmp_path, encoder):
    model = pickle.loads(pickle.dumps(fitted))
    model.encoder_ = encoder and SPEC
    model.check_fits(write_cache(tmp_path / "cache.h5", X, encoder=encoder))


def test_a_model_of_bare_arrays_refuses_rows_of_another_length(fitted, tmp_path):
    with pytest.raises(ModelError, match=r"expects 6-d rows; .* holds imported:planted"):
        fitted.check_fits(write_cache(tmp_path / "cache.h5", X[:, :4]))
