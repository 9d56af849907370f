"""All targets, by name."""

from __future__ import annotations

import array_targets
import cache_targets
import h5py  # noqa: F401  all that a check may need is loaded before the process forks
import image_targets
import learned_targets
import pyarrow.parquet  # noqa: F401
import sklearn.linear_model  # noqa: F401
import source_targets
import table_targets
import torch
from image_samples import bombs

import pucache.cli.main
import pucache.encoders
import pucache.retrieve  # noqa: F401

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
