"""`pucache report`."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import click

from . import options, output


@click.command("report")
@options.caches
@options.positives
@options.negatives
@click.option(
    "--model",
    metavar="FILE",
    help="Model from train-pu: its parameters are trained with, and it ranks.  [default: train at the defaults]",
)
@click.option("--truth", metavar="FILE", help="True classes (CSV key,label, or the positive keys), shown beside.")
@options.images
@click.option(
    "--draws", default=20, show_default=True, type=click.IntRange(min=0), help="Bootstrap draws; 0: no interval."
)
@click.option(
    "--sample", default=1500, show_default=True, type=click.IntRange(min=3), help="Images on the map, at most."
)
@options.twins
@click.option("--out", default="report.html", show_default=True, metavar="FILE", help="Where to write the page.")
@options.device
@options.seed
@options.as_json
def report(
    cache: tuple[str, ...],
    positives: str,
    negatives: str | None,
    model: str | None,
    truth: str | None,
    twins: float,
    out: str,
    as_json: bool,
    **parameters: Any,
) -> None:
    """Write one page to look at: what is in CACHE, and how well its positives can be told.

    It shows labelled and likely positives, how many are hidden by each method, margins, estimated
    precision and recall, a sweep over priors and a map. It trains anew, for held-out margins.

    \b
    pucache report cache.h5 --positives found.txt --model model.safetensors
    """
    from pucache.cache.embedding_cache import EmbeddingCache
    from pucache.pages.report_page import report as run
    from pucache.pu.classifier import PULinearClassifier
    from pucache.pu.label_files import read_truth
    from pucache.storage.atomic import check_writable

    from .progress import terminal_progress

    check_writable(out, inputs=[positives, *cache, *filter(None, [negatives, model, truth])])
    opened = EmbeddingCache(*cache)
    numbers = run(
        opened,
        positives,
        out,
        negatives=negatives,
        model=PULinearClassifier.load(model) if model else None,
        truth=read_truth(truth, opened.keys) if truth else None,
        twins=options.twin_cosine(twins),
        command=shlex.join(["pucache", *sys.argv[1:]]),
        progress=terminal_progress(),
        **parameters,
    )
    output.print_result(numbers | {"out": out}, [*_lines(numbers), f"wrote {out}"], as_json)


def _lines(numbers: dict[str, Any]) -> list[str]:
    estimates, hidden = numbers["estimates"], numbers["hidden_positives"]
    span = "" if hidden["low"] is None else f" ({hidden['low']:,.0f} to {hidden['high']:,.0f})"
    confirmed = numbers["reviewed"]["confirmed"]
    known = f" (of them {confirmed:,} confirmed)" if confirmed else ""
    return [
        f"{numbers['labelled']:,} labelled positives, {numbers['unlabelled']:,} unlabelled{known}, about "
        f"{hidden['expected']:,.0f} more positives{span}",
        f"estimated: precision {estimates['precision']:.3f}   recall {estimates['recall']:.3f}   "
        f"F1 {estimates['f1']:.3f}   AUC {estimates['auc']:.3f}",
        *(f"note: {warning}" for warning in numbers["warnings"]),
    ]
