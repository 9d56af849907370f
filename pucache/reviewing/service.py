"""What the pages of a review ask for, and what follows a decision.

A decision waits for the log alone. Audit, advice and training follow in a thread of their own, always from the
newest state: what has been overtaken meanwhile is left out.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import one_line
from ..estimates.limit_sentences import sentences
from ..labels.labels import LOOK_AGAIN
from ..training.ranking_result import RankingResult
from .advice import advice
from .log import Choice, Entry, Stream
from .pictures import Picture, Pictures
from .query_start import ENOUGH, FirstRanking, positives_known
from .queue import NextImages
from .session import StaleDecisionError
from .state import Proposal
from .trainer import keep_ranking, kept_ranking

if TYPE_CHECKING:
    from .session import Session
    from .trainer import Trainer

AUDIT_SECONDS = 0.3  # between two audits
RANKING_SECONDS = 6.0  # for which the first images wait for the first ranking, once there is a positive
KEPT_SECONDS = 10.0  # between two rankings that are kept
PICTURE_SECONDS = 0.1  # for which new cards wait for their pictures, to say which cannot be shown
_MIN_DECISIONS = 50  # before a decision is doubted
_log = logging.getLogger(__name__)


class ReviewService:
    """A review session that pages work on.

    `identifier` is of the session and of its cache: rows mean other images in another one. `reviewer` is logged with
    each decision. `conflicts` are rows that another reader has decided otherwise.
    """

    def __init__(
        self,
        session: Session,
        queue: NextImages,
        pictures: Pictures,
        *,
        identifier: str,
        reviewer: str,
        conflicts: Sequence[int] = (),
    ):
        self.session, self.queue, self.pictures = session, queue, pictures
        self.identifier, self.reviewer = identifier, reviewer
        self.ranking_version = 0
        self._trainer: Trainer | None = None
        self._number = 0
        self._first: FirstRanking | None = None  # while it ranks
        # limits and advice, with the counts of the moment that they are of
        self._audited: dict[str, Any] = {"hidden": None, "likeliest": None, "statements": [], "advice": ""}
        self._conflicts = np.array(conflicts, np.int64)
        self._examples = [{"row": row, "key": session.cache.keys[row]} for row in session.state.examples.tolist()]
        self._submitted = -1
        self._kept_at = -math.inf
        self._ranked = threading.Event()  # or it is not worth waiting for
        self._changed, self._ending = threading.Event(), False
        self._follower = threading.Thread(target=self._follow, name="review-follower", daemon=True)

    def begin(self, trainer: Trainer | None, number: int = 0, first: FirstRanking | None = None) -> None:
        """Audit what the log holds, train on it as session `number`, and follow what is decided from now on.

        The ranking `first` stays until there are enough positives to train on.
        """
        self._trainer, self._number, self._first = trainer, number, first
        self._train()
        if first is not None:
            self.take_ranking(first.result, 0)
            keep_ranking(self.session.folder, self.identifier, first.result, 0)
        elif (kept := kept_ranking(self.session.folder, self.identifier, len(self.session.cache))) is not None:
            self.take_ranking(*kept)
        self._changed.set()
        self._follower.start()

    def prefer(self) -> None:
        """Train this session before the others, as its page is open."""
        if self._trainer is not None:
            self._trainer.prefer(self._number)

    def end_waiting(self) -> None:
        """Let images be shown without a first ranking, as the server ends."""
        self._ranked.set()

    def close(self) -> None:
        """Stop following; what was decided is in the log."""
        self._ending = True
        self._changed.set()
        if self._follower.is_alive():
            self._follower.join(5)
        self.pictures.close()

    # --- what pages ask for --------------------------------------------------------------------------

    def next(self, tab: str, count: int, keep: Sequence[int] = (), *, only: str = "") -> list[dict[str, Any]]:
        """Cards of the images to show next, reserved for a tab; see `NextImages.next`.

        `only`: random images without a label alone ("random"), or decisions to look at again ("doubted").
        """
        if self._submitted >= 0:
            self._ranked.wait(RANKING_SECONDS)
            self._ranked.set()
        before = self.session.state.history.serial
        of = self.session.state.random_undecided() if only == "random" else () if only else None
        rows = self.queue.next(tab, count, keep, of=of)
        if only == "doubted":  # whoever holds them: a second answer is checked against the first
            rows = self.doubted()[:count]
        if self.session.state.history.serial != before:  # images were drawn
            self._changed.set()
        self.pictures.prefetch(rows)
        until = time.monotonic() + PICTURE_SECONDS
        made = [self.pictures.get(row, timeout=max(0.0, until - time.monotonic())) for row in rows]
        return [self._card(row, picture) for row, picture in zip(rows, made, strict=True)]

    def card(self, row: int) -> dict[str, Any] | None:
        """Card of one row; None for a row that does not exist."""
        if not 0 <= row < len(self.session.cache):
            return None
        return self._card(row, self.pictures.get(row))

    def doubted(self) -> list[int]:
        """Rows of the decisions to look at again: those that training contradicts, worst first. With those of another
        reader who says otherwise, in the order of rows: conflicts come among as many others at least, as to say which
        they are would tell the other's answer.
        """
        with self.session.lock:
            state = self.session.state
            doubted = self.session.doubted()
            differ = state.given_once(self._conflicts, len(self._conflicts))
            if not differ:
                return doubted
            others = [label.row for _, label in state.past(0, 3 * len(differ) + LOOK_AGAIN)]
        padding = [row for row in dict.fromkeys([*doubted, *others]) if row not in differ]
        return sorted(differ + padding[: max(len(differ), len(doubted))])

    def past(self, before: int, count: int) -> list[dict[str, Any]]:
        """Decisions that label, newest first, of which the newest has a serial number below `before`; 0: any."""
        with self.session.lock:
            decisions = self.session.state.past(before, count)
        keys = self.session.cache.keys
        return [
            {"row": label.row, "key": keys[label.row], "choice": str(label.choice), "serial": serial}
            for serial, label in decisions
        ]

    def _card(self, row: int, picture: Picture | None) -> dict[str, Any]:
        """What a page may know of an image: neither its score, nor why it is shown, nor how it was decided before."""
        decision = self.session.state.to_show(row)
        return {
            "row": row,
            "key": self.session.cache.keys[row],
            "part": bool(self.session.cache.encoder.tiles),
            "problem": "" if picture is None else picture.problem,
            "note": "" if picture is None else picture.note,
            "serial": 0 if decision is None else decision.serial,
        }

    def decide(self, tab: str, proposals: Sequence[Proposal]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Log decisions; what is accepted is on disk when this returns.

        Returns what stands after those that were accepted, and after those that were refused because another decision
        was in force than the one to replace. Raises `SessionError` where the log could not be written: nothing was
        decided.
        """
        self.queue.keep_alive(tab)
        accepted, stale = [], []
        for proposal in proposals:
            try:
                decision: Entry | None = self.session.decide(proposal)
                if proposal.choice is Choice.UNDONE:
                    decision = self.session.state.to_show(proposal.row)
                accepted.append(_standing(proposal, decision))
            except StaleDecisionError:
                stale.append(_standing(proposal, self.session.state.to_show(proposal.row)))
        self._changed.set()
        return accepted, stale

    def set_closing_audit(self, on: bool, *, likeliest: bool = False) -> None:
        """Show only images that are drawn at random, among the likeliest or from all, or go back to the ranking.

        Raises `ValueError` where nothing is ranked yet, or nothing is undecided, so that there are no likeliest images,
        and `SessionError` where their zone could not be written.
        """
        if on and likeliest:
            rows = self.queue.likeliest()
            if not len(rows) and not self.session.state.zone.any():
                raise ValueError(
                    "there is no ranking of undecided images; decide some first, or end the review if all are decided"
                )
            self.session.fix_zone(rows)
        self.queue.closing_stream = Stream.ZONE if likeliest else Stream.AUDIT
        self.queue.closing_audit = on
        self._audit()

    def state(self, tab: str = "") -> dict[str, Any]:
        """Progress of the review, ready for JSON; random images that other tabs hold are not counted for a tab.

        Limits and advice follow the log: ``audited`` has the same fields as of the moment that they are of, so that
        what is shown together agrees, and ``behind`` says whether newer ones are to come.
        """
        audited, now = self._audited, self._counts()
        shared: dict[str, Any] = {
            "session": self.identifier,
            "examples": self._examples,
            "closing_audit": self.queue.closing_audit,
            "closing_zone": self.queue.closing_stream is Stream.ZONE,
            "training": self._is_training,
            "ranking_version": self.ranking_version,
            "epoch_note": self.session.pile.note,
            "reviewer": self.reviewer,
        }
        present, past = (
            shared | counts | {"random_undecided": self.queue.free(tab, counts["random_undecided"])}
            for counts in (audited | now, now | audited)
        )
        return present | {"audited": past, "behind": audited.get("serial") != now["serial"]}

    def _counts(self) -> dict[str, Any]:
        """What a moment of the log amounts to."""
        with self.session.lock:
            state = self.session.state
            counts = state.progress()
            return asdict(counts) | {
                "serial": state.history.serial,
                "decided": counts.decided,
                "found": counts.positives,
                "random_undecided": state.random_undecided(),
                "doubted": len(self.doubted()),
            }

    def _audit(self) -> None:
        """Say what is hidden, and advise, by one moment of the log."""
        with self.session.lock:
            state, counts = self.session.state, self._counts()
            limits = replace(self.session.limits(), doubted=counts["doubted"])
            closing = {"closing_audit": self.queue.closing_audit, "in_zone": self.queue.closing_stream is Stream.ZONE}
            said = advice(state.progress(), limits, best=state.history.best_rate(), **closing)
            if not said and self._first is not None:
                said = self._first.sentence(positives_known(self.session))
        hidden = {"perhaps": limits.perhaps, "high": limits.hidden_high} if limits.draws else None
        zone = limits.zone if limits.zone is not None and limits.zone.draws else None
        figures = {"hidden": hidden, "likeliest": zone and {"rows": zone.rows, "high": zone.hidden_high}}
        self._audited = counts | figures | {"statements": sentences(limits), "advice": said}

    # --- what follows --------------------------------------------------------------------------------

    def take_ranking(self, result: RankingResult, serial: int) -> None:
        """Show images by a new ranking, which has seen the log up to an entry; the trainer's thread calls it."""
        self.queue.set_ranking(result.scores, result.posterior, serial)
        if self.session.state.progress().decided >= _MIN_DECISIONS:
            self.session.doubt(result.doubted)
        self.ranking_version = serial
        self._ranked.set()
        self._changed.set()
        if result.seconds and time.monotonic() - self._kept_at >= KEPT_SECONDS:
            self._kept_at = time.monotonic()
            keep_ranking(self.session.folder, self.identifier, result, serial)

    def report(self, message: str) -> None:
        """Log what failed in the trainer; images are shown by the ranking that is there."""
        self._ranked.set()
        _log.warning("%s", message)

    @property
    def _is_training(self) -> bool:
        return self._trainer is not None and self._trainer.busy(self._number)

    def _follow(self) -> None:
        """Train, audit and advise after each change; in a thread of its own."""
        was_training = False
        while True:
            changed = self._changed.wait(1.0 if was_training else None)
            self._changed.clear()
            if self._ending:
                return
            if not changed and self._is_training == was_training:
                continue
            was_training = self._is_training
            try:
                self._train()
                self._audit()
            except Exception as error:  # decisions go on without it, and it is tried again after the next one
                _log.warning("the count of hidden positives is not up to date: %s", one_line(error))
            time.sleep(AUDIT_SECONDS)

    def _train(self) -> None:
        """Hand the newest labels to the trainer, if they have changed since."""
        if self._first is not None and positives_known(self.session) < ENOUGH:
            return
        self._first, serial = None, self.session.state.label_serial
        if self._trainer is None or serial == self._submitted:
            return
        with self.session.lock:
            serial, (s, reviewed) = self.session.state.label_serial, self.session.state.labels()
        if np.any(s == 1) or np.any(reviewed == 1):
            self._submitted = serial
            self._trainer.submit(serial, s, reviewed, self._number)


def _standing(proposal: Proposal, decision: Entry | None) -> dict[str, Any]:
    """What a page may know to be in force after a proposal was accepted or refused."""
    return {
        "request": proposal.request,
        "row": proposal.row,
        "serial": 0 if decision is None else decision.serial,
        "choice": str(Choice.UNDONE if decision is None else decision.choice),
    }
