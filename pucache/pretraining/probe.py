"""How good the features are by now: with positives, with labels, or with neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import interpolate, normalize

from ..cache.keys import Keys, encode_keys
from ..errors import LabelError, RunError
from ..heads.design_matrix import Moments
from ..heads.risks import PURisk
from ..pu.cross_fitting import CrossFitter
from ..pu.folds import deal
from ..pu.label_files import find_keys
from ..pu.review_weights import TrainingLabels
from ..storage.tables import read_table
from .dataset import Pixels
from .network import Network

_MOST = 4096  # images that are looked at
_NEIGHBOURS, _TEMPERATURE = 20, 0.1
_BATCH = 128
_FOLDS = 5


@dataclass(frozen=True)
class Figures:
    """What a look at the features found.

    Attributes
    ----------
    probe : float
        Area under the curve of labelled positives against the rest by held-out linear heads (PAUC), or
        accuracy of a vote of the nearest neighbours among labelled images; NaN with neither.
    rank : float
        Dimensions that the features effectively fill, see `effective_rank`.
    """

    probe: float
    rank: float


class Probe:
    """Looks at the features of the same few thousand images each time.

    Parameters
    ----------
    pixels : Pixels
    positives : path or glob, optional
        Labelled positives.
    labels : path, optional
        A CSV ``key,label`` with any classes; images that it does not name, or with no label, are left out.
    seed : int
        Of which images are taken.

    Raises
    ------
    LabelError
        Unreadable; positives that are not among the images, or all of them; labels of fewer than two classes
        among the images.
    ValueError
        Both positives and labels.
    """

    def __init__(
        self, pixels: Pixels, *, positives: str | Path | None = None, labels: str | Path | None = None, seed: int = 0
    ):
        if positives is not None and labels is not None:
            raise ValueError("give positives or labels, not both")
        self._pixels = pixels
        generator = np.random.default_rng(seed)
        every = np.arange(len(pixels.keys))
        self.name = "alignment and uniformity"
        self._s = self._classes = None
        if positives is not None:
            self.name = "PAUC of held-out linear heads"
            found = _rows_of(positives, pixels)
            others = np.setdiff1d(every, found)
            if not len(others):
                raise LabelError("every image is a labelled positive; some must be unlabelled")
            found = generator.permutation(found)[: _MOST // 2]
            others = generator.permutation(others)[: _MOST - len(found)]
            if min(len(found), len(others)) < 2:
                raise LabelError(
                    f"{len(found)} positive and {len(others)} others are too few to hold any out; at least 2"
                )
            self._rows = np.sort(np.concatenate([found, others]))
            self._s = np.isin(self._rows, found).astype(np.int8)
        elif labels is not None:
            self.name = f"accuracy of {_NEIGHBOURS} nearest neighbours"
            classes = _classes(labels, pixels.keys)
            known = np.flatnonzero(classes >= 0)
            self._rows = np.sort(generator.permutation(known)[:_MOST])
            self._classes = np.unique(classes[self._rows], return_inverse=True)[1]
        else:
            self._rows = np.sort(generator.permutation(every)[:_MOST])

    def __call__(self, network: Network, device: torch.device, numbers: torch.dtype) -> Figures:
        """Look at the features as they are now.

        Raises
        ------
        RunError
            Not all are finite, though every weight may be.
        """
        X = features(network, self._pixels, self._rows, device, numbers)
        if not X.isfinite().all():
            raise RunError(
                "the features are not finite numbers; begin another folder with a lower --lr or --precision fp32"
            )
        found = float("nan")
        if self._s is not None:
            found = held_out_auc(X.numpy(), self._s)
        elif self._classes is not None:
            found = neighbours_agree(X, torch.from_numpy(self._classes))
        return Figures(found, effective_rank(X))


@torch.no_grad()
def features(
    network: Network, pixels: Pixels, rows: np.ndarray, device: torch.device, numbers: torch.dtype
) -> torch.Tensor:
    """Embeddings of whole images, float32 (len(rows), d), on the CPU."""
    size = network.description.size
    found, training = [], network.training
    network.eval()
    try:
        for images in pixels.batches(rows[first : first + _BATCH] for first in range(0, len(rows), _BATCH)):
            x = images.to(device).permute(0, 3, 1, 2).float() / 255
            if x.shape[2] != size:
                x = interpolate(x, (size, size), mode="bilinear", antialias=True).clamp_(0, 1)
            with torch.autocast(device.type, numbers, enabled=numbers != torch.float32):
                found.append(network.features(x).float().cpu())
    finally:
        network.train(training)
    return torch.cat(found)


def held_out_auc(X: np.ndarray, s: np.ndarray) -> float:
    """Area under the curve of s = 1 against s = 0 by linear heads that have not seen the row.

    NaN where one of them has fewer than two rows, so that none can be held out.
    """
    fold = deal(s, _FOLDS, 0, None)
    if fold.max() < 1:
        return float("nan")
    heads = CrossFitter(X, TrainingLabels.of(s), fold, risk=PURisk(), prior=0.1, moments=Moments.of(X), device="cpu")
    return float(roc_auc_score(s, heads.choose().margins))


def neighbours_agree(X: torch.Tensor, classes: torch.Tensor) -> float:
    """Share of images whose class wins the weighted vote of their nearest others (Wu et al. 2018, section 3.4).

    Parameters
    ----------
    X : tensor, (n, d)
    classes : int tensor, (n,)
        0 .. C-1.
    """
    unit = normalize(X.float(), dim=1)
    cosines = unit @ unit.T
    cosines.fill_diagonal_(-2)
    nearest = cosines.topk(min(_NEIGHBOURS, len(X) - 1), dim=1)
    votes = torch.zeros(len(X), int(classes.max()) + 1)
    votes.scatter_add_(1, classes[nearest.indices], (nearest.values / _TEMPERATURE).exp())
    return float((votes.argmax(1) == classes).float().mean())


def effective_rank(X: torch.Tensor) -> float:
    """exp of the entropy of the singular values (Garrido et al. 2023, eq. 1), of the centred features."""
    singular = torch.linalg.svdvals((X - X.mean(0)).float())
    share = singular / singular.sum().clamp_min(torch.finfo(torch.float32).tiny)
    return float(torch.special.entr(share).sum().exp())


def _rows_of(positives: str | Path, pixels: Pixels) -> np.ndarray:
    """Rows of the positives, sorted; one that could not be decoded has none."""
    listed = sorted({*pixels.keys, *pixels.failures})
    named = {listed[row] for row in find_keys(Keys([encode_keys(listed)]), positives, holder="the source")}
    rows = np.array([row for row, key in enumerate(pixels.keys) if key in named], np.int64)
    if not len(rows):
        raise LabelError(f"none of the {len(named)} positives in {positives} could be decoded")
    return rows


def _classes(path: str | Path, keys: Sequence[str]) -> np.ndarray:
    """Class of each key, 0 .. C-1, or -1 where the file does not say; int64, (n,)."""
    table = read_table(path)
    if not table or "label" not in table[0]:
        raise LabelError(f"{path} has no column 'label'; expected a CSV key,label")
    told = {row["key"]: row["label"] for row in table if row["label"]}
    names = {name: number for number, name in enumerate(sorted(set(told.values())))}
    classes = np.array([names[told[key]] if key in told else -1 for key in keys], np.int64)
    if len(np.unique(classes[classes >= 0])) < 2:
        raise LabelError(f"{path} names fewer than two classes of the images at hand; keys are paths within the source")
    return classes
