import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.deal import folds
from pucache.errors import LabelError
from pucache.keys import Keys, encode_keys
from pucache.labels import check_labels, find_keys, label_vector, read_truth
from pucache.tables import read_table, table_writer

NAMES = ["a.png", "b.jpg", "n/[1].png", "p/1.png", "p/2.jpg", "p/deep/1.png", "p/deep/er/2.png", "q/1.png", "é.png"]
KEYS = Keys([encode_keys(NAMES[:4]), encode_keys(NAMES[4:])])
NOTHING = Keys([encode_keys([])])


@pytest.fixture
def write(tmp_path):
    """Write content (bytes, or text as it is) to a file of this name."""

    def make(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def read_keys(path):
    return [row["key"] for row in read_table(path)]


# --- tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bom", ["", "\ufeff"], ids=["plain", "BOM"])
@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("keys.txt", "b.png\n\n a b.png\n   \nc,d.png", ["b.png", " a b.png", "c,d.png"]),
        ("keys", "b.png\r\na.png\r\n", ["b.png", "a.png"]),
        ("keys.txt", "a\u2028b.png\nc\x85\x0cd.png\n", ["a\u2028b.png", "c\x85\x0cd.png"]),
        ("keys.CSV", "key\nb.png\n\na.png\n", ["b.png", "a.png"]),
        ("keys.csv", "rank,key,score\r\n1,b.png,3\r\n2,a.png,1\r\n", ["b.png", "a.png"]),
        ("keys.csv", 'key\n"a\nb.png"\n"c\r\nd.png"\n"e""f,g"\n', ["a\nb.png", "c\r\nd.png", 'e"f,g']),
        ("keys.csv", "key\na\u2028b.png\nc\x85\x0cd.png\n", ["a\u2028b.png", "c\x85\x0cd.png"]),
        ("keys.csv", "key,label\na.png,1\n,\n,\n", ["a.png"]),
        ("keys.csv", "key\n", []),
        ("keys.txt", "", []),
    ],
)
def test_a_table_gives_the_keys_as_they_are(write, name, content, expected, bom):
    assert read_keys(write(name, bom + content)) == expected


def test_a_csv_keeps_its_other_columns(write):
    path = write("truth.csv", 'label,key\n1,"a,b"\n0,c\n')
    assert read_table(path) == [{"label": "1", "key": "a,b"}, {"label": "0", "key": "c"}]


@given(keys=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)))
def test_any_key_survives_being_written_and_read(tmp_path_factory, keys):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        write = table_writer(stream)
        for row in [["rank", "key"], *enumerate(keys)]:
            write(row)
    assert read_keys(path) == keys


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("keys.csv", "path,label\na,1\n", "has columns path, label; expected one called 'key'"),
        ("keys.csv", '"a\nb",c\n1,2\n', "has columns a b, c; expected one called 'key'"),
        ("keys.csv", "", r"has columns \(none\); expected one called 'key'"),
        ("keys.csv", 'key\na\n"b\n', "keys.csv line 3: unexpected end of data"),
        ("keys.csv", '"key\n', "keys.csv line 1: unexpected end of data"),
        ("keys.csv", 'key\n"a"b\n', "keys.csv line 2: "),
        ("keys.csv", "label,key\n1,a\n1\n", "has a row without a key"),
        ("keys.csv", "key,label\na,1\n,1\n", "has a row without a key"),
        ("keys.txt", b"a.png\n\xe9.png\n", r"not UTF-8 text \(byte 6\)"),
    ],
)
def test_what_is_no_table_is_refused_and_the_place_named(write, name, content, message):
    with pytest.raises(LabelError, match=message) as caught:
        read_table(write(name, content))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["missing.csv", "."])
def test_a_table_that_cannot_be_opened_is_named(tmp_path, name):
    with pytest.raises(LabelError, match=f"cannot read {tmp_path}"):
        read_table(tmp_path / name)


# --- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["found.txt", "found.csv"])
def test_a_file_gives_its_rows_sorted_and_once(write, name):
    listed = ["q/1.png", "a.png", "é.png", "a.png"]
    rows = find_keys(KEYS, write(name, "\n".join(["key"] * (name == "found.csv") + listed)))
    assert rows.tolist() == [0, 7, 8] and rows.dtype == np.int64


@pytest.mark.parametrize(
    "pattern, expected",
    [
        ("*.png", ["a.png", "é.png"]),
        ("p/*", ["p/1.png", "p/2.jpg"]),
        ("p/**", ["p/1.png", "p/2.jpg", "p/deep/1.png", "p/deep/er/2.png"]),
        ("**/2.*", ["p/2.jpg", "p/deep/er/2.png"]),
        ("p/**/1.png", ["p/1.png", "p/deep/1.png"]),
        ("[pq]/?.png", ["p/1.png", "q/1.png"]),
        ("n/[[]1].png", ["n/[1].png"]),
        ("**", NAMES),
    ],
)
def test_a_glob_keeps_one_star_within_a_folder_and_two_do_not(pattern, expected):
    assert KEYS[find_keys(KEYS, pattern)] == expected


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


# --- labels and folds --------------------------------------------------------------------------


def test_labels_are_one_where_named_and_zero_elsewhere():
    s = label_vector(KEYS, "p/**")
    assert s.dtype == np.int8 and s.tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0]


def test_all_positive_or_none_leaves_nothing_to_learn():
    with pytest.raises(LabelError, match="all 9 rows are labelled positive; some must be unlabelled"):
        label_vector(KEYS, "**")
    with pytest.raises(ValueError, match="no labelled positives"):
        check_labels(np.zeros(3))


@given(st.integers(0, 40), st.integers(0, 400), st.integers(2, 300), st.integers(0, 9))
def test_folds_deal_labelled_and_unlabelled_rows_evenly(labelled, unlabelled, count, seed):
    s = np.random.default_rng(seed).permutation([1] * labelled + [0] * unlabelled)
    fold = folds(s, count, seed)
    for side in (fold[s == 1], fold[s == 0]):
        sizes = np.bincount(side, minlength=count)
        assert len(sizes) == count and sizes.max() - sizes.min() <= 1


def test_folds_depend_on_the_seed_and_on_nothing_else():
    s = np.arange(200) < 20
    assert (folds(s, 5, 1) == folds(s, 5, 1)).all()
    assert (folds(s, 5, 1) != folds(s, 5, 2)).any()


def test_without_groups_and_with_single_ones_folds_are_the_same():
    s = np.random.default_rng(0).permutation(np.arange(200) < 23).astype(np.int8)
    alone = folds(s, 5, 3)
    generator = np.random.default_rng(3)
    for value in (0, 1):
        rows = generator.permutation(np.flatnonzero(s == value))
        assert (alone[rows] == np.arange(len(rows)) % 5).all()
    assert (folds(s, 5, 3, groups=np.arange(200)) == alone).all()
    assert (folds(s, 5, 3, groups=7 * np.arange(200)[::-1]) == alone).all()


grouped = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 1)), min_size=1, max_size=60)


@given(grouped, st.integers(2, 6), st.integers(0, 9))
def test_groups_stay_whole_and_every_fold_holds_both_where_possible(rows, count, seed):
    groups, s = np.array(rows).T
    fold = folds(s, count, seed, groups=groups)
    assert (fold == folds(s, count, seed, groups=groups)).all()
    assert fold.min() >= 0 and fold.max() < count
    assert all(len(np.unique(fold[groups == number])) == 1 for number in groups)
    with_p, with_u = set(groups[s == 1].tolist()), set(groups[s == 0].tolist())
    assert len(np.unique(fold[s == 1])) == min(count, len(with_p))
    assert len(np.unique(fold[s == 0])) == min(count, len(with_u))
    if len(with_p & with_u) + min(len(with_p - with_u), len(with_u - with_p)) >= count:
        assert all({0, 1} == set(s[fold == number].tolist()) for number in range(count))


@given(grouped, st.integers(2, 6), st.integers(0, 9))
def test_rows_on_their_own_even_out_what_groups_left_uneven(rows, count, seed):
    groups, s = np.array(rows).T
    groups = np.concatenate([groups, 100 + np.arange(700)])
    s = np.concatenate([s, np.arange(700) % 2])
    fold = folds(s, count, seed, groups=groups)
    for value in (0, 1):
        sizes = np.bincount(fold[s == value], minlength=count)
        assert sizes.max() - sizes.min() <= 1


def test_groups_of_one_kind_differ_by_at_most_the_largest():
    sizes = np.random.default_rng(0).integers(2, 9, 300)
    groups = np.repeat(np.arange(300), sizes)
    s = (groups < 60).astype(np.int8)
    fold = folds(s, 5, groups=groups)
    for value in (0, 1):
        held = np.bincount(fold[s == value], minlength=5)
        assert held.max() - held.min() <= 8
    assert (fold != folds(s, 5, 1, groups=groups)).any()


def test_positives_that_are_all_twins_leave_the_other_folds_without_any():
    s = np.array([1, 1, 1, 0, 0, 0, 0, 0, 0], np.int8)
    fold = folds(s, 3, groups=np.array([4, 4, 4, 4, 5, 6, 7, 8, 9]))
    assert np.bincount(fold[s == 1], minlength=3).tolist() == [3, 0, 0]
    assert np.bincount(fold[s == 0], minlength=3).tolist() == [2, 2, 2]


def test_folds_want_one_group_a_row():
    with pytest.raises(ValueError, match="expected one group for each of 3 rows, got groups \\(2,\\)"):
        folds(np.array([1, 0, 0]), 2, groups=np.arange(2))


# --- truth -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "yes, no", [("1", "0"), ("1", "-1"), ("true", "False"), (" YES ", "no"), ("positive", "Negative")]
)
def test_a_truth_table_takes_the_usual_words_and_leaves_the_rest_open(write, yes, no):
    path = write("truth.csv", f"label,key\n{yes},a\n{no},b\n{yes},elsewhere\n")
    assert read_truth(path, ["b", "c", "a"]).tolist() == [0, -1, 1]


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
