"""`pucache train-pu`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options, output

if TYPE_CHECKING:
    from pucache.pu.scar import ScarCheck


@click.command("train-pu")
@options.caches
@options.positives
@options.negatives
@click.option(
    "--prior",
    default="auto",
    show_default=True,
    metavar="FLOAT|auto",
    help="Share of positives among the unlabelled, in (0, 1). auto: estimated, with an interval.",
)
@options.training
@click.option(
    "--threshold",
    default="f1",
    show_default=True,
    metavar="RULE",
    help="Rule for the decision threshold: f1 (greatest expected F1), precision=P or recall=R (expected to be at least "
    "that), or a margin.",
)
@click.option(
    "--deploy-prior",
    type=float,
    help="Share of positives among the images that will be scored, for posterior and threshold.  [default: the prior]",
)
@click.option(
    "--draws",
    default=20,
    show_default=True,
    type=click.IntRange(min=0),
    help="Number of bootstrap draws for the interval of an estimated prior.",
)
@options.twins
@options.folds
@click.option("--out", default="model.safetensors", show_default=True, metavar="FILE", help="Model to write.")
@click.option(
    "--metrics", metavar="FILE", help="JSON file for the estimates.  [default: metrics.json beside the model]"
)
@options.device
@options.seed
@options.as_json
def train_pu(
    cache: tuple[str, ...],
    positives: str,
    negatives: str | None,
    prior: str,
    twins: float,
    out: str,
    metrics: str | None,
    as_json: bool,
    **parameters: Any,
) -> None:
    """Train a classifier on labelled positives and the unlabelled rest of CACHE.

    Penalty, prior and threshold are chosen from these data. All estimates are of cross-fitted margins
    and need no negative labels.

    \b
    pucache train-pu cache.h5 --positives found.txt
    """
    from pucache.cache.embedding_cache import EmbeddingCache
    from pucache.pu.data import PUData
    from pucache.pu.train import scar_of, summary, train_on
    from pucache.storage.atomic import check_writable, replacing

    from .progress import terminal_progress

    written = Path(metrics or check_writable(out).with_name("metrics.json"))
    if written.resolve() == check_writable(out).resolve():
        raise ValueError(f"--out and --metrics are one file, {out}; name two")
    for path in (out, written):
        check_writable(path, inputs=[positives, *cache, *filter(None, [negatives])])
    data = PUData.of(EmbeddingCache(*cache), positives, options.twin_cosine(twins), negatives=negatives)
    model = train_on(data, prior=_prior(prior), progress=terminal_progress(), **options.training_parameters(parameters))
    model.save(out)
    found = data.twins_of_positives()
    scar = scar_of(data, model)
    result = asdict(summary(model)) | {"scar": scar.to_dict(), "found_by_twins": [key for key, _ in found]}
    with replacing(written) as temporary:
        temporary.write_text(output.to_json(result) + "\n")
    output.print_result(
        result, [*_lines(result, data.training_labels.bounds), *_of_scar(scar), f"wrote {out} and {written}"], as_json
    )
    _warn_of_twins(found)


def _prior(text: str) -> float | None:
    try:
        return None if text == "auto" else float(text)
    except ValueError as error:
        raise ValueError(f"--prior must be a number in (0, 1) or auto, got {text!r}") from error


def _of_scar(scar: ScarCheck) -> list[str]:
    lines = [str(scar)]
    if scar.verdict == "none found":
        lines.append(
            "  warning: hardly any positives are hidden, or the labelled ones come from elsewhere, such as another "
            "camera, and that is what they have in common"
        )
    if scar.verdict == "differ":
        lines.append(
            "  warning: they are no fair sample of all positives, on which the prior, recall and F1 rest; label some "
            "that are drawn at random, and see which differ with pucache report"
        )
    return lines


def _warn_of_twins(found: list[tuple[str, str]]) -> None:
    if found:
        named = "; ".join(f"{key!r} (twin of {positive!r})" for key, positive in found[:5])
        more = "; ..." if len(found) > 5 else ""
        click.echo(
            f"found positives, to be added to the list: {len(found)} unlabelled, the same picture as a labelled one: "
            f"{named}{more}",
            err=True,
        )


def _lines(result: dict[str, Any], bounds: tuple[float, float]) -> list[str]:
    estimates, interval = result["estimates"], result["prior_estimate"]
    told = f"prior {result['prior']:.4g}"
    if interval:
        told += " (estimated" + (
            f"; {interval['level']:.0%} interval {interval['low']:.4g} to {interval['high']:.4g})"
            if interval["draws"]
            else ")"
        )
    reviewed = [result["confirmed_positives"], result["known_negatives"]]
    among = f" (of them reviewed: {reviewed[0]:,} positive, {reviewed[1]:,} negative)" if any(reviewed) else ""
    lines = [
        f"{result['labelled_positives']:,} labelled positives, {result['unlabelled']:,} unlabelled{among}, {told}",
        "estimated among the unlabelled, from held-out margins and without negative labels:",
        f"  AUC {estimates['auc']:.3f}   recall {estimates['recall']:.3f}   precision {estimates['precision']:.3f}   "
        f"F1 {estimates['f1']:.3f}   called positive {estimates['share_predicted_positive']:.3%}",
    ]
    if interval and not 1.02 * bounds[0] < result["prior"] < 1 - 1.02 * (1 - bounds[1]):
        lines.append(
            "  warning: the estimate of the prior lies at the end of what is possible, so that nothing rests on it; "
            "label more positives, of other kinds too, or give --prior"
        )
    if any(reviewed):
        lines.append(
            "  after a review these lean upwards, recall most: what was confirmed lies around the labelled positives"
        )
    if estimates["collapsed"]:
        lines.append(f"  warning: the classifier is {estimates['collapsed']} at this threshold; label more positives")
    return lines
