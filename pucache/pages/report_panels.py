"""Charts of the report with their explanations and tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from ..estimates.intervals import prior_range
from . import report_plots
from .report_data import ReportData
from .report_numbers import TrainingNumbers
from .report_text import between, number, percent, plural

Rows = list[list[str]]


@dataclass(frozen=True)
class Exhibit:
    """A chart: how to read it, its finding, its SVG, and its numbers as a table."""

    reading: str
    finding: str
    svg: Markup
    header: list[str]
    rows: Rows


def exhibits(report: ReportData, numbers: TrainingNumbers) -> dict[str, Exhibit | None]:
    """Every chart: priors, margins, curve, sweep, reliability; None where the labels are too few for it."""
    count = numbers.count
    makers: dict[str, tuple[bool, Callable[[ReportData, TrainingNumbers], Exhibit]]] = {
        "priors": (count.has_estimates, _priors),
        "margins": (True, _margins),
        "curve": (count.has_points, _curve),
        "sweep": (count.has_estimates, _sweep),
        "reliability": (count.has_points, _reliability),
    }
    return {name: make(report, numbers) if stated else None for name, (stated, make) in makers.items()}


def _exhibit(
    name: str, texts: tuple[str, str, str], paint: Callable[[Figure], None], table: Rows, *, height: float = 3.2
) -> Exhibit:
    """Draw a chart; `texts` are its title, reading and finding, and the first row of `table` is its header."""
    title, reading, finding = texts
    svg = report_plots.draw(name, title, finding, paint, height=height)
    return Exhibit(reading=reading, finding=finding, svg=svg, header=table[0], rows=table[1:])


def _priors(report: ReportData, numbers: TrainingNumbers) -> Exhibit:
    estimates, truth = report.prior_estimates, numbers.true_prior
    finding = _priors_finding(report, numbers)
    if truth is not None:
        finding += f" In truth it is {percent(truth)}."
    table = [["method", "share", "interval"]] + [
        [
            estimate.method,
            percent(estimate.prior) if numbers.count.has_points else "",
            "none" if prior_range(estimate.prior, estimate) is None else between(estimate.low, estimate.high),
        ]
        for estimate in estimates
    ]
    dots = "Each dot is the estimate of one method. The" if numbers.count.has_points else "A"
    reading = (
        f"{dots} bar contains the true share nine times in ten if the labelled "
        "positives are a fair sample of all positives. "
    )
    if numbers.audit_draws:
        reading += (
            "After a review they are too low. The page uses the images that the review drew at random, which need no "
            "such sample."
        )
    else:
        reading += "The page uses the estimate named tilt; the others are cross-checks."
    texts = ("Share of positives among the unlabelled, by each method", reading, finding)
    chart = report_plots.prior_methods(estimates, numbers.prior, truth, points=numbers.count.has_points)
    return _exhibit("priors", texts, chart, table, height=2.6)


def _priors_finding(report: ReportData, numbers: TrainingNumbers) -> str:
    if numbers.prior_told and numbers.prior is not None:
        return f"This page uses {percent(numbers.prior)}, the prior given to the model."
    drawn = f", by {plural(numbers.audit_draws, 'image')} drawn at random" if numbers.audit_draws else ""
    if numbers.prior is None:
        interval = report.prior_interval
        return "There is no interval." if interval is None else f"The estimate is {between(*interval)}{drawn}."
    spread = [estimate.prior for estimate in report.prior_estimates]
    ends = f"{percent(min(spread))} to {percent(max(spread))}"
    return f"The methods estimate {ends}; this page uses {percent(numbers.prior)}{drawn}."


def _margins(report: ReportData, numbers: TrainingNumbers) -> Exhibit:
    bins, estimates = numbers.figures.margins, numbers.estimates
    finding = (
        f"{number(numbers.labelled - numbers.doubted)} of {plural(numbers.labelled, 'labelled positive')} and "
        f"{percent(estimates['share_predicted_positive'])} of the unlabelled images lie above the threshold."
    )
    titles = {
        "labelled": "labelled positives",
        "unlabelled": "unlabelled",
        "expected": "of these expected positive",
        "hidden": "truly positive",
    }
    names = [name for name in titles if name in bins]
    ends = zip(bins["edges"][:-1], bins["edges"][1:], strict=True)
    table = [["margin from", "to", *(titles[name] for name in names)]] + [
        [f"{low:.3g}", f"{high:.3g}", *(number(bins[name][index]) for name in names)]
        for index, (low, high) in enumerate(ends)
    ]
    reading = (
        "The margin is the score of an image by a training that did not see its label. The further the labelled "
        "positives lie to the right of the unlabelled images (grey), the better the two are separated. "
    )
    reading += (
        "The coloured part of the lower histogram, which has a logarithmic scale, is the positives expected among the "
        "unlabelled."
        if "expected" in bins
        else "The lower histogram has a logarithmic scale."
    )
    texts = ("Margins of labelled and of unlabelled images", reading, finding)
    return _exhibit("margins", texts, report_plots.margins(bins, report.held_out.threshold), table, height=4.4)


def _curve(report: ReportData, numbers: TrainingNumbers) -> Exhibit:
    curves = numbers.figures.precision_recall
    finding = " ".join(
        f"{name[0].upper()}{name[1:]}: precision {percent(curves[curve]['at'][1])} at recall "
        f"{percent(curves[curve]['at'][0])}."
        for curve, name in (
            ("expected", "at the threshold, as estimated"),
            ("counted", "as counted on the labelled"),
            ("true", "in truth"),
        )
        if curve in curves
    )
    table = [["curve", "recall", "precision"]] + [
        [name, percent(recall), percent(precision)]
        for name, curve in curves.items()
        for recall, precision in zip(curve["recall"], curve["precision"], strict=True)
    ]
    reading = (
        "From left to right the threshold falls and more of the positives are found. The height is the share of the "
        "images called positive that are positive. The marks show the present threshold."
    )
    texts = ("Precision and recall among the unlabelled", reading, finding)
    return _exhibit("curve", texts, report_plots.precision_recall(curves), table, height=3.6)


def _sweep(report: ReportData, numbers: TrainingNumbers) -> Exhibit:
    assert report.sweep is not None
    rows = numbers.figures.sweep
    verdict = report.sweep.verdict
    columns = {"pauc": "PAUC", "auc": "AUC", "f1": "F1", "share_predicted_positive": "called positive"}
    columns |= {name: f"true {name[5:].replace('_', ' ')}" for name in ("true_auc", "true_f1") if name in rows[0]}
    table = [["prior", *columns.values()]] + [
        [percent(row["prior"]), *(_swept(row, name) for name in columns)] for row in rows
    ]
    reading = (
        "The training was repeated with a different prior (share of hidden positives) each time. Flat lines on the "
        "left mean that the order of the images does not depend on the prior. "
    )
    reading += (
        "Bands are intervals of the figures at that prior."
        if numbers.prior is None
        else "The dotted line is the prior used on this page."
    )
    texts = ("What changes with the prior", reading, verdict[0].upper() + verdict[1:])
    return _exhibit("sweep", texts, report_plots.prior_sweep(report.sweep, numbers.prior), table, height=3.4)


def _swept(row: dict[str, Any], name: str) -> str:
    """A figure of a sweep; where it is not stated, its interval."""
    return f"{row[name]:.4f}" if name in row else f"{row[f'{name}_low']:.2f} to {row[f'{name}_high']:.2f}"


def _reliability(report: ReportData, numbers: TrainingNumbers) -> Exhibit:
    bins = numbers.figures.reliability
    ends = list(zip(bins["counted_low"], bins["counted_high"], strict=True))
    inside = sum(low <= mean <= high for mean, (low, high) in zip(bins["posterior"], ends, strict=True))
    finding = f"In {inside} of {plural(len(ends), 'bin')} the diagonal lies within the error bars of the count."
    table = [["posterior", "unlabelled", "labelled", "mean posterior", "counted", "within"]] + [
        [
            f"{100 * bins['low'][index]:.0f} to {100 * bins['high'][index]:.0f} %",
            number(bins["n"][index]),
            number(bins["labelled"][index]),
            *(percent(bins[name][index]) for name in ("posterior", "counted")),
            f"{percent(low)} to {percent(min(high, 1))}",
        ]
        for index, (low, high) in enumerate(ends)
    ]
    if "true" in bins:
        table[0] += ["true share", "class known"]
        for index, row in enumerate(table[1:]):
            n_known = bins["n_known"][index]
            row += [percent(bins["true"][index]) if n_known else "", number(n_known)]
    reading = (
        "Of the images with a probability of 30 %, three in ten should be positive. Dots on the dotted line mean that "
        "the probabilities are right; the bars are two standard errors."
    )
    texts = ("Whether the probabilities hold", reading, finding)
    return _exhibit("reliability", texts, report_plots.reliability(bins), table, height=3.6)
