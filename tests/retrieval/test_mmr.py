import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.retrieval.ranking import select_diverse


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
