"""`pucache retrieve-positives`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options, output

if TYPE_CHECKING:
    from pucache.retrieval.scorer import Scorer


@click.command("retrieve-positives")
@options.caches
@options.positives
@options.negatives
@click.option("-k", default="100", show_default=True, metavar="N|all", help="Number of images to retrieve.")
@click.option(
    "--by",
    type=click.Choice(["similarity", "classifier", "fused"]),
    help="Ranking: similarity to the positives, margins of --model, or margins of the image and of its nearest "
    "neighbours (fused).  [default: fused with --model, else similarity]",
)
@click.option("--model", metavar="FILE", help="Model from train-pu, for --by classifier or fused.")
@click.option(
    "--similarity",
    type=click.Choice(["whitened", "centroid", "topk", "max"]),
    help="whitened: cosine similarity to the mean of the positives after whitening; centroid: mean cosine similarity "
    "to all positives; topk: mean over the 50 nearest positives; max: the nearest positive.  [default: whitened]",
)
@click.option(
    "--index",
    default="exact",
    show_default=True,
    type=click.Choice(["exact", "ivf", "hnsw"]),
    help="exact compares all images. ivf and hnsw use an approximate index for --similarity topk or max on large "
    "caches; it is built beside CACHE where it is missing, and its recall is measured and printed.",
)
@click.option(
    "--memory", type=float, metavar="GB", help="Memory limit for building an index.  [default: half of the free memory]"
)
@click.option(
    "--diverse",
    type=float,
    is_flag=False,
    flag_value=0.5,
    default=0.0,
    metavar="[WEIGHT]",
    help="Weight of diversity in the selection: from 0 (ranking only) to 1 (diversity only); 0.5 if no number is "
    "given.",
)
@options.twins
@click.option(
    "--out", default="ranked.csv", show_default=True, metavar="FILE", help="Table rank,key,score to write, best first."
)
@click.option(
    "--review",
    metavar="FILE.html",
    help="Also write a page on which to accept or reject the images, and export the labels.",
)
@options.images
@options.device
@options.as_json
def retrieve_positives(
    cache: tuple[str, ...],
    positives: str,
    negatives: str | None,
    k: str,
    out: str,
    review: str | None,
    images: str | None,
    diverse: float,
    twins: float,
    as_json: bool,
    **how: Any,
) -> None:
    """Rank the unlabelled images of CACHE, likely positives first.

    Known positives, known negatives and their duplicates are omitted. The review page is one file that
    needs no network; the table that it exports serves as the next --positives and --negatives.

    \b
    pucache retrieve-positives cache.h5 --positives found.txt -k 200 --review review.html
    pucache retrieve-positives cache.h5 --positives found.txt --model model.safetensors
    """
    from pucache.cache.embedding_cache import EmbeddingCache
    from pucache.pages.review_page import review as write_review
    from pucache.pu.labels import Labels
    from pucache.retrieval.retrieve import retrieve
    from pucache.storage.atomic import check_writable

    from .progress import terminal_progress

    count = _count(k)
    inputs = [path for path in (positives, negatives, how["model"], *cache) if path]
    for path in filter(None, (out, review)):
        check_writable(path, inputs=inputs)
    if review and check_writable(review).resolve() == check_writable(out).resolve():
        raise ValueError(f"--out and --review are one file, {out}; name two")
    if images and not review:
        raise ValueError("--images is for --review; leave it out, or name a page to write")
    scorer = _scorer(count, **how)
    opened = EmbeddingCache(*cache)
    labels = Labels.read(opened, positives, negatives)
    limit = options.twin_cosine(twins)
    ranking = retrieve(opened, labels, k=count, by=scorer, diverse=diverse, twins=limit, progress=terminal_progress())
    ranking.save(out)
    unlabelled = int(labels.unlabelled.sum())
    result: dict[str, Any] = {"out": out, "by": scorer.name, "retrieved": len(ranking.keys), "unlabelled": unlabelled}
    lines = [
        f"{rank:4d}  {score:8.4f}  {key}"
        for rank, (key, score) in enumerate(zip(ranking.keys[:5], ranking.scores, strict=False), 1)
    ]
    lines.append(f"wrote {len(ranking.keys):,} of {unlabelled:,} unlabelled to {out}, by {scorer.name}")
    if review:
        shown = write_review(
            review, opened, ranking, labels, by=scorer.name, images=images, progress=terminal_progress()
        )
        result |= {"review": review, **shown}
        lines.append(f"wrote {review}: open it in a browser; {shown['without_picture']:,} images have no picture")
    output.print_result(result, lines, as_json)


def _count(k: str) -> int | None:
    if k == "all":
        return None
    if not (k.isdecimal() and int(k) >= 1):
        raise ValueError(f"-k must be a whole number of at least 1, or all; got {k!r}")
    return int(k)


def _scorer(
    k: int | None,
    *,
    by: str | None,
    model: str | None,
    similarity: str | None,
    index: str,
    memory: float | None,
    device: str,
) -> Scorer:
    """Check the options for consistency and make the scorer that they select."""
    by = by or ("fused" if model else "similarity")
    if by != "similarity" and model is None:
        raise ValueError(f"--by {by} needs --model FILE (train one with pucache train-pu)")
    if by == "similarity" and model is not None:
        raise ValueError("--by similarity does not use --model; leave one of the two out")
    if by != "similarity" and (similarity is not None or index != "exact"):
        raise ValueError("--similarity and --index do nothing where --model ranks; leave them out, or --model")
    if memory is not None and (index == "exact" or not 0 < memory < float("inf")):
        raise ValueError("--memory is for --index ivf or hnsw, and a number of GB above 0")
    if index != "exact" and k is None:
        raise ValueError(f"-k all scores every image, which --index {index} is not for; name a number, or use exact")
    return _ranker(by, model, similarity or "whitened", index, memory, device)


def _ranker(by: str, model: str | None, similarity: str, index: str, memory: float | None, device: str) -> Scorer:
    from pucache.devices import choose_device
    from pucache.pu.classifier import PULinearClassifier
    from pucache.retrieval.indexed_similarity import IndexedSimilarity
    from pucache.retrieval.model_scorers import Fused, Margins
    from pucache.retrieval.similarity import Similarity

    choose_device(device)  # an error where it is not there, whether this way of ranking would use it or not
    if model is not None:
        classifier = PULinearClassifier.load(model)
        return Margins(classifier) if by == "classifier" else Fused(classifier, device)
    exact = Similarity(similarity, device)
    if index == "exact":
        return exact
    return IndexedSimilarity(exact, index, None if memory is None else int(memory * 1e9))
