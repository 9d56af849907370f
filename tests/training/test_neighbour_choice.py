import numpy as np
import pytest
import torch
from helpers.neighbourhoods import clusters, random_graph
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pucache.estimates.review_weights import TrainingLabels
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.risks import PURisk
from pucache.training import neighbour_choice
from pucache.training.neighbour_choice import agreement_gains, held_out_gains

pytestmark = pytest.mark.usefixtures("one_thread")
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


@pytest.mark.parametrize("labelled", [4, 5])
def test_four_positives_are_enough(labelled):
    s = np.where(np.cumsum(S) <= labelled, S, 0).astype(np.int8)
    assert np.isfinite(gains(random_graph(300), s)).all()


def test_where_no_unlabelled_row_is_a_likely_positive_there_is_no_evidence():
    far, s = X.copy(), (np.arange(300) < 20).astype(np.int8)
    far[:20] += 1000
    assert np.isfinite(gains(random_graph(300, among=s), s, far, prior=1e-5)).all()
    assert neighbour_choice._mean_rank(np.arange(5.0), np.zeros(5, np.float32)) == 0


@given(
    kinds=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), min_size=8, max_size=40),
    seed=st.integers(0, 9),
    grouped=st.booleans(),
)
def test_halves_share_no_positive_and_no_group_and_all_unlabelled_rows(kinds, seed, grouped):
    s = np.array([kind == 0 for kind, _ in kinds], np.int8)
    groups = np.array([group for _, group in kinds]) if grouped else None
    weights = neighbour_choice._half_weights(TrainingLabels.of(s), groups, seed)
    assert weights.shape == (len(s), 4) and (weights[s == 0] == 1).all() and np.isin(weights, (0, 1)).all()
    for first, second in ((0, 1), (2, 3)):
        assert (weights[s == 1, first] + weights[s == 1, second] == 1).all()
        if grouped:
            in_first, in_second = (set(groups[(s == 1) & (weights[:, half] == 1)]) for half in (first, second))
            assert not in_first & in_second and abs(len(in_first) - len(in_second)) <= 1
        else:
            assert abs(weights[s == 1, first].sum() - weights[s == 1, second].sum()) <= 1


def test_halves_keep_the_row_weights():
    row_weights = np.linspace(0.5, 2, 300).astype(np.float32)
    weights = neighbour_choice._half_weights(TrainingLabels.of(S, None, row_weights), None, 0)
    assert ((weights == 0) | (weights == row_weights[:, None])).all()


@given(
    arrays(np.float64, 12, elements=st.floats(-5, 5), unique=True),
    arrays(np.float32, 12, elements=st.floats(0, 1, width=32)),
)
def test_the_mean_rank_is_over_pairs_of_likely_positives_and_likely_negatives(scores, p):
    total = 0.0
    for i in range(12):
        above = sum(1 - float(p[j]) for j in range(12) if scores[j] > scores[i])
        share = above / max(sum(1 - float(one) for one in p), 1e-12)
        total += float(p[i]) * -np.log(share + neighbour_choice._AGREEMENT_FLOOR)
    expected = total / p.sum(dtype=float) if p.any() else 0
    assert neighbour_choice._mean_rank(scores, p) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_held_out_positives_are_ranked_among_the_unlabelled_of_their_fold():
    draw = np.random.default_rng(0)
    fold, scores = draw.integers(3, size=300), draw.normal(size=300).round(1)
    better = scores + 2 * S
    labels = TrainingLabels.of(S)

    def mean_rank(values):
        ranks = []
        for row in np.flatnonzero(S):
            others = values[(fold == fold[row]) & (S == 0)]
            ranks.append(-np.log((others >= values[row]).mean() + neighbour_choice._HELD_OUT_FLOOR))
        return np.mean(ranks)

    found = held_out_gains(scores, [scores, better, -scores], labels, fold)
    assert found[0] == 0 and found[1] > 0.5
    expected = [mean_rank(values) - mean_rank(scores) for values in (scores, better, -scores)]
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_shift_between_folds_changes_no_rank():
    draw = np.random.default_rng(0)
    fold, scores = draw.integers(3, size=300), draw.normal(size=300)
    assert held_out_gains(scores, [scores + 10 * fold], TrainingLabels.of(S), fold) == (0.0,)
