"""`pucache retrieve-positives`."""

from __future__ import annotations

import click

from . import options


@click.command("retrieve-positives")
@options.caches
@options.positives
@click.option("-k", default=100, show_default=True, help="How many to retrieve.")
@click.option(
    "--by",
    type=click.Choice(["similarity", "classifier"]),
    help="Rank by likeness to the positives, or by a model.  [default: classifier with --model, else similarity]",
)
@click.option("--model", metavar="FILE", help="Model to rank by, from train-pu.")
@click.option(
    "--similarity",
    type=click.Choice(["centroid", "max"]),
    help="Mean of the cosines to all positives, or the cosine to the nearest.  [default: centroid]",
)
@click.option("--out", default="ranked.csv", show_default=True, metavar="FILE", help="rank,key,score, best first.")
@options.as_json
def retrieve_positives(
    cache: tuple[str, ...],
    positives: str,
    k: int,
    by: str | None,
    model: str | None,
    similarity: str | None,
    out: str,
    as_json: bool,
) -> None:
    """Rank the unlabelled images of CACHE, likely positives first.

    Labelled positives are left out. Cosines are of embeddings centred on the cache's mean.

    \b
    pucache retrieve-positives cache.h5 --positives found.txt -k 200
    pucache retrieve-positives cache.h5 --positives found.txt --model model.safetensors
    """
    from pucache.cache import EmbeddingCache
    from pucache.classifier import PULinearClassifier
    from pucache.durable import check_writable
    from pucache.labels import label_vector
    from pucache.retrieve import retrieve

    if by == "classifier" and model is None:
        raise ValueError("--by classifier needs --model FILE (train one with pucache train-pu)")
    if by == "similarity" and model is not None:
        raise ValueError("--by similarity does not use --model; leave one of the two out")
    if similarity is not None and model is not None:
        raise ValueError("--similarity does nothing where --model ranks; leave one of the two out")
    check_writable(out, inputs=[positives, *cache, *filter(None, [model])])
    opened = EmbeddingCache(*cache)
    s = label_vector(opened.keys, positives)
    classifier = PULinearClassifier.load(model) if model else None
    ranking = retrieve(opened, s, k=k, model=classifier, similarity=similarity or "centroid")
    ranking.save(out)
    result = {"out": out, "by": "classifier" if model else "similarity", "retrieved": len(ranking.keys)}
    top = [
        f"{rank:4d}  {score:8.4f}  {key}"
        for rank, (key, score) in enumerate(zip(ranking.keys[:5], ranking.scores, strict=False), 1)
    ]
    options.show(result, [*top, f"wrote {len(ranking.keys):,} of {int((s == 0).sum()):,} unlabelled to {out}"], as_json)
