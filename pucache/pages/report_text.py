"""Sentences of the report, for readers who do not know PU learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ..estimates.label_requirements import LEAST_LABELS, LEAST_LABELS_FOR_POINTS, figure, range_text
from ..estimates.priors import interval_text
from ..labels.sample import UnlabelledSample

if TYPE_CHECKING:
    from .report_numbers import Pictures, TrainingNumbers

_WIDE_RATIO = 3.0  # ratio of the ends of an interval
_DISAGREEING_FACTOR = 3.0  # factor between the methods' median and the tilt
_MANY_COPIES = 0.05  # share of rows that are copies of others


def number(value: float) -> str:
    """Format a count with thousands separators; below ten with one decimal, unless it is whole."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def about(value: float) -> str:
    """Format an estimated count with two significant digits."""
    return number(round(float(f"{value:.2g}")))


def percent(share: float) -> str:
    """Format a share in per cent with three significant digits, at most two decimals."""
    value = 100 * share
    if value > 0 and value < 0.01:
        return "under 0.01 %"
    decimals = 0 if value >= 99.95 or value == 0 else 1 if value >= 10 else 2
    return f"{value:.{decimals}f} %"


def between(low: float, high: float) -> str:
    """Format an interval of the prior in per cent; "at most" where it is one-sided."""
    return interval_text(low, high, percent)


def count_range(low: float, high: float, number: Callable[[float], str] = about) -> str:
    """Format an interval of a count; "at most" where not one is certain."""
    return f"at most {number(high)}" if low < 0.5 else f"{number(low)} to {number(high)}"


def plural(count: float, singular: str, plural_form: str | None = None) -> str:
    """Format a count with its noun; the plural is `singular` with an s unless it is passed."""
    return f"{number(count)} {singular if count == 1 else plural_form or singular + 's'}"


def headline(numbers: TrainingNumbers) -> str:
    """Heading: the number of labelled and of hidden or confirmed positives."""
    labelled, confirmed = f"{number(numbers.labelled)} labelled", numbers.reviewed.confirmed
    if confirmed:
        labelled += f", {number(confirmed)} confirmed"
    if confirmed and not numbers.audit_draws:  # after a review, the number of hidden positives is biased downwards
        return labelled
    hidden_positives = numbers.hidden_positives
    if hidden_positives.expected is None:
        if hidden_positives.low is None or hidden_positives.high is None:
            return labelled
        return f"{labelled}, {count_range(hidden_positives.low, hidden_positives.high)} hidden"
    how = "perhaps" if wide(numbers) else "about"
    return f"{labelled}, {how} {about(hidden_positives.expected)} hidden"


def wide(numbers: TrainingNumbers) -> bool:
    """Whether the interval of hidden positives is too wide for a single number."""
    low, high = numbers.hidden_positives.low, numbers.hidden_positives.high
    return low is not None and high is not None and high > _WIDE_RATIO * low


def hidden(numbers: TrainingNumbers) -> str:
    """Sentence on the number of positives expected among the unlabelled."""
    hidden_positives, confirmed = numbers.hidden_positives, numbers.reviewed.confirmed
    expected, low, high = hidden_positives.expected, hidden_positives.low, hidden_positives.high
    besides = f"; {number(confirmed)} are confirmed" if confirmed else ""
    of_them = f", {number(confirmed)} of which are confirmed" if confirmed else ""
    drawn = f", by {plural(numbers.audit_draws, 'image')} that the review drew at random" if numbers.audit_draws else ""
    if expected is None or numbers.prior is None:
        if low is None or high is None:
            return numbers.note
        return f"Hidden are {count_range(low, high)} more positives{drawn}{besides}. {numbers.note}".strip()
    share = f"positives are {percent(numbers.prior)} of the unlabelled images{of_them}"
    if numbers.audit_draws and low is not None and high is not None:
        return (
            f"Hidden are {count_range(low, high)} more positives{drawn}; the best estimate is {about(expected)} "
            f"({share})."
        )
    if low is None or high is None:
        return f"About {about(expected)} more positives are expected ({share}; there is no interval)."
    if wide(numbers):
        return (
            f"The number of hidden positives is still very uncertain: {count_range(low, high)} "
            f"agrees with the data; the best estimate is {about(expected)} ({share})."
        )
    return (
        f"About {about(expected)} more positives are expected ({share}), most likely between {about(low)} and "
        f"{about(high)}."
    )


def decisions(numbers: TrainingNumbers) -> str:
    """Sentence on estimated precision and recall at the threshold."""
    estimates, intervals = numbers.estimates, numbers.intervals
    called = estimates["share_predicted_positive"] * numbers.unlabelled
    if called < 0.5:
        return "At its threshold the classifier calls no unlabelled image positive."
    precision = _of_100(estimates["precision"], intervals.precision)
    recall = _of_100(estimates["recall"], intervals.recall)
    count = f"The classifier calls {plural(round(called), 'unlabelled image')} positive."
    if precision:
        count += f" Of 100 such images {precision} are expected to be right (precision)."
    return count + (f" Of 100 positives it finds {recall} (recall)." if recall else "")


def ends(interval: Sequence[float]) -> str:
    """Format the interval of a share in whole per cent."""
    return f"{range_text(interval, _whole_percent)} %"


def unsure(interval: Sequence[float] | None) -> bool:
    """Whether an interval is too wide for a single number."""
    return interval is not None and interval[1] > _WIDE_RATIO * interval[0]


def _whole_percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _of_100(estimate: float | None, interval: Sequence[float] | None) -> str:
    ends = "" if interval is None else range_text(interval, _whole_percent)
    if estimate is None or unsure(interval):
        return ends
    rounded = f"about {100 * estimate:.0f}"
    return f"{rounded} ({ends})" if ends else rounded


def share(estimate: float | None, interval: Sequence[float] | None) -> str:
    """Format an estimated share in per cent with its interval; the interval alone where the labels are few."""
    if estimate is None:
        return "not estimated" if interval is None else ends(interval)
    return percent(estimate) if interval is None else f"{percent(estimate)} ({ends(interval)})"


def fair_sample(scar: dict[str, Any]) -> str:
    """Sentence on whether labelled and likely positives differ; `scar` is `ScarCheck.to_dict`."""
    compared = (
        f"{plural(scar['labelled'], 'labelled positive')} and {plural(scar['found'], 'unlabelled image')} that "
        f"{'is' if scar['found'] == 1 else 'are'} likely positive"
    )
    if scar["verdict"] == "none found":
        return (
            f"Hardly any unlabelled image looks like the labelled positives: {compared}. Either few "
            "positives are hidden, or the labelled ones come from another source, such as another camera, and the "
            "model has learned that difference."
        )
    if scar["p_value"] is None:
        return f"There are too few images to compare: {compared}."
    auc = f"Among {compared}, nearest neighbours predict which are labelled with AUC {scar_auc(scar)}"
    if scar["verdict"] == "differ":
        return (
            f"{auc} (p = {scar['p_value']:.2g}), more than negatives among the likely positives can explain "
            f"({scar['explained']:.2f}): the labelled positives are no fair sample."
        )
    verdict = "no sign that they differ"
    if scar["verdict"] == "explained":
        verdict = f"no more than negatives among the likely positives can explain ({scar['explained']:.2f})"
    return f"{auc} (p = {scar['p_value']:.2g}): {verdict}. Positives that the model does not find cannot be compared."


def scar_auc(scar: dict[str, Any]) -> str:
    """Format the AUC of the comparison; the interval alone where few labelled positives are compared."""
    return f"{scar['auc']:.2f}" if scar["auc"] is not None else figure(None, scar["auc_interval"])


def expected_among(cards: Sequence[Any]) -> str:
    """Phrase on how many of some images should be positive, by their probabilities."""
    return f"of these {len(cards)}, about {sum(card.chance for card in cards):.0f} should be"


def warnings(numbers: TrainingNumbers, pictures: Pictures) -> list[str]:
    """Warnings to read before trusting the page."""
    lines = [*_label_warnings(numbers), *_prior_warnings(numbers), *_cache_warnings(numbers, pictures)]
    if numbers.estimates["collapsed"]:
        lines.append(
            f"At its threshold the classifier is {numbers.estimates['collapsed']}: it gives nearly every image "
            "the same class. Its ranking may still be good; label more positives, or choose another threshold."
        )
    if numbers.model.trained_on_other_labels:
        lines.append(
            "The model was trained on other labels or on another cache. The estimates on this page come from a new "
            "training on these labels with the model's parameters; the images are ranked by the model itself."
        )
    return lines


def _label_warnings(numbers: TrainingNumbers) -> list[str]:
    lines = []
    if not numbers.held_out and numbers.count.has_estimates:
        lines.append(
            "Only one picture is unlabelled, so nothing could be held out: the estimates are measured on training "
            "images and are far too optimistic."
        )
    if numbers.note:
        lines.append(numbers.note)
    if numbers.scar["verdict"] == "none found":
        lines.append(
            "Hardly any unlabelled image looks like the labelled positives (section 3): few positives are "
            "hidden, or the labelled ones come from another source, such as another camera."
        )
    if numbers.scar["verdict"] == "differ" and not numbers.audit_draws:
        lines.append(
            f"The labelled positives differ from the likely positives among the unlabelled (section 3; "
            f"AUC {scar_auc(numbers.scar)}): they are no fair sample, and the number of hidden positives, recall and "
            "F1 may be far off. Label positives from a random sample."
        )
    reviewed = numbers.reviewed
    if (reviewed.confirmed or reviewed.negative) and not numbers.audit_draws:
        lines.append(
            f"A review has confirmed {plural(reviewed.confirmed, 'positive')} and rejected "
            f"{plural(reviewed.negative, 'image')}. These lie close to the labelled positives, on which the "
            "estimates rest, so the estimates of precision, F1, AUC and above all recall are too high, and that of the "
            "number of hidden positives is too low."
        )
    if numbers.twins_found:
        lines.append(
            f"{plural(numbers.twins_found, 'unlabelled image')} show the same picture as a labelled positive; add "
            "them to the positives (section 3)."
        )
    return lines


def _prior_warnings(numbers: TrainingNumbers) -> list[str]:
    if not numbers.prior_estimates or numbers.audit_draws:
        return []
    tilt, *others = numbers.prior_estimates.values()
    low, high = tilt["low"], tilt["high"]
    lines, has_interval = [], low > 0 or high < 1
    if has_interval and high > _WIDE_RATIO * low:
        lines.append(
            f"How many positives are hidden is uncertain: {between(low, high)} of "
            "the unlabelled. Precision and the probabilities are as uncertain; recall and the ranking do not depend on "
            "it."
        )
    ratio = median(other["prior"] for other in others) / tilt["prior"] if numbers.count.has_points else 1.0
    if max(ratio, 1 / ratio) > _DISAGREEING_FACTOR:
        lines.append(
            "The methods disagree widely about how many positives are hidden (section 4): do not rely on one alone."
        )
    if numbers.prior_told and numbers.prior is not None and has_interval and not low <= numbers.prior <= high:
        lines.append(
            f"The model was trained with a prior of {percent(numbers.prior)}; the data suggest {between(low, high)}."
        )
    return lines


def _cache_warnings(numbers: TrainingNumbers, pictures: Pictures) -> list[str]:
    lines = []
    if numbers.failures.count:
        lines.append(f"{plural(numbers.failures.count, 'image')} could not be read (section 2).")
    lines += _sample_warnings(numbers)
    duplicates, images = numbers.duplicates, numbers.images
    if numbers.unlabelled_sample is not None:
        images = numbers.labelled + numbers.unlabelled_sample["rows"]
    if duplicates.copies > _MANY_COPIES * images:
        lines.append(
            f"{percent(duplicates.copies / images)} of the images are copies of others; counts on this "
            "page include every copy."
        )
    if pictures.missing:
        reason = next(iter(pictures.problems))
        lines.append(
            f"{plural(pictures.missing, 'picture')} of {number(pictures.asked)} cannot be shown ({reason}); "
            "if the images have moved, give their new location with --images SOURCE. No number depends on the pictures."
        )
    return lines


def _sample_warnings(numbers: TrainingNumbers) -> list[str]:
    """Sentences on the sample of unlabelled images; none where all were taken."""
    if numbers.unlabelled_sample is None:
        return []
    sample = UnlabelledSample.from_json(numbers.unlabelled_sample)
    lines = [
        f"The classifier was {sample.sentence}. Pictures, charts and duplicates are of these images; numbers of hidden "
        "positives are of all images. To rank all of them, run pucache retrieve-positives."
    ]
    return lines + [note[0].upper() + note[1:] + "." for note in filter(None, [sample.note(numbers.prior)])]


def next_steps(numbers: TrainingNumbers) -> list[str]:
    """Next steps to take, one sentence or two each."""
    steps = []
    if numbers.twins_found:
        steps.append("Add the copies of labelled positives to the positives file: they show the same pictures.")
    if numbers.labelled >= 5:
        steps.append(
            "Look at the labelled positives that the model doubts (section 3): a wrong label among them harms the "
            "training."
        )
    steps.append(
        "Review the highest-ranked and the most doubtful images. Section 10 shows the first of them; pucache "
        "retrieve-positives --review writes a page on which to accept or reject them. Then train again with the "
        "labels that this page exports."
    )
    if not numbers.count.has_points:
        steps.append(
            f"Label at least {LEAST_LABELS_FOR_POINTS} positives that no ranking has found, such as those in a random "
            f"sample; {LEAST_LABELS} make intervals, and {LEAST_LABELS_FOR_POINTS} single figures. "
            "Positives confirmed in a review are used for training, but not for the estimates."
        )
    else:
        steps.append(
            "When new rounds find few positives, score everything (pucache score) and use the images classified as "
            "positive, or raise the threshold for fewer mistakes."
        )
    return steps
