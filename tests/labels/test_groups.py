"""Groups in every form that people have them in."""

import re
import signal
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from helpers import cache_files
from helpers.planted import write_cache
from helpers.refusals import one_line

from pucache import EmbeddingCache, read_labels
from pucache.errors import LabelError
from pucache.labels.groups import read_groups
from pucache.labels.near_duplicates import joined_groups

KEYS = ["p1/a.png", "p1/b.png", "p2/a.png", "p2/b.png", "p3/a.png", "p3/b.png"]
GROUPS = ["x", "x", "y", "y", "x", "z"]
NUMBERS = [0, 0, 2, 2, 0, 5]  # first row of each group
ORDER = [3, 1, 5, 0, 2, 4]
BY_KEY = {KEYS[row]: GROUPS[row] for row in ORDER}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    return write_cache(tmp_path_factory.mktemp("six") / "six.h5", X, KEYS)


def rows_of(cache, given, **options):
    """The first row of each row's group."""
    return read_labels(cache, groups=given, **options).group.tolist()


IN_MEMORY = {
    "list": GROUPS,
    "array": np.array(GROUPS),
    "dict": BY_KEY,
    "Series by key": pd.Series(BY_KEY),
    "frame": pd.DataFrame({"key": list(BY_KEY), "patient": list(BY_KEY.values())}),
    "Arrow table": pa.table({"key": list(BY_KEY), "group": list(BY_KEY.values())}),
}


@pytest.mark.parametrize("form", IN_MEMORY)
def test_groups_in_memory_are_joined_by_key_or_by_position(cache, form):
    assert rows_of(cache, IN_MEMORY[form]) == NUMBERS


def test_groups_in_a_table_are_of_the_usual_column_the_only_other_or_the_one_that_is_named(cache, tmp_path):
    rows = [f"{key},{group}" for key, group in BY_KEY.items()]
    tables = {
        "usual.csv": ["path,group", *rows],
        "other.csv": ["key,camera", *rows],
        "named.csv": ["key,camera,extra", *(f"{row},1" for row in rows)],
        "tabs.tsv": [line.replace(",", "\t") for line in ["key,group", *rows]],
    }
    for name, lines in tables.items():
        (tmp_path / name).write_text("\n".join(lines))
    pa.parquet.write_table(pa.table({"key": list(BY_KEY), "site": list(BY_KEY.values())}), tmp_path / "t.parquet")
    for name in ("usual.csv", "other.csv", "named.csv:camera", "tabs.tsv", "t.parquet", "t.parquet:site"):
        assert rows_of(cache, f"{tmp_path}/{name}") == NUMBERS, name
    assert rows_of(cache, tmp_path / "usual.csv") == NUMBERS
    with pytest.raises(LabelError, match="columns camera, extra; name that of groups: TABLE:COLUMN"):
        read_groups(cache, tmp_path / "named.csv")


def test_a_pattern_is_searched_in_keys_and_its_first_parentheses_are_the_group(cache):
    assert rows_of(cache, "(.*)/[^/]*") == [0, 0, 2, 2, 4, 4]
    assert rows_of(cache, r"p\d/(.)\.png") == [0, 1, 0, 1, 0, 1]
    assert rows_of(cache, re.compile("/(a)|(b)")) == [0, 1, 0, 3, 0, 5]


def test_keys_are_matched_as_those_of_labels_are(cache, tmp_path):
    (tmp_path / "g.csv").write_text("key,group\n" + "\n".join(f"{key.upper()},{one}" for key, one in BY_KEY.items()))
    with pytest.raises(LabelError, match="pucache labels --match-keys case"):
        read_groups(cache, tmp_path / "g.csv")
    assert rows_of(cache, tmp_path / "g.csv", match_keys="auto") == NUMBERS


@pytest.mark.parametrize(
    "given",
    [
        {"p1/a.png": "x", "p1/b.png": "x", "p2/a.png": "y", "elsewhere.png": "y"},
        ["x", "x", "y", None, float("nan"), " "],
        "(p1|p2/a)",
    ],
    ids=["dict", "list", "pattern"],
)
def test_images_without_a_group_are_groups_of_their_own_and_are_counted(cache, caplog, given):
    assert rows_of(cache, given) == [0, 0, 2, 3, 4, 5]
    assert "3 of 6 images a group; the other 3 count as groups of their own" in caplog.text
    assert ("1 of its keys are not in the cache ('elsewhere.png')" in caplog.text) == isinstance(given, dict)


MISSING = [None, float("nan"), np.nan, "", " ", pd.NA, pd.NaT, np.datetime64("NaT"), np.float32("nan")]


@pytest.mark.parametrize("missing", MISSING, ids=repr)
def test_only_what_is_missing_is_no_group_whatever_pandas_writes_for_it(cache, tmp_path, missing):
    names = ["NA", "None", "NA", missing, "nan", missing]
    by_key = dict(zip(KEYS, names, strict=True))
    for given in (names, by_key, pd.Series(by_key), pd.DataFrame({"key": KEYS, "group": names})):
        assert rows_of(cache, given) == [0, 1, 0, 3, 4, 5]
    numbers = pd.Series([7, 7, 2, None, 7, None], index=KEYS, dtype="Int64")
    for given in (numbers, numbers.astype("float64"), numbers.astype("string"), numbers.astype("Int64").to_frame()):
        assert rows_of(cache, given) == [0, 0, 2, 3, 0, 5]
    numbers.rename_axis("key").rename("group").to_csv(tmp_path / "g.csv")
    assert rows_of(cache, tmp_path / "g.csv") == [0, 0, 2, 3, 0, 5]


def test_the_group_of_an_image_is_that_of_its_parts(tmp_path, caplog):
    parts = [f"{key}#xywh=percent:{x},0,50,100" for key in KEYS[:3] for x in (0, 50)]
    spec = replace(cache_files.SPEC, tiles="1x2")
    cache = EmbeddingCache(cache_files.write(tmp_path / "parts.h5", parts, spec=spec))
    assert rows_of(cache, {KEYS[0]: "x", KEYS[2]: "x", parts[2]: "y", "gone": "z"}) == [0, 0, 2, 3, 0, 0]
    assert "1 of its keys are not in the cache ('gone')" in caplog.text


def test_a_pattern_that_never_ends_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("pucache.labels.groups.PATTERN_SECONDS", 0.2)
    cache = write_cache(tmp_path / "long.h5", np.eye(2, dtype="f4"), ["a" * 60, "b/c"])
    before = signal.getsignal(signal.SIGALRM)
    assert "takes more than 0.2 s on the keys" in one_line(LabelError, read_groups, cache, "((.+)+)+#")
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("(a{99999999999})", "neither a file nor a regular expression"),
        ("(" * 1000, "neither a file nor a regular expression"),
        (r"(?P<x>a)(?P=y)", "neither a file nor a regular expression"),
        (re.compile("p1"), "the pattern 'p1' has no group in parentheses"),
        ("nowhere.csv", "no such file: nowhere.csv; expected groups as a table"),
        (r"\(p", "has no group in parentheses"),
        ("(q)", r"gives none of the 6 images a group; keys are paths, such as 'p1/a.png'"),
        ("(p)", "all 6 images are of the one group 'p'"),
        (["x", "y"], "expected a group for each of 6 rows"),
        ({"q/1.png": "x"}, "1 of its keys are not in the cache"),
        (pd.Series(GROUPS, index=ORDER), "groups are given by key"),
        (pd.DataFrame({"key": [KEYS[0], KEYS[0]], "group": ["x", "y"]}), "the groups: two groups for 1 key"),
        (np.zeros((6, 2)), "expected a group for each"),
    ],
)
def test_what_names_no_groups_is_refused_in_one_line(cache, given, message):
    assert re.search(message, one_line(LabelError, read_groups, cache, given))


def test_groups_that_share_a_row_are_one():
    assert joined_groups(np.array([0, 0, 2, 3, 4]), np.array([0, 1, 1, 3, 3])).tolist() == [0, 0, 0, 3, 3]
