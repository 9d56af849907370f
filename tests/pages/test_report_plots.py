import re
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.slow import slow

from pucache.estimates.calibration import fit_tilt
from pucache.estimates.priors import PriorEstimate
from pucache.pages import report_plots, report_statistics
from pucache.pages.report_statistics import HeldOut
from pucache.training.prior_sweep import Sweep


def sweep_row(prior, **true):
    """A row of a sweep; the figures that are not drawn are 0."""
    drawn = {"pauc": 0.8, "auc": 0.9, "f1": 0.5, "share_predicted_positive": 0.2}
    return {"prior": prior, "seed": 0, "risk": 0.0, "clamped": 0.0} | drawn | true


@pytest.fixture(scope="module")
def drawings():
    """A way to draw each figure."""
    draw = np.random.default_rng(0)
    y = (draw.random(600) < 0.2).astype(np.int8)
    positive, unlabelled = draw.normal(2, 1, 50), draw.normal(2 * y, 1)
    tilt = fit_tilt(np.concatenate([positive, unlabelled]), np.repeat([1, 0], [50, 600]))
    held = HeldOut(positive, unlabelled, tilt, 1.0, y)
    estimates = [PriorEstimate("tilt", 0.2, 0.15, 0.25, 0.9, 9), PriorEstimate("bbe", 0.3, 0.0, 1.0, 0.9, 0)]
    swept = Sweep([sweep_row(prior, true_f1=0.6) for prior in (0.1, 0.3)], 1e-3, "flat: so it is")
    return {
        "priors": report_plots.prior_methods(estimates, 0.2, 0.21),
        "margins": report_plots.margins(report_statistics.margin_histogram(held), 1.0),
        "curve": report_plots.precision_recall(report_statistics.precision_recall(held)),
        "reliability": report_plots.reliability(report_statistics.reliability(held)),
        "sweep": report_plots.prior_sweep(swept, 0.2),
    }


NAMES = ["priors", "margins", "curve", "reliability", "sweep"]


def drawn(drawings, name, title="A title", finding="What it says"):
    return str(report_plots.draw(name, title, finding, drawings[name]))


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_one_element_that_takes_the_colours_of_the_page(drawings, name):
    svg = drawn(drawings, name)
    assert ElementTree.fromstring(svg.replace("xlink:href", "href")).tag == "svg"
    assert not re.search("#[0-9a-f]{6}|<style|<script|font-family|DOCTYPE", svg)
    assert "currentColor" in svg and "var(--positive)" in svg
    assert "date" not in svg.lower()


@pytest.mark.parametrize("name", NAMES)
def test_every_reference_within_a_figure_is_to_something_in_it(drawings, name):
    svg = drawn(drawings, name)
    ids = re.findall(r' id="([^"]+)"', svg)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= set(ids)


def test_figures_share_no_id(drawings):
    ids = [set(re.findall(r' id="([^"]+)"', drawn(drawings, name))) for name in NAMES]
    assert sum(map(len, ids)) == len(set().union(*ids))


@pytest.mark.parametrize("name", [name if name == "curve" else slow(name) for name in NAMES])
def test_a_figure_drawn_twice_is_the_same_text(drawings, name):
    assert drawn(drawings, name) == drawn(drawings, name)


def test_title_and_finding_are_told_and_escaped(drawings):
    svg = drawn(drawings, "priors", title="a < b", finding="</svg><script>")
    assert 'role="img"' in svg and "<title id=" in svg and "a &lt; b" in svg
    assert "&lt;/svg&gt;&lt;script&gt;" in svg and "<script>" not in svg
    assert 'aria-labelledby="priors-title priors-finding"' in svg


def test_texts_stay_texts(drawings):
    svg = drawn(drawings, "curve")
    assert "recall: share of the positives found" in svg and ">true</text>" in svg


def test_drawing_leaves_the_settings_of_matplotlib_alone(drawings):
    import matplotlib

    before = dict(matplotlib.rcParams)
    drawn(drawings, "margins")
    assert dict(matplotlib.rcParams) == before


def test_a_sweep_without_truth_has_no_line_of_it(drawings):
    svg = str(report_plots.draw("sweep", "t", "f", report_plots.prior_sweep(Sweep([sweep_row(0.1)], 0.0, "flat"), 0.2)))
    assert "F1, estimated" in svg and "true" not in svg
