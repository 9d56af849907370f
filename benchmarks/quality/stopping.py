"""When to stop a review: looks and recall where a rule says that 95 % are found.

    python -m benchmarks.quality.stopping DIR [--fashion SOURCE] [--methods CLONE] [--out docs/results/stopping.md]

The reviews are those of `review.py`, on a quarter of the images, until all rules have said so or for `LOOKS` looks.
Three reviews of a task differ in their closing audit, which begins where the page offers it: none, in the pile, or in
the zone of the likeliest. The rules without one are pucache's limit by chance, a number of negatives in a row, and with
CLONE, a clone of github.com/destiny-evidence/stopping-methods, its fifteen methods (`stopping_methods.py`), which need
Python 3.12 or later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import images_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.tasks import CIFAR, FASHION, Location, Setting, opened, prepared, settings
from benchmarks.quality.review import LABELLED, SHARE, TASK_NAMES
from benchmarks.quality.review_pile import AHEAD, Pile, decide, opened_pile, opened_review
from benchmarks.quality.stopping_methods import Looked, method_rules
from pucache.reviewing.audit import audit
from pucache.reviewing.log import AGAIN, LABELS, Entry, Stream
from pucache.reviewing.queue import NextImages
from pucache.reviewing.session import Session
from pucache.training.ranker import Ranker

RECALL, EVERY = 0.95, 50  # looks between two checks
LOOKS, SEEDS = 3000, 2
NO_ASSUMPTION, ZONE, CHANCE = "no assumption", "zone", "chance"
Says = Callable[[Session, Looked], bool]


# --- rules --------------------------------------------------------------------------------------------


def in_a_row(count: int, session: Session, looked: Looked) -> bool:
    return len(looked.ranked) >= count and not looked.labels[: len(looked.ranked)][-count:].any()


IN_A_ROW: dict[str, Says] = {f"{count} in a row": partial(in_a_row, count) for count in (50, 100, 200)}


def apart(says: Callable[[Looked], bool], session: Session, looked: Looked) -> bool:
    """What a rule says that knows the looks alone."""
    return says(looked)


def by_chance(session: Session, looked: Looked) -> bool:
    found = session.state.progress().positives
    return found >= RECALL * (found + audit(session).chance_high)


def in_pile(session: Session, looked: Looked) -> bool:
    audited = audit(session)
    return audited.draws > 0 and audited.recall_low >= RECALL


def in_zone(session: Session, looked: Looked) -> bool:
    zone, found = audit(session).zone, session.state.progress().positives
    return zone is not None and zone.draws > 0 and found >= RECALL * (found + zone.hidden_high)


# --- reviews ------------------------------------------------------------------------------------------


def moments(pile: Pile, *, seed: int, most: int, closing: Stream | None) -> Iterator[tuple[Session, Looked]]:
    """A review, seen every `EVERY` looks, with a closing audit of a stream or none."""
    ranker, looks = Ranker(pile.cache, pile.graph), 0
    score = np.zeros(len(pile.s))  # posterior when an image was shown; of the others, as it is now
    starts: list[int] = []
    with opened_review(pile) as session:
        images = NextImages(session, np.random.default_rng([seed, 21]))
        while looks < most and session.state.untaken.any():
            counts, unknown = session.state.progress(), session.state.untaken
            starts.append(len(first_looks(session)))
            if not images.closing_audit:
                result = ranker.fit(*session.state.labels())
                images.set_ranking(result.scores, result.posterior, looks)
                score[unknown] = result.posterior[unknown]
                fallen = counts.rate_of == 100 and counts.rate <= 0.5 * session.state.history.best_rate()
                if closing is not None and fallen and counts.rate <= 0.02:
                    session.fix_zone(images.likeliest())
                    images.closing_audit, images.closing_stream = True, closing
            for _ in range(EVERY // AHEAD):
                rows = images.next("simulated", AHEAD)
                decide(session, rows, pile.y, looks)
                looks += len(rows)
            seen = first_looks(session)
            rest = np.flatnonzero(session.state.untaken)
            order = np.concatenate([[entry.row for entry in seen], rest[np.argsort(-score[rest], kind="stable")]])
            ranked = np.array([entry.stream is Stream.RANKED for entry in seen])
            yield session, Looked(pile.y[order].astype(int), score[order], ranked, np.array(starts)), looks


def first_looks(session: Session) -> list[Entry]:
    """Decisions of images that were shown for the first time, in order."""
    return [entry for entry in session.entries() if entry.choice in LABELS and entry.stream not in AGAIN]


def stops(pile: Pile, rules: dict[str, Says], **review) -> dict[str, tuple[int, float, float]]:
    """Looks, recall, and recall of what was stated, where each rule of a review says that 95 % are found."""
    stopped: dict[str, tuple[int, float, float]] = {}
    for session, looked, looks in moments(pile, **review):
        found = session.state.progress().positives
        for rule in [name for name, says in rules.items() if name not in stopped and says(session, looked)]:
            outside = int((pile.y & ~session.state.zone & session.state.untaken).sum()) if rule == ZONE else 0
            stopped[rule] = looks, found / pile.hidden, found / (pile.hidden - outside)
        if len(stopped) == len(rules):
            break
    return stopped


def measure(at: Location, methods: Path | None, looks: int, **setting) -> dict:
    """Where each rule says that 95 % are found."""
    np.random.seed(setting["seed"])  # S-CAL draws from it
    theirs = {name: partial(apart, says) for name, says in method_rules(methods, RECALL).items()} if methods else {}
    own: dict[Stream | None, dict[str, Says]] = {
        None: {CHANCE: by_chance, **IN_A_ROW},
        Stream.ZONE: {ZONE: in_zone},
        Stream.AUDIT: {NO_ASSUMPTION: in_pile},
    }
    with opened_pile(opened(at), Setting(**setting)) as pile:
        ends = [
            stops(pile, rules | (theirs if closing is None else {}), seed=setting["seed"], most=looks, closing=closing)
            for closing, rules in own.items()
        ]
        stopped = {rule: end for one in ends for rule, end in one.items()}
        return {"hidden": pile.hidden, "rows": len(pile.s), "theirs": list(theirs), "stopped": stopped}


# --- the page -----------------------------------------------------------------------------------------


def ends_of(reviews: list[dict], rule: str) -> np.ndarray:
    """Looks, recall, and recall of what was stated, (m, 3), of the reviews in which a rule said so."""
    return np.array([row["stopped"][rule] for row in reviews if rule in row["stopped"]]).reshape(-1, 3)


def figures(reviews: list[dict], rule: str) -> list[str]:
    looks, recall, stated = (ends := ends_of(reviews, rule)).T
    if not len(ends):
        return [f"0 of {len(reviews)}", "", "", ""]
    return [
        f"{len(ends)} of {len(reviews)}",
        f"{np.mean(looks):,.0f} ({min(looks):,.0f} to {max(looks):,.0f})",
        f"{np.mean(recall):.3f} ({min(recall):.3f} to {max(recall):.3f})",
        f"{(stated < RECALL).sum()} of {len(ends)}",
    ]


def best_setting(reviews: list[dict], rules: list[str]) -> str:
    """Of the settings of a method the one that missed in the fewest reviews, then spoke in the most, then soonest."""

    def badness(rule: str) -> tuple[int, int, float]:
        looks, _, stated = ends_of(reviews, rule).T
        return int((stated < RECALL).sum()), -len(looks), float(looks.sum())

    return min((rule for rule in rules if len(ends_of(reviews, rule))), key=badness, default=rules[0])


def report(reviews: list[dict]) -> str:
    """The page as markdown: rules by looks and recall, and how often what they said was wrong."""
    head = ["said so", "looks", "recall then", "missed what was stated"]
    own = [[rule, *figures(reviews, rule)] for rule in (CHANCE, *IN_A_ROW, ZONE, NO_ASSUMPTION)]
    hidden, rows = (np.mean([row[name] for row in reviews]) for name in ("hidden", "rows"))
    parts = [
        "# When to stop a review",
        f"`python -m benchmarks.quality.stopping DIR --fashion SOURCE --methods CLONE`: the tasks of "
        f"[simulated reviews](review.md), {len(reviews)} reviews, on a quarter of the images ({hidden:,.0f} hidden in "
        f"{rows:,.0f} rows in the mean), for at most {reviews[0]['looks']:,} looks: the first moment, checked every "
        f"{EVERY} looks, at which a rule says that {RECALL:.0%} are found; means, and the range. "
        f"*{NO_ASSUMPTION.capitalize()}* and *{ZONE}* are pucache's "
        f"limits with a closing audit in the pile and in the zone of the likeliest, *{CHANCE}* its limit if the "
        "ranking is no worse than chance, the others a number of images looked at in a row without a positive. "
        f"*{ZONE.capitalize()}* speaks of all positives but those outside the zone; recall is that of all.",
        table(["rule", *head], own),
    ]
    if reviews[0]["theirs"]:
        parts += [
            "## Fifteen methods",
            "Those of the open framework of Repke et al. (2026), github.com/destiny-evidence/stopping-methods, on the "
            "same reviews without a closing audit, in each setting of its comparison that asks for "
            f"{RECALL:.0%}, of recall and of confidence where a method has one. Beside all settings stands the one "
            "that missed least, which only the truth tells. Some methods have no such target. TM_QBCB is given the "
            "labels of a random sample besides, which are not counted as looks; BUSCAR is the hypergeometric test "
            "of Callaghan and Müller-Hansen (2020). A method that fails says nothing. Scores are the posteriors of "
            "pucache's ranking.",
            table(
                ["method", "settings", "of all: said so", "of all: missed", "setting that missed least", *head],
                methods_of(reviews),
            ),
        ]
    return "\n\n".join([*parts, environment()]) + "\n"


def methods_of(reviews: list[dict]) -> list[list]:
    """A row for each method of the framework."""
    methods: dict[str, list[str]] = {}
    for rule in reviews[0]["theirs"]:
        methods.setdefault(rule.partition(" ")[0], []).append(rule)
    lines = []
    for method, rules in methods.items():
        ends, best = np.concatenate([ends_of(reviews, rule) for rule in rules]), best_setting(reviews, rules)
        settings = ", ".join(f"{name} {value}" for name, value in json.loads(best.partition(" ")[2]).items())
        said = f"{len(ends)} of {len(rules) * len(reviews)}"
        missed = f"{(ends[:, 2] < RECALL).sum()} of {len(ends)}" if len(ends) else ""
        lines.append([method, len(rules), said, missed, settings, *figures(reviews, best)])
    return lines


def main() -> None:
    parser = images_parser(__doc__)
    parser.add_argument("--methods", type=Path, help="clone of destiny-evidence/stopping-methods")
    options = parser.parse_args()
    at = Location.of(options, quick=True)
    tasks = [name for name in (CIFAR, FASHION) if name in opened(at).names]
    prepared(at, tasks)
    names, seeds = (TASK_NAMES[:1], 1) if options.quick else (TASK_NAMES, SEEDS)
    wanted = [asdict(one) for one in settings(tasks, shares=(SHARE,), seeds={LABELLED: seeds}, names=names)]
    cells = [cell | {"looks": LOOKS // 5 if options.quick else LOOKS} for cell in wanted]
    limits = {"minutes": options.minutes, "jobs": options.jobs}
    reviews = measured(at.work, "quick-stopping", cells, partial(measure, at, options.methods), **limits)
    write_page(report(reviews), options.out)


if __name__ == "__main__":
    main()
