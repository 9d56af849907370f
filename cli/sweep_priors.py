"""`pucache sweep-priors`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pucache.cache.embedding_cache import open_cache
from pucache.storage.file_kinds import TABLE
from pucache.training.sklearn_classifier import PULinearClassifier

from . import options, output
from .destinations import check_outputs, may_write_derived
from .progress import terminal_progress


@options.command("sweep-priors")
@options.caches
@options.positives
@options.labels
@options.option("--priors", metavar="P,P,...", help="Priors to train at.  [default: 12 from 0.01 to 0.5]")
@options.option("--seeds", default=3, type=click.IntRange(min=1), help="Number of trainings per prior.")
@options.option("--out", default="sweep.csv", metavar="FILE", help="Table to write; its plot lies beside it, as .png.")
@options.as_json
@options.loss
def sweep_priors(
    cache: tuple[str, ...],
    positives: str | None,
    labels: str | None,
    priors: str | None,
    seeds: int,
    out: str,
    **parameters: Any,
) -> None:
    """Train at many priors, and say what the prior changes.

    All metrics are of held-out margins: PU risk, AUC of labelled against unlabelled (pauc), estimated F1, share
    predicted positive, and how often the negative part was cut at 0. AUC and F1 take ten labelled positives, and
    thirty for single figures.

    \b
    pucache sweep-priors cache.h5 --positives found.txt --loss imbnnpu
    """
    plot_path = Path(out).with_suffix(".png")
    if plot_path == Path(out):
        raise ValueError(f"--out is the table, got the name of a picture, {out}; name a .csv file")
    check_outputs(("out", out, TABLE))
    opened = open_cache(cache)
    read = options.open_labels(opened, positives, labels)
    from pucache.training import prior_sweep  # imports torch, after a refusal

    result = prior_sweep.sweep_priors(
        opened,
        read,
        PULinearClassifier(**parameters),
        priors=prior_sweep.PRIORS if priors is None else _parse_numbers(priors),
        seeds=seeds,
        progress=terminal_progress(),
    )
    prior_sweep.write_sweep_table(result, out)
    if may_write_derived(plot_path, "out"):
        prior_sweep.plot_sweep(result, plot_path)
        written = f"wrote {out} and {plot_path}"
    else:
        written = f"wrote {out}; {plot_path} is not pucache's, and is left as it is: rename it, or --out another table"
    lines = [*options.sample_lines(result.sample, None), result.verdict]
    fields = {name: getattr(result, name) for name in ("verdict", "penalty", "rows", "note")}
    fields["unlabelled_sample"] = None if result.sample is None else result.sample.to_json()
    output.print_result(fields, [*lines, *filter(None, [result.note]), written])


def _parse_numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--priors must be numbers with commas between, got {text!r}") from error
