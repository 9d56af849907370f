"""`pucache score`."""

from __future__ import annotations

from typing import Any

import click

from pucache.allocator import keep_freed_memory
from pucache.cache.embedding_cache import is_cache
from pucache.estimates.audited_prior import new_images_text
from pucache.scaling.score_shards import score_shards
from pucache.scoring.score import ScoreReport, open_model
from pucache.scoring.score import score as run
from pucache.scoring.score_tables import check_suffix, table_kind
from pucache.storage.file_kinds import CACHE
from pucache.storage.urls import without_secrets
from pucache.training.concept_models import ConceptModels
from pucache.training.sklearn_classifier import PULinearClassifier

from . import options, output
from .destinations import check_outputs
from .progress import terminal_progress

_ON_THIS_MACHINE = ("append", "day", "moved", "neighbours", "exclusive", "by_image")


@click.command()
@click.argument("model")
@click.argument("what", nargs=-1, required=True, metavar="SOURCE_OR_CACHE")
@options.option(
    "--out",
    default="scores.csv",
    metavar="FILE",
    help="Table to write: .csv or .parquet, a path or a URL.",
)
@options.option(
    "--cache", metavar="FILE", help="Cache that images are embedded into.  [default: beside --out, as NAME.h5]"
)
@options.option(
    "--neighbours",
    metavar="CACHE",
    help="Cache in which the neighbours of each image are searched, such as the one that MODEL was trained on. Scores "
    "then follow the image and its neighbours, as in retrieve-positives. Only where train-pu gave neighbours a weight.",
)
@options.option(
    "--deploy-prior",
    metavar="SHARE",
    callback=options.number_or_auto,
    help="Share of positives that posterior and threshold are for, in place of the model's, or auto: the share that is "
    "estimated among the new images. With auto, images that are in --out already keep posterior and label.",
)
@options.option(
    "--exclusive",
    is_flag=True,
    help="Only for a folder of models: an image has one of the concepts, or none. The column kind names it; posteriors "
    "sum to at most one.",
)
@options.option(
    "--append",
    is_flag=True,
    help="Keep the rows of other sources that --out holds. The table then has the columns source, day and model too, "
    "and each source has a cache of its own beside it.",
)
@options.option("--day", metavar="YYYY-MM-DD", help="With --append: date of the rows that are new.")
@options.option(
    "--moved", is_flag=True, help="Accept a source with another path than the one that its cache was made from."
)
@options.option(
    "--by-image",
    is_flag=True,
    help="For a model of parts of images: a row for each image, with the scores of its part with the largest margin, "
    "and where that lies.",
)
@options.encoding
@options.strict
@options.force
@options.as_json
def score(
    model: str,
    what: tuple[str, ...],
    out: str,
    cache: str | None,
    deploy_prior: float | str | None,
    engine: str,
    address: str | None,
    workers: int | None,
    strict: bool,
    force: bool,
    **chosen: Any,
) -> None:
    """Score every image of a cache, or of a source of images, with MODEL, or with each model of a folder.

    Images are first embedded into a cache with the encoder of the model. An interrupted run continues
    from there, and the next model scores the same images in seconds. Columns: key, margin, posterior
    (probability of being positive; empty below 30 labelled positives),
    label (1 where the margin is above the threshold). The share of positives
    among the images is estimated, and one line warns where they differ from
    those that MODEL was trained on. With --neighbours
    the margin is the score with neighbours, which has its own threshold. A folder of models, as
    train-pu --concepts writes, scores in one pass into one table: key, and for each concept
    CONCEPT_margin, CONCEPT_posterior and CONCEPT_label.

    \b
    pucache score model.safetensors cache.h5
    pucache score model.safetensors new-photos/ --out new.parquet
    pucache score model.safetensors new-photos/ --deploy-prior auto
    pucache score model.safetensors new-photos/ --neighbours cache.h5
    pucache score model.safetensors week-2/ --out weekly.csv --append --day 2026-01-12
    pucache score models/ cache.h5 --out scores.parquet
    pucache score models/ cache.h5 --out kinds.csv --exclusive
    pucache score model.safetensors shards/ --out scores.parquet --engine ray
    """
    keep_freed_memory()  # before the first thread, or large array
    check_outputs(("out", out, table_kind(out)), ("cache", cache, CACHE), force=force)
    check_suffix(out)
    classifier = open_model(model)
    cached = all(map(is_cache, what))
    if cached:
        options.refuse_encoding_options("cache", but=("engine", "address", "workers"))
    elif len(what) > 1:
        raise ValueError("give one source of images, or any number of caches")
    elif engine == "ray":
        raise ValueError(
            "score embeds images on this machine alone; embed them with pucache embed IMAGES FOLDER --engine ray "
            "--shards N, then score FOLDER"
        )
    if engine == "ray":
        here = [f"--{name.replace('_', '-')}" for name in _ON_THIS_MACHINE if chosen[name]]
        if here or isinstance(classifier, ConceptModels):
            what_for = " and ".join(here) or "a folder of models"
            raise ValueError(f"scores are made on this machine alone with {what_for}; leave out the engine ray")
        cluster: dict[str, Any] = {"workers": workers, "address": address, "force": force}
        report = score_shards(classifier, what, out, deploy_prior=deploy_prior, **cluster)
    else:
        options.refuse_cluster_options(address=address, workers=workers if cached else None)
        report = run(
            classifier,
            what,
            out,
            cache=cache,
            deploy_prior=deploy_prior,
            force=force,
            workers=workers,
            progress=terminal_progress(),
            largest_part=chosen.pop("by_image"),
            **chosen,
        )
    name, figures, exclusive = without_secrets(out), "", chosen["exclusive"]
    if isinstance(classifier, PULinearClassifier) and deploy_prior is None and chosen["neighbours"] is None:
        figures = new_images_text(classifier.estimates_)
    output.print_result(_result(report, name, figures), _lines(report, name, exclusive, figures), out=out)
    output.exit_for_failures(report.failures, strict)


def _result(report: ScoreReport, name: str, figures: str) -> dict[str, Any]:
    fields = {field: value for field, value in vars(report).items() if field != "share"}
    return fields | {
        "out": name,
        "cache": report.cache.name,
        "neighbours": None if report.neighbours is None else report.neighbours.name,
        "deploy_prior": report.share,
        "new_images": None
        if report.new_images is None
        else report.new_images.to_dict() | {"figures": "" if report.new_images.differs else figures},
    }


def _lines(report: ScoreReport, name: str, exclusive: bool, figures: str) -> list[str]:
    by = f", by the image and its neighbours in {report.neighbours.name}" if report.neighbours else ""
    counted = "images" if exclusive else "above the threshold"
    lines = output.concept_lines({n: {counted: f"{c:,}"} for n, c in (report.concepts or {}).items()})
    of = f" by {len(report.concepts):,} models" if report.concepts else ""
    called = "" if report.concepts else f"; {report.positives:,} above the threshold{by}"
    if exclusive:
        called = f"; {report.rows - report.positives:,} of no kind"
    lines.append(f"wrote {report.rows:,} scores{of} to {name}{called}")
    if report.failures:
        listing = f"pucache info {report.cache.name} --failures"
        lines.append(f"{report.failures:,} images could not be read and have no score: {listing}")
    if report.kept:
        lines.append(f"{report.kept:,} of them were scored before and keep posterior and label")
    if (new := report.new_images) is not None:
        decided = "" if report.share is None else f"; decided at {100 * report.share:.3g}%"
        lines += [new.share_text + decided] if new.share_text else []
        lines += [figures] if figures and not new.differs else []
        lines += [f"note: {text}" for text in (new.note, new.warning) if text]
    return lines
