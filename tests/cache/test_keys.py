"""Keys against a list of str, and the search for a key that two files hold against brute force."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.cache.keys import Keys, encode_keys, find_duplicate

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


@settings(max_examples=50)
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


@settings(max_examples=80)
@given(keys_of_files(repeated=2))
def test_a_duplicate_is_found_exactly_where_there_is_one(parts):
    duplicate = find_duplicate([encode_keys(part) for part in parts])
    keys = [key.encode() for key in itertools.chain.from_iterable(parts)]
    assert (duplicate is None) == (len(set(keys)) == len(keys))
    assert duplicate is None or keys.count(duplicate) > 1
