import dataclasses

import numpy as np
import pytest
from helpers.planted import planted, write_cache

import pucache
from pucache.cache.cache_info import info

X, *_ = planted(300)


@pytest.fixture
def shards(store, tmp_path):
    """Folder of five shards, here and in a store."""
    for number, rows in enumerate(np.array_split(X, 5)):
        keys = [f"{number}/{row}.png" for row in range(len(rows))]
        cache = write_cache(tmp_path / f"shards/{number}.h5", rows, keys, failures={f"{number}/x.png": "gone"})
        store.put(f"shards/{number}.h5", cache.files[0].path.read_bytes())
    return tmp_path / "shards"


def without_paths(content):
    return [dataclasses.replace(file, path="") for file in content.files]


def test_a_folder_in_a_store_is_described_as_one_on_a_disk(shards):
    here, there = info(shards), info("s3://bucket/shards/")
    assert without_paths(there) == without_paths(here)
    assert (there.rows, there.encoder, there.failures) == (300, here.encoder, here.failures)
    assert [file.path for file in there.files] == [f"s3://bucket/shards/{number}.h5" for number in range(5)]
    assert info(f"file://{shards}") == pucache.info(shards) == here
