import pytest
from helpers.planted import planted, write_cache

from pucache.training.estimate_prior import estimate_prior, estimate_prior_on
from pucache.training.labelled_cache import LabelledCache


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    X, s, _ = planted(n=2000, d=6, labelled=150, prior=0.2, apart=0.8)
    return LabelledCache.of(write_cache(tmp_path_factory.mktemp("prior") / "cache.h5", X), s, twins=None)


def test_the_tilt_finds_the_planted_prior(data):
    (found,) = estimate_prior_on(data, methods=["tilt"], device="cpu")
    assert found.prior == pytest.approx(0.2, abs=0.04)
    assert found.low <= found.prior <= found.high and 0.005 < found.high - found.low < 0.15
    assert (found.method, found.draws, found.level) == ("tilt", 0, 0.9)


def test_methods_come_in_the_order_asked_for_and_repeat_by_seed(data):
    asked = ["bbe", "tilt"]
    first, again, other = (estimate_prior_on(data, methods=asked, seed=seed, device="cpu") for seed in (0, 0, 1))
    assert [one.method for one in first] == asked
    assert first == again and first != other


def test_the_tilt_has_the_interval_of_its_likelihood_and_the_other_methods_have_none(data):
    found = {one.method: one for one in estimate_prior_on(data, device="cpu")}
    tilt = found.pop("tilt")
    assert tilt.draws == 0 and 0.1 < tilt.low < tilt.prior < tilt.high < 0.3
    assert found and not any(one.has_interval for one in found.values())


@pytest.mark.parametrize(
    "bad",
    [{"methods": ["best"]}, {"methods": []}, {"level": 1.0}, {"level": 0.0}, {"n_folds": 1}],
    ids=str,
)
def test_arguments_outside_their_domain_are_refused(data, bad):
    with pytest.raises(ValueError, match=r"unknown method|level must be"):
        estimate_prior_on(data, **bad)


def test_an_estimate_takes_what_training_takes_strings_or_opened_objects(tmp_path):
    X, s, y = planted(n=300, labelled=40)
    cache = write_cache(tmp_path / "cache.h5", X)
    (tmp_path / "found.txt").write_text("\n".join(key for key, label in zip(cache.keys, s, strict=True) if label))
    options = {"methods": ["tilt"], "device": "cpu"}
    expected = estimate_prior_on(LabelledCache.of(cache, s), **options)
    assert estimate_prior(cache, s, **options) == expected
    assert estimate_prior(str(tmp_path / "cache.h5"), tmp_path / "found.txt", **options) == expected
    (tmp_path / "rejected.txt").write_text(
        "\n".join(key for key, label in zip(cache.keys, y, strict=True) if not label)
    )
    negatives = tmp_path / "rejected.txt"
    reviewed = estimate_prior(cache, tmp_path / "found.txt", negatives=negatives, twins=None, **options)
    assert reviewed != expected
