"""How many labelled positives an estimate takes, and how estimates are written with few of them.

Below `LEAST_LABELS` labelled positives no prior, recall, precision, F1 or AUC is stated. From there to
`LEAST_LABELS_FOR_POINTS` each is stated as an interval. From then on each is stated as a number with its interval, and
images get probabilities; before, they have ranks and scores alone. After a review, decisions on its pile have figures
from `LEAST_DRAWS` images on that it drew at random.
The ranking works from one labelled positive. Commands, JSON, report and demo follow this rule.
Where rows come in groups that are not independent, such as patients, `pucache.estimates.calibration.design_effect`
says what labels are worth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_LABELS = 10
LEAST_LABELS_FOR_POINTS = 30
LEAST_DRAWS = 30
_MOST_DIGITS = 17  # that tell two floating-point numbers apart
DRAWS_NEEDED = (
    f"Recall, precision and F1 after a review take at least {LEAST_DRAWS} images that the review drew at random "
    "among all (a closing audit), and no given prior."
)
AT_AN_END = (
    "The estimate of the prior, or the high end of its interval, lies at the end of what is possible, so neither its "
    "number nor what follows from it is stated; label more positives, of other kinds too, or give the prior."
)
# share of positives that the threshold assumes below `LEAST_LABELS`, where an estimate lies anywhere
ASSUMED_PRIOR = 0.05


@dataclass(frozen=True)
class LabelCount:
    """Number of labelled positives that estimates rest on, and what may be estimated from it.

    Attributes
    ----------
    labels : int
        Different pictures that are labelled positive. Positives that a review confirmed are not counted: they are
        no random sample.
    grouped : bool
        Whether they are groups of images that the user named.
    """

    labels: int
    grouped: bool = False

    @classmethod
    def of(cls, s: np.ndarray, *, groups: np.ndarray | None = None, weights: np.ndarray | None = None) -> LabelCount:
        """Count the labelled positives, s (n,) of 0 and 1: once for each group (n,) of rows that show the same picture.

        Rows of weight 0 are not counted.
        """
        labelled = np.asarray(s) == 1 if weights is None else (np.asarray(s) == 1) & (weights > 0)
        return cls(int(labelled.sum() if groups is None else len(np.unique(groups[labelled]))))

    @property
    def has_estimates(self) -> bool:
        """Whether intervals are stated."""
        return self.labels >= LEAST_LABELS

    @property
    def has_points(self) -> bool:
        """Whether single figures are stated beside their intervals, and probabilities of images."""
        return self.labels >= LEAST_LABELS_FOR_POINTS

    @property
    def text(self) -> str:
        """The number and what is counted."""
        noun = ("group", "groups") if self.grouped else ("labelled positive", "labelled positives")
        return f"{self.labels} {noun[self.labels != 1]}" + " of labelled positives" * self.grouped

    @property
    def sentence(self) -> str:
        """What is not stated, and how many labels it takes; "" where nothing is left out."""
        if self.has_points:
            return ""
        if self.has_estimates:
            return (
                f"With {self.text} estimates from labels are intervals; single figures and "
                f"probabilities of images take at least {LEAST_LABELS_FOR_POINTS}."
            )
        few = f"{self.text} {'is' if self.labels == 1 else 'are'}"
        return (
            f"{few} too few to estimate prior, recall, precision, F1 or AUC: intervals take at least {LEAST_LABELS}, "
            f"single figures and probabilities of images {LEAST_LABELS_FOR_POINTS}; the ranking works from one."
        )


def assumption(prior: float) -> str:
    """Sentence on the share of positives that the threshold assumes below `LEAST_LABELS`."""
    share = format_share(prior, 3, whole=100)
    return f"The threshold assumes that {share} % of the unlabelled are positive; this is no estimate."


def format_share(share: float, digits: int = 4, kind: str = "g", *, whole: int = 1) -> str:
    """A share of `whole` (1, or 100 for per cent), with as many digits more as say that it is neither none nor all."""
    text = f"{whole * share:.{digits}{kind}}"
    while 0 < share < 1 and float(text) in (0, whole) and digits < _MOST_DIGITS:
        digits += 1
        text = f"{whole * share:.{digits}{kind}}"
    return text


def range_text(interval: Sequence[float], number: Callable[[float], str]) -> str:
    """Write a range as ``0.67 to 0.90``; one number where both ends are the same when `number` has formatted them."""
    low, high = map(number, interval)
    return low if low == high else f"{low} to {high}"


def figure(value: float | None, interval: Sequence[float] | None) -> str:
    """Write an estimate with its interval, such as ``0.800 (0.67 to 0.90)``.

    Without a value the interval is written, without an interval the value, and ``not estimated`` without either.
    """
    ends = "" if interval is None else range_text(interval, "{:.2f}".format)
    if value is None:
        return ends or "not estimated"
    stated = format_share(value, 3, "f")
    return f"{stated} ({ends})" if ends else stated
