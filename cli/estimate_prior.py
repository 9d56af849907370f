"""`pucache estimate-prior`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options, output

if TYPE_CHECKING:
    from pucache.pu.priors import PriorEstimate


@click.command("estimate-prior")
@options.caches
@options.positives
@options.negatives
@click.option(
    "--method",
    "methods",
    multiple=True,
    help="Method: tilt, bbe, dedpul, elkanoto or histogram; repeatable.  [default: all]",
)
@click.option(
    "--draws",
    default=40,
    show_default=True,
    type=click.IntRange(min=0),
    help="Number of bootstrap draws for the interval; 0: no interval.",
)
@click.option("--level", default=0.9, show_default=True, help="Confidence level of the interval, in (0, 1).")
@options.twins
@options.folds
@options.device
@options.seed
@options.as_json
def estimate_prior(
    cache: tuple[str, ...],
    positives: str,
    negatives: str | None,
    twins: float,
    methods: tuple[str, ...],
    as_json: bool,
    **parameters: Any,
) -> None:
    """Estimate the share of positives among the unlabelled rows of CACHE.

    train-pu uses tilt. The other methods are cross-checks with known biases: bbe overestimates, elkanoto
    errs in either direction. Where they disagree widely, trust none of the intervals. All methods
    assume that the labelled positives are a random sample of all positives.

    \b
    pucache estimate-prior cache.h5 --positives found.txt
    """
    from pucache.cache.embedding_cache import open_cache
    from pucache.pu.data import PUData
    from pucache.pu.estimate_prior import estimate_prior_on
    from pucache.pu.priors import METHODS

    from .progress import terminal_progress

    data = PUData.of(open_cache(cache), positives, options.twin_cosine(twins), negatives=negatives)
    estimates = estimate_prior_on(data, methods=methods or tuple(METHODS), progress=terminal_progress(), **parameters)
    labelled = int(data.s.sum())
    result = {
        "labelled_positives": labelled,
        "unlabelled": len(data.s) - labelled,
        "estimates": {estimate.method: vars(estimate) for estimate in estimates},
    }
    interval = f"{estimates[0].level:.0%} interval" if estimates[0].draws else "no interval"
    lines = [
        f"{labelled:,} labelled positives, {len(data.s) - labelled:,} unlabelled",
        f"{'method':<10} {'prior':>8}   {interval}",
        *(f"{estimate.method:<10} {estimate.prior:8.4f}   {_interval(estimate)}" for estimate in estimates),
    ]
    output.print_result(result, lines, as_json)


def _interval(estimate: PriorEstimate) -> str:
    return f"{estimate.low:.4f} to {estimate.high:.4f}" if estimate.draws else ""
