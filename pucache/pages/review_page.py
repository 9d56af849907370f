"""The review page: an HTML page on which a person accepts or rejects retrieved images.

The page exports the earlier labels and its decisions as a CSV ``key,label,reviewed,digest``, which
`pucache.labels.labels.Labels` reads as positives and as known negatives.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ..cache.embedding_cache import EmbeddingCache, files_read, open_cache
from ..labels.label_files import EXPORT, short_digest
from ..labels.labels import Labels, open_labels
from ..labels.row_values import RowValues
from ..progress import Progress
from ..retrieval.ranking import Ranking
from ..storage.file_kinds import PAGE
from ..storage.outputs import check_output
from . import html as page
from .thumbnails import RowImage, thumbnails

MAX_CANDIDATES = 20_000  # per page; each takes about 5 kB


@dataclass(frozen=True)
class ReviewPage:
    """Counts of a review page that was written.

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
    positives: str | Path | RowValues | Labels,
    path: str | Path,
    *,
    negatives: str | Path | RowValues | None = None,
    images: str | Path | None = None,
    side: int = 160,
    force: bool = False,
    progress: Progress | None = None,
) -> ReviewPage:
    """Write the images of a ranking as a page on which to review them.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
        The cache that was ranked.
    ranking : Ranking
        The candidates, best first; may be empty. Its scorer is named at the top of the page. Its probabilities are
        shown where it has them.
    positives : path, str, RowValues or Labels
        As for `pucache.retrieve_positives`; the page exports these labels together with its decisions.
    path : str or path
        HTML file to write.
    negatives : path, str or RowValues, optional
        Known negatives, in the same forms.
    images, side, progress
        As for `pucache.pages.thumbnails.thumbnails`.
    force : bool
        Replace a file at `path` that is no HTML page; never a file that is read.

    Returns
    -------
    ReviewPage

    Raises
    ------
    LabelError, CacheError
        As for `pucache.retrieve_positives`.
    SourceError
        `images` cannot be opened.
    OutputError
        The page cannot be written.
    ValueError
        Labels of another length, or more than 20,000 candidates.
    """
    if len(ranking.rows) > MAX_CANDIDATES:
        raise ValueError(
            f"a review sheet holds at most {MAX_CANDIDATES:,} candidates, got {len(ranking.rows):,}; "
            "retrieve fewer with -k"
        )
    cache = open_cache(cache)
    if isinstance(positives, Labels) and negatives is not None:
        raise ValueError("negatives go with a file or a glob of positives; give Labels that hold both instead")
    labels = positives if isinstance(positives, Labels) else open_labels(cache, positives, negatives)
    named = [name for name in (positives, negatives, images) if isinstance(name, str | os.PathLike)]
    check_output(path, PAGE, inputs=files_read(cache, *named), force=force)
    if len(labels.s) != len(cache):
        raise ValueError(f"there are {len(labels.s)} labels, but {cache.name} has {len(cache)} rows")
    pictures = thumbnails(cache, ranking.rows, images=images, side=side, progress=progress)
    counts = ReviewPage(
        shown=len(pictures),
        without_picture=sum(not picture.uri for picture in pictures),
        changed=sum(bool(picture.uri and picture.problem) for picture in pictures),
    )
    html = page.render(
        "review",
        _data(cache, ranking, pictures, labels),
        local_images=True,
        scorer=ranking.scorer,
        counts=counts,
        problems=Counter(picture.problem for picture in pictures if not picture.uri).most_common(),
        caches=[file.path.name for file in cache.files],
        positives=int(labels.positive.sum()),
        negatives=int(labels.negative.sum()),
    )
    page.write(path, html)
    return counts


def _data(cache: EmbeddingCache, ranking: Ranking, pictures: list[RowImage], labels: Labels) -> dict[str, Any]:
    """Data of the page's script, review.js."""
    base, files = _file_urls([picture.path for picture in pictures])
    digests, scores = _digests(cache, ranking.rows), ranking.scores.tolist()
    shown = [None] * len(scores) if ranking.posterior is None else ranking.posterior.tolist()
    names = ("key", "digest", "score", "p", "file")
    columns = zip(ranking.keys, digests, scores, shown, files, strict=True)
    candidates = [dict(zip(names, values, strict=True)) for values in columns]
    for candidate, picture in zip(candidates, pictures, strict=True):
        candidate |= {name: getattr(picture, name) for name in ("uri", "width", "height", "problem")}
    labelled_rows = np.flatnonzero(~labels.unlabelled)
    labelled = [
        {"key": key, "label": int(label), "reviewed": int(reviewed != 0), "digest": digest}
        for key, label, reviewed, digest in zip(
            cache.keys[labelled_rows],
            labels.positive[labelled_rows],
            labels.reviewed[labelled_rows],
            _digests(cache, labelled_rows),
            strict=True,
        )
    ]
    return {
        "id": _page_id(cache, ranking),
        "base": base,
        "candidates": candidates,
        "labelled": labelled,
        "command": _next_commands(cache),
    }


def _file_urls(paths: list[str]) -> tuple[str, list[str]]:
    """URL of the deepest folder that holds all files, and each file's URL relative to it; "" without a file."""
    folder = os.path.join(os.path.commonpath([os.path.dirname(path) for path in paths if path] or ["/"]), "")
    return "file://" + _quoted(folder), [_quoted(path[len(folder) :]) for path in paths]


def _quoted(path: str) -> str:
    return quote(os.fsencode(path))


def _digests(cache: EmbeddingCache, rows: np.ndarray) -> list[str]:
    return [short_digest(digest) for digest in cache.digest_matrix[rows]]


def _page_id(cache: EmbeddingCache, ranking: Ranking) -> str:
    """Key of the decisions in the browser's storage, equal for equal candidates of equal caches."""
    parts = [*cache.checksums, *ranking.keys]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _next_commands(cache: EmbeddingCache) -> str:
    """Commands of the next round."""
    paths = " ".join(shlex.quote(str(file.path)) for file in cache.files)
    labels = f"--positives {EXPORT} --negatives {EXPORT}"
    retrieve = f"pucache retrieve-positives {paths} {labels} --model model.safetensors --review review.html"
    return f"pucache train-pu {paths} {labels}\n{retrieve}"
