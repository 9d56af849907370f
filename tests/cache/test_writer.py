import itertools
import os

import pytest
from helpers.cache_files import FAILURES, SPEC, rows_of, write
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache import EmbeddingCache
from pucache.cache.keys import Keys, encode_keys, find_duplicate
from pucache.cache.reader import CacheFile
from pucache.errors import OutputError

ODD_KEYS = ["", "a", "a b", "ab", "b/é.png", "b/🦊.png", "c\nd\r\n.png", "x" * 4000, "é", "\x01", "\U0010ffff"]
ODD_SOURCE = os.fsdecode(b"s3://\xff\xfe")  # not UTF-8


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("keys", [[], ["a"], ODD_KEYS], ids=["none", "one", "odd"])
def test_what_was_written_is_read_back(tmp_path, keys, dtype):
    path = write(tmp_path / "c.h5", keys[::-1], dtype=dtype, source=ODD_SOURCE, failures=FAILURES, shard="2/3")
    file, rows = CacheFile(path), rows_of(keys, dtype)
    EmbeddingCache(file).verify()
    columns = [file.X, file.raw_keys, file.digests, file.size_mtime]
    for got, expected in zip(columns, (rows.X, rows.keys, rows.digests, rows.size_mtime), strict=True):
        assert (got.dtype, got.shape, got.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    assert list(EmbeddingCache(path).keys) == sorted(keys)
    assert (file.encoder, file.source, file.shard, file.failures) == (SPEC, ODD_SOURCE, "2/3", FAILURES)


def test_the_time_of_creation_follows_source_date_epoch(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert CacheFile(write(tmp_path / "c.h5", ["a"])).created == "1970-01-01T00:00:00Z"
    for odd in ("yesterday", "nan", "-1e300"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", odd)
        with pytest.raises(ValueError, match=f"SOURCE_DATE_EPOCH is '{odd}'; expected seconds"):
            write(tmp_path / "c.h5", ["a"])


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 0.97])
def test_a_full_disk_is_an_output_error_and_leaves_no_file(tmp_path, small_disk, share):
    keys = [f"{number:03}" for number in range(500)]
    path = write(tmp_path / "c.h5", keys)
    room = int(path.stat().st_size * share)
    path.unlink()
    with small_disk(room), pytest.raises(OutputError, match=r"cannot write .*c\.h5: File too large"):
        write(path, keys)
    assert os.listdir(tmp_path) == []


# --- Keys against a list of str, and the search for a key that two files hold against brute force ---

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)


@st.composite
def keys_of_files(draw, *, repeated=0):
    """Sorted keys of several files, many of them prefixes of others; up to `repeated` of them in two files."""
    stems = draw(st.lists(TEXT, max_size=12))
    keys = sorted(set(stems) | {stem + draw(st.sampled_from(["", "a", "é", "aa"])) for stem in stems})
    homes = draw(st.lists(st.integers(0, 2), min_size=len(keys), max_size=len(keys)))
    parts = [{key for key, home in zip(keys, homes, strict=True) if home == part} for part in range(3)]
    for key in draw(st.lists(st.sampled_from(keys), max_size=repeated)) if keys else []:
        parts[draw(st.integers(0, 2))].add(key)
    return [sorted(part) for part in parts]


@settings(max_examples=25)
@given(keys_of_files(), st.lists(TEXT, max_size=5), st.data())
def test_keys_behave_like_a_list_and_find_rows_like_brute_force(parts, strangers, data):
    expected = list(itertools.chain.from_iterable(parts))
    keys = Keys([encode_keys(part) for part in parts])
    assert list(keys) == expected
    assert [keys[row] for row in range(-len(keys), len(keys))] == expected * 2
    part = data.draw(st.slices(len(expected)))
    assert keys[part] == expected[part]
    assert keys.encoded(slice(1, 4)).tolist() == [key.encode() for key in expected[1:4]]
    wanted = [*expected, *strangers, *(key + end for key in expected for end in ("a", "\0", "\n" * 30))]
    assert keys.rows(wanted).tolist() == [expected.index(key) if key in expected else -1 for key in wanted]


@settings(max_examples=50)
@given(keys_of_files(repeated=2))
def test_a_duplicate_is_found_exactly_where_there_is_one(parts):
    duplicate = find_duplicate([encode_keys(part) for part in parts])
    keys = [key.encode() for key in itertools.chain.from_iterable(parts)]
    assert (duplicate is None) == (len(set(keys)) == len(keys))
    assert duplicate is None or keys.count(duplicate) > 1
