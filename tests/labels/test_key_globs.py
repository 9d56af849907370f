import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.labels.key_globs import compile_glob


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*", ["a", "é\n"], ["", "a/b"]),
        ("a*b*c", ["abc", "aXbXbXc", "abbcc"], ["ab", "a/b/c", "abcd"]),
        ("x/*/y*", ["x/a/y", "x/a/yy"], ["x/y", "x//y", "x/a/b/y"]),
        ("**", ["a", "a/b", ""], []),
        ("a/**/b*", ["a/b", "a/x/bc", "a/b/x/b"], ["a/x", "ab", "a/b/x"]),
        ("**/a*/b/**/c", ["a/b/c", "ax/x/ay/b/z/c", "a/a/b/c"], ["a/x/b/c", "a/b"]),
        ("[ab]x", ["ax", "bx"], ["x", "cx", "abx"]),
        ("[!ab]", ["c", "!"], ["a", "/", ""]),
        ("[a-c]*[0-9]", ["b7", "cx7"], ["d7", "b"]),
        ("[]]", ["]"], ["[", ""]),
        ("[!]]", ["[", "a"], ["]"]),
        ("[[]", ["["], ["]"]),
        ("[^a]", ["^", "a"], ["b"]),
        ("[&&~~||-]", ["&", "~", "|", "-"], ["a"]),
        ("[\\]", ["\\"], ["]"]),
        ("[", ["["], ["a"]),
        ("a[b", ["a[b"], ["ab"]),
        ("a.b+(c)", ["a.b+(c)"], ["axb+(c)"]),
    ],
)
def test_a_glob_matches_these_and_no_others(pattern, matching, other):
    matches = compile_glob(pattern)
    assert [key for key in matching if not matches(key)] == [] and [key for key in other if matches(key)] == []


@pytest.mark.parametrize("pattern", ["a**", "**b/c", "x/**y**", "***", "[z-a]"])
def test_a_glob_without_sense_is_refused(pattern):
    with pytest.raises(ValueError, match=re.escape(repr(pattern))):
        compile_glob(pattern)


@pytest.mark.parametrize("part", ["a*", "*?", "[a]*", "**/", "a*/", "**/a*/"])
def test_a_key_that_does_not_match_is_told_at_once(part):
    """The usual translation looks back for longer than the universe is old."""
    matches = compile_glob(part * 40 + "b")
    assert not matches("a" * 2000) and not matches("a/" * 1000 + "c")


NAMES = st.text("ab/", max_size=12)


@given(st.lists(st.sampled_from(["a", "b", "/", "*", "?", "**/", "/**/"]), max_size=8).map("".join), NAMES)
def test_a_glob_matches_as_trying_everything_does(pattern, key):
    try:
        matches = compile_glob(pattern)
    except ValueError:
        return
    assert bool(matches(key)) == bool(re.fullmatch(plain(pattern), key))


def plain(pattern):
    """The translation that looks back, which is right and for small patterns quick enough."""
    names = pattern.split("/")
    pieces = []
    for number, name in enumerate(names):
        last = number == len(names) - 1
        if name == "**":
            pieces.append(".*" if last else "(?:.*/)?")
            continue
        star = name.replace("?", "[^/]").replace("*", "[^/]*") if name != "*" else "[^/]+"
        pieces.append(star + ("" if last else "/"))
    return "".join(pieces)
