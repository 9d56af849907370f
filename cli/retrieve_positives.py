"""`pucache retrieve-positives`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
import numpy as np

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.labels.labels import Labels, labels_if_any
from pucache.retrieval.query import Query
from pucache.retrieval.ranking import Ranking, save_concepts
from pucache.retrieval.retrieve import retrieve_concepts
from pucache.retrieval.retrieve import retrieve_positives as retrieve
from pucache.storage.file_kinds import PAGE, TABLE

from . import options, output
from .destinations import check_outputs
from .progress import terminal_progress


def _count(context: click.Context, parameter: click.Parameter, k: str) -> int | None:
    """Value of -k; None stands for all."""
    if k == "all":
        return None
    if not (k.isdecimal() and int(k) >= 1):
        raise ValueError(f"-k must be a whole number of at least 1, or all; got {k!r}")
    return int(k)


@click.command("retrieve-positives")
@options.caches
@options.labels(many=True)
@options.query
@options.option("-k", "--k", default="100", metavar="N|all", callback=_count, help="Number of images to retrieve.")
@options.option(
    "--by",
    type=click.Choice(["similarity", "classifier", "fused"]),
    help="Ranking: similarity to the positives, margins of --model, or margins of the image and of its nearest "
    "neighbours (fused).  [default: similarity; with --model fused, or classifier where the labels of train-pu did not "
    "show that neighbours help]",
)
@options.option(
    "--model",
    metavar="FILE|FOLDER",
    help="Model from train-pu, for --by classifier or fused; with --concepts, the folder of the models.",
)
@options.option(
    "--similarity",
    metavar="whitened|topk",
    help="whitened: cosine similarity to the mean of the positives after whitening; topk: mean cosine similarity to "
    "the 50 nearest positives, for positives of several kinds.  [default: whitened]",
)
@options.option(
    "--diverse",
    type=float,
    is_flag=False,
    flag_value=0.5,
    default=0.0,
    show_default=False,
    metavar="[WEIGHT]",
    help="Weight of diversity in the selection: from 0 (ranking only) to 1 (diversity only); 0.5 if no number is "
    "given.",
)
@options.twins
@options.option(
    "--out",
    default="ranked.csv",
    metavar="FILE",
    help="Table rank,key,score to write, best first; with --concepts concept,rank,key,score. - is the standard output.",
)
@options.option(
    "--review",
    metavar="FILE.html",
    help="Also write a page on which to accept or reject the images, and export the labels.",
)
@options.images
@options.device
@options.engine
@options.address
@options.option(
    "--workers", type=click.IntRange(min=1), help="Number of tasks at once, with Ray.  [default: one per core]"
)
@options.force
@options.as_json
def retrieve_positives(
    cache: tuple[str, ...],
    positives: Any,
    negatives: Any,
    concepts: Any,
    model: str | None,
    out: str,
    review: str | None,
    images: str | None,
    device: str,
    engine: str,
    address: str | None,
    workers: int | None,
    force: bool,
    **selection: Any,
) -> None:
    """Rank the unlabelled images of CACHE, likely positives first.

    Known positives, known negatives and their duplicates are omitted. The review sheet is one file that
    needs no network: pictures with keys, scores and links.

    \b
    pucache retrieve-positives cache.h5 --positives found.txt -k 200 --review review.html
    pucache retrieve-positives cache.h5 --words 'a dress' --review review.html
    pucache retrieve-positives cache.h5 --positives found.txt --model model.safetensors
    pucache retrieve-positives cache.h5 --concepts labels.csv --model models/ -k 50
    pucache retrieve-positives shards/ --positives found.txt --engine ray
    """
    check_outputs(("out", out, TABLE), ("review", review, PAGE), force=force)
    if images and not review:
        raise ValueError("--images is for --review; leave it out, or name a page to write")
    selection |= {"progress": terminal_progress()}
    if engine == "ray" and device not in ("auto", "cpu"):
        raise ValueError(f"the engine ray ranks on processors; leave out device {device}, or use the engine local")
    if engine != "ray":
        options.refuse_cluster_options(address=address, workers=workers)
    asked = {name: selection.pop(name) for name in ("words", "not_words", "like", "text_encoder", "weights")}
    query = Query.of(**asked)
    opened = EmbeddingCache(*cache)
    if concepts is not None:
        if review or engine == "ray":
            option = "--engine ray" if engine == "ray" else "--review"
            raise ValueError(f"{option} is for one list of positives; leave it out with --concepts")
        _retrieve_concepts(opened, concepts, model, out, selection | {"device": device}, force)
        return
    if query and engine == "ray":
        raise ValueError("words and pictures rank on this machine; leave out --engine ray, or name positives")
    labels = labels_if_any(opened, positives, negatives) or Labels.of(np.zeros(len(opened), np.int8))
    if engine == "ray":
        from pucache.scaling.rank_shards import rank_shards

        ranking = rank_shards(opened, labels, model, workers=workers, address=address, **selection)
    else:
        ranking = retrieve(opened, labels, model, device=device, **asked, **selection)
    ranking.save(out, force=force)
    result = _result(ranking) | {"out": out, "unlabelled": int(labels.unlabelled.sum())}
    lines = _lines(ranking, result)
    if review:
        from pucache.pages.review_page import write_review_page

        shown: dict[str, Any] = {"images": images, "force": force, "progress": terminal_progress()}
        page = write_review_page(opened, ranking, review, **shown)
        result |= {"review": review, **asdict(page)}
        missing = f"; {page.without_picture:,} images have no picture" if page.without_picture else ""
        lines.append(f"wrote {review}: open it in a browser{missing}")
    output.print_result(result, lines, out=out)


def _retrieve_concepts(
    cache: EmbeddingCache, concepts: Any, models: str | None, out: str, selection: dict[str, Any], force: bool
) -> None:
    """Write the best images of each concept."""
    rankings, failures = retrieve_concepts(cache, concepts, models, **selection)
    save_concepts(rankings, out, force=force)
    found = {name: _result(ranking) for name, ranking in rankings.items()}
    rows = {name: {"retrieved": f"{of['retrieved']:,}", "by": of["by"]} for name, of in found.items()}
    total = sum(len(ranking.keys) for ranking in rankings.values())
    written = f"wrote {total:,} rows of {len(rankings):,} concepts to {out}"
    output.print_concepts({"out": out, "concepts": found}, failures, rows, written, out=out)


def _result(ranking: Ranking) -> dict[str, Any]:
    said = {"note": ranking.note or None, "search": ranking.search or None, "search_by": ranking.search_by or None}
    return {"by": ranking.scorer, "retrieved": len(ranking.keys), **said}


def _lines(ranking: Ranking, result: dict[str, Any]) -> list[str]:
    best = zip(ranking.keys[:5], ranking.scores, strict=False)
    search = f" ({ranking.search})" if ranking.search else ""
    search_by = f", with {ranking.search_by}" if ranking.search_by else ""
    nothing = ""
    if not ranking.keys and result["unlabelled"]:
        nothing = "nothing is left to rank: all unlabelled images are duplicates of known ones (--twins)"
    return [
        *(f"{rank:4d}  {score:8.4f}  {key}" for rank, (key, score) in enumerate(best, 1)),
        *filter(None, [ranking.note, nothing]),
        f"wrote {result['retrieved']:,} of {result['unlabelled']:,} unlabelled to {result['out']}, "
        f"by {result['by']}{search}{search_by}",
    ]
