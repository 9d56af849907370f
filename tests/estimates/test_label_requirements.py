import numpy as np
import pytest

from pucache.estimates.label_requirements import LabelCount, figure


def test_the_sentence_names_both_requirements():
    for labels in (1, 2, 9):
        sentence = LabelCount(labels).sentence
        assert "at least 10" in sentence and "single figures and probabilities of images 30" in sentence
        assert sentence.startswith(f"{labels} labelled positive{'s are' if labels > 1 else ' is'} too few")
    assert (
        "every estimate is an interval; single figures and probabilities of images take at least 30."
        in LabelCount(10).sentence
    )
    assert LabelCount(30).sentence == ""


def test_copies_rows_without_weight_and_unlabelled_rows_do_not_count():
    s = np.array([1, 1, 1, 1, 0, 0])
    assert LabelCount.of(s) == LabelCount(4)
    assert LabelCount.of(s, groups=np.array([0, 0, 0, 1, 1, 2])) == LabelCount(2)
    assert LabelCount.of(s, groups=np.array([0, 0, 0, 1, 1, 2]), weights=np.array([1, 0, 2, 0, 1, 1])).labels == 1


@pytest.mark.parametrize(
    ("value", "interval", "text"),
    [
        (0.8, (0.67, 0.904), "0.800 (0.67 to 0.90)"),
        (None, (0.67, 0.9), "0.67 to 0.90"),
        (None, (0.878, 0.882), "0.88"),
        (0.879, (0.878, 0.882), "0.879 (0.88)"),
        (0.8, None, "0.800"),
        (None, None, "not estimated"),
    ],
)
def test_figures_are_written_with_their_intervals(value, interval, text):
    assert figure(value, interval) == text
