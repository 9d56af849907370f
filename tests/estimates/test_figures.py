import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.estimates.figures import Figures
from pucache.estimates.intervals import WITH_INTERVAL, Estimate, intervals_from_pu
from pucache.estimates.label_requirements import LabelCount, assumption, format_share
from pucache.estimates.metrics import from_pu
from pucache.scoring.new_images import percent


def normal_margins():
    """Margins of 40 labelled positives and of 600 unlabelled rows with unit variance, and s."""
    draw = np.random.default_rng(0)
    hidden = draw.binomial(600, 0.1)
    y = np.repeat([1, 1, 0], [40, hidden, 600 - hidden])
    return draw.normal(size=len(y)) + 2 * y, np.repeat([1, 0], [40, 600])


def stated(labels, *, ends=(0.1, 0.1)):
    margins, s = normal_margins()
    return Figures.of(margins, s, labels=LabelCount(labels), prior=0.1, prior_range=ends, threshold=1)


def test_with_a_given_prior_figures_from_thirty_labels_are_counts_and_lie_in_their_intervals():
    figures, (margins, s) = stated(30), normal_margins()
    content = figures.to_json()
    assert content.items() >= from_pu(margins, s, 0.1, 1.0).items()
    for name in WITH_INTERVAL:
        assert figures[name].low <= figures[name].value <= figures[name].high
    json.dumps(content, allow_nan=False)


@pytest.mark.parametrize("ends", [(0.01, 0.12), (0.09, 0.5)], ids=str)
def test_with_an_estimated_prior_figures_of_decisions_that_depend_on_it_are_in_the_middle_of_their_draws(ends):
    figures, (margins, s) = stated(30, ends=ends), normal_margins()
    counts, drawn = from_pu(margins, s, 0.1, 1.0), intervals_from_pu(margins, s, 0.1, ends, 1.0)
    assert {name: figures[name] for name in ("recall", "precision", "f1", "auc")} == {
        **{name: Estimate.of(counts[name], drawn[name].interval) for name in ("recall", "auc")},
        **{name: drawn[name] for name in ("precision", "f1")},
    }


def test_the_middle_of_the_draws_leans_less_than_counts_at_the_threshold_where_these_look_best():
    leans = []
    for seed in range(25):
        draw = np.random.default_rng(seed)
        margins, s = draw.normal(size=1040) + 2 * (np.arange(1040) < 100), np.repeat([1, 0], [40, 1000])
        f1 = {at: from_pu(margins, s, 0.06, at)["f1"] for at in np.quantile(margins[40:], np.linspace(0.8, 0.99, 40))}
        at = max(f1, key=f1.get)
        truth = np.mean(margins[40:100] > at) * 60 / np.sum(margins[40:] > at)
        given = {"labels": LabelCount(40), "prior": 0.06, "threshold": at}
        stated = [Figures.of(margins, s, prior_range=ends, **given) for ends in ((0.06, 0.06), (0.03, 0.1))]
        leans.append([one["precision"].value - truth for one in stated])
    counts, middle = np.mean(leans, 0)
    assert abs(middle) < 0.8 * counts


def test_without_a_prior_only_recall_and_pauc_are_stated():
    figures = stated(30, ends=None)
    assert [name for name in WITH_INTERVAL if figures[name].interval] == ["pauc", "recall"]
    assert str(figures["precision"]) == "not estimated"


# --- files -----------------------------------------------------------------------------------------


HOSTILE = st.one_of(
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.booleans(),
    st.sampled_from([math.nan, math.inf, -math.inf, 10**400, 1e308]),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)


STATED = stated(40).to_json()


@given(st.sampled_from([*STATED]), HOSTILE)
def test_a_figure_that_is_none_is_refused(name, value):
    if (name == "collapsed" and isinstance(value, str)) or (value == 1e308 and name not in ("labels",)):
        return
    content = STATED | {name: value}
    with pytest.raises((ValueError, TypeError)):
        Figures.from_json(content, None, LabelCount(40), None)


WRITTEN = [
    ((0.99999,), "0.99999"),
    ((0.999949,), "0.9999"),
    ((1 - 1e-16,), "0.9999999999999999"),
    ((1e-9,), "1e-09"),
    ((1,), "1"),
    ((0.00001, 4, "f"), "0.00001"),
    ((0.00049, 4, "f"), "0.0005"),
    ((0, 3, "f"), "0.000"),
]


@pytest.mark.parametrize(("share", "text"), WRITTEN)
def test_a_share_next_to_an_end_is_not_written_as_the_end(share, text):
    assert format_share(*share) == text


def test_a_figure_or_percentage_next_to_an_end_is_not_written_as_the_end():
    assert str(Estimate(0.9996, 0.99, 1.0)).startswith("0.9996 (0.99 to") and str(Estimate(1.0)) == "1.000"
    assert [percent(share) for share in (1, 0.99999, 0.5, 1e-5)] == ["100%", "99.999%", "50%", "0.001%"]
    assert format_share(4e-7, 2, "f", whole=100) == "0.00004"
    assert "99.99 %" in assumption(0.9999)
