"""The formulas of benchmarks/peers/compare.py and the modules it is made of, on made-up rows."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from benchmarks.peers import bare, extent, learners
from benchmarks.peers import compare as peers
from benchmarks.peers import page as peers_page
from benchmarks.peers.learners import DEFAULT, ONE_FIT, SIGHT, WITH_SHARE, Learner, Truth
from benchmarks.peers.verdicts import FIGURES, Side, behind, verdict
from benchmarks.quality import suite
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


def figures(ap, *, f1=0.5, auc=0.5, seconds=5.0, mb=500.0):
    return dict(zip(FIGURES, (ap, f1, auc, seconds, mb), strict=True))


def sides(peer, own, *, with_share=None, one=None):
    """Each a list of figures, one a task."""
    named = {"peer": peer, DEFAULT: own, WITH_SHARE: with_share or own, ONE_FIT: one or own}
    return {name: Side(dict(zip("abcd", cells, strict=False))) for name, cells in named.items()}


def said(of, name="peer", **options):
    return verdict(name, Learner(None, "two means", **options), of)


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
    found = peers.quality(by_first, X, np.array([True, False, True]), X_test, np.array([False, True, True]))
    assert found == pytest.approx({"ap": (1 + 2 / 3) / 2, "f1": 0.5, "auc": 0.0})


def test_the_peak_is_of_the_fit_alone():
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("Linux alone tells a process its peak")
    before = peers.forget_peak()
    assert peers.memory("VmHWM") - before < 30
    held = np.ones(60 << 20, np.uint8)
    assert peers.memory("VmHWM") - before > 50
    del held
    before = peers.forget_peak()
    assert peers.memory("VmHWM") - before < 30


def test_what_a_learner_raises_is_told_of_its_task(tmp_path):
    def refuse(X, s, truth):
        raise ValueError(f"prior {truth.prior:g}, share {truth.share:g}")

    s, y = np.array([1, 0, 0], np.int8), np.array([True, True, False])
    np.savez(tmp_path / "task.npz", X=np.zeros((3, 2), np.float16), s=s, y=y, X_test=np.zeros((2, 2)), y_test=y[1:])
    found = peers.on_task(Learner(refuse, "nothing"), tmp_path / "task.npz")
    assert found == {"failed": "ValueError: prior 0.5, share 0.5"}
    text = peers_page.failures({"peer": {"1:10": found, "cat": figures(0.5)}})
    assert text == ["- peer, 1:10: ValueError: prior 0.5, share 0.5"]


def test_the_slow_ones_are_run_on_fewer_tasks_and_not_at_all_where_it_should_be_quick():
    of = {learner.pace: len(extent.FULL.of(name)) for name, learner in learners.LEARNERS.items()}
    assert of == {"quick": 6, "fast": 6, "slow": 3, "slowest": 1}
    assert {name for name in learners.LEARNERS if extent.QUICK.of(name)} == {
        name for name, learner in learners.LEARNERS.items() if learner.pace == "quick"
    }
    assert extent.SHORT.without(extent.FOOTWEAR).of(DEFAULT) == ("1:10", "truck")
    assert extent.FULL.of(extent.CEILING) == extent.ALL and not extent.QUICK.of(extent.CEILING)


def test_seconds_under_load_stand_beside_those_alone_where_neither_failed():
    alone = {"a": {"1:10": figures(0.5, seconds=2)}, "b": {"1:10": {"failed": "so"}}}
    loaded = {"a": {"1:10": figures(0.5, seconds=3)}, "b": {"1:10": figures(0.5, seconds=3)}}
    assert peers_page.loaded_rows(alone, loaded) == [["a", "2", "3", "1.50"]]
    assert peers_page.loaded_rows({}, loaded) == []  # cut off before
    assert peers_page.beside(alone, {}) == []


def test_busy_processes_end():
    with peers.busy(1):
        pass
    with pytest.raises(RuntimeError), peers.busy(2):
        raise RuntimeError


def test_the_ceiling_is_never_below_a_head_of_the_labelled_ones(rows):
    X, s, y = rows
    found = suite.ceiling(X, s, y, X, y)
    plain = fit_heads(X, s, risk=PURisk("weighted_bce"), penalty=1e-3).margins(X)[:, 0]
    assert found["auc"] >= roc_auc_score(y, plain) - 1e-3
    assert found["best_f1"] >= suite.best_f1(y, plain) - 1e-2


# --- ranking and embedding --------------------------------------------------------------------------------


def test_bare_faiss_gives_the_cosines_that_it_is_named_after(rows):
    X, s, _ = rows
    Z = X.astype(np.float64) / np.linalg.norm(X.astype(np.float64), axis=1, keepdims=True)
    every = Z[s == 0] @ Z[s == 1].T
    np.testing.assert_allclose(bare.nearest_positive(X, s), every.max(1), atol=1e-5)
    mean = Z[s == 1].mean(0)
    np.testing.assert_allclose(bare.mean_positive(X, s), Z[s == 0] @ (mean / np.linalg.norm(mean)), atol=1e-5)


def test_precision_is_told_at_as_many_as_are_hidden():
    scores = np.arange(2000, 0, -1.0)
    hidden = (np.arange(2000) < 100) | (np.arange(2000) >= 1900)
    found = bare.ranking_figures(hidden, scores)
    assert found["P@100"] == 1 and found["P@1000"] == 0.1 and found["P@hidden"] == 0.5


def test_cosines_are_of_row_with_row():
    A = np.array([[1.0, 0], [1, 1]], np.float32)
    np.testing.assert_allclose(bare.cosines(A, np.array([[0, 3.0], [2, 2]])), [0, 1], atol=1e-7)


# --- verdicts ---------------------------------------------------------------------------------------------


def test_first_is_said_only_where_nothing_is_behind():
    assert said(sides([figures(0.4, seconds=9, mb=900)], [figures(0.5)])) == "first"
    assert said(sides([figures(0.5004, seconds=9, mb=900)], [figures(0.5)])) == "first"  # the same on the page
    assert said(sides([figures(0.4, auc=0.6, seconds=9, mb=900)], [figures(0.5)])) == "AUC: ahead by 0.100, on 1 of 1"


def test_a_cheaper_peer_stands_beside_the_least_that_pucache_takes():
    peer, own = [figures(0.4, seconds=1, mb=200)], [figures(0.5, seconds=5, mb=500)]
    text = said(sides(peer, own, one=[figures(0.5, seconds=2, mb=100)]))
    assert text == f"seconds: two means ({ONE_FIT}: 2, not less); MB: 300 less ({ONE_FIT}: 100, less)"


def test_a_lead_is_counted_over_the_tasks_of_the_peer_alone():
    peer = [figures(0.9, seconds=9, mb=900), figures(0.4, seconds=9, mb=900)]
    own = [figures(0.5), figures(0.5), figures(1.0)]
    assert said(sides(peer, own)) == "AP: ahead by 0.150, on 1 of 2"


def test_what_a_peer_was_given_stands_by_its_lead():
    of = sides([figures(0.6, seconds=9, mb=900)], [figures(0.5)])
    assert said(of, oracle="the true prior") == "AP: ahead by 0.100, on 1 of 1, given the true prior"
    name = "peer" + SIGHT
    text = said(of | {name: of["peer"]}, name)
    assert text == "AP: ahead by 0.100, on 1 of 1, at a C chosen with true labels"


@pytest.mark.parametrize(("f1", "comparison"), [(0.9, "not behind"), (0.6, "behind")])
def test_a_lead_in_f1_stands_beside_pucache_with_the_share(f1, comparison):
    of = sides([figures(0.4, f1=0.7, seconds=9, mb=900)], [figures(0.5)], with_share=[figures(0.5, f1=f1)])
    assert said(of) == f"F1: ahead by 0.200, on 1 of 1 (pucache with the test set's share: {f1:.3f}, {comparison})"


def test_a_side_tells_means_median_and_maximum():
    side = Side({name: figures(ap, seconds=t, mb=t) for name, ap, t in (("a", 0.2, 1), ("b", 0.4, 2), ("c", 0.9, 9))})
    assert (side["ap"], side["seconds"], side["mb"]) == (pytest.approx(0.5), 2, 9)
    assert not behind("ap", side, side)


def test_no_name_would_break_a_row_of_the_table():
    assert not [name for name, of in learners.LEARNERS.items() if "|" in name + of.work + of.oracle]


# --- the page ---------------------------------------------------------------------------------------------


def test_a_row_compares_on_the_tasks_of_the_peer():
    name = "centroid difference"
    cells = {own: {"a": figures(0.5), "b": figures(0.9)} for own in (DEFAULT, WITH_SHARE, ONE_FIT)}
    cells[name] = {"a": {"failed": "so"}, "b": figures(0.4, seconds=9, mb=900)}
    *_, row = peers_page.learner_rows(cells)
    assert row[:3] == [name, "b", "0.400 / 0.900"] and row[-1] == "first"
    assert peers_page.learner_rows(cells)[0][2] == "0.700"


def test_the_quickest_ranking_is_named_with_what_it_loses():
    rows = [{"way": "good", "AP": 0.9, "seconds": 2.0}, {"way": "quick", "AP": 0.7, "seconds": 0.1}]
    assert peers_page.ranking_remark(rows) == (
        "First in AP: good (0.900). Quickest: quick (0.1 s), with an AP lower by 0.200."
    )
    assert peers_page.ranking_remark(rows[:1]) == "First in AP: good (0.900). Quickest: good (2 s)."
