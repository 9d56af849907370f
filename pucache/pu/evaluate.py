"""Holds scores against the truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import LabelError
from .labels import listed_positives, read_truth
from .metrics import precision_at, with_labels
from .score import read_scores


def evaluate(
    scores: str | Path, truth: str | Path, *, positives: str | Path | None = None, at: tuple[int, ...] = (100, 1000)
) -> dict[str, float]:
    """Compute metrics of scored images whose true class is known.

    Parameters
    ----------
    scores : path
        What `pucache.pu.score.score` wrote.
    truth : path
        See `pucache.pu.labels.read_truth`; images it does not name are left out.
    positives : path, optional
        Labelled positives, left out too, so that only what had to be found is counted.
    at : tuple of int
        Ranks at which the precision is given, where there are as many images.

    Returns
    -------
    dict
        As `pucache.pu.metrics.with_labels`, with ``precision@K`` and the number of images without
        truth.

    Raises
    ------
    LabelError
        A file cannot be read, or nothing is left to evaluate.
    """
    table = read_scores(scores)
    y = read_truth(truth, table["key"].tolist())
    keep = y >= 0
    without_truth = int((~keep).sum())
    if positives is not None:
        labelled = listed_positives(positives)
        keep &= np.array([key not in labelled for key in table["key"]], bool)
    if not keep.any():
        raise LabelError(
            f"no image of {scores} is left to evaluate; {truth} and the positives cover all or none of them"
        )
    y, margins = y[keep], table["margin"][keep]
    result = with_labels(y, margins, table["label"][keep])
    result |= {f"precision@{k}": precision_at(y, margins, k) for k in at if k <= len(y)}
    return result | {"without_truth": without_truth}
