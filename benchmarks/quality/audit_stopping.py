"""When to stop, for the page of the audit: looks and recall where a rule says that 95 % are found, on image sets.

A review is that of `review.py`, with the truth answering, until all hidden positives are found or for `LOOKS` looks.
The rules are applied to its log: pucache's limits, the hypergeometric test of Callaghan and Müller-Hansen (2020) as
buscarpy has it, and a number of negatives in a row. The closing audit begins where the page offers it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from scipy.stats import hypergeom

from benchmarks.common.cells import table
from benchmarks.common.tasks import CIFAR, FASHION, Location, Setting, opened
from benchmarks.quality.review import AHEAD, LABELLED, Pile, decide, opened_pile
from pucache.labels.labels import Labels
from pucache.reviewing.audit import audit
from pucache.reviewing.log import Stream
from pucache.reviewing.queue import NextImages
from pucache.reviewing.ranker import Ranker
from pucache.reviewing.service import best_rate
from pucache.reviewing.session import open_session

RECALL, EVERY, IN_A_ROW = 0.95, 50, (50, 100, 200)  # looks between two checks
LOOKS, SHARE = 1000, 0.01
TASK_NAMES = {CIFAR: ("cat", "truck"), FASHION: ("coat", "bag")}
CLOSING = {"none": None, "zone": True, "pile": False}  # closing audits, and whether they are in the zone
OWN_RULES = {"zone": ("zone",), "pile": ("no assumption",)}  # rules that need a closing audit


def hypergeometric_p(labels: np.ndarray, rows: int, recall: float = RECALL) -> float:
    """Least p-value of a recall below the target, over all last stretches of the looks; buscarpy's `calculate_h0`."""
    urns, sizes = labels[::-1].cumsum(), np.arange(1, len(labels) + 1)
    missing = np.floor(labels.sum() / recall + 1 - (labels.sum() - urns))
    return float(hypergeom.cdf(urns, rows - (len(labels) - sizes), missing, sizes).min())


def review(pile: Pile, *, seed: int, most: int, zone: bool | None) -> dict[str, tuple[int, float]]:
    """Looks and recall at which each rule says that 95 % are found; a closing audit in the zone, in all, or none."""
    ranker, hidden, stopped = Ranker(pile.cache, pile.graph), pile.hidden, {}
    with (
        tempfile.TemporaryDirectory() as folder,
        open_session(pile.cache, Labels.of(pile.s), folder=Path(folder) / "session", twins=None) as session,
    ):
        images, looks = NextImages(session, np.random.default_rng([seed, 21])), 0
        labels: list[bool] = []
        while looks < most and session.unknown.any():
            counts = session.counts()
            if not images.closing_audit:
                result = ranker.fit(*session.labels())
                images.set_ranking(result.scores, result.posterior, looks)
                fallen = counts.rate_of == 100 and counts.rate <= 0.5 * best_rate(session.entries())
                if zone is not None and fallen and counts.rate <= 0.02:
                    session.fix_zone(images.likeliest())
                    images.closing_audit, images.closing_stream = True, Stream.ZONE if zone else Stream.AUDIT
            for _ in range(EVERY // AHEAD):
                rows = images.next("simulated", AHEAD)
                decide(session, rows, pile.y, looks)
                known = set(np.flatnonzero(pile.s).tolist())
                labels += [bool(pile.y[row]) for row in rows if row not in known]
                looks += len(rows)
            found = session.counts().positives
            recall, audited = found / hidden, audit(session)
            negatives = len(labels) - 1 - max(np.flatnonzero(labels), default=-1)
            said = {
                "hypergeometric": hypergeometric_p(np.array(labels, int), len(pile.s)) < 1 - RECALL,
                **{f"{count} in a row": negatives >= count for count in IN_A_ROW},
                "chance": found >= RECALL * (found + audited.chance_high),
                "no assumption": audited.draws > 0 and audited.recall_low >= RECALL,
            }
            if audited.zone is not None and audited.zone.draws:
                inside = found + int((pile.y & session.zone & session.unknown).sum())
                if found >= RECALL * (found + audited.zone.hidden_high):
                    stopped.setdefault("zone", (looks, recall, found / inside))
            for rule, stops in said.items():
                if stops:
                    stopped.setdefault(rule, (looks, recall, recall))
    return stopped


def cells(groups: tuple[str, ...], quick: bool) -> list[dict]:
    wanted = [
        {"group": group, "task": task, "closing": closing, "looks": LOOKS // 5 if quick else LOOKS}
        for group, names in TASK_NAMES.items()
        if group in groups
        for task in names
        for closing in CLOSING
    ]
    return wanted[: len(CLOSING)] if quick else wanted


def measure(at: Location, group: str, task: str, closing: str, looks: int) -> dict:
    """Where each rule says that 95 % are found."""
    with opened_pile(opened(at), Setting(group, task, SHARE, LABELLED, 0)) as pile:
        stopped = review(pile, seed=0, most=looks, zone=CLOSING[closing])
    needing = {rule for rules in OWN_RULES.values() for rule in rules}
    rules = OWN_RULES.get(closing, set(stopped) - needing)
    return {"stopped": {rule: end for rule, end in stopped.items() if rule in rules}}


def section(rows: list[dict]) -> str:
    """Rules by looks and recall, and how often what they said was wrong."""
    reviews = len({(row["group"], row["task"]) for row in rows})
    reached: dict[str, list[tuple[int, float, float]]] = {}
    for row in rows:
        for rule, end in row["stopped"].items():
            reached.setdefault(rule, []).append(end)
    lines = []
    for rule, ends in reached.items():
        looks, recall, stated = np.array(ends).T
        missed = f"{100 * np.mean(stated < RECALL):.0f} %"
        lines.append([rule, f"{len(ends)} of {reviews}", f"{looks.mean():,.0f}", f"{recall.mean():.3f}", missed])
    names = ", ".join(dict.fromkeys(row["task"] for row in rows))
    return (
        f"Reviews of {names}, a quarter of the images, {SHARE:.0%} positive, {LABELLED} labelled, until all are found "
        f"or {rows[0]['looks']:,} looks: the first moment, checked every {EVERY} looks, at which a rule says that "
        f"{RECALL:.0%} are found. *Zone* says so of all positives but those outside the zone of the likeliest; recall "
        "is that of all positives. Rules that are not named never said so.\n\n"
        + table(["rule", "reviews that stated 95 %", "looks", "recall then", "missed what was stated"], lines)
    )
