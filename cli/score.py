"""`pucache score`."""

from __future__ import annotations

from typing import Any

import click

from pucache.allocator import keep_freed_memory
from pucache.errors import counted
from pucache.images.source import open_source
from pucache.scoring.score import AUTO, ScoreReport, default_out
from pucache.scoring.score import score as run
from pucache.scoring.score_tables import check_suffix, table_kind
from pucache.storage.file_kinds import CACHE
from pucache.storage.urls import without_secrets
from pucache.training.concept_models import ConceptModels

from . import options, output
from .destinations import check_outputs
from .progress import terminal_progress


@options.command()
@click.argument("model")
@click.argument("what", nargs=-1, required=True, metavar="SOURCE|CACHE...")
@options.option(
    "--out",
    metavar="FILE",
    help="Table to write: .csv or .parquet, a path or a URL.  [default: NAME.scores.csv, after the images]",
)
@options.option(
    "--cache", metavar="FILE", help="Cache that images are embedded into.  [default: beside --out, as NAME.h5]"
)
@options.option(
    "--neighbours",
    metavar="CACHE",
    help="Cache in which the neighbours of each image are searched, such as the one that MODEL was trained on. Scores "
    "then follow the image and its neighbours. Only where train-pu gave neighbours a weight.",
)
@options.option(
    "--deploy-prior",
    metavar="SHARE|auto|model",
    default=AUTO,
    callback=options.number_or_word,
    help="Share of positives that posterior and threshold are for. auto: the share that is estimated among the images, "
    "if they are at least 1,000 and like those of the training, MODEL has at least 40 labelled positives, and the "
    "interval excludes its own share; otherwise, and for images of the training, its own. model: always its own.",
)
@options.option(
    "--by-image",
    is_flag=True,
    help="For a model of parts of images: a row for each image, with the scores of its part with the largest margin, "
    "and where that lies.",
)
@options.as_json
@options.reading_of_images
def score(
    model: str,
    what: tuple[str, ...],
    out: str | None,
    cache: str | None,
    **chosen: Any,
) -> None:
    """Score a cache, or new images, with a model.

    The images of SOURCE, any that embed reads, are first embedded into a cache with the encoder of the model. An
    interrupted run continues from there, and the next model scores this CACHE in seconds. Columns: key, margin,
    posterior (probability of being positive; empty below 30 labelled positives), label (1 where the margin is above the
    threshold). The share of positives among the images is estimated, and one line warns where they differ from those
    that MODEL was trained on. A folder of models scores in one pass into one table: key, and for each concept
    CONCEPT_margin, CONCEPT_posterior and CONCEPT_label.

    \b
    pucache score model.safetensors new/             # writes new.scores.csv
    pucache score model.safetensors cache.h5 --out scores.parquet
    """
    keep_freed_memory()  # before the first thread, or large array
    given = options.reading(chosen)
    out = default_out(what) if out is None else out
    check_outputs(("out", out, table_kind(out)), ("cache", cache, CACHE))
    check_suffix(out)
    models = ConceptModels.open(model)
    sources = [open_source(one, **given) for one in what] if given is not None else []
    images = sources[0] if len(sources) == 1 else what
    report = run(models, images, out, cache=cache, progress=terminal_progress(), **chosen)
    name, figures = without_secrets(out), ""
    if models.is_one and report.share == models[""].share_ and report.neighbours is None:
        figures = models[""].figures_.new_images_text
    output.print_result(_result(report, name, figures), _lines(report, name, figures), out=out)


def _result(report: ScoreReport, name: str, figures: str) -> dict[str, Any]:
    new = report.new_images
    fields = {field: value for field, value in vars(report).items() if field != "share"}
    return fields | {
        "out": name,
        "cache": report.cache.name,
        "neighbours": None if report.neighbours is None else report.neighbours.name,
        "deploy_prior": report.share,
        "new_images": None if new is None else new.to_dict() | {"figures": "" if new.differs else figures},
    }


def _lines(report: ScoreReport, name: str, figures: str) -> list[str]:
    by = f", by the image and its neighbours in {report.neighbours.name}" if report.neighbours else ""
    lines = output.concept_lines({n: {"above the threshold": f"{c:,}"} for n, c in (report.concepts or {}).items()})
    of = f" by {counted(len(report.concepts), 'model')}" if report.concepts else ""
    called = "" if report.concepts else f"; {report.positives:,} above the threshold{by}"
    lines.append(f"wrote {counted(report.rows, 'score')}{of} to {name}{called}")
    if report.failures:
        listing = f"pucache info {report.cache.name} --failures"
        lines.append(f"{counted(report.failures, 'image')} could not be read and got no score: {listing}")
    if (new := report.new_images) is not None:
        lines += filter(None, [new.share_text, report.decided])
        lines += [figures] if figures and not new.differs else []
        lines += [f"note: {text}" for text in (new.note, new.warning) if text and not report.decided.endswith(text)]
    return lines
