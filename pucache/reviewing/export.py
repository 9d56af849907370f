"""Labels of a session as a table, and tables of the review page taken into a session.

Both have the format of the page's export, ``key,label,reviewed,digest``, which `pucache.labels.labels.Labels` reads.
"""

from __future__ import annotations

import re
import shlex
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LabelError
from ..labels.label_files import EXPORT, read_decisions, short_digest
from ..storage.atomic import replacing
from ..storage.file_kinds import TABLE
from ..storage.outputs import check_output
from ..storage.tables import read_table
from .log import Choice
from .session import Session
from .session_state import Proposal

_CHOICES = {1: Choice.POSITIVE, -1: Choice.NEGATIVE}  # of labels
_NEEDS_QUOTES = re.compile(r'[",\r\n]|^\s|\s$')


def write_reviewed(session: Session, path: str | Path) -> Path:
    """Write the labels of now as CSV: those from before the session, then what was decided in it; returns the path.

    Columns: key, label (1 positive, 0 negative), reviewed (1: decided in a review), digest. Raises `OutputError`.
    """
    path = check_output(path, TABLE, inputs=[file.path for file in session.cache.files])
    s, reviewed = session.labels()
    before = ~session.file_labels.unlabelled
    labelled = (s == 1) | (reviewed != 0)
    rows = np.concatenate([np.flatnonzero(before), np.flatnonzero(labelled & ~before)])
    keys, digests = session.cache.keys, session.cache.digest_matrix
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as stream:
        stream.write("key,label,reviewed,digest\n")
        for row in rows.tolist():
            label, decided = int(s[row] == 1 or reviewed[row] == 1), int(reviewed[row] != 0)
            stream.write(f"{_quoted(keys[row])},{label},{decided},{short_digest(digests[row])}\n")
    return path


def export_session(session: Session) -> dict[str, Any]:
    """Write the labels of now into the session's folder, as the page and ``pucache review --export`` do.

    Returns ``files``, how many labels are ``positive`` and ``negative``, and the ``commands`` that take them.
    """
    folder, (s, reviewed) = session.folder, session.labels()
    paths = " ".join(shlex.quote(str(file.path)) for file in session.cache.files)
    path = write_reviewed(session, folder / EXPORT)
    csv = shlex.quote(str(path))
    return {
        "files": [str(path)],
        "positive": int(((s == 1) | (reviewed == 1)).sum()),
        "negative": int((reviewed == -1).sum()),
        "commands": [
            train_command(session),
            f"pucache retrieve-positives {paths} --positives {csv} --negatives {csv} --model model.safetensors",
        ],
    }


def train_command(session: Session) -> str:
    """The command that trains on a session."""
    paths = " ".join(shlex.quote(str(file.path)) for file in session.cache.files)
    return f"pucache train-pu {paths} --session {shlex.quote(str(session.first_reader or session.folder))}"


def import_reviewed(session: Session, path: str | Path, reviewer: str) -> dict[str, Any]:
    """Take the decisions of a table with the columns key and label into a session, all or none.

    Returns how many decisions were ``taken``; how many rows are ``agreeing``, as they have this label by the labels
    before the session, a decision in it, or a twin; and how many are ``contradicting``: they have the other label in
    the session, which stays. ``contradicting_keys`` are their keys.

    Raises
    ------
    LabelError
        The file cannot be read, names keys that the cache does not hold, or has digests of other images.
    SessionError
        The log cannot be written.
    """
    choices = _choices(session, path)
    with session.lock:
        proposals, contradicting = _undecided(session, choices, reviewer)
        session.decide(proposals)
    return {
        "taken": len(proposals),
        "agreeing": len(choices) - len(proposals) - len(contradicting),
        "contradicting": len(contradicting),
        "contradicting_keys": contradicting,
    }


def _undecided(session: Session, choices: list[tuple[int, Choice]], reviewer: str) -> tuple[list[Proposal], list[str]]:
    """Decisions on images that have no label, and keys of those that have the other one."""
    proposals: list[Proposal] = []
    contradicting: list[str] = []
    taken: dict[int, Choice] = {}  # by group
    s, reviewed = session.labels()
    batch = uuid.uuid4().hex
    for row, choice in choices:
        group = int(session.groups[row])
        present = taken.get(group) or _CHOICES.get(int(s[row] or reviewed[row]))
        if present is None:
            taken[group] = choice
            current = session.decision_in_force(row)  # a skip
            replaces = current.serial if current else 0
            proposals.append(Proposal(f"import-{batch}-{row}", row, choice, replaces, reviewer))
        elif present is not choice:
            contradicting.append(session.cache.keys[row])
    return proposals, contradicting


def _choices(session: Session, path: str | Path) -> list[tuple[int, Choice]]:
    """Row and decision of each line of a table, by row."""
    table = read_table(path)
    if not table:
        return []
    if "label" not in table[0]:
        raise LabelError(f"{path} has no decisions: expected a CSV with the columns key and label, as a review exports")
    choices = [(int(row), Choice.NEGATIVE) for row in read_decisions(session.cache, path, 0)[0]]
    if any((row["label"] or "").strip() not in ("", "0") for row in table):
        choices += [(int(row), Choice.POSITIVE) for row in read_decisions(session.cache, path, 1)[0]]
    return sorted(choices)


def _quoted(key: str) -> str:
    return '"' + key.replace('"', '""') + '"' if _NEEDS_QUOTES.search(key) else key
