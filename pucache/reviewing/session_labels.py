"""Labels of a review session: with what its audit says, for `train_pu`, `report` and `score`; and as a table.

The table has the columns ``key,label,reviewed,digest``, which `pucache.read_labels` reads.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from ..cache.embedding_cache import CacheLike, EmbeddingCache, open_cache
from ..cache.exporting import Column
from ..errors import LabelError
from ..estimates.audited_prior import AuditedHidden, share_right
from ..estimates.limit_sentences import sentences
from ..estimates.limits import Limits
from ..labels.labels import Labels, PULabels
from ..labels.listing import EXPORT, short_digest
from ..storage.file_kinds import TABLE
from ..storage.outputs import check_output
from ..storage.table_writer import write_rows
from ..storage.urls import path_or_url
from .log import LABELS, Choice, labelling_decisions
from .session import Session, read_session
from .session_folder import another_readers, concept_folders, kept_groups, open_log, over_sessions, session_folder

LEAST_POSITIVES = 3  # random images that are positive, from which on the likeliest number is a figure


def session_labels(
    cache: CacheLike, folder: str | Path | None = None, *, beside: str | Path | None = None, check: bool = True
) -> Labels:
    """Labels of the session in a folder, with its audit where a random image has a label.

    A folder of the sessions of concepts gives the labels of each.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
        The cache that was reviewed.
    folder : path, optional
        Of the session, or of those of concepts. Default: ``CACHE.review`` beside the cache.
    beside : path, optional
        Of the session of a second reader, or of those of concepts: labels are those of both, as for `pucache.audit`.
    check : bool
        Whether to refuse labels that nothing can be trained on.

    Returns
    -------
    Labels
        They go wherever labels go, such as `pucache.train_pu` and `pucache.report`. With an audit, estimates of
        prior, recall, precision and F1 rest on it. Groups are those that the session keeps.

    Raises
    ------
    SessionError
        There is no session, it is of another cache, or it is damaged.
    LabelError
        With `check`, there is no positive in it, or no unlabelled row.
    """
    opened = open_cache(cache)
    path, other = session_folder(opened, folder), None if beside is None else Path(path_or_url(beside))
    group = kept_groups(path, opened)
    if concept_folders(path):
        found = over_sessions(path, lambda one: _labels_of(opened, one, other and other / one.name, check))
        return Labels(*found, group=group, sources=(str(path),))
    return Labels({"": _labels_of(opened, path, other, check)}, group=group, sources=(str(path),))


def _labels_of(cache: EmbeddingCache, folder: Path, beside: Path | None, check: bool) -> PULabels:
    with read_session(cache, folder) as session:
        agreement = None
        if beside is not None:
            with read_session(cache, another_readers(beside, folder)) as other:
                agreement = session.join(other)
        labels = PULabels(*session.state.labels(), hidden=_hidden(replace(session.limits(), agreement=agreement)))
    if check:
        labels.check()
    return labels


def _hidden(audited: Limits) -> AuditedHidden | None:
    """The audit for estimates. Once a known positive was rejected again, random positives may be wrong, too.

    Before that, one wrong acceptance in twenty is allowed for: the lower limit of random positives is scaled by the
    share of them that is left then.
    """
    if audited.draws <= audited.skipped + audited.pending:
        return None
    likeliest = audited.likeliest_share * audited.unknown if audited.unknown else 0.0
    is_figure = audited.positives >= LEAST_POSITIVES or audited.hidden_low == audited.hidden_high
    right = (audited.sensitivity_low or 0.0) if audited.missed else share_right(audited.rechecks)
    wrong = (1 - right) * audited.found
    return AuditedHidden(
        low=0 if audited.missed else int(audited.hidden_low * max(0.0, 1 - wrong / max(1, audited.positives))),
        high=audited.hidden_high,
        likeliest=min(max(likeliest, audited.hidden_low), audited.hidden_high)
        if is_figure and not audited.missed
        else None,
        draws=audited.draws,
        level=audited.level,
        overlooked=audited.sensitivity_low is not None,
        profile=None if audited.missed else audited.profile(),
        without_label=audited.skipped + audited.pending,
        accepted_right=right,
        rechecks=audited.rechecks,
        missed=audited.missed,
        statements=tuple(sentences(audited)),
        perhaps=audited.perhaps,
    )


def decided_keys(folder: str | Path) -> dict[str, int]:
    """Label, 1 or 0, by key, of what was labelled before a session or decided in it; of concepts those of any.

    It is read from the log, without the cache. Raises `SessionError` where there is no session, or it is damaged.
    """
    path = Path(folder)
    if concept_folders(path):
        found, _ = over_sessions(path, decided_keys)
        return {key: label for labels in found.values() for key, label in labels.items()}
    with open_log(path, read_only=True) as log:
        before = {one.key: one.label for one in log.images() if one.label is not None and one.epoch == log.epoch}
        present = log.audited_entries()
        decided = labelling_decisions([*present.carried, *present.entries])
    return before | {one.key: int(one.choice is Choice.POSITIVE) for one in decided if one.choice in LABELS}


def decision_column(cache: EmbeddingCache, folder: str | Path) -> Column:
    """Column ``decision`` for `pucache.cache.exporting.export`: int8, 1 positive, 0 negative, null without a label.

    Labels from before the session are included. Raises `SessionError` where it cannot be opened.
    """
    with read_session(cache, folder) as session:
        s, reviewed = session.state.labels()
    decision = ((s == 1) | (reviewed == 1)).astype(np.int8)
    undecided = (s == 0) & (reviewed == 0)
    return pyarrow.field("decision", pyarrow.int8()), lambda rows: pyarrow.array(decision[rows], mask=undecided[rows])


# --- tables --------------------------------------------------------------------------------------


def write_reviewed(session: Session, path: str | Path) -> Path:
    """Write the labels of now as CSV: those from before the session, then what was decided in it; returns the path.

    Columns: key, label (1 positive, 0 negative), reviewed (1: decided in a review), digest. Raises `OutputError`.
    """
    path = check_output(path, TABLE, inputs=[file.path for file in session.cache.files])
    s, reviewed = session.state.labels()
    before = ~session.pile.before.unlabelled
    labelled = (s == 1) | (reviewed != 0)
    rows = np.concatenate([np.flatnonzero(before), np.flatnonzero(labelled & ~before)])
    keys, digests = session.cache.keys, session.cache.digest_matrix
    positive, decided = ((s == 1) | (reviewed == 1)).astype(int), (reviewed != 0).astype(int)
    lines = ([keys[row], positive[row], decided[row], short_digest(digests[row])] for row in rows.tolist())
    write_rows(path, [["key", "label", "reviewed", "digest"], *lines])
    return path


def export_session(session: Session) -> dict[str, Any]:
    """Write the labels of now into the session's folder, as the page does.

    Returns ``files``, and the ``commands`` that take them.
    """
    path = str(write_reviewed(session, session.folder / EXPORT))
    commands = train_commands(session)
    if commands:
        caches = _quoted_caches(session)
        commands.append(f"pucache retrieve-positives {caches} --labels {shlex.quote(path)} --model model.safetensors")
    return {"files": [path], "commands": commands}


def train_commands(session: Session) -> list[str]:
    """The command that trains on a session; none where its labels leave nothing to train on."""
    try:
        PULabels(*session.state.labels()).check()
    except LabelError:
        return []
    return [f"pucache train-pu {_quoted_caches(session)} --labels {shlex.quote(str(session.folder))}"]


def _quoted_caches(session: Session) -> str:
    return " ".join(shlex.quote(str(file.path)) for file in session.cache.files)
