"""Evaluation of scores against true labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import LabelError
from ..estimates.metrics import precision_at, with_labels
from ..labels.row_values import RowValues, named_positives, open_truth
from .score_tables import read_scores, unique_keys


def evaluate(
    scores: str | Path,
    truth: str | Path | RowValues,
    *,
    positives: str | Path | RowValues | None = None,
    at: Sequence[int] = (100, 1000),
    concept: str | None = None,
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

    Returns
    -------
    dict of str to float
        Metrics of `pucache.estimates.metrics.with_labels`, ``precision@K`` for each rank, and
        ``without_truth``, the number of images whose true class is not known.

    Raises
    ------
    LabelError
        A file cannot be read, scores a key more than once, or nothing is left to evaluate.
    """
    table = read_scores(scores, concept=concept, source=source)
    if not len(table["key"]):
        raise LabelError(f"{scores} has no rows, only the names of columns; score a cache that holds images")
    keys = unique_keys(table, scores)
    y = open_truth(truth, keys)
    keep = y >= 0
    without_truth = int((~keep).sum())
    if positives is not None:
        labelled = named_positives(positives, keys)
        keep &= np.array([key not in labelled for key in table["key"]], bool)
    if not keep.any():
        named = truth if isinstance(truth, str | Path) else "the true classes"
        raise LabelError(
            f"no image of {scores} is left to evaluate; {named} and the positives cover all or none of them"
        )
    y, margins = y[keep], table["margin"][keep]
    figures = with_labels(y, margins, table["label"][keep])
    figures |= {f"precision@{k}": precision_at(y, margins, k) for k in at if k <= len(y)}
    return figures | {"without_truth": without_truth}
