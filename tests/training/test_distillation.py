from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.neighbourhoods import clusters, cut_across, dense_weights, random_graph
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit

from pucache import PULinearClassifier
from pucache.estimates.calibration import Tilt, fit_tilt
from pucache.estimates.review_weights import TrainingLabels
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.linear_heads import FittedHeads
from pucache.heads.solve import fit_heads
from pucache.labels.folds import assign_folds
from pucache.training import distillation, neighbour_evidence
from pucache.training.cross_fitting import CrossFitter
from pucache.training.distillation import DistillationRows, distil, penalty_of
from pucache.training.neighbour_evidence import WEIGHT, NeighbourEvidence, halves_of, held_out_gain
from pucache.training.propagation import ChainLabels, propagate

pytestmark = pytest.mark.usefixtures("one_thread")
N, FOLDS, CPU = 300, 3, torch.device("cpu")
X, S, Y = clusters(N, d=12, labelled=24, kinds=4, apart=0.8)
FOLD = assign_folds(S, FOLDS, 0, None)
REVIEWED = np.where((np.cumsum(S == 0) % 5 == 1) & (S == 0), 2 * Y - 1, 0).astype(np.int8)  # every fifth unlabelled row
GRAPH = random_graph(N, k=8, among=Y)
AGREEMENT = 9.0  # neighbours count
NOISY = random_graph(N, k=8, among=Y ^ (np.random.default_rng(0).random(N) < 0.25))  # no target is sure


class Start:
    """The classifier and its cross-fit, from which a distillation starts."""

    def __init__(self):
        self.labels = labels = TrainingLabels.of(S)
        self.design = DesignMatrix(X, labels.training_s, None, CPU)
        of_folds = CrossFitter(self.design, labels, FOLD[:, None]).fit((1e-3,))[0][0]
        head = fit_heads(self.design, penalty=1e-3, prior=0.5)
        self.linear = replace(of_folds, heads=of_folds.heads.joined(head))
        self.tilt = fit_tilt(self.linear.margins, labels.s, labels.weights)

    def rows(self, **changes):
        whole = DistillationRows(rows=None, design=self.design, labels=self.labels, fold=FOLD, graph=GRAPH)
        return replace(whole, **changes)

    def distil(self, sampled=None, agreement=AGREEMENT):
        sampled = sampled or self.rows()
        positives = int(sampled.labels.training_s.sum())
        return distil(sampled, self.design, self.linear, self.tilt, agreement, positives)


@pytest.fixture(scope="module")
def start(one_thread):
    return Start()


# --- what is distilled ---------------------------------------------------------------------------


def test_scores_with_neighbours_are_margins_and_log_odds_of_the_neighbours(start):
    distilled = start.distil()
    margins, lift = distilled.margins, (distilled.scores - distilled.margins) / 2
    assert margins.dtype == np.float32 and margins.shape == (N,) and distilled.head.coef.shape == (1, 12)
    assert lift[(S == 0) & (Y == 1)].mean() > lift[Y == 0].mean() + 1 and np.abs(lift).max() < 7
    assert (start.distil(agreement=0.0).scores == start.linear.margins).all(), "neighbours do not count"


# --- honesty -------------------------------------------------------------------------------------


class OneByOne:
    """Weighted least squares in place of the solver: heads that cannot influence each other by rounding."""

    def __init__(self, design, *, weights, penalty):
        self.rows = np.column_stack([design.X, np.ones(len(design.X))]).astype(float)
        self.weights = OneByOne.weights = weights

    def fit(self, targets, start=None):
        solved = np.stack([self.solve(*column) for column in zip(targets.T, self.weights.T, strict=True)])
        nothing = np.zeros(len(solved), np.float32)
        coef, intercept = solved[:, :-1].astype(np.float32), solved[:, -1].astype(np.float32)
        return FittedHeads(coef, intercept, risk=nothing, clamped=nothing, residual=nothing, passes=1)

    def solve(self, target, weights):
        weighted = (self.rows * weights[:, None]).T
        return np.linalg.solve(weighted @ self.rows + 1e-3 * np.eye(self.rows.shape[1]), weighted @ target)


# --- which rows ----------------------------------------------------------------------------------


def test_the_result_on_a_sample_is_close_to_that_on_all_rows(monkeypatch):
    X, S, _ = clusters()
    options = {"prior": 0.15, "penalty": 1e-3, "device": "cpu"}
    whole = PULinearClassifier(**options).fit(X, S)
    monkeypatch.setattr(distillation, "SAMPLE_ROWS", 400)
    sampled = PULinearClassifier(**options).fit(X, S)
    assert whole.method_ == sampled.method_ == "distilled"
    for here, there in ((whole.coef_, sampled.coef_), (whole.held_out_margins_, sampled.held_out_margins_)):
        assert np.isfinite(there).all() and here.shape == there.shape
        assert np.corrcoef(here, there)[0, 1] > 0.9 and (here != there).any()
    assert sampled.neighbours_.share == pytest.approx(whole.neighbours_.share, abs=0.1)


# --- propagation ----------------------------------------------------------------------------------

SHARE = 0.2
LOG_RATIOS = (np.random.default_rng(0).normal(size=(N, FOLDS + 1)) + 2 * Y[:, None] - 1).astype(np.float32)
SHARES = np.full(FOLDS + 1, SHARE)


def chains(s=S, reviewed=None, weights=None, fold=FOLD):
    return ChainLabels.of(TrainingLabels.of(s, reviewed, weights), fold, FOLDS)


def slow_chain(log_ratios, positive, negative, s, weights, W, rounds):
    """The chain written down plainly in float64."""

    def known(values):
        return np.where(positive, 1.0, np.where(negative, 0.0, values))

    q = p = known(expit(log_ratios.astype(float) + logit(SHARE)))
    tilt = Tilt(0.0, 1.0, SHARE)
    for _ in range(rounds):
        shares = np.clip(W @ p, 0.001, 0.999)
        f = log_ratios + np.log(shares / (1 - shares))
        tilt = fit_tilt(f, (positive & (s == 1)).astype(np.int8), weights, start=tilt)
        q = known(expit(tilt.alpha + tilt.slope * f + logit(max(tilt.prior, 0.003))))
        p = (p + q) / 2
    return q


@pytest.mark.parametrize("hidden", [0, 2])
def test_after_a_review_that_confirmed_nearly_all_positives_negatives_stay_negative(hidden):
    draw = np.random.default_rng(0)
    y = np.arange(1500) < 200
    s, reviewed = np.zeros((2, len(y)), np.int8)
    s[:20], reviewed[20 : 200 - hidden], reviewed[200:260] = 1, 1, -1
    margins = np.where(y, draw.normal(10, 3, len(y)), draw.normal(-12, 6, len(y)))
    log_ratios = np.repeat(margins[:, None], FOLDS + 1, axis=1).astype(np.float32)
    labels, graph = (
        chains(s, reviewed, fold=assign_folds(s, FOLDS, 0, None)),
        random_graph(len(y), k=2, among=np.arange(1500) // 50),
    )
    targets = propagate(log_ratios, labels, np.full(FOLDS + 1, 1e-12), graph, rounds=3)
    assert targets[~y].mean() < 0.01
    assert targets[y].mean() > 0.97


GAINS = st.floats(-0.1, 0.1)  # near what is asked for
EVIDENCE = st.builds(NeighbourEvidence, agreement=GAINS, held_out=GAINS, labels=st.integers(4, 1000))


@given(EVIDENCE)
def test_neighbours_count_where_there_is_evidence_and_agreement(evidence):
    total = evidence.agreement + 0.5 * evidence.labels / (evidence.labels + 20) * evidence.held_out
    assert evidence.total == pytest.approx(total, abs=1e-12)
    counts = evidence.total > 0.02 * np.sqrt(20 / evidence.labels) and evidence.agreement > 0
    assert evidence.weight == WEIGHT * counts and ("do not count" in evidence.sentence()) != counts
    assert ("do not agree better" in evidence.sentence()) == (evidence.agreement <= 0)
    assert "\n" not in evidence.sentence()


@pytest.mark.parametrize(("rows", "penalty"), [(150, 4e-4), (3000, 2e-5), (30_000, 2e-6), (10**6, 2e-6)])
def test_the_penalty_falls_with_the_rows_down_to_a_least_one(rows, penalty):
    assert penalty_of(rows) == pytest.approx(penalty)


def test_neighbours_do_not_count_where_what_is_wanted_cuts_across_neighbourhoods():
    X, s, _ = cut_across(labelled=30)
    options = {"prior": 0.3, "penalty": 1e-3, "device": "cpu"}
    model, linear = (PULinearClassifier(**options, method=method).fit(X, s) for method in (None, "linear"))
    assert model.method_ == "linear" and model.neighbours_.weight == 0 and linear.neighbours_ is None
    np.testing.assert_allclose(model.coef_, linear.coef_, rtol=1e-3, atol=1e-4)  # trained beside the heads of halves
    assert model.threshold_ == pytest.approx(linear.threshold_, rel=1e-2, abs=1e-2)


# --- both kinds of evidence ----------------------------------------------------------------------


@given(
    kinds=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), min_size=8, max_size=40),
    seed=st.integers(0, 9),
    grouped=st.booleans(),
)
def test_halves_share_no_positive_and_no_group_and_all_unlabelled_rows(kinds, seed, grouped):
    s = np.array([kind == 0 for kind, _ in kinds], np.int8)
    groups = np.array([group for _, group in kinds]) if grouped else None
    weights = halves_of(TrainingLabels.of(s), groups, seed).astype(int)
    assert weights.shape == (len(s), 30) and (weights[s == 0] == 1).all() and np.isin(weights, (0, 1)).all()
    for first, second in zip(range(0, 30, 2), range(1, 30, 2), strict=True):
        assert (weights[s == 1, first] + weights[s == 1, second] == 1).all()
        if grouped:
            in_first, in_second = (set(groups[(s == 1) & (weights[:, half] == 1)]) for half in (first, second))
            assert not in_first & in_second and abs(len(in_first) - len(in_second)) <= 1
        else:
            assert abs(weights[s == 1, first].sum() - weights[s == 1, second].sum()) <= 1


def test_held_out_positives_are_ranked_among_the_unlabelled_of_their_fold():
    draw = np.random.default_rng(0)
    fold, scores = draw.integers(3, size=300), draw.normal(size=300).round(1)
    better = scores + 2 * S
    labels = TrainingLabels.of(S)

    def mean_rank(values):
        ranks = []
        for row in np.flatnonzero(S):
            others = values[(fold == fold[row]) & (S == 0)]
            ranks.append(-np.log((others >= values[row]).mean() + neighbour_evidence._HELD_OUT_FLOOR))
        return np.mean(ranks)

    found = [held_out_gain(scores, values, labels, fold) for values in (scores, better, -scores)]
    assert found[0] == 0 and found[1] > 0.5
    expected = [mean_rank(values) - mean_rank(scores) for values in (scores, better, -scores)]
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_no_label_of_a_fold_reaches_the_margins_and_scores_of_the_fold(start, monkeypatch):
    """Given the classifier's heads, which leave the fold out, and the tilt that all chains share."""
    monkeypatch.setattr(distillation, "SoftTargetTrainer", OneByOne)
    s, hidden_review, of_fold = S.copy(), REVIEWED.copy(), FOLD == 1
    s[of_fold] = hidden_review[of_fold] = 0
    seen = TrainingLabels.of(S, REVIEWED)
    unseen = replace(TrainingLabels.of(s, hidden_review), training_weights=seen.training_weights)
    first, second = (start.distil(start.rows(labels=labels, graph=NOISY)) for labels in (seen, unseen))
    assert (first.margins[of_fold] == second.margins[of_fold]).all(), "bit for bit"
    assert (first.scores[of_fold] == second.scores[of_fold]).all()
    assert (first.margins[~of_fold] != second.margins[~of_fold]).mean() > 0.4
    assert (first.head.coef != second.head.coef).any()
    of_chains, of_all = np.split(OneByOne.weights, [FOLDS], axis=1)
    assert ((of_chains == 0) == (FOLD[:, None] == np.arange(FOLDS))).all() and (of_all > 0).all()


def test_of_many_rows_the_positives_and_an_even_sample_of_the_others_are_taken(monkeypatch):
    monkeypatch.setattr(distillation, "SAMPLE_BYTES", 50 * X[0].nbytes)
    requested, labels = [], TrainingLabels.of(S, REVIEWED)
    design = DesignMatrix(X, labels.training_s, None, CPU)
    on = DistillationRows.of(design, labels, FOLD, lambda rows: requested.append(rows) or random_graph(len(rows)))
    rows, positives = on.rows, labels.training_s.sum()
    assert requested[0] is rows and (np.diff(rows) > 0).all() and len(rows) == 50 + positives == len(on.graph)
    assert on.labels.training_s.sum() == positives and (X[rows] == on.design.X).all() and (on.fold == FOLD[rows]).all()
    assert (on.take(Y) == Y[rows]).all() and np.diff(rows[on.labels.training_s == 0]).max() < 20
    assert (on.labels.known_negative == (REVIEWED[rows] == -1)).all()


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("reviewed", [None, REVIEWED], ids=["labels", "review"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
def test_each_chain_is_the_one_written_down_plainly(rounds, reviewed, weighted):
    weights = np.random.default_rng(1).uniform(0.5, 2, N).astype(np.float32) if weighted else None
    labels = chains(reviewed=reviewed, weights=weights)
    graph = replace(NOISY, rows=NOISY.rows.copy(), cosines=NOISY.cosines.copy())
    graph.rows[:3], graph.cosines[:3] = -1, -np.inf  # no neighbours
    graph.rows[3:9, 2:], graph.cosines[3:9, 2:] = -1, -np.inf  # fewer than others
    targets = propagate(LOG_RATIOS, labels, SHARES, graph, rounds=rounds)
    assert targets.dtype == np.float32 and targets.shape == LOG_RATIOS.shape
    W = dense_weights(graph, N)
    for chain in range(FOLDS + 1):
        known = labels.positive[:, chain], labels.negative[:, chain]
        expected = slow_chain(LOG_RATIOS[:, chain], *known, S, weights, W, rounds)
        np.testing.assert_allclose(targets[:, chain], expected, atol=5e-3)
