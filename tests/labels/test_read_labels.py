"""Labels of every form: what the bytes of a file say of the rows of a cache, or the one line that refuses them."""

import dataclasses
import gzip
import hashlib
import io
import json
import re
import shlex

import numpy as np
import pandas as pd
import pyarrow
import pyarrow as pa
import pytest
import torch
from click.testing import CliRunner
from helpers import cache_files
from helpers.command_line import refused, run, table
from helpers.planted import ODD_KEYS, planted, write_cache
from helpers.refusals import one_line
from helpers.sources import tar
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import pucache
from pucache import EmbeddingCache, Labels, PULabels, read_labels, train_pu, write_labels
from pucache.cli.main import main
from pucache.errors import LabelError, PUCacheError
from pucache.labels.read_labels import open_labels
from pucache.labels.row_values import read_truth, read_values
from pucache.storage.tables import read_table

KEYS = ["7.png", "a/1.png", "a/2.png", "b/1.png", "b/2.png", "é.png"]
PARTS = ["percent:0,0,50,100", "percent:50,0,50,100"]
PART_KEYS = [f"{image}#xywh={part}" for image in ("a/1.jpg", "a/2.jpg", "b/[1].jpg") for part in PARTS]


def make(folder):
    """A cache of the keys, and one of parts of three images."""
    tiles = dataclasses.replace(cache_files.SPEC, tiles="1x2")
    cache_files.write(folder / "parts.h5", PART_KEYS, spec=tiles)
    return EmbeddingCache(cache_files.write(folder / "c.h5", KEYS, source="/data/photos"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return make(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def parts(cache):
    return EmbeddingCache(cache.files[0].path.parent / "parts.h5")


def signs(labels):
    """Each row of a concept: + positive, c confirmed in a review, - negative, . neither."""
    return "".join("+" if s else ".c-"[reviewed] for s, reviewed in zip(labels.s, labels.reviewed, strict=True))


def of_each(labels):
    return {name: signs(one) for name, one in labels.columns.items()}


def cells_of(*cells, header="key,label"):
    """A table with these cells for the first rows."""
    return "\n".join([header, *(f"{key},{cell}" for key, cell in zip(KEYS, cells, strict=False))]) + "\n"


# --- cells ---------------------------------------------------------------------------------------

CELLS = [
    (["1", "1.0", " TRUE", "Yes", "positive", ""], {}, "+++++."),
    (["1", "0.0", "False ", "NO", "negative", ""], {}, "+----."),
    (["1", "", " ", "nan", "None", "n/a"], {}, "+....."),
    (["1", "NULL", "<NA>", "#N/A", "na", "-0"], {}, "+....-"),
    (["1", "-1", "-1.0", ""], {}, "+--..."),
    (["1", "-1", "0", "-1.0"], {"undecided": ["-1", "-1.0"]}, "+.-..."),
    (["1", "-1.0", "0", " -1"], {"undecided": ["-1"]}, "+.-..."),
    (["3.0", "4.0", "0.0", "03", "3"], {"label_value": "3", "undecided": ["0"]}, "+-.-+."),
    (["1e2", "100", "100.00"], {"label_value": "100"}, "-++..."),
    (["9007199254740993", "9007199254740992"], {"label_value": "9007199254740993"}, "+-...."),
    (["1", "?", "0", " Unsure "], {"undecided": ["?", "unsure"]}, "+.-..."),
    (["Ja", "JA", "ja ", "Nein", "", "nan"], {"label_value": "jA"}, "+++-.."),
    (["3", "4", "-1", "-1.0", "-7", "0"], {"label_value": "3"}, "+-...-"),
    (["-1", "0", "1"], {"label_value": "-1"}, "+--..."),
    (["Mass", "Effusion|Mass", "Effusion", "No Mass"], {"label_value": "mass", "label_separator": "|"}, "++--.."),
    (["cat; dog", "dog", "catfish; dog", ""], {"label_value": "cat", "label_separator": ";"}, "+--..."),
    (["cat dog", "dog", "cat  bird"], {"label_value": "cat", "label_separator": " "}, "+-+..."),
    (["x|y", "x"], {"label_value": "x|y"}, "+-...."),
]


@pytest.mark.parametrize(("cells", "options", "expected"), CELLS, ids=lambda value: " ".join(value)[:40])
@pytest.mark.parametrize("concept", [False, True])
def test_cells_mean_what_other_programs_mean_by_them(cache, write, cells, options, expected, concept):
    content = cells_of(*cells)
    if concept:
        content = content.replace("\n", ",car\n").replace("label,car", "label,concept")
    read = read_labels(cache, write("t.csv", content), **options)
    assert of_each(read) == {"car" if concept else "": expected}


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_a_cell_that_is_an_array_holds_several_labels(cache, tmp_path, ending):
    """Labels may hold any separator; of arrays of 0 and 1 nobody knows which apply."""
    names = [["cat", "dog|bird"], ["dog", "bird"], ["cat"], [], None]
    for cells, value, expected in (
        (names, "cat", "+-+..."),
        (names, "dog|bird", "+--..."),
        ([[3, 7], [7]], "3", "+-...."),
    ):
        table = pyarrow.table({"key": KEYS[: len(cells)], "label": cells})
        path = tmp_path / f"t.{ending}"
        path.write_text(json.dumps(table.to_pylist())) if ending == "json" else parquet.write_table(table, path)
        assert of_each(read_labels(cache, path, label_value=value)) == {"": expected}
        assert "has the column 'label' of arrays" in one_line(LabelError, read_table, path, {"key": ["label"]})
        assert "expected 1 or 0" in one_line(LabelError, read_labels, cache, path)


def test_json_of_labels_by_key_may_be_arrays(cache, write):
    content = dict(zip(KEYS, (["cat"], ["dog", "cat"], ["dog"], []), strict=False))
    assert of_each(read_labels(cache, write("t.json", json.dumps(content)), label_value="cat")) == {"": "++-..."}


def test_labels_beside_images_are_read_of_several_parquet_files(tmp_path):
    for part, kinds in enumerate([["x", "y"], ["x", None]]):
        images = [{"bytes": b"", "path": name} for name in "ab"]
        parquet.write_table(pyarrow.table({"image": images, "kind": kinds}), tmp_path / f"{part}.parquet")
    path = cache_files.write(tmp_path / "c.h5", [f"{part}.parquet/{name}" for part in "01" for name in "ab"])
    for files in ("*.parquet", "{0..1}.parquet"):
        read = read_labels(path, tmp_path / files, label_column="kind", label_value="x")
        assert of_each(read) == {"": "+-+."}


CELLS_REFUSED = [
    (
        ['"{""choices"": [""Cat"", ""Dog""]}"'],
        {"label_value": "Cat"},
        """; 'Cat' is one of several in 1 cell, such as '{"choices": .*--label-separator '"' takes""",
    ),
    (["Not cat"], {"label_value": "cat"}, "has no 'cat'; it has 'Not cat'$"),
    (["1", "2"], {}, "has the label '2'"),
    (["1", "1_0"], {}, "has the label '1_0'"),
    (["yes", "no", "-1.0"], {}, r"'-1\.0' beside 1 and 0"),
    (["A", "b"], {"label_value": "AA"}, "the label column of .*t.csv has no 'AA'; it has 'A', 'b'$"),
    (["", " "], {"label_value": "x"}, "has no 'x'; it has blank cells alone"),
    (["Mass;Effusion"], {"label_value": "Effusion", "label_separator": "|"}, "'Effusion' .*r ';' takes"),
    (["0", "0"], {}, "no key in .*t.csv has the label 1"),
    (["", ""], {}, "no key in .*t.csv has the label 1"),
    (["1"] * 6, {}, "all 6 rows are labelled positive; some must be unlabelled"),
    (["1", *["0"] * 5], {}, "all 6 rows are labelled; some must be unlabelled"),
]


@pytest.mark.parametrize(("cells", "options", "reason"), CELLS_REFUSED, ids=lambda value: " ".join(value)[:40])
def test_cells_that_may_mean_another_thing_are_asked_about(cache, write, cells, options, reason):
    assert re.search(reason, one_line(LabelError, read_labels, cache, write("t.csv", cells_of(*cells)), **options))


@pytest.mark.parametrize(
    ("cells", "options", "said"),
    [
        (["Ja", "Nein", "Ja", ""], {"label_value": "ja"}, "'Ja' 2 (positive), 'Nein' 1 (negative), '' 1 (undecided)"),
        (["4", "-1", "4"], {"label_value": "4"}, "'4' 2 (positive), '-1' 1 (undecided)"),
        (["M", "E|M", "E M", "E"], {"label_value": "M"}, "; 'M' is one of several in 2 cells, such as 'E|M': pucache"),
        (["yes", "no"], {}, "'yes' 1 (positive), 'no' 1 (negative)"),
        ([*"abcd", "x" * 99], {"label_value": "a"}, f"'{'x' * 40}' 1 (negative)"),
    ],
)
def test_cells_that_were_met_are_said_with_their_numbers(cache, write, caplog, cells, options, said):
    read_labels(cache, write("t.csv", cells_of(*cells)), **options)
    assert said in caplog.text
    caplog.clear()
    read_labels(cache, write("t.csv", cells_of("1", "0", "")))
    assert "labels in" not in caplog.text, "1, 0 and blank need no words"


# --- files -----------------------------------------------------------------------------------------


def in_parquet(**columns):
    stream = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), stream)
    return stream.getvalue()


MEMBERS = {"a/1.png": b"x", "a/1.cls": b"3", "7.png": b"x", "7.cls": b"4"}
PACKED = tar(*MEMBERS.items())
ROWS = "a/1.png,1\n7.png,0\n"
FILES = [
    ("list.txt", "a/1.png\né.png\na/1.png\n", {}, ".+...+"),
    ("odd[1]*.txt", "a/1.png\n", {}, ".+...."),
    ("ranked.csv", "rank,key,score\n1,a/1.png,.5\n", {}, ".+...."),
    ("index.csv", ",key,label\n0,a/1.png,1\n", {}, ".+...."),
    ("t.json", '{"a/1.png": 1, "7.png": false, "é.png": null}', {}, "-+...."),
    ("t.parquet", in_parquet(image_path=["a/1.png", "7.png", "é.png"], label=[1, 0, None]), {}, "-+...."),
    ("classes.parquet", in_parquet(key=["a/1.png", "7.png", "é.png"], y=[3, 0, -1]),
     {"label_column": "Y", "label_value": "3"}, "-+...."),
    ("named.csv", "key,label\né.png,1\n".encode("mac_roman"), {"encoding": "mac_roman"}, ".....+"),
    *((f"{name}.csv", f"{name},Class\n{ROWS}", {}, "-+....") for name in ("Image Path", "file-name", "FILENAME", "ID")),
    ("odd.csv", f"Foto,n,Rot?\n{ROWS.replace(',', ',9,')}", {"key_column": "foto", "label_column": "rot?"}, "-+...."),
    ("twice.csv", "key,label\na/1.png,1\na/1.png,1\n", {}, ".+...."),
    ("timelapse.csv", "RelativePath,File,label\na,1.png,1\nb\\,2.png,0\n,7.png,0\n",
     {"key_column": "relativepath+file"}, "-+..-."),
    ("ends.csv", "key,label\nx/y/a/1.png,1\n", {"match_keys": "folders"}, ".+...."),
    ("a/*", None, {}, ".++..."),
    ("**/[1].png", None, {}, ".+.+.."),
    *((name, content, {"label_column": "cls", "label_value": "3"}, "-+....")
      for name, content in (("s.tar", PACKED), ("s.TGZ", gzip.compress(PACKED)))),
    ("moved.tar", tar(*((f"x/{name}", data) for name, data in MEMBERS.items())),
     {"label_column": "cls", "label_value": "3", "match_keys": "folders"}, "-+...."),
    ("reviewed.csv", "key,label,reviewed\na/1.png,1,0\n7.png,0,1\nb/1.png,1,1\na/1.png,1,1\n", {}, "-+.c.."),
    ("spare.csv", f"key,label,patient,class\n{ROWS.replace(chr(10), ',p,q' + chr(10))}", {}, "-+...."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "options", "expected"), FILES, ids=[case[0] for case in FILES])
def test_a_file_of_any_form_labels_the_rows_that_it_names(cache, write, name, content, options, expected):
    source = name if content is None else write(name, content)
    assert of_each(read_labels(cache, source, **options)) == {"": expected}


SCORES = "key,margin,posterior,label\na/1.png,1.5,.9,1\n"
REFUSED = [
    ("absent/**", None, {}, r"no key matches 'absent/\*\*'.*such as '7.png'"),
    ("a**", None, {}, r"'a\*\*'"),
    ("empty.txt", "\n \n", {}, "lists no keys"),
    ("t.csv", "key,label\nx1,1\na/1.png,0\n", {}, r"1 of 2 keys in .* are not in the cache \('x1'\); keys are paths"),
    ("t.txt", "x1\nx,2\nx3\nx4\na/1.png\n", {}, r"4 of 5 keys .* \('x1', 'x,2', 'x3', ...\)"),
    ("t.csv", f"key,label\n{ROWS}a/1.png,0\n", {}, r"t.csv has both labels, 1 and 0, for 1 key \('a/1.png'\)"),
    ("t.csv", "key,label\nb/2.png,0\nphotos/b/2.png,1\n", {}, "has both labels, 1 and 0"),
    ("t.csv", "key,label\na/1.png,1\nA/1.png,0\n", {"match_keys": "case"}, "'a/1.png' and 'A/1.png' .* are one image"),
    ("t.csv", "key,Key\na,b\n", {}, "has columns 'key' and 'Key', and either may be the key; .*: pucache labels --key"),
    ("t.csv", "name,label\na,1\n", {}, "has columns name, label; expected one called 'key', .* pucache labels --key"),
    ("t.csv", ",label\na,1\n", {}, "has columns , label; expected one called 'key': the first row must name every"),
    ("t.csv", "a.PNG,1\nb.png,0\n", {}, "begins with a row: a.png, 1; write the names of the columns above it"),
    ("t.csv", "key,x\na,1\n", {"label_column": "y"}, "has columns key, x; expected one called 'y'"),
    ("t.csv", "Dir,Name\na,1\n", {"key_column": "Folder+Name"}, "expected one called 'Folder'"),
    ("t.csv", "key,x\na,1\n", {"label_value": "yes"}, "expected one called 'label', .* pucache labels --label-column"),
    ("t.txt", "7.png\n", {"label_value": "yes"}, "lists keys alone; expected a table with a column 'label' too"),
    ("t.txt", "7.png 1\na/1.png 0\n", {}, "such as '7.png', and no line is one: save a table as .csv"),
    ("t.xml", "<image name='7.png'/>\n", {}, "and no line is one"),
    ("t.csv", "key,label\n,0\n,1\n", {}, "has no row with a key"),
    ("t.csv", SCORES, {}, "is a table of scores, whose labels are the model's own"),
    (
        "t.csv",
        "key,label,reviewed\na/1.png,1,1\n7.png,0,1\n",
        {},
        "all positives in .*t.csv are those that a review confirmed",
    ),
    ("t.csv", "key,label,reviewed\na/1.png,1,banana\n", {}, "has the reviewed 'banana'; expected 1 or 0"),
    ("t.csv", "key,concept,label\na/1.png,..,1\n", {}, "plain file name"),
    ("t.csv", "key,concept\nx1,cat\nx2,dog\n", {}, "none of the 2 concepts .*cat: 1 of 1 keys .* are not in"),
    ("t.csv", "key,concept,label\na/1.png,cat,0\n", {}, "none of the 1 concepts in .* can be used; cat: no key in "),
    ("t.csv", "key,label\na/1.png,1\n", {"match_keys": "ends+base"}, "must be auto, or of quotes, slashes"),
    ("t.csv", "key,label\n1.png,1\n", {"match_keys": "ends"}, "--match-keys ends finds several images each"),
]


@pytest.mark.parametrize(
    ("name", "content", "options", "reason"),
    REFUSED,
    ids=[f"{number} {case[0]}" for number, case in enumerate(REFUSED)],
)
def test_a_file_that_is_not_understood_is_refused_in_one_line(cache, write, name, content, options, reason):
    source = name if content is None else write(name, content)
    assert re.search(reason, one_line((LabelError, ValueError), read_labels, cache, source, **options))


@pytest.mark.parametrize("prefix", ["", "./", "photos/", "./photos/", "/data/photos/", "data/photos/", "a/"])
def test_the_path_of_the_source_before_keys_is_left_out_and_said(cache, write, caplog, prefix):
    assert signs(read_labels(cache, write("x.txt", f"{prefix}a/1.png\n{prefix}a/2.png\n")).only) == ".++..."
    assert (f"begin with {prefix!r}, the source itself" in caplog.text) == bool(prefix)
    with pytest.raises(LabelError, match="pucache labels --match-keys folders"):
        read_labels(cache, write("x.txt", "other/a/1.png\n"))


LISTED = {"csv": b"path;label\na/1.png;1\n", "parquet": in_parquet(key=["a/1.png"], label=[1]), "txt": b"a/1.png\n"}
LISTED["tar"] = tar(("a/1.png", b"x"), ("a/1.cls", b"yes"))


@pytest.mark.parametrize("ending", LISTED)
def test_a_table_behind_a_url_is_read(cache, memory, ending):
    memory.pipe(f"/labels/x.{ending}", LISTED[ending])
    named = {"label_column": "cls"} if ending == "tar" else {}
    assert signs(read_labels(cache, f"memory://labels/x.{ending}", **named).only) == ".+...."
    source, reason = f"memory://labels/none.{ending}", "cannot read memory://labels/none."
    if ending == "parquet":  # of which a glob stands for those of images
        source, reason, named = "memory://labels/*.parquet", "holds no images", {"label_column": "label"}
    assert reason in one_line(PUCacheError, read_labels, cache, source, **named)


@pytest.mark.parametrize("digest", ["", "  ", "{short}", " {SHORT} ", "sha256:{short}", "{long}"])
def test_a_digest_tells_images_apart_whose_keys_are_equal(tmp_path, write, digest):
    digests = np.array([list(hashlib.sha256(key.encode()).digest()) for key in KEYS], np.uint8)
    digests[-1] = 0  # unknown
    cache = write_cache(tmp_path / "digests.h5", np.eye(6, dtype="f4"), KEYS, digests=digests)
    text = hashlib.sha256(b"a/1.png").hexdigest()
    digest = digest.format(short=text[:16], SHORT=text[:16].upper(), long=text)
    found = write("t.csv", f"key,label,digest\na/1.png,1,{digest}\né.png,1,0123456789abcdef\n")
    assert signs(read_labels(cache, found).only) == ".+...+"
    other = write("o.csv", f"key,label,digest\na/1.png,1,{digest}\na/2.png,0,{text}\n")
    assert re.search(
        "1 of 2 keys in .* are other images in .*digests.h5 .'a/2.png'.*remove the digest column",
        one_line(LabelError, read_labels, cache, other),
    )


def test_several_tables_are_one_and_negatives_are_a_list_a_table_or_a_glob(cache, write):
    one, two = write("1.csv", "key,label\na/1.png,1\n"), write("2.txt", "b/1.png\n")
    assert signs(read_labels(cache, one, two).only) == ".+.+.."
    no = write("no.txt", "7.png\n"), "*.png", write("no.csv", "key,label\n7.png,0\nb/2.png,1\n")
    assert [signs(read_labels(cache, one, negatives=each).only) for each in no] == ["-+....", "-+...-", "-+...."]
    assert signs(read_labels(cache, ["a/1.png"], negatives=["7.png"]).only) == "-+...."
    assert re.search(
        "positive and negative at once: 1 key, 'a/1.png'; decide which",
        one_line(LabelError, read_labels, cache, one, negatives="a/1*"),
    )
    for bad in (write("3.csv", "key,label,concept\na/1.png,1,x\n"), write("4.csv", "key,label,group\na/1.png,1,x\n")):
        assert "give both of them one" in one_line(LabelError, read_labels, cache, one, bad)


# --- columns of keys -------------------------------------------------------------------------------

ODD_COLUMN = [  # tables, groups, negatives
    (["Bild,label\na/1.png,1\n"], "key,group\na/1.png,x\na/2.png,y\n", None),
    (["key,label\na/1.png,1\n"], "Bild,group\na/1.png,x\na/2.png,y\n", None),
    (["Bild,label\na/1.png,1\n", "key,label\na/1.png,1\n"], None, None),
    (["Bild,label\na/1.png,1\n"], "Bild,kind\na/1.png,x\na/2.png,y\n", "key\n7.png\n"),
    (["key,label\na/1.png,1\n"], None, "Bild\n7.png\n"),
]


@pytest.mark.parametrize(("tables", "groups", "negatives"), ODD_COLUMN)
def test_a_column_of_keys_that_is_named_is_that_of_each_file_that_has_it(cache, write, tables, groups, negatives):
    files = [write(f"{number}.csv", text) for number, text in enumerate(tables)]
    others = {"groups": groups and write("g.csv", groups), "negatives": negatives and write("no.csv", negatives)}
    labels = read_labels(cache, *files, **others, key_column="Bild")
    assert signs(labels.only) == ("-+...." if negatives else ".+....")
    assert groups is None or labels.group.tolist() == [0, 1, 2, 3, 4, 5]
    assert "expected one called" in one_line(LabelError, read_labels, cache, *files, **others, key_column="Foto")


# --- concepts --------------------------------------------------------------------------------------

CONCEPTS = "key,concept,label\na/1.png,cat,1\na/2.png,cat,0\na/1.png,dog,1\nb/1.png,dog,1\n"
EXPECTED = {"cat": ".+-...", "dog": ".+.+.."}


def test_a_table_a_folder_and_a_mapping_of_concepts_say_the_same(cache, write, tmp_path):
    rows = [line.split(",") for line in CONCEPTS.splitlines()]
    columns = dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True))
    (tmp_path / "lists").mkdir()
    write("lists/cat.csv", "key,label\na/1.png,1\na/2.png,0\n")
    write("lists/dog.txt", "a/1.png\nb/1.png\n")
    write("lists/notes.md", "no list")
    mapping = {"dog": ["a/1.png", "b/1.png"], "cat": pd.Series({"a/1.png": 1, "a/2.png": 0})}
    sources = [
        (write("t.csv", CONCEPTS), {}),
        (write("t.parquet", in_parquet(**{name: list(cells) for name, cells in columns.items()})), {}),
        (write("k.csv", CONCEPTS.replace("concept", "Kind")), {"concept_column": "kind"}),
        (tmp_path / "lists", {}),
        (mapping, {}),
    ]
    for source, options in sources:
        read = read_labels(cache, source, **options)
        assert of_each(read) == EXPECTED and list(read.columns) == ["cat", "dog"] and not read.failures
    arrays = {name: np.array([one in "+" for one in row]) for name, row in EXPECTED.items()}
    assert of_each(read_labels(cache, arrays)) == {"cat": ".+....", "dog": ".+.+.."}


NO_NAMES = ["", "..", "../up", "a\\b", "a:b", ".hidden", "end.", " x", "a\nb", "nul", "CON", "Con.x", "\udcff", "a,b"]


@pytest.mark.parametrize("bad", [b"", b"\x81.png", b"key,label\na/1.png,maybe\n", b"x/9.png\n", b"\0" * 99])
def test_a_list_of_a_folder_or_mapping_that_fails_stops_no_other(cache, tmp_path, write, bad):
    (tmp_path / "lists").mkdir()
    write("lists/cat.txt", "a/1.png\n"), write("lists/bad.csv", bad)
    lists = {name: tmp_path / "lists" / name for name in ("cat.txt", "bad.csv")}
    for form in (tmp_path / "lists", {path.stem: path for path in lists.values()}):
        labels = read_labels(cache, form)
        assert list(labels.columns) == ["cat"] and list(labels.failures) == ["bad"]
    lists["cat.txt"].write_text("")
    with pytest.raises(LabelError, match=r"none of the 2 concepts in .* can be used"):
        read_labels(cache, tmp_path / "lists")


def test_a_row_without_a_key_is_left_out_and_said(cache, write, caplog):
    labels = read_labels(cache, write("t.csv", "key,label\na/1.png,1\n,1\n,0\nb/2.png,0\n"))
    assert signs(labels.only) == ".+..-."
    assert "2 of 4 rows have no key and are left out, first row 3" in caplog.text


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        *(([name], "plain file name") for name in [*NO_NAMES, "x" * 101]),
        (["Cat", "cat"], "one file name on some machines"),
        (["é", "e\u0301"], "one file name on some machines"),
    ],
)
def test_concepts_are_called_by_plain_file_names(cache, tmp_path, names, reason):
    assert reason in one_line(LabelError, read_labels, cache, {name: ["7.png"] for name in names})


def test_a_folder_has_one_list_of_each_concept(cache, tmp_path, write):
    assert "holds no lists" in one_line(LabelError, read_labels, cache, tmp_path)
    for name in ("cat.csv", "cat.txt"):
        write(name, "key\n7.png\n")
    assert "name them one by one" in one_line(LabelError, read_labels, cache, f"{tmp_path}/*.csv")
    assert "two lists of the concepts 'cat'" in one_line(LabelError, read_labels, cache, tmp_path)


# --- parts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list", "a/1.jpg\na/2.jpg\n"),
        ("t.csv", f'key,label\na/1.jpg,1\na/2.jpg,1\n"{PART_KEYS[4]}",0\n"{PART_KEYS[0]}",1\n'),
        ("c.csv", "key,concept,label\na/1.jpg,ship,1\na/2.jpg,ship,1\n"),
        ("a/*", None),
        ("**/[12].jpg", None),
    ],
)
def test_images_label_their_parts_where_that_is_asked_for_alone(parts, write, name, content):
    source = name if content is None else write(name, content)
    reason = r"names [23] whole images \('a/1.jpg', .* name the parts, .* pucache labels --all-parts"
    assert re.search(reason, one_line(LabelError, read_labels, parts, source))
    (found,) = of_each(read_labels(parts, source, all_parts=True)).values()
    assert found == ("++++-." if name == "t.csv" else "++++..")


def test_keys_of_parts_label_parts_and_a_mark_in_the_name_of_a_whole_image_is_none(parts, tmp_path, write):
    listed = write("p.txt", f"{PART_KEYS[0]}\n{PART_KEYS[3]}\n")
    assert signs(read_labels(parts, listed).only) == "+..+.."
    assert signs(read_labels(parts, "a/*#xywh=percent:0,*").only) == "+.+..."
    whole = EmbeddingCache(cache_files.write(tmp_path / "whole.h5", PART_KEYS))
    assert signs(read_labels(whole, listed).only) == "+..+.." and signs(read_labels(whole, "a/*").only) == "++++.."


# --- the table that every command takes ------------------------------------------------------------

NAMES = ["cat", "old cat", "é", "=x"]


@st.composite
def labels_of(draw, keys):
    """Any labels of these rows that can be used: positives, confirmed and rejected rows, concepts, groups."""
    one = st.lists(st.sampled_from(["+", "c", "-", "."]), min_size=len(keys) - 2, max_size=len(keys) - 2)
    names = draw(st.one_of(st.just([""]), st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)))
    columns = {}
    for name in sorted(names):
        drawn = np.array(draw(st.permutations([*draw(one), "+", "."])))
        reviewed = (drawn == "c").astype(np.int8) - (drawn == "-")
        columns[name] = PULabels((drawn == "+").astype(np.int8), reviewed)
    groups = draw(st.none() | st.lists(st.integers(0, len(keys) // 2), min_size=len(keys), max_size=len(keys)))
    first = None if groups is None else np.array([groups.index(group) for group in groups])
    return Labels(columns, group=first)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """A cache of odd keys, one image without a digest."""
    keys = [*ODD_KEYS, "k .png", "  "]
    digests = np.random.default_rng(0).integers(0, 256, (len(keys), 32)).astype(np.uint8)
    digests[3] = 0
    X = np.eye(len(keys), 2, dtype=np.float32)
    return write_cache(tmp_path_factory.mktemp("odd") / "odd.h5", X, keys, digests=digests)


@given(data=st.data(), named=st.booleans())
@settings(max_examples=60)
def test_labels_that_are_written_are_read_as_they_were(tmp_path_factory, odd, data, named):
    labels = data.draw(labels_of(odd.keys))
    path = tmp_path_factory.getbasetemp() / "written.csv"
    names = None
    if named and labels.group is not None:
        names = ["NA" if first == 0 else f"None {first}" for first in labels.group]
    counts = write_labels(odd, labels, path, group_names=names)
    read = read_labels(odd, path)
    assert of_each(read) == of_each(labels) and not read.failures
    assert (read.group is None) if labels.group is None else (read.group == labels.group).all()
    said = "".join(of_each(labels).values())
    assert counts["positive"] == said.count("+") + said.count("c") and counts["negative"] == said.count("-")
    assert of_each(open_labels(odd, read)) == of_each(labels)


def test_groups_alone_are_written_and_read_without_labels(cache, tmp_path):
    labels = read_labels(cache, groups="(.*)/")
    assert write_labels(cache, labels, tmp_path / "g.csv")["groups"] == 4
    read = read_labels(cache, tmp_path / "g.csv")
    assert signs(read.only) == "......" and read.group.tolist() == [0, 1, 1, 3, 3, 5]


# --- a list of positives ---------------------------------------------------------------------------


def test_in_a_list_of_positives_what_is_0_is_left_aside_and_in_labels_it_is_a_negative(cache, write):
    path = write("t.csv", "key,label,group,concept\na/1.png,1,x,p\n7.png,0,x,q\n")
    in_memory = {"a/1.png": 1, "7.png": 0}
    assert signs(open_labels(cache, path).only) == signs(open_labels(cache, in_memory).only) == ".+...."
    assert open_labels(cache, path).group is None
    path = write("t.csv", "key,label\na/1.png,1\n7.png,0\n")
    assert signs(read_labels(cache, path).only) == signs(read_labels(cache, in_memory).only) == "-+...."


@pytest.mark.parametrize("bad", [None, 7, 1.5, b"a.png", object], ids=["None", "7", "1.5", "bytes", "a class"])
def test_what_is_no_kind_of_labels_is_refused_with_the_kinds_that_are(cache, bad):
    for read in (open_labels, train_pu):
        assert re.search(
            "expected labels as a file or list of keys, or one value .* got", one_line(LabelError, read, cache, bad)
        )


# --- pucache labels --------------------------------------------------------------------------------


@pytest.fixture
def here(cache, parts, tmp_path, monkeypatch):
    """A working directory with c.h5 and parts.h5."""
    monkeypatch.chdir(tmp_path)
    for each in (cache, parts):
        (tmp_path / each.files[0].path.name).symlink_to(each.files[0].path)
    return tmp_path


FOLLOWED = [  # what is given, the advice that is printed, and what the user writes after it
    ("c.h5", cells_of("Ja", "Nein"), "--label-value", " ja", "+-...."),
    ("c.h5", cells_of("M", "E|M", "E"), "--label-separator '|'", " --label-value m", "++-..."),
    ("c.h5", cells_of("E|M", "E"), "--label-separator '|'", " --label-value m", "+-...."),
    ("c.h5", cells_of("\"['M', 'E']\"", "M"), '--label-separator "\'"', " --label-value m", "++...."),
    ("c.h5", cells_of("1", "-1", "0"), "--undecided=-1", "", "+.-..."),
    ("c.h5", "Bild,label\n7.png,1\n", "--key-column", " bild", "+....."),
    ("c.h5", "image path,image-path,label\n7.png,x,1\n", "--key-column", " 'image path'", "+....."),
    ("c.h5", "key,Rot\n7.png,1\n", "--label-column", " rot", "+....."),
    ("c.h5", "key,Rot\n7.png,ja\n", "--label-column", " rot --label-value ja", "+....."),
    ("c.h5", "key,label,Label\n7.png,1,0\n", "--label-column", " label", None),
    ("c.h5", "key\nA\\1.PNG\nB\\1.PNG\n", "--match-keys slashes+case", "", ".+.+.."),
    ("parts.h5", "key\na/1.jpg\n", "--all-parts", "", "++...."),
    ("c.h5", "key\né.png\n".encode("cp437"), "--encoding", " cp437", ".....+"),
]


@pytest.mark.parametrize(("of", "content", "advice", "more", "expected"), FOLLOWED)
def test_the_option_that_a_line_names_does_what_it_says(here, write, caplog, of, content, advice, more, expected):
    write("t.csv", content)
    options = more if "--label-value" in more else ""
    said = CliRunner().invoke(main, ["labels", of, "t.csv", *shlex.split(options)])
    assert re.search(f"(pucache labels |: |by |; ){re.escape(advice)}", caplog.text + said.stderr)
    followed = CliRunner().invoke(main, ["labels", of, "t.csv", *shlex.split(f"{advice}{more}")])
    assert (followed.exit_code == 0) == (expected is not None), followed.output
    assert expected is None or signs(read_labels(of, "labels.csv").only) == expected


def test_what_was_read_and_what_was_left_out_is_said_and_keys_that_are_unknown_exit_with_3(here, write, caplog):
    write("t.csv", "File,State\na/1.png,ship\n7.png,sea\nb/1.png,\ngone.png,ship\nother.png,sea\n")
    ended = run("labels c.h5 t.csv --label-column state --label-value Ship --groups '(.*)/' --out new.csv", 3)
    for line in (
        "'ship' 2 (positive), 'sea' 2 (negative), '' 1 (undecided)",
        "1 positive, 1 negative",
        "1 without a label are undecided, and left out",
        "left out, as c.h5 lacks them: 2 keys ('gone.png', 'other.png'); its keys are such as '7.png'",
        "4 groups",
        "wrote 6 rows to new.csv",
    ):
        assert line in caplog.text + ended.output
    read = read_labels("c.h5", "new.csv")
    assert signs(read.only) == "-+...." and read.group.tolist() == [0, 1, 1, 3, 3, 5]
    rows = table(here / "new.csv")
    assert rows[1] == {"key": "a/1.png", "label": "1", "group": "a"} and rows[5]["label"] == ""
    told = json.loads(run("labels c.h5 t.csv --label-column state --label-value Ship --json", 3).stdout)
    assert (told["positive"], told["negative"], told["undecided"], told["unknown"]) == (1, 1, 1, 2)
    write("t.csv", "key\n1.png\n")
    assert "not in" in refused("labels c.h5 t.csv")
    assert signs(read_labels("c.h5", "new.csv").only) == "-+....", "a refusal writes nothing"


def test_a_concept_that_cannot_be_used_is_named_and_the_others_are_written(here, write):
    write("t.csv", "key,concept\na/1.png,cat\ngone.png,dog\n")
    ended = run("labels c.h5 t.csv", 3)
    assert "dog" in ended.stderr and "not in the cache" in ended.stderr and "cat" in ended.stdout
    assert of_each(read_labels("c.h5", "labels.csv")) == {"cat": ".+...."}


# --- Values of rows in every form that people have them in, through every function that takes them ---

A, D = KEYS[0], KEYS[3]
S = np.array([1, 0, 0, 1, 0, 0])
ORDER = [3, 1, 5, 0, 2, 4]
NAMES_OF, VALUES = [KEYS[row] for row in ORDER], S[ORDER]


BY_POSITION = {
    "int64": S,
    "list": S.tolist(),
    "bool": S == 1,
    "float16": S.astype(np.float16),
    "tensor": torch.tensor(S),
    "Series": pd.Series(S),
    "frame": pd.DataFrame({"s": S}),
    "Arrow": pa.array(S),
}
BY_KEY = {
    "dict": dict(zip(NAMES_OF, VALUES, strict=True)),
    "Series": pd.Series(VALUES, index=NAMES_OF),
    "categorical index": pd.Series(VALUES, index=pd.Categorical(NAMES_OF)),
    "frame": pd.DataFrame({"key": NAMES_OF, "label": VALUES}),
    "frame by index": pd.DataFrame({"label": VALUES, "split": "train"}, index=NAMES_OF),
    "Arrow table": pa.table({"key": NAMES_OF, "label": VALUES}),
}
KEYS_ALONE = {
    "list": [A, D],
    "set": {A, D},
    "generator": iter([A, D]),
    "array": np.array([A, D]),
    "Series": pd.Series([D, A]),
    "frame": pd.DataFrame({"path": [A, D]}),
    "Arrow": pa.chunked_array([[A], [D]]),
}
WRONG = {
    "-1": -S,
    "column": S[:, None],
    "masked": np.ma.masked_array(S, mask=[0, 1, 0, 0, 0, 0]),
    "ragged": [[1], [0, 1]],
    "short": S[:4],
    "nothing": [],
    "row numbers": [0, 3],
    "bytes": [b"a", b"d"],
    "missing": pd.Series([1, None, 0, 0, 0, 0], dtype="Int64"),
    "with gradients": torch.ones(6, requires_grad=True),
    "backwards": pd.Series(S, index=range(5, -1, -1)),
    "two levels": pd.Series(S, index=pd.MultiIndex.from_tuples([(key, 0) for key in KEYS])),
    "dict with NaN": {A: 1, D: np.nan},
    "unknown key": {A: 1, "zz": 1},
    "two values": pd.Series([1, 0], index=[A, A]),
    "Series of text": pd.Series(list("ynnynn"), index=KEYS),
    "two columns": pd.DataFrame({"key": KEYS, "x": S, "z": S}),
}


@pytest.mark.parametrize("form", BY_POSITION)
def test_values_by_position_are_those_of_the_rows(cache, form):
    assert (open_labels(cache, BY_POSITION[form]).only.s == S).all()
    assert (PULabels.of(BY_POSITION[form]).s == S).all()
    assert (PULabels(BY_POSITION[form], np.zeros(6)).s == S).all()
    assert (read_truth(BY_POSITION[form], cache.keys, cache) == S).all()


@pytest.mark.parametrize("form", BY_KEY)
def test_values_with_keys_are_joined_by_them(cache, form):
    assert (open_labels(cache, BY_KEY[form]).only.s == S).all()
    assert (read_truth(BY_KEY[form], cache.keys, cache) == S).all()
    assert "need a cache to be joined with" in one_line(LabelError, PULabels.of, BY_KEY[form])


@pytest.mark.parametrize("form", KEYS_ALONE)
def test_keys_alone_are_the_positives(cache, form):
    keys = KEYS_ALONE[form] if form != "generator" else [A, D]
    assert (open_labels(cache, KEYS_ALONE[form]).only.s == S).all()
    assert (read_truth(keys, cache.keys, cache) == S).all()
    assert (read_labels(cache, [KEYS[1]], negatives=keys).only.reviewed == -S).all()
    assert (read_labels(cache, {"one": keys}).columns["one"].s == S).all()


@pytest.mark.parametrize("form", WRONG)
def test_other_values_are_refused_before_they_are_cast(cache, form):
    told = one_line(LabelError, open_labels, cache, WRONG[form])
    assert form not in ("short", "nothing") or "expected keys, or a label for each of 6 rows of" in told
    if form not in ("-1", "unknown key", "short", "nothing"):
        assert one_line(LabelError, read_truth, WRONG[form], cache.keys, cache)
    if form not in ("short", "nothing"):
        assert one_line(LabelError, PULabels.of, WRONG[form])


def test_numbers_that_are_keys_are_taken_as_such(tmp_path):
    X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    cache = write_cache(tmp_path / "ids.h5", X, ["100", "20", "3", "7"])
    by_number = pd.Series([0, 1, 0, 0], index=[3, 100, 20, 7])
    assert open_labels(cache, by_number).only.s.tolist() == [1, 0, 0, 0]
    assert open_labels(cache, pd.DataFrame({"id": [7], "s": [1]})).only.s.tolist() == [0, 0, 0, 1]
    assert "neither keys of the cache nor 0 to n - 1" in one_line(
        LabelError, open_labels, cache, pd.Series([0, 1, 0, 0], index=[3, 100, 20, 8])
    )


NUMBERS = st.integers() | st.floats() | st.booleans() | st.none() | st.text(max_size=2) | st.binary(max_size=2)


@given(st.lists(NUMBERS, min_size=1, max_size=6), st.sampled_from([list, np.array, pd.Series, dict]))
def test_only_what_equals_0_or_1_passes(values, form):
    names = [f"k{row}" for row in range(len(values))]
    try:
        object_made = dict(zip(names, values, strict=True)) if form is dict else form(values)
    except (OverflowError, UnicodeDecodeError):  # numpy makes no array of them
        return
    try:
        _, read = read_values(object_made, (0, 1), "labels", names)
    except LabelError:
        return
    if read is not None:
        kept = list(values) if form in (list, dict) else np.asarray(object_made).tolist()
        assert [float(value) for value in kept] == read.tolist()


# --- functions -----------------------------------------------------------------------------------

X, PLANTED, Y = planted(200, labelled=30)
LINEAR = {"method": "linear", "penalty": 0.01}
SHUFFLED = np.random.default_rng(1).permutation(200)


@pytest.fixture(scope="module")
def pile(tmp_path_factory):
    return write_cache(tmp_path_factory.mktemp("pile") / "pile.h5", X)


def series(cache, values):
    """Values by key, in another order than the rows of the cache."""
    return pd.Series(values[SHUFFLED], index=[cache.keys[int(row)] for row in SHUFFLED])


def test_scores_are_joined_with_true_labels_by_key_alone(pile, tmp_path):
    model = pucache.train_pu(pile, PLANTED, **LINEAR)
    pucache.score(model, pile, tmp_path / "s.csv")
    figures = pucache.evaluate(tmp_path / "s.csv", series(pile, Y), positives=set(pile.keys[np.flatnonzero(PLANTED)]))
    assert figures["n"] == 170 and figures["auc"] > 0.9
    assert "by key" in one_line(LabelError, pucache.evaluate, tmp_path / "s.csv", Y)
    assert "by key" in one_line(LabelError, pucache.evaluate, tmp_path / "s.csv", series(pile, Y), positives=PLANTED)


# --- rows in another order than their input --------------------------------------------------------


def test_a_vector_for_rows_that_were_sorted_is_refused_and_keys_are_taken(tmp_path):
    keys = [f"row{row}" for row in range(11)]
    s = np.eye(11, dtype=np.int8)[10]
    pucache.import_embeddings(np.eye(11, 4, dtype="f4"), tmp_path / "c.h5", keys=keys)
    sorted_cache = EmbeddingCache(tmp_path / "c.h5")
    assert sorted_cache.keys[2] == "row10"
    for what in (s, s.tolist(), pd.Series(s), torch.tensor(s)):
        said = one_line(LabelError, open_labels, sorted_cache, what)
        assert "sorted by key" in said and "dict(zip(cache.keys, values))" in said
    assert "sorted by key" in one_line(LabelError, read_truth, s, sorted_cache.keys, sorted_cache)
    assert open_labels(sorted_cache, pd.Series(s, index=keys)).only.s[2] == 1
    assert open_labels(sorted_cache, dict(zip(sorted_cache.keys, s, strict=True))).only.s[10] == 1
    assert open_labels(sorted_cache, PULabels.of(s)).only.s[10] == 1


@pytest.mark.parametrize("keys", [None, [f"row{row}" for row in range(10)]], ids=["generated", "sorted"])
def test_rows_in_the_order_of_their_input_take_a_vector(tmp_path, keys):
    pucache.import_embeddings(np.eye(10, 4, dtype="f4"), tmp_path / "c.h5", keys=keys)
    assert open_labels(EmbeddingCache(tmp_path / "c.h5"), np.eye(10)[3]).only.s[3] == 1
