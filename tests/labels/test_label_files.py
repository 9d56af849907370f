import numpy as np
import pytest

from pucache.cache.keys import Keys, encode_keys
from pucache.errors import LabelError
from pucache.labels.label_files import find_keys, listed_positives, read_truth

NAMES = ["a.png", "b.jpg", "n/[1].png", "p/1.png", "p/2.jpg", "p/deep/1.png", "p/deep/er/2.png", "q/1.png", "é.png"]
KEYS = Keys([encode_keys(NAMES[:4]), encode_keys(NAMES[4:])])
NOTHING = Keys([encode_keys([])])


# --- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["found.txt", "found.csv"])
def test_a_file_gives_its_rows_sorted_and_once(write, name):
    listed = ["q/1.png", "a.png", "é.png", "a.png"]
    rows = find_keys(KEYS, write(name, "\n".join(["key"] * (name == "found.csv") + listed)))
    assert rows.tolist() == [0, 7, 8] and rows.dtype == np.int64


def test_a_file_whose_name_looks_like_a_glob_is_read(write):
    assert find_keys(KEYS, write("odd[1]*.txt", "b.jpg\n")).tolist() == [1]


@pytest.mark.parametrize(
    "unknown, count, shown",
    [(["x1"], "1 of 2", r"\('x1'\)"), (["x1", "x,2", "x3", "x4"], "4 of 5", r"\('x1', 'x,2', 'x3', ...\)")],
)
def test_unknown_keys_are_counted_and_the_first_few_named(write, unknown, count, shown):
    path = write("found.csv", "\n".join(["key", *(f'"{key}"' for key in [*unknown, "a.png"])]))
    with pytest.raises(LabelError, match=f"{count} keys in {path} are not in the cache {shown}.*such as 'a.png'"):
        find_keys(KEYS, path)


@pytest.mark.parametrize(
    "keys, wanted, message",
    [
        (KEYS, "absent/**", "no key matches 'absent/\\*\\*'.*such as 'a.png'"),
        (NOTHING, "p/**", "no key matches 'p/\\*\\*'.*source$"),
        (KEYS, "nowhere.txt", "no such file: nowhere.txt; expected a text file of keys, a CSV, or a glob"),
    ],
)
def test_what_finds_nothing_says_what_keys_look_like(keys, wanted, message):
    with pytest.raises(LabelError, match=message):
        find_keys(keys, wanted)


@pytest.mark.parametrize(
    "keys, content, message", [(KEYS, "\n \n", "lists no keys"), (NOTHING, "a.png\n", "the cache is empty")]
)
def test_an_empty_file_and_an_empty_cache_are_named(write, keys, content, message):
    with pytest.raises(LabelError, match=message):
        find_keys(keys, write("found.txt", content))


# --- columns ---------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["key,Label", "key, label", " KEY ,LABEL"])
def test_names_of_columns_are_read_without_case_and_spaces(write, header):
    path = write("found.csv", f"{header}\na.png,1\nb.png,0\n")
    assert listed_positives(path) == {"a.png"}
    assert read_truth(path, ["a.png", "b.png", "c.png"]).tolist() == [1, 0, -1]


def test_a_column_that_may_be_the_labels_is_refused_and_not_ignored(write):
    path = write("found.csv", "key,found\na.png,1\nb.png,0\n")
    for read in (listed_positives, lambda path: read_truth(path, ["a.png"])):
        with pytest.raises(
            LabelError, match=r"found\.csv has no column 'label', but 'found': call .* 'label'"
        ) as caught:
            read(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(LabelError, match="has two columns 'label'; rename one, or name another: --label-column"):
        listed_positives(write("found.csv", "key,label,Label\na.png,1,0\n"))
    assert listed_positives(write("ranked.csv", "rank,key,score\n1,a.png,0.5\n")) == {"a.png"}


# --- truth -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, header", [("truth.txt", ""), ("truth.csv", "key\n")])
def test_a_truth_list_makes_all_others_negative(write, name, header):
    assert read_truth(write(name, f"{header}a\nelsewhere\n"), ["b", "c", "a"]).tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("truth.csv", "key,label\na,1\nb,maybe\n", "has the label 'maybe'; expected 1 or 0"),
        ("truth.csv", "key,label\na\n", "has the label None"),
        ("truth.csv", "key,label\nx1,1\nx2,0\nx3,0\nx4,0\n", r"none of the 4 keys in .* \('x1', 'x2', 'x3', ...\)"),
        ("truth.csv", "key,label\n", "none of the 0 keys"),
        ("truth.txt", "x1\n", r"none of the 1 keys in .* has a score \('x1'\)"),
        ("truth.txt", "", "none of the 0 keys"),
    ],
)
def test_truth_that_says_nothing_about_the_scores_is_refused(write, name, content, message):
    with pytest.raises(LabelError, match=message):
        read_truth(write(name, content), ["a", "b"])
