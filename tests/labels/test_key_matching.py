"""Keys that another tool has spelled name the right images by a rule, or none."""

import re
import unicodedata

import numpy as np
import pytest
from helpers.planted import write_cache
from helpers.refusals import one_line
from hypothesis import given
from hypothesis import strategies as st

from pucache import read_labels
from pucache.cache.keys import Keys, encode_keys
from pucache.errors import LabelError
from pucache.labels.key_matching import RULES, offered_rule, respelled
from pucache.labels.listing import compile_glob
from pucache.labels.row_values import read_truth
from pucache.storage.tables import LabelTable

NAMES = [*(f"train/car/{number:04}.png" for number in range(6)), "train/cat/a b.jpg", "train/cat/Zoé.JPG", "v1.2"]
IMAGES = sorted(NAMES, key=str.encode)
KEYS = Keys([encode_keys(IMAGES)])


def name_of(key):
    return key.rpartition("/")[2]


def without_ending(key):
    return key if key == "v1.2" else key.rpartition(".")[0]


def uploaded(key):
    return f"3f9a12bc-{name_of(key)}"


SPELLED = {
    "quotes": lambda key: f' "{key}"',
    "slashes": lambda key: key.replace("/", "\\"),
    "url": lambda key: key.replace("/", "%2F").replace(" ", "%20"),
    "url+folders": lambda key: f"https://a.org/x/{key.replace(' ', '%20')}?sig=a%2Fb.png#top",
    "unicode": lambda key: unicodedata.normalize("NFD", key),
    "case": str.upper,
    "hash": lambda key: f"{key.removesuffix(name_of(key))}{uploaded(key)}",
    "numbers": lambda key: key.replace("/000", "/"),
    "endings": without_ending,
    "folders": lambda key: f"/data/photos/{key}",
    "ends": lambda key: key.removeprefix("train/"),
    "names": lambda key: f"elsewhere/{name_of(key)}",
    "slashes+folders": lambda key: "C:\\photos\\" + key.replace("/", "\\"),
    "case+folders": lambda key: f"D:/Fotos/{key.upper()}",
    "endings+ends": lambda key: name_of(without_ending(key)),
    "hash+names": lambda key: f"upload/1/{uploaded(key)}",
}


@pytest.mark.parametrize("rule", SPELLED)
def test_a_rule_is_found_and_names_the_images(rule):
    given_as = {SPELLED[rule](image): image for image in IMAGES}
    unknown = [key for key, image in given_as.items() if key != image]
    known = [image for key, image in given_as.items() if key == image]
    assert offered_rule(KEYS, unknown, known) == rule
    assert respelled(list(given_as), KEYS, rule, "x.txt") == IMAGES
    assert respelled(list(given_as), KEYS, "auto", "x.txt") == IMAGES


@pytest.mark.parametrize("listed", ["12", "12.0"])
def test_a_spreadsheet_s_numbers_name_images(listed):
    keys = Keys([encode_keys(["x/0012.png", "x/0120.png"])])
    assert offered_rule(keys, [listed]) == "numbers+endings+ends"
    assert respelled([listed], keys, "auto", "x.csv") == ["x/0012.png"]
    assert offered_rule(Keys([encode_keys(["000012", "000120"])]), [listed]) == "numbers"


@pytest.mark.parametrize(
    ("images", "listed", "known"),
    [
        (["car/1.png", "cat/1.png"], ["1.png"], []),  # two images
        (["car/1.png"], ["1.png", "x/1.png"], []),  # two keys of one image
        (["car/1.png"], ["1.png"], ["car/1.png"]),
        (["car/1.png", "car/2.png"], ["1.png", "3.png"], []),  # one that is nowhere
        (["A.png", "a.png"], ["a.PNG"], []),
        ([], ["a"], []),
    ],
)
def test_no_rule_is_offered_where_a_key_names_no_image_of_its_own(images, listed, known):
    assert offered_rule(Keys([encode_keys(images)]), listed, known) == ""


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


@given(
    images=st.sets(TEXT, min_size=1, max_size=8),
    listed=st.lists(TEXT, max_size=5),
    rule=st.sampled_from(sorted(RULES)),
)
def test_what_is_matched_is_an_image_of_its_own(images, listed, rule):
    keys = Keys([encode_keys(sorted(images, key=str.encode))])
    try:
        found = respelled(listed, keys, rule, "x.txt")
    except LabelError as error:
        assert "--match-keys" in str(error)
        return
    named = {key: image for key, image in zip(listed, found, strict=True) if image in images}
    assert len(set(named.values())) == len(named)
    assert all(image == key for key, image in zip(listed, found, strict=True) if key not in named)


def test_the_error_names_the_rule_and_the_rule_is_taken_and_said(tmp_path, write, caplog):
    cache = write_cache(tmp_path / "c.h5", np.eye(len(IMAGES), dtype="f4"), IMAGES)
    path = write("found.txt", "0001.png\n0002.png\n0002.png\n")
    text = one_line(LabelError, read_labels, cache, path)
    assert "as the ends of keys each names one image: pucache labels --match-keys ends" in text
    assert np.flatnonzero(read_labels(cache, path, match_keys="ends").only.s).tolist() == [1, 2]
    assert "found.txt: 2 of 2 keys are matched by ends, such as '0001.png' as 'train/car/0001.png'" in caplog.text


def test_truth_may_cover_other_images(write):
    path = str(write("truth.csv", "key,label\n0001.png,1\n0002.png,0\nelsewhere.png,1\n"))
    scored = [IMAGES[2], IMAGES[1], "other.png"]
    assert "pucache labels --match-keys ends" in one_line(LabelError, read_truth, path, scored)
    assert read_truth(LabelTable(path, match_keys="ends"), scored).tolist() == [0, 1, -1]


def test_truth_may_begin_with_a_dot_and_contradicts_itself_in_two_spellings(write):
    path = str(write("truth.csv", "key,label\n./a.png,1\nb.png,0\n"))
    assert read_truth(path, ["a.png", "b.png"]).tolist() == [1, 0]
    path = str(write("truth.csv", "key,label\n./a.png,1\na.png,0\n"))
    assert "'a.png' has both labels" in one_line(LabelError, read_truth, path, ["a.png", "b.png"])


# --- key globs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*", ["a", "é\n"], ["", "a/b"]),
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


@given(
    st.lists(st.sampled_from(["a", "b", "/", "*", "?", "**/", "/**/"]), max_size=8).map("".join),
    st.text("ab/", max_size=12),
)
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
