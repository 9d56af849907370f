"""Labels of a review session, with what its audit says: what `train_pu`, `report` and `score` rest on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..cache.embedding_cache import CacheLike, EmbeddingCache, open_cache
from ..estimates.audited_prior import AuditedHidden, share_right
from ..labels.concepts import ConceptLabels
from ..labels.labels import Labels
from .agreement import BOTH
from .audit import Audit, audit
from .second_reader import take_second_reader
from .session import read_session
from .session_folder import concept_folders, over_sessions
from .session_start import session_folder
from .statements import LEAST_POSITIVES


def read_labels(cache: CacheLike, folder: str | Path | None = None, *, readers: str = BOTH) -> Labels | ConceptLabels:
    """Labels of the session in a folder, with its audit where a random image has a label.

    A folder of the sessions of concepts gives the labels of each.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
        The cache that was reviewed.
    folder : path, optional
        Of the session, or of those of concepts. Default: ``CACHE.review`` beside the cache.
    readers : str
        Whose answers are the labels, where there is a second reader: both or first, as for `pucache.audit`.

    Returns
    -------
    Labels or ConceptLabels
        They go wherever labels go, such as `pucache.train_pu` and `pucache.report`. With an audit, estimates of
        prior, recall, precision and F1 rest on it.

    Raises
    ------
    SessionError
        There is no session, it is of another cache, or it is damaged.
    LabelError
        There is no positive in it, or no unlabelled row.
    """
    opened = open_cache(cache)
    path = session_folder(opened, folder)
    if concept_folders(path):
        return ConceptLabels(*over_sessions(path, lambda one: _labels_of(opened, one, readers)))
    return _labels_of(opened, path, readers)


def _labels_of(cache: EmbeddingCache, folder: Path, readers: str) -> Labels:
    with read_session(cache, folder) as session:
        agreement = take_second_reader(session, readers)
        labels = Labels(*session.labels(), hidden=_hidden(replace(audit(session), agreement=agreement)))
    labels.check()
    return labels


def _hidden(audited: Audit) -> AuditedHidden | None:
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
        statements=tuple(audited.statements()),
    )
