"""`pucache estimate-prior`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pucache.cache.embedding_cache import open_cache
from pucache.estimates.label_requirements import LabelCount
from pucache.estimates.priors import METHODS, PriorEstimate

from . import options, output
from .progress import terminal_progress

if TYPE_CHECKING:
    from pucache.training.labelled_cache import LabelledCache

_NO_INTERVAL = (
    "only tilt has an interval: those of the other methods leave out their bias, and held the truth too rarely"
)


@click.command("estimate-prior")
@options.caches
@options.positives_or_session
@options.negatives
@options.label_columns
@options.concepts
@click.option(
    "--method",
    "methods",
    multiple=True,
    help="Method: tilt, bbe, dedpul or elkanoto; repeatable.  [default: all]",
)
@click.option("--level", default=0.9, show_default=True, help="Confidence level of the interval of tilt, in (0, 1).")
@options.twins
@options.all_rows
@options.device
@options.seed
@options.as_json
def estimate_prior(
    cache: tuple[str, ...],
    positives: str | None,
    negatives: str | None,
    concepts: str | None,
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
    pucache estimate-prior cache.h5 --concepts labels.csv --method tilt
    """
    from pucache.training.estimate_prior import check_request, estimate_prior_on
    from pucache.training.labelled_cache import LabelledCache

    options.check_labels_named(positives, negatives, concepts=concepts)
    methods = methods or tuple(METHODS)
    check_request(methods, level=parameters["level"])
    if concepts is not None:
        rows = {"twins": options.twin_cosine(twins), "all_rows": all_rows, "seed": parameters["seed"]}
        _estimate_concepts(cache, concepts, rows, {"methods": methods, **parameters}, as_json)
        return
    assert positives is not None  # by `check_labels_named`
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
        "estimates": {estimate.method: vars(estimate) for estimate in estimates},
        "note": count.sentence,
    }
    with_interval = any(estimate.has_interval for estimate in estimates)
    interval = f"{estimates[0].level:.0%} interval" if with_interval else "no interval"
    lines = [
        line,
        *options.sample_lines(data.sample, estimates[0].prior),
        f"{'method':<10} {'prior':>8}   {interval}",
        *(_line(estimate) for estimate in estimates),
        *([] if all(estimate.has_interval for estimate in estimates) else [_NO_INTERVAL]),
        *filter(None, [count.sentence]),
    ]
    output.print_result(result, lines, as_json)


def _estimate_concepts(
    cache: tuple[str, ...], concepts: str, rows: dict[str, Any], request: dict[str, Any], as_json: bool
) -> None:
    """Estimate the prior of each concept."""
    from pucache.training.estimate_prior import estimate_prior_on
    from pucache.training.train_concepts import each_concept

    result: dict[str, Any] = {}
    table: dict[str, dict[str, str]] = {}

    def estimate(name: str, data: LabelledCache) -> None:
        count, labelled = LabelCount.of(data.s, groups=data.group), int(data.s.sum())
        estimates = estimate_prior_on(data, progress=terminal_progress(), **request) if count.has_estimates else []
        by_method = {one.method: vars(one) for one in estimates}
        result[name] = {"labelled_positives": labelled, "unlabelled": data.n_unlabelled, "note": count.sentence}
        result[name] |= {"estimates": by_method or None}
        shown = {one.method: f"{'' if one.prior is None else f'{one.prior:.4f} '}{_interval(one)}" for one in estimates}
        columns = {method: shown.get(method, "").strip() for method in request["methods"]}
        table[name] = {"labelled": f"{labelled:,}", **columns, "note": "" if estimates else "too few labels"}

    failures = each_concept(open_cache(cache), concepts, estimate, **rows)
    output.print_result({"concepts": result, "failures": failures}, output.concept_lines(table), as_json)
    output.exit_for_concepts(failures)


def _interval(estimate: PriorEstimate) -> str:
    return estimate.interval_text("{:.4f}".format) if estimate.has_interval else ""


def _line(estimate: PriorEstimate) -> str:
    prior = "" if estimate.prior is None else f"{estimate.prior:.4f}"
    return f"{estimate.method:<10} {prior:>8}   {estimate.interval_text('{:.4f}'.format)}".rstrip()
