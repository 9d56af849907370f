"""Columns of unlike spread, rows that hardly differ, and rankings that are no better than chance."""

import logging

import numpy as np
import pytest
import torch
from helpers.planted import planted, write_cache

import pucache
from pucache import PULinearClassifier
from pucache.heads.moments import Moments
from pucache.heads.solve import flushed_denormals
from pucache.labels.labels import Labels, PULabels

X, S, Y = planted(600, labelled=60)
NOISE = np.random.default_rng(1).normal(size=len(X)).astype(np.float32)


def said(caplog, X, s=S):
    caplog.clear()
    with caplog.at_level(logging.WARNING, "pucache"):
        PULinearClassifier(method="linear", penalty=0.01).fit(X, s)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("column", [0, 3, 5])
def test_a_column_that_has_nearly_all_variance_is_named(caplog, column):
    wide = X.copy()
    wide[:, column] = 150 * NOISE
    first, *_ = said(caplog, wide)
    assert first.startswith(f"column {column} (of 0 to 5) has 99.9") and "(X - X.mean(0)) / X.std(0)" in first


def test_ordinary_columns_and_constant_ones_are_not(caplog):
    constant = X.copy()
    constant[:, 2] = 1e6
    for rows in (X, constant, X + 1e4, np.column_stack([X, 10 * NOISE]), X[:, :1]):
        assert said(caplog, rows) == []


@pytest.mark.parametrize("rows", [np.ones_like(X), NOISE[:, None] * np.ones(6, np.float32)], ids=["equal", "noise"])
def test_a_ranking_no_better_than_chance_is_said(caplog, rows):
    assert any(text.startswith("held-out ranking is no better than chance (PAUC 0.") for text in said(caplog, rows))


def test_labels_of_other_rows_are_noticed(caplog):
    assert any("no better than chance" in text for text in said(caplog, X, np.random.default_rng(0).permutation(S)))


def test_the_unit_of_the_embeddings_does_not_matter():
    rows, s = X[::2], S[::2]
    whole = PULinearClassifier(method="linear").fit(rows, s).margins(rows)
    for scale in (1e-16, 1e8):
        scaled = rows * np.float32(scale)
        margins = PULinearClassifier(method="linear").fit(scaled, s).margins(scaled)
        assert np.corrcoef(margins, whole)[0, 1] > 0.999


@pytest.mark.parametrize("scale", [1e-19, 1e-22, 1e-30, 1e-40])
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


CONCEPTS = Labels({"one": PULabels.of(S), "two": PULabels.of(S)})
FUNCTIONS = {
    "train_pu": lambda cache, out: pucache.train_pu(cache, S, device="cpu", penalty=0.01),
    "concepts": lambda cache, out: pucache.train_pu(cache, CONCEPTS, device="cpu", penalty=0.01),
    "estimate_prior": lambda cache, out: pucache.estimate_prior(cache, S, device="cpu"),
    "sweep_priors": lambda cache, out: pucache.sweep_priors(cache, S, PULinearClassifier(device="cpu"), priors=[0.3]),
    "retrieve_positives": lambda cache, out: pucache.retrieve_positives(cache, S, device="cpu"),
    "report": lambda cache, out: pucache.report(cache, S, out / "r.html", sample=20, device="cpu"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_device_cpu_asks_nothing_of_cuda(tmp_path, monkeypatch, name):
    def asked(*arguments):
        raise AssertionError("CUDA was asked")

    for function in ("is_available", "device_count", "mem_get_info", "current_device"):
        monkeypatch.setattr(torch.cuda, function, asked)
    assert FUNCTIONS[name](write_cache(tmp_path / "c.h5", X), tmp_path)
