"""Decision thresholds: the margin above which a row is called positive.

Precision and recall are expected values under the calibrated posterior (`pucache.estimates.calibration.Tilt`); no
true label is needed.
"""

from __future__ import annotations

import numpy as np

from .calibration import Tilt

_TINY = 1e-300  # keeps divisions by zero finite


def choose_threshold(
    tilt: Tilt,
    margins: np.ndarray,
    rule: str | float,
    share: float,
    *,
    near: float | None = None,
    most: float = np.inf,
) -> float:
    """Choose the margin above which a row is called positive.

    Parameters
    ----------
    tilt : Tilt
    margins : ndarray, (u,)
        Held-out margins of the unlabelled rows, reweighted to the `share` of positives.
    rule : str or float
        ``f1``: greatest expected F1. ``precision=P``: the lowest threshold with an expected precision
        of at least P. ``recall=R``: the highest threshold with an expected recall of at least R. A
        number is the margin itself.
    share : float
        Share of positives where the decisions are made, in (0, 1).
    near : float, optional
        Share that ``f1`` is to call positive, about, where the labels are too few for more: see `near_share`.
    most : float, optional
        Threshold that ``f1`` does not exceed, such as the median held-out margin of the labelled positives: with 10
        labels, or wrong ones, the estimated prior may be almost 0, and no row is called then. On 20 piles with 10
        labels and 2 % of positives this bound raised the mean F1 on new images from 0.41 to 0.52; with 15 it changed
        less than 0.01.

    Returns
    -------
    float
        Where no threshold reaches the precision, a margin above all `margins`.

    Raises
    ------
    ValueError
        Unknown rule, or a target outside (0, 1].
    """
    kind, target = parse_rule(rule)
    if kind == "margin":
        return target
    if kind == "f1":
        threshold = min(_of_greatest_f1(tilt, margins, share), most)
        return threshold if near is None else near_share(threshold, margins, near)
    m, recall, precision = cuts(tilt, margins, share)
    if kind == "recall":
        cut = int(np.searchsorted(recall, target * (1 - 1e-12)))
    else:
        best_from_here_on = np.maximum.accumulate(precision[::-1])[::-1]
        reaching = np.flatnonzero(best_from_here_on >= target)
        if not len(reaching):
            return float(np.nextafter(np.float32(m[0]), np.float32(np.inf)))
        cut = int(reaching[-1])
    return _between(m, min(cut, len(m) - 1))


def _of_greatest_f1(tilt: Tilt, margins: np.ndarray, share: float) -> float:
    if tilt.prior * len(margins) < 1:  # less than one positive expected: nothing to balance
        return tilt.margin(0.5, share)
    m, recall, precision = cuts(tilt, margins, share)
    return _between(m, int(np.argmax(2 * precision * recall / np.maximum(precision + recall, _TINY))))


def cuts(tilt: Tilt, margins: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Different margins, falling, and the expected recall and precision when the rows down to each are called.

    The margins (u,) are of unlabelled rows; `share` of the rows are positive where the decisions are made.
    """
    m = np.sort(margins)[::-1].astype(np.float64)
    last = np.append(np.flatnonzero(np.diff(m)), len(m) - 1)  # rows with equal margins are called together
    posterior = tilt.posterior(m)
    weights = posterior * (share / tilt.prior) + (1 - posterior) * ((1 - share) / (1 - tilt.prior))
    called, true_positives = np.cumsum(weights)[last], np.cumsum(weights * tilt.posterior(m, share))[last]
    return m[last], true_positives / max(true_positives[-1], _TINY), true_positives / np.maximum(called, _TINY)


def near_share(threshold: float, margins: np.ndarray, share: float) -> float:
    """Move a threshold so that between half and twice a share, in (0, 1), of the margins (u,) lie above it.

    With one label the calibration calls hardly any row positive, and with two it often calls all. On 24 piles
    with 1 to 9 labels this bound raised the mean F1 from 0.30 to 0.34.
    """
    m = np.sort(margins)[::-1].astype(np.float64)
    fewest, most = (min(len(m) - 1, max(0, round(share * len(m) * factor) - 1)) for factor in (0.5, 2.0))
    return float(np.clip(threshold, _between(m, most), _between(m, fewest)))


def _between(m: np.ndarray, cut: int) -> float:
    """A margin below m[cut] and not below m[cut + 1]; m (u,) falls strictly."""
    just_below = np.nextafter(np.float32(m[cut]), np.float32(-np.inf))  # margins are float32
    return float(just_below if cut == len(m) - 1 else min(just_below, np.float32((m[cut] + m[cut + 1]) / 2)))


def parse_rule(rule: str | float) -> tuple[str, float]:
    """Split a rule of `choose_threshold` into f1, precision, recall or margin, and its target, 0 for f1."""
    kind, equals, target = str(rule).partition("=")
    try:
        if kind == "f1" and not equals:
            return "f1", 0.0
        if kind in ("precision", "recall") and 0 < float(target) <= 1:
            return kind, float(target)
        if not equals and np.isfinite(float(kind)):
            return "margin", float(kind)
    except ValueError:
        pass
    raise ValueError(f"threshold must be f1, precision=P or recall=R with P, R in (0, 1], or a margin; got {rule!r}")
