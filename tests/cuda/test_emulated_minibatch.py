"""The minibatch solver on a device that is emulated: results of the CPU, few kernels, no waits in its steps."""

import logging

import numpy as np
import pytest
import torch
from helpers.emulated_cuda import Graph, emulated_cuda
from helpers.planted import planted
from helpers.slow import slow

from pucache.heads import minibatch, minibatch_rounds
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.minibatch import SGDSettings
from pucache.heads.minibatch_rounds import Rounds
from pucache.heads.problem import HeadProblem
from pucache.heads.risks import RISKS, PURisk
from pucache.heads.solve import fit_heads
from pucache.progress import Silent

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
    pytest.mark.usefixtures("one_thread", "float32"),
]
N, D, SIZE = 600, 20, 64
BATCHES = -(-N // SIZE)
EVERY = [*map(PURisk, sorted(RISKS)), PURisk("upu", "logistic"), PURisk("imbnnpu", "logistic", gamma=0.7)]
CLAMPED = PURisk("imbnnpu", target_prior=0.4, beta=0.01, gamma=0.7)
HEADS = {"prior": [0.05, 0.3, 0.9], "penalty": [0, 0.01, 0.1], "seed": [0, 1, 1]}


@pytest.fixture
def float32(monkeypatch):
    """The CPU multiplies in float32, as the emulated device does."""
    monkeypatch.setattr(minibatch, "multiplies_bfloat16", lambda device: False)


@pytest.fixture(scope="module")
def data():
    X, s, _ = planted(N, D, 60, 0.1, seed=0)
    return X.astype(np.float16), s


@pytest.fixture(scope="module")
def weights():
    return np.random.default_rng(1).integers(0, 3, (N, 3)).astype(np.float32)


def fit(X, s=None, device="cuda", *, epochs=3, size=SIZE, **options):
    settings = SGDSettings(epochs=epochs, min_steps=0, batch_size=size, learning_rate=0.02)
    return fit_heads(X, s, solver="sgd", sgd_settings=settings, device=device, **HEADS | options)


def on_device(data, free=None, **options):
    with emulated_cuda(**{} if free is None else {"free": free}) as device:
        return fit(*data, **options), device.counts


def same(one, other, **tolerance):
    tolerance = {"rtol": 1e-4, "atol": 1e-5} | tolerance
    for name in ("coef", "intercept", "risk", "clamped", "residual"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), **tolerance, err_msg=name)
    assert one.passes == other.passes


# --- results -----------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("risk", [*EVERY, CLAMPED], ids=str)
def test_heads_are_those_of_the_cpu(data, weights, risk, weighted):
    options = {"risk": risk, "weights": weights if weighted else None}
    expected = fit(*data, device="cpu", **options)
    same(on_device(data, **options)[0], expected)
    assert not risk.clamped or expected.clamped.max() > 0


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("risk", [PURisk(), CLAMPED, PURisk("bce")], ids=str)
def test_heads_that_share_prior_and_weights_are_those_of_the_cpu(data, weights, risk, weighted):
    options = {"prior": 0.8, "risk": risk, "weights": weights[:, :1] if weighted else None, "column": [0, 0, 0]}
    same(on_device(data, **options)[0], fit(*data, device="cpu", **options))


@pytest.mark.parametrize("size, labelled", [(2 * N, 60), (N, 60), (N - 1, 60), slow(7, 3)])
def test_batches_of_every_size_and_without_positives(data, size, labelled):
    X, s = data[0], np.zeros(N, np.int8)
    s[np.flatnonzero(data[1])[:labelled]] = 1
    for risk in (PURisk(), CLAMPED, PURisk("bce")):
        expected = fit(X, s, device="cpu", size=size, epochs=2, risk=risk)
        same(on_device((X, s), size=size, epochs=2, risk=risk)[0], expected)


def test_rows_taken_of_others_are_trained_on_as_they_are_alone(data, weights):
    rows = np.flatnonzero(np.arange(N) % 3)
    with emulated_cuda():
        whole = DesignMatrix(*data, None, torch.device("cuda"))
        taken = fit(whole.take(rows, data[1][rows]), weights=weights[rows])
        alone = fit(data[0][rows], data[1][rows], weights=weights[rows], moments=whole.moments)
    same(taken, alone, rtol=0, atol=0)


def test_the_heads_do_not_depend_on_how_many_batches_are_prepared_at_once(data, weights, monkeypatch):
    expected, _ = on_device(data, weights=weights, risk=CLAMPED)
    for batches in (1, 3, 4):
        monkeypatch.setattr(minibatch_rounds, "ROUND_BATCHES", batches)
        same(on_device(data, weights=weights, risk=CLAMPED)[0], expected, atol=1e-6)


def test_rows_are_padded_with_zeros_to_a_multiple_of_eight(data):
    with emulated_cuda():
        problem = HeadProblem.of(DesignMatrix(*data, None, torch.device("cuda")), PURisk(), **HEADS)
        rounds = Rounds(problem, torch.Generator().manual_seed(0), size=SIZE, scale=2.0)
        rounds.shuffle()
        assert rounds.prepare(0) == BATCHES
        X = rounds.X.cpu()
        assert problem.design.stored_rows()[0].resident.dtype == torch.float16
    assert X.shape == (BATCHES, SIZE, 24) and not X[..., D + 1 :].any()
    rows = X.view(-1, 24)
    assert sorted(rows[:, D].tolist()) == [-1] * 60 + [0] * (BATCHES * SIZE - N) + [1] * (N - 60)
    flipped = torch.from_numpy(data[0]).float() * 2 * torch.from_numpy(1 - 2 * data[1])[:, None]
    filled = rows[rows[:, D] != 0][:, :D]
    assert sorted(map(tuple, filled.tolist())) == sorted(map(tuple, flipped.tolist()))
    assert not rows[rows[:, D] == 0].any()


# --- launches and waits ------------------------------------------------------------------------


def of_a_step(data, monkeypatch, **options):
    """Launches and waits of an eager step, and the lines that they are of."""
    monkeypatch.setattr(Graph, "note", refused)
    ten, thirty = (on_device(data, epochs=2, size=size, **options)[1] for size in (60, 20))
    return (thirty.launches - ten.launches) / 40, (thirty.waited - ten.waited) / 40, thirty


def of_an_epoch(data, **options):
    """Launches and waits of an epoch by graph, and the lines that they are of."""
    few, many = (on_device(data, epochs=epochs, **options)[1] for epochs in (2, 4))
    return (many.launches - few.launches) / 2, (many.waited - few.waited) / 2, many


def refused(*operation):
    raise RuntimeError("no kernel image is available for execution")


ROUND = 50  # launches that deal a round of batches and prepare their weights, whatever their number
BUDGETS = [
    (PURisk(), 6),
    (PURisk("upu"), 6),
    (PURisk("imbnnpu"), 8),  # the risk of the paper
    (PURisk("nnpu"), 8),
    (PURisk("bce"), 6),
    (PURisk("weighted_bce"), 6),
    (PURisk("imbupu", "logistic"), 6),
    (PURisk("imbnnpu", "logistic"), 11),  # chooses factor and constant, from a loss that is not its own slope
]


@pytest.mark.parametrize("weighted", [slow(False), True])
@pytest.mark.parametrize("risk, budget", BUDGETS, ids=str)
def test_launches_and_waits_of_a_step(data, weights, monkeypatch, risk, budget, weighted):
    options = {"risk": risk, "weights": weights if weighted else None}
    launches, waits, counts = of_a_step(data, monkeypatch, **options)
    assert launches <= budget and waits == 0, str(counts)


def test_a_step_without_a_penalty_has_one_launch_less(data, monkeypatch):
    assert of_a_step(data, monkeypatch, penalty=0.0)[0] == 5


@pytest.mark.parametrize("weighted", [slow(False), True])
@pytest.mark.parametrize("risk", EVERY, ids=str)
def test_launches_and_waits_of_an_epoch_by_a_graph(data, weights, risk, weighted):
    launches, waits, counts = of_an_epoch(data, risk=risk, weights=weights if weighted else None)
    assert waits <= 1 and launches <= ROUND, str(counts)


def test_an_epoch_by_a_graph_has_as_many_launches_with_more_steps(data):
    assert of_an_epoch(data, size=60)[0] == of_an_epoch(data, size=20)[0]


def test_what_is_done_before_the_first_epoch_and_after_the_last_does_not_grow(data):
    waits = {size: on_device(data, epochs=1, size=size)[1] for size in (60, 20)}
    assert waits[60].waited == waits[20].waited <= 10, str(waits[20])


# --- the graph ---------------------------------------------------------------------------------


def one_line(caplog):
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "\n" not in record.getMessage()
    return record.getMessage()


def test_a_device_that_captures_no_graph_trains_without_and_says_so(data, weights, monkeypatch, caplog):
    expected, _ = on_device(data, weights=weights, risk=CLAMPED)
    assert not caplog.records
    monkeypatch.setattr(Graph, "note", refused)
    same(on_device(data, weights=weights, risk=CLAMPED)[0], expected, rtol=0, atol=0)
    assert "not used as a CUDA graph: no kernel image is available" in one_line(caplog)


@pytest.mark.parametrize("fault", ["nothing", "stale", "nan"])
def test_a_graph_that_computes_something_else_is_not_used(data, monkeypatch, caplog, fault):
    expected, _ = on_device(data)
    replay = Graph.replay

    def faulty(graph):
        if fault != "nothing":
            replay(graph)
        for func, args, _, _ in graph._operations:
            if fault == "stale" and "addcmul_" in str(func):
                args[1].mul_(1.5)
            if fault == "nan" and "addcmul_" in str(func):
                args[1].fill_(float("nan"))

    monkeypatch.setattr(Graph, "replay", faulty)
    same(on_device(data)[0], expected, rtol=0, atol=0)
    assert "does not compute what the steps compute" in one_line(caplog)


def test_a_single_epoch_needs_no_graph(data, monkeypatch, caplog):
    monkeypatch.setattr(Graph, "note", refused)
    same(on_device(data, epochs=1)[0], fit(*data, epochs=1, device="cpu"))
    assert not caplog.records


# --- memory ------------------------------------------------------------------------------------

SCARCE = 1_500_000  # bytes: too few for X, enough for a few batches and the heads


@pytest.fixture(scope="module")
def wide(data):
    return np.repeat(data[0], 40, axis=1), data[1]  # 960 kB


@pytest.mark.parametrize("weighted", [slow(False), True])
def test_rows_larger_than_the_device_are_streamed_and_a_message_says_so(wide, weights, caplog, weighted):
    options = {"weights": weights if weighted else None, "risk": CLAMPED, "size": 16}
    expected, _ = on_device(wide, **options)
    assert not caplog.records
    same(on_device(wide, free=SCARCE, **options)[0], expected, rtol=1e-3)  # moments are summed in other blocks
    assert "does not fit" in one_line(caplog) and "of free memory on cuda" in caplog.text


@pytest.mark.slow
def test_streaming_waits_no_more_than_once_in_a_round(wide):
    few, many = (on_device(wide, free=SCARCE, size=16, epochs=epochs)[1] for epochs in (2, 4))
    rounds = -(-N // 16)  # or fewer
    assert (many.waited - few.waited) / 2 <= rounds + 1, str(many)


def test_rows_taken_of_others_are_streamed_alike(wide):
    rows = np.flatnonzero(np.arange(N) % 3)
    taken = []
    for memory in ({}, {"free": SCARCE}):
        with emulated_cuda(**memory):
            whole = DesignMatrix(*wide, None, torch.device("cuda"))
            taken.append(fit(whole.take(rows, wide[1][rows]), size=16))
    same(*taken, rtol=1e-3)


def test_row_weights_larger_than_the_device_are_streamed(data, monkeypatch, caplog):
    weights = np.random.default_rng(0).uniform(0, 2, (N, 3)).astype(np.float32)
    expected, _ = on_device(data, weights=weights)
    monkeypatch.setattr("pucache.heads.minibatch_rows.WEIGHTS_SHARE", 0)
    same(on_device(data, weights=weights)[0], expected, rtol=0, atol=0)
    assert "row weights" in one_line(caplog)


def test_heads_too_many_for_the_device_are_one_line(data):
    with pytest.raises(ValueError, match=r"training 3 heads on batches of 64 rows takes .* GB free"):
        on_device(data, free=20_000)


def test_progress_is_that_of_the_epochs(data):
    advanced = []

    class Noted(Silent):
        def advance(self, steps):
            advanced.append(steps)

    on_device(data, epochs=5, progress=Noted())
    assert advanced == [1] * 5
