"""benchmarks/quality/unlabelled_rows.py: nested samples, planted tasks, and the page of differences."""

import numpy as np
import pytest

from benchmarks.quality import unlabelled_rows as script

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(script, "PLANTED_TEST", 2000)
    script.planted_rows.cache_clear()
    yield
    script.planted_rows.cache_clear()


def test_a_smaller_sample_is_part_of_a_larger_one_and_has_every_label():
    s = (np.arange(300) % 10 == 0).astype(np.int8)
    samples = [set(script.sampled_rows(s, size, seed=1)) for size in (20, 100, 1 << 40)]
    assert samples[0] < samples[1] < samples[2] == set(range(300))
    assert set(np.flatnonzero(s)) <= samples[0] and len(samples[0]) == 50


def test_planted_rows_hold_hidden_positives_and_are_judged_on_all_of_them(small):
    task = script.planted_task(5000, 20, seed=0)
    assert task.s.sum() == 20 and task.X.shape == (5020, script.PLANTED_DIM) and len(task.y_test) == 2000
    assert task.prior == pytest.approx(script.PLANTED_SHARE, abs=0.005)
    found = script.figures(task, 1000, seed=0, method="linear")
    assert found["rows"] == 1000 and 0 < found["hidden"] < 30
    assert found["ap"] > 10 * script.PLANTED_SHARE and found["auc_new"] > 0.9


def cells():
    """Two piles at two sizes, and one that lacks a size."""
    rows = [
        script.cell("linear", "g", name, 0.01, 20, 0, size) | dict.fromkeys(script.FIGURES, 0.5 + gain * (size == 9))
        for name, gain in (("a", 0.1), ("b", 0.3))
        for size in (3, 9)
    ]
    more = {"rows": 3, "hidden": 1, "prior_error": 0.5, "cpu_seconds": 1.0}
    return [row | more for row in rows]


def test_the_page_has_differences_from_the_largest_size_of_the_same_pile():
    rows = cells()
    assert script.differences(rows, 3, "ap") == pytest.approx([-0.1, -0.3])
    first, last = script.lines(rows)
    assert first[2] == "-20.00 ± 14.14" and last[2] == "70.00 ± 14.14"
    page = script.page(rows, "command", wanted=4)
    assert "## Linear head: 20 labelled, 1% of the unlabelled positive, images (a, b)" in page
    assert "Not measured yet" not in page and "Not measured yet: 2 of 6 cells" in script.page(rows, "command", wanted=6)


def test_a_pile_that_lacks_a_size_is_left_out():
    rows = cells()
    assert script.complete(rows[:-1], rows) == rows[:2] and script.complete(rows, rows) == rows
