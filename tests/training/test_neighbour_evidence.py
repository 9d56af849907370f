import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.neighbourhoods import clusters, cut_across, random_graph
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pucache.estimates.calibration import Tilt
from pucache.estimates.review_weights import TrainingLabels
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.risks import PURisk
from pucache.training import neighbour_evidence
from pucache.training.neighbour_evidence import (
    WEIGHTS,
    NeighbourEvidence,
    NeighbourSettings,
    agreement_gains,
    held_out_gains,
)
from pucache.training.sklearn_classifier import PULinearClassifier

pytestmark = pytest.mark.usefixtures("one_thread")
GAINS = st.tuples(*[st.floats(-5, 5)] * 3)
EVIDENCE = st.builds(NeighbourEvidence, agreement=GAINS, held_out=GAINS, labels=st.integers(4, 10**6))


# --- the rule ------------------------------------------------------------------------------------


@given(EVIDENCE)
def test_the_weight_is_0_or_the_greatest_with_nearly_the_best_evidence(evidence):
    trust = 0.5 * evidence.labels / (evidence.labels + 20)
    total = [a + trust * h for a, h in zip(evidence.agreement, evidence.held_out, strict=True)]
    np.testing.assert_allclose(evidence.total, total, atol=1e-12)
    if evidence.total[1] <= 0.02 * np.sqrt(20 / evidence.labels) or evidence.agreement[1] <= 0:
        assert evidence.weight == 0 and "do not count" in evidence.sentence()
    else:
        near = [w for w, one in zip(WEIGHTS, evidence.total, strict=True) if one >= 0.7 * max(evidence.total)]
        assert evidence.weight == max(near) and f"weight {evidence.weight:g}" in evidence.sentence()
    assert "\n" not in evidence.sentence()


def test_fewer_labels_ask_for_clearer_evidence_and_weigh_held_out_positives_less():
    few, many = (NeighbourEvidence((1e-3,) * 3, (0.06,) * 3, labels) for labels in (8, 500))
    assert few.weight == 0 < many.weight
    few, many = (NeighbourEvidence((0.03,) * 3, (-0.2,) * 3, labels) for labels in (8, 500))
    assert few.least > many.least and few.total[1] > many.total[1]


@pytest.mark.parametrize("seed", [0, 1])
def test_neighbours_count_where_what_is_wanted_is_a_neighbourhood(seed):
    X, s, y = clusters(seed=seed, labelled=40)
    options = {"prior": float(y[s == 0].mean()), "penalty": 1e-3, "device": "cpu"}
    model = PULinearClassifier(**options).fit(X, s)
    assert model.method_ == "distilled" and model.neighbours_.weight in WEIGHTS
    assert model.neighbours_.evidence.labels == 40 and model.neighbours_.search == "exact search"
    assert 0 < model.neighbours_.share < 0.4 and np.isfinite(model.neighbours_.threshold)


@pytest.mark.parametrize("labelled", [8, 30])
def test_neighbours_do_not_count_where_what_is_wanted_cuts_across_neighbourhoods(labelled):
    X, s, _ = cut_across(labelled=labelled)
    options = {"prior": 0.3, "penalty": 1e-3, "device": "cpu"}
    model, linear = (PULinearClassifier(**options, method=method).fit(X, s) for method in (None, "linear"))
    assert model.method_ == "linear" and model.neighbours_.weight == 0 and linear.neighbours_ is None
    assert (model.coef_ == linear.coef_).all() and model.estimates_ == linear.estimates_
    assert (model.tilt_, model.threshold_) == (linear.tilt_, linear.threshold_)


# --- what the file keeps -------------------------------------------------------------------------

SETTINGS = NeighbourSettings(
    evidence=NeighbourEvidence(agreement=(0.1, 0.2, 0.3), held_out=(-0.1, 0.0, 0.1), labels=20),
    search="exact search",
    share=0.1,
    tilt=Tilt(0.5, 1.5, 0.2),
    threshold=-1.0,
)


@given(EVIDENCE, st.floats(0, 1), st.floats(-100, 100), st.text(max_size=9))
def test_settings_come_back_from_json_exactly(evidence, share, threshold, search):
    settings = replace(SETTINGS, evidence=evidence, share=share, threshold=threshold, search=search)
    content = json.loads(json.dumps(settings.to_json()))
    assert NeighbourSettings.from_json(content) == settings
    assert content["weight"] == settings.weight and content["reason"] == evidence.sentence()


# --- both kinds of evidence ----------------------------------------------------------------------

X, S, Y = clusters(300, d=12, labelled=20, kinds=4, apart=0.5)


def gains(graph, s=S, X=X, **options):
    labels = TrainingLabels.of(s)
    design = DesignMatrix(X, s, None, torch.device("cpu"))
    options = {"risk": PURisk(), "training_prior": 0.5, "penalty": 1e-3, "prior": 0.2} | options
    return agreement_gains(design, labels, graph, **options)


def test_two_heads_agree_more_with_neighbours_of_the_same_kind_and_less_with_random_ones():
    alike, random = (gains(random_graph(300, k=20, among=among)) for among in (Y, None))
    assert min(alike) > 0 > max(random) and alike[1] > random[1] + 0.05
    assert len(alike) == 3 and all(isinstance(gain, float) for gain in alike)


def test_the_same_seed_gives_the_same_gains_and_another_other_halves():
    graph = random_graph(300)
    assert gains(graph, seed=1) == gains(graph, seed=1) != gains(graph, seed=2)


def test_where_no_unlabelled_row_is_a_likely_positive_there_is_no_evidence():
    far, s = X.copy(), (np.arange(300) < 20).astype(np.int8)
    far[:20] += 1000
    assert np.isfinite(gains(random_graph(300, among=s), s, far, prior=1e-5)).all()
    assert neighbour_evidence._mean_rank(np.arange(5.0), np.zeros(5, np.float32)) == 0


@given(
    kinds=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), min_size=8, max_size=40),
    seed=st.integers(0, 9),
    grouped=st.booleans(),
)
def test_halves_share_no_positive_and_no_group_and_all_unlabelled_rows(kinds, seed, grouped):
    s = np.array([kind == 0 for kind, _ in kinds], np.int8)
    groups = np.array([group for _, group in kinds]) if grouped else None
    weights = neighbour_evidence._half_weights(TrainingLabels.of(s), groups, seed)
    assert weights.shape == (len(s), 4) and (weights[s == 0] == 1).all() and np.isin(weights, (0, 1)).all()
    for first, second in ((0, 1), (2, 3)):
        assert (weights[s == 1, first] + weights[s == 1, second] == 1).all()
        if grouped:
            in_first, in_second = (set(groups[(s == 1) & (weights[:, half] == 1)]) for half in (first, second))
            assert not in_first & in_second and abs(len(in_first) - len(in_second)) <= 1
        else:
            assert abs(weights[s == 1, first].sum() - weights[s == 1, second].sum()) <= 1


@given(
    arrays(np.float64, 12, elements=st.floats(-5, 5), unique=True),
    arrays(np.float32, 12, elements=st.floats(0, 1, width=32)),
)
def test_the_mean_rank_is_over_pairs_of_likely_positives_and_likely_negatives(scores, p):
    total = 0.0
    for i in range(12):
        above = sum(1 - float(p[j]) for j in range(12) if scores[j] > scores[i])
        share = above / max(sum(1 - float(one) for one in p), 1e-12)
        total += float(p[i]) * -np.log(share + neighbour_evidence._AGREEMENT_FLOOR)
    expected = total / p.sum(dtype=float) if p.any() else 0
    assert neighbour_evidence._mean_rank(scores, p) == pytest.approx(expected, rel=1e-6, abs=1e-9)


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

    found = held_out_gains(scores, [scores, better, -scores], labels, fold)
    assert found[0] == 0 and found[1] > 0.5
    expected = [mean_rank(values) - mean_rank(scores) for values in (scores, better, -scores)]
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_shift_between_folds_changes_no_rank():
    draw = np.random.default_rng(0)
    fold, scores = draw.integers(3, size=300), draw.normal(size=300)
    assert held_out_gains(scores, [scores + 10 * fold], TrainingLabels.of(S), fold) == (0.0,)
