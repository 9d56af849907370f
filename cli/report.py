"""`pucache report`."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import click

from pucache.cache.embedding_cache import open_cache
from pucache.estimates.intervals import interval_of, stated_text
from pucache.storage.file_kinds import PAGE

from . import options, output
from .destinations import check_outputs
from .progress import terminal_progress

_FIGURES = {"precision": "precision", "recall": "recall", "f1": "F1", "auc": "AUC"}


@click.command("report")
@options.caches
@options.labels(session=True, many=True)
@options.option(
    "--model",
    metavar="FILE|FOLDER",
    help="Model from train-pu, which ranks the images and whose parameters are used for the estimates; with "
    "--concepts, the folder of the models.  [default: train with the default parameters]",
)
@options.truth
@options.images
@options.option("--new-images", metavar="CACHE", help="Cache of later images, which a section compares with CACHE.")
@options.option(
    "--sample",
    default=1500,
    type=click.IntRange(min=3),
    help="Greatest number of images on the map.",
)
@options.groups
@options.twins
@options.option("--out", default="report.html", metavar="FILE", help="Page to write.")
@options.all_rows
@options.device
@options.seed
@options.force
@options.as_json
def report(
    cache: tuple[str, ...],
    positives: Any,
    negatives: Any,
    session: str | None,
    beside: str | None,
    concepts: Any,
    model: str | None,
    truth: Any,
    new_images: str | None,
    out: str,
    **parameters: Any,
) -> None:
    """Write an HTML page about CACHE and how well a classifier separates its positives.

    The page shows labelled and likely positives, estimates of the number of hidden positives, margins,
    estimated precision and recall, and a map of the images. The command trains again, because the estimates need
    held-out margins.

    \b
    pucache report cache.h5 --positives found.txt --model model.safetensors
    pucache report cache.h5 --concepts labels.csv
    """
    from pucache.pages.concept_report import report_concepts
    from pucache.pages.report import report as run

    check_outputs(("out", out, PAGE), force=parameters["force"])
    opened = open_cache(cache)
    parameters |= {"command": shlex.join(["pucache", *sys.argv[1:]]), "progress": terminal_progress()}
    labels, concepts = options.labels_named(opened, positives, session, concepts, beside)
    if concepts is not None:
        for option, value in {"--truth": truth, "--new-images": new_images}.items():
            if value is not None:
                raise ValueError(f"{option} is for one list of positives; leave it out with --concepts")
        result = report_concepts(opened, concepts, out, models=model, **parameters)
        shared = [
            f"{' and '.join(one['concepts'])} both call {one['images']:,} images positive" for one in result["shared"]
        ]
        written = f"wrote {out}, with a page for each of {len(result['concepts']):,} concepts"
        output.print_concepts(result | {"out": out}, result["failures"], {}, *shared[:10], written)
        return
    labelled = {"negatives": negatives, "truth": truth, "new_images": new_images}
    numbers = run(opened, labels, out, model=model, **labelled, **parameters)
    output.print_result(numbers | {"out": out}, [*_lines(numbers), f"wrote {out}"])


def _lines(numbers: dict[str, Any]) -> list[str]:
    estimates, confirmed = numbers["estimates"], numbers["reviewed"]["confirmed"]
    counts = f"{numbers['labelled']:,} labelled positives, {numbers['unlabelled']:,} unlabelled"
    counts += f" (of them {confirmed:,} confirmed)" if confirmed else ""
    lines = [", ".join(filter(None, [counts, _hidden(**numbers["hidden_positives"])]))]
    if "groups" in numbers:
        groups, found, called = (f"{numbers['groups'][name]:,}" for name in ("groups", "found", "called"))
        lines.append(f"known positives are in {found} of {groups} groups; images of {called} more are called positive")
    if interval_of(estimates, "recall") is not None:
        audited = numbers["audit_draws"]
        names = [name for name in _FIGURES if not audited or name != "auc"]  # which the audit says nothing about
        basis = f" of the pile from {audited:,} images that the review drew at random" if audited else ""
        basis += " and the labels" * (estimates.get("sources") == "random images and labels")
        lines.append(f"estimated{basis}: " + "   ".join(f"{_FIGURES[n]} {stated_text(estimates, n)}" for n in names))
        lines += filter(None, [numbers["figures_of_new_images"]])
    if numbers["look_again"]:
        first = ", ".join(map(repr, numbers["look_again"][:3]))
        lines.append(
            f"look again at {len(numbers['look_again'])} labels that the model doubts (section 3): {first}, ..."
        )
    return [*lines, *(f"note: {warning}" for warning in numbers["warnings"])]


def _hidden(expected: float | None, low: float | None, high: float | None) -> str:
    """Number of hidden positives, with its interval; "" where the labels are too few."""
    from pucache.pages.html import count_range

    interval = "" if low is None or high is None else count_range(low, high, "{:,.0f}".format)
    if expected is None:
        return f"{interval} more positives" if interval else ""
    return f"about {expected:,.0f} more positives" + (f" ({interval})" if interval else "")
