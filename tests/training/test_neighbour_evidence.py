import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from helpers.neighbourhoods import clusters, cut_across
from hypothesis import given
from hypothesis import strategies as st

from pucache.estimates.calibration import Tilt
from pucache.training.neighbour_evidence import WEIGHTS, NeighbourEvidence, NeighbourSettings
from pucache.training.sklearn_classifier import PULinearClassifier

pytestmark = pytest.mark.usefixtures("one_thread")
GAINS = st.tuples(*[st.floats(-5, 5)] * 3)
EVIDENCE = st.builds(NeighbourEvidence, agreement=GAINS, held_out=GAINS, labels=st.integers(4, 10**6))


# --- the rule ------------------------------------------------------------------------------------


@given(EVIDENCE)
def test_the_weight_is_0_or_the_greatest_with_nearly_the_best_evidence(evidence):
    trust = 0.5 * evidence.labels / (evidence.labels + 20)
    total = [a + trust * h for a, h in zip(evidence.agreement, evidence.held_out, strict=True)]
    np.testing.assert_allclose(evidence.total, total, atol=1e-12)
    if evidence.total[1] <= 0.02 * np.sqrt(20 / evidence.labels) or evidence.agreement[1] <= 0:
        assert evidence.weight == 0 and "do not count" in evidence.sentence()
    else:
        near = [w for w, one in zip(WEIGHTS, evidence.total, strict=True) if one >= 0.7 * max(evidence.total)]
        assert evidence.weight == max(near) and f"weight {evidence.weight:g}" in evidence.sentence()
    assert "\n" not in evidence.sentence()


def test_fewer_labels_ask_for_clearer_evidence_and_weigh_held_out_positives_less():
    few, many = (NeighbourEvidence((1e-3,) * 3, (0.06,) * 3, labels) for labels in (8, 500))
    assert few.weight == 0 < many.weight
    few, many = (NeighbourEvidence((0.03,) * 3, (-0.2,) * 3, labels) for labels in (8, 500))
    assert few.least > many.least and few.total[1] > many.total[1]


def test_held_out_positives_alone_are_no_evidence():
    assert NeighbourEvidence((0.0,) * 3, (1.0,) * 3, 100).weight == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_neighbours_count_where_what_is_wanted_is_a_neighbourhood(seed):
    X, s, y = clusters(seed=seed, labelled=40)
    options = {"prior": float(y[s == 0].mean()), "penalty": 1e-3, "device": "cpu"}
    model = PULinearClassifier(**options).fit(X, s)
    assert model.method_ == "distilled" and model.neighbours_.weight in WEIGHTS
    assert model.neighbours_.evidence.labels == 40 and model.neighbours_.search == "exact search"
    assert 0 < model.neighbours_.share < 0.4 and np.isfinite(model.neighbours_.threshold)


@pytest.mark.parametrize("labelled", [8, 30])
def test_neighbours_do_not_count_where_what_is_wanted_cuts_across_neighbourhoods(labelled):
    X, s, _ = cut_across(labelled=labelled)
    options = {"prior": 0.3, "penalty": 1e-3, "device": "cpu"}
    model, linear = (PULinearClassifier(**options, method=method).fit(X, s) for method in (None, "linear"))
    assert model.method_ == "linear" and model.neighbours_.weight == 0 and linear.neighbours_ is None
    assert (model.coef_ == linear.coef_).all() and model.estimates_ == linear.estimates_
    assert (model.tilt_, model.threshold_) == (linear.tilt_, linear.threshold_)


# --- what the file keeps -------------------------------------------------------------------------

SETTINGS = NeighbourSettings(
    evidence=NeighbourEvidence(agreement=(0.1, 0.2, 0.3), held_out=(-0.1, 0.0, 0.1), labels=20),
    search="exact search",
    share=0.1,
    tilt=Tilt(0.5, 1.5, 0.2),
    threshold=-1.0,
)


@given(EVIDENCE, st.floats(0, 1), st.floats(-100, 100), st.text(max_size=9))
def test_settings_come_back_from_json_exactly(evidence, share, threshold, search):
    settings = replace(SETTINGS, evidence=evidence, share=share, threshold=threshold, search=search)
    content = json.loads(json.dumps(settings.to_json()))
    assert NeighbourSettings.from_json(content) == settings
    assert content["weight"] == settings.weight and content["reason"] == evidence.sentence()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
PATHS = [(name,) for name in asdict(SETTINGS)]
PATHS += [("evidence", name) for name in asdict(SETTINGS.evidence)] + [("tilt", name) for name in asdict(SETTINGS.tilt)]


@given(st.sampled_from(PATHS), VALUES | st.sampled_from([1e400, -1e400, 0, -20]))
def test_any_other_content_is_refused_or_makes_sound_settings(path, value):
    content = json.loads(json.dumps(SETTINGS.to_json()))
    inner = content
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    try:
        settings = NeighbourSettings.from_json(content)
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return
    assert settings.weight in (0.0, *WEIGHTS) and np.isfinite(settings.threshold) and settings.evidence.sentence()
    assert np.isfinite(settings.tilt.posterior(np.array([-1.0, 0.0, 1.0]))).all()
