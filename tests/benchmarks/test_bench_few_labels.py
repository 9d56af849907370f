"""Few labels: figures against their definitions, and the page."""

import numpy as np
import pytest

from benchmarks.common.image_classes import Task
from benchmarks.common.row_cache import write_row_cache
from benchmarks.common.tasks import CHOSEN_ON, CIFAR, KINDS, TASKS
from benchmarks.quality import few_labels, few_labels_page


@pytest.fixture(scope="module")
def task():
    """Two clusters, 40 labelled and 60 hidden positives among 400 rows."""
    draw = np.random.default_rng(0)
    y = np.arange(400) < 100
    X, X_test = ((draw.standard_normal((400, 8)) + 1.5 * y[:, None]).astype(np.float16) for _ in range(2))
    return Task(X, (np.arange(400) < 40).astype(np.int8), y, X_test, y)


def test_arms_and_the_ranking_are_measured(tmp_path, task):
    found = few_labels.compare(task, write_row_cache(tmp_path / "rows.h5", task.X))
    assert list(found) == [*few_labels.ARMS, "default ranking"]
    for name in few_labels.ARMS:
        assert {"ap", "ap_test", "f1", "best_f1", "ece", "prior", "seconds"} <= set(found[name])
    assert all(0.5 < figures["ap"] <= 1 for figures in found.values())


def test_calibration_error_against_its_definition():
    draw = np.random.default_rng(0)
    posterior = np.append(draw.random(1000), [0.0, 1.0, 0.5])
    y = draw.random(1003) < posterior**2
    expected = 0.0
    for low in np.arange(0, 1, 0.1):
        inside = (posterior >= low - 1e-12) & ((posterior < low + 0.1 - 1e-12) | (low > 0.85))
        expected += inside.mean() * abs(posterior[inside].mean() - y[inside].mean())
    assert few_labels.calibration_error(y, posterior) == pytest.approx(expected)


def cells():
    """AP of the classifier .5, of the ranking .6 on the four classes and .4 elsewhere."""
    rows = []
    for group, task in ((CIFAR, "cat"), (CIFAR, "dog"), (KINDS, "class")):
        gain = 0.1 if task in CHOSEN_ON else -0.1
        arm = {
            "ap": 0.5,
            "ap_test": 0.5,
            "f1": 0.4,
            "best_f1": 0.5,
            "ece": 0.01,
            "ece_test": 0.01,
            "expected_over_true": 1.0,
            "prior_error": 0.1,
            "covered": True,
            "width": 0.5,
            "seconds": 1.0,
        }
        row = {"group": group, "task": task, "share": 0.01, "labelled": 20, "seed": 0}
        row |= {"classifier": arm, "default ranking": {"ap": 0.5 + gain, "ap_test": 0.5, "weight": 1.0}}
        row |= {"logistic": {"ap": [0.3, 0.4], "f1_at_0": [0.2, 0.1]}, "centroid": {"ap": 0.2, "f1_at_0": 0.1}}
        rows.append(row | {"supervised": {"ap": 0.9, "best_f1": 0.8}})
    return rows


def test_the_page_has_groups_side_by_side_and_gains_over_the_first_arm():
    text = few_labels_page.page(cells(), 4, "Rows.", ("classifier",))
    assert "The run was cut off: the page has 3 of 4 cells." in text
    assert "| labelled, share |  | cifar classes | cifar, four chosen on | cifar, six others | texts by kind |" in text
    assert "| 20, 1% | default ranking | 0.500 (+0.000) | 0.600 (+0.100) | 0.400 (-0.100) | 0.400 (-0.100) |" in text
    assert all(name in text for name in CHOSEN_ON) and "on nothing else" in text
    assert "nan" not in text


def test_every_group_has_a_quick_task():
    assert [sum(task in names for task in few_labels.QUICK_TASKS) for names in TASKS.values()] == [1] * len(TASKS)
