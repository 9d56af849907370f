import numpy as np
import pytest
import torch
from helpers.planted import QUICK, planted

from pucache.estimates.review_weights import TrainingLabels
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.moments import Moments
from pucache.heads.solve import fit_heads
from pucache.labels.folds import assign_folds
from pucache.training import cross_fitting
from pucache.training.cross_fitting import CrossFitter, HeadSettings, fit_held_out
from pucache.training.penalty import PENALTIES

pytestmark = pytest.mark.usefixtures("one_thread")
X, S, Y = planted(150, labelled=30, apart=0.5)
FOLD = assign_folds(S, 3, 0, None)


def fitter(X=X, S=S, weights=None, fold=FOLD, *, moments=None, **settings):
    design = DesignMatrix(X, S, moments or Moments.of(X), torch.device("cpu"))
    return CrossFitter(design, TrainingLabels.of(S, weights=weights), fold, 0.3, HeadSettings(**settings))


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


def test_a_strong_penalty_is_chosen_where_labels_are_few_and_dimensions_many():
    rows, s, _ = planted(150, d=60, labelled=12, apart=0.3)
    few = fitter(rows, s, fold=assign_folds(s, 5, 0, None))
    chosen = few.choose_penalty()
    assert chosen.penalty in PENALTIES and chosen.penalty >= 1e-4
    grid = few.choose_penalty((1e-6, 1e-5))
    assert grid.penalty in (1e-6, 1e-5) and (grid.fold == few.fold).all()


def test_of_many_unlabelled_rows_a_sample_chooses(monkeypatch):
    whole = fitter()
    monkeypatch.setattr(cross_fitting, "SAMPLE_BYTES", 60 * X.itemsize * X.shape[1])
    sampled = fitter()
    chosen = sampled.choose_penalty((1e-4, 1e-2))
    assert chosen.margins.shape == S.shape and (chosen.fold == FOLD).all()
    np.testing.assert_allclose(chosen.margins, whole.fit((chosen.penalty,), tolerance=1e-3)[0].margins, atol=0.2)


def test_the_folds_of_several_seeds_are_trained_as_each_alone():
    folds = np.stack([assign_folds(S, count, seed, None) for count, seed in ((3, 0), (2, 1))], axis=1)
    design, labels = DesignMatrix(X, S, None, torch.device("cpu")), TrainingLabels.of(S)
    penalty, prior, tight = (1e-3, 1e-2), (0.2, 0.4), {"settings": HeadSettings(), "tolerance": 1e-4}
    heads, margins = fit_held_out(design, labels, folds, prior=prior, penalty=penalty, seeds=(0, 1), **tight)
    assert heads.coef.shape == (10, 6) and margins.shape == (150, 4)
    for run, (number, seed) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        _, alone = fit_held_out(
            design,
            labels,
            folds[:, [seed]],
            prior=prior[number : number + 1],
            penalty=penalty[number : number + 1],
            seeds=(seed,),
            **tight,
        )
        np.testing.assert_allclose(margins[:, run], alone[:, 0], atol=0.02 * margins.std())


def test_the_same_again_is_the_same():
    one, other = (fitter().choose_penalty((1e-4, 1e-3, 1e-2)) for _ in range(2))
    assert one.penalty == other.penalty and (one.margins == other.margins).all()
    assert (one.heads.coef == other.heads.coef).all() and (one.heads.intercept == other.heads.intercept).all()
