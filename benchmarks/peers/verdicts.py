"""Verdict on pucache against each peer: first, or the reason from the figures.

A tool's figures on a task are a dict of `FIGURES`; a `Side` is what it did on several. Every sentence follows from
the figures and from what a learner declares of itself (`learners.Learner`); none is written by hand.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks.peers.learners import DEFAULT, ONE_FIT, SIGHT, WITH_SHARE, Learner

QUALITY = {"ap": "AP", "f1": "F1", "auc": "AUC"}
COST = {"seconds": "seconds", "mb": "MB"}
FIGURES = QUALITY | COST
ROUNDED = 1e-3  # what the page shows of quality: closer than half of this is alike


@dataclass(frozen=True)
class Side:
    """What a learner did on tasks: `FIGURES` by task."""

    cells: dict[str, dict[str, float]]

    def on(self, tasks: Iterable[str]) -> "Side":
        return Side({task: self.cells[task] for task in tasks})

    def __getitem__(self, name: str) -> float:
        """Mean quality, median seconds, greatest memory."""
        values = [cell[name] for cell in self.cells.values()]
        return float({"seconds": np.median, "mb": np.max}.get(name, np.mean)(values))


def shown(name: str, value: float) -> str:
    if name == "mb":
        return f"{value:,.0f}"
    return f"{value:.3f}" if name in QUALITY else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def verdict(name: str, learner: Learner, sides: dict[str, Side]) -> str:
    """Say "first", or give the reason of every figure in which pucache's default is not.

    Parameters
    ----------
    name : str
    learner : Learner
    sides : dict
        Of the learner and of pucache's own, by name.
    """
    peer = sides[name]
    own = {of: sides[of].on(peer.cells) for of in (DEFAULT, WITH_SHARE, ONE_FIT)}
    reasons = [better(figure, name, learner, peer, own) for figure in QUALITY if behind(figure, peer, own[DEFAULT])]
    reasons += [cheaper(figure, learner, peer, own) for figure in COST if peer[figure] < own[DEFAULT][figure]]
    return "; ".join(reasons) or "first"


def behind(figure: str, peer: Side, own: Side) -> bool:
    return peer[figure] - own[figure] >= ROUNDED / 2


def better(figure: str, name: str, learner: Learner, peer: Side, own: dict[str, Side]) -> str:
    """How far the peer is ahead in quality, on how many tasks, and with what help."""
    gap, n = peer[figure] - own[DEFAULT][figure], len(peer.cells)
    ahead = sum(cell[figure] > own[DEFAULT].cells[task][figure] for task, cell in peer.cells.items())
    text = f"{QUALITY[figure]}: ahead by {shown(figure, gap)}, on {ahead} of {n}"
    text += f", given {learner.oracle}" if learner.oracle else ""
    text += ", at a C chosen with true labels" if name.endswith(SIGHT) else ""
    if figure == "f1" and own[WITH_SHARE]["f1"] > own[DEFAULT]["f1"]:
        verdict_on_share = "behind" if behind("f1", peer, own[WITH_SHARE]) else "not behind"
        text += f" (pucache with the test set's share: {shown('f1', own[WITH_SHARE]['f1'])}, {verdict_on_share})"
    return text


def cheaper(figure: str, learner: Learner, peer: Side, own: dict[str, Side]) -> str:
    """What the peer does for its seconds, or how much less memory it takes; and what pucache's least fit takes."""
    one, less = own[ONE_FIT][figure], own[DEFAULT][figure] - peer[figure]
    why = learner.work if figure == "seconds" else f"{shown(figure, less)} less"
    comparison = "less" if one < peer[figure] else "not less"
    return f"{COST[figure]}: {why} ({ONE_FIT}: {shown(figure, one)}, {comparison})"
