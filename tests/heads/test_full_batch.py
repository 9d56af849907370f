from contextlib import contextmanager

import numpy as np
import pytest
import torch
from helpers.planted import planted
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from pucache.heads import design_matrix, full_batch, loss_sums
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.moments import Moments
from pucache.heads.problem import HeadProblem
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads
from pucache.progress import Silent
from pucache.storage import rows as storage_rows
from pucache.threads import worker_threads

pytestmark = pytest.mark.usefixtures("one_thread")
N, PRIOR, PENALTY = 400, 0.3, 0.01
TIGHT = 1e-5
CLAMPED = {"nnpu": "upu", "imbnnpu": "imbupu"}  # and what each is without its clamp
EVERY = ["upu", "nnpu", "imbupu", "imbnnpu", "weighted_bce", "bce"]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data():
    X, s, _ = planted(N, prior=PRIOR)
    return X.astype(np.float16).astype(np.float32), s


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks of 256 rows, from few rows."""
    monkeypatch.setattr(storage_rows, "_BLOCK_VALUES", 256)


def fit(X, s, risk="imbupu", **options):
    options = {"prior": PRIOR, "penalty": PENALTY, "device": "cpu"} | options
    return fit_heads(X, s, risk=PURisk(risk) if isinstance(risk, str) else risk, **options)


def weights_of(columns, seed=1):
    return np.random.default_rng(seed).uniform(0.2, 2, (N, columns)).astype(np.float32)


def same(one, other, **tolerance):
    for name in ("coef", "intercept", "risk", "clamped", "residual"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), **tolerance, err_msg=name)
    assert one.passes == other.passes


# --- what is minimised -------------------------------------------------------------------------


def by_formula(X, s, weights, prior, risk, coef, intercept):
    """R+ and R- of one head in float64, and the sum of the magnitudes of their coefficients."""
    p, u = (torch.as_tensor(weights * side, dtype=torch.float64) for side in (s == 1, s == 0))
    margins, t = torch.as_tensor(X, dtype=torch.float64) @ coef + intercept, risk.target_prior
    loss = torch.nn.functional.softplus if risk.surrogate == "logistic" else torch.sigmoid
    of_p, not_p, not_u = ((w * loss(m)).sum() / w.sum() for w, m in ((p, -margins), (p, margins), (u, margins)))
    a, b, c = {
        "upu": (prior, 1, -prior),
        "imbupu": (t, (1 - t) / (1 - prior), -prior * (1 - t) / (1 - prior)),
        "weighted_bce": (t, 1 - t, 0),
        "bce": (p.sum().item() / (p + u).sum().item(), u.sum().item() / (p + u).sum().item(), 0),
    }[CLAMPED.get(risk.name, risk.name)]
    return a * of_p, b * not_u + c * not_p, abs(a) + abs(b) + abs(c)


def objective(X, s, weights, prior, penalty, risk, parameters, spread):
    """R+ + R- with its kink smoothed + penalty, and the gradient of that; R+ + R-; R-."""
    parameters = torch.tensor(parameters, dtype=torch.float64, requires_grad=True)
    upper, lower, total = by_formula(X, s, weights, prior, risk, parameters[:-1], parameters[-1])
    held = lower
    if risk.name in CLAMPED:
        above = (lower + risk.beta) / full_batch.WIDTH
        held = full_batch.WIDTH * torch.logaddexp(above, torch.zeros_like(above)) - risk.beta
    value = upper + held + 0.5 * penalty * total * (spread * parameters[:-1]).square().sum()
    (gradient,) = torch.autograd.grad(value, parameters)
    return value.item(), gradient.float(), (upper + lower).item(), lower.item()


def negative_part(X, s, prior, risk, heads):
    coef = torch.from_numpy(heads.coef[0]).double()
    return by_formula(X, s, np.ones(len(X)), prior, risk, coef, heads.intercept[0])[1].item()


@pytest.mark.parametrize("surrogate", ["sigmoid", "logistic"])
@pytest.mark.parametrize("name", EVERY)
def test_value_and_gradient_are_those_of_the_formulas(data, small_blocks, name, surrogate):
    X, s = data
    if "bce" in name and surrogate == "sigmoid":
        surrogate = None
    risk = PURisk(name, surrogate, target_prior=0.4, beta=0.01)
    priors, penalties, weights = [0.02, 0.3, 0.8], [0.0, 0.1, 2.0], weights_of(3)
    design = DesignMatrix(X, s, Moments(np.zeros(6, np.float32), 1.0), CPU)
    problem = HeadProblem.of(design, risk, weights=weights, prior=priors, penalty=penalties)
    parameters = torch.randn(3, 7, generator=torch.Generator().manual_seed(0)) / 2
    parameters[2, :6] += 1  # towards the clamp
    values, gradients = full_batch.RiskObjective(problem, Silent())(parameters, torch.arange(3))
    negatives = []
    for k in range(3):
        value, gradient, _, negative = objective(
            X, s, weights[:, k], priors[k], penalties[k], risk, parameters[k].tolist(), 1.0
        )
        assert values[k].item() == pytest.approx(value, rel=1e-5, abs=1e-6)
        torch.testing.assert_close(gradients[k], gradient, rtol=1e-4, atol=1e-6)
        negatives.append(negative)
    if "bce" not in name:
        assert min(negatives) < -0.01 < max(negatives)  # both sides of the kink


@pytest.mark.parametrize("name", EVERY)
def test_at_the_end_the_gradient_of_the_whole_objective_is_nearly_nothing(data, name):
    X, s = data
    risk, weights, spread = PURisk(name), weights_of(3), Moments.of(X).spread
    priors, penalties = [0.1, 0.3, 0.3], [0.003, 0.01, 1.0]
    heads = fit(X, s, risk, weights=weights, prior=priors, penalty=penalties, tolerance=TIGHT)
    assert (heads.residual <= TIGHT).all()
    for k in range(3):
        own = X, s, weights[:, k], priors[k], penalties[k], risk
        _, left, free, negative = objective(*own, [*heads.coef[k], heads.intercept[k]], spread)
        _, at_start, _, _ = objective(*own, [0.0] * 7, spread)
        assert left.norm() < 3e-4 * at_start.norm()
        reported = free - min(negative, 0) if risk.clamped else free  # without the penalty
        assert heads.risk[k] == pytest.approx(reported, abs=1e-5)
        share = torch.sigmoid(torch.tensor(-negative / full_batch.WIDTH)) if risk.clamped else 0
        assert heads.clamped[k] == pytest.approx(float(share), abs=0.02)


@pytest.mark.parametrize("passes", range(1, 12))
def test_what_is_reported_is_of_where_a_head_ended_however_early(data, monkeypatch, passes):
    X, s = data[0].copy(), data[1]
    X[np.flatnonzero(s)[0]] *= 100  # many steps are too long and taken back
    monkeypatch.setattr(full_batch, "_MAX_PASSES", passes)
    heads = fit(X, s, PURisk("upu"), penalty=1e-4, prior=[0.01, 0.9], tolerance=1e-9)
    assert heads.passes <= 2 * passes + 2
    for k, prior in enumerate((0.01, 0.9)):
        risk, coef = PURisk("upu"), torch.from_numpy(heads.coef[k]).double()
        upper, lower, _ = by_formula(X, s, np.ones(N), prior, risk, coef, heads.intercept[k])
        assert heads.risk[k] == pytest.approx((upper + lower).item(), abs=1e-5)


@pytest.mark.parametrize("penalty", [1.0, 0.01, 1e-4])
@pytest.mark.parametrize("name, balance", [("weighted_bce", "balanced"), ("bce", None)])
def test_cross_entropy_heads_are_scikit_learn_s_logistic_regression(data, name, balance, penalty):
    X, s = data
    C = 1 / (N * penalty * Moments.of(X).spread ** 2)
    model = LogisticRegression(C=C, class_weight=balance, tol=1e-10, max_iter=10_000).fit(X.astype(np.float64), s)
    heads = fit(X, s, name, penalty=penalty, tolerance=TIGHT)
    np.testing.assert_allclose(heads.coef[0], model.coef_[0], atol=1e-4)
    np.testing.assert_allclose(heads.margins(X)[:, 0], model.decision_function(X), atol=5e-4)


@pytest.mark.parametrize("beta", [0.0, 0.05])
@pytest.mark.parametrize("name", ["nnpu", "imbnnpu"])
def test_where_the_clamp_acts_the_negative_part_ends_at_its_bound(data, name, beta):
    X, s = data
    risk, prior = PURisk(name, beta=beta), 0.7
    free, held = (fit(X, s, r, prior=prior) for r in (CLAMPED[name], risk))
    of = [negative_part(X, s, prior, risk, heads) for heads in (free, held)]
    assert of[0] < -beta - 20 * full_batch.WIDTH
    assert abs(of[1] + beta) < 3 * full_batch.WIDTH
    assert 0.2 < held.clamped[0] <= 1 and free.clamped[0] == 0


@pytest.mark.parametrize("name", ["nnpu", "imbnnpu"])
def test_where_the_clamp_does_not_act_the_head_is_that_without_it(data, name):
    X, s = data
    held, free = (fit(X, s, PURisk(n, beta=0.5), prior=0.1, penalty=0.1) for n in (name, CLAMPED[name]))
    same(held, free, atol=1e-4)


def test_imbalanced_upu_is_free_of_the_prior(data):
    X, s = data
    heads = fit(X, s, prior=[0.001, 0.1, 0.5, 0.9], weights=np.ones((N, 1)), column=0)
    assert np.abs(heads.coef[0]).max() > 0.3
    np.testing.assert_allclose(heads.coef, np.tile(heads.coef[0], (4, 1)), atol=1e-3)
    np.testing.assert_allclose(heads.intercept, np.full(4, heads.intercept[0]), atol=1e-3)
    assert np.ptp(fit(X, s, "upu", prior=[0.1, 0.5]).coef, axis=0).max() > 0.05  # as others are not


# --- many heads, weights, starts ---------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_many_heads_together_are_as_each_alone(data, name):
    X, s = data
    weights = weights_of(5)
    own = {"prior": [0.1, 0.2, 0.3, 0.5, 0.4], "penalty": [1, 0.1, 0.03, 0.01, 0.1], "seed": [0, 1, 2, 3, 0]}
    together = fit(X, s, name, weights=weights, tolerance=TIGHT, **own)
    for k in range(5):
        settings = {key: values[k] for key, values in own.items()}
        alone = fit(X, s, name, weights=weights[:, k : k + 1], tolerance=TIGHT, **settings)
        np.testing.assert_allclose(alone.coef[0], together.coef[k], rtol=2e-4, atol=2e-4)
        # where float32 ends depends on the processor: 8e-4 apart in the intercept, 4e-5 in the risk were seen
        np.testing.assert_allclose(alone.risk[0], together.risk[k], rtol=0, atol=1e-4)
        if together.intercept[k] < -10:  # calls everything negative: the lower the better, without end
            assert alone.intercept[0] < -10
        else:
            np.testing.assert_allclose(alone.intercept[0], together.intercept[k], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", EVERY)
def test_rows_of_weight_zero_might_as_well_not_be_there(data, name):
    X, s = data
    kept, moments = np.arange(N) % 3 > 0, Moments.of(X)
    shut_out = fit(X, s, name, weights=kept[:, None].astype(np.float32), moments=moments, tolerance=TIGHT)
    left = fit(X[kept], s[kept], name, moments=moments, tolerance=TIGHT)
    np.testing.assert_allclose(shut_out.coef, left.coef, atol=1e-3)
    np.testing.assert_allclose(shut_out.intercept, left.intercept, atol=1e-3)
    other = X.copy()
    other[~kept] *= -7
    moved = fit(other, s, name, weights=kept[:, None].astype(np.float32), moments=moments, tolerance=TIGHT)
    np.testing.assert_allclose(shut_out.coef, moved.coef, atol=1e-3)
    assert np.abs(fit(X, s, name).coef - left.coef).max() > 5e-3


@pytest.mark.parametrize("name", EVERY)
def test_a_row_of_weight_three_is_three_rows(data, name):
    X, s = data
    times, moments = np.random.default_rng(2).integers(1, 4, N), Moments.of(X)
    weighed = fit(X, s, name, weights=times[:, None].astype(np.float32), moments=moments, tolerance=TIGHT)
    repeated = fit(X.repeat(times, 0), s.repeat(times), name, moments=moments, tolerance=TIGHT)
    np.testing.assert_allclose(weighed.coef, repeated.coef, atol=1e-3)
    np.testing.assert_allclose(weighed.intercept, repeated.intercept, atol=1e-3)


@pytest.mark.parametrize("name", ["imbupu", "imbnnpu", "weighted_bce"])
def test_a_warm_start_reaches_the_same_minimum_in_fewer_passes(data, name):
    X, s = data
    X = X + 5
    cold = fit(X, s, name, penalty=[0.03, 0.01], seed=1)
    near = fit(X, s, name, penalty=[0.031, 0.0101], seed=1)
    warm = fit(X, s, name, penalty=[0.03, 0.01], start=near)
    assert warm.passes < cold.passes
    np.testing.assert_allclose(warm.margins(X), cold.margins(X), atol=0.02)
    again = fit(X, s, name, penalty=[0.03, 0.01], start=cold)
    assert again.passes <= 4  # where to go from, where one stands at either precision, what to report
    np.testing.assert_allclose(again.margins(X), cold.margins(X), atol=1e-3)


def test_the_seed_does_not_decide_where_a_convex_risk_ends(data):
    X, s = data
    heads = fit(X, s, "bce", seed=[0, 1, 2], tolerance=TIGHT)
    np.testing.assert_allclose(heads.coef, np.tile(heads.coef[0], (3, 1)), atol=1e-4)


def test_a_loose_tolerance_needs_fewer_passes_and_is_met(data):
    X, s = data
    loose, tight = fit(X, s, tolerance=0.1), fit(X, s, tolerance=TIGHT)
    assert loose.residual[0] <= 0.1 and tight.residual[0] <= TIGHT
    assert loose.passes < tight.passes


def test_a_processor_without_bfloat16_comes_to_the_same_heads(data, monkeypatch):
    X, s = data
    usual = fit(X, s, "imbnnpu", tolerance=TIGHT)
    monkeypatch.setattr(design_matrix, "multiplies_bfloat16", lambda device: not torch.cpu._is_avx512_bf16_supported())
    np.testing.assert_allclose(fit(X, s, "imbnnpu", tolerance=TIGHT).coef, usual.coef, atol=1e-3)


# --- rows in bfloat16 --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many():
    X, s, _ = planted(4000, 40, labelled=100, prior=PRIOR, apart=0.3)
    return X.astype(np.float16).astype(np.float32), s


@pytest.fixture
def reduced(monkeypatch):
    monkeypatch.setattr(design_matrix, "multiplies_bfloat16", lambda device: True)
    monkeypatch.setattr(design_matrix, "_REDUCED_VALUES", 1)


@pytest.mark.parametrize("name", EVERY)
def test_rounded_rows_lead_to_the_same_minimum(many, reduced, monkeypatch, name):
    X, s = many
    fitted = {}
    for anchored in (0, 1 << 26):
        monkeypatch.setattr(loss_sums, "_ANCHOR_VALUES", anchored)
        fitted[anchored] = fit(X, s, name, penalty=[0.01, 0.03])
    monkeypatch.setattr(design_matrix, "_REDUCED_VALUES", 1 << 40)
    exact = fit(X, s, name, penalty=[0.01, 0.03])
    for heads in fitted.values():
        assert (heads.residual <= full_batch.TOLERANCE).all()
        np.testing.assert_allclose(expit(heads.margins(X)), expit(exact.margins(X)), atol=5e-3)
        np.testing.assert_allclose(heads.risk, exact.risk, rtol=1e-4)


def test_errors_of_rounded_rows_are_relative_to_the_distance_from_the_anchor(many, reduced):
    X, s = many
    problem = HeadProblem.of(DesignMatrix(X, s, None, CPU), PURisk("imbnnpu"), prior=PRIOR, penalty=[0.01, 0.03, 0.1])
    objective, every = full_batch.RiskObjective(problem, Silent()), torch.arange(3)
    draw = torch.Generator().manual_seed(0)
    at, step = torch.randn(3, 41, generator=draw), torch.randn(3, 41, generator=draw)
    nearby, some = objective.anchored(at), torch.tensor([0, 2])
    for distance, error in ((0.0, 1e-6), (0.01, 2e-5), (0.1, 2e-4)):
        there = at + distance * step
        for exact, close in zip(objective(there, every), nearby(there, every), strict=True):
            torch.testing.assert_close(close, exact, rtol=0, atol=error * float(exact.abs().max()) + 1e-7)
    exact, close = objective(at[some] + step[some], some)[1], nearby(at[some] + step[some], some)[1]
    torch.testing.assert_close(close, exact, rtol=0, atol=5e-3 * float(exact.abs().max()))


@pytest.mark.parametrize("resident", [0, 1 << 29])
def test_room_changes_nothing_for_rounded_rows(many, reduced, monkeypatch, resident):
    X, s = many
    expected = fit(X, s)
    monkeypatch.setattr(design_matrix, "CPU_RESIDENT", resident)
    same(fit(X, s), expected, atol=0)


# --- X in many forms ---------------------------------------------------------------------------


@pytest.mark.parametrize("resident", [0, 1 << 29])
def test_the_form_of_x_and_the_room_for_it_change_nothing(data, monkeypatch, tmp_path, small_blocks, resident):
    X, s = data
    np.save(tmp_path / "half.npy", X.astype(np.float16))
    np.save(tmp_path / "full.npy", X)
    expected = fit(X, s, weights=weights_of(2))
    monkeypatch.setattr(design_matrix, "CPU_RESIDENT", resident)
    mapped = [np.load(tmp_path / name, mmap_mode="r") for name in ("half.npy", "full.npy")]
    for form in (X.astype(np.float16), np.asfortranarray(X), *mapped):
        same(fit(form, s, weights=weights_of(2)), expected, atol=0)


def test_the_size_of_the_blocks_changes_nothing_but_rounding(data, monkeypatch):
    X, s = data
    whole = fit(X, s, tolerance=TIGHT)
    monkeypatch.setattr(storage_rows, "_BLOCK_VALUES", 256)
    np.testing.assert_allclose(fit(X, s, tolerance=TIGHT).coef, whole.coef, atol=1e-4)


@pytest.mark.parametrize("name", EVERY)
def test_the_same_call_gives_the_same_bits(data, name):
    X, s = data
    one, other = (fit(X, s, name, seed=[0, 1], weights=weights_of(2)) for _ in range(2))
    same(one, other, atol=0)


@pytest.mark.parametrize("scale, shift", [(1e-3, 0.0), (50.0, 0.0), (1.0, 300.0), (0.1, -20.0)])
@pytest.mark.parametrize("name", ["imbupu", "bce"])
def test_scale_and_place_of_x_change_the_coefficients_alone(data, name, scale, shift):
    X, s = data
    plain, moved = fit(X, s, name), fit(X * np.float32(scale) + np.float32(shift), s, name)
    np.testing.assert_allclose(moved.coef * scale, plain.coef, atol=2e-3)
    np.testing.assert_allclose(moved.margins(X * np.float32(scale) + np.float32(shift)), plain.margins(X), atol=5e-3)


# --- odd data ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_a_feature_that_never_changes_is_of_no_consequence(data, name):
    X, s = data
    with_it = np.insert(X, 2, 7.3, axis=1)
    plain, heads = (fit(x, s, name, penalty=0.05, tolerance=TIGHT) for x in (X, with_it))
    np.testing.assert_allclose(heads.margins(with_it), plain.margins(X), atol=1e-3)
    assert abs(heads.coef[0, 2]) < 1e-3


@pytest.mark.parametrize("name", EVERY)
def test_rows_that_are_all_the_same_get_one_finite_margin(data, name):
    s = data[1]
    heads = fit(np.full((N, 3), 0.7, np.float32), s, name, penalty=[0.0, 0.1])
    margins = heads.margins(np.full((N, 3), 0.7, np.float32))
    assert np.isfinite(margins).all() and np.ptp(margins, axis=0).max() == 0
    assert np.abs(heads.coef).max() < 0.1 and heads.passes < 50
    if name == "bce":
        np.testing.assert_allclose(margins[0], np.log(s.mean() / (1 - s.mean())), rtol=1e-2)
    if name == "weighted_bce":
        np.testing.assert_allclose(margins[0], 0, atol=1e-2)


@pytest.mark.parametrize("name", EVERY)
def test_directions_without_rows_are_left_alone_even_without_a_penalty(data, name):
    """Neither a feature given twice nor more features than rows may let coefficients grow without bound."""
    X, s = data
    twice = np.column_stack([X, X[:, :2], X[:, :2]])
    heads = fit(twice, s, name, penalty=0.0)
    beyond = twice + np.random.default_rng(3).normal(size=twice.shape).astype(np.float32) * 0.1
    assert np.abs(heads.margins(beyond) - heads.margins(twice)).max() < 0.5 * np.ptp(heads.margins(twice))
    few, s, _ = planted(40, 300, labelled=10)
    heads = fit(few, s, name, penalty=0.0)
    others = planted(40, 300, labelled=10, seed=1)[0]
    assert np.abs(heads.margins(others)).max() < 5 * np.abs(heads.margins(few)).max()


@pytest.mark.parametrize("name", EVERY)
def test_a_single_feature(data, name):
    X, s = data
    heads = fit(X[:, :1], s, name, penalty=0.05)
    assert heads.coef.shape == (1, 1) and heads.residual[0] <= full_batch.TOLERANCE
    assert heads.coef[0, 0] > 0


@pytest.mark.parametrize("name", EVERY)
def test_a_single_positive(data, name):
    X, s = data
    one = np.zeros_like(s)
    one[np.flatnonzero(s)[0]] = 1
    heads = fit(X, one, name)
    assert heads.residual[0] <= full_batch.TOLERANCE
    assert heads.margins(X)[one == 1].item() > np.median(heads.margins(X))


@pytest.mark.parametrize("name", EVERY)
def test_a_head_whose_positives_all_weigh_nothing_is_finite_and_spoils_no_other(data, name):
    X, s = data
    weights = np.ones((N, 2), np.float32)
    weights[s == 1, 0] = 0
    heads = fit(X, s, name, weights=weights)
    assert np.isfinite(heads.coef).all() and np.isfinite(heads.intercept).all()
    np.testing.assert_allclose(heads.coef[1], fit(X, s, name).coef[0], atol=2e-4)


@pytest.mark.parametrize("name", ["imbupu", "nnpu", "weighted_bce"])
def test_a_row_far_out_is_no_obstacle(name):
    X, s, _ = planted(5000, 40, labelled=60, apart=0.3)
    row = np.flatnonzero(s)[3]
    X[row] = np.random.default_rng(1).normal(size=40) * 1000
    weights = np.ones((len(X), 2), np.float32)
    weights[s == 1, 1] = 0
    weights[row, 1] = 1
    heads = fit(X, s, name, weights=weights, penalty=1e-3)
    assert (heads.residual <= full_batch.TOLERANCE).all()


@pytest.mark.parametrize("name", ["imbupu", "imbnnpu"])
def test_the_number_of_threads_does_not_change_a_bit(data, small_blocks, monkeypatch, name, one_thread):
    X, s = (np.tile(part, (12, 1) if part.ndim > 1 else 12) for part in data)
    fitted = []
    for count in (1, 2, 5):
        used = []

        @contextmanager
        def spied(threads, used=used, count=count):
            used.append(threads)
            with worker_threads(threads) as run_all:
                yield run_all

        monkeypatch.setattr(full_batch, "worker_threads", spied)
        monkeypatch.setattr("pucache.threads.cores", lambda count=count: count)
        torch.set_num_threads(count)  # what OMP_NUM_THREADS allows
        fitted.append(fit(X, s, name, penalty=[0.01, 0.1]))
        assert used == [min(count, len(DesignMatrix(X, s, None, CPU).unlabelled.groups()))]
    assert len(DesignMatrix(X, s, None, CPU).unlabelled.groups()) > 2
    for other in fitted[1:]:
        np.testing.assert_array_equal(other.coef, fitted[0].coef)
        assert other.passes == fitted[0].passes


@pytest.mark.parametrize("penalty", [1e-6, 1e-5])
def test_a_head_learns_nothing_from_the_label_of_a_row_that_it_leaves_out(penalty):
    """Held-out positives and hidden ones rank alike, whatever the path of the solver."""
    draw, labelled, hidden = np.random.default_rng(0), 20, 300
    X = draw.normal(size=(3000, 500)).astype(np.float32)
    X[: labelled + hidden, :6] += 1.2
    s = (np.arange(3000) < labelled).astype(np.int8)
    fold = np.arange(3000) % 5
    heads = fit_heads(X, s, weights=(fold[:, None] != np.arange(5)).astype(np.float32), penalty=penalty, tolerance=2e-3)
    margins = heads.margins_by(X, fold[:, None])[:, 0]
    above = (margins[:labelled, None] > margins[labelled : labelled + hidden]).mean()
    assert 0.3 < above < 0.7  # one half, with a standard error of 0.07
