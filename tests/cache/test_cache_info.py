import dataclasses
import json

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.planted import planted, write_cache
from helpers.tiny import save_image, tiny_encoder

import pucache
from pucache.cache.cache_info import info
from pucache.cli.main import main
from pucache.embedding.embed import EmbedOptions, run_embedding
from pucache.encoders.spec import EncoderSpec
from pucache.errors import CacheError

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


def test_shards_of_two_encoders_are_refused_by_name(memory, tmp_path):
    for name in "ab":
        cache = write_cache(tmp_path / "c.h5", X, encoder=EncoderSpec.imported(name, X.shape[1]))
        memory.pipe_file(f"/s/{name}.h5", cache.files[0].path.read_bytes())
    with pytest.raises(CacheError, match=r"^memory://s/a.h5 holds .*; memory://s/b.h5 of .* encoders cannot be mixed$"):
        info("memory://s")


def test_the_command_prints_the_share_of_a_shard(tmp_path, one_thread):
    for number in range(8):
        save_image(tmp_path / f"images/{number}.png", number)
    cache = tmp_path / "2.h5"
    run_embedding(tmp_path / "images", cache, tiny_encoder(), options=EmbedOptions(shard=(2, 3)), workers=0)
    told = CliRunner().invoke(main, ["info", str(cache)]).output
    assert f"{cache}: {info(cache).rows} rows, float16, share 2/3, made " in told
    (file,) = json.loads(CliRunner().invoke(main, ["info", str(cache), "--json"]).output)["files"]
    assert file["shard"] == "2/3"
