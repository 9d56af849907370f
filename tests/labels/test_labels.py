import csv
import hashlib

import numpy as np
import pytest
from helpers.planted import write_cache
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.cache.keys import Keys, encode_keys
from pucache.errors import LabelError
from pucache.labels.label_files import short_digest
from pucache.labels.labels import Labels, check_labels, label_vector

NAMES = ["a.png", "b.jpg", "n/[1].png", "p/1.png", "p/2.jpg", "p/deep/1.png", "p/deep/er/2.png", "q/1.png", "é.png"]
KEYS = Keys([encode_keys(NAMES[:4]), encode_keys(NAMES[4:])])


# --- labels ------------------------------------------------------------------------------------


def test_labels_are_one_where_named_and_zero_elsewhere():
    s = label_vector(KEYS, "p/**")
    assert s.dtype == np.int8 and s.tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0]


def test_all_positive_or_none_leaves_nothing_to_learn():
    with pytest.raises(LabelError, match="all 9 rows are labelled positive; some must be unlabelled"):
        label_vector(KEYS, "**")
    with pytest.raises(ValueError, match="no labelled positives"):
        check_labels(np.zeros(3))


# --- what a review decided ---------------------------------------------------------------------

ODD = ['a,"b".png', "c\nd.png", "e\r\nf.png", "g\rh.png", "i\u2028j.png", " k .png", "é🦊.png", "'l'.png", "=m.png"]
DIGESTS = np.array([list(hashlib.sha256(key.encode()).digest()) for key in ODD], np.uint8)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """A cache of odd keys, the last image without a digest."""
    digests = DIGESTS.copy()
    digests[-1] = 0
    return write_cache(tmp_path_factory.mktemp("odd") / "odd.h5", np.eye(9, 2, dtype=np.float32), ODD, digests=digests)


def digest_of(key):
    return hashlib.sha256(key.encode()).hexdigest()[:16]


REVIEWED = ("key", "label", "reviewed", "digest")  # what a review sheet exports


def sheet(path, rows, columns=REVIEWED, *, bom="", end="\n", quoting=csv.QUOTE_ALL):
    """Write rows as a review sheet exports them: dicts by column."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        stream.write(bom)
        writer = csv.DictWriter(stream, columns, extrasaction="ignore", lineterminator=end, quoting=quoting)
        writer.writeheader()
        writer.writerows(rows)
    return path


def decided(key, label, reviewed=0, digest=""):
    return {"key": key, "label": label, "reviewed": reviewed, "digest": digest}


def told(cache, labels):
    """What is known of each key."""
    return {key: (int(s), int(r)) for key, s, r in zip(cache.keys, labels.s, labels.reviewed, strict=True)}


KINDS = {"labelled": (1, 0), "confirmed": (1, 1), "rejected": (0, 1), "undecided": ("", ""), "open": ("", 1)}
AS_READ = {"labelled": (1, 0), "confirmed": (0, 1), "rejected": (0, -1), "undecided": (0, 0), "open": (0, 0)}


@settings(deadline=None)
@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=6, max_size=6),
    columns=st.permutations([*REVIEWED, "note"]),
    keys=st.permutations(ODD),
    bom=st.sampled_from(["", "\ufeff"]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_a_review_is_read_whatever_its_columns_order_and_line_ends(
    tmp_path_factory, odd, kinds, columns, keys, bom, end
):
    every = dict(zip(keys, [*kinds, "labelled", "rejected"], strict=False))  # one key is not in the file
    rows = [decided(key, *KINDS[kind], digest_of(key)) | {"note": "x,y"} for key, kind in every.items()]
    path = sheet(tmp_path_factory.getbasetemp() / "review.csv", rows, columns, bom=bom, end=end)
    expected = {key: AS_READ[every.get(key, "undecided")] for key in ODD}
    assert told(odd, Labels.read(odd, path, path)) == expected
    alone = {key: (s, r if r > 0 else 0) for key, (s, r) in expected.items()}
    assert told(odd, Labels.read(odd, path)) == alone


def test_what_is_known_sorts_every_row_into_one_kind(odd, tmp_path):
    rows = [decided(ODD[0], 1), decided(ODD[1], 1, 1), decided(ODD[2], 0, 1)]
    labels = Labels.read(odd, *[sheet(tmp_path / "r.csv", rows)] * 2)
    named = [{key for key, told in zip(odd.keys, kind, strict=True) if told} for kind in
             (labels.positive, labels.negative, labels.unlabelled)]  # fmt: skip
    assert named == [set(ODD[:2]), {ODD[2]}, set(ODD[3:])]
    assert labels.s.dtype == labels.reviewed.dtype == np.int8


def test_what_a_review_confirmed_does_not_count_as_labelled(odd, tmp_path):
    before = Labels.read(odd, sheet(tmp_path / "before.csv", [decided(ODD[0], 1), decided(ODD[4], 1)]))
    rows = [decided(ODD[0], 1), decided(ODD[4], 1), decided(ODD[6], 1, 1), decided(ODD[7], 0, 1)]
    after = Labels.read(odd, *[sheet(tmp_path / "after.csv", rows)] * 2)
    assert (after.s == before.s).all() and after.positive.sum() == 3 and not before.reviewed.any()


def test_confirmed_positives_alone_are_nothing_to_rest_figures_on(odd, tmp_path):
    path = sheet(tmp_path / "r.csv", [decided(ODD[0], 1, 1), decided(ODD[1], 0, 1)])
    assert f"{path} holds only positives that a review confirmed" in refusal(odd, path)


@pytest.mark.parametrize("told, counts", [("1.0", True), ("true", True), (" 1 ", True), ("0.0", False), ("", False)])
def test_what_counts_as_reviewed_is_what_counts_as_a_label(odd, tmp_path, told, counts):
    labels = Labels.read(odd, sheet(tmp_path / "r.csv", [decided(ODD[0], 1), decided(ODD[1], 1, told)]))
    assert (labels.s.sum(), labels.reviewed.sum()) == ((1, 1) if counts else (2, 0))


def test_a_word_in_the_reviewed_column_is_one_line(odd, tmp_path):
    path = sheet(tmp_path / "r.csv", [decided(ODD[0], 1), decided(ODD[1], 1, "banana")])
    assert f"{path} has the value of 'reviewed' 'banana'; expected 1 or 0" in refusal(odd, path)


def test_scores_of_a_model_are_not_what_a_person_decided(odd, tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text(f'key,margin,posterior,label\n"{ODD[1]}",1.5,0.9,1\n', encoding="utf-8")
    assert f"{path} is a table of scores, whose labels are the model's own" in refusal(odd, path)


def test_labels_that_contradict_themselves_are_refused():
    s = np.array([1, 0, 0], np.int8)
    for bad in ([-1, 0, 0], [1, 0, 0], [0, 7, 0], [0, 0]):
        with pytest.raises(LabelError):
            Labels(s, np.array(bad, np.int8))
    with pytest.raises(LabelError, match="got other values"):
        Labels.of(2 * s)


@pytest.mark.parametrize("order", [1, -1])
def test_a_key_listed_as_labelled_and_as_confirmed_is_labelled(odd, tmp_path, order):
    rows = [decided(ODD[0], 1), decided(ODD[3], 1, 1), decided(ODD[3], 1, 0)][::order]
    labels = Labels.read(odd, sheet(tmp_path / "r.csv", rows))
    assert [odd.keys[int(row)] for row in np.flatnonzero(labels.s)] == sorted([ODD[0], ODD[3]], key=str.encode)


def test_negatives_may_be_a_list_or_a_glob_and_none_may_be_labelled_so(odd, tmp_path):
    (tmp_path / "no.txt").write_text(f"{ODD[8]}\n{ODD[5]}\n", encoding="utf-8")
    found = sheet(tmp_path / "found.csv", [decided(ODD[0], 1), decided(ODD[1], "")])
    assert Labels.read(odd, found, tmp_path / "no.txt").negative.sum() == 2
    assert Labels.read(odd, found, "*[kl]*").negative.sum() == 2
    assert not Labels.read(odd, found, found).negative.any()


@pytest.mark.parametrize("digest", [digest_of(ODD[2]), digest_of(ODD[2]).upper(), f" {digest_of(ODD[2])} ", "", "  "])
def test_a_digest_is_held_against_the_image_where_there_is_one(odd, tmp_path, digest):
    rows = [decided(ODD[2], 1, 0, digest), decided(ODD[8], 1, 0, "0123456789abcdef")]  # that one is not known here
    assert Labels.read(odd, sheet(tmp_path / "r.csv", rows)).s.sum() == 2


def test_a_full_digest_and_the_one_a_sheet_writes_down_are_both_taken(odd, tmp_path):
    assert short_digest(DIGESTS[0]) == f"sha256:{digest_of(ODD[0])}" and short_digest(0 * DIGESTS[0]) == ""
    for digest in (hashlib.sha256(ODD[0].encode()).hexdigest(), short_digest(DIGESTS[0]), digest_of(ODD[0])):
        assert Labels.read(odd, sheet(tmp_path / "r.csv", [decided(ODD[0], 1, 0, digest)])).s.sum() == 1


def refusal(cache, positives, negatives=None):
    with pytest.raises(LabelError) as caught:
        Labels.read(cache, positives, negatives)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("side", ["positives", "negatives"])
def test_a_review_of_other_images_is_one_line_that_names_them(odd, tmp_path, side):
    found = sheet(tmp_path / "found.csv", [decided(ODD[0], 1)])
    wrong = [decided(key, int(side == "positives"), 1, digest_of("other" + key)) for key in ODD[4:8]]
    path = sheet(tmp_path / "r.csv", wrong)
    said = refusal(odd, *((path,) if side == "positives" else (found, path)))
    assert f"4 of 4 keys in {path} are other images in {odd.name}" in said
    assert repr(ODD[4]) in said and "..." in said and "remove the digest column" in said


def test_a_key_that_is_positive_and_negative_is_one_line(odd, tmp_path):
    found, no = sheet(tmp_path / "f.csv", [decided(ODD[0], 1), decided(ODD[3], 1, 1)]), tmp_path / "no.txt"
    for key in (ODD[0], ODD[3]):
        other = sheet(no.with_suffix(".csv"), [decided(key, 0), decided(ODD[5], 0)])
        said = refusal(odd, found, other)
        assert f"1 keys are both in {found} and in {other} ({key!r}); decide which" in said
    both = sheet(tmp_path / "both.csv", [decided(ODD[0], 1), decided(ODD[0], 0, 1)])
    for negatives in (both, None):
        assert f"1 keys in {both} have both labels, 1 and 0" in refusal(odd, both, negatives)


@pytest.mark.parametrize("label", ["cat", "2", "maybe", "Trouser/Pants"])
def test_class_names_in_the_label_column_are_one_line_and_told_what_to_write(odd, tmp_path, label):
    path = sheet(tmp_path / "r.csv", [decided(ODD[0], label), decided(ODD[1], 1)])
    assert f"{path} has the label {label!r}; expected 1 or 0" in refusal(odd, path)
    fine = sheet(tmp_path / "fine.csv", [decided(ODD[0], 1)])
    assert f"{path} has the label {label!r}; expected 1 or 0" in refusal(odd, fine, path)


@pytest.mark.parametrize("label", ["0", ""])
def test_a_label_column_without_any_positive_names_the_lack(odd, tmp_path, label):
    path = sheet(tmp_path / "r.csv", [decided(ODD[0], label)])
    assert f"{path} lists no keys with the label 1" in refusal(odd, path)


def test_reviewing_every_row_leaves_nothing_to_find(odd, tmp_path):
    rows = [decided(key, int(number < 3), int(number > 0)) for number, key in enumerate(ODD)]
    path = sheet(tmp_path / "r.csv", rows)
    assert "all 9 rows are labelled; some must be unlabelled" in refusal(odd, path, path)
    assert Labels.read(odd, path).unlabelled.sum() == 6


def test_a_blank_label_is_undecided(odd, tmp_path):
    path = sheet(tmp_path / "r.csv", [decided(ODD[0], " 1 "), decided(ODD[1], "  ")])
    assert Labels.read(odd, path, path).positive.sum() == 1
