"""Everything that the report tells is told from this: data, two classifiers, estimates and a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..pu.classifier import PULinearClassifier
from ..pu.data import PUData
from ..pu.near_duplicates import unlabelled_twins
from ..pu.prior_sweep import Sweep
from ..pu.priors import PriorEstimate
from ..pu.scar import ScarCheck
from ..pu.train import scar_of
from .report_statistics import HeldOut

_SAME = 5e-3  # relative distance of coefficients; another processor rounds otherwise


@dataclass(frozen=True)
class Evidence:
    """What was found out about a cache and its labelled positives.

    Attributes
    ----------
    data : PUData
    trained : PULinearClassifier
        Trained on `data` just now; knows a held-out margin of each row.
    ranker : PULinearClassifier
        Ranks the unlabelled images: the model given, or `trained`.
    margins : ndarray of float32, (n,)
        By `ranker`.
    estimates : list of PriorEstimate
        By each method.
    swept : Sweep
    truth : ndarray of int8, (n,), or None
        True class: 1, 0, or -1 where it is not known.
    """

    data: PUData
    trained: PULinearClassifier
    ranker: PULinearClassifier
    margins: np.ndarray
    estimates: list[PriorEstimate]
    swept: Sweep
    truth: np.ndarray | None

    @cached_property
    def labelled(self) -> np.ndarray:
        """Rows of labelled positives, int64, rising."""
        return np.flatnonzero(self.data.s == 1)

    @cached_property
    def unlabelled(self) -> np.ndarray:
        """Rows that are not labelled, int64, rising; figures are about these, so reviewed ones are among them."""
        return np.flatnonzero(self.data.s == 0)

    @cached_property
    def twins(self) -> tuple[np.ndarray, np.ndarray]:
        """Unlabelled rows that show the same picture as a labelled positive, and that positive."""
        labels = self.data.labels
        rows, labelled = unlabelled_twins(self.data.group, labels.positive)
        new = labels.unlabelled[rows]
        return rows[new], labelled[new]

    @cached_property
    def held(self) -> HeldOut:
        """Held-out margins, with the truth of the unlabelled rows."""
        margins, model = self.trained.held_out_margins_, self.trained
        truth = None if self.truth is None else self.truth[self.unlabelled]
        return HeldOut(margins[self.labelled], margins[self.unlabelled], model.tilt_, model.threshold_, truth)

    @cached_property
    def scar(self) -> ScarCheck:
        """Whether the labelled positives look like those that are found."""
        return scar_of(self.data, self.trained)

    @property
    def held_out(self) -> bool:
        """Whether anything could be held out: not with a single labelled picture, or a single unlabelled one."""
        return min(len(np.unique(self.data.group[rows])) for rows in (self.labelled, self.unlabelled)) > 1

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the interval of the prior; None where it was told, no draws were made, or it lies outside."""
        tilt, prior = self.estimates[0], self.trained.prior_
        known = tilt.draws > 1 and self.trained.prior is None and tilt.low <= prior <= tilt.high
        return (tilt.low, tilt.high) if known else None

    @property
    def other_labels(self) -> bool:
        """Whether the model given cannot come from these labels and this cache."""
        given, here = self.ranker, self.trained
        if (given.n_labelled_, given.n_unlabelled_) != (here.n_labelled_, here.n_unlabelled_):
            return True
        return bool(np.linalg.norm(given.coef_ - here.coef_) > _SAME * np.linalg.norm(here.coef_))

    def posterior(self, rows: np.ndarray) -> np.ndarray:
        """Probability of being positive, (m,): held out for labelled rows, by the `ranker` for the others."""
        by_ranker = self.ranker.tilt_.posterior(self.margins[rows])
        held_out = self.trained.tilt_.posterior(self.trained.held_out_margins_[rows])
        return np.where(self.data.s[rows] == 1, held_out, by_ranker)

    @cached_property
    def ranked(self) -> np.ndarray:
        """Rows that nobody has decided on, but for twins of positives, from the highest margin down; int64."""
        candidates = np.setdiff1d(np.flatnonzero(self.data.labels.unlabelled), self.twins[0], assume_unique=True)
        return candidates[np.argsort(-self.margins[candidates], kind="stable")]
