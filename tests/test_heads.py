import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pucache.heads import FittedHeads, Protocol, fit_heads
from pucache.progress import Silent
from pucache.risks import LOSSES, PURisk

N, D = 300, 6
QUICK = Protocol(epochs=4, min_steps=0, batch_size=64, learning_rate=0.01)
FULL = Protocol(epochs=30, min_steps=0, batch_size=N, learning_rate=0.01)


@pytest.fixture(scope="module")
def data():
    """Two blobs; a tenth labelled, a third of the rest positive. X, s, y."""
    draw = np.random.default_rng(0)
    s = (np.arange(N) < N // 10).astype(np.int8)
    y = np.maximum(s, draw.random(N) < 1 / 3)
    X = draw.normal(size=(N, D)) + 1.5 * (2 * y[:, None] - 1)
    return X.astype(np.float16).astype(np.float32), s, y


def fit(X, s, **options):
    options = {"prior": 1 / 3, "protocol": QUICK, "device": "cpu"} | options
    return fit_heads(X, s, **options)


def assert_same(one, other, **tolerance):
    for name in ("coef", "intercept", "risk", "clamped"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), **tolerance, err_msg=name)


def pick(heads, k):
    return FittedHeads(*(values[k] for values in (heads.coef, heads.intercept, heads.risk, heads.clamped)))


# --- what is learned ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["imbnnpu", "imbupu", "nnpu", "upu"])
@pytest.mark.parametrize("loss", LOSSES)
def test_separable_blobs_are_separated(data, name, loss):
    X, s, y = data
    heads = fit(X, s, risk=PURisk(name, loss), protocol=Protocol(epochs=100, min_steps=0, learning_rate=0.05))
    assert heads.coef.shape == (1, D) and heads.intercept.shape == (1,)
    assert ((heads.margins(X)[:, 0] > 0) == y).mean() > 0.97


def reference_fit(X, s, weights, prior, penalty, seed, risk, protocol):
    """One head by torch.nn, autograd and torch.optim.Adam, on the same beginning and the same batches."""
    bound = D**-0.5
    start = torch.empty(D + 1).uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
    layer = torch.nn.Linear(D, 1)
    with torch.no_grad():
        layer.weight.copy_(start[None, :-1])
        layer.bias.copy_(start[-1:])
    groups = [{"params": [layer.weight], "weight_decay": penalty}, {"params": [layer.bias]}]
    adam, order = torch.optim.Adam(groups, lr=protocol.learning_rate), torch.Generator().manual_seed(0)
    X, positive, weights = torch.from_numpy(X), torch.from_numpy(s) == 1, torch.from_numpy(weights)
    clamped = 0
    for _ in range(protocol.epochs):
        for rows in torch.randperm(len(X), generator=order).split(protocol.batch_size):
            margins = layer(X[rows])[:, 0]
            P, U = ((weights * side)[rows] for side in (positive, ~positive))
            of_P = (P * torch.sigmoid(-margins)).sum() / P.sum()
            unlabelled, labelled = ((side * torch.sigmoid(margins)).sum() / side.sum() for side in (U, P))
            negative = (1 - risk.target_prior) / (1 - prior) * (unlabelled - prior * labelled)
            objective = -risk.gamma * negative if negative < -risk.beta else risk.target_prior * of_P + negative
            clamped += int(negative < -risk.beta)
            adam.zero_grad()
            objective.backward()
            adam.step()
    return layer.weight.detach().numpy()[0], layer.bias.item(), clamped


@pytest.mark.parametrize("prior, penalty", [(0.3, 0.0), (0.3, 0.2), (0.9, 0.05)])
def test_training_is_that_of_torch_autograd_and_adam(data, prior, penalty):
    X, s, _ = data
    weights = np.random.default_rng(1).uniform(0.5, 2, N).astype(np.float32)
    risk = PURisk("imbnnpu", target_prior=0.4, gamma=0.7)
    coef, intercept, clamped = reference_fit(X, s, weights, prior, penalty, 7, risk, QUICK)
    heads = fit(X, s, weights=weights[:, None], prior=prior, penalty=penalty, seed=7, risk=risk)
    assert (clamped > 0) == (prior == 0.9)
    np.testing.assert_allclose(heads.coef[0], coef, atol=2e-5)
    np.testing.assert_allclose(heads.intercept[0], intercept, atol=2e-5)


def test_risk_and_clamped_are_means_over_the_steps_of_the_last_epoch(data):
    X, s, _ = data
    prior = [0.1, 0.6, 0.99]
    still = Protocol(epochs=1, min_steps=0, batch_size=70, learning_rate=1e-12)
    heads = fit(X, s, prior=prior, seed=[5, 5, 1], protocol=still)
    margins, flags = torch.from_numpy(heads.margins(X)), torch.from_numpy(s)[:, None].float()
    steps = [
        PURisk().value_and_step(margins[rows], torch.ones(len(rows), 3), flags[rows], torch.tensor(prior))
        for rows in torch.randperm(N, generator=torch.Generator().manual_seed(0)).split(70)
    ]
    np.testing.assert_allclose(heads.risk, torch.stack([step.value for step in steps]).mean(0), rtol=1e-4)
    np.testing.assert_allclose(heads.clamped, torch.stack([step.clamped.float() for step in steps]).mean(0))
    assert 0 == heads.clamped[0] < heads.clamped[2] < heads.clamped[1] < 1


def test_a_penalty_shrinks_the_coefficients(data):
    X, s, _ = data
    longer = Protocol(epochs=300, min_steps=0, batch_size=N, learning_rate=0.02)
    norms = np.linalg.norm(fit(X, s, penalty=[0.0, 0.1, 1.0, 10.0], protocol=longer).coef, axis=1)
    assert (np.diff(norms) < 0).all() and norms[-1] < norms[0] / 10


# --- many heads at once ------------------------------------------------------------------------


def test_many_heads_together_are_as_each_alone(data):
    X, s, _ = data
    weights = np.random.default_rng(1).uniform(0, 2, (N, 5)).astype(np.float32)
    own = {"prior": [0.1, 0.2, 0.3, 0.5, 0.9], "penalty": [0, 0.1, 0, 1, 0.01], "seed": [0, 1, 2, 3, 0]}
    together = fit(X, s, weights=weights, **own)
    assert together.margins(X).shape == (N, 5)
    for k in range(5):
        alone = fit(X, s, weights=weights[:, k : k + 1], **{name: values[k] for name, values in own.items()})
        assert_same(pick(together, k), pick(alone, 0), atol=1e-4)


def test_what_is_given_once_holds_for_every_head(data):
    X, s, _ = data
    once = fit(X, s, prior=0.2, penalty=[0.1], seed=[0, 1, 2])
    spelt_out = fit(X, s, weights=np.ones((N, 3)), prior=[0.2] * 3, penalty=[0.1] * 3, seed=[0, 1, 2])
    assert_same(once, spelt_out, atol=0)


def test_a_seed_gives_the_same_head_again_and_another_seed_another(data):
    X, s, _ = data
    heads, again = (fit(X, s, seed=[3, 4, 3]) for _ in range(2))
    assert_same(heads, again, atol=0)
    np.testing.assert_allclose(heads.coef[0], heads.coef[2], atol=1e-5)
    assert np.abs(heads.coef[0] - heads.coef[1]).max() > 0.1


def test_the_caller_s_own_random_state_is_left_alone(data):
    X, s, _ = data
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    fit(X, s)
    assert torch.rand(1) == expected


def test_a_head_does_not_see_its_rows_of_weight_zero(data):
    X, s, _ = data
    weights = np.ones((N, 2), np.float32)
    weights[::3, 0] = 0
    other = X.copy()
    other[::3] *= -7
    before, after = (fit(values, s, weights=weights) for values in (X, other))
    assert_same(pick(before, 0), pick(after, 0), atol=1e-5)
    assert np.abs(before.coef[1] - after.coef[1]).max() > 0.05


def test_with_one_batch_an_epoch_weight_zero_is_the_same_as_leaving_the_row_out(data):
    X, s, _ = data  # with smaller batches it is not: the order of batches is drawn over all rows
    kept = np.arange(N) % 3 > 0
    whole = fit(X, s, weights=kept[:, None].astype(np.float32), protocol=FULL)
    assert_same(whole, fit(X[kept], s[kept], protocol=FULL), atol=1e-5)


# --- X, steps, denormals -----------------------------------------------------------------------


def test_float16_rows_give_what_the_same_values_in_float32_give(data, tmp_path):
    X, s, _ = data
    np.save(tmp_path / "X.npy", X.astype(np.float16))
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    for same in (X.astype(np.float16), mapped, np.asfortranarray(X)):
        assert_same(fit(X, s), fit(same, s), atol=0)


@given(st.integers(1, 10**6), st.integers(1, 50), st.integers(0, 5000), st.integers(1, 999))
def test_epochs_are_added_until_the_least_number_of_steps_is_made(n, epochs, min_steps, batch_size):
    passes = Protocol(epochs, min_steps, batch_size).passes(n)
    steps_a_pass = -(-n // batch_size)
    assert passes >= epochs and passes * steps_a_pass >= min_steps
    assert passes == epochs or (passes - 1) * steps_a_pass < min_steps


class Recorder(Silent):
    def __init__(self, at_each=lambda: None):
        self.total, self.done, self.at_each = None, 0, at_each

    def start(self, total, what):
        self.total = total

    def advance(self, steps):
        self.done += steps
        self.at_each()


def test_every_pass_is_made_and_reported(data):
    X, s, _ = data
    progress = Recorder()
    few = fit(X[:40], s[:40], protocol=Protocol(epochs=1, min_steps=57, batch_size=64), progress=progress)
    assert progress.total == progress.done == 57
    assert_same(few, fit(X[:40], s[:40], protocol=Protocol(epochs=57, min_steps=0, batch_size=64)), atol=0)


def denormals_live():
    return bool(torch.tensor([1e-40]).mul(1.0).ne(0))


def test_denormals_are_back_after_training_and_after_a_failure(data):
    X, s, _ = data
    assert denormals_live()
    during = []
    fit(X, s, progress=Recorder(lambda: during.append(denormals_live())))
    assert len(during) == QUICK.epochs
    assert denormals_live()

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(X, s, progress=Recorder(interrupt))
    assert denormals_live()


@pytest.mark.parametrize(
    "bad", [{"epochs": 0}, {"batch_size": 0}, {"min_steps": -1}, {"learning_rate": 0}, {"learning_rate": float("nan")}]
)
def test_a_protocol_that_trains_nothing_is_refused(bad):
    with pytest.raises(ValueError, match="must be positive"):
        Protocol(**bad)
