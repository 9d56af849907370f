"""What the report's numbers mean, in words that need no knowledge of PU learning."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from ..pu.priors import PriorEstimate

FEW = 30  # labelled positives, below which every estimate is rough
_WIDE = 3.0  # ratio of the ends of an interval
_APART = 3.0  # factor between the methods' median and the tilt
_COPIES = 0.05  # share of rows that are copies of others


def number(value: float) -> str:
    """Write a count with its thousands marked; below ten with a decimal where it has one."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def about(value: float) -> str:
    """Write an estimated count with two digits, which is more than is known of it."""
    return number(round(float(f"{value:.2g}")))


def percent(share: float) -> str:
    """Write a share in per cent: three digits, but never more than two decimals."""
    value = 100 * share
    if value > 0 and value < 0.01:
        return "under 0.01 %"
    decimals = 0 if value >= 99.95 or value == 0 else 1 if value >= 10 else 2
    return f"{value:.{decimals}f} %"


def plural(count: float, one: str, many: str | None = None) -> str:
    """Write a count with its noun."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def headline(numbers: dict[str, Any]) -> str:
    """Say the most important number, and how it is to be taken."""
    labelled, confirmed = f"{number(numbers['labelled'])} labelled", numbers["reviewed"]["confirmed"]
    if confirmed:  # the number of those still hidden leans downwards by then
        return f"{labelled}, {number(confirmed)} confirmed"
    how = "perhaps" if wide(numbers) else "about"
    return f"{labelled}, {how} {about(numbers['hidden_positives']['expected'])} hidden"


def wide(numbers: dict[str, Any]) -> bool:
    """Whether the number of hidden positives is known so badly that it is a guess."""
    found = numbers["hidden_positives"]
    return found["low"] is not None and found["high"] > _WIDE * found["low"]


def hidden(numbers: dict[str, Any]) -> str:
    """Say how many positives are expected among the unlabelled."""
    found = numbers["hidden_positives"]
    confirmed = numbers["reviewed"]["confirmed"]
    of_them = f", {number(confirmed)} of which are confirmed by now" if confirmed else ""
    share = f"positives are {percent(numbers['prior'])} of the unlabelled images{of_them}"
    if wide(numbers):
        return (
            f"How many more positives are hidden cannot be told yet: anything from {about(found['low'])} to "
            f"{about(found['high'])} agrees with the data, with {about(found['expected'])} as the best guess ({share})."
        )
    if found["low"] is None:
        return f"About {about(found['expected'])} more positives are expected ({share}; there is no interval)."
    return (
        f"About {about(found['expected'])} more positives are expected ({share}), most likely between "
        f"{about(found['low'])} and {about(found['high'])}."
    )


def decisions(numbers: dict[str, Any]) -> str:
    """Say how good the classifier is estimated to be at its threshold."""
    estimates = numbers["estimates"]
    called = estimates["share_predicted_positive"] * numbers["unlabelled"]
    if called < 0.5:
        return "At its threshold the classifier calls no unlabelled image positive."
    return (
        f"The classifier calls {plural(round(called), 'unlabelled image')} positive. Of 100 such images "
        f"{_of_100(numbers, 'precision')} are expected to be right (precision), and of 100 positives it finds "
        f"{_of_100(numbers, 'recall')} (recall)."
    )


def ends(interval: Sequence[float]) -> str:
    """Write the interval of a share in whole per cent."""
    return f"{100 * interval[0]:.0f} to {100 * interval[1]:.0f} %"


def unsure(interval: Sequence[float] | None) -> bool:
    """Whether an interval is so wide that no single number should be told."""
    return interval is not None and interval[1] > _WIDE * interval[0]


def _of_100(numbers: dict[str, Any], figure: str) -> str:
    interval, told = numbers["intervals"][figure], f"about {100 * numbers['estimates'][figure]:.0f}"
    if interval is None:
        return told
    ends = f"{100 * interval[0]:.0f} to {100 * interval[1]:.0f}"
    return ends if unsure(interval) else f"{told} ({ends})"


def fair_sample(scar: dict[str, Any]) -> str:
    """Say whether labelled positives can be told from those that are found."""
    compared = (
        f"{plural(scar['labelled'], 'labelled positive')} and {plural(scar['found'], 'unlabelled image')} that "
        f"{'is' if scar['found'] == 1 else 'are'} likely positive"
    )
    if scar["verdict"] == "none found":
        return (
            f"Hardly any unlabelled image looks like the labelled positives: {compared}. So hardly any are hidden, or "
            "the labelled ones come from elsewhere, such as another camera, and that is what they have in common."
        )
    if scar["auc"] is None:
        return f"There is too little to compare: {compared}."
    told = f"Of {compared}, the nearest images tell which are labelled with AUC {scar['auc']:.2f}"
    if scar["verdict"] == "differ":
        return (
            f"{told} (p = {scar['p_value']:.2g}), more than negatives among them explain ({scar['explained']:.2f}): "
            "the labelled positives are no fair sample of what is found."
        )
    said = "no sign that they differ"
    if scar["verdict"] == "explained":
        said = f"no more than negatives among them may explain ({scar['explained']:.2f})"
    return f"{told} (p = {scar['p_value']:.2g}): {said}. Positives that are never found cannot be compared."


def expected_among(cards: Sequence[Any]) -> str:
    """Say how many of some images should be positive, by their probabilities."""
    return f"of these {len(cards)}, about {sum(card.chance for card in cards):.0f} should be"


def warnings(numbers: dict[str, Any], estimates: Sequence[PriorEstimate]) -> list[str]:
    """List what a reader should know before believing the page."""
    found = [*_of_labels(numbers), *_of_the_prior(numbers, estimates), *_of_the_cache(numbers)]
    if numbers["estimates"]["collapsed"]:
        found.append(
            f"At its threshold the classifier is {numbers['estimates']['collapsed']}: it calls nearly every image the "
            "same. Its ranking may still be good; label more positives, or choose another threshold."
        )
    if numbers["model"]["trained_on_other_labels"]:
        found.append(
            "The model given was trained on other labels or on another cache. The estimates on this page are those of "
            "a training with its parameters on these labels; images are ranked by the model given."
        )
    return found


def _of_labels(numbers: dict[str, Any]) -> list[str]:
    found = []
    if not numbers["held_out"]:
        found.append(
            "Only one picture is labelled positive, or unlabelled, so nothing could be held out: the estimates are of "
            "images that were trained on, and far too good."
        )
    if numbers["labelled"] < FEW:
        few = plural(numbers["labelled"], "labelled positive")
        found.append(f"There {'is' if numbers['labelled'] == 1 else 'are'} only {few}: take every estimate as rough.")
    if numbers["scar"]["verdict"] == "none found":
        found.append(
            "Hardly any unlabelled image looks like the labelled positives (section 3): hardly any are hidden, or the "
            "labels come from elsewhere, such as another camera."
        )
    if numbers["scar"]["verdict"] == "differ":
        found.append(
            f"The labelled positives differ from the likely positives that are found (section 3; AUC "
            f"{numbers['scar']['auc']:.2f}): they are no fair sample, and the number of hidden positives, recall and "
            "F1 may be far off. Label positives from a random sample."
        )
    reviewed = numbers["reviewed"]
    if reviewed["confirmed"] or reviewed["negative"]:
        found.append(
            f"A review has confirmed {plural(reviewed['confirmed'], 'positive')} and rejected "
            f"{plural(reviewed['negative'], 'image')}. These lie around the labelled positives, on which the estimates "
            "rest: precision, F1, AUC and most of all recall lean upwards, and the number of hidden positives "
            "downwards."
        )
    if numbers["twins_found"]:
        found.append(
            f"{plural(numbers['twins_found'], 'unlabelled image')} show the same picture as a labelled positive; add "
            "them to the positives (section 3)."
        )
    return found


def _of_the_prior(numbers: dict[str, Any], estimates: Sequence[PriorEstimate]) -> list[str]:
    tilt, *others = estimates
    found = []
    if tilt.draws > 1 and tilt.high > _WIDE * tilt.low:
        found.append(
            f"How many positives are hidden is uncertain: anything from {percent(tilt.low)} to {percent(tilt.high)} of "
            "the unlabelled. Precision and the probabilities are as uncertain; recall and the ranking do not depend on "
            "it."
        )
    ratio = median(one.prior for one in others) / tilt.prior
    if max(ratio, 1 / ratio) > _APART:
        found.append("The methods disagree widely about how many positives are hidden (section 4): believe none alone.")
    if numbers["prior_told"] and tilt.draws > 1 and not tilt.low <= numbers["prior"] <= tilt.high:
        found.append(
            f"The model was told a share of {percent(numbers['prior'])}; the data speak for {percent(tilt.low)} to "
            f"{percent(tilt.high)}."
        )
    return found


def _of_the_cache(numbers: dict[str, Any]) -> list[str]:
    found = []
    if numbers["failures"]["count"]:
        found.append(f"{plural(numbers['failures']['count'], 'image')} could not be read and took no part (section 2).")
    duplicates = numbers["duplicates"]
    if duplicates["copies"] > _COPIES * numbers["images"]:
        found.append(
            f"{percent(duplicates['copies'] / numbers['images'])} of the images are copies of others; counts on this "
            "page count every copy."
        )
    pictures = numbers["pictures"]
    if pictures["missing"]:
        reason = next(iter(pictures["problems"]))
        found.append(
            f"{plural(pictures['missing'], 'picture')} of {number(pictures['asked'])} cannot be shown ({reason}); "
            "where the images have moved, name the place with --images SOURCE. No number depends on it."
        )
    return found


def next_steps(numbers: dict[str, Any]) -> list[str]:
    """Say what to do with this page in hand."""
    steps = []
    if numbers["twins_found"]:
        steps.append("Add the copies of labelled positives to the positives file: they are found already.")
    if numbers["labelled"] >= 5:
        steps.append(
            "Look at the labelled positives that the model doubts (section 3): a wrong label among them spoils what is "
            "learned."
        )
    steps.append(
        "Review the highest-ranked and the most doubtful images (section 10 shows the first of them; pucache "
        "retrieve-positives --review makes a page to accept and reject them on), and train again with what it exports."
    )
    if numbers["labelled"] < FEW:
        steps.append(
            f"Label at least {FEW} positives that no ranking has found, such as those in a random sample; then the "
            "estimates begin to hold. What a review confirms is trained on, but no estimate rests on it."
        )
    else:
        steps.append(
            "When new rounds find few positives, score everything (pucache score) and use what is called positive, or "
            "raise the threshold for fewer mistakes."
        )
    return steps
