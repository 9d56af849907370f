import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.retrieval.mmr import MAX_SELECTED, check, select_diverse


def unit_rows(m, d, seed):
    Z = np.random.default_rng(seed).normal(size=(m, d)).astype(np.float32)
    return Z / np.linalg.norm(Z, axis=1, keepdims=True)


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 80), st.floats(0, 1), st.integers(0, 99))
def test_each_row_taken_is_the_best_of_those_left(m, k, weight, seed):
    Z = unit_rows(m, 4, seed)
    taken = select_diverse(Z, k, weight)
    assert len(taken) == len(set(taken)) == min(k, m) and taken.dtype == np.int64
    if weight < 1:
        assert taken[0] == 0, "nothing is like nothing taken"
    relevance = np.linspace(1, 0, m)
    for number, chosen in enumerate(taken):
        likest = (Z.astype(float) @ Z[taken[:number]].T.astype(float)).max(1, initial=-1)
        value = (1 - weight) * relevance - weight * likest
        value[taken[:number]] = -np.inf
        assert value[chosen] >= value.max() - 1e-5


def test_no_weight_takes_the_first_and_copies_come_last():
    Z = unit_rows(50, 5, 0)
    assert select_diverse(Z, 10, 0).tolist() == list(range(10))
    copies = np.concatenate([Z[:1].repeat(30, 0), Z[1:5]])
    assert set(select_diverse(copies, 5, 0.9).tolist()) == {0, 30, 31, 32, 33}


def test_rows_without_a_direction_are_taken_too():
    assert sorted(select_diverse(np.zeros((5, 3), np.float32), 9, 0.5).tolist()) == list(range(5))


@pytest.mark.parametrize(
    "weight, k, message",
    [
        (-0.1, 5, "diverse must lie between 0 and 1, got -0.1"),
        (1.1, 5, "between 0 and 1"),
        (float("nan"), 5, "between 0 and 1, got nan"),
        (0.5, MAX_SELECTED + 1, "at most 10,000 rows can be made, got k = 10,001; use a smaller k"),
    ],
)
def test_what_cannot_be_spread_out_is_refused(weight, k, message):
    with pytest.raises(ValueError, match=message):
        check(weight, k)


def test_without_spreading_any_number_goes():
    check(0, 10**9)
    check(1, MAX_SELECTED)
