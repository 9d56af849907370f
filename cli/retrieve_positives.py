"""`pucache retrieve-positives`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.errors import counted
from pucache.labels.labels import PerConcept
from pucache.retrieval.query import Query
from pucache.retrieval.ranking import Ranking, save_concepts
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


@options.command("retrieve-positives")
@options.caches
@options.positives
@options.labels
@options.query
@options.option(
    "--model",
    metavar="FILE|FOLDER",
    help="Model from train-pu that ranks; the folder of the models where the labels have concepts.",
)
@options.option("-k", "--k", default="100", metavar="N|all", callback=_count, help="Number of images to retrieve.")
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
@options.option(
    "--out",
    default="ranked.csv",
    metavar="FILE",
    help="Table rank,key,score to write, best first; of concepts concept,rank,key,score. - is the standard output.",
)
@options.option("--page", metavar="FILE.html", help="Also write a page with the images.")
@options.images
@options.as_json
@options.option(
    "--by",
    section=options.METHOD,
    type=click.Choice(["whitened", "topk", "classifier", "fused"]),
    help="whitened: cosine similarity to the mean of the positives after whitening. topk: mean cosine similarity to "
    "the 50 nearest positives, for positives of several kinds. classifier: margins of --model. fused: margins of the "
    "image and of its nearest neighbours.  [default: whitened; with --model fused, or classifier where its labels did "
    "not show that neighbours help]",
)
def retrieve_positives(
    cache: tuple[str, ...],
    positives: str | None,
    labels: str | None,
    model: str | None,
    out: str,
    page: str | None,
    images: str | None,
    **selection: Any,
) -> None:
    """Rank the unlabelled images, likely positives first.

    Labelled images and their duplicates are omitted. The page is one file that needs no network:
    pictures with keys, scores and links.

    \b
    pucache retrieve-positives cache.h5 --positives found.txt --page top.html
    pucache retrieve-positives cache.h5 --words 'a dress' --page top.html
    pucache retrieve-positives cache.h5 --model model.safetensors -k 200
    """
    check_outputs(("out", out, TABLE), ("page", page, PAGE))
    if images and not page:
        raise ValueError("--images is for --page; leave it out, or name a page to write")
    Query.of(**{name: selection[name] for name in ("words", "not_words", "like")})
    opened = EmbeddingCache(*cache)
    asked = bool(selection["words"] or selection["like"])  # no review is taken then
    read = None if asked and not (positives or labels) else options.open_labels(opened, positives, labels)
    found = retrieve(opened, read, model, progress=terminal_progress(), **selection)
    if isinstance(found, PerConcept):
        if page:
            raise ValueError("--page is for one list of positives; leave it out with concepts")
        save_concepts(found, out)
        of = {name: _result(ranking) for name, ranking in found.items()}
        rows = {name: {"retrieved": f"{one['retrieved']:,}", "by": one["by"]} for name, one in of.items()}
        count = counted(sum(one["retrieved"] for one in of.values()), "row")
        written = f"wrote {count} of {counted(len(of), 'concept')} to {out}"
        output.print_concepts({"out": out, "concepts": of}, found.failures, rows, written, out=out)
        return
    found.save(out)
    result = _result(found) | {
        "out": out,
        "unlabelled": len(opened) if read is None else int(read.only.unlabelled.sum()),
    }
    lines = _lines(found, result)
    if page:
        from pucache.pages.review_page import write_review_page

        shown = write_review_page(opened, found, page, images=images, progress=terminal_progress())
        result |= {"page": page, **asdict(shown)}
        missing = f"; without a picture: {counted(shown.without_picture, 'image')}" if shown.without_picture else ""
        lines.append(f"wrote {page}: open it in a browser{missing}")
    output.print_result(result, lines, out=out)


def _result(ranking: Ranking) -> dict[str, Any]:
    said = {"note": ranking.note or None, "search": ranking.search or None, "search_by": ranking.search_by or None}
    return {"by": ranking.scorer, "retrieved": len(ranking.keys), **said}


def _lines(ranking: Ranking, result: dict[str, Any]) -> list[str]:
    best = zip(ranking.keys[:5], ranking.scores, strict=False)
    search = f" ({ranking.search})" if ranking.search else ""
    search_by = f", with {ranking.search_by}" if ranking.search_by else ""
    nothing = ""
    if not ranking.keys and result["unlabelled"]:
        nothing = "nothing is left to rank: all unlabelled images are duplicates of known ones"
    return [
        *(f"{rank:4d}  {score:8.4f}  {key}" for rank, (key, score) in enumerate(best, 1)),
        *filter(None, [ranking.note, nothing]),
        f"wrote {result['retrieved']:,} of {result['unlabelled']:,} unlabelled to {result['out']}, "
        f"by {result['by']}{search}{search_by}",
    ]
