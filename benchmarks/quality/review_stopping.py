"""When to stop, for the page of reviews: looks and recall where a rule says that 95 % are found.

A review is that of `review.py`, on a quarter of the images, until its rules have said so or for `LOOKS` looks. The
rules are applied to its log: pucache's limits, the hypergeometric test of Callaghan and Müller-Hansen (2020) as
buscarpy has it, and a number of negatives in a row. The closing audit begins where the page offers it.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import hypergeom

from benchmarks.common.cells import table
from benchmarks.common.tasks import Location, Setting, opened
from benchmarks.quality.review_pile import AHEAD, Pile, decide, opened_pile, opened_review
from pucache.reviewing.audit import audit
from pucache.reviewing.log import Stream
from pucache.reviewing.queue import NextImages
from pucache.reviewing.ranker import Ranker
from pucache.reviewing.service import best_rate
from pucache.reviewing.session import Session

RECALL, EVERY, IN_A_ROW = 0.95, 50, (50, 100, 200)  # looks between two checks
LOOKS = 3000
NO_ASSUMPTION, ZONE, CHANCE, HYPERGEOMETRIC = "no assumption", "zone", "chance", "hypergeometric"
ROWS_OF_NEGATIVES = {f"{count} in a row": count for count in IN_A_ROW}
# closing audits, and the rules that are looked at with them
CLOSING = {"none": (HYPERGEOMETRIC, *ROWS_OF_NEGATIVES, CHANCE), "zone": (ZONE,), "pile": (NO_ASSUMPTION,)}


def hypergeometric_p(labels: np.ndarray, rows: int, recall: float = RECALL) -> float:
    """Least p-value of a recall below the target, over all last stretches of the looks; buscarpy's `calculate_h0`."""
    urns, sizes = labels[::-1].cumsum(), np.arange(1, len(labels) + 1)
    missing = np.floor(labels.sum() / recall + 1 - (labels.sum() - urns))
    return float(hypergeom.cdf(urns, rows - (len(labels) - sizes), missing, sizes).min())


def review(pile: Pile, *, seed: int, most: int, closing: str) -> dict[str, tuple[int, float, float]]:
    """Looks, recall, and recall of what was stated, where each rule of a closing audit says that 95 % are found."""
    ranker, stopped = Ranker(pile.cache, pile.graph), {}
    known = set(np.flatnonzero(pile.s).tolist())
    with opened_review(pile) as session:
        images, looks = NextImages(session, np.random.default_rng([seed, 21])), 0
        labels: list[bool] = []
        while looks < most and session.unknown.any() and set(CLOSING[closing]) - set(stopped):
            counts = session.counts()
            if not images.closing_audit:
                result = ranker.fit(*session.labels())
                images.set_ranking(result.scores, result.posterior, looks)
                fallen = counts.rate_of == 100 and counts.rate <= 0.5 * best_rate(session.entries())
                if closing != "none" and fallen and counts.rate <= 0.02:
                    session.fix_zone(images.likeliest())
                    images.closing_audit = True
                    images.closing_stream = Stream.ZONE if closing == "zone" else Stream.AUDIT
            for _ in range(EVERY // AHEAD):
                rows = images.next("simulated", AHEAD)
                decide(session, rows, pile.y, looks)
                labels += [bool(pile.y[row]) for row in rows if row not in known]
                looks += len(rows)
            found = session.counts().positives
            for rule in CLOSING[closing]:
                if rule not in stopped and _says_so(rule, session, labels, len(pile.s), found):
                    outside = int((pile.y & ~session.zone & session.unknown).sum()) if rule == ZONE else 0
                    stopped[rule] = looks, found / pile.hidden, found / (pile.hidden - outside)
    return stopped


def _says_so(rule: str, session: Session, labels: list[bool], rows: int, found: int) -> bool:
    """Whether a rule says that 95 % are found."""
    if rule in ROWS_OF_NEGATIVES:
        return len(labels) - 1 - max(np.flatnonzero(labels), default=-1) >= ROWS_OF_NEGATIVES[rule]
    if rule == HYPERGEOMETRIC:
        return hypergeometric_p(np.array(labels, int), rows) < 1 - RECALL
    audited = audit(session)
    if rule == CHANCE:
        return found >= RECALL * (found + audited.chance_high)
    if rule == NO_ASSUMPTION:
        return audited.draws > 0 and audited.recall_low >= RECALL
    zone = audited.zone
    return zone is not None and zone.draws > 0 and found >= RECALL * (found + zone.hidden_high)


def measure(at: Location, looks: int, **setting) -> dict:
    """Where each rule says that 95 % are found."""
    with opened_pile(opened(at), Setting(**setting)) as pile:
        ends = [review(pile, seed=setting["seed"], most=looks, closing=closing) for closing in CLOSING]
        return {"hidden": pile.hidden, "rows": len(pile.s), "stopped": {k: v for end in ends for k, v in end.items()}}


def section(reviews: list[dict]) -> str:
    """Rules by looks and recall, and how often what they said was wrong."""
    lines = []
    for rule in (rule for rules in CLOSING.values() for rule in rules):
        ends = [row["stopped"][rule] for row in reviews if rule in row["stopped"]]
        if not ends:
            lines.append([rule, f"0 of {len(reviews)}", "", "", ""])
            continue
        looks, recall, stated = np.array(ends).T
        figures = [
            f"{np.mean(looks):,.0f} ({min(looks):,.0f} to {max(looks):,.0f})",
            f"{np.mean(recall):.3f} ({min(recall):.3f} to {max(recall):.3f})",
            f"{(stated < RECALL).sum()} of {len(ends)}",
        ]
        lines.append([rule, f"{len(ends)} of {len(reviews)}", *figures])
    hidden, rows = (np.mean([row[name] for row in reviews]) for name in ("hidden", "rows"))
    return (
        f"The same tasks, two seeds, on a quarter of the images ({hidden:,.0f} hidden in {rows:,.0f} rows in the "
        f"mean), for at most {reviews[0]['looks']:,} looks: the first moment, checked every {EVERY} looks, at which a "
        f"rule says that {RECALL:.0%} are found; means, and the range. "
        f"*{NO_ASSUMPTION.capitalize()}* and *{ZONE}* are pucache's "
        f"limits with a closing audit in the pile and in the zone of the likeliest, *{CHANCE}* its limit if the "
        f"ranking is no worse than chance, *{HYPERGEOMETRIC}* the rule of Callaghan and Müller-Hansen, the others a "
        f"number of negatives in a row. *{ZONE.capitalize()}* speaks of all positives but those outside the zone; "
        "recall is that of all.\n\n"
        + table(["rule", "reviews that stated 95 %", "looks", "recall then", "missed what was stated"], lines)
    )
