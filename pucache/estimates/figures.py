"""The figures of a trained classifier as they may be stated, which terminal, JSON, report page and model file all read.

Below `LEAST_LABELS` labelled positives there are none; from there on each is an interval, and from
`LEAST_LABELS_FOR_POINTS` on a number with its interval (`pucache.estimates.label_requirements`). The audit of a review
gives figures whatever the labels are (`pucache.estimates.audited_prior`), and of the pile once it has `LEAST_DRAWS`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .audited_prior import COMBINED, CONTRADICTED, CONTRADICTION, METHOD
from .calibration import MOST
from .intervals import WITH_INTERVAL, WITHOUT_PRIOR, Estimate, intervals_from_pu, read_number
from .label_requirements import AT_AN_END, DRAWS_NEEDED, LEAST_DRAWS, LabelCount, assumption
from .metrics import from_pu
from .priors import PriorEstimate

WORDS = {"auc": "AUC", "recall": "recall", "precision": "precision", "f1": "F1"}
_RISKS = ("upu_risk", "nnpu_risk")  # numbers that need as many labels as other single figures
_COUNTED = ("share_predicted_positive", *_RISKS, "collapsed")
_DECISIONS = WITH_INTERVAL[2:]  # figures of decisions
_OF_NEW = ("recall", "precision", "f1")
_ORDER = ("risk", "clamped", *WITH_INTERVAL[:3], "share_predicted_positive", *WITH_INTERVAL[3:], *_RISKS, "collapsed")
_TELLING_NOTHING = 0.5  # width of an interval, with few labels


@dataclass(frozen=True)
class Figures:
    """Figures among the unlabelled rows, as far as they may be stated.

    Attributes
    ----------
    labels : LabelCount
        Labels that they rest on.
    estimates : dict of str to Estimate
        For each name in `pucache.estimates.intervals.WITH_INTERVAL`.
    counted : dict of str to float, str or None
        ``share_predicted_positive``, the two risks and ``collapsed`` of `pucache.estimates.metrics.from_pu`, and of a
        trained head ``risk`` and ``clamped``.
    prior : PriorEstimate or None
        None where it was given, or the labels are too few for an interval.
    assumed_prior : float or None
        Share that posterior and threshold assume where it was neither given nor estimated.
    sources : str or None
        What figures rest on after a review; None without one.
    of_new_images : dict of str to Estimate
        Recall, precision and F1 on new images like those of the pile, after an audit.
    design_effect : float or None
        Rows that are worth an independent one, where groups were named.
    """

    labels: LabelCount
    estimates: Mapping[str, Estimate]
    counted: Mapping[str, float | str | None]
    prior: PriorEstimate | None = None
    assumed_prior: float | None = None
    sources: str | None = None
    of_new_images: Mapping[str, Estimate] = field(default_factory=dict)
    design_effect: float | None = None

    @classmethod
    def of(
        cls,
        margins: np.ndarray,
        s: np.ndarray,
        *,
        labels: LabelCount,
        prior: float,
        prior_range: tuple[float, float] | None,
        threshold: float,
        design_effect: float = 1.0,
        seed: int = 0,
    ) -> Figures:
        """Estimate the figures of held-out margins (n,) of rows with the labels s (n,), as far as the labels allow.

        Arguments are those of `pucache.estimates.intervals.intervals_from_pu`; where `prior_range` is None the prior
        is not known, and figures that depend on it are not stated. Where its ends differ, precision, F1, false positive
        rate and accuracy are medians of the draws; all others, and all where the prior is given, are counts.
        """
        values: dict[str, Any] = dict(from_pu(margins, s, prior, threshold))
        estimates = {name: Estimate(values[name]) for name in WITH_INTERVAL}
        if labels.has_estimates:
            low, high = prior_range or (prior, prior)
            drawn = intervals_from_pu(margins, s, prior, (low, high), threshold, design_effect=design_effect, seed=seed)
            counted = (*WITHOUT_PRIOR, "auc") if low < high else WITH_INTERVAL
            estimates = drawn | {name: Estimate.of(values[name], drawn[name].interval) for name in counted}
        else:
            values["collapsed"] = None
        if not values["share_predicted_positive"]:  # nothing is called, and nothing is right or wrong
            estimates["precision"] = Estimate()
        if not labels.has_points:
            estimates = {name: replace(one, value=None) for name, one in estimates.items()}
            values |= dict.fromkeys(_RISKS)
        figures = cls(labels, estimates, {name: values[name] for name in _COUNTED})
        return figures.without_prior() if prior_range is None else figures

    def reviewed(
        self, of_pile: Mapping[str, Estimate], of_new_images: Mapping[str, Estimate], *, draws: int, sources: str
    ) -> Figures:
        """These figures after a review that drew so many images at random; with few, decisions on the pile have none.

        `of_pile` and `of_new_images` are by `pucache.estimates.audited_prior`; `sources` says what they rest on.
        """
        stated = of_pile if draws >= LEAST_DRAWS else dict.fromkeys(_DECISIONS, Estimate())
        return replace(self, estimates={**self.estimates, **stated}, of_new_images=of_new_images, sources=sources)

    # --- what is stated ----------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Estimate:
        return self.estimates[name]

    def without_prior(self) -> Figures:
        """These figures where the prior is not known, or wrong: none that depends on it is stated."""
        unknown = {name: Estimate() for name in WITH_INTERVAL if name not in WITHOUT_PRIOR}
        return replace(self, estimates={**self.estimates, **unknown})

    def with_prior(self, estimate: PriorEstimate | None) -> Figures:
        """These figures with an estimate of the prior as far as the labels allow; that of an audit as it is."""
        if estimate is not None and estimate.method != METHOD:
            estimate = estimate.stated(self.labels) if self.labels.has_estimates else None
        return replace(self, prior=estimate)

    @property
    def is_audited(self) -> bool:
        """Whether the prior and figures of decisions rest on the audit of a review."""
        return self.prior is not None and self.prior.method == METHOD

    @property
    def has_probabilities(self) -> bool:
        """Whether images get probabilities, and not ranks and scores alone: by enough labels that limit the prior."""
        return self.labels.has_points and (self.prior is None or self.is_audited or self.prior.high < MOST)

    @property
    def are_uninformative(self) -> bool:
        """Whether recall and precision are left out: few labels, and an interval that is absent or wide."""
        ends = [self[name].interval for name in ("recall", "precision")]
        is_wide = any(one is None or one[1] - one[0] > _TELLING_NOTHING for one in ends)
        return not self.labels.has_points and is_wide

    @property
    def note(self) -> str:
        """What is not stated because labels or random images are too few; "" where nothing is left out."""
        said = [CONTRADICTION if self.sources == CONTRADICTED else ""]
        if not self.is_audited:
            said.append(AT_AN_END if self.prior is not None and self["auc"].interval is None else "")
            said += [self.labels.sentence, "" if self.assumed_prior is None else assumption(self.assumed_prior)]
        if self.sources is not None and self["recall"].interval is None:
            said.append(DRAWS_NEEDED)
        return " ".join(filter(None, said))

    @property
    def basis(self) -> str:
        """What an audit's figures rest on, for a sentence; "" without one."""
        if not self.is_audited or self.prior is None:
            return ""
        return f"from {self.prior.draws:,} images that the review drew at random" + (
            " and the labels" if self.sources == COMBINED else ""
        )

    def __repr__(self) -> str:
        return f"Figures({self.labels.labels} labels: {self.text()})"

    def text(self) -> str:
        """Figures in words; an audit says nothing about AUC."""
        return "   ".join(f"{WORDS[name]} {self[name]}" for name in WORDS if name != "auc" or not self.is_audited)

    @property
    def new_images_text(self) -> str:
        """Figures of new images in words; "" where no review has measured them."""
        if not self.of_new_images:
            return ""
        stated = "   ".join(f"{WORDS[name]} {one}" for name, one in self.of_new_images.items())
        return f"of new images, if they are like those of the cache and as large a share is positive: {stated}"

    # --- as JSON -----------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """All but the prior, by name: NAME, NAME_low and NAME_high, None for what is not stated."""
        plain = {**self.counted, **{name: one.value for name, one in self.estimates.items()}}
        content: dict[str, Any] = {name: plain[name] for name in _ORDER if name in plain}
        for name, one in self.estimates.items():
            content |= {f"{name}_low": one.low, f"{name}_high": one.high}
        content["labels"] = self.labels.labels
        if self.sources is not None:
            content["sources"] = self.sources
        for name, one in self.of_new_images.items():
            content |= {f"{name}_of_new_images{end}": value for end, value in one.to_json().items()}
        return content if self.design_effect is None else content | {"design_effect": self.design_effect}

    @classmethod
    def from_json(
        cls, content: Mapping[str, Any], prior: Mapping[str, Any] | None, labels: LabelCount, assumed: float | None
    ) -> Figures:
        """Read `to_json` and the fields of the prior; `labels` are those of a model that does not say how many.

        Raises ValueError or TypeError where the content is not that of figures.
        """
        number, collapsed, sources = (content.get(name) for name in ("labels", "collapsed", "sources"))
        if type(number) not in (int, type(None)) or not 0 <= (number or 0) <= sys.maxsize:
            raise ValueError(f"labels is {number!r:.40}")
        if not all(one is None or isinstance(one, str) for one in (collapsed, sources)):
            raise ValueError(f"collapsed is {collapsed!r:.40}, sources are {sources!r:.40}")
        counted: dict[str, float | str | None] = {
            name: collapsed if name == "collapsed" else read_number(content, name)
            for name in _ORDER
            if name in content and name not in WITH_INTERVAL
        }
        figures = cls(
            labels=labels if number is None else replace(labels, labels=number),
            estimates={name: Estimate.from_json(content, name) for name in WITH_INTERVAL},
            counted=counted,
            sources=sources,
            of_new_images={
                name: Estimate.from_json(content, f"{name}_of_new_images")
                for name in _OF_NEW
                if content.get(f"{name}_of_new_images_low") is not None
            },
            design_effect=read_number(content, "design_effect"),
        ).with_prior(PriorEstimate(**prior) if prior else None)
        return replace(figures, assumed_prior=None if figures.labels.has_estimates else assumed)
