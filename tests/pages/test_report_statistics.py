import numpy as np
import pytest
from sklearn.metrics import precision_recall_curve

from pucache.pages import report_statistics
from pucache.pages.report_statistics import HeldOut
from pucache.pu.calibration import fit_tilt
from pucache.pu.metrics import from_pu, with_labels


def held(p=60, u=900, prior=0.2, truth=True, seed=0):
    """Margins of two normal classes, two apart."""
    draw = np.random.default_rng(seed)
    y = (draw.random(u) < prior).astype(np.int8)
    positive = draw.normal(2, 1, p).astype(np.float32)
    unlabelled = draw.normal(2 * y, 1).astype(np.float32)
    s = np.repeat([1, 0], [p, u])
    tilt = fit_tilt(np.concatenate([positive, unlabelled]), s)
    return HeldOut(positive, unlabelled, tilt, 1.25, y if truth else None)


def test_every_margin_is_in_one_bin_of_the_histogram():
    given = held()
    bins = report_statistics.margin_histogram(given)
    assert sum(bins["labelled"]) == 60 and sum(bins["unlabelled"]) == 900
    assert sum(bins["hidden"]) == given.truth.sum()
    inner = [(low, high) for low, high in zip(bins["edges"][1:-2], bins["edges"][2:-1], strict=True)]
    counted = [((given.unlabelled >= low) & (given.unlabelled < high)).sum() for low, high in inner]
    assert bins["unlabelled"][1:-1] == counted


def test_the_expected_positives_of_the_histogram_are_the_posteriors_added_up():
    given = held()
    bins = report_statistics.margin_histogram(given)
    assert sum(bins["expected"]) == pytest.approx(given.tilt.posterior(given.unlabelled).sum())
    assert all(expected <= all_ + 1e-9 for expected, all_ in zip(bins["expected"], bins["unlabelled"], strict=True))


def test_the_expected_curve_is_that_of_the_posteriors():
    given = held()
    curve = report_statistics.precision_recall(given)["expected"]
    posterior = np.sort(given.tilt.posterior(given.unlabelled))[::-1]
    recall, precision = np.cumsum(posterior) / posterior.sum(), np.cumsum(posterior) / np.arange(1, 901)
    for x, y in zip(curve["recall"], curve["precision"], strict=True):
        at = int(np.argmin(np.abs(recall - x)))
        assert (x, y) == pytest.approx((recall[at], precision[at]))
    called = (given.unlabelled > given.threshold).sum()
    assert curve["at"] == pytest.approx((recall[called - 1], precision[called - 1]))
    assert curve["recall"][-1] == pytest.approx(1) and 10 < len(curve["recall"]) <= report_statistics.POINTS


def test_the_counted_curve_is_counted_on_the_labelled():
    given = held()
    curve = report_statistics.precision_recall(given)["counted"]
    for x, y in zip(curve["recall"], curve["precision"], strict=True):
        margin = np.sort(given.positive)[::-1][round(x * 60) - 1]
        share = (given.unlabelled >= margin).mean()
        assert y == pytest.approx(min(1, given.tilt.prior * x / share))
    assert min(curve["recall"]) == pytest.approx(10 / 60)
    s = np.repeat([1, 0], [60, 900])
    figures = from_pu(np.concatenate([given.positive, given.unlabelled]), s, given.tilt.prior, given.threshold)
    assert curve["at"] == (figures["recall"], figures["precision"])


def test_the_true_curve_and_figures_leave_out_what_is_not_known():
    given = held()
    given.truth[::7] = -1
    known = given.truth >= 0
    precision, recall, _ = precision_recall_curve(given.truth[known], given.unlabelled[known])
    pairs = {(round(x, 9), round(y, 9)) for x, y in zip(recall, precision, strict=True)}
    curve = report_statistics.precision_recall(given)["true"]
    assert all((round(x, 9), round(y, 9)) in pairs for x, y in zip(curve["recall"], curve["precision"], strict=True))
    true = given.true()
    called = (given.unlabelled[known] > given.threshold).astype(int)
    assert true == with_labels(given.truth[known], given.unlabelled[known], called)
    assert curve["at"] == (true["recall"], true["precision"])


def test_reliability_bins_hold_every_row_and_count_as_the_formula_says():
    given = held()
    bins = report_statistics.reliability(given)
    u, p = given.tilt.posterior(given.unlabelled), given.tilt.posterior(given.positive)
    assert sum(bins["n"]) == 900 and sum(bins["labelled"]) == 60 and bins["low"][0] == 0 and bins["high"][-1] == 1
    assert min(bins["n"][1:]) >= 10
    for at, (low, high) in enumerate(zip(bins["low"], bins["high"], strict=True)):
        in_u, in_p = (u >= low) & (u < high), (p >= low) & (p < high)
        assert bins["n"][at] == in_u.sum()
        assert bins["posterior"][at] == pytest.approx(u[in_u].mean())
        assert bins["counted"][at] == pytest.approx(given.tilt.prior * in_p.mean() / in_u.mean())
        assert bins["true"][at] == pytest.approx(given.truth[in_u].mean())
        assert bins["counted_low"][at] <= bins["counted"][at] <= bins["counted_high"][at]


def test_most_true_shares_lie_within_the_error_bars_of_the_count():
    inside = []
    for seed in range(20):
        bins = report_statistics.reliability(held(p=100, u=4000, seed=seed))
        inside += [
            low <= true <= high
            for low, true, high in zip(bins["counted_low"], bins["true"], bins["counted_high"], strict=True)
        ]
    assert np.mean(inside) > 0.85


def test_no_labelled_positive_in_a_bin_still_has_an_upper_bound():
    bins = report_statistics.reliability(held(p=1))
    empty = [at for at, count in enumerate(bins["labelled"]) if count == 0]
    assert empty and all(bins["counted"][at] == 0 < bins["counted_high"][at] for at in empty)


@pytest.mark.parametrize("margin", [0.0, -3.5])
def test_margins_that_are_all_alike_make_one_bin_and_one_point(margin):
    flat = np.full(5, margin, np.float32)
    tilt = fit_tilt(flat, np.array([1, 0, 0, 0, 0]))
    given = HeldOut(flat[:1], flat[1:], tilt, margin, np.array([1, 0, 0, -1], np.int8))
    assert sum(report_statistics.margin_histogram(given)["unlabelled"]) == 4
    assert report_statistics.precision_recall(given)["expected"]["recall"] == [1.0]
    assert sum(report_statistics.reliability(given)["n"]) == 4


def test_a_threshold_above_everything_calls_nothing():
    given = held()
    above = HeldOut(given.positive, given.unlabelled, given.tilt, 99.0, given.truth)
    curves = report_statistics.precision_recall(above)
    assert curves["expected"]["at"] == (0.0, 1.0) and curves["counted"]["at"][0] == 0
    assert above.true()["recall"] == 0


def test_no_true_curve_where_no_class_is_known():
    given = held()
    given.truth[:] = -1
    assert given.true() is None and "true" not in report_statistics.precision_recall(given)
    assert np.isnan(report_statistics.reliability(given)["true"]).all()
