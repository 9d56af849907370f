import pytest
from helpers.planted import planted, write_cache

from pucache.labels.read_labels import open_labels
from pucache.pages.report_numbers import train
from pucache.training.estimate_prior import estimate_prior_on
from pucache.training.train_pu import train_pu
from pucache.training.training_set import TrainingRows


def training_set(cache, s, **settings):
    labels = open_labels(cache, s)
    return TrainingRows.of_cache(cache, labels, **settings, device="cpu").labelled_by(labels.only)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    X, s, _ = planted(n=1000, d=6, labelled=100, prior=0.2, apart=0.8)
    return training_set(write_cache(tmp_path_factory.mktemp("prior") / "cache.h5", X), s, twins=None)


def test_an_estimate_repeats_by_seed_and_has_an_interval(data):
    first, again, other = (estimate_prior_on(data, seed=n, device="cpu") for n in (0, 0, 1))
    assert first == again and first != other
    (tilt,) = first
    assert (tilt.method, tilt.draws) == ("tilt", 0) and 0.1 < tilt.low < tilt.prior < tilt.high < 0.3


@pytest.mark.parametrize("labelled", [5, 60])
def test_it_is_the_estimate_of_training_and_of_the_report(tmp_path, labelled):
    X, s, _ = planted(n=400, labelled=labelled, apart=0.6)
    data = training_set(cache := write_cache(tmp_path / "cache.h5", X), s)
    model = train_pu(cache, s, device="cpu")
    (tilt,) = estimate_prior_on(data, device="cpu")
    if labelled < 10:
        assert model.prior_estimate_ is None and tilt.prior is None and not tilt.has_interval
        return
    assert tilt == model.prior_estimate_ and tilt.prior == model.prior_
    reported = train(data, None, truth=None, seed=0, device="cpu", progress=None)
    assert reported.prior_interval == (tilt.low, tilt.high) == (reported.prior_estimates[0].low, tilt.high)
