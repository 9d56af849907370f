"""The benchmark of the SCAR check: who is labelled in which way, and the page."""

import numpy as np
import pytest

from benchmarks.common.image_classes import ImageClasses
from benchmarks.common.tasks import CIFAR, FASHION, TASKS
from benchmarks.quality import scar


@pytest.fixture(params=[CIFAR, FASHION])
def positives(request):
    """A group of tasks, and its positives among 40 images of each class in clusters; hidden are 2,400 // 100."""
    group, draw = request.param, np.random.default_rng(0)
    data = ImageClasses.__new__(ImageClasses)
    data.part, data.label = 100, np.repeat(TASKS[group], 40)
    y = np.isin(data.label, scar.POSITIVES[group])
    data.X = (draw.normal(size=(400, 6)) + 2 * y[:, None]).astype(np.float16)
    return group, scar.Positives(data, scar.POSITIVES[group])


def test_every_way_labels_positives_alone_and_hides_as_many_of_each_class(positives, monkeypatch):
    group, of = positives
    monkeypatch.setattr(scar.Positives, "brightness", of.data.X[of.rows, 0])
    monkeypatch.setattr(scar.Positives, "recoded", lambda self, rows: 0 * self.data.X[rows])
    for way in scar.WAYS[group]:
        X, s, y = scar.task(of, way, 1200, 0)
        assert s.sum() == 12 and y[s == 1].all() and len(X) == len(s) == len(y)
        assert (y & (s == 0)).sum() == 24 and (~y).sum() == len(of.others)


def test_the_page_has_a_row_for_each_way_and_counts_false_alarms():
    figures = {"compared": 10, "found": 20, "auc": 0.6, "explained": 0.5, "true_precision": 0.9}
    figures |= {"prior": 0.1, "true_prior": 0.1, "recall": 0.8, "true_recall": 0.7}
    ways = [
        {"group": FASHION, "way": way, "labelled": 600, "seed": 0, "verdict": "differ", **figures}
        for way in scar.WAYS[FASHION]
    ]
    fair = {"group": FASHION, "task": "coat", "share": 0.05, "labelled": 100, "seed": 0, "verdict": "alike", **figures}
    few = fair | {"labelled": 20, "recall": None}
    text = scar.report("Rows.", "encoder", ways, [fair, few], " --quick")
    assert "| not stated / 0.70 |" in text
    assert all(f"| 600 | {who} |" in text for who in scar.WAYS[FASHION].values())
    assert "## Ways to label footwear" in text and "## Ways to label\n" not in text
    assert "| fashion classes | 100, 5% |" in text and "reported a difference for fair labels in 1 of 3 cells" in text
