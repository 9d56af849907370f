import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.labels.folds import assign_folds, stratified_folds


@given(st.integers(0, 40), st.integers(0, 400), st.integers(2, 300), st.integers(0, 9))
def test_folds_deal_labelled_and_unlabelled_rows_evenly(labelled, unlabelled, count, seed):
    s = np.random.default_rng(seed).permutation([1] * labelled + [0] * unlabelled)
    fold = stratified_folds(s, count, seed)
    for side in (fold[s == 1], fold[s == 0]):
        sizes = np.bincount(side, minlength=count)
        assert len(sizes) == count and sizes.max() - sizes.min() <= 1


def test_folds_depend_on_the_seed_and_on_nothing_else():
    s = np.arange(200) < 20
    assert (stratified_folds(s, 5, 1) == stratified_folds(s, 5, 1)).all()
    assert (stratified_folds(s, 5, 1) != stratified_folds(s, 5, 2)).any()


def test_without_groups_and_with_single_ones_folds_are_the_same():
    s = np.random.default_rng(0).permutation(np.arange(200) < 23).astype(np.int8)
    alone = stratified_folds(s, 5, 3)
    generator = np.random.default_rng(3)
    for value in (0, 1):
        rows = generator.permutation(np.flatnonzero(s == value))
        assert (alone[rows] == np.arange(len(rows)) % 5).all()
    assert (stratified_folds(s, 5, 3, groups=np.arange(200)) == alone).all()
    assert (stratified_folds(s, 5, 3, groups=7 * np.arange(200)[::-1]) == alone).all()


grouped = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 1)), min_size=1, max_size=60)


@given(grouped, st.integers(2, 6), st.integers(0, 9))
def test_groups_stay_whole_and_every_fold_holds_both_where_possible(rows, count, seed):
    groups, s = np.array(rows).T
    fold = stratified_folds(s, count, seed, groups=groups)
    assert (fold == stratified_folds(s, count, seed, groups=groups)).all()
    assert fold.min() >= 0 and fold.max() < count
    assert all(len(np.unique(fold[groups == number])) == 1 for number in groups)
    with_p, with_u = set(groups[s == 1].tolist()), set(groups[s == 0].tolist())
    assert len(np.unique(fold[s == 1])) == min(count, len(with_p))
    assert len(np.unique(fold[s == 0])) == min(count, len(with_u))
    if len(with_p & with_u) + min(len(with_p - with_u), len(with_u - with_p)) >= count:
        assert all({0, 1} == set(s[fold == number].tolist()) for number in range(count))


@given(grouped, st.integers(2, 6), st.integers(0, 9))
def test_rows_on_their_own_even_out_what_groups_left_uneven(rows, count, seed):
    groups, s = np.array(rows).T
    groups = np.concatenate([groups, 100 + np.arange(700)])
    s = np.concatenate([s, np.arange(700) % 2])
    fold = stratified_folds(s, count, seed, groups=groups)
    for value in (0, 1):
        sizes = np.bincount(fold[s == value], minlength=count)
        assert sizes.max() - sizes.min() <= 1


def test_groups_of_one_kind_differ_by_at_most_the_largest():
    sizes = np.random.default_rng(0).integers(2, 9, 300)
    groups = np.repeat(np.arange(300), sizes)
    s = (groups < 60).astype(np.int8)
    fold = stratified_folds(s, 5, groups=groups)
    for value in (0, 1):
        held = np.bincount(fold[s == value], minlength=5)
        assert held.max() - held.min() <= 8
    assert (fold != stratified_folds(s, 5, 1, groups=groups)).any()


def test_positives_that_are_all_twins_leave_the_other_folds_without_any():
    s = np.array([1, 1, 1, 0, 0, 0, 0, 0, 0], np.int8)
    fold = stratified_folds(s, 3, groups=np.array([4, 4, 4, 4, 5, 6, 7, 8, 9]))
    assert np.bincount(fold[s == 1], minlength=3).tolist() == [3, 0, 0]
    assert np.bincount(fold[s == 0], minlength=3).tolist() == [2, 2, 2]


def test_folds_want_one_group_a_row():
    with pytest.raises(ValueError, match="expected one group for each of 3 rows, got groups \\(2,\\)"):
        stratified_folds(np.array([1, 0, 0]), 2, groups=np.arange(2))


# --- as many folds as there can be ------------------------------------------------------------


@given(grouped, st.integers(2, 6), st.integers(0, 9))
def test_every_fold_of_a_deal_holds_both_kinds_or_there_is_one_fold(rows, count, seed):
    s = np.array(rows)[:, 1]
    fold = assign_folds(s, count, seed, None)
    expected = min(count, int(s.sum()), int((s == 0).sum()))
    assert fold.shape == s.shape and fold.max() + 1 == (expected if expected >= 2 else 1)
    if expected >= 2:
        assert all({0, 1} == set(s[fold == number].tolist()) for number in range(expected))
        assert (fold == stratified_folds(s, expected, seed)).all()


def test_a_deal_has_no_more_folds_than_groups_of_positives():
    s = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0], np.int8)
    fold = assign_folds(s, 5, 0, np.array([7, 7, 7, 8, 1, 2, 3, 4, 5]))
    assert fold.max() == 1 and len(set(fold[:3])) == 1 and fold[3] != fold[0]
    assert (assign_folds(s, 5, 0, np.array([7, 7, 7, 7, 1, 2, 3, 4, 5])) == 0).all()


def test_a_deal_wants_one_group_a_row():
    with pytest.raises(ValueError, match="expected one group for each of 3 rows, got groups \\(2,\\)"):
        assign_folds(np.array([1, 0, 0]), 2, 0, np.arange(2))
