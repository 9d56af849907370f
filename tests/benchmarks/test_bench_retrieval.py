"""The benchmark of retrieval: a cell of each way of ranking, and the page."""

from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.common.image_classes import Task
from benchmarks.common.tasks import KINDS, Location, Setting
from benchmarks.quality import retrieval
from pucache.retrieval.similarity import SIMILARITIES

pytestmark = pytest.mark.slow


def planted():
    """40 labelled and 60 hidden positives among 400 rows."""
    draw = np.random.default_rng(0)
    y = np.arange(400) < 100
    X, X_test = ((draw.standard_normal((400, 8)) + 2 * y[:, None]).astype(np.float16) for _ in range(2))
    return Task(X, (np.arange(400) < 40).astype(np.int8), y, X_test, y)


def test_each_way_of_ranking_is_measured_and_stands_on_the_page(tmp_path, monkeypatch):
    of_group = SimpleNamespace(authors=planted, footwear=planted)
    data = SimpleNamespace(task=lambda setting: planted(), data=lambda group: of_group)
    monkeypatch.setattr(retrieval, "opened", lambda at: data)
    at = Location(tmp_path, tmp_path, None, quick=True)
    paper, footwear, kind = (
        asdict(setting) | retrieval.measure(at, **asdict(setting))
        for setting in (
            Setting(retrieval.PAPER, "vehicles", 0.0741, 600, 0),
            Setting(retrieval.FOOTWEAR, "footwear", 0.0789, 600, 0),
            Setting(KINDS, "class", 0.01, 20, 0),
        )
    )
    ways = [*(f"similarity: {name}" for name in SIMILARITIES), "classifier", "**default ranking**"]
    assert [name for name in kind if name not in Setting.__dataclass_fields__] == ways
    assert all(0.8 < kind[name]["AP"] <= 1 and kind[name]["P@2400"] < 0.2 for name in ways)
    text = retrieval.report([paper, footwear, kind], "Rows.")
    assert text.count("| similarity: whitened |") == 3 and "Not measured." not in text
    assert "Not measured." in retrieval.report([paper, kind], "Rows.")
    assert "### texts by kind\n\nTasks: 1." in text and f"| classifier | {kind['classifier']['AP']:.3f} |" in text
    assert list(tmp_path.iterdir()) == []
