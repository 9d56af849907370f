import numpy as np
import pytest
from helpers.margins import gaussians

from pucache.estimates.calibration import Tilt
from pucache.estimates.thresholds import choose_threshold, near_share, parse_rule

pytestmark = pytest.mark.filterwarnings("error")
TILT = Tilt(-0.2, 1.7, 0.25)
SAMPLES = {
    "distinct": gaussians(0.3, 1, 60, seed=3)[0],
    "with ties": np.round(gaussians(0.3, 1, 150, seed=4)[0] * 2) / 2,
    "few values": np.repeat(np.array([-1, 0, 2], np.float32), [20, 9, 3]),
}


def expected(tilt, margins, share, threshold):
    """Precision, recall and F1 above a threshold from the densities of P and of N relative to that of U."""
    ratio = np.exp(tilt.alpha + tilt.slope * margins.astype(np.float64))
    mixture = 1 - tilt.prior + tilt.prior * ratio
    of_p, of_n, called = ratio / mixture, 1 / mixture, margins > threshold
    hits, false_alarms = share * of_p[called].sum(), (1 - share) * of_n[called].sum()
    recall = hits / (share * of_p.sum())
    precision = hits / (hits + false_alarms) if called.any() else 1.0
    return precision, recall, 2 * precision * recall / (precision + recall) if recall else 0.0


def cuts(margins):
    """Every threshold that calls another set of rows positive, from all rows to none."""
    values = np.unique(margins)
    return [values[0] - 1, *((values[1:].astype(np.float64) + values[:-1]) / 2), values[-1]]


@pytest.mark.parametrize("share", [0.02, 0.25, 0.8])
@pytest.mark.parametrize("sample", SAMPLES)
def test_f1_is_the_greatest_of_all_thresholds(sample, share):
    margins = SAMPLES[sample]
    chosen = choose_threshold(TILT, margins, "f1", share)
    of_all = [expected(TILT, margins, share, cut)[2] for cut in cuts(margins)]
    assert expected(TILT, margins, share, chosen)[2] == pytest.approx(max(of_all), rel=1e-9)
    assert min(of_all) < max(of_all) - 0.01


@pytest.mark.parametrize("share", [0.02, 0.25, 0.8])
@pytest.mark.parametrize("target", [0.05, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("sample", SAMPLES)
def test_precision_and_recall_meet_their_targets_and_are_the_most_generous_to_do_so(sample, target, share):
    margins = SAMPLES[sample]
    by_cut = [(cut, *expected(TILT, margins, share, cut)) for cut in cuts(margins)]
    chosen = choose_threshold(TILT, margins, f"precision={target}", share)
    precise = [cut for cut, precision, _, _ in by_cut if precision >= target * (1 - 1e-12)]
    assert (margins > chosen).tolist() == (margins > min(precise)).tolist()  # the lowest; none where none is enough
    chosen = choose_threshold(TILT, margins, f"recall={target}", share)
    complete = [cut for cut, _, recall, _ in by_cut if recall >= target * (1 - 1e-9)]
    assert (margins > chosen).tolist() == (margins > max(complete)).tolist()


@pytest.mark.parametrize("rule", ["f1", "precision=0.9", "recall=0.1"])
def test_the_threshold_lies_between_neighbours_even_in_float32(rule):
    high = np.nextafter(np.float32(100), np.float32(101))
    for top, low in ((high, np.float32(100)), (np.float32(100), np.nextafter(np.float32(100), np.float32(0)))):
        margins, middle = np.repeat([top, low], [30, 2]), (float(top) + float(low)) / 2
        chosen = np.float32(choose_threshold(Tilt(-2e7 * middle, 2e7, 0.9), margins, rule, 0.5))
        assert (margins > chosen).tolist() == [True] * 30 + [False] * 2


WRONG = ("", "f2", "f1=0.5", "precision=", "recall=0", "recall=nan", "precision=high", "-inf", "1,5", None, True)


@pytest.mark.parametrize("rule", WRONG, ids=repr)
def test_any_other_rule_is_refused_in_one_line(rule):
    with pytest.raises(ValueError, match=r"^threshold must be f1, precision=P or recall=R with .*; got .*$") as caught:
        parse_rule(rule)
    assert str(caught.value).endswith(f"got {rule!r}") and "\n" not in str(caught.value)


@pytest.mark.parametrize(("threshold", "called"), [(9.0, 25), (-9.0, 100), (0.0, 50)])
def test_a_threshold_near_a_share_calls_half_to_twice_of_it(threshold, called):
    margins = np.random.default_rng(0).permutation(np.linspace(-9.5, 0.5, 1001))[:1000].astype(np.float32)
    above = np.sum(margins > near_share(threshold, margins, 0.05))
    assert above == pytest.approx(called, abs=2)
