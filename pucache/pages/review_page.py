"""The review sheet: the images of a ranking as one HTML page without script, to be looked at and sent to others."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ..cache.embedding_cache import EmbeddingCache, files_read, open_cache
from ..progress import Progress
from ..retrieval.ranking import Ranking
from ..storage.file_kinds import PAGE
from ..storage.outputs import check_output
from . import html as page
from .thumbnails import RowImage, thumbnails

MAX_CANDIDATES = 20_000  # per page; each takes about 5 kB


@dataclass(frozen=True)
class ReviewPage:
    """Counts of a review sheet that was written.

    Attributes
    ----------
    shown : int
        Candidates on the page.
    without_picture : int
        Candidates whose image cannot be shown.
    changed : int
        Candidates whose file has changed since it was embedded.
    """

    shown: int
    without_picture: int
    changed: int


def write_review_page(
    cache: EmbeddingCache | str | Path | Sequence[str | Path],
    ranking: Ranking,
    path: str | Path,
    *,
    images: str | Path | None = None,
    progress: Progress | None = None,
) -> ReviewPage:
    """Write the images of a ranking as a page: pictures with keys, scores and links to the originals.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
        The cache that was ranked.
    ranking : Ranking
        The candidates, best first; may be empty. Its scorer is named at the top of the page. Its probabilities are
        shown where it has them.
    path : str or path
        HTML file to write.
    images, progress
        As for `pucache.pages.thumbnails.thumbnails`.

    Returns
    -------
    ReviewPage

    Raises
    ------
    CacheError
        The cache cannot be opened.
    SourceError
        `images` cannot be opened.
    OutputError
        The page cannot be written.
    ValueError
        More than 20,000 candidates.
    """
    if len(ranking.rows) > MAX_CANDIDATES:
        raise ValueError(
            f"the page of a ranking holds at most {MAX_CANDIDATES:,} candidates, got {len(ranking.rows):,}; "
            "retrieve fewer with -k"
        )
    cache = open_cache(cache)
    named = [images] if isinstance(images, str | os.PathLike) else []
    check_output(path, PAGE, inputs=files_read(cache, *named))
    pictures = thumbnails(cache, ranking.rows, images=images, progress=progress)
    counts = ReviewPage(
        shown=len(pictures),
        without_picture=sum(not picture.uri for picture in pictures),
        changed=sum(bool(picture.uri and picture.problem) for picture in pictures),
    )
    html = page.render(
        "sheet",
        None,
        local_images=True,
        scorer=ranking.scorer,
        counts=counts,
        problems=Counter(picture.problem for picture in pictures if not picture.uri).most_common(),
        caches=[file.path.name for file in cache.files],
        candidates=_candidates(ranking, pictures),
    )
    page.write(path, html)
    return counts


def _candidates(ranking: Ranking, pictures: list[RowImage]) -> list[dict[str, str]]:
    """What the page says of each candidate."""
    posterior = None if ranking.posterior is None else ranking.posterior.tolist()
    return [
        {
            "key": page.visible(key),
            "score": f"{score:.3f}",
            "probability": "" if posterior is None else page.probability(posterior[at]),
            "uri": picture.uri,
            "problem": picture.problem,
            "address": "file://" + quote(os.fsencode(picture.path)) if picture.path else "",
        }
        for at, (key, score, picture) in enumerate(zip(ranking.keys, ranking.scores.tolist(), pictures, strict=True))
    ]
