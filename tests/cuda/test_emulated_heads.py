"""Heads and classifiers on a device that is emulated: results are the CPU's, and no devices are mixed.

Budgets hold what the host waits for, and what it launches. With more waits or launches than here, fits on a GPU take
as long as the host takes to ask for them.
"""

import logging

import numpy as np
import pytest
import torch
from helpers.emulated_cuda import emulated_cuda
from helpers.planted import planted, write_cache
from helpers.slow import slow

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.heads import device_rows
from pucache.heads.cross_entropy import CrossEntropyObjective
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.full_batch import RiskObjective
from pucache.heads.minibatch import SGDSettings
from pucache.heads.problem import HeadProblem
from pucache.heads.risks import RISKS, PURisk
from pucache.heads.second_moments import SecondMoments
from pucache.heads.soft_targets import fit_soft_targets
from pucache.heads.solve import fit_heads
from pucache.progress import Silent
from pucache.training.labelled_cache import LabelledCache
from pucache.training.train_on_cache import train_pu

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which test_gpu.py runs"),
    pytest.mark.usefixtures("one_thread"),
]
EPOCHS = 3
CPU, CUDA = torch.device("cpu"), torch.device("cuda")

WAITS_OF_A_FIT = 7  # beside one for each pass over the data: moments, directions, ends of stages, results
LAUNCHES_OF_AN_EVALUATION = 60
LAUNCHES_OF_A_PASS = 185  # evaluation and step
LAUNCHES_OF_A_FIT = 150  # beside those of its passes


@pytest.fixture(scope="module")
def rows():
    X, s, _ = planted(600, 24, 60, 0.1, seed=0)
    return X, s


def heads(rows, device, **settings):
    X, s = rows
    options = {"prior": np.array([0.05, 0.1, 0.2]), "penalty": 1e-3, "risk": PURisk()} | settings
    return fit_heads(X, s, device=device, **options).margins(X)


def weights(rows):
    return np.random.default_rng(1).integers(0, 3, (len(rows[1]), 3)).astype(np.float32)


@pytest.mark.parametrize("weighted", [slow(False), True])
@pytest.mark.parametrize("risk", sorted(RISKS))
@pytest.mark.parametrize("solver", ["batch", "sgd"])
def test_heads_are_those_of_the_cpu(rows, solver, risk, weighted):
    settings = {"solver": solver, "risk": PURisk(risk), "weights": weights(rows) if weighted else None}
    if solver == "sgd":
        settings["sgd_settings"] = SGDSettings(epochs=EPOCHS, min_steps=0)
    expected = heads(rows, "cpu", **settings)
    with emulated_cuda():
        margins = heads(rows, "cuda", **settings)
    np.testing.assert_allclose(margins, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.fixture
def cache(rows, tmp_path):
    write_cache(tmp_path / "cache.h5", rows[0])
    return EmbeddingCache(tmp_path / "cache.h5")


@pytest.mark.parametrize("method", ["linear", "distilled"])
@pytest.mark.slow
def test_a_classifier_is_that_of_the_cpu(rows, cache, method):
    expected = train_pu(cache, rows[1], method=method, device="cpu")
    with emulated_cuda():
        model = train_pu(cache, rows[1], method=method, device="cuda")
    assert model.method_ == expected.method_ and model.penalty_ == expected.penalty_
    assert model.prior_ == pytest.approx(expected.prior_, rel=1e-3)
    margins = expected.margins(rows[0])
    np.testing.assert_allclose(model.margins(rows[0]), margins, atol=5e-3 * np.abs(margins).max())


# --- budgets of the batch solver -------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [slow(False), True])
@pytest.mark.parametrize("count", [slow(1), 3])
@pytest.mark.parametrize("risk", sorted(RISKS))
def test_a_fit_waits_once_a_pass(rows, risk, count, weighted):
    X, s = rows
    row_weights = weights(rows)[:, :count] if weighted else None
    prior = 0.1 if weighted else np.linspace(0.05, 0.2, count)
    with emulated_cuda() as device:
        fitted = fit_heads(X, s, prior=prior, penalty=1e-3, risk=PURisk(risk), weights=row_weights, device="cuda")
        within_budget(device.counts, fitted.passes)


def within_budget(counts, passes, waits=0):
    assert passes > 4 and counts.waited <= passes + WAITS_OF_A_FIT + waits, str(counts)
    assert counts.launches <= passes * LAUNCHES_OF_A_PASS + LAUNCHES_OF_A_FIT, str(counts)


@pytest.mark.parametrize("penalties, inverses", [([1e-5], 1), ([1e-6, 1e-5, 1e-5], 1), ([1e-5, 1e-3, 0.1], 3)])
def test_a_fit_on_soft_targets_is_that_of_the_cpu_and_waits_once_a_pass(rows, penalties, inverses):
    X, _ = rows
    targets = np.random.default_rng(0).random((len(X), len(penalties)))
    settings = {"penalty": penalties, "tolerance": 1e-4}
    expected = fit_soft_targets(X, targets, device="cpu", **settings).margins(X)
    with emulated_cuda() as device:
        fitted = fit_soft_targets(X, targets, device="cuda", **settings)
        within_budget(device.counts, fitted.passes, waits=inverses)  # whether each could be computed
    np.testing.assert_allclose(fitted.margins(X), expected, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize("columns", [None, [0, 1, 2, 3], [0, 1, 0, 1]])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("risk", sorted(RISKS))
def test_launches_of_an_evaluation(rows, risk, count, columns):
    X, s = rows
    row_weights = None if columns is None else np.random.default_rng(0).random((len(s), 4)).astype(np.float32)
    column = 0 if columns is None else columns[:count]
    with emulated_cuda() as device, torch.inference_mode():
        design = DesignMatrix(X, s, None, CUDA)
        prior = np.full(count, 0.1)
        problem = HeadProblem.of(design, PURisk(risk), weights=row_weights, column=column, prior=prior)
        objective = RiskObjective(problem, Silent())
        for running in {count, max(1, count - 1)}:
            evaluation_within_budget(objective, running, design.d, device.counts)


def evaluation_within_budget(objective, running, d, counts):
    heads, parameters = torch.arange(running, device="cuda"), torch.zeros(running, d + 1, device="cuda")
    objective(parameters, heads)  # prepares rows and weights
    counts.clear()
    objective(parameters, heads)
    assert counts.launches <= LAUNCHES_OF_AN_EVALUATION and not counts.waited, str(counts)
    return counts.launches


def test_launches_of_an_evaluation_do_not_depend_on_the_number_of_rows(rows):
    launches = set()
    for times in (1, 40):
        X, s = np.tile(rows[0], (times, 1)), np.tile(rows[1], times)
        with emulated_cuda() as device, torch.inference_mode():
            design = DesignMatrix(X, s, None, CUDA)
            objective = RiskObjective(HeadProblem.of(design, PURisk(), prior=[0.1, 0.2], column=0), Silent())
            launches.add(evaluation_within_budget(objective, 2, design.d, device.counts))
    assert len(launches) == 1


def test_launches_of_an_evaluation_with_soft_targets(rows):
    X, s = rows
    targets, every = np.random.default_rng(0).random((len(X), 3)), np.full((len(X), 1), 1 / len(X), np.float32)
    with emulated_cuda() as device, torch.inference_mode():
        design = DesignMatrix(X, s, None, CUDA)
        objective = CrossEntropyObjective(design, targets, every, np.array([1e-3]), Silent())
        for running in (3, 2):
            evaluation_within_budget(objective, running, design.d, device.counts)


# --- rows on the device ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("free", [1 << 30, 10_000])
def test_moments_directions_and_second_moments_are_those_of_the_cpu(rows, dtype, free):
    X, s, importance = rows[0].astype(dtype) + 3, rows[1], np.arange(len(rows[0])) % 3
    expected = DesignMatrix(X, s, None, CPU)
    second = SecondMoments.of_sample(expected, importance).matrix
    with emulated_cuda(free=free) as device:
        design = DesignMatrix(X, s, None, CUDA)
        np.testing.assert_allclose(design.moments.centre, expected.moments.centre, rtol=1e-6)
        assert design.moments.spread == pytest.approx(expected.moments.spread, rel=1e-6)
        assert device.counts.waited == 1, str(device.counts)
        np.testing.assert_allclose(design.leading.variances, expected.leading.variances, rtol=1e-4)
        assert design.leading.rest == pytest.approx(expected.leading.rest, rel=1e-3, abs=1e-6)
        assert device.counts.waited == 2, str(device.counts)
        on_device = SecondMoments.of_sample(design, importance).matrix
        assert device.counts.waited == 2, str(device.counts)
        torch.testing.assert_close(on_device.cpu(), second, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [None, np.float32, np.float64, np.uint8])
def test_weights_are_normalised_as_on_the_cpu(rows, dtype):
    X, s = rows
    row_weights = None if dtype is None else (weights(rows) * np.array([1, 0, 1])).astype(dtype)
    chosen = np.arange(3, len(s), 2)
    expected = HeadProblem.of(DesignMatrix(X, s, None, CPU), PURisk(), weights=row_weights).normalised_weights(chosen)
    with emulated_cuda() as device:
        problem = HeadProblem.of(DesignMatrix(X, s, None, CUDA), PURisk(), weights=row_weights)
        normalised = problem.normalised_weights(chosen)
        assert not device.counts.waited, str(device.counts)
        for on_device, of_cpu in zip(normalised, expected, strict=True):
            torch.testing.assert_close(on_device.cpu(), of_cpu)


def test_moments_of_a_cache_are_left_to_the_device(rows, cache):
    with emulated_cuda():
        data = LabelledCache.of(cache, rows[1])
        assert data.moments is None
        centre = data.design_matrix().moments.centre
    np.testing.assert_allclose(centre, LabelledCache.of(cache, rows[1]).moments.centre, rtol=1e-5, atol=1e-6)


@pytest.fixture
def uploaded(monkeypatch):
    """Numbers of values that went up, array by array."""
    sizes, upload = [], device_rows.upload

    def counted(values, device):
        sizes.append(values.size)
        return upload(values, device)

    monkeypatch.setattr(device_rows, "upload", counted)
    return sizes


def test_rows_go_up_once_for_all_fits_on_them(rows, uploaded):
    X, s = rows
    with emulated_cuda():
        design = DesignMatrix(X.astype(np.float16), s, None, CUDA)
        half = np.flatnonzero(np.arange(len(s)) % 2)
        for of_fit in (design, design, design.take(half, s[half])):
            heads = fit_heads(of_fit, prior=0.1, penalty=1e-3)
            of_fit.margins(heads)
        fit_soft_targets(design, s.astype(np.float32))
    assert sum(size for size in uploaded if size > len(s)) == X.size


@pytest.mark.parametrize("free, streams", [(200_000, False), slow(60_000, False), (20_000, True)])
def test_rows_that_do_not_fit_are_converted_or_uploaded_in_every_pass(rows, free, streams, caplog):
    X, s = rows[0].astype(np.float16), rows[1]
    settings = {"prior": [0.1, 0.2], "penalty": 1e-3, "risk": PURisk("nnpu")}
    expected = fit_heads(X, s, device="cpu", **settings).margins(X)
    with emulated_cuda(free=free) as device, caplog.at_level(logging.WARNING, "pucache"):
        design = DesignMatrix(X, s, None, CUDA)
        fitted = fit_heads(design, **settings)
        assert device.counts.waited <= fitted.passes + WAITS_OF_A_FIT, str(device.counts)
        np.testing.assert_allclose(design.margins(fitted), expected, atol=1e-3 * np.abs(expected).max())
    messages = [record.getMessage() for record in caplog.records]
    assert ["uploaded again in every pass" in message for message in messages] == [True] * streams


def test_blocks_are_as_large_as_the_memory_allows_for_the_heads(rows):
    X, s = np.tile(rows[0], (20, 1)), np.tile(rows[1], 20)
    with emulated_cuda(free=40_000_000):
        blocks = DesignMatrix(X, s, None, CUDA).unlabelled
        sizes = {heads: [part.stop - part.start for part in blocks.groups(heads)[0]] for heads in (1, 100, 10**6)}
    assert len(sizes[1]) == 1 < len(sizes[100]) < len(sizes[10**6]) and max(sizes[10**6]) == 256
    assert all(sum(of_heads) == len(blocks) for of_heads in sizes.values())
