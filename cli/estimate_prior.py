"""`pucache estimate-prior`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from pucache.cache.embedding_cache import EmbeddingCache, open_cache
from pucache.estimates.label_requirements import LabelCount
from pucache.estimates.priors import PriorEstimate

from . import options, output
from .progress import terminal_progress

if TYPE_CHECKING:
    from pucache.training.labelled_cache import LabelledCache


@click.command("estimate-prior")
@options.caches
@options.labels(many=True)
@options.option("--level", default=0.9, help="Confidence level of the interval, in (0, 1).")
@options.groups
@options.twins
@options.all_rows
@options.device
@options.seed
@options.as_json
def estimate_prior(
    cache: tuple[str, ...],
    positives: Any,
    negatives: Any,
    concepts: Any,
    groups: Any,
    twins: float | None,
    all_rows: bool,
    **parameters: Any,
) -> None:
    """Estimate the share of positives among the unlabelled rows of CACHE.

    It is the estimate of train-pu, and assumes that the labelled positives are a random sample of all
    positives. An interval takes at least ten of them, a single figure thirty.

    \b
    pucache estimate-prior cache.h5 --positives found.txt
    pucache estimate-prior cache.h5 --concepts labels.csv
    """
    from pucache.training.estimate_prior import check_request
    from pucache.training.labelled_cache import LabelledCache

    check_request(level=parameters["level"])
    request = {"progress": terminal_progress(), **parameters}
    rows: dict[str, Any] = {"all_rows": all_rows, "seed": parameters["seed"], "device": parameters["device"]}
    opened = open_cache(cache)
    rows |= options.groups_named(opened, groups)
    if concepts is not None:
        _estimate_concepts(opened, concepts, rows | {"twins": twins}, request)
        return
    data = LabelledCache.of(opened, positives, twins, negatives=negatives, **rows)
    result, estimates = _estimate(data, request)
    result["unlabelled_sample"] = None if data.sample is None else data.sample.to_json()
    counts = f"{result['labelled_positives']:,} labelled positives, {data.n_unlabelled:,} unlabelled"
    output.print_result(result, [counts, *_lines(estimates, data), *filter(None, [result["note"]])])


def _estimate(data: LabelledCache, request: dict[str, Any]) -> tuple[dict[str, Any], list[PriorEstimate]]:
    """Result for JSON, and the estimates; none where the labels are too few."""
    from pucache.training.estimate_prior import estimate_prior_on

    count = replace(LabelCount.of(data.s, groups=data.together), grouped=data.clusters is not None)
    estimates = estimate_prior_on(data, **request) if count.has_estimates else []
    result = {"labelled_positives": int(data.s.sum()), "unlabelled": data.n_unlabelled, "note": count.sentence}
    return result | {"estimates": {one.method: vars(one) for one in estimates} or None}, estimates


def _estimate_concepts(cache: EmbeddingCache, concepts: Any, rows: dict[str, Any], request: dict[str, Any]) -> None:
    """Estimate the prior of each concept."""
    from pucache.training.train_on_cache import each_concept

    table: dict[str, dict[str, str]] = {}

    def estimate(name: str, data: LabelledCache) -> dict[str, Any]:
        result, estimates = _estimate(data, request)
        labelled, tilt = f"{result['labelled_positives']:,}", _text(estimates[-1]) if estimates else ""
        table[name] = {
            "labelled": labelled,
            "tilt": tilt,
            "note": "" if estimates else "too few labels",
        }
        return result

    results, failures = each_concept(cache, concepts, estimate, **rows)
    output.print_concepts({"concepts": results}, failures, table)


def _lines(estimates: list[PriorEstimate], data: LabelledCache) -> Iterator[str]:
    if not estimates:
        return
    yield from options.sample_lines(data.sample, estimates[0].prior)
    with_interval = [estimate.has_interval for estimate in estimates]
    yield f"{'method':<10} {'prior':>8}   {f'{estimates[0].level:.0%}' if any(with_interval) else 'no'} interval"
    for estimate in estimates:
        prior = "" if estimate.prior is None else f"{estimate.prior:.4f}"
        yield f"{estimate.method:<10} {prior:>8}   {estimate.interval_text('{:.4f}'.format)}".rstrip()


def _text(estimate: PriorEstimate) -> str:
    interval = estimate.interval_text("{:.4f}".format) if estimate.has_interval else ""
    return " ".join(filter(None, ["" if estimate.prior is None else f"{estimate.prior:.4f}", interval]))
