"""`pucache evaluate`."""

from __future__ import annotations

from typing import Any

import click

from pucache.scoring.evaluate import evaluate as run

from . import options, output


@click.command()
@click.argument("scores")
@options.option(
    "--truth",
    required=True,
    metavar="FILE",
    help="True classes: a CSV with columns key,label (1 or 0), or a list of the positive keys.",
)
@options.option("--positives", metavar="FILE", help="Labelled positives, which are excluded from the metrics.")
@options.label_columns
@options.option(
    "--at",
    multiple=True,
    type=click.IntRange(min=1),
    default=(100, 1000),
    help="Rank at which precision is computed; repeatable. Ranks beyond the number of images are omitted.",
)
@options.option("--concept", metavar="NAME", help="Concept to evaluate, where SCORES has several.")
@options.option(
    "--exclusive",
    is_flag=True,
    help="Evaluate the kinds that score --exclusive gave: accuracy, and precision and recall of each. The truth is "
    "a table with the columns key,concept.",
)
@options.option("--source", metavar="NAME", help="Source whose rows are evaluated, where score --append wrote SCORES.")
@options.as_json
def evaluate(scores: str, truth: str, **chosen: Any) -> None:
    """Compute the metrics of SCORES against true labels.

    \b
    pucache evaluate scores.csv --truth truth.csv --positives found.txt
    pucache evaluate kinds.csv --truth dresses.csv --concept dress
    pucache evaluate kinds.csv --truth truth.csv --exclusive
    """
    result = run(scores, truth, **chosen)
    lines = [
        f"{name:20s} {value:,}" if isinstance(value, int) else f"{name:20s} {value:.4f}"
        for name, value in result.items()
    ]
    output.print_result(result, lines)
