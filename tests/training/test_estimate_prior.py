import numpy as np
import pytest
from helpers.planted import planted, write_cache

from pucache import PULabels, PULinearClassifier, estimate_prior, sweep_priors, train_pu
from pucache.estimates.audited_prior import AuditedHidden

CPU = PULinearClassifier(device="cpu")
FIXED = PULinearClassifier(penalty=1e-3, device="cpu")


def nn(loss="imbnnpu", penalty=1e-3):
    return PULinearClassifier(loss=loss, penalty=penalty, device="cpu")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    X, s, _ = planted(n=600, d=8, labelled=60, prior=0.2, apart=0.6)
    cache = write_cache(tmp_path_factory.mktemp("sweep") / "cache.h5", X)
    return cache, s


def test_positives_that_a_review_confirmed_are_no_labels_for_a_single_figure(tmp_path):
    X, s, y = planted(n=900, d=8, labelled=15, prior=0.2, apart=0.6)
    hidden_rows = np.flatnonzero((y == 1) & (s == 0))
    reviewed = np.zeros(len(s), np.int8)
    reviewed[hidden_rows[:100]] = 1
    reviewed[np.flatnonzero(y == 0)[:60]] = -1
    audit = AuditedHidden(low=5, high=150, likeliest=None, draws=60, level=0.95)
    labels, cache = PULabels(s, reviewed, hidden=audit), write_cache(tmp_path / "c.h5", X)
    by_labels = estimate_prior(cache, labels, device="cpu")[-1]
    assert by_labels.method == "tilt" and by_labels.prior is None and by_labels.has_interval
    recall = train_pu(cache, labels, device="cpu").figures_.of_new_images["recall"]
    assert recall.value is None and recall.interval is not None


def sweep(data, classifier=None, **how):
    return sweep_priors(*data, classifier, twins=None, **how)


def test_a_risk_that_needs_the_prior_is_trained_at_each(data):
    result = sweep(data, nn("nnpu", 1e-4), priors=[0.02, 0.2, 0.7], seeds=[0])
    assert len({row["pauc"] for row in result.rows}) == 3
    assert "cut at 0" in result.verdict and "estimate-prior" in result.verdict


def test_a_sweep_trains_as_one_fit_does(data):
    """Every prior and seed alone gives what all give together."""
    together = sweep(data, nn(), priors=[0.1, 0.4], seeds=[3, 5]).rows
    alone = [sweep(data, nn(), priors=[p], seeds=[s]).rows[0] for p in (0.1, 0.4) for s in (3, 5)]
    for row, other in zip(together, alone, strict=True):
        assert row["pauc"] == pytest.approx(other["pauc"], abs=2e-3) and row["seed"] == other["seed"]
        assert row["risk"] == pytest.approx(other["risk"], abs=2e-3)


@pytest.mark.parametrize("bad", [{"priors": []}, {"priors": [0.0]}, {"priors": [1.0]}, {"seeds": []}])
def test_priors_outside_their_domain_are_refused(data, bad):
    with pytest.raises(ValueError, match="priors must lie strictly between 0 and 1"):
        sweep(data, **bad)


def test_priors_that_a_review_has_shown_to_be_wrong_are_left_out(tmp_path):
    X, s, y = planted(n=300, labelled=20, prior=0.3)
    reviewed = np.where((y == 1) & (s == 0), 1, 0).astype(np.int8)
    data = write_cache(tmp_path / "c.h5", X), PULabels(s, reviewed)
    share = reviewed.sum() / (s == 0).sum()
    result = sweep(data, FIXED, priors=(0.01, 0.1, 0.5), seeds=(0,))
    assert share > 0.1 and [row["prior"] for row in result.rows] == [0.5]
    assert "Left out, as a review has shown them to be wrong: 2 priors." in result.verdict
    with pytest.raises(ValueError, match=r"the prior cannot be 0\.01"):
        sweep(data, FIXED, priors=(0.01, 0.1), seeds=(0,))


def test_means_are_over_the_seeds_and_empty_where_a_figure_is_not_stated(data):
    result = sweep(data, FIXED, priors=[0.4, 0.1], seeds=[0, 1])
    of_prior = [row["f1"] for row in result.rows if row["prior"] == 0.4]
    assert list(result.means("f1")) == [0.1, 0.4] and result.means("f1")[0.4] == pytest.approx(np.mean(of_prior))
    assert result.means("true_f1") == {}


def test_the_default_risk_gives_one_set_of_heads_whatever_the_prior(data):
    result = sweep(data, CPU, priors=[0.05, 0.2, 0.5], seeds=[0, 1])
    assert [(row["prior"], row["seed"]) for row in result.rows] == [(p, s) for p in (0.05, 0.2, 0.5) for s in (0, 1)]
    for name in ("pauc", "risk", "clamped"):
        assert all(len({row[name] for row in result.rows[seed::2]}) == 1 for seed in (0, 1))
    assert result.verdict.startswith("flat: imbupu gives the same model")
    assert len({row["f1"] for row in result.rows}) > 3  # what is estimated of them does depend on it


def test_an_estimate_has_an_interval_and_follows_its_seed(data):
    (first,), (other,) = (estimate_prior(*data, seed=seed, device="cpu") for seed in (0, 1))
    assert first != other and (first.method, first.draws) == ("tilt", 0)
    assert 0.1 < first.low < first.prior < first.high < 0.3
