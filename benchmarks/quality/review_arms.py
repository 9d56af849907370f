"""Arms of `review.py`: what a review may do differently, and a review by the truth through the session's own code."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans

from pucache import EmbeddingCache, PULinearClassifier
from pucache.labels.labels import Labels
from pucache.neighbours.graph import NeighbourGraph
from pucache.retrieval.model_scorers import Fused
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.reviewing.log import Choice, Stream
from pucache.reviewing.queue import AUDIT_SHARE, RECHECK_SHARE, SHARE_AT_FULL_YIELD, NextImages, best_rows
from pucache.reviewing.ranker import Ranker
from pucache.reviewing.session import Session, open_session
from pucache.reviewing.session_state import Proposal
from pucache.reviewing.trainer import RankingResult

AHEAD = 10  # images that a page asks for at once
ROUND = 100
UNCERTAIN_UNTIL, CLUSTERS, IN_TURN = 30, 8, 500  # positives; clusters of positives; best rows that they share out
Order = Callable[[RankingResult, Session, EmbeddingCache, NeighbourGraph], np.ndarray]


# --- orders of the ranking ----------------------------------------------------------------------------


def most_likely(result: RankingResult, session: Session, cache: EmbeddingCache, graph: NeighbourGraph) -> np.ndarray:
    return result.scores


def uncertain_first(
    result: RankingResult, session: Session, cache: EmbeddingCache, graph: NeighbourGraph
) -> np.ndarray:
    """Nearest to a posterior of one half until so many positives are found."""
    if result.posterior is None or session.counts().positives >= UNCERTAIN_UNTIL:
        return result.scores
    return -np.abs(result.posterior - np.float32(0.5))


def clusters_in_turn(
    result: RankingResult, session: Session, cache: EmbeddingCache, graph: NeighbourGraph
) -> np.ndarray:
    """The best rows in turn over the nearest clusters of the known positives."""
    s, reviewed = session.labels()
    positive = np.flatnonzero((s == 1) | (reviewed == 1))
    best = best_rows(result.scores, session.unknown, IN_TURN)
    assert graph.whitening is not None
    rows = np.sort(best)
    Z, candidates = (graph.whitening.whiten(graph.whitening.centred_units(cache.take(of))) for of in (positive, rows))
    groups = KMeans(min(CLUSTERS, len(positive)), n_init=1, random_state=0).fit(Z)
    cluster = groups.predict(candidates)[np.searchsorted(rows, best)]
    turn = np.empty(len(best), int)
    for one in np.unique(cluster):
        turn[cluster == one] = np.arange(np.count_nonzero(cluster == one))
    scores = result.scores.copy()
    scores[best[np.lexsort((np.arange(len(best)), turn))]] = scores.max() + np.arange(len(best), 0, -1)
    return scores


# --- numbers of images between two fits ---------------------------------------------------------------


def every(count: int) -> Callable[[int], int]:
    return lambda batch: count


def growing(batch: int) -> int:
    """As AutoTAR: 1, 2, 3, ... 10, 11, 13, 15, ..."""
    return batch + -(-batch // 10) if batch else 1


@dataclass(frozen=True)
class Arm:
    """A way to hold a review.

    Attributes
    ----------
    batch : callable
        Number of images until the next fit, of the number before; 0 before the first.
    order : callable
    audit_share, recheck_share, share_at_full_yield : float
        As for `NextImages`.
    """

    batch: Callable[[int], int]
    order: Order = most_likely
    audit_share: float = AUDIT_SHARE
    recheck_share: float = RECHECK_SHARE
    share_at_full_yield: float = SHARE_AT_FULL_YIELD


ARMS = {
    "every 10": Arm(every(10)),
    "every 1": Arm(every(1)),
    "every 25": Arm(every(25)),
    "every 100": Arm(every(100)),
    "growing": Arm(growing),
    "audits 5 % always": Arm(every(10), share_at_full_yield=1.0),
    "no audits": Arm(every(10), audit_share=0.0, recheck_share=0.0),
    "uncertain first": Arm(every(10), uncertain_first),
    "clusters in turn": Arm(every(10), clusters_in_turn),
}
ROUNDS = "rounds of 100"


# --- reviews -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pile:
    """Rows of a task and what is true of them.

    Attributes
    ----------
    cache : EmbeddingCache
    graph : NeighbourGraph
    s : ndarray of int8, (n,)
    y : ndarray of bool, (n,)
    """

    cache: EmbeddingCache
    graph: NeighbourGraph
    s: np.ndarray
    y: np.ndarray

    @property
    def hidden(self) -> int:
        """Positives to be found."""
        return int(self.y[self.s == 0].sum())


@dataclass(frozen=True)
class Until:
    """When a review ends: after so many looks, and after a share of the positives, but no later than at `most`."""

    looks: int
    recall: float
    most: int

    def reached(self, looks: int, positives: int, hidden: int) -> bool:
        enough = looks >= self.looks and positives >= self.recall * hidden
        return enough or looks >= self.most or positives == hidden


def simulated_review(pile: Pile, arm: Arm, until: Until, *, seed: int, work: Path) -> dict:
    """Looks at which hidden positives are found, and what it took.

    The truth answers. All goes through a session on disk, its queue and its ranker.
    """
    ranker, began = Ranker(pile.cache, pile.graph), time.process_time()
    found_at: list[int] = []
    looks = fits = batch = 0
    with (
        tempfile.TemporaryDirectory(dir=work) as folder,
        open_session(pile.cache, Labels.of(pile.s), folder=Path(folder) / "session", twins=None) as session,
    ):
        images = NextImages(
            session,
            np.random.default_rng([seed, 20]),
            audit_share=arm.audit_share,
            recheck_share=arm.recheck_share,
            share_at_full_yield=arm.share_at_full_yield,
        )
        shown = np.zeros(len(pile.y), bool)
        while not until.reached(looks, len(found_at), pile.hidden):
            result = ranker.fit(*session.labels())
            images.set_ranking(arm.order(result, session, pile.cache, pile.graph), result.posterior, looks)
            batch, fits = arm.batch(batch), fits + 1
            for begin in range(0, batch, AHEAD):
                rows = images.next("simulated", min(AHEAD, batch - begin))
                _decide(session, rows, pile.y, looks)
                new = [look for look, row in enumerate(rows, looks + 1) if pile.y[row] and not shown[row]]
                found_at += [look for look in new if not pile.s[rows[look - looks - 1]]]
                shown[rows], looks = True, looks + len(rows)
        streams = [entry.stream for entry in session.entries()]
    return {
        "found_at": found_at,
        "looks": looks,
        "fits": fits,
        "cpu_seconds": time.process_time() - began,
        "audits": streams.count(Stream.AUDIT) // 2,  # the draw and its decision
    }


def _decide(session: Session, rows: list[int], y: np.ndarray, looks: int) -> None:
    session.decide(
        [
            Proposal(
                request=str(look),
                row=row,
                choice=Choice.POSITIVE if y[row] else Choice.NEGATIVE,
                replaces=0,
                reviewer="truth",
                model_version=0,
            )
            for look, row in enumerate(rows, looks + 1)
        ]
    )


def rounds(pile: Pile, until: Until) -> dict:
    """Rounds of 100 images by training a classifier and ranking by it and by the neighbours."""
    reviewed, began = np.zeros(len(pile.s), np.int8), time.process_time()
    found_at: list[int] = []
    looks = 0
    while not until.reached(looks, len(found_at), pile.hidden):
        labels = Labels(pile.s, reviewed.copy())
        model = PULinearClassifier(method="linear").fit(pile.cache.X, labels.s, reviewed=labels.reviewed)
        model.encoder_ = pile.cache.encoder
        rows = rank_unlabelled(pile.cache, labels, k=ROUND, scorer=Fused(model), twins=None).rows
        reviewed[rows] = np.where(pile.y[rows], 1, -1)
        found_at += (looks + 1 + np.flatnonzero(pile.y[rows])).tolist()
        looks += len(rows)
    return {
        "found_at": found_at,
        "looks": looks,
        "fits": looks // ROUND,
        "cpu_seconds": time.process_time() - began,
        "audits": 0,
    }
