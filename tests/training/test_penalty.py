import numpy as np
import pytest

from pucache.estimates.calibration import Tilt
from pucache.estimates.review_weights import TrainingLabels
from pucache.training import penalty
from pucache.training.penalty import PENALTIES, ranks_of_positives, weakest_of_the_best


def test_the_grid_of_penalties_has_two_a_decade_and_rises():
    assert len(PENALTIES) == 9 and PENALTIES[0] == 1e-6 and PENALTIES[-1] == 1e-2
    np.testing.assert_allclose(np.diff(np.log10(PENALTIES)), 0.5, atol=1e-3)


@pytest.mark.parametrize("best", [0, 2, 4])
def test_the_clearly_best_candidate_is_chosen_wherever_it_lies(best):
    score = np.random.default_rng(0).normal(0, 0.1, 60) - 3.0 * np.abs(np.arange(5)[:, None] - best)
    assert weakest_of_the_best(score) == best


def test_of_candidates_alike_the_weakest_within_a_factor_of_ten_is_chosen():
    draw = np.random.default_rng(0)
    same = draw.normal(size=50)
    assert weakest_of_the_best(np.tile(same, (5, 1))) == 2  # from the strongest, two steps
    score = same + np.array([-3.0, -3.0, 0.0, 0.0, 0.0, 0.0])[:, None]
    assert weakest_of_the_best(score + draw.normal(0, 0.01, score.shape)) in (3, 4)  # smoothing pulls index 2 down
    lucky = np.zeros((5, 100))
    lucky[4, ::2], lucky[4, 1::2] = 1.0, -0.9  # by 0.05, within its standard error of 0.095
    assert weakest_of_the_best(lucky) == 2


def test_the_differences_are_paired():
    """Cases that differ much among themselves hide no small but steady difference."""
    cases = np.random.default_rng(0).normal(0, 10, 40)
    assert weakest_of_the_best(cases + np.array([0.0, 0.1, 0.2, 0.3])[:, None]) == 3


def test_a_lone_peak_counts_less_than_a_plateau():
    score = np.zeros((7, 30)) + np.array([0.0, 1.0, 0.0, 0.0, 0.9, 0.9, 0.9])[:, None]
    assert weakest_of_the_best(score) >= 5


def test_a_single_positive_or_a_single_candidate_is_enough():
    assert weakest_of_the_best(np.array([[0.0], [1.0], [3.0]])) == 2
    assert weakest_of_the_best(np.zeros((1, 5))) == 0 == weakest_of_the_best(np.zeros((3, 5)))


def test_positives_are_ranked_by_the_share_of_likely_negatives_above_them(monkeypatch):
    margins, s = np.array([5, 1, 2, 0, 3, 2], np.float32), np.array([1, 1, 1, 0, 0, 0])
    every, some = Tilt(0.0, 1.0, 1e-9), Tilt(-250.0, 100.0, 0.5)  # who of U is negative: all, or those below 2.5
    for tilt, shares in ((every, [0, 2 / 3, 2 / 3]), (some, [0, 1 / 2, 1 / 2])):  # a tie counts as above
        monkeypatch.setattr(penalty, "fit_tilt", lambda *_, tilt=tilt, **__: tilt)
        np.testing.assert_allclose(
            ranks_of_positives([margins], TrainingLabels.of(s))[0], -np.log(np.array(shares) + 0.01)
        )


def test_positives_hidden_above_a_labelled_one_do_not_count_against_it():
    """Where two in five are hidden a perfect ranking still looks better than one that errs."""
    draw = np.random.default_rng(0)
    y = np.repeat([1, 1, 0], [1000, 8000, 12000])
    s = np.repeat([1, 0], [1000, 20000])
    good, worse = (2.0 * apart * y + draw.standard_normal(len(y)) for apart in (2, 1))
    scores = ranks_of_positives([good, worse], TrainingLabels.of(s))
    assert scores[0].mean() > scores[1].mean() + 0.4
    known = [-np.log([(margins[y == 0] >= one).mean() + 0.01 for one in margins[s == 1]]) for margins in (good, worse)]
    np.testing.assert_allclose([score.mean() for score in scores], np.mean(known, axis=1), rtol=0.1)


def test_what_a_review_confirmed_ranks_too_and_rows_without_weight_count_for_nothing():
    draw = np.random.default_rng(0)
    s, reviewed = np.repeat([1, 0], [40, 400]).astype(np.int8), np.zeros(440, np.int8)
    margins, weights = draw.standard_normal(440) + 3 * s, np.ones(440, np.float32)
    reviewed[40:60], margins[40:60] = 1, 5
    plain = ranks_of_positives([margins], TrainingLabels.of(s))
    confirmed = ranks_of_positives([margins], TrainingLabels.of(s, reviewed))
    assert plain.shape == (1, 40) and confirmed.shape == (1, 60)
    margins[430:], weights[430:] = 50, 0  # above all, were they counted
    np.testing.assert_allclose(ranks_of_positives([margins], TrainingLabels.of(s, None, weights)), plain, atol=0.2)


@pytest.mark.parametrize("margins", [np.zeros(50), np.repeat([-1.0, 1.0], [10, 40]), np.repeat([1e6, -1e6], [10, 40])])
def test_margins_that_are_equal_inverted_or_far_apart_have_finite_ranks(margins):
    s = (np.arange(50) < 10).astype(np.int8)
    assert np.isfinite(ranks_of_positives([margins, margins], TrainingLabels.of(s))).all()
