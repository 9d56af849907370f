"""Evaluation of scores against true labels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import LabelError
from ..estimates.metrics import precision_at, with_labels
from ..labels import label_files
from ..labels.row_values import RowValues, named_positives, open_truth
from .score_tables import read_kinds, read_scores, unique_keys


def evaluate(
    scores: str | Path,
    truth: str | Path | RowValues,
    *,
    positives: str | Path | RowValues | None = None,
    at: Sequence[int] = (100, 1000),
    concept: str | None = None,
    exclusive: bool = False,
    source: str | None = None,
) -> dict[str, float]:
    """Compute metrics of scored images whose true class is known.

    Parameters
    ----------
    scores : path or str
        Table written by `pucache.score`.
    truth : path, str or RowValues
        See `pucache.labels.row_values.open_truth`; by key. Images that it does not name are left out.
    positives : path, str or RowValues, optional
        Labelled positives, in a file or by key, which are left out too, so that only hidden positives count.
    at : sequence of int
        Ranks at which the precision is computed; ranks beyond the number of images are left out.
    concept, source : str, optional
        See `pucache.scoring.score_tables.read_scores`.
    exclusive : bool
        Evaluate the kinds that `pucache.score` gave with `exclusive`. `truth` is a table ``key,concept``, or such a
        mapping, where an empty cell means none of them, as does a kind that has no model.

    Returns
    -------
    dict of str to float
        Metrics of `pucache.estimates.metrics.with_labels`, ``precision@K`` for each rank, and
        ``without_truth``, the number of images whose true class is not known. With `exclusive`: ``accuracy``,
        ``macro_f1`` over the kinds of the truth, ``called_none`` and ``kinds_without_model`` (numbers of images), and
        ``KIND_precision`` and ``KIND_recall``, left out where no image is called, or is, of that kind.

    Raises
    ------
    LabelError
        A file cannot be read, scores a key more than once, or nothing is left to evaluate.
    """
    if exclusive:
        if concept is not None:
            raise ValueError("exclusive evaluates all concepts at once; leave out exclusive, or concept")
        return _evaluate_kinds(scores, truth, positives, source)
    table = read_scores(scores, concept=concept, source=source)
    if not len(table["key"]):
        raise LabelError(f"{scores} has no rows, only the names of columns; score a cache that holds images")
    keys = unique_keys(table, scores)
    y = open_truth(truth, keys)
    keep = y >= 0
    without_truth = int((~keep).sum())
    keep &= _unlabelled(positives, keys)
    _check_any(keep, scores, truth)
    y, margins = y[keep], table["margin"][keep]
    figures = with_labels(y, margins, table["label"][keep])
    figures |= {f"precision@{k}": precision_at(y, margins, k) for k in at if k <= len(y)}
    return figures | {"without_truth": without_truth}


def _evaluate_kinds(
    scores: str | Path, truth: str | Path | RowValues, positives: str | Path | RowValues | None, source: str | None
) -> dict[str, float]:
    """Metrics of kinds that exclude each other, see `evaluate`."""
    table, concepts = read_kinds(scores, source=source)
    keys = unique_keys(table, scores)
    if isinstance(truth, Mapping):
        given = [truth.get(key) for key in keys]
    elif isinstance(truth, str | os.PathLike):
        given = label_files.read_kinds(truth, keys)
    else:
        raise LabelError("expected the true kinds by key: a table key,concept, or a dict of key to kind")
    known = np.array([kind is not None for kind in given], bool)
    keep = known & _unlabelled(positives, keys)
    _check_any(keep, scores, truth)
    called, named = table["kind"][keep], np.array(given, object)[keep]
    true = np.where(np.isin(named, concepts), named, "")
    figures = {"n": len(true), "accuracy": float((called == true).mean()), "macro_f1": 0.0}
    figures |= {"called_none": int((called == "").sum()), "kinds_without_model": int((named != true).sum())}
    f1 = []
    for kind in concepts:
        is_called, is_true = called == kind, true == kind
        hits, calls, images = int((is_called & is_true).sum()), int(is_called.sum()), int(is_true.sum())
        figures |= {f"{kind}_precision": hits / calls} if calls else {}
        figures |= {f"{kind}_recall": hits / images} if images else {}
        f1 += [2 * hits / (calls + images)] if images else []
    if not f1:
        raise LabelError(f"no image of {scores} is of a kind that it has scores of ({', '.join(concepts)})")
    return figures | {"macro_f1": float(np.mean(f1)), "without_truth": int((~known).sum())}


def _unlabelled(positives: str | Path | RowValues | None, keys: list[str]) -> np.ndarray:
    """Which keys are no labelled positives, bool (n,)."""
    labelled = set() if positives is None else named_positives(positives, keys)
    return np.array([key not in labelled for key in keys], bool)


def _check_any(keep: np.ndarray, scores: str | Path, truth: str | Path | RowValues) -> None:
    if not keep.any():
        named = truth if isinstance(truth, str | Path) else "the true classes"
        raise LabelError(
            f"no image of {scores} is left to evaluate; {named} and the positives cover all or none of them"
        )
