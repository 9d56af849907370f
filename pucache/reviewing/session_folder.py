"""The folder of a session: its files, and whether its log is the one that they belong to."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from ..errors import SessionError
from ..pages.review_page import EXPORT
from .log import DecisionLog
from .log_file import ACKNOWLEDGED, LOG, REMEDY, acknowledged, is_unwritten, missing_or_empty, wal_of

RANKING = "ranking.npz"  # the last ranking, see `pucache.reviewing.trainer.keep_ranking`
ADDRESS = "server.json"  # see `pucache.reviewing.serve.keep_address`
_FILES = (EXPORT, ACKNOWLEDGED, RANKING, ADDRESS, "pile-*.npz")  # that only a session leaves


def is_first_start(folder: Path) -> bool:
    """Whether no review has begun in a folder.

    Raises `SessionError` where the log is missing or empty and other files say that one has: it is lost, and another
    one would take the place of what it held.
    """
    log = folder / LOG
    if not is_unwritten(log):
        return False
    left = sorted(path.name for pattern in _FILES for path in folder.glob(pattern))
    left += [wal_of(log).name] if wal_of(log).exists() and wal_of(log).stat().st_size else []
    concepts = sorted(path.parent.name for path in folder.glob(f"*/{LOG}"))
    if left and concepts:
        raise SessionError(
            f"{folder} holds the sessions of {len(concepts):,} concepts ({', '.join(concepts[:3])}); pass --concepts, "
            "or name one of them, or another folder, with --session"
        )
    if left or log.is_symlink():
        beside = f", and {', '.join(left)} {'is' if len(left) == 1 else 'are'} there" if left else ""
        raise SessionError(f"the decisions of {folder} are lost: {LOG} is {missing_or_empty(log)}{beside}; {REMEDY}")
    return True


def open_log(folder: Path, *, read_only: bool = False) -> DecisionLog:
    """Open the log in a folder; raises `SessionError` also where the ranking beside it has seen more than it holds."""
    if is_first_start(folder):
        raise SessionError(f"no review session at {folder}: {LOG} is missing")
    log = DecisionLog.open(folder / LOG, read_only=read_only)
    seen = 0 if any(acknowledged(folder)) else serial_of_ranking(folder)
    if log.last < seen:
        log.close()
        raise SessionError(f"{log.path} holds {log.last:,} entries, and {RANKING} rests on {seen:,}; {REMEDY}")
    return log


def serial_of_ranking(folder: Path) -> int:
    """Number of the last entry that the kept ranking rests on; 0 where there is none, or a damaged one."""
    try:
        with open(folder / RANKING, "rb") as stream, np.load(stream, allow_pickle=False) as values:
            return int(values["serial"])
    except Exception:  # numpy and zipfile raise almost anything on damaged files
        return 0


def exported_decisions(folder: Path) -> list[str]:
    """Keys that the export in a folder says were decided in a review; none where there is none, or no such table."""
    try:
        with open(folder / EXPORT, encoding="utf-8", newline="") as stream:
            return [row["key"] for row in csv.DictReader(stream) if (row.get("reviewed") or "").strip() == "1"]
    except (OSError, ValueError, KeyError, csv.Error):
        return []
