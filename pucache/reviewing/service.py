"""What the pages of a review ask for, and what follows a decision.

A decision waits for the log alone. Audit, advice and training follow in a thread of their own, always from the
newest state: what has been overtaken meanwhile is left out.
"""

from __future__ import annotations

import logging
import math
import shlex
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import LabelError, StaleDecisionError, one_line
from ..pages.review_page import EXPORT
from .audit import Audit, audit
from .events import Listeners
from .export import import_reviewed, write_reviewed
from .log import Choice, Decision
from .pictures import Picture, Pictures
from .queue import NextImages
from .session_state import Proposal
from .stop_advice import advice
from .trainer import RankingResult, keep_ranking, kept_ranking

if TYPE_CHECKING:
    from .session import Session
    from .session_state import SessionProgress
    from .trainer import Trainer

AUDIT_SECONDS = 0.3  # between two audits
RANKING_SECONDS = 6.0  # for which the first images wait for the first ranking, once there is a positive
KEPT_SECONDS = 10.0  # between two rankings that are kept
PICTURE_SECONDS = 0.1  # for which new cards wait for their pictures, to say which cannot be shown
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What became of proposed decisions, each with the decision that a page may show as in force."""

    accepted: list[tuple[Proposal, Decision | None]]  # logged; None after an undo that left none
    stale: list[tuple[Proposal, Decision | None]]  # refused: another decision was in force than the one to replace


class ReviewService:
    """A review session that pages work on.

    Parameters
    ----------
    session : Session
    queue : NextImages
    pictures : Pictures
    identifier : str
        Of the session and of its cache; rows mean other images in another one.
    reviewer : str
        Name that is logged with each decision.
    """

    def __init__(self, session: Session, queue: NextImages, pictures: Pictures, *, identifier: str, reviewer: str):
        self.session, self.queue, self.pictures = session, queue, pictures
        self.identifier, self.reviewer = identifier, reviewer
        self.ranking_version = 0
        self._trainer: Trainer | None = None
        self._expected = math.nan
        self._audit: Audit | None = None
        self._advice = self._sentence = ""
        self._submitted = -1
        self._kept_at = -math.inf
        self._ranked = threading.Event()  # or it is not worth waiting for
        self.listeners = Listeners()
        self._changed, self._ending = threading.Event(), False
        self._follower = threading.Thread(target=self._follow, name="review-follower", daemon=True)

    def begin(self, trainer: Trainer | None) -> None:
        """Audit what the log holds, train on it, and follow what is decided from now on."""
        self._trainer = trainer
        self._train()
        kept = kept_ranking(self.session.folder, self.identifier, len(self.session.cache))
        if kept is not None:
            self.take_ranking(*kept)
        self._changed.set()
        self._follower.start()

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

    def next(self, tab: str, count: int, keep: Sequence[int] = ()) -> list[dict[str, Any]]:
        """Cards of the images to show next, reserved for a tab; see `NextImages.next`."""
        if self._submitted >= 0:
            self._ranked.wait(RANKING_SECONDS)
            self._ranked.set()
        drawn_before = len(self.session.pending_draws())
        rows = self.queue.next(tab, count, keep)
        if len(self.session.pending_draws()) != drawn_before:
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

    def _card(self, row: int, picture: Picture | None) -> dict[str, Any]:
        """What a page may know of an image: neither its score, nor why it is shown, nor how it was decided before."""
        decision = self.session.decision_to_show(row)
        return {
            "row": row,
            "key": self.session.cache.keys[row],
            "problem": "" if picture is None else picture.problem,
            "note": "" if picture is None else picture.note,
            "serial": 0 if decision is None else decision.serial,
        }

    def decide(self, tab: str, proposals: Sequence[Proposal]) -> Outcome:
        """Log decisions; what is accepted is on disk when this returns.

        Raises
        ------
        SessionError
            The log could not be written, and nothing was decided.
        """
        self.queue.keep_alive(tab)
        outcome = Outcome([], [])
        try:
            self._take(proposals, outcome)
        except StaleDecisionError:  # all of them or none: now one by one
            for proposal in proposals:
                try:
                    self._take([proposal], outcome)
                except StaleDecisionError:
                    outcome.stale.append((proposal, self.session.decision_to_show(proposal.row)))
        self._changed.set()
        return outcome

    def _take(self, proposals: Sequence[Proposal], outcome: Outcome) -> None:
        decisions: list[Decision | None] = list(self.session.decide(proposals))
        for number, proposal in enumerate(proposals):
            if proposal.choice is Choice.UNDONE:
                decisions[number] = self.session.decision_to_show(proposal.row)
                if decisions[number] is None:
                    self.queue.show_again(proposal.row)
        outcome.accepted.extend(zip(proposals, decisions, strict=True))

    def release(self, tab: str) -> None:
        """Free the images of a tab that closes."""
        self.queue.release(tab)

    def set_closing_audit(self, on: bool) -> None:
        """Show only images that are drawn at random, or go back to the ranking."""
        self.queue.closing_audit = on
        self._advice = self._advise()
        self.listeners.tell("state", self.state())

    def export(self) -> dict[str, Any]:
        """Write the labels of now into the session's folder; returns ``files``, and the ``commands`` that take them."""
        path = self.session.folder / EXPORT
        write_reviewed(self.session, path)
        return {"files": [str(path)], "commands": export_commands(self.session)}

    def take_reviewed(self, csv: str) -> dict[str, Any]:
        """Take in a table of decisions that a review page exported; returns the fields of `ImportCounts`.

        Raises
        ------
        LabelError
            The table is of another cache, or damaged; nothing was taken.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "imported.csv")
            path.write_bytes(csv.encode("utf-8", "surrogatepass"))
            try:
                taken = import_reviewed(self.session, path, self.reviewer)
            except LabelError as error:
                raise LabelError(one_line(error).replace(str(path), "the table")) from error
        self._changed.set()
        return asdict(taken)

    def state(self) -> dict[str, Any]:
        """Progress of the review, ready for JSON."""
        counts, audit_result = self.session.counts(), self._audit
        estimate, hidden = self._estimate(counts), None
        if audit_result is not None and audit_result.draws:
            hidden = {
                "low": audit_result.hidden_low,
                "high": audit_result.hidden_high,
                "level": audit_result.level,
                "draws": audit_result.draws,
            }
        return {
            "session": self.identifier,
            "decided": counts.decided,
            "found": counts.positives,
            "rejected": counts.negatives,
            "skipped": counts.skipped,
            "unknown": counts.unknown,
            "rate": counts.rate,
            "rate_of": counts.rate_of,
            "estimate": None if estimate is None else round(estimate, 1),
            "hidden": hidden,
            "sentence": self._sentence,
            "advice": self._advice,
            "closing_audit": self.queue.closing_audit,
            "training": self._is_training,
            "ranking_version": self.ranking_version,
            "epoch_note": self.session.epoch_note,
            "reviewer": self.reviewer,
        }

    def _estimate(self, counts: SessionProgress) -> float | None:
        """Number of hidden positives by the model."""
        return self._expected * counts.unknown if math.isfinite(self._expected) else None

    def _advise(self) -> str:
        counts = self.session.counts()
        return advice(counts, self._audit, estimate=self._estimate(counts), closing_audit=self.queue.closing_audit)

    # --- what follows --------------------------------------------------------------------------------

    def take_ranking(self, result: RankingResult, serial: int) -> None:
        """Show images by a new ranking, which has seen the log up to an entry; the trainer's thread calls it."""
        self.queue.set_ranking(result.scores, result.posterior, serial)
        self.ranking_version, self._expected = serial, result.expected
        self._ranked.set()
        self.listeners.tell("ranking", {"version": serial})
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
        return self._trainer is not None and self._trainer.busy

    def _follow(self) -> None:
        was_training = False
        while True:
            changed = self._changed.wait(1.0 if was_training else None)
            self._changed.clear()
            if self._ending:
                return
            if changed or self._is_training != was_training:
                was_training = self._is_training
                self._update()
                time.sleep(AUDIT_SECONDS)

    def _update(self) -> None:
        try:
            self._train()
            self._audit = audit(self.session)
            self._sentence = self._audit.sentence(self._estimate(self.session.counts()))
            self._advice = self._advise()
            self.listeners.tell("state", self.state())
        except Exception as error:  # decisions go on without it, and it is tried again after the next one
            _log.warning("the count of hidden positives is not up to date: %s", one_line(error))

    def _train(self) -> None:
        """Hand the newest labels to the trainer, if they have changed since."""
        serial = self.session.label_serial
        if self._trainer is None or serial == self._submitted:
            return
        s, reviewed = self.session.labels()
        if np.any(s == 1) or np.any(reviewed == 1):
            self._submitted = serial
            self._trainer.submit(serial, s, reviewed)


def export_commands(session: Session) -> list[str]:
    """Commands that train and rank by the labels of a session."""
    paths = " ".join(shlex.quote(str(file.path)) for file in session.cache.files)
    csv = shlex.quote(str(session.folder / EXPORT))
    return [
        f"pucache train-pu {paths} --session {shlex.quote(str(session.folder))}",
        f"pucache retrieve-positives {paths} --positives {csv} --negatives {csv} --model model.safetensors",
    ]
