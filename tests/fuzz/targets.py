"""All targets, by name."""

from __future__ import annotations

import h5py  # noqa: F401  all that a check may need is loaded before the process forks
import pyarrow.parquet  # noqa: F401
import sklearn.linear_model  # noqa: F401
import torch

from fuzz import (
    array_targets,
    cache_targets,
    image_targets,
    learned_targets,
    source_targets,
    table_targets,
)
from fuzz.image_samples import bombs

TARGETS = {
    target.name: target
    for module in (image_targets, cache_targets, source_targets, table_targets, array_targets, learned_targets)
    for target in module.TARGETS
}


def prepare() -> None:
    """Make every sample once, in one thread, so that forked children share them."""
    torch.set_num_threads(1)
    bombs()
    array_targets.prepare()
    learned_targets.prepare()
    cache_targets.prepare()
    for target in TARGETS.values():
        target.samples()
