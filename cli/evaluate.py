"""`pucache evaluate`."""

from __future__ import annotations

import os
from typing import Any

import click

from pucache.estimates.label_requirements import format_share
from pucache.scoring.evaluate import evaluate as run

from . import options, output


@options.command()
@click.argument("scores", nargs=-1, required=True)
@options.option(
    "--truth",
    required=True,
    metavar="FILE",
    help="True classes: a CSV with columns key,label (1 or 0), or a list of the positive keys.",
)
@options.option("--positives", metavar="FILE", help="Labelled positives, which are left out of the metrics.")
@options.option(
    "--labels",
    metavar="TABLE|REVIEW",
    help="Table of labels as pucache labels writes it, or the folder of a review: what is decided there is left out.",
)
@options.option("--concept", metavar="NAME", help="Concept to evaluate, where SCORES has several.")
@options.as_json
def evaluate(scores: tuple[str, ...], truth: str, labels: Any, **chosen: Any) -> None:
    """Compute the metrics of scores against true labels.

    SCORES are tables that score has written, or folders of them.

    \b
    pucache evaluate new.scores.csv --truth truth.csv --positives found.txt
    pucache evaluate week1.scores.csv week2.scores.csv --truth truth.csv
    pucache evaluate kinds.csv --truth dresses.csv --concept dress
    """
    if labels is not None and os.path.isdir(labels):
        from pucache.reviewing.session_labels import decided_keys

        labels = decided_keys(labels)
    result = run(scores, truth, labels=labels, **chosen)
    lines = _lines(result)
    for name, figures in result.get("tables", {}).items():
        lines += ["", name, *_lines(figures)]
    output.print_result(result, lines)


def _lines(figures: dict[str, Any]) -> list[str]:
    numbers = {name: value for name, value in figures.items() if not isinstance(value, dict)}
    return [
        f"{name:20s} {value:,}" if isinstance(value, int) else f"{name:20s} {format_share(value, kind='f')}"
        for name, value in numbers.items()
    ]
