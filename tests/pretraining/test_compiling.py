"""A compiled training step is the plain one up to rounding, and where it cannot be compiled the run goes on."""

import logging

import pytest
import torch
from helpers.training_parts import IMAGES, SIDE, recipe, save_photos, state, train, training, with_norms, without_norms

from pucache import pretrain
from pucache.pretraining.network import NetworkConfig
from pucache.pretraining.train_step import Training

pytestmark = pytest.mark.usefixtures("one_thread")
NETWORK = NetworkConfig("test_resnet", size=SIDE)
SETTINGS = {"device": "cpu", "precision": "fp32", "workers": 0}


@pytest.fixture
def traced(monkeypatch):
    """torch traces and differentiates what it compiles, and computes it without a compiler, which takes a minute."""
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda part, **options: compiled(part, backend="aot_eager", dynamic=False))


@pytest.fixture
def no_compiler(monkeypatch):
    def without(part, **options):
        def call(*arguments, **named):
            raise RuntimeError("no working C++ compiler\nset the environment variable CXX")

        return call

    monkeypatch.setattr(torch, "compile", without)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return save_photos(tmp_path_factory.mktemp("photos"))


def warnings(caplog):
    """Those of pucache and of torch's compiler; what torch says of the machine does not count."""
    of_interest = ("pucache", "torch._dynamo", "torch._inductor")
    records = [record for record in caplog.records if record.name.startswith(of_interest)]
    return [record.getMessage() for record in records if record.levelno >= logging.WARNING]


def batch(run):
    return IMAGES[next(iter(run.batch_rows(0)))]


def assert_same_steps(network, how, within):
    plain, compiled = training(network(), how), training(network(), how)
    compiled.compile(0, batch(compiled))
    assert train(compiled, steps=5) == pytest.approx(train(plain, steps=5), abs=within)
    found, wanted = state(compiled.network), state(plain.network)
    assert list(found) == list(wanted)
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], atol=within, rtol=0)


# --- a step ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_traced_step_is_the_plain_one_dropout_included(traced, caplog):
    assert_same_steps(lambda: without_norms(0.3), recipe(accumulate=2, views="overhead"), 1e-5)
    assert warnings(caplog) == []


def test_compiling_changes_neither_network_nor_gradients(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda part, **options: part)  # the steps that it tries count here
    run = training(with_norms(), recipe())
    before = state(run.network)
    run.compile(0, batch(run))
    assert all(torch.equal(tensor, before[name]) for name, tensor in state(run.network).items())
    assert all(parameter.grad is None for parameter in run.network.parameters())


def test_where_compiling_fails_one_line_says_so_and_steps_are_plain(no_compiler, caplog):
    plain, run = training(with_norms(), recipe()), training(with_norms(), recipe())
    run.compile(0, batch(run))
    [line] = warnings(caplog)
    assert "the training step cannot be compiled (no working C++ compiler" in line and "\n" not in line
    assert train(run, steps=3) == train(plain, steps=3)


# --- a run -------------------------------------------------------------------------------------


def test_by_default_nothing_is_compiled_on_a_cpu(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(Training, "compile", lambda *arguments: pytest.fail("compiled"))
    assert pretrain(photos, tmp_path / "run", NETWORK, recipe(), **SETTINGS).steps == 12
