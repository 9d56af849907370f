"""`pack`: cache files of one encoder become one, and what it replaces."""

import os
import re

import pytest
from helpers.cache_files import write
from helpers.refusals import one_line

from pucache import EmbeddingCache, EncoderSpec, pack
from pucache.cache.parts import writer_lock
from pucache.cache.reader import CacheFile
from pucache.errors import CacheError, CacheLockedError, OutputError

OTHER = EncoderSpec.imported("other", 8)


def test_pack_equals_the_file_of_a_single_run_byte_for_byte(fixed_time, shards, small_blocks):
    packed, whole = shards.parent / "packed.h5", shards.parent / "whole.h5"
    assert pack([shards], packed) == 5
    write(whole, ["a", "b", "c", "d", "eee"], failures={f"{n}.png": "gone" for n in range(3)})
    assert packed.read_bytes() == whole.read_bytes()
    pack([shards / "2.h5", shards / "0.h5", shards / "1.h5"], packed)
    assert packed.read_bytes() == whole.read_bytes()
    for caches in ([packed], packed, str(packed), EmbeddingCache(packed), EmbeddingCache(shards)):
        pack(caches, packed)
        assert packed.read_bytes() == whole.read_bytes()


def test_pack_forgets_a_failure_that_another_file_has_a_row_for(tmp_path):
    first = write(tmp_path / "1.h5", ["a"], failures={"b": "timeout", "c": "gone"})
    second = write(tmp_path / "2.h5", ["b"], source="elsewhere")
    pack([first, second], tmp_path / "out.h5")
    packed = CacheFile(tmp_path / "out.h5")
    assert (packed.failures, packed.source) == ({"c": "gone"}, "")


def test_pack_takes_more_files_than_there_are_file_descriptors(tmp_path, few_descriptors):
    paths = [write(tmp_path / f"{n}.h5", [f"{n:02}"], failures={f"x{n}": "gone"}) for n in range(60)]
    assert pack(paths, tmp_path / "out.h5") == 60
    assert list(EmbeddingCache(tmp_path / "out.h5").keys) == [f"{n:02}" for n in range(60)]
    with pytest.raises(CacheError, match="Too many open files"):
        EmbeddingCache(*paths)


def test_pack_takes_the_newest_time_of_its_inputs_so_that_twice_gives_the_same_bytes(tmp_path, monkeypatch):
    for name, seconds in (("1.h5", "1000"), ("2.h5", "5000")):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", seconds)
        write(tmp_path / name, [name])
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    pack([tmp_path / "1.h5", tmp_path / "2.h5"], tmp_path / "out.h5")
    assert CacheFile(tmp_path / "out.h5").created == CacheFile(tmp_path / "2.h5").created


REPLACED = {
    "one key lost": (lambda path: write(path, ["a", "z"]), "holds a key that the new file lacks, such as 'z'"),
    "keys lost": (lambda path: write(path, ["x", "y" * 50]), "holds 2 keys that the new file lacks, such as 'x'"),
    "another encoder": (lambda path: write(path, ["a"], spec=OTHER), "holds embeddings of .*other.*new file .*tiny"),
    "no cache": (lambda path: path.write_text("precious"), "is a text file, where a pucache cache is to be written"),
    "damaged": (lambda path: os.truncate(write(path, ["a"]), 2000), "without pucache's checksums"),
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_file_that_would_be_lost_is_replaced_only_if_forced(tmp_path, name):
    first, out = write(tmp_path / "1.h5", ["a", "b"]), tmp_path / "out.h5"
    make, expected = REPLACED[name]
    make(out)
    before = out.read_bytes()
    text = one_line(OutputError, pack, [first], out)
    assert re.search(f"{expected}.*; (remove it first, or )?name another file", text), text
    assert out.read_bytes() == before
    assert pack([first], out, force=True) == 2
    assert list(EmbeddingCache(out).keys) == ["a", "b"]
    with writer_lock(out):
        assert "being written by another process" in one_line(CacheLockedError, pack, [first], out)
