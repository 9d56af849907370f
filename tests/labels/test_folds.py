import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.labels.folds import assign_folds

grouped = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 1)), min_size=1, max_size=60)


def spread(fold, count):
    """By how many rows the folds differ."""
    return int(np.ptp(np.bincount(fold, minlength=count)))


@settings(max_examples=40)
@given(st.integers(0, 40), st.integers(0, 400), st.integers(2, 300), st.integers(0, 9))
def test_folds_hold_labelled_and_unlabelled_rows_evenly(labelled, unlabelled, count, seed):
    s = np.random.default_rng(seed).permutation([1] * labelled + [0] * unlabelled)
    fold, expected = assign_folds(s, count, seed), max(1, min(count, labelled, unlabelled))
    if expected > 1:
        assert fold.max() + 1 == expected and max(spread(fold[s == value], expected) for value in (0, 1)) <= 1
    else:
        assert not fold.any()


@given(grouped, st.integers(2, 6), st.integers(0, 9))
def test_groups_stay_whole_and_every_fold_holds_both_kinds(rows, count, seed):
    group, s = np.array(rows).T
    fold = assign_folds(s, count, seed, group)
    count = min(count, *(len(np.unique(group[s == value])) for value in (0, 1)))
    assert fold.max() + 1 == max(1, count)
    assert all(len(np.unique(fold[group == number])) == 1 for number in group)
    assert count < 2 or all({0, 1} == set(s[fold == number].tolist()) for number in range(count))


@settings(max_examples=30)
@given(grouped, st.integers(2, 6), st.integers(0, 9))
def test_rows_on_their_own_even_out_what_groups_left_uneven(rows, count, seed):
    group, s = np.array(rows).T
    group, s = np.concatenate([group, 100 + np.arange(700)]), np.concatenate([s, np.arange(700) % 2])
    fold = assign_folds(s, count, seed, group)
    assert max(spread(fold[s == value], count) for value in (0, 1)) <= 1
