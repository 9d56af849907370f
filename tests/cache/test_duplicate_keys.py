"""The search for a key that two files hold, against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.cache import duplicate_keys
from pucache.cache.duplicate_keys import _hashes, find_duplicate
from pucache.cache.keys import encode_keys

STEMS = st.text("ab/é0", min_size=1, max_size=20)


@st.composite
def parts_of_keys(draw):
    """Sorted keys of several files, of different widths; often without a duplicate."""
    keys = draw(st.lists(STEMS, max_size=40, unique=True))
    homes = draw(st.lists(st.integers(0, 3), min_size=len(keys), max_size=len(keys)))
    parts = [{key for key, home in zip(keys, homes, strict=True) if home == part} for part in range(4)]
    for key in draw(st.lists(st.sampled_from(keys), max_size=2)) if keys else []:
        parts[draw(st.integers(0, 3))].add(key)
    return [np.sort(encode_keys(sorted(part))) for part in parts]


@settings(max_examples=300, deadline=None)
@given(parts_of_keys(), st.integers(1, 50), st.integers(1, 4))
def test_a_duplicate_is_found_exactly_where_there_is_one(parts, size, sampled):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicate_keys, "_RANGE_KEYS", size)
        patch.setattr(duplicate_keys, "_RANGE_KEYS_PER_FILE", 1)
        patch.setattr(duplicate_keys, "_SAMPLES_PER_RANGE", sampled)
        patch.setattr(duplicate_keys, "_HASHED_KEYS", 7)
        duplicate = find_duplicate(parts)
    keys = list(itertools.chain.from_iterable(part.tolist() for part in parts))
    if len(set(keys)) == len(keys):
        assert duplicate is None
    else:
        assert keys.count(duplicate) > 1


def test_keys_of_equal_hash_are_compared(monkeypatch):
    monkeypatch.setattr(duplicate_keys, "_hashes", lambda keys: np.zeros(len(keys), np.uint32))
    assert find_duplicate([encode_keys(["a", "c"]), encode_keys(["b", "dd"])]) is None
    assert find_duplicate([encode_keys(["a", "c"]), encode_keys(["b", "c", "dd"])]) == b"c"


def test_shards_cut_by_range_are_not_hashed(monkeypatch):
    monkeypatch.setattr(duplicate_keys, "_hashes", lambda keys: 1 / 0)
    assert (
        find_duplicate([encode_keys(["m", "n"]), encode_keys([]), encode_keys(["a", "l"]), encode_keys(["z"])]) is None
    )


def test_hashes_of_many_like_keys_hardly_collide():
    keys = np.array([f"folder-{row // 1000:04}/image-{row:08}.jpg" for row in range(1 << 16)], "S")
    assert len(np.unique(_hashes(keys))) > len(keys) - 10
    assert np.array_equal(_hashes(keys), _hashes(keys.astype(f"S{keys.itemsize + 11}")))
