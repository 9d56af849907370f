"""`pucache score`."""

from __future__ import annotations

import os
from typing import Any

import click

from . import options, output


@click.command()
@click.argument("model")
@click.argument("what", nargs=-1, required=True, metavar="SOURCE_OR_CACHE")
@click.option(
    "--out",
    default="scores.csv",
    show_default=True,
    metavar="FILE",
    help="Table to write: .csv or .parquet, a path or a URL.",
)
@click.option(
    "--cache", metavar="FILE", help="Cache that images are embedded into.  [default: beside --out, as NAME.h5]"
)
@options.encoding
@options.strict
@options.as_json
def score(
    model: str,
    what: tuple[str, ...],
    out: str,
    cache: str | None,
    shard: str | None,
    engine: str,
    address: str | None,
    workers: int | None,
    strict: bool,
    as_json: bool,
    **encoding: Any,
) -> None:
    """Score every image of a cache, or of a source of images, with MODEL.

    Images are first embedded into a cache with the encoder of the model. An interrupted run continues
    from there, and the next model scores the same images in seconds. Columns: key, margin, posterior
    (probability of being positive), label (1 where the margin is above the threshold).

    \b
    pucache score model.safetensors cache.h5
    pucache score model.safetensors new-photos/ --out new.parquet
    """
    from pucache.allocator import keep_freed_memory

    keep_freed_memory()  # before the first thread, or large array
    from pucache.cache.destination import place_of
    from pucache.cache.embedding_cache import EmbeddingCache, is_cache
    from pucache.images.source import open_source
    from pucache.pu.classifier import PULinearClassifier
    from pucache.pu.score import embed_for
    from pucache.pu.score import score as run
    from pucache.pu.score_tables import check_output
    from pucache.storage.urls import without_secrets

    from .progress import terminal_progress

    check_output(out, inputs=[model, *what])
    classifier = PULinearClassifier.load(model)
    if all(map(is_cache, what)):
        options.refuse_encoding_options("cache")
        opened = EmbeddingCache(*what)
    elif len(what) == 1:
        path = cache or os.path.splitext(out)[0] + ".h5"
        place_of(path).check_writable()
        part = options.parse_shard(shard)
        with options.opened_engine(engine, address, workers) as does:
            images = open_source(what[0])
            opened = embed_for(
                classifier, images, path, engine=does, shard=part, progress=terminal_progress(), **encoding
            )
    else:
        raise ValueError("give one source of images, or any number of caches")
    result = run(opened, classifier, out)
    name = without_secrets(out)
    lines = [f"wrote {result['rows']:,} scores to {name}; {result['positives']:,} above the threshold"]
    if result["failures"]:
        lines.append(
            f"{result['failures']:,} images could not be read and have no score: pucache info {opened.name} --failures"
        )
    output.print_result({"out": name, "cache": opened.name, **result}, lines, as_json)
    output.exit_for_failures(result["failures"], strict)
