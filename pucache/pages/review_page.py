"""Writes the review sheet: one HTML page on which a person accepts or rejects what was retrieved.

What they decide they export as a CSV ``key,label,reviewed,digest``, which `pucache.pu.labels.Labels` reads as
positives and as known negatives: all that was labelled before, and this review.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..progress import Progress
from ..pu.label_files import short_digest
from ..pu.labels import Labels
from ..retrieval.ranking import Ranking
from . import html as page
from .thumbnails import Thumbnail, thumbnails

EXPORT = "reviewed.csv"
MOST = 20_000  # candidates on one page, which takes about 5 kB for each
_REASONS = 3


def review(
    path: str | Path,
    cache: EmbeddingCache,
    ranking: Ranking,
    labels: Labels,
    *,
    by: str,
    images: str | Path | None = None,
    side: int = 160,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write the candidates of a ranking as a page to review them on.

    Parameters
    ----------
    path : str or path
        Of the page.
    cache : EmbeddingCache
        That the ranking is of.
    ranking : Ranking
        The candidates, best first; may be empty.
    labels : Labels
        What was known before, which begins what the page exports.
    by : str
        What ranked, such as "similarity (centroid)"; said at the top.
    images, side, progress
        As for `pucache.pages.thumbnails.thumbnails`.

    Returns
    -------
    dict of str to int
        "shown" candidates, how many of them are "without_picture", and how many have "changed" since they
        were embedded.

    Raises
    ------
    SourceError
        `images` cannot be opened.
    OutputError
        The page cannot be written.
    ValueError
        There is not one label a row, or more than `MOST` candidates.
    """
    if len(ranking.rows) > MOST:
        raise ValueError(
            f"a review sheet holds at most {MOST:,} candidates, got {len(ranking.rows):,}; retrieve fewer with -k"
        )
    if len(labels.s) != len(cache):
        raise ValueError(f"there are {len(labels.s)} labels, but {cache.name} has {len(cache)} rows")
    pictures = thumbnails(cache, ranking.rows, images=images, side=side, progress=progress)
    count = {
        "shown": len(pictures),
        "without_picture": sum(not picture.uri for picture in pictures),
        "changed": sum(bool(picture.uri and picture.problem) for picture in pictures),
    }
    html = page.render(
        "review",
        _data(cache, ranking, pictures, labels),
        local_images=True,
        title=f"Review of {len(pictures):,} candidate{'' if len(pictures) == 1 else 's'}",
        by=by,
        warnings=_warnings(pictures, count),
        caches=[file.path.name for file in cache.files],
        positives=int(labels.positive.sum()),
        negatives=int(labels.negative.sum()),
        shown=len(pictures),
        has_posterior=ranking.posterior is not None,
    )
    page.write(path, html)
    return count


def _data(cache: EmbeddingCache, ranking: Ranking, pictures: list[Thumbnail], labels: Labels) -> dict[str, Any]:
    """What the page's script works on; see the top of review.js."""
    base, files = _addresses([picture.place for picture in pictures])
    scores = ranking.scores.tolist()
    posterior = [None] * len(scores) if ranking.posterior is None else ranking.posterior.tolist()
    columns = zip(ranking.keys, _digests(cache, ranking.rows), scores, posterior, pictures, files, strict=True)
    candidates = [
        {"key": key, "digest": digest, "score": score, "p": p, "file": file, **_picture(picture)}
        for key, digest, score, p, picture, file in columns
    ]
    before = np.flatnonzero(~labels.unlabelled)
    known = [
        {"key": key, "label": int(label), "reviewed": int(reviewed != 0), "digest": digest}
        for key, label, reviewed, digest in zip(
            cache.keys[before],
            labels.positive[before],
            labels.reviewed[before],
            _digests(cache, before),
            strict=True,
        )
    ]
    return {
        "id": _identity(cache, ranking),
        "base": base,
        "candidates": candidates,
        "known": known,
        "command": _command(cache),
    }


def _picture(picture: Thumbnail) -> dict[str, Any]:
    return {
        "uri": picture.uri,
        "width": picture.width,
        "height": picture.height,
        "problem": picture.problem,
    }


def _addresses(places: list[str]) -> tuple[str, list[str]]:
    """URL of the folder that all files lie below, and each file's address there; "" where there is no file."""
    folder = os.path.join(os.path.commonpath([os.path.dirname(place) for place in places if place] or ["/"]), "")
    return "file://" + _quoted(folder), [_quoted(place[len(folder) :]) for place in places]


def _quoted(path: str) -> str:
    return quote(os.fsencode(path))


def _digests(cache: EmbeddingCache, rows: np.ndarray) -> list[str]:
    return [short_digest(digest) for digest in cache.digests[rows]]


def _identity(cache: EmbeddingCache, ranking: Ranking) -> str:
    """What the decisions are kept under in the browser: the same candidates of the same cache find them again."""
    parts = [*(file.checksum for file in cache.files), *ranking.keys]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _command(cache: EmbeddingCache) -> str:
    """The next round."""
    paths = " ".join(shlex.quote(str(file.path)) for file in cache.files)
    labels = f"--positives {EXPORT} --negatives {EXPORT}"
    retrieve = f"pucache retrieve-positives {paths} {labels} --model model.safetensors --review review.html"
    return f"pucache train-pu {paths} {labels}\n{retrieve}"


def _warnings(pictures: list[Thumbnail], count: dict[str, int]) -> list[str]:
    """What the person should know before beginning, one line each."""
    lines = []
    if count["without_picture"]:
        reasons = Counter(picture.problem for picture in pictures if not picture.uri).most_common()
        named = "; ".join(f"{reason} ({times:,})" for reason, times in reasons[:_REASONS])
        more = f"; and {len(reasons) - _REASONS} more reasons" if len(reasons) > _REASONS else ""
        lines.append(
            f"{count['without_picture']:,} of {len(pictures):,} have no picture: {named}{more}. If the images lie "
            "elsewhere by now, write this page again with --images SOURCE."
        )
    if count["changed"]:
        lines.append(
            f"{count['changed']:,} of {len(pictures):,} files have changed since they were embedded: you see what they "
            "hold now, the ranking is of what they held then. Run pucache embed again."
        )
    return lines
