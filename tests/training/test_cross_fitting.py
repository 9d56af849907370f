import numpy as np
import pytest
from helpers.planted import QUICK, planted
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.estimates.calibration import Tilt
from pucache.estimates.review_weights import TrainingLabels
from pucache.heads.moments import Moments
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads
from pucache.labels.folds import assign_folds
from pucache.training import cross_fitting, penalty
from pucache.training.cross_fitting import CrossFitter
from pucache.training.penalty import PENALTIES, ranks_of_positives, weakest_of_the_best

pytestmark = pytest.mark.usefixtures("one_thread")
X, S, Y = planted(150, labelled=30, apart=0.5)
FOLD = assign_folds(S, 3, 0, None)


def fitter(X=X, S=S, weights=None, fold=FOLD, *, moments=None, risk=None, **training):
    training = {"risk": risk or PURisk(), "prior": 0.3, "moments": moments or Moments.of(X), "device": "cpu"} | training
    return CrossFitter(X, TrainingLabels.of(S, weights=weights), fold, **training)


# --- held out ----------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [{}, {"solver": "sgd", "sgd_settings": QUICK}], ids=["batch", "sgd"])
@pytest.mark.parametrize("held", [0, 1, 2])
def test_the_head_of_a_fold_is_blind_to_its_rows_and_to_their_labels(held, training):
    """The moments, which X alone decides and no label, are shared; they are held fixed here."""
    moments, rows = Moments.of(X), held == FOLD
    other_rows, other_labels = X.copy(), S.copy()
    other_labels[rows] = 1 - other_labels[rows]
    other_rows[rows] = 5 + np.arange(rows.sum() * X.shape[1], dtype=np.float32).reshape(-1, X.shape[1])
    first = fitter(moments=moments, **training).fit((1e-3,))[0]
    relabelled = fitter(X, other_labels, moments=moments, **training).fit((1e-3,))[0]
    assert np.abs(relabelled.heads.coef - first.heads.coef).max(1)[np.arange(3) != held].min() > 1e-3
    if not training:  # sgd deals its batches by label
        np.testing.assert_allclose(relabelled.heads.coef[held], first.heads.coef[held], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(relabelled.margins[rows], first.margins[rows], rtol=1e-3, atol=1e-2)
        replaced = fitter(other_rows, S, moments=moments, **training).fit((1e-3,), start=first.heads)[0]
        np.testing.assert_allclose(replaced.heads.coef[held], first.heads.coef[held], rtol=2e-2, atol=2e-2)


def test_margins_are_those_of_the_head_that_left_the_row_out():
    several = fitter().fit((1e-4, 1e-2))
    assert [one.penalty for one in several] == [1e-4, 1e-2]
    for one in several:
        assert one.heads.coef.shape == (3, 6) and (one.fold == FOLD).all() and one.margins.dtype == np.float32
        own = np.einsum("nd,nd->n", X, one.heads.coef[FOLD]) + one.heads.intercept[FOLD]
        np.testing.assert_allclose(one.margins, own, rtol=1e-4, atol=1e-4)
    assert not np.allclose(several[0].margins, several[1].margins, rtol=0.1)


@pytest.mark.parametrize("weighted", [False, True])
def test_each_head_is_the_one_that_training_without_its_fold_gives(weighted):
    weights = np.random.default_rng(0).uniform(0.2, 2, len(S)).astype(np.float32) if weighted else None
    together = fitter(weights=weights).fit((1e-3, 1e-2), tolerance=1e-4)
    for number in range(3):
        kept = number != FOLD
        alone = fit_heads(
            X[kept],
            S[kept],
            weights=None if weights is None else weights[kept, None],
            penalty=[1e-3, 1e-2],
            prior=0.3,
            moments=Moments.of(X),
            tolerance=1e-4,
            device="cpu",
        )
        for column, one in enumerate(together):
            np.testing.assert_allclose(one.heads.coef[number], alone.coef[column], rtol=2e-2, atol=2e-2)


def test_noise_is_not_ranked_by_heads_that_have_not_seen_it():
    noise, s, _ = planted(120, d=100, labelled=40, apart=0.0)
    fold = assign_folds(s, 4, 0, None)
    held_out = fitter(noise, s, fold=fold).fit((1e-6,))[0].margins
    seen = fitter(noise, s, fold=np.zeros(120, int)).fit((1e-6,))[0].margins
    assert abs(held_out[s == 1].mean() - held_out[s == 0].mean()) < 0.5 * held_out.std()
    assert (seen[s == 1, None] > seen[s == 0]).mean() > 0.85


def test_one_fold_means_one_head_of_all_rows():
    one = fitter(fold=np.zeros(150, np.int64)).fit((1e-3,))[0]
    whole = fit_heads(X, S, penalty=1e-3, prior=0.3, device="cpu", tolerance=2e-3)
    assert one.heads.coef.shape == (1, 6)
    np.testing.assert_allclose(one.heads.coef, whole.coef, rtol=1e-2, atol=1e-2)


# --- the penalty -------------------------------------------------------------------------------


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


def test_a_strong_penalty_is_chosen_where_labels_are_few_and_dimensions_many():
    rows, s, _ = planted(150, d=60, labelled=12, apart=0.3)
    few = fitter(rows, s, fold=assign_folds(s, 5, 0, None))
    chosen = few.choose_penalty()
    assert chosen.penalty in PENALTIES and chosen.penalty >= 1e-4
    grid = few.choose_penalty((1e-6, 1e-5))
    assert grid.penalty in (1e-6, 1e-5) and (grid.fold == few.fold).all()


# --- dealing -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    labels=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12)), min_size=2, max_size=40),
    count=st.integers(2, 6),
    seed=st.integers(0, 5),
    grouped=st.booleans(),
)
def test_every_fold_has_both_kinds_and_whole_groups_or_there_is_one_fold(labels, count, seed, grouped):
    s = np.array([label for label, _ in labels], np.int8)
    s[:2] = 0, 1
    group = np.array([number for _, number in labels]) if grouped else None
    fold = assign_folds(s, count, seed, group)
    assert fold.shape == s.shape and fold.min() == 0 and fold.max() < count
    assert (assign_folds(s, count, seed, group) == fold).all()
    if fold.max() > 0:
        for number in range(fold.max() + 1):
            assert set(s[fold == number]) == {0, 1}
    if grouped:
        assert all(len(set(fold[group == number])) == 1 for number in set(group))
    else:
        assert fold.max() + 1 == max(1, min(count, (s == 1).sum(), (s == 0).sum()) if min(np.bincount(s)) > 1 else 1)


def test_folds_are_even_and_depend_on_the_seed():
    fold = assign_folds(S, 5, 0, None)
    for value in (0, 1):
        assert np.ptp(np.bincount(fold[value == S])) <= 1
    assert (assign_folds(S, 5, 1, None) != fold).any()


def test_positives_that_are_all_twins_leave_nothing_to_hold_out():
    group = np.where(S == 1, 0, 1 + np.arange(len(S)))
    assert (assign_folds(S, 5, 0, group) == 0).all()


def test_a_group_for_each_row_is_asked_for():
    with pytest.raises(ValueError, match=r"^expected one group for each of 150 rows, got groups \(5,\)$"):
        assign_folds(S, 3, 0, np.arange(5))


# --- bootstrap draws ---------------------------------------------------------------------------


@pytest.mark.parametrize("draws", [1, 7, 23])
def test_draws_are_of_as_many_rows_of_each_kind_and_repeat_by_seed(draws):
    several = fitter()
    fitted = several.fit((1e-3,))[0]
    found = list(several.bootstrap(fitted, draws, 1))
    assert len(found) == draws
    for draw in found:
        counts = draw.weights
        assert draw.margins.shape == counts.shape == S.shape and (draw.s == S).all()
        assert np.isfinite(draw.margins).all()
        assert counts[S == 1].sum() == 30 and counts[S == 0].sum() == 120 and counts.max() > 1
    again, other = list(several.bootstrap(fitted, draws, 1)), list(several.bootstrap(fitted, draws, 2))
    for one, same, another in zip(found, again, other, strict=True):
        assert (one.margins == same.margins).all() and (one.weights == same.weights).all()
        assert (one.weights != another.weights).any()
    assert len({draw.weights.tobytes() for draw in found}) == draws


def test_no_draws_yield_nothing():
    several = fitter()
    assert list(several.bootstrap(several.fit((1e-3,))[0], 0, 0)) == []


def test_the_margins_of_a_draw_are_held_out_and_of_heads_trained_on_that_draw():
    several = fitter()
    fitted = several.fit((1e-2,))[0]
    drawn = next(several.bootstrap(fitted, 1, 0))
    margins, counts = drawn.margins, drawn.weights
    for number in range(3):
        weights = (counts * (number != FOLD)).astype(np.float32)[:, None]
        alone = fit_heads(X, S, weights=weights, penalty=1e-2, prior=0.3, tolerance=1e-3, device="cpu")
        held = number == FOLD
        assert np.corrcoef(alone.margins(X[held])[:, 0], margins[held])[0, 1] > 0.999
        np.testing.assert_allclose(margins[held], alone.margins(X[held])[:, 0], atol=0.1 * margins.std())


def test_rows_without_weight_are_never_drawn():
    weights = np.where(np.arange(150) % 2, 2.0, 0.0).astype(np.float32)
    several = fitter(weights=weights)
    for draw in several.bootstrap(several.fit((1e-3,))[0], 5, 0):
        times = draw.weights / 2  # what is told is how often times the weight
        assert not times[weights == 0].any() and times.max() > 1
        assert times[S == 1].sum() == ((S == 1) & (weights > 0)).sum() and times.sum() == (weights > 0).sum()


def test_of_many_unlabelled_rows_a_sample_chooses_and_is_drawn_from(monkeypatch):
    whole = fitter()
    monkeypatch.setattr(cross_fitting, "SAMPLE_BYTES", 60 * X.itemsize * X.shape[1])
    sampled = fitter()
    chosen = sampled.choose_penalty((1e-4, 1e-2))
    assert chosen.margins.shape == S.shape and (chosen.fold == FOLD).all()
    np.testing.assert_allclose(chosen.margins, whole.fit((chosen.penalty,), tolerance=1e-3)[0].margins, atol=0.2)
    for draw in sampled.bootstrap(chosen, 2, 0):
        assert draw.margins.shape == draw.s.shape == draw.weights.shape == (90,)
        assert draw.s.sum() == draw.weights[draw.s == 1].sum() == 30 and draw.weights.sum() == 90
        assert np.corrcoef(draw.margins, draw.s)[0, 1] > 0.3


def test_the_same_again_is_the_same():
    one, other = (fitter().choose_penalty((1e-4, 1e-3, 1e-2)) for _ in range(2))
    assert one.penalty == other.penalty and (one.margins == other.margins).all()
    assert (one.heads.coef == other.heads.coef).all() and (one.heads.intercept == other.heads.intercept).all()
