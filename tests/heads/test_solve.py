import numpy as np
import pytest
import torch
from helpers.planted import planted
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from pucache.heads import design_matrix
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.minibatch import SGDSettings
from pucache.heads.moments import Moments
from pucache.heads.risks import PURisk
from pucache.heads.solve import SoftTargetTrainer, fit_heads

pytestmark = pytest.mark.usefixtures("one_thread")
N, D, PRIOR, PENALTY = 400, 6, 0.3, 0.01
TIGHT = 1e-5
QUICK = SGDSettings(epochs=4, min_steps=0, batch_size=64, learning_rate=0.01)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data():
    X, s, y = planted(N, D, prior=PRIOR)
    return X.astype(np.float16).astype(np.float32), s, y


@pytest.fixture(scope="module")
def targets(data):
    X, s, _ = data
    targets = expit(np.random.default_rng(0).normal(size=(N, 3)) + 2 * X[:, :1] - [1, 2, 4])
    targets[s == 1] = 1
    return targets.astype(np.float32)


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks of 256 rows, from few rows."""
    monkeypatch.setitem(design_matrix._BLOCK_VALUES, "cpu", 256)


def fit(X, s, risk="imbupu", **options):
    options = {"prior": PRIOR, "penalty": PENALTY, "sgd_settings": QUICK, "device": "cpu"} | options
    return fit_heads(X, s, risk=PURisk(risk) if isinstance(risk, str) else risk, **options)


def fit_soft(X, targets, weights=None, penalty=PENALTY):
    design = X if isinstance(X, DesignMatrix) else DesignMatrix(X, np.zeros(len(X)), None, CPU)
    return SoftTargetTrainer(design, weights=weights, penalty=penalty, tolerance=TIGHT).fit(targets)


def weights_of(columns, seed=1):
    return np.random.default_rng(seed).uniform(0.2, 2, (N, columns)).astype(np.float32)


def same(one, other, **tolerance):
    for name in ("coef", "intercept", "risk", "clamped", "residual"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), **tolerance, err_msg=name)
    assert one.passes == other.passes


# --- risks minimised to convergence ----------------------------------------------------------


@pytest.mark.parametrize("penalty", [1.0, 0.01, 1e-4])
@pytest.mark.parametrize("name, balance", [("weighted_bce", "balanced"), ("bce", None)])
def test_cross_entropy_heads_are_scikit_learn_s_logistic_regression(data, name, balance, penalty):
    X, s = data[0] * np.geomspace(1, 20, D).astype(np.float32), data[1]
    C = 1 / (N * penalty * Moments.of(X).spread ** 2)
    model = LogisticRegression(C=C, class_weight=balance, tol=1e-10, max_iter=10_000).fit(X.astype(np.float64), s)
    heads = fit(X, s, name, penalty=penalty, tolerance=TIGHT)
    assert heads.passes <= 15, "without its preconditioner the solver takes up to 38"
    np.testing.assert_allclose(heads.coef[0], model.coef_[0], atol=1e-4)
    np.testing.assert_allclose(heads.margins(X)[:, 0], model.decision_function(X), atol=5e-4)


@pytest.mark.parametrize("resident", [0, 1 << 29])
def test_the_form_of_x_and_the_room_for_it_change_nothing(data, targets, monkeypatch, tmp_path, small_blocks, resident):
    X, s, _ = data
    np.save(tmp_path / "half.npy", X.astype(np.float16))
    np.save(tmp_path / "full.npy", X)
    soft = fit_soft(X, targets)
    expected = {solver: fit(X, s, weights=weights_of(2), solver=solver) for solver in ("batch", "sgd")}
    monkeypatch.setattr(design_matrix, "CPU_RESIDENT", resident)
    monkeypatch.setattr("pucache.storage.rows.LARGE_MAP_BYTES", 0)
    mapped = [np.load(tmp_path / name, mmap_mode="r") for name in ("half.npy", "full.npy")]
    for form in (X.astype(np.float16), np.asfortranarray(X), *mapped):
        for solver, heads in expected.items():
            same(fit(form, s, weights=weights_of(2), solver=solver), heads, atol=0)
        same(fit_soft(form, targets), soft, atol=0)


@pytest.mark.parametrize("name", ["upu", "imbupu", "nnpu", "bce"])
def test_directions_without_rows_are_left_alone_even_without_a_penalty(data, name):
    """Neither a feature given twice nor more features than rows may let coefficients grow without bound."""
    X, s, _ = data
    twice = np.column_stack([X, X[:, :2], X[:, :2]])
    heads = fit(twice, s, name, penalty=0.0)
    beyond = twice + np.random.default_rng(3).normal(size=twice.shape).astype(np.float32) * 0.1
    assert np.abs(heads.margins(beyond) - heads.margins(twice)).max() < 0.5 * np.ptp(heads.margins(twice))
    few, s, _ = planted(40, 300, labelled=10)
    heads = fit(few, s, name, penalty=0.0)
    others = planted(40, 300, labelled=10, seed=1)[0]
    assert np.abs(heads.margins(others)).max() < 5 * np.abs(heads.margins(few)).max()


@pytest.mark.parametrize("solve", ["imbupu", "imbnnpu", "soft"])
def test_the_number_of_threads_does_not_change_a_bit(data, targets, small_blocks, monkeypatch, solve):
    X, s, T = np.tile(data[0], (12, 1)), np.tile(data[1], 12), np.tile(targets, (12, 1))
    assert len(DesignMatrix(X, s, None, CPU).sides[1][1].groups()) > 2
    fitted, threads = [], set()
    for count in (1, 2, 5):
        monkeypatch.setattr("pucache.threads.cores", lambda count=count: count)
        torch.set_num_threads(count)  # what OMP_NUM_THREADS allows
        design = DesignMatrix(X, s, None, CPU)
        threads.add(design.workers(count))
        fitted.append(fit_soft(design, T) if solve == "soft" else fit(design, None, solve, penalty=[0.01, 0.1]))
    assert len(threads) == 3
    for other in fitted[1:]:
        same(other, fitted[0], atol=0)


def test_a_head_learns_nothing_from_the_label_of_a_row_that_it_leaves_out():
    """Held-out positives and hidden ones rank alike, whatever the path of the solver."""
    draw, labelled, hidden = np.random.default_rng(0), 20, 300
    X = draw.normal(size=(3000, 500)).astype(np.float32)
    X[: labelled + hidden, :6] += 1.2
    s = (np.arange(3000) < labelled).astype(np.int8)
    fold = np.arange(3000) % 5
    heads = fit_heads(X, s, weights=(fold[:, None] != np.arange(5)).astype(np.float32), penalty=1e-6, tolerance=2e-3)
    margins = np.take_along_axis(heads.margins(X), fold[:, None], axis=1)[:, 0]
    above = (margins[:labelled, None] > margins[labelled : labelled + hidden]).mean()
    assert 0.3 < above < 0.7  # one half, with a standard error of 0.07


# --- soft targets ----------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [1.0, 0.01, 1e-4])
def test_a_soft_target_is_two_weighted_rows_of_scikit_learn_s_logistic_regression(data, targets, penalty):
    X = data[0]
    weights, spread = weights_of(3), Moments.of(X).spread
    heads = fit_soft(X, targets, weights=weights, penalty=penalty)
    for k in range(3):
        both = np.concatenate([weights[:, k] * targets[:, k], weights[:, k] * (1 - targets[:, k])])
        model = LogisticRegression(C=1 / (penalty * spread**2), tol=1e-10, max_iter=10_000)
        model.fit(np.tile(X, (2, 1)).astype(np.float64), np.repeat([1, 0], N), sample_weight=both / weights[:, k].sum())
        np.testing.assert_allclose(heads.margins(X)[:, k], model.decision_function(X), atol=2e-3)
        margins = model.decision_function(X)
        exact = np.average(np.logaddexp(0, margins) - targets[:, k] * margins, weights=weights[:, k])
        assert heads.risk[k] == pytest.approx(exact, abs=1e-5)
    assert (heads.residual <= TIGHT).all()


# --- many heads ------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["batch", "sgd"])
@pytest.mark.parametrize("name", ["upu", "imbnnpu", "bce"])
def test_many_heads_together_are_as_each_alone(data, name, solver):
    X, s, _ = data
    weights = weights_of(5)
    own = {"prior": [0.1, 0.2, 0.3, 0.5, 0.4], "penalty": [1, 0.1, 0.03, 0.01, 0.1], "seed": [0, 1, 2, 3, 0]}
    together = fit(X, s, name, weights=weights, tolerance=TIGHT, solver=solver, **own)
    for k in range(5):
        settings = {key: values[k] for key, values in own.items()}
        alone = fit(X, s, name, weights=weights[:, k : k + 1], tolerance=TIGHT, solver=solver, **settings)
        np.testing.assert_allclose(alone.coef[0], together.coef[k], rtol=2e-4, atol=2e-4)
        # where float32 ends depends on the processor: 8e-4 apart in the intercept, 4e-5 in the risk were seen
        np.testing.assert_allclose(alone.risk[0], together.risk[k], rtol=0, atol=1e-4)
        if together.intercept[k] < -10:  # calls everything negative: the lower the better, without end
            assert alone.intercept[0] < -10
        else:
            np.testing.assert_allclose(alone.intercept[0], together.intercept[k], rtol=2e-3, atol=2e-3)


def test_imbalanced_upu_is_free_of_the_prior_as_others_are_not(data):
    X, s, _ = data
    heads = fit(X, s, prior=[0.001, 0.1, 0.5, 0.9], weights=np.ones((N, 1)), column=0)
    assert np.abs(heads.coef[0]).max() > 0.3 and not PURisk().needs_prior
    np.testing.assert_allclose(heads.coef, np.tile(heads.coef[0], (4, 1)), atol=1e-3)
    np.testing.assert_allclose(heads.intercept, np.full(4, heads.intercept[0]), atol=1e-3)
    for risk in (PURisk("upu"), PURisk("imbupu", "logistic"), PURisk("imbupu", target_prior=0.3)):
        assert risk.needs_prior and np.ptp(fit(X, s, risk, prior=[0.1, 0.5]).coef, axis=0).max() > 0.05


# --- minibatches: the same training once more, with autograd and torch.optim -----------------------


def stream(s, size, epochs):
    """Rows of each batch, in the order they are trained on, epoch by epoch."""
    order = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(s), generator=order)
    positive, place = torch.from_numpy(np.flatnonzero(s)), torch.from_numpy(s)[rows] == 1
    for _ in range(epochs):
        rows[place] = positive[torch.randperm(len(positive), generator=order)]
        batches = rows.clone().split(size)
        yield [batches[number] for number in torch.randperm(len(batches), generator=order)]


def parts(risk, prior, weights, positive, margins):
    """R+, R- of one head on some rows, and the sum of the magnitudes of their coefficients."""
    loss = torch.nn.functional.softplus if risk.surrogate == "logistic" else torch.sigmoid
    P, U = weights * positive, weights * ~positive
    of_P, not_P, not_U = ((w * loss(m)).sum() / w.sum() for w, m in ((P, -margins), (P, margins), (U, margins)))
    a, b, c = {
        "nnpu": (prior, 1, -prior),
        "imbnnpu": (risk.target_prior, factor := (1 - risk.target_prior) / (1 - prior), -prior * factor),
        "bce": (P.sum() / (P + U).sum(), U.sum() / (P + U).sum(), 0.0),
    }[risk.name]
    return a * of_P, b * not_U + c * not_P, float(abs(a) + abs(b) + abs(c))


SEED = 7
START = torch.empty(D + 1).uniform_(-(D**-0.5), D**-0.5, generator=torch.Generator().manual_seed(SEED))


def reference_fit(X, s, weights, prior, penalty, risk, settings):
    """One head by torch.nn, autograd and torch.optim.Adam; its coefficients are on X as given."""
    scale = 0.5 / np.sqrt(np.square(X.astype(np.float64)).mean())
    spread = np.sqrt(np.square(X - X.mean(0)).sum(1).mean())
    coef, intercept = (torch.nn.Parameter(part.clone()) for part in (START[:-1], START[-1:]))
    X, positive, weights = torch.from_numpy(X) * scale, torch.from_numpy(s) == 1, torch.from_numpy(weights)
    total = parts(risk, prior, weights, positive, X @ coef)[2]
    decay = penalty * total * (spread * scale) ** 2
    adam = torch.optim.Adam(
        [{"params": [coef], "weight_decay": decay}, {"params": [intercept]}], lr=settings.learning_rate
    )
    clamped = 0
    for batches in stream(s, settings.batch_size, settings.epochs):
        for rows in batches:
            upper, lower, _ = parts(risk, prior, weights[rows], positive[rows], X[rows] @ coef + intercept)
            below = risk.name != "bce" and bool(lower < -risk.beta)
            clamped += below
            adam.zero_grad()
            (-risk.gamma * lower if below else upper + lower).backward()
            adam.step()
    of_batches = [
        torch.stack(parts(risk, prior, weights[rows], positive[rows], X[rows] @ coef + intercept)[:2]).detach()
        for rows in batches  # of the last epoch
    ]
    upper, lower = torch.stack(of_batches, 1)
    least = -risk.beta if risk.clamped else -np.inf
    reported = (upper + lower.clamp(min=least)).mean(), (lower < least).double().mean()
    return coef.detach().numpy() * scale, intercept.item(), clamped, reported


IMBALANCED = PURisk("imbnnpu", target_prior=0.4, gamma=0.7)
CASES = [
    (IMBALANCED, 0.3, 0.0, 1),
    (IMBALANCED, 0.9, 0.05, 1),
    (PURisk("nnpu", beta=0.01), 0.8, 0.0, 1),
    (PURisk("nnpu", "logistic"), 0.3, 0.0, 300),
    (PURisk("bce"), 0.5, 0.1, 1),
]


@pytest.mark.parametrize("risk, prior, penalty, far", CASES)
def test_training_is_that_of_torch_autograd_and_adam(data, risk, prior, penalty, far):
    X, s = (np.concatenate([part] * (8 if far > 1 else 1)) for part in data[:2])
    weights = np.random.default_rng(1).uniform(0.5, 2, len(X)).astype(np.float32)
    if far > 1:  # a row without weight, so far out that its sigmoid is one and its loss no longer -log(1 - sigmoid)
        X[17], weights[17] = far * np.sign(START[:-1].numpy()), 0
    coef, intercept, clamped, reported = reference_fit(X, s, weights, prior, penalty, risk, QUICK)
    heads = fit(X, s, risk, weights=weights[:, None], prior=prior, penalty=penalty, seed=SEED, solver="sgd")
    assert (clamped > 0) == (prior > 0.5)
    np.testing.assert_allclose(heads.coef[0], coef, atol=3e-5)
    np.testing.assert_allclose(heads.intercept[0], intercept, atol=3e-5)
    np.testing.assert_allclose([heads.risk[0], heads.clamped[0]], reported, atol=1e-4)
