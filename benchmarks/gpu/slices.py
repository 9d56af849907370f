"""What the suite measures: slices, each of some figures, and what a slice is given."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes
    ----------
    rows, dim, labelled : int
        Of the planted rows.
    priors, seeds : int
        Of the heads that `sgd` trains together.
    heads : int
        That `batch` trains together.
    epochs : int
        Of `sgd`, and of the authors' pretraining.
    queries : int
        Of the exact search.
    images, jpegs : int
        Pixels in memory, and JPEG files of 500 x 375.
    encoder : str
        timm's name of the network that embeds.
    backbones : tuple of str
        Networks that are pretrained.
    repeats : int
        Calls after the first.
    """

    rows: int = 33_000
    dim: int = 2048
    labelled: int = 600
    priors: int = 64
    seeds: int = 5
    heads: int = 1600
    epochs: int = 100
    queries: int = 4096
    images: int = 60_000
    jpegs: int = 20_000
    encoder: str = "resnet50"
    backbones: tuple[str, ...] = ("resnet50", "resnet18")
    repeats: int = 3


QUICK = Size(
    rows=600,
    dim=24,
    labelled=60,
    priors=2,
    seeds=2,
    heads=6,
    epochs=5,
    queries=64,
    images=16,
    jpegs=8,
    encoder="test_resnet",
    backbones=("test_resnet",),
    repeats=1,
)
PRIOR = 0.0741


@dataclass(frozen=True)
class Figure:
    """One figure of a slice.

    Attributes
    ----------
    name : str
    values : tuple of float
        One for each repetition.
    unit : str
        ``s``, ``images/s``, ...; empty for a share.
    target : float, optional
        At the full size, on a GPU.
    at_least : bool
        Whether the target is a lower bound.
    limit : float, optional
        What this machine allows at best, measured in the same run.
    note : str
    """

    name: str
    values: tuple[float, ...]
    unit: str = "s"
    target: float | None = None
    at_least: bool = False
    limit: float | None = None
    note: str = ""


@dataclass
class Bench:
    """What slices are given.

    Attributes
    ----------
    device : torch.device
    size : Size
    work : Path
        For files that are not results.
    data : Path or None
        CIFAR-10.
    weights : Path or None
        Of the encoder; random ones by default.
    until : float
        When the suite shall end, by `time.monotonic`.
    """

    device: torch.device
    size: Size
    work: Path
    data: Path | None = None
    weights: Path | None = None
    until: float = float("inf")
    kept: dict = field(default_factory=dict)  # what slices of one group share

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @cached_property
    def y(self) -> np.ndarray:
        """True classes, bool (n,)."""
        return np.random.default_rng(0).random(self.size.rows) < PRIOR

    @cached_property
    def s(self) -> np.ndarray:
        """Labels, int8 (n,)."""
        s, positive = np.zeros(self.size.rows, np.int8), np.flatnonzero(self.y)
        s[positive[: min(self.size.labelled, len(positive) // 2)]] = 1
        return s

    @cached_property
    def X(self) -> np.ndarray:
        """Planted positives among rows with a decaying spectrum, float16 (n, d)."""
        draw, (n, d) = np.random.default_rng(1), (self.size.rows, self.size.dim)
        X = draw.standard_normal((n, d), np.float32) / np.sqrt(1 + np.arange(d, dtype=np.float32) / 8)
        X[self.y, :64] += 0.35
        return X.astype(np.float16)

    def cache(self, name: str = "planted"):
        """An `EmbeddingCache` of the planted rows; imports h5py."""
        from benchmarks.common.row_cache import write_row_cache

        return write_row_cache(self.work / f"{name}.h5", self.X)

    @cached_property
    def weights_of_rows(self) -> np.ndarray:
        """Row weights 0, 1 or 2, float32 (n, 8): as of folds."""
        return np.random.default_rng(2).integers(0, 3, (self.size.rows, 8)).astype(np.float32)


@dataclass(frozen=True)
class Slice:
    """One line of the results.

    Attributes
    ----------
    name : str
    measure : callable
        Takes a `Bench`, gives figures. Raises `Unfinished` where it goes on in the next run.
    minutes : float
        At most, on a GPU; it is not begun where less is left.
    seeds : tuple of int
    """

    name: str
    measure: Callable[[Bench], list[Figure]]
    minutes: float = 1.0
    seeds: tuple[int, ...] = (0,)


class Unfinished(Exception):
    """A slice has to go on in another run."""


class LeftOut(Exception):
    """A slice cannot run here, for the reason in the text; no failure."""
