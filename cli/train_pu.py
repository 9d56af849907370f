"""`pucache train-pu`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pucache.cache.embedding_cache import EmbeddingCache, open_cache
from pucache.estimates.audited_prior import COMBINED, new_images_text
from pucache.estimates.intervals import are_uninformative, interval_of, stated_text
from pucache.estimates.priors import interval_text
from pucache.estimates.scar import ScarCheck
from pucache.estimates.thresholds import parse_rule
from pucache.labels.concepts import open_concepts
from pucache.storage.atomic import replacing
from pucache.storage.file_kinds import JSON, MARK, tensor_kind
from pucache.training.concept_models import METRICS, SUFFIX, model_path
from pucache.training.model_file import FORMAT
from pucache.training.sklearn_classifier import PULinearClassifier

from . import options, output
from .destinations import check_files, check_outputs, may_write_derived
from .progress import terminal_progress

if TYPE_CHECKING:
    from pucache.training.labelled_cache import LabelledCache

MODEL = tensor_kind(FORMAT)
_FIGURES = {"auc": "AUC", "recall": "recall", "precision": "precision", "f1": "F1"}


@click.command("train-pu")
@options.caches
@options.labels(session=True, many=True)
@options.option(
    "--exclusive",
    is_flag=True,
    help="With --concepts: an image has one of them at most, so that what is labelled with one is a known negative of "
    "the others.",
)
@options.option(
    "--prior",
    default="auto",
    metavar="FLOAT|auto",
    callback=options.number_or_auto,
    help="Share of positives among the unlabelled, in (0, 1). auto: estimated, with an interval.",
)
@options.method
@options.training
@options.option(
    "--threshold",
    default="f1",
    metavar="RULE",
    help="Rule for the decision threshold: f1 (greatest expected F1), precision=P or recall=R (expected to be at least "
    "that), or a margin: the score itself, any number, and no probability.",
)
@options.option(
    "--deploy-prior",
    type=float,
    help="Share of positives among the images that will be scored, for posterior and threshold.  [default: the prior]",
)
@options.groups
@options.twins
@options.option(
    "--out",
    metavar="FILE|FOLDER",
    help="Model to write; with --concepts, the folder of the models.  [default: model.safetensors; models]",
)
@options.option(
    "--metrics",
    metavar="FILE",
    help="JSON file for the estimates.  [default: MODEL.metrics.json beside MODEL.safetensors; metrics.json in the "
    "folder of the models]",
)
@options.all_rows
@options.device
@options.seed
@options.force
@options.as_json
def train_pu(
    cache: tuple[str, ...],
    positives: Any,
    negatives: Any,
    session: str | None,
    beside: str | None,
    concepts: Any,
    exclusive: bool,
    prior: float | str,
    groups: Any,
    twins: float | None,
    out: str | None,
    metrics: str | None,
    all_rows: bool,
    seed: int,
    force: bool,
    **parameters: Any,
) -> None:
    """Train a classifier on labelled positives and the unlabelled rest of CACHE.

    Penalty, prior, threshold and the weight of neighbours are chosen from these data. All estimates are of
    cross-fitted margins and need no negative labels. They take ten labelled positives, and thirty for single
    figures beside their intervals; with fewer, the ranking works all the same.

    \b
    pucache train-pu cache.h5 --positives found.txt
    pucache train-pu cache.h5 --concepts labels.csv --out models/
    """
    from pucache.training.labelled_cache import LabelledCache

    classifier = {"prior": None if prior == "auto" else prior, "random_state": seed, **parameters}
    rows: dict[str, Any] = {"all_rows": all_rows, "seed": seed, "device": parameters["device"]}
    alone = concepts is None and not options.is_of_concepts(session)
    if alone and exclusive:
        raise ValueError("--exclusive is for --concepts; leave it out with one list of positives")
    if alone:
        out = out or "model.safetensors"
        check_outputs(("out", out, MODEL), ("metrics", metrics, JSON), force=force)
    opened = open_cache(cache)
    labels, concepts = options.labels_named(opened, positives, session, concepts, beside)
    rows |= options.groups_named(opened, groups)
    if concepts is not None:
        rows |= {"twins": twins, "excluding": exclusive}
        _train_concepts(opened, concepts, classifier, rows, out or "models", metrics, force)
        return
    assert out is not None
    data = LabelledCache.of(opened, labels, twins, negatives=negatives, **rows)
    model, scar, result = _train(data, classifier, out, force)
    lines = [
        *_lines(result),
        *options.sample_lines(data.sample, result["prior"]),
        *_method_lines(model),
        *_warnings(result, model.tilt_.prior, data.training_labels.bounds),
        *_scar_lines(scar, audited=_audited(result)),
    ]
    # m.metrics.json of m.safetensors
    default = Path(out).with_name(f"{Path(out).name.removesuffix(SUFFIX)}.{METRICS}")
    written = _write_metrics(result, metrics, default)
    output.print_result(result, [*lines, f"wrote {out}{written}"])
    _list_duplicates(data.twins_of_positives())


def _train(
    data: LabelledCache, classifier: dict[str, Any], out: str | Path, force: bool
) -> tuple[PULinearClassifier, ScarCheck, dict[str, Any]]:
    """Train and write a model; returns it, the check of SCAR, and metrics."""
    from pucache.training.train_on_cache import scar_of, summary, train_on_cache

    model = train_on_cache(PULinearClassifier(**classifier), data, progress=terminal_progress())
    model.save(out, force=force)
    scar = scar_of(data, model)
    found = {"scar": scar.to_dict(), "found_by_twins": [key for key, _ in data.twins_of_positives()]}
    settings = {} if model.neighbours_ is None else model.neighbours_.to_json()
    settings.pop("tilt", None)  # it holds a prior, which few labels do not support
    return model, scar, summary(model) | {"method": model.method_, "neighbours": settings or None} | found


def _train_concepts(
    cache: EmbeddingCache,
    concepts: Any,
    classifier: dict[str, Any],
    rows: dict[str, Any],
    folder: str,
    metrics: str | None,
    force: bool,
) -> None:
    """Train and write a model for each concept, and one file of metrics with a row a concept."""
    from pucache.training.train_on_cache import each_concept

    check_outputs(("metrics", metrics, JSON), force=force)
    labels = open_concepts(cache, concepts)
    check_files([model_path(folder, name) for name in labels.labels], MODEL, "out", beside=metrics, force=force)

    def train(name: str, data: LabelledCache) -> dict[str, Any]:
        return {"concept": name} | _train(data, classifier, model_path(folder, name), force)[-1]

    written, failures = each_concept(cache, labels, train, **rows)
    table = {name: _concept_row(result) for name, result in written.items()}
    others = sorted({path.stem for path in Path(folder).glob(f"*{SUFFIX}")} - set(table))  # of those that failed too
    result = {"concepts": list(written.values()), "failures": failures}
    lines = [f"wrote {len(written):,} models to {folder}{_write_metrics(result, metrics, Path(folder, METRICS))}"]
    if others:
        lines.append(f"{folder} also holds models from before, which score would use: {', '.join(others)}")
    output.print_concepts(result | {"models_from_before": others}, failures, table, *lines)


def _concept_row(result: dict[str, Any]) -> dict[str, str]:
    """Row of a concept in the table that is printed; figures that its labels are too few for are left out."""
    estimates = result["estimates"]
    enough = interval_of(estimates, "recall") is not None and not are_uninformative(estimates)
    return {
        "labelled": f"{result['labelled_positives']:,}",
        "prior": _prior_text(result).removeprefix("prior ").replace("estimated; ", ""),
        **{name: stated_text(estimates, name) if enough else "" for name in ("recall", "precision")},
        "called positive": f"{estimates['share_predicted_positive']:.2%}",
        "note": "" if enough else "ranked; too few labels for figures",
    }


def _lines(result: dict[str, Any]) -> Iterator[str]:
    positive, negative = result["confirmed_positives"], result["known_negatives"]
    reviewed = f" (of them reviewed: {positive:,} positive, {negative:,} negative)" if positive or negative else ""
    noun = "positive" if result["labelled_positives"] == 1 else "positives"
    counts = f"{result['labelled_positives']:,} labelled {noun}, {result['unlabelled']:,} unlabelled{reviewed}"
    yield ", ".join(filter(None, [counts, _prior_text(result)]))
    yield from _estimates(result)
    if "groups" in result:
        labels, effect = result["estimates"]["labels"], result["estimates"]["design_effect"]
        yield (
            f"{result['groups']:,} groups of images; the labelled positives are of {labels:,}, and count as so many "
            "labels" + (f", {effect:.3g} images as one in intervals" if effect > 1 else "")
        )
    if result["note"]:
        yield result["note"]


def _audited(result: dict[str, Any]) -> bool:
    """Whether the estimates rest on images that a review drew at random."""
    return result["prior_estimate"] is not None and result["prior_estimate"]["method"] == "audit"


def _estimates(result: dict[str, Any]) -> Iterator[str]:
    estimates, audit, names = result["estimates"], result["prior_estimate"], list(_FIGURES)
    called = f"called positive {estimates['share_predicted_positive']:.3%}"
    if _audited(result):
        both = " and the labels" if estimates.get("sources") == COMBINED else ""
        names.remove("auc")  # which the audit says nothing about
        yield (
            f"estimated among the unlabelled of the pile, from {audit['draws']:,} images that the review drew at random"
            f"{both}, with {audit['level']:.0%} intervals:"
        )
    elif interval_of(estimates, "recall") is None:
        yield f"{called} of the unlabelled"
        return
    elif are_uninformative(estimates):
        yield f"{called} of the unlabelled; too few labels for figures: review 100 images first (pucache review)"
        return
    else:
        yield "estimated among the unlabelled, from held-out margins and without negative labels, with 90% intervals:"
    yield "  " + "   ".join([*(f"{_FIGURES[name]} {stated_text(estimates, name)}" for name in names), called])
    yield from filter(None, [new_images_text(estimates)])


def _method_lines(model: PULinearClassifier) -> Iterator[str]:
    if (settings := model.neighbours_) is not None:
        yield f"method {model.method_}: {settings.evidence.sentence()}; neighbours by {settings.search}"
    elif model.method == "linear" or model.solver != "batch" or model.loss != "imbupu":
        yield "method linear"
    else:
        yield "method linear: too few positives are labelled, or still hidden, for neighbours to help"
    kind, threshold = parse_rule(model.threshold)
    if kind == "margin":
        yield f"threshold {threshold:g} is a margin, as in the column of scores, and no probability (--threshold)"
    if (share := model.deploy_prior) is not None:
        yield f"posterior and threshold are for a share of positives of {share:.4g} (--deploy-prior)"


def _prior_text(result: dict[str, Any]) -> str:
    estimate = result["prior_estimate"]
    if estimate is None:
        return "" if result["prior"] is None else f"prior {result['prior']:.4g}"
    interval = interval_text(estimate["low"], estimate["high"], "{:.4g}".format)
    if estimate["low"] <= 0 and estimate["high"] >= 1:  # there is no interval
        return "" if result["prior"] is None else f"prior {result['prior']:.4g} (estimated)"
    if result["prior"] is None:
        return f"prior {interval} (estimated; {estimate['level']:.0%} interval)"
    return f"prior {result['prior']:.4g} (estimated; {estimate['level']:.0%} interval {interval})"


def _warnings(result: dict[str, Any], model_prior: float, prior_bounds: tuple[float, float]) -> Iterator[str]:
    low, high = prior_bounds
    audited = _audited(result)
    if not audited and result["prior_estimate"] is not None and not 1.02 * low < model_prior < 1 - 1.02 * (1 - high):
        yield (
            "  warning: the estimate of the prior lies at the end of what is possible, so that nothing rests on it; "
            "label more positives, of other kinds too, or give --prior"
        )
    if not audited and (result["confirmed_positives"] or result["known_negatives"]):
        yield (
            "  after a review these are too high, recall most of all: confirmed images are like the labelled ones; "
            "they are for this pile, and on new images precision may be lower"
        )
    if result["estimates"]["collapsed"]:
        yield (
            f"  warning: the classifier is {result['estimates']['collapsed']} at this threshold; label more positives"
        )


def _scar_lines(scar: ScarCheck, *, audited: bool) -> Iterator[str]:
    yield str(scar)
    if scar.verdict == "none found":
        yield (
            "  warning: hardly any positives are hidden, or the labelled ones come from elsewhere, such as another "
            "camera, and that is what they have in common"
        )
    if scar.verdict == "differ" and not audited:
        yield (
            "  warning: they are no fair sample of all positives, on which the prior, recall and F1 rest; label some "
            "that are drawn at random, and see which differ with pucache report"
        )


def _list_duplicates(duplicates: list[tuple[str, str]]) -> None:
    """Print the unlabelled duplicates of labelled positives on stderr."""
    if duplicates:
        first = "; ".join(f"{key!r} (twin of {positive!r})" for key, positive in duplicates[:5])
        more = "; ..." if len(duplicates) > 5 else ""
        click.echo(
            f"found positives, to be added to the list: {len(duplicates)} unlabelled, the same picture as a labelled "
            f"one: {first}{more}",
            err=True,
        )


# --- the file of metrics -------------------------------------------------------------------------


def _write_metrics(result: dict[str, Any], metrics: str | None, derived: Path) -> str:
    """Write `result` to the file that --metrics names, or else to `derived`; returns what to say of it.

    A file of the derived name that pucache did not mark as its own is left as it is.
    """
    path = Path(metrics or derived)
    if metrics is None and not may_write_derived(path, "out", "metrics"):
        return f"; {path} was left as it is, not updated, as it has no mark of pucache: rename it, or use --metrics"
    with replacing(path) as temporary:
        temporary.write_text(output.to_json({"written_by": MARK, **result}) + "\n")
    return f" and {path}"
