"""Seeds of every function that draws."""

import numpy as np
import pytest
from helpers.planted import planted, write_cache
from helpers.refusals import one_line

import pucache
from pucache.labels.labels import Labels, PULabels
from pucache.seeds import drawn_seed

X, S, _ = planted(120, labelled=30)
LINEAR = {"method": "linear", "penalty": 0.01}
CONCEPTS = Labels({"one": PULabels.of(S), "two": PULabels.of(S)})
DRAWERS = {
    "None": lambda: None,
    "RandomState": lambda: np.random.RandomState(3),
    "Generator": lambda: np.random.default_rng(3),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return write_cache(tmp_path_factory.mktemp("seeds") / "c.h5", X)


def trained(cache, seed):
    return pucache.train_pu(cache, S, seed=seed, **LINEAR)


FUNCTIONS = {
    "train_pu": trained,
    "concepts": lambda cache, seed: pucache.train_pu(cache, CONCEPTS, seed=seed, **LINEAR)["one"],
    "fit": lambda cache, seed: pucache.PULinearClassifier(random_state=seed, **LINEAR).fit(X, S),
    "estimate_prior": lambda cache, seed: pucache.estimate_prior(cache, S, seed=seed),
    "sweep_priors": lambda cache, seed: pucache.sweep_priors(cache, S, priors=[0.3], seeds=[seed]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_takes_what_draws_seeds_and_the_largest_one(cache, name):
    for seed in (np.random.default_rng(3), 2**64 - 1):
        assert FUNCTIONS[name](cache, seed), seed


def test_an_integer_of_numpy_is_a_seed_and_nothing_draws_one():
    assert drawn_seed(np.int64(7)) == 7 and 0 <= drawn_seed(None) < 2**64


@pytest.mark.parametrize("bad", [-1, 2**64, 1.0, "1", np.array([1, 2])], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_seeds_are_refused_in_one_line(cache, name, bad):
    assert "from 0 to 2^64 - 1" in one_line(ValueError, FUNCTIONS[name], cache, bad)


@pytest.mark.parametrize("kind", ["None", "RandomState", "Generator"])
def test_the_seed_that_was_drawn_is_in_the_result_and_repeats_it(cache, tmp_path, kind):
    model = trained(cache, DRAWERS[kind]())
    again = trained(cache, model.seed_)
    model.save(tmp_path / "m.safetensors")
    assert (again.coef_ == model.coef_).all() and again.seed_ == model.seed_
    assert pucache.PULinearClassifier.load(tmp_path / "m.safetensors").seed_ == model.seed_
    assert pucache.sweep_priors(cache, S, priors=[0.3], seeds=[DRAWERS[kind]()]).rows[0]["seed"] >= 0


def test_a_report_states_its_seed(cache, tmp_path):
    numbers = pucache.report(cache, S, tmp_path / "r.html", sample=20, seed=np.random.default_rng(3))
    assert numbers["seed"] == drawn_seed(np.random.default_rng(3))


def test_a_state_gives_another_seed_every_time():
    state = np.random.RandomState(3)
    assert drawn_seed(state) != drawn_seed(state)
    assert drawn_seed(np.random.RandomState(3)) == drawn_seed(np.random.RandomState(3))
