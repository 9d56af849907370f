from contextlib import contextmanager

import numpy as np
import pytest
import torch
from helpers.planted import planted
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from pucache.heads import design_matrix, soft_targets
from pucache.heads.cross_entropy import CrossEntropyObjective
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.moments import Moments
from pucache.heads.second_moments import SecondMoments
from pucache.heads.soft_targets import SoftTargetTrainer, fit_soft_targets
from pucache.progress import Silent
from pucache.storage import rows as storage_rows
from pucache.threads import worker_threads

pytestmark = pytest.mark.usefixtures("one_thread")
N, PENALTY, TIGHT = 400, 0.01, 1e-5
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data():
    X, s, _ = planted(N, prior=0.3)
    targets = expit(np.random.default_rng(0).normal(size=(N, 3)) + 2 * X[:, :1] - [1, 2, 4])
    targets[s == 1] = 1
    return X.astype(np.float16).astype(np.float32), s, targets.astype(np.float32)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(storage_rows, "_BLOCK_VALUES", 256)


def fit(X, targets, **options):
    return fit_soft_targets(X, targets, **{"penalty": PENALTY, "tolerance": TIGHT, "device": "cpu"} | options)


def weights_of(columns):
    return np.random.default_rng(1).uniform(0.2, 2, (N, columns)).astype(np.float32)


def cross_entropy(X, targets, weights, penalty, parameters):
    margins = X.astype(np.float64) @ parameters[:-1] + parameters[-1]
    loss = np.average(np.logaddexp(0, margins) - targets * margins, weights=weights)
    return loss + penalty / 2 * np.square(parameters[:-1]).sum()


def test_the_gradient_is_that_of_the_formula_by_finite_differences(data, small_blocks):
    X, s, targets = data
    design, weights = DesignMatrix(X, s, Moments(np.zeros(6, np.float32), 1.0), CPU), weights_of(3)
    checked = soft_targets._checked(N, targets, weights)
    objective = CrossEntropyObjective(design, *checked, np.array([0.0, 0.1, 2.0]), Silent())
    parameters = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    values, gradients = objective(parameters, torch.arange(3))
    for k, penalty in enumerate((0.0, 0.1, 2.0)):
        at = parameters[k].double().numpy()
        own = X, targets[:, k], weights[:, k], penalty
        assert values[k].item() == pytest.approx(cross_entropy(*own, at), rel=1e-5)
        ends = [[cross_entropy(*own, at + sign * 1e-5 * unit) for sign in (1, -1)] for unit in np.eye(7)]
        np.testing.assert_allclose(gradients[k], np.diff(ends, axis=1)[:, 0] / -2e-5, rtol=1e-3, atol=1e-5)
    some = objective(parameters[1:], torch.tensor([1, 2]))
    torch.testing.assert_close(some[1], gradients[1:])


@pytest.mark.parametrize("penalty", [1.0, 0.01, 1e-4])
def test_a_soft_target_is_two_weighted_rows_of_scikit_learn_s_logistic_regression(data, penalty):
    X, _, targets = data
    weights, spread = weights_of(3), Moments.of(X).spread
    heads = fit(X, targets, weights=weights, penalty=penalty)
    for k in range(3):
        both = np.concatenate([weights[:, k] * targets[:, k], weights[:, k] * (1 - targets[:, k])])
        model = LogisticRegression(C=1 / (penalty * spread**2), tol=1e-10, max_iter=10_000)
        model.fit(np.tile(X, (2, 1)).astype(np.float64), np.repeat([1, 0], N), sample_weight=both / weights[:, k].sum())
        np.testing.assert_allclose(heads.margins(X)[:, k], model.decision_function(X), atol=2e-3)
        own = targets[:, k], weights[:, k], 0.0
        exact = cross_entropy(X, *own, np.append(model.coef_[0], model.intercept_))
        assert heads.risk[k] == pytest.approx(exact, abs=1e-5)
    assert (heads.residual <= TIGHT).all()


def test_many_heads_together_are_as_each_alone(data):
    X, _, targets = data
    weights, penalties = weights_of(3), [1e-4, 0.01, 1.0]
    together = fit(X, targets, weights=weights, penalty=penalties)
    for k in range(3):
        alone = fit(X, targets[:, k], weights=weights[:, k], penalty=penalties[k])
        np.testing.assert_allclose(alone.coef[0], together.coef[k], rtol=1e-3, atol=5e-4)
        np.testing.assert_allclose(alone.intercept[0], together.intercept[k], rtol=1e-3, atol=2e-3)


def test_rows_of_weight_zero_might_as_well_not_be_there(data):
    X, _, targets = data
    kept, moments = np.arange(N) % 3 > 0, Moments.of(X)
    left_out = fit(np.where(kept[:, None], X, -7 * X), targets, weights=kept, moments=moments)
    absent = fit(X[kept], targets[kept], moments=moments)
    np.testing.assert_allclose(left_out.coef, absent.coef, atol=5e-4)
    np.testing.assert_allclose(left_out.intercept, absent.intercept, atol=2e-3)


def test_a_row_of_weight_three_is_three_rows_and_the_scale_of_weights_does_not_count(data):
    X, _, targets = data
    times, moments = np.random.default_rng(2).integers(1, 4, N), Moments.of(X)
    repeated = fit(X.repeat(times, 0), targets.repeat(times, 0), moments=moments)
    for scale in (1, 1000):
        np.testing.assert_allclose(fit(X, targets, weights=scale * times).coef, repeated.coef, atol=5e-4)


def test_a_warm_start_reaches_the_same_minimum_in_fewer_passes():
    X = planted(N, 40)[0].astype(np.float32) + 5
    targets = expit(np.random.default_rng(0).normal(size=(N, 2)) + 2 * X[:, :1] - [11, 13])
    cold, near = (fit(X, part, tolerance=2e-3) for part in (targets, targets * 0.999))
    warm = fit(X, targets, tolerance=2e-3, start=near)
    assert warm.passes < cold.passes
    np.testing.assert_allclose(warm.margins(X), cold.margins(X), atol=0.03)
    assert fit(X, targets, tolerance=2e-3, start=cold).passes <= 2


def test_a_trainer_comes_to_the_minimum_of_every_targets(data, monkeypatch):
    X, s, targets = data
    design = DesignMatrix(X, s, None, CPU)
    trainer = SoftTargetTrainer(design, weights=weights_of(3), penalty=PENALTY, tolerance=TIGHT)
    made = []
    of_sample = SecondMoments.of_sample
    monkeypatch.setattr(SecondMoments, "of_sample", lambda *given: made.append(given) or of_sample(*given))
    first = trainer.fit(targets)
    second = trainer.fit(targets[:, ::-1] ** 2, start=first)
    assert len(made) == 1
    for heads, expected in ((first, targets), (second, targets[:, ::-1] ** 2)):
        plain = fit(design, expected, weights=weights_of(3))
        np.testing.assert_allclose(heads.coef, plain.coef, atol=5e-4)


def test_rounded_rows_lead_to_the_same_minimum(monkeypatch):
    X = planted(4000, 40, apart=0.3)[0]
    targets = expit(np.random.default_rng(0).normal(size=(4000, 2)) + 2 * X[:, :1] - [1, 3]).astype(np.float32)
    exact = fit(X, targets, tolerance=2e-3)
    monkeypatch.setattr(design_matrix, "multiplies_bfloat16", lambda device: True)
    monkeypatch.setattr(design_matrix, "_REDUCED_VALUES", 1)
    for tolerance in (2e-3, 1e-4):
        heads = fit(X, targets, tolerance=tolerance)
        assert (heads.residual <= tolerance).all()
        np.testing.assert_allclose(heads.margins(X), exact.margins(X), atol=0.05)


def test_the_labels_of_a_design_matrix_count_for_nothing(data):
    X, s, targets = data
    plain = fit(X, targets, weights=weights_of(3))
    for labels in (s, np.zeros_like(s), np.ones_like(s)):
        design = DesignMatrix(X, labels, None, CPU)
        np.testing.assert_allclose(fit(design, targets, weights=weights_of(3)).coef, plain.coef, atol=5e-4)


@pytest.mark.parametrize("resident", [0, 1 << 29])
def test_the_form_of_x_and_the_room_for_it_change_nothing(data, monkeypatch, tmp_path, small_blocks, resident):
    X, _, targets = data
    np.save(tmp_path / "half.npy", X.astype(np.float16))
    np.save(tmp_path / "full.npy", X)
    expected = fit(X, targets)
    monkeypatch.setattr(design_matrix, "CPU_RESIDENT", resident)
    mapped = [np.load(tmp_path / name, mmap_mode="r") for name in ("half.npy", "full.npy")]
    for form in (X.astype(np.float16), np.asfortranarray(X), *mapped):
        heads = fit(form, targets)
        np.testing.assert_array_equal(heads.coef, expected.coef)
        assert heads.passes == expected.passes


def test_the_number_of_threads_does_not_change_a_bit(data, small_blocks, monkeypatch):
    X, s, targets = (np.tile(part, (12, *[1] * (part.ndim - 1))) for part in data)
    fitted = []
    for count in (1, 2, 5):
        used = []

        @contextmanager
        def spied(threads, used=used):
            used.append(threads)
            with worker_threads(threads) as run_all:
                yield run_all

        monkeypatch.setattr(soft_targets, "worker_threads", spied)
        monkeypatch.setattr("pucache.threads.cores", lambda count=count: count)
        torch.set_num_threads(count)
        fitted.append(fit(DesignMatrix(X, s, None, CPU), targets))
        assert used == [min(count, 4)]  # groups of blocks
    for other in fitted[1:]:
        np.testing.assert_array_equal(other.coef, fitted[0].coef)


def test_the_default_tolerance_ranks_rows_as_the_minimum_does(data):
    X, _, targets = data
    ranks = [
        heads.margins(X).argsort(0).argsort(0)
        for heads in (fit(X, targets, tolerance=soft_targets.TOLERANCE), fit(X, targets))
    ]
    for k in range(3):
        assert np.corrcoef(ranks[0][:, k], ranks[1][:, k])[0, 1] > 0.9999


def test_targets_that_are_all_zero_or_all_one_end_finite(data):
    X, _, targets = data
    heads = fit(X, np.column_stack([np.zeros(N), np.ones(N), targets[:, 0]]))
    assert np.isfinite(heads.coef).all() and heads.intercept[0] < -5 and heads.intercept[1] > 5
    np.testing.assert_allclose(heads.coef[2], fit(X, targets[:, 0]).coef[0], atol=5e-4)


def test_bad_input_is_refused(data):
    X, _, targets = data
    for bad, options, message in (
        (targets[:-1], {}, r"targets must have shape \(400, K\)"),
        (targets + 1, {}, r"targets must lie in \[0, 1\]"),
        (np.where(targets > 0.5, np.nan, targets), {}, r"targets must lie in \[0, 1\]"),
        (targets, {"weights": np.ones((N, 2))}, r"weights must have shape \(400,\) or \(400, 3\), got \(400, 2\)"),
        (targets, {"weights": np.zeros(N)}, "not all zero"),
        (targets, {"weights": np.full(N, -1.0)}, ">= 0"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(X, bad, **options)
