import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.planted import planted, write_cache

import pucache
from pucache import PULinearClassifier
from pucache.estimates.calibration import fit_tilt, log_likelihoods
from pucache.estimates.review_weights import TrainingLabels
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.moments import Moments
from pucache.heads.solve import fit_heads, flushed_denormals
from pucache.labels.folds import assign_folds
from pucache.training import cross_fitting
from pucache.training.cross_fitting import PENALTIES, CrossFitter, HeadSettings, deal_folds, log_posteriors

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


def test_small_piles_are_dealt_several_times_and_large_ones_once(monkeypatch):
    deals = deal_folds(S, 3, 7, None)
    assert (deals[:, 0] == assign_folds(S, 3, 7, None)).all() and (np.diff(deals, axis=1) != 0).any(0).all()
    monkeypatch.setattr(cross_fitting, "_ROWS_OF_DEALS", 2 * len(S))
    assert deal_folds(S, 3, 7, None).shape == (len(S), 1)


def test_the_deal_of_the_median_prior_holds_out():
    several = replace(fitter(), deals=deal_folds(S, 3, 0, None))
    priors = [fit_tilt(deal.margins, S).prior for deal in several.fit((1e-3,))[0]]
    chosen, median = several.choose((1e-3, 1e-3)), int(np.argsort(priors, kind="stable")[len(priors) // 2])
    assert chosen.deal == median and (chosen.fold == several.deals[:, median]).all()
    final = several.cross_fit((1e-3, 1e-3))
    np.testing.assert_allclose(final.margins, chosen.margins, atol=0.1)


# --- the penalty -------------------------------------------------------------------------------


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
    one = fitter(fold=np.zeros(len(S), np.int64))
    assert one.choose((1e-4, 1e-3, 1e-2)).penalty == one.cross_fit((1e-4, 1e-3, 1e-2)).penalty == 1e-3, "of one fold"


# --- Choice of the penalty: the likelihood of the labels, and the prior on the grid ---------------


def test_equal_margins_leave_the_choice_to_the_prior():
    draw = np.random.default_rng(0)
    s = (np.arange(2000) < 30).astype(np.int8)
    labels, margins = TrainingLabels.of(s), draw.normal(2.0 * (s == 1), 1).astype(np.float32)[:, None]
    chosen, _ = log_posteriors([margins] * len(PENALTIES), PENALTIES, labels)
    assert PENALTIES[int(np.argmax(chosen))] == 1e-3
    assert np.isfinite(log_posteriors([margins], (0.0,), labels)[0]).all()


def test_the_likelihood_is_the_mean_over_the_deals():
    draw = np.random.default_rng(1)
    s = (np.arange(800) < 20).astype(np.int8)
    deals = (draw.normal(size=(800, 3)) + 2.0 * (s == 1)[:, None]).astype(np.float32)
    apart = [log_posteriors([deals[:, [number]]], (1e-3,), TrainingLabels.of(s))[0][0] for number in range(3)]
    (together,), (priors,) = log_posteriors([deals], (1e-3,), TrainingLabels.of(s))
    assert together == pytest.approx(np.mean(apart), abs=1e-3) and abs(together - apart[0]) > 0.1
    np.testing.assert_allclose(priors, [fit_tilt(column, s).prior for column in deals.T], rtol=1e-2)


def test_a_search_that_starts_at_the_tilt_of_another_deal_ends_as_high_as_one_from_nothing():
    lost = []
    for seed in range(60):
        draw = np.random.default_rng(seed)
        s = (np.arange(400) < draw.choice([5, 15, 60])).astype(np.int8)
        positive = (s == 1) | (draw.random(400) < draw.uniform(0.01, 0.5))
        margins = draw.normal(size=400) + draw.uniform(0.5, 4) * positive
        deals = (margins[:, None] + draw.normal(size=(400, 2)) / 3).astype(np.float32)
        lost.append(log_likelihoods(deals[:, [1]], s)[0][0] - log_likelihoods(deals, s)[0][1])
    assert np.sum(np.array(lost) > 0.05) <= 1, "likelihoods of 5 labels have several maxima"


# --- Columns of unlike spread, rows that hardly differ, and rankings that are no better than chance---

NOISE = np.random.default_rng(1).normal(size=len(X)).astype(np.float32)


def said(caplog, X):
    caplog.clear()
    with caplog.at_level(logging.WARNING, "pucache"):
        PULinearClassifier(method="linear", penalty=0.01).fit(X, S)
    return [record.getMessage() for record in caplog.records]


def test_the_unit_of_the_embeddings_does_not_matter():
    whole = PULinearClassifier(method="linear", penalty=0.01).fit(X, S).margins(X)
    for scale in (1e-16, 1e8):
        scaled = X * np.float32(scale)
        margins = PULinearClassifier(method="linear", penalty=0.01).fit(scaled, S).margins(scaled)
        assert np.corrcoef(margins, whole)[0, 1] > 0.999


@pytest.mark.parametrize("scale", [1e-19, 1e-40])
def test_rows_whose_squares_vanish_count_as_equal_and_that_is_said(caplog, scale):
    with caplog.at_level(logging.WARNING, "pucache"):
        assert Moments.of(np.full((9, 3), np.float32(scale))).spread == 1.0  # equal rows
        assert not caplog.records
        assert Moments.of(X * np.float32(scale)).spread == 1.0
    assert "count as equal: scale them" in caplog.text


@pytest.mark.parametrize("on", [True, False])
def test_the_caller_keeps_its_own_setting_of_denormals(on):
    torch.set_flush_denormal(on)
    try:
        with flushed_denormals():
            assert not torch.tensor([1e-40]) * 1
        assert bool(torch.tensor([1e-40]) * 1) != on
    finally:
        torch.set_flush_denormal(False)


def test_a_column_that_has_nearly_all_variance_and_a_ranking_no_better_than_chance_are_said(caplog):
    for column in (0, 5):
        wide = X.copy()
        wide[:, column] = 150 * NOISE
        first, *_ = said(caplog, wide)
        assert first.startswith(f"column {column} (of 0 to 5) has 99.9") and "(X - X.mean(0)) / X.std(0)" in first
    constant = X.copy()
    constant[:, 2] = 1e6
    for rows in (X, constant, X + 1e4, np.column_stack([X, 10 * NOISE]), X[:, :1]):
        assert said(caplog, rows) == []
    begins = "held-out ranking is no better than chance (AUC of labelled against unlabelled 0."
    for rows in (np.ones_like(X), NOISE[:, None] * np.ones(6, np.float32)):
        assert any(text.startswith(begins) for text in said(caplog, rows))


def test_the_device_cpu_asks_nothing_of_cuda(tmp_path, monkeypatch):
    def asked(*arguments):
        raise AssertionError("CUDA was asked")

    for function in ("is_available", "device_count", "mem_get_info", "current_device"):
        monkeypatch.setattr(torch.cuda, function, asked)
    cache = write_cache(tmp_path / "c.h5", X)
    assert pucache.retrieve_positives(cache, S, device="cpu")
    assert pucache.report(cache, S, tmp_path / "r.html", sample=20, device="cpu")


def test_a_given_prior_that_the_ranking_of_the_labels_rules_out_is_said(caplog):
    model = PULinearClassifier(prior=0.9, penalty=1e-2, device="cpu").fit(X, S)
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith("the given prior, 0.9, is too large for these labels: with it") and "at most 0.55" in text
    assert model.prior_ == 0.9 and model.figures_["recall"].value and model.figures_["precision"].value is None


def test_labels_of_which_a_quarter_are_wrong_still_call_images():
    rows, _, y = planted(800, 64, labelled=0, prior=0.1, apart=0.19)
    labelled = np.concatenate([np.flatnonzero(y == 1)[:30], np.flatnonzero(y == 0)[:10]])
    s = np.isin(np.arange(len(rows)), labelled).astype(np.int8)
    model = PULinearClassifier(penalty=1e-2, device="cpu").fit(rows, s)
    assert model.tilt_.prior * (s == 0).sum() < 1  # the wrong ones rank among the negatives, and nothing seems hidden
    assert (model.held_out_margins_[s == 1] > model.threshold_).mean() >= 0.5
    strict = PULinearClassifier(penalty=1e-2, threshold=1e6, device="cpu").fit(rows, s)
    assert strict.figures_["precision"].interval is None and strict.figures_["recall"].value == 0
