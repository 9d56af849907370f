"""The formulas of benchmarks/peers, on made-up rows."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from benchmarks.peers import compare, learners, measure, ranking
from benchmarks.peers.learners import DEFAULT, ONE_FIT, WITH_SHARE, Truth
from benchmarks.quality import few_labels
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads

pytestmark = pytest.mark.slow

INSTALLED = pytest.mark.skipif(bool(learners.missing()), reason="the peers are not installed")


@pytest.fixture
def rows():
    draw = np.random.default_rng(0)
    y = draw.random(600) < 0.3
    X = (draw.standard_normal((600, 8)) + 1.2 * y[:, None]).astype(np.float16)
    s = (y & (draw.random(600) < 0.4)).astype(np.int8)
    return X, s, y


def fitted(learner, task, ap, *, f1=0.5, auc=0.5, seconds=5.0, mb=500.0):
    return {"learner": learner, "task": task, "ap": ap, "f1": f1, "auc": auc, "seconds": seconds, "mb": mb}


# --- learners ------------------------------------------------------------------------------------------


def test_features_are_standardised_as_scikit_learn_does_and_the_rows_given_stay_as_they_are(rows):
    X, before = rows[0], rows[0].copy()
    Z, prepare = learners.standardised(X)
    scaler = StandardScaler().fit(X.astype(np.float64))
    np.testing.assert_allclose(Z, scaler.transform(X.astype(np.float64)), atol=1e-4)
    np.testing.assert_allclose(prepare(X[:5] * 2), scaler.transform(X[:5].astype(np.float64) * 2), atol=1e-3)
    np.testing.assert_array_equal(X, before)


def test_the_centroid_difference_is_zero_halfway_between_the_means(rows):
    X, s, _ = rows
    score = learners.centroid_difference(X, s, Truth(0.2, 0.3))
    of_p, of_u = (X[s == value].astype(np.float64).mean(0) for value in (1, 0))
    margins, called = score(np.stack([of_p, (of_p + of_u) / 2, of_u]).astype(np.float64))
    assert margins[0] > 1 and abs(margins[1]) < 1e-3 and margins[2] < -1
    np.testing.assert_allclose(margins[0], -margins[2], rtol=1e-4)
    assert called[[0, 2]].tolist() == [1, 0]


def test_the_loop_steps_on_the_risk_that_pucache_minimises_where_it_is_not_clamped(rows):
    torch = pytest.importorskip("torch")
    _, s, _ = rows
    prior, margins = 0.15, torch.linspace(-1, 1, len(s), requires_grad=True)
    learners.imbalanced_risk(margins, torch.from_numpy(s), prior).backward()
    loss = PURisk("imbnnpu")
    positive, unlabelled = (torch.sigmoid(m[s == v]) for m, v in ((-margins.detach(), 1), (margins.detach(), 0)))
    slope_p, slope_u = -positive * (1 - positive) / len(positive), unlabelled * (1 - unlabelled) / len(unlabelled)
    of_u = (1 - loss.target_prior) / (1 - prior)
    np.testing.assert_allclose(margins.grad[s == 1], (loss.target_prior + of_u * prior) * slope_p, rtol=1e-4)
    np.testing.assert_allclose(margins.grad[s == 0], of_u * slope_u, rtol=1e-4)


def test_a_negative_part_below_zero_is_stepped_back_on_alone():
    torch = pytest.importorskip("torch")
    margins, s = torch.tensor([5.0, -5.0], requires_grad=True), torch.tensor([1, 0])
    risk = learners.imbalanced_risk(margins, s, 0.5)
    of_p, of_u = torch.sigmoid(torch.tensor([5.0, -5.0]))
    assert risk.item() == pytest.approx(float(0.5 * of_p - of_u))
    risk.backward()
    assert margins.grad[0] > 0 and margins.grad[1] < 0  # the step lowers the margin of P, raises that of U


def test_the_loop_reaches_what_the_same_risk_reaches_by_the_other_solver(rows, monkeypatch):
    X, s, y = rows
    monkeypatch.setattr(learners, "RATE", 0.05)
    monkeypatch.setattr(learners, "EPOCHS", 30)
    prior = float(y[s == 0].mean())
    margins, called = learners.loader_loop(X, s, Truth(prior, 0.3))(X)
    other = fit_heads(X, s, prior=prior, risk=PURisk("imbnnpu")).margins(X)[:, 0]
    assert roc_auc_score(y, margins) == pytest.approx(roc_auc_score(y, other), abs=0.03)
    np.testing.assert_array_equal(called, margins > 0)


def test_pucache_is_given_the_share_only_where_its_name_says_so(rows):
    X, s, _ = rows
    plain, shifted = (
        learners.ours(with_share=share, penalty=1e-3)(X, s, Truth(0.2, 0.9))(X)[1].mean() for share in (False, True)
    )
    again = learners.ours(penalty=1e-3)(X, s, Truth(0.7, 0.1))(X)[1].mean()
    assert plain == again and shifted > plain


@INSTALLED
@pytest.mark.filterwarnings("ignore")  # the peers' own
@pytest.mark.parametrize("name", [name for name, of in learners.PEERS.items() if of.pace in ("quick", "fast")])
def test_every_fast_learner_ranks_and_decides(rows, name):
    X, s, y = rows
    margins, called = learners.LEARNERS[name].fit(X, s, Truth(float(y[s == 0].mean()), 0.3))(X)
    assert roc_auc_score(y, margins) > 0.9
    assert set(called.tolist()) <= {0, 1}


def test_the_penalty_of_a_careful_user_is_chosen_without_the_truth(rows):
    X, s, y = rows
    margins, _ = learners.cross_validated_logistic()(X, s, Truth(0.2, 0.3))(X)
    plain = LogisticRegression(C=1, class_weight="balanced").fit(X.astype(np.float32), s)
    assert roc_auc_score(y, margins) >= roc_auc_score(y, plain.decision_function(X.astype(np.float32))) - 0.01


# --- what is measured ------------------------------------------------------------------------------------


def test_ap_is_of_the_unlabelled_and_f1_and_auc_of_the_test_rows():
    by_first = lambda X: (X[:, 0], (X[:, 0] > 2).astype(int))  # noqa: E731
    X, X_test = np.array([[3.0], [2], [1]]), np.array([[4.0], [3], [1]])
    found = measure.quality(by_first, X, np.array([True, False, True]), X_test, np.array([False, True, True]))
    assert found == pytest.approx({"ap": (1 + 2 / 3) / 2, "f1": 0.5, "auc": 0.0})


def test_the_peak_is_of_the_fit_alone():
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("Linux alone tells a process its peak")
    before = measure.forget_peak()
    assert measure.memory("VmHWM") - before < 30
    held = np.ones(60 << 20, np.uint8)
    assert measure.memory("VmHWM") - before > 50
    del held
    before = measure.forget_peak()
    assert measure.memory("VmHWM") - before < 30


def test_the_ceiling_is_never_below_a_head_of_the_labelled_ones(rows):
    X, s, y = rows
    found = few_labels.ceiling(X, s, y, X, y)
    plain = fit_heads(X, s, risk=PURisk("weighted_bce"), penalty=1e-3).margins(X)[:, 0]
    assert found["auc"] >= roc_auc_score(y, plain) - 1e-3
    assert found["best_f1"] >= few_labels.best_f1(y, plain) - 1e-2


# --- ranking --------------------------------------------------------------------------------------------


def test_bare_faiss_gives_the_cosines_that_it_is_named_after(rows):
    X, s, _ = rows
    Z = X.astype(np.float64) / np.linalg.norm(X.astype(np.float64), axis=1, keepdims=True)
    every = Z[s == 0] @ Z[s == 1].T
    np.testing.assert_allclose(ranking.nearest_positive(X, s), every.max(1), atol=1e-5)
    mean = Z[s == 1].mean(0)
    np.testing.assert_allclose(ranking.mean_positive(X, s), Z[s == 0] @ (mean / np.linalg.norm(mean)), atol=1e-5)


def test_precision_is_told_at_as_many_as_are_hidden():
    scores = np.arange(2000, 0, -1.0)
    hidden = (np.arange(2000) < 100) | (np.arange(2000) >= 1900)
    found = ranking.ranking_figures(hidden, scores)
    assert found["P@100"] == 1 and found["P@1000"] == 0.1 and found["P@hidden"] == 0.5


# --- the page ---------------------------------------------------------------------------------------------


def test_a_row_compares_on_the_tasks_of_the_peer_and_marks_where_it_is_ahead():
    name = "centroid difference"
    fits = [fitted(own, task, ap) for own in (DEFAULT, WITH_SHARE, ONE_FIT) for task, ap in (("a", 0.5), ("b", 0.9))]
    fits += [{"learner": name, "task": "a", "failed": "so"}, fitted(name, "b", 0.4, f1=0.5004, auc=0.6, seconds=1)]
    *_, row = compare.learner_rows(fits)
    assert row[:-1] == [name, "b", "0.400 / 0.900", "0.500 / 0.500", "**0.600** / 0.500", "**1** / 5", "500 / 500"]
    assert compare.learner_rows(fits)[0][2] == "0.700"


def test_a_row_has_means_of_quality_the_median_of_seconds_and_the_maximum_of_memory():
    fits = [fitted("x", task, ap, seconds=t, mb=t) for task, ap, t in (("a", 0.2, 1), ("b", 0.4, 2), ("c", 0.9, 9))]
    found = compare.summary(fits)
    assert (found["ap"], found["seconds"], found["mb"]) == (pytest.approx(0.5), 2, 9)


def test_a_learner_that_fails_is_told_with_its_last_line(tmp_path):
    assert "No such file" in compare.fit("centroid difference", tmp_path / "missing.npz")["failed"]


def test_slow_learners_take_one_task_and_quick_runs_only_the_quickest():
    tasks = dict.fromkeys(compare.ALL)
    of = {name: [] for name in learners.LEARNERS}
    for one in compare.fits_wanted(tasks, quick=False):
        of[one["learner"]].append(one["task"])
    assert {learners.LEARNERS[name].pace: len(found) for name, found in of.items()} == {
        "quick": 3,
        "fast": 3,
        "slow": 1,
        "slowest": 1,
    }
    quick = {one["learner"] for one in compare.fits_wanted(tasks, quick=True)}
    assert quick == {name for name, learner in learners.LEARNERS.items() if learner.pace == "quick"}


def test_no_name_would_break_a_row_of_the_table():
    assert not [name for name, of in learners.LEARNERS.items() if "|" in name + of.work + of.oracle]
