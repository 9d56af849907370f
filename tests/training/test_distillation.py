from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.neighbourhoods import clusters, random_graph

from pucache.estimates.calibration import fit_tilt
from pucache.estimates.review_weights import TrainingLabels
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.linear_heads import FittedHeads
from pucache.heads.solve import fit_heads
from pucache.labels.folds import assign_folds
from pucache.training import distillation
from pucache.training.cross_fitting import CrossFitter
from pucache.training.distillation import DistillationRows, distil, penalty_of
from pucache.training.sklearn_classifier import PULinearClassifier

pytestmark = pytest.mark.usefixtures("one_thread")
N, FOLDS, CPU = 300, 3, torch.device("cpu")
X, S, Y = clusters(N, d=12, labelled=24, kinds=4, apart=0.8)
FOLD = assign_folds(S, FOLDS, 0, None)
GRAPH = random_graph(N, k=8, among=Y)
OF_ONE = np.array([0.0, 4.0, 0.0])  # neighbours count
AGREEMENT = (0.0, 9.0, 0.0)  # with weight 1
NOISY = random_graph(N, k=8, among=Y ^ (np.random.default_rng(0).random(N) < 0.25))  # no target is sure


class Start:
    """The classifier and its cross-fit, from which a distillation starts."""

    def __init__(self, labels=None):
        labels = labels or TrainingLabels.of(S)
        self.labels = labels
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
    margins, scores = (
        distilled.margins,
        [start.distil(agreement=tuple(9.0 * np.eye(3)[k] + OF_ONE)).scores for k in (0, 1, 2)],
    )
    small, one, double = scores
    assert margins.dtype == np.float32 and margins.shape == (N,) and distilled.head.coef.shape == (1, 12)
    np.testing.assert_allclose(2 * small - margins, one, atol=2e-3)
    np.testing.assert_allclose(2 * one - margins, double, atol=4e-3)
    lift = one - margins
    assert lift[(S == 0) & (Y == 1)].mean() > lift[Y == 0].mean() + 1 and np.abs(lift).max() < 7
    assert (start.distil(agreement=(0.0, 0.0, 0.0)).scores == start.linear.margins).all(), "neighbours do not count"


# --- honesty -------------------------------------------------------------------------------------


class OneByOne:
    """Weighted least squares in place of the solver: heads that cannot influence each other by rounding."""

    def __init__(self, design, *, weights, penalty):
        self.rows = np.column_stack([design.X, np.ones(len(design.X))]).astype(float)
        self.weights = weights

    def fit(self, targets, start=None):
        solved = np.stack([self.solve(*column) for column in zip(targets.T, self.weights.T, strict=True)])
        nothing = np.zeros(len(solved), np.float32)
        coef, intercept = solved[:, :-1].astype(np.float32), solved[:, -1].astype(np.float32)
        return FittedHeads(coef, intercept, risk=nothing, clamped=nothing, residual=nothing, passes=1)

    def solve(self, target, weights):
        weighted = (self.rows * weights[:, None]).T
        return np.linalg.solve(weighted @ self.rows + 1e-3 * np.eye(self.rows.shape[1]), weighted @ target)


def test_no_label_of_a_fold_reaches_the_margins_and_scores_of_the_fold(start, monkeypatch):
    """Given the classifier's heads, which leave the fold out, and the tilt that all chains share."""
    monkeypatch.setattr(distillation, "SoftTargetTrainer", OneByOne)
    reviewed = np.zeros(N, np.int8)
    rows = np.flatnonzero(S == 0)[::9]
    reviewed[rows] = np.where(Y[rows], 1, -1)
    s, hidden_review, of_fold = S.copy(), reviewed.copy(), FOLD == 1
    s[of_fold] = hidden_review[of_fold] = 0
    seen = TrainingLabels.of(S, reviewed)
    unseen = replace(TrainingLabels.of(s, hidden_review), training_weights=seen.training_weights)
    first, second = (start.distil(start.rows(labels=labels, graph=NOISY)) for labels in (seen, unseen))
    assert (first.margins[of_fold] == second.margins[of_fold]).all(), "bit for bit"
    assert (first.scores[of_fold] == second.scores[of_fold]).all()
    assert (first.margins[~of_fold] != second.margins[~of_fold]).mean() > 0.4
    assert (first.head.coef != second.head.coef).any()


def test_margins_of_a_fold_are_by_heads_that_were_not_trained_on_its_rows(start, monkeypatch):
    used = []

    class Recorder(OneByOne):
        def __init__(self, design, *, weights, penalty):
            super().__init__(design, weights=weights, penalty=penalty)
            used.append(weights)

    monkeypatch.setattr(distillation, "SoftTargetTrainer", Recorder)
    start.distil()
    of_chains, of_all = np.split(used[0], [FOLDS], axis=1)
    assert ((of_chains == 0) == (FOLD[:, None] == np.arange(FOLDS))).all() and (of_all > 0).all()


@pytest.mark.parametrize(("rows", "penalty"), [(150, 4e-4), (3000, 2e-5), (30_000, 2e-6), (10**6, 2e-6)])
def test_the_penalty_falls_with_the_rows_down_to_a_least_one(rows, penalty):
    assert penalty_of(rows) == pytest.approx(penalty)


# --- which rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["rows", "bytes"])
def test_of_many_rows_the_positives_and_an_even_sample_of_the_others_are_taken(monkeypatch, limit):
    monkeypatch.setattr(distillation, f"SAMPLE_{limit.upper()}", 50 if limit == "rows" else 50 * X[0].nbytes)
    requested, reviewed = [], np.zeros(N, np.int8)
    reviewed[np.flatnonzero(S == 0)[:4]] = 1, 1, -1, -1
    labels = TrainingLabels.of(S, reviewed)
    design = DesignMatrix(X, labels.training_s, None, CPU)
    on = DistillationRows.of(design, labels, FOLD, lambda rows: requested.append(rows) or random_graph(len(rows)))
    rows = on.rows
    assert requested[0] is rows and (np.diff(rows) > 0).all() and len(rows) == 50 + 24 + 2 == len(on.graph)
    assert on.labels.training_s.sum() == 26 and (X[rows] == on.design.X).all() and (on.fold == FOLD[rows]).all()
    assert (on.take(Y) == Y[rows]).all() and np.diff(rows[on.labels.training_s == 0]).max() < 20
    assert (on.labels.known_negative == (reviewed[rows] == -1)).all()


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
