import numpy as np

from pucache.estimates.label_requirements import LabelCount


def test_copies_rows_without_weight_and_unlabelled_rows_do_not_count():
    s = np.array([1, 1, 1, 1, 0, 0])
    assert LabelCount.of(s) == LabelCount(4)
    assert LabelCount.of(s, groups=np.array([0, 0, 0, 1, 1, 2])) == LabelCount(2)
    assert LabelCount.of(s, groups=np.array([0, 0, 0, 1, 1, 2]), weights=np.array([1, 0, 2, 0, 1, 1])).labels == 1
