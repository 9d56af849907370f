import numpy as np
import pytest
import torch
from helpers.planted import planted

from pucache.heads.minibatch import SGDSettings
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads

pytestmark = pytest.mark.usefixtures("one_thread")
N, D = 300, 6
QUICK = SGDSettings(epochs=4, min_steps=0, batch_size=64, learning_rate=0.01)


@pytest.fixture(scope="module")
def data():
    X, s, _ = planted(N, D, labelled=40, apart=1.5)
    return X.astype(np.float16).astype(np.float32), s


def fit(X, s, **options):
    options = {"prior": 0.3, "sgd_settings": QUICK, "device": "cpu", "risk": PURisk("imbnnpu")} | options
    return fit_heads(X, s, solver="sgd", **options)


def same(one, other, **tolerance):
    for name in ("coef", "intercept", "risk", "clamped"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), **tolerance, err_msg=name)
    assert one.passes == other.passes


# --- the same training once more, with autograd and torch.optim -------------------------------------


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
    return coef.detach().numpy() * scale, intercept.item(), clamped


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
    X, s = (np.concatenate([part] * (8 if far > 1 else 1)) for part in data)
    weights = np.random.default_rng(1).uniform(0.5, 2, len(X)).astype(np.float32)
    if far > 1:  # a row without weight, so far out that its sigmoid is one and its loss no longer -log(1 - sigmoid)
        X[17], weights[17] = far * np.sign(START[:-1].numpy()), 0
    coef, intercept, clamped = reference_fit(X, s, weights, prior, penalty, risk, QUICK)
    heads = fit(X, s, weights=weights[:, None], prior=prior, penalty=penalty, seed=SEED, risk=risk)
    assert (clamped > 0) == (prior > 0.5)
    np.testing.assert_allclose(heads.coef[0], coef, atol=3e-5)
    np.testing.assert_allclose(heads.intercept[0], intercept, atol=3e-5)


# --- many heads, weights -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["upu", "imbnnpu", "bce"])
def test_many_heads_together_are_as_each_alone(data, name):
    X, s = data
    weights = np.random.default_rng(1).uniform(0, 2, (N, 5)).astype(np.float32)
    own = {"prior": [0.1, 0.2, 0.3, 0.5, 0.9], "penalty": [0, 0.1, 0, 1, 0.01], "seed": [0, 1, 2, 3, 0]}
    together = fit(X, s, weights=weights, risk=PURisk(name), **own)
    for k in range(5):
        mine = {key: values[k] for key, values in own.items()}
        alone = fit(X, s, weights=weights[:, k : k + 1], risk=PURisk(name), **mine)
        same(together.take([k]), alone, atol=1e-4)
