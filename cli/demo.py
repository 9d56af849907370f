"""`pucache demo`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from pucache.allocator import keep_freed_memory
from pucache.estimates.label_requirements import format_share
from pucache.estimates.priors import interval_text

from . import options, output
from .progress import terminal_progress

_SHARE = partial(format_share, digits=3, kind="f")
_METRICS = {"accuracy": "accuracy", "f1": "F1", "auc": "AUC", "average_precision_hidden": "AP hidden"}
_CLASSIFIERS = {"pucache, no negative label": "pucache", "supervised, every label known": "supervised"}
_FILES = {
    "retrieved.png": "the first 60 images retrieved (green: a dress, red: not)",
    "ranked.csv": "all unlabelled images, likely dresses first",
    "model.safetensors": "the classifier",
    "scores.csv": "the new images, scored",
    "photos.h5, new-photos.h5": "the caches of embeddings; pucache info prints their contents",
    "found.txt, truth.csv": "the labelled positives, and the true labels",
    "kinds.csv": "labels of ten kinds of clothing, for --labels",
    "report.html": "open in a browser: hidden positives, quality of the classifier, a map of the images",
    "review.html": "open in a browser: the first 200 candidates",
}


@options.command("demo")
@click.argument("folder", default="pucache-demo")
@options.as_json
def demo(folder: str) -> None:
    """Run all steps on images that come with pucache.

    FOLDER, of the images and of what the steps write, is pucache-demo by default.

    \b
    pucache demo
    """
    keep_freed_memory()  # before the first thread or large array
    from pucache.demonstration import demo as run  # imports torch

    result = run(folder, progress=terminal_progress())
    output.print_result(result, _lines(result, folder))
    if not output.wants_json():
        cache, positives = (shlex.quote(str(Path(folder, name))) for name in ("photos.h5", "found.txt"))
        found = result["found_by_words"]
        start = f"--words {shlex.quote(found['words'])}" if found else f"--positives {positives}"
        click.echo(f"\nto find the hidden dresses yourself:\n  pucache review {cache} {start}")


def _lines(result: dict[str, Any], folder: str) -> Iterator[str]:
    if found := result["found_by_words"]:
        shown = f"{found['positives']} of the first {found['images']} images"
        yield f"by the words {found['words']!r} alone, without an example, {shown} are dresses"
    yield f"{result['labelled_positives']} labelled dresses, {result['unlabelled']:,} unlabelled images"
    interval, prior = result["prior_interval"], result["prior"]
    ends = "" if interval is None else interval_text(interval[0], interval[1], _SHARE)
    estimated = ends or "not stated" if prior is None else f"{_SHARE(prior)} ({ends})"
    yield f"share of dresses among the unlabelled: estimated {estimated}, truly {_SHARE(result['true_prior'])}"
    if result["note"]:
        yield result["note"]
    yield ""
    yield f"{'':34s}" + "".join(f"{title:>11s}" for title in _METRICS.values())
    for title, name in _CLASSIFIERS.items():
        yield f"{title:34s}" + "".join(f"{_SHARE(result[name][metric]):>11s}" for metric in _METRICS)
    yield ""
    yield "accuracy, F1, AUC: 500 new images. AP hidden: finding the 150 dresses hidden among the unlabelled images."
    yield f"{result['seconds']} s. Files in {folder}/:"
    for name, content in _FILES.items():
        yield f"  {name:26s}{content}"
