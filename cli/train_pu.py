"""`pucache train-pu`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pucache.cache.embedding_cache import open_cache
from pucache.errors import counted
from pucache.estimates.figures import Figures
from pucache.estimates.label_requirements import format_share
from pucache.estimates.scar import ScarCheck
from pucache.estimates.thresholds import parse_rule
from pucache.labels.labels import Labels, PerConcept
from pucache.scoring.neighbour_scores import reason
from pucache.storage.atomic import replacing
from pucache.storage.file_kinds import MARK, tensor_kind
from pucache.training.concept_models import METRICS, SUFFIX, model_path
from pucache.training.model_file import FORMAT
from pucache.training.neighbour_evidence import method_of
from pucache.training.sklearn_classifier import PULinearClassifier

from . import options, output
from .destinations import check_files, check_outputs, may_write_derived
from .progress import terminal_progress

if TYPE_CHECKING:
    from pucache.labels.sample import UnlabelledSample
    from pucache.training.training_set import TrainingSet

Trained = tuple[PULinearClassifier, dict[str, Any], ScarCheck]  # a model, its content of the file of metrics
MODEL, ONE = tensor_kind(FORMAT), "model.safetensors"


@options.command("train-pu")
@options.caches
@options.positives
@options.labels
@options.beside
@options.option(
    "--out",
    metavar="FILE|FOLDER",
    help="Model to write; the folder of the models where the labels have concepts. FILE.metrics.json is written beside "
    "it.  [default: model.safetensors; models]",
)
@options.option(
    "--prior",
    default="auto",
    metavar="FLOAT|auto",
    callback=options.number_or_word,
    help="Share of positives among the unlabelled, in (0, 1). auto: estimated, with an interval.",
)
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
    metavar="SHARE",
    help="Share of positives among the images that will be scored, for posterior and threshold.  [default: the prior]",
)
@options.as_json
@options.method
@options.loss
@options.penalty
@options.solver
@options.twins
@options.all_rows
@options.seed
def train_pu(
    cache: tuple[str, ...],
    positives: str | None,
    labels: str | None,
    beside: str | None,
    prior: float | str,
    twins: float | None,
    out: str | None,
    all_rows: bool,
    seed: int,
    **parameters: Any,
) -> None:
    """Train a classifier on positives and unlabelled images.

    Penalty, prior, threshold and the weight of neighbours are chosen from these data. All estimates are of cross-fitted
    margins and need no negative labels. They take ten labelled positives, and thirty for single figures beside their
    intervals; with fewer, the ranking works all the same. Labels of several concepts give several models.

    \b
    pucache train-pu cache.h5                          # the labels of its review
    pucache train-pu cache.h5 --positives found.txt
    """
    classifier = {"prior": None if prior == "auto" else prior, "random_state": seed, **parameters}
    if positives is not None:  # before anything is read
        check_outputs(("out", out or ONE, MODEL))
    opened = open_cache(cache)
    read = options.open_labels(opened, positives, labels, beside)
    path = partial(_path, read, out or (ONE if read.is_one else "models"))
    check_files(map(path, read.columns), MODEL, "out")
    from pucache.training.training_set import TrainingRows  # imports torch, after what may be refused

    rows = TrainingRows.of_cache(opened, read, twins=twins, all_rows=all_rows, seed=seed)

    def train(name: str, data: TrainingSet) -> Trained:
        model = PULinearClassifier(**classifier).train(data, terminal_progress())
        model.save(path(name))
        scar, twins = data.scar(model), data.twins_of_positives()
        if read.is_one:
            _list_duplicates(twins)
        return model, _result(model, scar, twins), scar

    trained = rows.map(read, train)
    if read.is_one:
        _print_one(*trained[""], rows.sample, path(""))
    else:
        _print_concepts(trained, path("").parent)


def _path(labels: Labels, out: str, name: str) -> Path:
    """File of the model of a concept."""
    return Path(out) if labels.is_one else model_path(out, name)


def _result(model: PULinearClassifier, scar: ScarCheck, twins: list[tuple[str, str]]) -> dict[str, Any]:
    """Content of the file of metrics."""
    settings = {} if model.neighbours_ is None else model.neighbours_.to_json()
    settings.pop("tilt", None)  # it holds a prior, which few labels do not support
    found = {"scar": scar.to_dict(), "found_by_twins": [key for key, _ in twins]}
    return model.summary() | {"method": model.method_, "neighbours": settings or None} | found


def _print_one(
    model: PULinearClassifier, result: dict[str, Any], scar: ScarCheck, sample: UnlabelledSample | None, path: Path
) -> None:
    lines = [
        *_lines(result, model),
        *options.sample_lines(sample, result["prior"]),
        *([reason(model)] if method_of(model.method, model.loss, model.solver) == "distilled" else []),
        *_threshold_lines(model),
        *_warnings(result, model),
        *_scar_lines(scar, audited=model.figures_.is_audited),
    ]
    # m.metrics.json of m.safetensors
    written = _write_metrics(result, path.with_name(f"{path.name.removesuffix(SUFFIX)}.{METRICS}"))
    output.print_result(result, [*lines, f"wrote {path}{written}"])


def _print_concepts(trained: PerConcept[Trained], folder: Path) -> None:
    """One file of metrics with a row a concept, and a table."""
    of_concepts = {name: {"concept": name} | result for name, (_, result, _) in trained.items()}
    table = {name: _concept_row(result, model) for name, (model, result, _) in trained.items()}
    others = sorted({path.stem for path in folder.glob(f"*{SUFFIX}")} - set(table))  # of those that failed too
    result = {"concepts": list(of_concepts.values()), "failures": trained.failures}
    lines = [f"wrote {counted(len(trained), 'model')} to {folder}{_write_metrics(result, folder / METRICS)}"]
    if others:
        lines.append(f"{folder} also holds models from before, which score would use: {', '.join(others)}")
    output.print_concepts(result | {"models_from_before": others}, trained.failures, table, *lines)


def _concept_row(result: dict[str, Any], model: PULinearClassifier) -> dict[str, str]:
    """Row of a concept in the table that is printed; figures that its labels are too few for are left out."""
    figures = model.figures_
    few = "labels" if figures.sources is None else "random images"
    enough = figures["recall"].interval is not None and not figures.are_uninformative
    return {
        "labelled": f"{result['labelled_positives']:,}",
        "prior": _prior_text(model).removeprefix("prior ").replace("estimated; ", ""),
        **{name: str(figures[name]) if enough else "" for name in ("recall", "precision")},
        "called positive": _called_positive(figures, 2),
        "note": "" if enough else f"ranked; too few {few} for figures",
    }


def _lines(result: dict[str, Any], model: PULinearClassifier) -> Iterator[str]:
    figures = model.figures_
    positive, negative = result["confirmed_positives"], result["known_negatives"]
    reviewed = f" (of them known: {positive:,} positive, {negative:,} negative)" if positive or negative else ""
    labelled = counted(result["labelled_positives"], "labelled positive")
    counts = f"{labelled}, {result['unlabelled']:,} unlabelled{reviewed}"
    yield ", ".join(filter(None, [counts, _prior_text(model)]))
    yield from _estimates(figures)
    if (effect := figures.design_effect) is not None:
        yield (
            f"{counted(result['groups'], 'group')} of images; the labelled positives are of {figures.labels.labels:,}, "
            "and count as so many labels" + (f", {effect:.3g} images as one in intervals" if effect > 1 else "")
        )
    if result["note"]:
        yield result["note"]


def _estimates(figures: Figures) -> Iterator[str]:
    called = f"called positive {_called_positive(figures, 3)}"
    if figures["recall"].interval is None:
        yield f"{called} of the unlabelled"
    elif figures.is_audited and figures.prior is not None:
        basis = f"{figures.basis}, with {figures.prior.level:.0%} intervals"
        yield f"estimated among the unlabelled, {basis}: {figures.text()}   {called}"
    elif figures.are_uninformative:
        yield f"{called} of the unlabelled; too few labels for figures: review 100 images first (pucache review)"
    else:
        yield f"estimated among the unlabelled, with 90% intervals: {figures.text()}   {called}"
    yield from filter(None, [figures.new_images_text])


def _called_positive(figures: Figures, decimals: int) -> str:
    share: Any = figures.counted["share_predicted_positive"]
    return f"{format_share(share, decimals, 'f', whole=100)}%"


def _threshold_lines(model: PULinearClassifier) -> Iterator[str]:
    kind, threshold = parse_rule(model.threshold)
    if kind == "margin":
        yield f"threshold {threshold:g} is a margin, as in the column of scores, and no probability (--threshold)"
    if (share := model.deploy_prior) is not None:
        of = "the posterior is" if kind == "margin" else "posterior and threshold are"
        yield f"{of} for a share of positives of {format_share(share)} (--deploy-prior)"


def _prior_text(model: PULinearClassifier) -> str:
    estimate, prior = model.prior_estimate_, "" if model.prior_ is None else format_share(model.prior_)
    if estimate is None or not estimate.has_interval:
        return f"prior {prior}" if prior else ""
    interval = estimate.interval_text(format_share)
    if not prior:
        return f"prior {interval} (estimated; {estimate.level_text} interval)"
    return f"prior {prior} (estimated; {estimate.level_text} interval {interval})"


def _warnings(result: dict[str, Any], model: PULinearClassifier) -> Iterator[str]:
    figures = model.figures_
    audited, collapsed = figures.is_audited, figures.counted["collapsed"]
    if not audited and figures.prior is not None and result["confirmed_positives"]:
        yield "  after a review without random images the prior is too low: confirmed images are like the labelled ones"
    if collapsed:
        yield f"  warning: the classifier is {collapsed} at this threshold; label more positives"


def _scar_lines(scar: ScarCheck, *, audited: bool) -> Iterator[str]:
    if scar.verdict in ("none found", "differ"):
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


def _write_metrics(result: dict[str, Any], path: Path) -> str:
    """Write the metrics beside a model; returns what to say of it.

    A file of this name that pucache did not mark as its own is left as it is.
    """
    if not may_write_derived(path, "out"):
        return f"; {path} was left as it is, not updated, as it has no mark of pucache: rename it"
    with replacing(path) as temporary:
        temporary.write_text(output.to_json({"written_by": MARK, **result}) + "\n")
    return f" and {path}"
