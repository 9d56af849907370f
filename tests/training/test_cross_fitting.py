from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.planted import planted

from pucache.estimates.calibration import fit_tilt
from pucache.estimates.review_weights import TrainingLabels
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.moments import Moments
from pucache.heads.solve import fit_heads
from pucache.labels.folds import assign_folds
from pucache.training import cross_fitting
from pucache.training.cross_fitting import PENALTIES, CrossFitter, HeadSettings, deal_folds

pytestmark = pytest.mark.usefixtures("one_thread")
X, S, _ = planted(150, labelled=30, apart=0.5)
FOLD = assign_folds(S, 3, 0, None)


def fitter(X=X, S=S, weights=None, fold=FOLD, *, moments=None, **settings):
    design = DesignMatrix(X, S, moments or Moments.of(X), torch.device("cpu"))
    return CrossFitter(design, TrainingLabels.of(S, weights=weights), fold[:, None], 0.3, HeadSettings(**settings))


# --- held out ----------------------------------------------------------------------------------


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
        for column, (one,) in enumerate(together):
            np.testing.assert_allclose(one.heads.coef[number], alone.coef[column], rtol=2e-2, atol=2e-2)


# --- the penalty -------------------------------------------------------------------------------


def test_a_strong_penalty_is_chosen_where_labels_are_few_and_dimensions_many():
    rows, s, _ = planted(150, d=60, labelled=12, apart=0.3)
    few = fitter(rows, s, fold=assign_folds(s, 5, 0, None))
    chosen = few.cross_fit()
    assert chosen.head.coef.shape == (1, 60) and len(chosen.of_halves.coef) == 0
    assert chosen.penalty in PENALTIES and chosen.penalty >= 1e-4
    grid = few.cross_fit((1e-6, 1e-5))
    assert grid.penalty in (1e-6, 1e-5) and (grid.fold == few.deals[:, 0]).all()


def test_small_piles_are_dealt_several_times_and_large_ones_once(monkeypatch):
    deals = deal_folds(S, 3, 7, None)
    assert (deals[:, 0] == assign_folds(S, 3, 7, None)).all() and (np.diff(deals, axis=1) != 0).any(0).all()
    monkeypatch.setattr(cross_fitting, "_ROWS_OF_DEALS", 2 * len(S))
    assert deal_folds(S, 3, 7, None).shape == (len(S), 1)


def test_each_deal_is_cross_fitted_as_alone():
    deals = deal_folds(S, 3, 0, None)
    several = replace(fitter(), deals=deals)
    for penalty in several.fit((1e-3, 1e-2), tolerance=1e-4):
        for number, one in enumerate(penalty):
            alone = fitter(fold=deals[:, number]).fit((one.penalty,), tolerance=1e-4)[0][0]
            assert (one.fold == deals[:, number]).all()
            np.testing.assert_allclose(one.margins, alone.margins, atol=2e-2)


def test_the_deal_of_the_median_prior_holds_out():
    several = replace(fitter(), deals=deal_folds(S, 3, 0, None))
    priors = [fit_tilt(deal.margins, S).prior for deal in several.fit((1e-3,))[0]]
    chosen, median = several.choose((1e-3, 1e-3)), int(np.argsort(priors, kind="stable")[len(priors) // 2])
    assert chosen.deal == median and (chosen.fold == several.deals[:, median]).all()
    final = several.cross_fit((1e-3, 1e-3))
    np.testing.assert_allclose(final.margins, chosen.margins, atol=0.1)


def test_with_a_single_fold_the_middle_penalty_is_taken():
    one = fitter(fold=np.zeros(len(S), np.int64))
    assert one.choose((1e-4, 1e-3, 1e-2)).penalty == one.cross_fit((1e-4, 1e-3, 1e-2)).penalty == 1e-3


def test_heads_of_all_rows_and_of_halves_are_those_of_training_alone():
    halves = np.random.default_rng(0).random((len(S), 2)) < 0.5
    together = fitter().cross_fit((1e-3, 1e-2), halves)
    alone = fitter().cross_fit((together.penalty,), halves)  # from nothing, all of them
    np.testing.assert_allclose(together.heads.coef, alone.heads.coef, rtol=5e-2, atol=5e-2)
    kept = fitter(X[halves[:, 0]], S[halves[:, 0]], fold=FOLD[halves[:, 0]], moments=Moments.of(X))
    expected = kept.cross_fit((together.penalty,)).head
    np.testing.assert_allclose(together.of_halves.coef[0], expected.coef[0], rtol=5e-2, atol=5e-2)


def test_of_many_unlabelled_rows_a_sample_chooses(monkeypatch):
    whole = fitter()
    monkeypatch.setattr(cross_fitting, "SAMPLE_BYTES", 60 * X.itemsize * X.shape[1])
    sampled = fitter()
    chosen = sampled.cross_fit((1e-4, 1e-2))
    assert chosen.margins.shape == S.shape and (chosen.fold == FOLD).all()
    np.testing.assert_allclose(chosen.margins, whole.fit((chosen.penalty,), tolerance=1e-3)[0][0].margins, atol=0.2)
