import csv
import hashlib
import re

import numpy as np
import pytest
from helpers.planted import write_cache
from helpers.refusals import one_line
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.errors import LabelError
from pucache.labels.label_files import short_digest
from pucache.labels.labels import Labels, open_labels

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


@pytest.fixture
def write_sheet(tmp_path):
    """Write a review sheet of these rows, each the arguments of `decided`."""
    return lambda *rows, name="r.csv": sheet(tmp_path / name, [decided(*row) for row in rows])


def refusal(cache, positives, negatives=None):
    """The one line with which labels are refused."""
    return one_line(LabelError, Labels.read, cache, positives, negatives)


def by_key(cache, labels):
    """What is known of each key."""
    return {key: (int(s), int(r)) for key, s, r in zip(cache.keys, labels.s, labels.reviewed, strict=True)}


KINDS = {"labelled": (1, 0), "confirmed": (1, 1), "rejected": (0, 1), "undecided": ("", ""), "open": ("", 1)}
AS_READ = {"labelled": (1, 0), "confirmed": (0, 1), "rejected": (0, -1), "undecided": (0, 0), "open": (0, 0)}


@settings(max_examples=30)
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
    assert by_key(odd, Labels.read(odd, path, path)) == expected
    alone = {key: (s, r if r > 0 else 0) for key, (s, r) in expected.items()}
    assert by_key(odd, Labels.read(odd, path)) == alone


@pytest.mark.parametrize("order", [1, -1])
def test_a_key_listed_as_labelled_and_as_confirmed_is_labelled(odd, write_sheet, order):
    labels = Labels.read(odd, write_sheet(*[(ODD[0], 1), (ODD[3], 1, 1), (ODD[3], 1, 0)][::order]))
    assert [odd.keys[int(row)] for row in np.flatnonzero(labels.s)] == sorted([ODD[0], ODD[3]], key=str.encode)


def test_negatives_may_be_a_list_or_a_glob_and_none_may_be_labelled_so(odd, write_sheet, tmp_path):
    (tmp_path / "no.txt").write_text(f"{ODD[8]}\n{ODD[5]}\n", encoding="utf-8")
    found = write_sheet((ODD[0], " 1 "), (ODD[1], "  "))  # a blank label is undecided
    negatives = [Labels.read(odd, found, listing).negative.sum() for listing in (tmp_path / "no.txt", "*[kl]*", found)]
    assert negatives == [2, 2, 0] and Labels.read(odd, found).positive.sum() == 1


SHORT = digest_of(ODD[2])
FULL = hashlib.sha256(ODD[2].encode()).hexdigest()


@pytest.mark.parametrize("digest", [SHORT, SHORT.upper(), f" {SHORT} ", f"sha256:{SHORT}", FULL, "", "  "])
def test_a_digest_is_compared_with_the_image_s_where_both_are_known(odd, write_sheet, digest):
    path = write_sheet((ODD[2], 1, 0, digest), (ODD[8], 1, 0, "0123456789abcdef"))  # not known of that one
    assert Labels.read(odd, path).s.sum() == 2
    assert short_digest(DIGESTS[2]) == f"sha256:{SHORT}" and short_digest(0 * DIGESTS[0]) == ""


# --- what is refused in one line -----------------------------------------------------------------


@pytest.mark.parametrize(
    "rows, message",
    [
        ([(ODD[0], 1, 1), (ODD[1], 0, 1)], "holds only positives that a review confirmed"),
        ([(ODD[0], 1), (ODD[1], 1, "banana")], "has the value of 'reviewed' 'banana'; expected 1 or 0"),
        ([(ODD[0], "Trouser/Pants"), (ODD[1], 1)], "has the label 'Trouser/Pants'; expected 1 or 0"),
        ([(ODD[0], "2"), (ODD[1], 1)], "has the label '2'; expected 1 or 0"),
        ([(ODD[0], "0")], "lists no keys with the label 1"),
        ([(ODD[0], "")], "lists no keys with the label 1"),
        ([(ODD[0], 1), (ODD[0], 0, 1)], f"have both labels, 1 and 0 ({ODD[0]!r}); decide which"),
        ([(key, 1) for key in ODD], "all 9 rows are labelled positive; some must be unlabelled"),
    ],
)
def test_positives_without_sense_are_refused(odd, write_sheet, rows, message):
    path = write_sheet(*rows)
    assert message in (said := refusal(odd, path)) and (str(path) in said or "all 9" in said)


def test_scores_of_a_model_are_not_what_a_person_decided(odd, tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text(f'key,margin,posterior,label\n"{ODD[1]}",1.5,0.9,1\n', encoding="utf-8")
    assert f"{path} is a table of scores, whose labels are the model's own" in refusal(odd, path)


def test_labels_that_contradict_themselves_are_refused():
    s = np.array([1, 0, 0], np.int8)
    for bad in ([-1, 0, 0], [1, 0, 0], [0, 7, 0], [0, 0]):
        with pytest.raises(LabelError):
            Labels(s, np.array(bad, np.int8))
    with pytest.raises(LabelError, match="labels are numbers, 1 or 0; row 0 has 2"):
        Labels.of(2 * s)
    with pytest.raises(LabelError, match="no labelled positives; name at least one"):
        Labels.of(0 * s).check()


@pytest.mark.parametrize("side", ["positives", "negatives"])
def test_a_review_of_other_images_names_them(odd, write_sheet, side):
    found = write_sheet((ODD[0], 1), name="found.csv")
    path = write_sheet(*((key, int(side == "positives"), 1, digest_of("other" + key)) for key in ODD[4:8]))
    said = refusal(odd, *((path,) if side == "positives" else (found, path)))
    assert f"4 of 4 keys in {path} are other images in {odd.name}" in said
    assert repr(ODD[4]) in said and "..." in said and "remove the digest column" in said


@pytest.mark.parametrize("key", [ODD[0], ODD[3]])
def test_a_key_that_is_positive_and_negative_is_refused(odd, write_sheet, key):
    found = write_sheet((ODD[0], 1), (ODD[3], 1, 1), name="found.csv")
    other = write_sheet((key, 0), (ODD[5], 0))
    assert f"1 keys are both in {found} and in {other} ({key!r}); decide which" in refusal(odd, found, other)


def test_reviewing_every_row_leaves_nothing_to_find(odd, write_sheet):
    path = write_sheet(*((key, int(number < 3), int(number > 0)) for number, key in enumerate(ODD)))
    assert "all 9 rows are labelled; some must be unlabelled" in refusal(odd, path, path)
    assert Labels.read(odd, path).unlabelled.sum() == 6


@pytest.mark.parametrize("bad", [None, 7, 1.5, b"a.png", object], ids=["None", "7", "1.5", "bytes", "a class"])
def test_what_is_no_kind_of_labels_is_refused_with_the_kinds_that_are(odd, bad):
    text = one_line(LabelError, open_labels, odd, bad)
    assert re.search("expected labels as a file or list of keys, or one value .* a row; got", text)
