"""`pucache report`."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from pucache.cache.embedding_cache import open_cache
from pucache.errors import counted
from pucache.storage.file_kinds import PAGE

from . import options, output
from .destinations import check_outputs
from .progress import terminal_progress


@options.command("report")
@options.caches
@options.positives
@options.labels
@options.beside
@options.option(
    "--model",
    metavar="FILE|FOLDER",
    help="Model from train-pu, which ranks the images and whose parameters are used for the estimates; the folder of "
    "the models where the labels have concepts.  [default: train with the default parameters]",
)
@options.option("--out", default="report.html", metavar="FILE", help="Page to write.")
@options.truth
@options.images
@options.option("--new-images", metavar="CACHE", help="Cache of later images, which a section compares with CACHE.")
@options.as_json
def report(
    cache: tuple[str, ...],
    positives: str | None,
    labels: str | None,
    beside: str | None,
    model: str | None,
    truth: Any,
    new_images: str | None,
    out: str,
    images: str | None,
) -> None:
    """Write a page: how many positives, how good the classifier.

    The page shows labelled and likely positives, estimates of the number of hidden positives, margins, estimated
    precision and recall, and a map of the images. The command trains again, because the estimates need held-out
    margins.

    \b
    pucache report cache.h5                            # the labels of its review
    pucache report cache.h5 --positives found.txt --model model.safetensors
    """
    check_outputs(("out", out, PAGE))
    opened = open_cache(cache)
    parameters: dict[str, Any] = {"images": images}
    parameters |= {"command": shlex.join(["pucache", *sys.argv[1:]]), "progress": terminal_progress()}
    read = options.open_labels(opened, positives, labels, beside)
    from pucache.pages.concept_report import report_concepts  # imports torch and matplotlib, after what may be refused
    from pucache.pages.report import report as run

    if not read.is_one:
        for option, value in {"--truth": truth, "--new-images": new_images}.items():
            if value is not None:
                raise ValueError(f"{option} is for one list of positives; leave it out with concepts")
        result = report_concepts(opened, read, out, models=model, **parameters)
        shared = [
            f"{' and '.join(one['concepts'])} both call {counted(one['images'], 'image')} positive"
            for one in result["shared"]
        ]
        written = f"wrote {out}, with a page for each of {counted(len(result['concepts']), 'concept')}"
        output.print_concepts(result | {"out": out}, result["failures"], {}, *shared[:10], written)
        return
    numbers = run(opened, read, out, model=model, truth=truth, new_images=new_images, **parameters)
    output.print_result(numbers | {"out": out}, [*_lines(numbers), f"wrote {out}"])


def _lines(numbers: dict[str, Any]) -> list[str]:
    from pucache.pages.report_numbers import numbers_figures

    figures, confirmed = numbers_figures(numbers), numbers["reviewed"]["confirmed"]
    counts = f"{counted(numbers['labelled'], 'labelled positive')}, {numbers['unlabelled']:,} unlabelled"
    counts += f" (of them {confirmed:,} confirmed)" if confirmed else ""
    said = numbers["audit_statements"][:1]
    lines = [counts, *said] if said else [", ".join(filter(None, [counts, _hidden(**numbers["hidden_positives"])]))]
    if "groups" in numbers:
        groups, found, called = (f"{numbers['groups'][name]:,}" for name in ("groups", "found", "called"))
        lines.append(f"known positives are in {found} of {groups} groups; images of {called} more are called positive")
    if figures["recall"].interval is not None:
        basis = f" among the unlabelled, {figures.basis}," if figures.is_audited else ""
        lines.append(f"estimated{basis} {figures.text()}")
    lines += filter(None, [figures.new_images_text])
    if numbers["look_again"]:
        doubted = numbers["look_again"]
        first = ", ".join(map(repr, doubted[:3])) + ", ..." * (len(doubted) > 3)
        doubts = f"look again at {counted(len(doubted), 'label')} that this training doubts (section 3): {first}"
        others = "; the review offers what its own rankings doubted and nobody has confirmed since" if confirmed else ""
        lines.append(doubts + others)
    return [*lines, *(f"note: {warning}" for warning in numbers["warnings"])]


def _hidden(expected: float | None, low: float | None, high: float | None) -> str:
    """Number of hidden positives, with its interval; "" where the labels are too few."""
    from pucache.pages.html import count_range

    interval = "" if low is None or high is None else count_range(low, high, "{:,.0f}".format)
    if expected is None:
        return f"{interval} more positives" if interval else ""
    return f"about {expected:,.0f} more positives" + (f" ({interval})" if interval else "")
