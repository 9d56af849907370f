"""The design effect of groups, and what it does to intervals."""

import numpy as np
import pytest

from pucache.estimates.intervals import intervals_from_pu
from pucache.estimates.label_requirements import design_effect
from pucache.estimates.priors import profile_interval

ONE_FOLD = np.zeros(960, np.int64)


def pile(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Margins and labels of 60 labelled positives and 900 unlabelled rows, 100 of them positive."""
    draw = np.random.default_rng(seed)
    margins = draw.normal(size=960) + 2.5 * (np.arange(960) < 160)
    return margins.astype(np.float32), (np.arange(960) < 60).astype(np.int8)


def test_copies_count_as_often_as_there_are_groups_of_them():
    margins, s = pile()
    copies = np.repeat(margins, 7), np.repeat(s, 7)
    assert design_effect(*copies, None, np.repeat(np.arange(960), 7), ONE_FOLD.repeat(7)) == pytest.approx(7, rel=0.02)


def test_rows_of_a_group_that_are_independent_count_each():
    margins, s = pile()
    groups = [np.random.default_rng(k).integers(240, size=960) for k in range(20)]
    effects = [design_effect(margins, s, None, group, ONE_FOLD) for group in groups]
    assert np.mean(effects) < 1.25


def test_a_level_that_the_rows_of_a_fold_share_is_none_of_their_groups():
    margins, s = pile()
    fold = np.arange(960) % 5
    groups = 5 * (np.arange(960) // 25) + fold
    levels = margins + np.linspace(-2, 2, 5, dtype=np.float32)[fold]
    assert design_effect(levels, s, None, groups, fold) < 0.7 * design_effect(levels, s, None, groups, ONE_FOLD)


def test_groups_of_one_row_change_nothing():
    margins, s = pile()
    assert design_effect(margins, s, None, np.arange(960), ONE_FOLD) == pytest.approx(1, rel=0.02)


def test_intervals_of_copies_are_about_those_of_single_rows():
    margins, s = pile()
    copies, s_of_copies = np.repeat(margins, 5), np.repeat(s, 5)
    single = profile_interval(margins, s)
    grouped = profile_interval(copies, s_of_copies, design_effect=5)
    naive = profile_interval(copies, s_of_copies)
    assert grouped.low == pytest.approx(single.low, rel=0.1)
    assert grouped.high == pytest.approx(single.high, rel=0.1)
    assert naive.high - naive.low < 0.8 * (single.high - single.low)
    at = (0.11, (0.09, 0.14), 1.0)
    recall = {
        "single": intervals_from_pu(margins, s, *at)["recall"],
        "grouped": intervals_from_pu(copies, s_of_copies, *at, design_effect=5)["recall"],
    }
    assert recall["grouped"] == pytest.approx(recall["single"], abs=0.03)
