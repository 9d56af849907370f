"""`pucache train-pu`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from . import options


@click.command("train-pu")
@options.caches
@options.positives
@click.option(
    "--prior",
    required=True,
    type=float,
    help="Share of positives among the unlabelled, in (0, 1). A guess within a factor of two will do for ranking; "
    "precision, F1 and the posterior are in proportion to it.",
)
@click.option(
    "--loss",
    default="imbnnpu",
    show_default=True,
    help="Risk to minimise: imbnnpu, imbupu, nnpu or upu. imb weighs rare positives up, nn keeps the estimated "
    "negative part from going below 0.",
)
@click.option("--target-prior", default=0.5, show_default=True, help="Weight of the positive part of the risk.")
@click.option("--threshold", default=0.0, show_default=True, help="Margin above which an image is called positive.")
@click.option("--out", default="model.safetensors", show_default=True, metavar="FILE", help="Where to write the model.")
@click.option("--metrics", metavar="FILE", help="Estimates as JSON.  [default: metrics.json beside the model]")
@options.device
@options.seed
@options.as_json
def train_pu(
    cache: tuple[str, ...], positives: str, out: str, metrics: str | None, as_json: bool, **parameters: Any
) -> None:
    """Train a classifier on labelled positives and the unlabelled rest of CACHE.

    The estimates come from cross-fitted margins and need no negative label.

    \b
    pucache train-pu cache.h5 --positives found.txt --prior 0.05
    """
    from pucache.cache import EmbeddingCache
    from pucache.durable import check_writable, replacing
    from pucache.train import summary
    from pucache.train import train_pu as run

    from .progress import follow

    written = Path(metrics or check_writable(out).with_name("metrics.json"))
    if written.resolve() == check_writable(out).resolve():
        raise ValueError(f"--out and --metrics are one file, {out}; name two")
    for path in (out, written):
        check_writable(path, inputs=[positives, *cache])
    model = run(EmbeddingCache(*cache), positives, progress=follow(), **parameters)
    model.save(out)
    result = summary(model)
    with replacing(written) as temporary:
        temporary.write_text(options.to_json(result) + "\n")
    options.show(result, [*_lines(result), f"wrote {out} and {written}"], as_json)


def _lines(result: dict[str, Any]) -> list[str]:
    estimates = result["estimates"]
    return [
        f"{result['labelled_positives']:,} labelled positives, {result['unlabelled']:,} unlabelled, "
        f"prior {result['prior']:.4g}",
        "estimated among the unlabelled, from held-out margins and without negative labels:",
        f"  AUC {estimates['auc']:.3f}   recall {estimates['recall']:.3f}   precision {estimates['precision']:.3f}   "
        f"F1 {estimates['f1']:.3f}   called positive {estimates['share_predicted_positive']:.3%}",
    ]
