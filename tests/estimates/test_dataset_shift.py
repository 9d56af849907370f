import numpy as np
import pytest
from helpers.planted import planted
from threadpoolctl import threadpool_limits

from pucache import PULinearClassifier
from pucache.estimates.calibration import fit_tilt
from pucache.estimates.dataset_shift import PileSample, along, check_shift, weights_at
from pucache.estimates.share_of_new_images import PileMargins

PRIOR, D = 0.1, 8


def rows(rng, n, share, moved=0.0, apart=2.5):
    """Rows (n, 8) whose first value is the margin of a mixture; the others say nothing."""
    X = rng.normal(size=(n, D))
    X[:, 0] += apart * (np.arange(n) < round(share * n))
    X[:, 1] += moved
    return X.astype(np.float32)


def known(rng, labelled=300, prior=PRIOR, apart=2.5):
    X = np.concatenate([rows(rng, labelled, 1, apart=apart), rows(rng, 6000, prior, apart=apart)])
    s = (np.arange(len(X)) < labelled).astype(np.int8)
    pile = PileMargins.of(X[:, 0], s, None, None)
    kept = np.concatenate([np.arange(labelled), np.random.default_rng(0).choice(np.arange(labelled, len(X)), 1700)])
    sample = PileSample(
        np.eye(D, dtype=np.float16), np.zeros(D, np.float32), 1.0, X[kept].astype(np.float16), X[kept, 0], labelled
    )
    sample.check(D)
    return sample, pile, pile.tilt(fit_tilt(*pile.rows).prior)


def test_unchanged_images_raise_no_alarm_whatever_their_share():
    alarms = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        of_pile = known(rng)
        X = rows(rng, (200, 1000)[seed % 2], (0.0, 0.02, 0.1, 0.4, 0.9)[seed % 5])
        alarms += check_shift(*of_pile, X, X[:, 0]).differs
    assert alarms <= 1


def test_noise_is_found_though_it_moves_no_mean():
    found = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = rows(rng, 1000, PRIOR)
        noisy = X + rng.normal(0, 0.6, X.shape).astype(np.float32)
        found += check_shift(*known(rng), noisy, X[:, 0]).is_told_apart
    assert found == 4


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_a_share_that_falls_is_no_difference_where_the_tilt_is_hardly_known(share):
    """Few labels and a large prior: which rows of the pile are positives, and so its negatives, is estimated."""
    alarms = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        sample, pile, tilt = known(rng, labelled=20, prior=0.4, apart=1.5)
        X = rows(rng, 1000, share, apart=1.5)
        alarms += check_shift(sample, pile, tilt, X, X[:, 0]).differs
    assert alarms <= 1


@pytest.mark.parametrize("size", [120, 1000])
def test_a_small_pile_whose_directions_follow_its_own_rows_raises_no_alarm(size):
    for seed in range(3):
        X, s, _ = planted(size + 300, d=64, labelled=40, seed=seed)
        X, s, new = X[:size], s[:size], X[size:][s[size:] == 0]
        model = PULinearClassifier(method="linear", penalty=0.01, device="cpu").fit(X, s)
        tilt = model.pile_margins_.tilt(model.tilt_.prior)
        assert not check_shift(model.pile_sample_, model.pile_margins_, tilt, new, model.margins(new)).differs


@pytest.mark.parametrize("share", [0.1, 0.3, 0.99])
def test_weights_are_those_of_a_mixture_of_the_share(share):
    rng = np.random.default_rng(4)
    _, _, tilt = known(rng)
    labelled, positive = np.arange(20_300) < 300, np.arange(20_300) < 300 + 2000
    margins = np.concatenate([rows(rng, 300, 1), rows(rng, 20_000, PRIOR)])[:, 0]
    w = weights_at(share, tilt, margins, labelled)
    assert (w >= 0).all() and w.sum() == pytest.approx(1)
    assert w[positive].sum() == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("change", [{"spread": 0.0}, {"n_labelled": 9999}, {"centre": np.full(D, np.nan, np.float32)}])
def test_a_sample_of_an_untrusted_file_is_checked(change):
    sample, _, _ = known(np.random.default_rng(6))
    with pytest.raises(ValueError, match="not as described"):
        PileSample(**(vars(sample) | change)).check(D)


def test_rows_along_directions_have_the_same_bytes_by_any_number_of_threads():
    X, rows = np.random.default_rng(0).normal(size=(2000, 1280)).astype(np.float32), []
    for threads in (1, 2):
        with threadpool_limits(threads):
            rows.append(along(X, X[:64].T, np.zeros(64, np.float32), 1.0))
    np.testing.assert_array_equal(*rows)
