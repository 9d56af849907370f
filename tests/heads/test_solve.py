import numpy as np
import pytest
import torch
from helpers.planted import planted

from pucache.heads.linear_heads import FittedHeads
from pucache.heads.minibatch import SGDSettings
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads
from pucache.progress import Silent

pytestmark = pytest.mark.usefixtures("one_thread")
N, D = 300, 6
QUICK = SGDSettings(epochs=4, min_steps=0, batch_size=64, learning_rate=0.01)
EVERY = ["upu", "nnpu", "imbupu", "imbnnpu", "weighted_bce", "bce"]
SOLVERS = pytest.mark.parametrize("solver", ["batch", "sgd"])


@pytest.fixture(scope="module")
def data():
    X, s, y = planted(N, D, labelled=30, apart=1.5)
    return X.astype(np.float16).astype(np.float32), s, y


def fit(X, s, **options):
    options = {"prior": 0.3, "penalty": 0.01, "sgd_settings": QUICK, "device": "cpu"} | options
    return fit_heads(X, s, **options)


def same(one, other, **tolerance):
    for name in ("coef", "intercept", "risk", "clamped", "residual"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), **tolerance, err_msg=name)
    assert one.passes == other.passes


# --- fitting -----------------------------------------------------------------------------------


@SOLVERS
@pytest.mark.parametrize("surrogate", ["sigmoid", "logistic"])
@pytest.mark.parametrize("name", EVERY)
def test_separable_blobs_are_separated(data, name, surrogate, solver):
    X, s, y = data
    long = SGDSettings(epochs=100, min_steps=0, learning_rate=0.05)
    risk = PURisk(name, None if "bce" in name else surrogate)
    heads = fit(X, s, risk=risk, sgd_settings=long, solver=solver)
    assert heads.coef.shape == (1, D) and heads.intercept.shape == (1,)
    margins = heads.margins(X)[:, 0]
    assert margins[y == 1].mean() > margins[y == 0].mean() + 1
    assert ((margins > np.median(margins[y == 1]) / 2 + np.median(margins[y == 0]) / 2) == y).mean() > 0.97


@SOLVERS
def test_what_is_given_once_holds_for_every_head(data, solver):
    X, s, _ = data
    once = fit(X, s, prior=0.2, penalty=[0.1], seed=[0, 1, 2], solver=solver)
    same(once, fit(X, s, prior=[0.2] * 3, penalty=[0.1] * 3, seed=[0, 1, 2], column=0, solver=solver), atol=0)
    spelt_out = fit(X, s, weights=np.ones((N, 3)), prior=[0.2] * 3, penalty=0.1, seed=[0, 1, 2], solver=solver)
    np.testing.assert_allclose(once.coef, spelt_out.coef, atol=1e-4)


@SOLVERS
def test_a_head_has_the_weights_of_its_column(data, solver):
    X, s, _ = data
    weights = np.random.default_rng(0).exponential(size=(N, 3)).astype(np.float32)
    each, turned = (fit(X, s, weights=weights, column=c, solver=solver) for c in (None, [2, 0, 2, 1]))
    assert len(each.coef) == 3 and np.abs(np.diff(each.coef, axis=0)).max() > 5e-4
    np.testing.assert_allclose(turned.coef, each.coef[[2, 0, 2, 1]], atol=1e-4)
    penalties = fit(X, s, weights=weights, column=1, penalty=[0.01, 1.0], solver=solver)
    np.testing.assert_allclose(penalties.coef[0], each.coef[1], atol=1e-4)


@SOLVERS
def test_heads_whose_numbers_do_not_match_are_refused(data, solver):
    X, s, _ = data
    with pytest.raises(ValueError):
        fit(X, s, prior=[0.1, 0.2, 0.3], penalty=[0.1, 1], solver=solver)


@SOLVERS
def test_a_seed_gives_the_same_head_again_and_another_seed_another(data, solver):
    X, s, _ = data
    heads, again = (fit(X, s, seed=[3, 4, 3], solver=solver) for _ in range(2))
    same(heads, again, atol=0)
    np.testing.assert_allclose(heads.coef[0], heads.coef[2], atol=1e-5)
    assert (heads.coef[0] != heads.coef[1]).all()


@SOLVERS
def test_a_penalty_shrinks_the_coefficients_whatever_the_unit_of_x(data, solver):
    X, s, _ = data
    long, penalties = SGDSettings(epochs=300, min_steps=0, batch_size=N, learning_rate=0.02), [0.0, 0.1, 1.0, 10.0]
    heads, others = (fit(x, s, penalty=penalties, sgd_settings=long, solver=solver) for x in (X, 8 * X))
    norms = np.linalg.norm(heads.coef, axis=1)
    assert (np.diff(norms) < 0).all() and norms[-1] < norms[0] / 10
    np.testing.assert_allclose(8 * others.coef[1:], heads.coef[1:], rtol=0.02, atol=1e-3)


@SOLVERS
def test_the_solvers_agree_where_a_convex_risk_is_trained_long_enough(data, solver):
    X, s, _ = data
    long = SGDSettings(epochs=1500, min_steps=0, batch_size=N, learning_rate=0.01)
    prior = {"risk": PURisk("weighted_bce"), "penalty": [0.3, 0.03]}
    one, other = fit(X, s, **prior), fit(X, s, **prior, solver=solver, sgd_settings=long)
    np.testing.assert_allclose(other.coef, one.coef, atol=0.02)
    np.testing.assert_allclose(other.intercept, one.intercept, atol=0.03)
    np.testing.assert_allclose(other.risk, one.risk, atol=0.005)


@pytest.mark.parametrize("bad, words", [({"solver": "adam"}, "unknown solver"), ({"device": "tpu"}, "unknown device")])
def test_an_unknown_solver_or_device_is_refused(data, bad, words):
    with pytest.raises(ValueError, match=words):
        fit(*data[:2], **bad)


# --- fitted heads ------------------------------------------------------------------------------


@pytest.fixture
def heads():
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(4, 3)).astype(np.float32)
    return FittedHeads(draw.normal(size=(3, D)).astype(np.float32), vectors[0], *vectors[1:], 7)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_margins_are_products_plus_intercepts(data, heads, monkeypatch, dtype):
    monkeypatch.setattr("pucache.heads.linear_heads._ROWS", 128)
    X = data[0].astype(dtype)
    margins = heads.margins(X)
    assert margins.dtype == np.float32 and margins.shape == (N, 3)
    np.testing.assert_allclose(margins, X.astype(np.float64) @ heads.coef.T + heads.intercept, atol=1e-5)


def test_margins_of_chosen_heads(data, heads, monkeypatch):
    monkeypatch.setattr("pucache.heads.linear_heads._ROWS", 128)
    chosen = np.random.default_rng(1).integers(0, 3, (N, 2))
    expected = np.take_along_axis(heads.margins(data[0]), chosen, axis=1)
    np.testing.assert_array_equal(heads.margins_by(data[0], chosen), expected)


def test_some_of_the_heads_can_be_taken(heads):
    taken = heads.take([2, 0])
    for name in ("coef", "intercept", "risk", "clamped", "residual"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(heads, name)[[2, 0]])
    assert taken.passes == 7


# --- what is left behind -----------------------------------------------------------------------


@SOLVERS
def test_the_caller_s_own_random_state_and_data_are_left_alone(data, solver):
    X, s, _ = (part.copy() for part in data)
    weights = np.random.default_rng(0).uniform(0.5, 1, (N, 2)).astype(np.float32)
    kept = weights.copy()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    fit(X, s, weights=weights, solver=solver)
    assert torch.rand(1) == expected
    for now, before in ((X, data[0]), (s, data[1]), (weights, kept)):
        np.testing.assert_array_equal(now, before)


class Recorder(Silent):
    def __init__(self, at_each=lambda: None):
        self.total, self.done, self.at_each = "not started", 0, at_each

    def start(self, total, what):
        self.total = total

    def advance(self, steps):
        self.done += steps
        self.at_each()


def test_every_pass_is_reported(data):
    for solver, total in (("sgd", QUICK.epochs), ("batch", None)):
        progress = Recorder()
        heads = fit(*data[:2], solver=solver, progress=progress)
        assert progress.total == total and progress.done == heads.passes


def denormals_live():
    return bool(torch.tensor([1e-40]).mul(1.0).ne(0))


@SOLVERS
def test_denormals_and_precision_are_back_after_training_and_after_a_failure(data, solver):
    precision = torch.backends.mkldnn.matmul.fp32_precision
    assert denormals_live()
    during = []
    fit(*data[:2], solver=solver, progress=Recorder(lambda: during.append(denormals_live())))
    assert during and not any(during)
    assert denormals_live() and torch.backends.mkldnn.matmul.fp32_precision == precision

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(*data[:2], solver=solver, progress=Recorder(interrupt))
    assert denormals_live() and torch.backends.mkldnn.matmul.fp32_precision == precision
