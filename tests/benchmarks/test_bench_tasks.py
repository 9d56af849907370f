"""Tasks of the benchmarks: what is in a pile."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.image_classes import one_vs_rest_rows


@given(share=st.sampled_from([0.01, 0.05, 0.2]), labelled=st.integers(1, 30), seed=st.integers(0, 5))
def test_a_pile_has_all_negatives_and_the_share_of_hidden_positives(share, labelled, seed):
    y = np.random.default_rng(seed).random(1000) < 0.3
    pile, s = one_vs_rest_rows(y, share=share, labelled=labelled, draw=np.random.default_rng(seed))
    hidden = np.count_nonzero(pile & y & (s == 0))
    assert pile[~y].all() and s.sum() == labelled and (y & pile)[s == 1].all()
    assert abs(hidden / np.count_nonzero(pile & (s == 0)) - share) < 1e-3
