import numpy as np
import pytest
from helpers.neighbourhoods import clusters, cut_across
from hypothesis import given
from hypothesis import strategies as st

from pucache.estimates.review_weights import TrainingLabels
from pucache.training import neighbour_evidence
from pucache.training.neighbour_evidence import (
    WEIGHTS,
    NeighbourEvidence,
    halves_of,
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
    assert "\n" not in evidence.sentence() and "log rank" not in evidence.sentence()


def test_neighbours_do_not_count_where_what_is_wanted_cuts_across_neighbourhoods():
    X, s, _ = cut_across(labelled=30)
    options = {"prior": 0.3, "penalty": 1e-3, "device": "cpu"}
    model, linear = (PULinearClassifier(**options, method=method).fit(X, s) for method in (None, "linear"))
    assert model.method_ == "linear" and model.neighbours_.weight == 0 and linear.neighbours_ is None
    np.testing.assert_allclose(model.coef_, linear.coef_, rtol=1e-3, atol=1e-4)  # trained beside the heads of halves
    assert model.threshold_ == pytest.approx(linear.threshold_, rel=1e-2, abs=1e-2)


# --- both kinds of evidence ----------------------------------------------------------------------

_, S, _ = clusters(300, d=12, labelled=20, kinds=4, apart=0.5)


def test_many_rows_are_split_twice():
    s = (np.arange(9000) < 30).astype(np.int8)
    assert halves_of(TrainingLabels.of(s), None, 0).shape == (9000, 4)


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

    found = held_out_gains(scores, [scores, better, -scores], labels, fold)
    assert found[0] == 0 and found[1] > 0.5
    expected = [mean_rank(values) - mean_rank(scores) for values in (scores, better, -scores)]
    np.testing.assert_allclose(found, expected, atol=1e-9)
