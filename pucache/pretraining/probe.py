"""Quality of the features during training: by labelled positives, or without labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import interpolate

from ..devices import choose_device
from ..errors import LabelError, RunError
from ..estimates.review_weights import TrainingLabels
from ..heads.design_matrix import DesignMatrix
from ..heads.moments import Moments
from ..labels.folds import assign_folds
from ..labels.listing import keys_of, read_listing
from ..training.cross_fitting import CrossFitter
from .dataset import MappedImages
from .network import Network

_MAX_IMAGES = 4096
_BATCH = 128
_FOLDS = 5


class Probe:
    """Evaluate the features of a fixed sample of at most 4,096 images, by labelled positives if there are any.

    Raises `LabelError` where the file is unreadable, or where no image or every image is among the positives.
    """

    def __init__(self, images: MappedImages, *, positives: str | Path | None = None, seed: int = 0):
        self._images = images
        self.name = "alignment and uniformity"
        self._s: np.ndarray | None = None
        generator = np.random.default_rng(seed)
        if positives is not None:
            self.name = "AUC of labelled against unlabelled, by held-out linear models"
            found = _positive_rows(positives, images.keys, images.failures)
            self._rows, self._s = _sample_positives(found, len(images.keys), generator)
        else:
            self._rows = np.sort(generator.permutation(len(images.keys))[:_MAX_IMAGES])

    def __call__(self, network: Network, device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
        """Metric and effective rank (`effective_rank`) of the present features.

        With positives the metric is the area under the curve of labelled positives against the other images, by
        held-out linear heads (PAUC); else NaN. Raises `RunError` where a feature is not finite, which may happen with
        finite weights, or the device is out of memory.
        """
        try:
            X = features(network, self._images, self._rows, device, dtype)
            if not X.isfinite().all():
                raise RunError(
                    "the features are not finite numbers; begin another folder with a lower --lr or --precision fp32"
                )
            quality = float("nan")
            if self._s is not None:
                quality = held_out_auc(X.cpu().numpy(), self._s, str(X.device))
            return quality, effective_rank(X)
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"out of memory on {device} with the features of {_BATCH} images; use a smaller --size or --backbone"
            ) from error


@torch.no_grad()
def features(
    network: Network, images: MappedImages, rows: np.ndarray, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Embeddings of uncropped images, float32 (len(rows), d), on the device."""
    size = network.description.size
    batches, training = [], network.training
    network.eval()
    try:
        for pixels in images.batches(rows[first : first + _BATCH] for first in range(0, len(rows), _BATCH)):
            x = pixels.to(device).permute(0, 3, 1, 2).float() / 255
            if x.shape[2] != size:
                x = interpolate(x, (size, size), mode="bilinear", antialias=True).clamp_(0, 1)
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                batches.append(network.features(x).float())
    finally:
        network.train(training)
    return torch.cat(batches)


def held_out_auc(X: np.ndarray, s: np.ndarray, device: str = "cpu") -> float:
    """Area under the curve of s = 1 against s = 0 by heads trained on the other folds; NaN if none can be held out."""
    folds = assign_folds(s, _FOLDS, 0, None)
    if folds.max() < 1:
        return float("nan")
    design = DesignMatrix(X, s, Moments.of(X), choose_device(device))
    fitter = CrossFitter(design, TrainingLabels.of(s), folds[:, None], prior=0.1)
    return float(roc_auc_score(s, fitter.cross_fit().margins))


def effective_rank(X: torch.Tensor) -> float:
    """exp of the entropy of the singular values of the centred features (Garrido et al. 2023, eq. 1)."""
    X = (X - X.mean(0)).double()
    gram = X.T @ X if len(X) >= X.shape[1] else X @ X.T  # much faster than an SVD; in float64 nothing is lost
    singular_values = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    shares = singular_values / singular_values.sum().clamp_min(torch.finfo(torch.float32).tiny)
    return float(torch.special.entr(shares).sum().exp())


def check_positives(positives: str | Path, keys: Sequence[str]) -> None:
    """Raise `LabelError` where a `Probe` could not use the positives, whichever images can be decoded."""
    _sample_positives(_positive_rows(positives, keys), len(keys), np.random.default_rng())


def _positive_rows(positives: str | Path, keys: Sequence[str], failures: Iterable[str] = ()) -> np.ndarray:
    """Sorted rows of the positives; those that could not be decoded are left out."""
    listed = keys_of([*keys, *failures])
    listing = read_listing(listed, positives)
    listing.require_known(listed, listing.label == 1, holder="the source")
    named = set(listing.key[listing.label == 1].tolist())
    rows = np.array([row for row, key in enumerate(keys) if key in named], np.int64)
    if not len(rows):
        raise LabelError(f"none of the {len(named)} positives in {positives} could be decoded")
    return rows


def _sample_positives(rows: np.ndarray, n: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sample of the n images with at most half of it positive: its sorted rows, and s."""
    others = np.setdiff1d(np.arange(n), rows)
    if not len(others):
        raise LabelError("every image is a labelled positive; some must be unlabelled")
    rows = generator.permutation(rows)[: _MAX_IMAGES // 2]
    others = generator.permutation(others)[: _MAX_IMAGES - len(rows)]
    if min(len(rows), len(others)) < 2:
        raise LabelError(f"{len(rows)} positive and {len(others)} others are too few to hold any out; at least 2")
    sample = np.sort(np.concatenate([rows, others]))
    return sample, np.isin(sample, rows).astype(np.int8)
