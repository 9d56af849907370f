import re

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
