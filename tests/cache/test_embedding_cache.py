import copy
import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import joblib
import numpy as np
import pytest
from helpers.cache_files import refusal, rows_of, write
from helpers.tiny import tiny_encoder

from pucache.cache import reader
from pucache.cache.embedding_cache import EmbeddingCache, open_cache

OTHER = tiny_encoder("other", seed=1).spec


def test_several_files_or_a_folder_of_them_read_as_one(shards, monkeypatch):
    monkeypatch.setattr(reader, "BLOCK_BYTES", 40)  # 2 rows of embeddings
    expected = [rows_of(["b", "d"]), rows_of([]), rows_of(["a", "c", "eee"])]
    for several in (EmbeddingCache(shards), EmbeddingCache(*(shards / f"{n}.h5" for n in range(3)))):
        several.verify()
        assert list(several.keys) == ["b", "d", "a", "c", "eee"]
        np.testing.assert_array_equal(several.X, np.concatenate([rows.X for rows in expected]))
        np.testing.assert_array_equal(several.digests, np.concatenate([rows.digests for rows in expected]))
        assert several.failures == {f"{n}.png": "gone" for n in range(3)}
        assert several.name == f"{shards / '0.h5'} and 2 more"
        assert [block.start for block, _ in several.blocks()] == [0, 2, 4]
        for block, X in several.blocks():
            np.testing.assert_array_equal(X, several.X[block])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"keys": ["z", "a"]}, "the key 'a' stands both in .*a.h5 and in .*b.h5"),
        ({"spec": OTHER}, r"a.h5 .* of tiny \(8-d.*b.h5 of other \(8-d.*differ in name, weights"),
        ({"dtype": "float32"}, "a.h5 holds float16.*b.h5 float32"),
    ],
    ids=["overlap", "encoder", "dtype"],
)
def test_files_that_do_not_go_together_are_refused_by_name(tmp_path, changes, expected):
    paths = [write(tmp_path / "a.h5", ["a", "b"]), write(tmp_path / "b.h5", **{"keys": ["z"], **changes})]
    text = refusal(EmbeddingCache, *paths)
    assert re.search(expected, text), text


def test_a_folder_that_lacks_a_share_is_opened_with_a_warning(tmp_path, caplog):
    for number in (1, 4):
        write(tmp_path / f"{number}.h5", [str(number)], shard=f"{number}/4")
    assert len(EmbeddingCache(tmp_path)) == 2
    assert f"{tmp_path} lacks 2 of 4 shares: embed 2/4, 3/4 with --shard" in caplog.text
    caplog.clear()
    EmbeddingCache(tmp_path / "1.h5")
    assert not caplog.text
    (tmp_path / "4.h5").unlink()
    assert len(EmbeddingCache(tmp_path)) == 1
    assert "lacks 3 of 4 shares" in caplog.text


def test_a_share_of_another_source_does_not_stand_for_that_of_this_one(tmp_path, caplog):
    for number, source in ((1, "photos"), (2, "elsewhere")):
        write(tmp_path / f"{number}.h5", [str(number)], shard=f"{number}/2", source=source)
    EmbeddingCache(tmp_path)
    assert "lacks 1 of 2 shares of photos: embed 2/2" in caplog.text
    assert "lacks 1 of 2 shares of elsewhere: embed 1/2" in caplog.text


@pytest.mark.parametrize("bad", [None, 3, [None]], ids=str)
def test_what_is_no_cache_is_refused_with_the_kinds_that_are(bad):
    assert "expected a cache: a file, a folder, a URL, an opened cache, or a list" in refusal(open_cache, bad)


def sum_of(cache):
    return float(np.asarray(cache.X, np.float64).sum())


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))], ids=["copy", "pickle"]
)
def test_a_cache_is_copied_and_pickled_by_its_paths(shards, copied):
    cache = EmbeddingCache(shards)
    cache.keys, cache.X  # noqa: B018 - what has been read is not pickled
    again = copied(cache)
    assert list(again.keys) == list(cache.keys) and again.encoder == cache.encoder
    np.testing.assert_array_equal(again.X, cache.X)


def test_other_processes_read_a_cache_that_they_are_given(shards, tmp_path, monkeypatch):
    monkeypatch.chdir(shards.parent)
    cache = EmbeddingCache(shards.name)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(sum_of, cache).result() == sum_of(cache)
    joblib.dump(cache, tmp_path / "cache.joblib")
    monkeypatch.chdir(tmp_path)
    assert sum_of(joblib.load(tmp_path / "cache.joblib")) == sum_of(cache)


def test_a_pickled_cache_is_the_one_that_was_pickled(tmp_path):
    path = write(tmp_path / "a.h5", ["a", "b"])
    data = pickle.dumps(EmbeddingCache(path))
    write(path, ["a", "c"])
    assert re.search("a.h5 was replaced since this cache was opened", refusal(pickle.loads, data))
    path.unlink()
    assert re.search("no such cache", refusal(pickle.loads, data))
