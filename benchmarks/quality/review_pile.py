"""Piles of simulated reviews, and decisions by the truth."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.row_cache import write_row_cache
from benchmarks.common.tasks import TaskGroups
from pucache import EmbeddingCache
from pucache.encoders.spec import EncoderSpec
from pucache.labels.labels import PULabels
from pucache.neighbours.graph import NeighbourGraph, cached_graph
from pucache.reviewing.log import Choice
from pucache.reviewing.session import Session, open_session
from pucache.reviewing.state import Proposal

AHEAD = 10  # images that a page asks for at once


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


@contextmanager
def opened_pile(groups: TaskGroups, **cell) -> Iterator[Pile]:
    """A cache of a task, and the graph of its neighbours."""
    task = groups.task(**cell)
    with tempfile.TemporaryDirectory(dir=groups.at.work) as folder:
        encoder = EncoderSpec.imported("benchmark", task.X.shape[1])
        cache = write_row_cache(Path(folder) / "rows.h5", task.X, encoder)
        yield Pile(cache, cached_graph(cache), task.s, task.y)


@contextmanager
def opened_review(pile: Pile) -> Iterator[Session]:
    """A new session on the pile, in a folder that goes with it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_session(pile.cache, PULabels.of(pile.s), folder=Path(folder) / "session", twins=None) as session,
    ):
        yield session


def decide(session: Session, rows: list[int], y: np.ndarray, looks: int) -> None:
    for look, row in enumerate(rows, looks + 1):
        choice = Choice.POSITIVE if y[row] else Choice.NEGATIVE
        session.decide(Proposal(str(look), row, choice, replaces=0, reviewer="truth"))
