"""What constants are worth: each is varied where it takes effect and stands as it was afterwards, and the page."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.common.image_classes import Task
from benchmarks.quality import constant_table, constants, constants_page, prior_piles
from benchmarks.quality.constant_table import CONSTANTS, FIT, INTERVAL, LINEAR, SITTING, variants
from benchmarks.quality.suite import Location
from pucache.neighbours.graph import NeighbourGraph, neighbour_graph

pytestmark = pytest.mark.usefixtures("one_thread")


def planted(n=400, d=6, labelled=40):
    """Two clusters; one in four is positive."""
    draw, y = np.random.default_rng(0), np.arange(n) < n // 4
    X, X_test = ((draw.standard_normal((n, d)) + 1.5 * y[:, None]).astype(np.float16) for _ in range(2))
    return Task(X, (np.arange(n) < labelled).astype(np.int8), y, X_test, y)


@pytest.fixture
def at(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "opened", lambda at: SimpleNamespace(task=lambda setting: planted()))
    monkeypatch.setattr(constants, "ONE_IN", 1)
    return Location(tmp_path, tmp_path, None, quick=True)


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda constant: constant.name)
def test_a_constant_is_varied_and_stands_as_it_was_afterwards(constant):
    shipped = constant.value
    for value in constant.values:
        assert value != shipped
        with constants.varied(constant, value):
            assert constant.value == value
    assert constant.value == shipped


def test_the_number_of_neighbours_and_their_temperature_take_effect():
    X = planted().X
    by_name = {constant.name: constant for constant in CONSTANTS if constant.kind == FIT}
    with constants.varied(by_name["NEIGHBOURS"], 10):
        assert neighbour_graph(X).k == 10
    graph, values = neighbour_graph(X), np.arange(400.0)
    assert graph.k == 30
    plain = graph.weighted_means(values)
    with constants.varied(by_name["TEMPERATURE"], 0.3):
        np.testing.assert_allclose(graph.weighted_means(values), NeighbourGraph.weighted_means(graph, values, 0.3))
        assert np.abs(graph.weighted_means(values) - plain).max() > 1
    np.testing.assert_array_equal(graph.weighted_means(values), plain)


def test_a_thinned_task_keeps_the_labels_and_one_in_four_of_the_others():
    task = constants.thinned(planted(), 4)
    assert task.s.sum() == 40 and len(task.s) == 40 + 360 // 4 and task.hidden.sum() == 15


def test_intervals_are_held_against_the_truth(at, monkeypatch):
    task = planted(2000, labelled=100)
    margins = task.X.astype(np.float64).sum(1)
    pile = SimpleNamespace(s=task.s, share=400 / 1900, margins={"linear": margins.astype(np.float32)})
    monkeypatch.setattr(prior_piles, "held_out", lambda *arguments, **named: pile)
    found = constants.measure_intervals(at, 100, 1)["intervals"]
    assert list(found) == [constants.AS_IT_IS, *(one.label(value) for one, value in variants(INTERVAL))]
    wider = found["estimates.priors.ERROR_BELOW = 0.6"]["width"]
    assert wider > found[constants.AS_IT_IS]["width"] > found["estimates.priors.ERROR_BELOW = 0"]["width"]


def few(monkeypatch, *names):
    kept = tuple(constant for constant in CONSTANTS if constant.name in names)
    monkeypatch.setattr(constant_table, "CONSTANTS", kept)
    return kept


@pytest.mark.slow
def test_fits_and_sittings_are_measured_and_stand_on_the_page(at, monkeypatch):
    kept = few(monkeypatch, "_FLOOR", "_LATER_ROUNDS", "_LEAST_EVIDENCE", "_DIRECTIONS")
    monkeypatch.setattr(constants, "LOOKS", 30)
    fits = [{"task": "coat", "labelled": 40, "share": 0.2} | constants.measure_fits(at, "coat", 40, 0.2)]
    assert len(fits[0]["fits"]) == 2 + 4 and all(0.5 < of["ap"] <= 1 for of in fits[0]["fits"].values())
    assert len(fits[0]["weights"]) == 1 + 2
    sittings = [{"task": "coat"} | constants.measure_sittings(at, "coat")]
    assert all(0 < count <= 30 for count in sittings[0]["found"].values())
    cells = {"fits": 2 * fits, "intervals": [], "sittings": sittings}
    text = constants_page.page(cells, kept)
    assert "| `training.penalty._FLOOR` |" in text and "± 0.0000 |" in text and "nan" not in text
    assert "## Intervals\n\nNot measured." in text and " of 2 |" in text


def test_every_kind_of_constant_is_measured():
    assert {constant.kind for constant in CONSTANTS} == {LINEAR, FIT, constant_table.RULE, INTERVAL, SITTING}
    labels = [constant.label(value) for constant, value in variants(*{one.kind for one in CONSTANTS})]
    assert len(set(labels)) == len(labels) == sum(len(constant.values) for constant in CONSTANTS)
