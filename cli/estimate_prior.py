"""`pucache estimate-prior`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options, output

if TYPE_CHECKING:
    from pucache.estimates.label_requirements import LabelCount
    from pucache.estimates.priors import PriorEstimate

_NO_INTERVAL = (
    "only tilt has an interval: those of the other methods leave out their bias, and held the truth too rarely"
)


@click.command("estimate-prior")
@options.caches
@options.positives
@options.negatives
@click.option(
    "--method",
    "methods",
    multiple=True,
    help="Method: tilt, bbe, dedpul or elkanoto; repeatable.  [default: all]",
)
@click.option("--level", default=0.9, show_default=True, help="Confidence level of the interval of tilt, in (0, 1).")
@options.twins
@options.folds
@options.all_rows
@options.device
@options.seed
@options.as_json
def estimate_prior(
    cache: tuple[str, ...],
    positives: str,
    negatives: str | None,
    twins: float,
    methods: tuple[str, ...],
    all_rows: bool,
    as_json: bool,
    **parameters: Any,
) -> None:
    """Estimate the share of positives among the unlabelled rows of CACHE.

    train-pu uses tilt, which alone has an interval. The other methods are cross-checks with known biases:
    bbe overestimates, elkanoto errs in either direction. Where they disagree widely, trust none. All methods
    assume that the labelled positives are a random sample of all positives. An interval takes at least
    ten of them, a single figure thirty.

    \b
    pucache estimate-prior cache.h5 --positives found.txt
    """
    from pucache.cache.embedding_cache import open_cache
    from pucache.estimates.label_requirements import LabelCount
    from pucache.estimates.priors import METHODS
    from pucache.training.estimate_prior import check_request, estimate_prior_on
    from pucache.training.labelled_cache import LabelledCache

    from .progress import terminal_progress

    methods = methods or tuple(METHODS)
    check_request(methods, level=parameters["level"], n_folds=parameters["n_folds"])
    data = LabelledCache.of(
        open_cache(cache),
        positives,
        options.twin_cosine(twins),
        negatives=negatives,
        all_rows=all_rows,
        seed=parameters["seed"],
    )
    count, labelled = LabelCount.of(data.s, groups=data.group), int(data.s.sum())
    counts: dict[str, Any] = {"labelled_positives": labelled, "unlabelled": data.n_unlabelled}
    counts["unlabelled_sample"] = None if data.sample is None else data.sample.to_json()
    line = f"{labelled:,} labelled positives, {data.n_unlabelled:,} unlabelled"
    if not count.has_estimates:
        output.print_result(counts | {"estimates": None, "note": count.sentence}, [line, count.sentence], as_json)
        return
    estimates = estimate_prior_on(data, methods=methods, progress=terminal_progress(), **parameters)
    result = counts | {
        "estimates": {estimate.method: _stated(estimate, count) for estimate in estimates},
        "note": count.sentence,
    }
    with_interval = any(estimate.has_interval for estimate in estimates)
    interval = f"{estimates[0].level:.0%} interval" if with_interval else "no interval"
    stated_prior = estimates[0].prior if count.has_points else None
    lines = [
        line,
        *options.sample_lines(data.sample, stated_prior),
        f"{'method':<10} {'prior':>8}   {interval}",
        *(_line(estimate, count) for estimate in estimates),
        *([] if all(estimate.has_interval for estimate in estimates) else [_NO_INTERVAL]),
        *filter(None, [count.sentence]),
    ]
    output.print_result(result, lines, as_json)


def _stated(estimate: PriorEstimate, count: LabelCount) -> dict[str, Any]:
    """Fields of an estimate, without the single figure where the labels are too few for it."""
    return vars(estimate) if count.has_points else vars(estimate) | {"prior": None}


def _line(estimate: PriorEstimate, count: LabelCount) -> str:
    prior = f"{estimate.prior:8.4f}" if count.has_points else f"{'':8}"
    return f"{estimate.method:<10} {prior}   {estimate.interval_text('{:.4f}'.format)}".rstrip()
