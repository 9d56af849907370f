import re
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.metrics import precision_recall_curve

from pucache.estimates.calibration import fit_tilt
from pucache.estimates.metrics import from_pu, with_labels
from pucache.estimates.priors import PriorEstimate
from pucache.pages import charts
from pucache.pages.charts import HeldOut


def normal_margins(p=60, u=900, prior=0.2, truth=True, seed=0):
    """Margins of two normal classes, two apart."""
    draw = np.random.default_rng(seed)
    y = (draw.random(u) < prior).astype(np.int8)
    positive = draw.normal(2, 1, p).astype(np.float32)
    unlabelled = draw.normal(2 * y, 1).astype(np.float32)
    s = np.repeat([1, 0], [p, u])
    tilt = fit_tilt(np.concatenate([positive, unlabelled]), s)
    return HeldOut(positive, unlabelled, tilt, 1.25, y if truth else None)


def test_every_margin_is_in_one_bin_and_the_expected_positives_are_the_posteriors_added_up():
    held_out = normal_margins()
    bins = charts.margin_histogram(held_out)
    assert sum(bins["labelled"]) == 60 and sum(bins["unlabelled"]) == 900
    assert sum(bins["hidden"]) == held_out.truth.sum()
    inner = [(low, high) for low, high in zip(bins["edges"][1:-2], bins["edges"][2:-1], strict=True)]
    counted = [((held_out.unlabelled >= low) & (held_out.unlabelled < high)).sum() for low, high in inner]
    assert bins["unlabelled"][1:-1] == counted
    assert sum(bins["expected"]) == pytest.approx(held_out.tilt.posterior(held_out.unlabelled).sum())
    assert all(expected <= all_ + 1e-9 for expected, all_ in zip(bins["expected"], bins["unlabelled"], strict=True))


def test_the_expected_curve_is_that_of_the_posteriors():
    held_out = normal_margins()
    curve = charts.precision_recall(held_out)["expected"]
    posterior = np.sort(held_out.tilt.posterior(held_out.unlabelled))[::-1]
    recall, precision = np.cumsum(posterior) / posterior.sum(), np.cumsum(posterior) / np.arange(1, 901)
    for x, y in zip(curve["recall"], curve["precision"], strict=True):
        at = int(np.argmin(np.abs(recall - x)))
        assert (x, y) == pytest.approx((recall[at], precision[at]))
    called = (held_out.unlabelled > held_out.threshold).sum()
    assert curve["at"] == pytest.approx((recall[called - 1], precision[called - 1]))
    assert curve["recall"][-1] == pytest.approx(1) and 10 < len(curve["recall"]) <= charts.POINTS


def test_the_counted_curve_is_counted_on_the_labelled():
    held_out = normal_margins()
    curve = charts.precision_recall(held_out)["counted"]
    for x, y in zip(curve["recall"], curve["precision"], strict=True):
        margin = np.sort(held_out.positive)[::-1][round(x * 60) - 1]
        share = (held_out.unlabelled >= margin).mean()
        assert y == pytest.approx(min(1, held_out.tilt.prior * x / share))
    assert min(curve["recall"]) == pytest.approx(10 / 60)
    s, margins = np.repeat([1, 0], [60, 900]), np.concatenate([held_out.positive, held_out.unlabelled])
    figures = from_pu(margins, s, held_out.tilt.prior, held_out.threshold)
    assert curve["at"] == (figures["recall"], figures["precision"])


def test_the_true_curve_and_figures_leave_out_what_is_not_known():
    held_out = normal_margins()
    held_out.truth[::7] = -1
    known = held_out.truth >= 0
    precision, recall, _ = precision_recall_curve(held_out.truth[known], held_out.unlabelled[known])
    pairs = {(round(x, 9), round(y, 9)) for x, y in zip(recall, precision, strict=True)}
    curve = charts.precision_recall(held_out)["true"]
    assert all((round(x, 9), round(y, 9)) in pairs for x, y in zip(curve["recall"], curve["precision"], strict=True))
    true = held_out.true()
    called = (held_out.unlabelled[known] > held_out.threshold).astype(int)
    assert true == with_labels(held_out.truth[known], held_out.unlabelled[known], called)
    assert curve["at"] == (true["recall"], true["precision"])


def test_reliability_bins_hold_every_row_and_count_as_the_formula_says():
    held_out = normal_margins()
    bins = charts.reliability(held_out)
    u, p = held_out.tilt.posterior(held_out.unlabelled), held_out.tilt.posterior(held_out.positive)
    assert sum(bins["n"]) == 900 and sum(bins["labelled"]) == 60 and bins["low"][0] == 0 and bins["high"][-1] == 1
    assert min(bins["n"][1:]) >= 10
    for at, (low, high) in enumerate(zip(bins["low"], bins["high"], strict=True)):
        in_u, in_p = (u >= low) & (u < high), (p >= low) & (p < high)
        assert bins["n"][at] == in_u.sum()
        assert bins["posterior"][at] == pytest.approx(u[in_u].mean())
        assert bins["counted"][at] == pytest.approx(held_out.tilt.prior * in_p.mean() / in_u.mean())
        assert bins["true"][at] == pytest.approx(held_out.truth[in_u].mean())
        assert bins["counted_low"][at] <= bins["counted"][at] <= bins["counted_high"][at]


# --- drawings ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawings():
    """Each chart, by name."""
    held = normal_margins()
    estimates = [PriorEstimate("tilt", 0.2, 0.15, 0.25, 0.9, 9), PriorEstimate("audit", 0.3, 0.0, 1.0, 0.9, 0)]
    drawn_by = {
        "priors": (charts.paint_priors, estimates, 0.2, 0.21, True),
        "margins": (charts.paint_margins, charts.margin_histogram(held), 1.0),
        "curve": (charts.paint_curve, charts.precision_recall(held)),
        "reliability": (charts.paint_reliability, charts.reliability(held)),
    }
    svgs = {name: charts.draw(name, 3.2, *how) for name, how in drawn_by.items()}
    return {name: f"<svg {svg['box']}>{svg['body']}" for name, svg in svgs.items()}


def test_a_chart_is_one_element_that_takes_the_colours_of_the_page(drawings):
    for name, svg in drawings.items():
        assert ElementTree.fromstring(svg.replace("xlink:href", "href")).tag == "svg", name
        assert not re.search("#[0-9a-f]{6}|<style|<script|font-family|DOCTYPE", svg), name
        assert "currentColor" in svg and "var(--positive)" in svg and "date" not in svg.lower(), name


def test_references_within_a_chart_are_to_its_own_ids_and_charts_share_none(drawings):
    all_ids = []
    for svg in drawings.values():
        ids = re.findall(r' id="([^"]+)"', svg)
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= set(ids)
        all_ids += ids
    assert len(all_ids) == len(set(all_ids))
