"""The ranking that a review begins with, by words or pictures, until a classifier ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import PUCacheError, one_line
from ..labels.labels import PULabels
from ..retrieval.query import Query, QueryScorer
from ..training.ranking_result import RankingResult
from .trainer import kept_ranking

if TYPE_CHECKING:
    from .session import Session

ENOUGH = 10  # positives, from which on a classifier ranks, and no query


class FirstRanking(NamedTuple):
    """A ranking by a query."""

    query: Query
    scores: np.ndarray  # float32, (n,)
    note: str = ""  # what the words stand for

    @property
    def result(self) -> RankingResult:
        """As the rankings of a trainer are."""
        return RankingResult(self.scores, None, 0.0)

    def sentence(self, known: int) -> str:
        """What the page says while it ranks."""
        stands = f" {self.note}." if self.note else ""
        return (
            f"Ranked by {self.query} until {ENOUGH} positives are found ({known} by now), then by a classifier.{stands}"
        )


def rank_by_query(cache: EmbeddingCache, query: Query, device: str = "auto") -> FirstRanking | None:
    """Rank a cache by a query; None for an empty one. Raises as `QueryScorer`."""
    if not query:
        return None
    scores = QueryScorer(query, device)(cache, PULabels.of(np.zeros(len(cache), np.int8)))
    return FirstRanking(query, scores.values, scores.note)


def positives_known(session: Session) -> int:
    """Pictures that are accepted, or were labelled positive before the review."""
    state = session.state
    return state.progress().positives + len(np.unique(state.groups[state.before.positive]))


def begin_with(session: Session, ranking: FirstRanking | None, identifier: str) -> tuple[FirstRanking | None, str]:
    """The ranking to begin with, or to go on with, and why there is none although one was asked for.

    A new query is written to the log first; `ValueError` where there are enough positives for a classifier. Without a
    query, that of the log goes on, by its kept scores or new ones.
    """
    known = positives_known(session)
    if ranking is not None:
        if known >= ENOUGH:
            raise ValueError(
                f"{known:,} positives are known, by which a classifier ranks; words and pictures are to begin with: "
                "leave them out, or name another folder with --session"
            )
        session.ask(ranking.query.to_json())
        return ranking, ""
    if not session.asked or known >= ENOUGH:
        return None, ""
    query = Query.from_json(session.asked)
    kept = kept_ranking(session.folder, identifier, len(session.cache))
    if kept is not None and not kept[1]:
        return FirstRanking(query, kept[0].scores), ""
    try:
        return rank_by_query(session.cache, query), ""
    except PUCacheError as error:
        return None, f"this review began with {query}, by which nothing can be ranked now: {one_line(error)}"
