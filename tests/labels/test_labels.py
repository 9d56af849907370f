"""Labels of one concept and of several, as the numerical code and the verbs take them."""

import numpy as np
import pytest
from helpers.planted import write_cache
from helpers.refusals import one_line

from pucache import Labels, PULabels
from pucache.errors import LabelError

ONE = PULabels(np.array([1, 0, 0, 0, 0]), np.array([0, 1, -1, 0, 0]))
OTHER = PULabels(np.array([0, 0, 1, 0, 0]), np.array([-1, 0, 0, -1, 0]))
BOTH = Labels({"a": ONE, "b": OTHER}, {"c": "no keys"})


@pytest.mark.parametrize(
    ("s", "reviewed", "reason"),
    [
        ([1, 0, 0], [-1, 0, 0], "labelled positive are reviewed too; decide which"),
        ([1, 0, 0], [1, 0, 0], "labelled positive are reviewed too; decide which"),
        ([1, 0, 0], [0, 7, 0], "decisions are numbers, 1 or 0 or -1; row 1 has 7"),
        ([1, 0, 0], [0, 0], "expected a label and a decision a row"),
        ([2, 0, 0], [0, 0, 0], "labels are numbers, 1 or 0; row 0 has 2"),
    ],
)
def test_labels_that_contradict_themselves_are_refused(s, reviewed, reason):
    assert reason in one_line(LabelError, PULabels, np.array(s), np.array(reviewed))


def test_labels_that_a_model_contradicts_are_listed_the_worst_first():
    called, posterior = np.array([True, False, True, False, True]), np.array([0.9, 0.2, 0.7, 0.1, 0.6])
    assert ONE.contradicted(called, posterior).tolist() == [1, 2]


def test_of_several_concepts_a_positive_of_any_is_positive_and_a_row_that_one_rejects_is_not():
    assert BOTH.joint.s.tolist() == [1, 1, 1, 0, 0] and BOTH.joint.reviewed.tolist() == [0, 0, 0, -1, 0]
    assert Labels({"": ONE}).joint is ONE, "a review of one list forbids to sample"
    assert "labels of 2 concepts where one list is expected" in one_line(LabelError, lambda: BOTH.only)


def test_work_that_fails_for_a_concept_stops_no_other():
    def work(name, labels):
        if name == "b":
            raise ValueError("too\nfew")
        return labels.s.sum()

    done = BOTH.map(work)
    assert (done, done.failures, done.is_one) == ({"a": 1}, {"c": "no keys", "b": "too few"}, False)
    with pytest.raises(ValueError, match="too\nfew"):
        Labels({"": ONE}).map(lambda name, labels: work("b", labels))
    assert "failed for each of 2 concepts; b: too few" in one_line(
        LabelError, Labels({"b": ONE}, BOTH.failures).map, work
    )


def test_labels_of_other_rows_are_refused(tmp_path):
    cache = write_cache(tmp_path / "c.h5", np.eye(4, dtype="f4"))
    assert "expected a label for each of 4 rows of" in one_line(LabelError, BOTH.check, cache)
