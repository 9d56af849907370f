"""`pucache estimate-prior`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pucache.cache.embedding_cache import open_cache
from pucache.errors import counted
from pucache.estimates.label_requirements import AT_AN_END, format_share
from pucache.estimates.priors import PriorEstimate

from . import options, output
from .progress import terminal_progress

if TYPE_CHECKING:
    from pucache.labels.sample import UnlabelledSample
    from pucache.training.training_set import TrainingSet


@options.command("estimate-prior")
@options.caches
@options.positives
@options.labels
@options.option("--level", default=0.9, help="Confidence level of the interval, in (0, 1).")
@options.as_json
def estimate_prior(cache: tuple[str, ...], positives: str | None, labels: str | None, level: float) -> None:
    """Estimate the share of positives among the unlabelled.

    It is the estimate of train-pu, and assumes that the labelled positives are a random sample of all positives. An
    interval takes at least ten of them, a single figure thirty.

    \b
    pucache estimate-prior cache.h5 --positives found.txt
    """
    opened = open_cache(cache)
    read = options.open_labels(opened, positives, labels)
    from pucache.training.estimate_prior import check_level, estimate_prior_on  # imports torch, after a refusal
    from pucache.training.training_set import TrainingRows

    check_level(level)
    rows = TrainingRows.of_cache(opened, read)
    printed: dict[str, list[PriorEstimate]] = {}

    def estimate(name: str, data: TrainingSet) -> dict[str, Any]:
        count = data.label_count
        found = estimate_prior_on(data, level=level, progress=terminal_progress()) if count.has_estimates else []
        printed[name] = found
        note = count.sentence or (AT_AN_END if found[-1].prior is None else "")
        counts = {"labelled_positives": int(data.labels.s.sum()), "unlabelled": data.n_unlabelled}
        return counts | {"note": note, "estimates": {one.method: vars(one) for one in found} or None}

    results = rows.map(read, estimate)
    if read.is_one:
        result = results[""]
        result["unlabelled_sample"] = None if rows.sample is None else rows.sample.to_json()
        counts = f"{counted(result['labelled_positives'], 'labelled positive')}, {result['unlabelled']:,} unlabelled"
        output.print_result(result, [counts, *_lines(printed[""], rows.sample), *filter(None, [result["note"]])])
        return
    table = {name: _row(result, printed[name]) for name, result in results.items()}
    output.print_concepts({"concepts": dict(results)}, results.failures, table)


def _row(result: dict[str, Any], found: list[PriorEstimate]) -> dict[str, str]:
    few = "" if found else "too few labels"
    return {
        "labelled": f"{result['labelled_positives']:,}",
        "prior": _text(found[-1]) if found else "",
        "note": "at the end of what is possible" if result["note"] == AT_AN_END else few,
    }


def _lines(found: list[PriorEstimate], sample: UnlabelledSample | None) -> Iterator[str]:
    if not found:
        return
    yield from options.sample_lines(sample, found[0].prior)
    with_interval = [estimate.has_interval for estimate in found]
    yield f"{'from':<10} {'prior':>8}   {found[0].level_text if any(with_interval) else 'no'} interval"
    for estimate in found:
        prior = "" if estimate.prior is None else _share(estimate.prior)
        basis = {"tilt": "labels"}.get(estimate.method, estimate.method)
        yield f"{basis:<10} {prior:>8}   {estimate.interval_text(_share)}".rstrip()


def _text(estimate: PriorEstimate) -> str:
    interval = estimate.interval_text(_share) if estimate.has_interval else ""
    return " ".join(filter(None, ["" if estimate.prior is None else _share(estimate.prior), interval]))


def _share(share: float) -> str:
    return format_share(share, kind="f")
