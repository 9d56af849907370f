"""The same table in every form, type and encoding gives the same rows."""

import csv
import gzip
import io
import json
import re
from decimal import Decimal

import pyarrow as pa
import pytest
from fuzz.damage import accepted, bounded
from helpers.refusals import one_line
from helpers.spreadsheets import edit, write_ods, write_xlsx
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather, ipc, parquet

from pucache.errors import LabelError
from pucache.storage.tables import LabelTable, read_rows, read_table

# no controls, which XML has no way to write; no marks that other tests are about
LETTERS = st.characters(exclude_categories=["Cs", "Cc", "Co", "Cn", "Zs", "Zl", "Zp"], exclude_characters="\ufeff")
KEYS = st.lists(st.text(LETTERS, min_size=1, max_size=12), min_size=1, max_size=5, unique=True)

TEXT = pa.string()


def separated(mark, encoding, before=""):
    def write(path, columns, rows):
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=mark, quoting=csv.QUOTE_ALL).writerows([columns, *rows])
        path.write_bytes((before + text.getvalue()).encode(encoding))

    return write


def arrow(write, kind=TEXT):
    def of(path, columns, rows):
        cells = [
            [cell.encode() if "binary" in str(kind) else cell for cell in column] for column in zip(*rows, strict=True)
        ]
        write(pa.table([pa.array(column, kind) for column in cells], list(columns)), path)

    return of


def of_dictionaries(write):
    def of(path, columns, rows):
        encoded = [pa.array(column).dictionary_encode() for column in zip(*rows, strict=True)]
        write(pa.table(encoded, list(columns)), path)

    return of


def stream(table, path):
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def of_json(content):
    return lambda path, columns, rows: path.write_text(json.dumps(content(list(columns), rows)))


def json_lines(path, columns, rows):
    path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))


def records(columns, rows):
    return [dict(zip(columns, row, strict=True)) for row in rows]


VIEWS = [pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()]


def columns_of(columns, rows):
    return dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))


def pandas(columns, rows):
    return {name: {str(n): row[at] for n, row in enumerate(rows)} for at, name in enumerate(columns)}


def index(columns, rows):
    return {str(n): row for n, row in enumerate(records(columns, rows))}


def split(columns, rows):
    return {"columns": columns, "index": [*range(len(rows))], "data": rows}


def gzipped(write):
    def of(path, columns, rows):
        write(path, columns, rows)
        path.write_bytes(gzip.compress(path.read_bytes()))

    return of


ENCODINGS = ("utf-8", "utf-8-sig", "utf-16")
PACKED = (
    (".csv", separated(";", "utf-8")),
    (".TSV", separated("\t", "utf-16")),
    (".jsonl", json_lines),
    (".parquet", arrow(parquet.write_table)),
)
FORMS = {
    **{f"{mark!r} {name}": (".csv", separated(mark, name)) for mark in ",;\t|" for name in ENCODINGS},
    "sep=": (".csv", separated(";", "utf-8-sig", "sep=;\r\n")),
    **{f"json {form.__name__}": (".json", of_json(form)) for form in (records, columns_of, pandas, index, split)},
    "lines": (".jsonl", json_lines),
    "JSON without its ending": (".txt", of_json(records)),
    "lines without their ending": ("", json_lines),
    "xlsx": (".xlsx", lambda path, columns, rows: write_xlsx(path, {"a": [], "b": [columns, *rows]})),
    "ods": (".ods", lambda path, columns, rows: write_ods(path, {"b": [columns, *rows]})),
    "a workbook called CSV": (".csv", lambda path, columns, rows: write_xlsx(path, {"b": [columns, *rows]})),
    **{f"parquet {kind}": (".parquet", arrow(parquet.write_table, kind)) for kind in (TEXT, *VIEWS)},
    **{f"feather {kind}": (".feather", arrow(feather.write_feather, kind)) for kind in (TEXT, *VIEWS)},
    "parquet dictionary": (".pq", of_dictionaries(parquet.write_table)),
    "feather dictionary": (".arrow", of_dictionaries(feather.write_feather)),
    "stream": (".arrow", arrow(stream)),
    **{f"{ending}.gz": (f"{ending}.gz", gzipped(write)) for ending, write in PACKED},
    "packed without its ending": (".csv", gzipped(separated(",", "utf-8"))),
    "Parquet without its ending": ("", arrow(parquet.write_table)),
    "Arrow called text": (".txt", arrow(feather.write_feather)),
}


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=6)
@given(keys=KEYS, labels=st.data())
def test_every_form_gives_the_rows_that_were_written(tmp_path_factory, form, keys, labels):
    ending, write = FORMS[form]
    path = tmp_path_factory.getbasetemp() / f"table{ending}"
    rows = [[key, labels.draw(st.sampled_from(["1", "0", "yes", "no"]))] for key in keys]
    write(path, ["File Name", "Label"], rows)
    assert [[row["key"], row["label"]] for row in read_table(path)] == rows


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        (pa.bool_(), [True, False, None], ["true", "false", ""]),
        *((kind, [1, 0, None], ["1", "0", ""]) for kind in (pa.int8(), pa.uint64(), pa.decimal128(5, 2))),
        *((kind, [1, 0.5, None], ["1", "0.5", ""]) for kind in (pa.float32(), pa.float64())),
        (pa.float32(), [0.1, float("nan")], ["0.1", ""]),
        (pa.float16(), [1.0, 0.5], ["1", "0.5"]),
        (pa.decimal256(5, 2), [Decimal("1.00"), Decimal("0.50")], ["1", "0.50"]),
        (pa.null(), [None, None], ["", ""]),
        (pa.binary(3), [b"yes", None], ["yes", ""]),
        (pa.date32(), [0, None], ["1970-01-01", ""]),
        (pa.dictionary(pa.int8(), pa.int64()), [1, None], ["1", ""]),
    ],
    ids=str,
)
@pytest.mark.parametrize("write", [parquet.write_table, feather.write_feather, stream])
def test_arrow_s_types_are_read_as_a_person_would_write_them(tmp_path, write, kind, values, texts):
    keys = [f"{row}.png" for row in range(len(values))]
    write(pa.table({"key": keys, "x": pa.array(values, kind)}), str(tmp_path / "t.parquet"))
    table = read_rows(tmp_path / "t.parquet", {"key": ["key"], "x": ["x"]})
    assert [row["x"] for row in table.rows] == texts


@pytest.mark.parametrize(
    ("kind", "values", "reason"),
    [
        (pa.list_(pa.float32()), [[1]], "the column 'label' of list<.*>, which cannot be read as text"),
        (pa.struct({"a": pa.int8()}), [{"a": 1}], "the column 'label' of struct<.*>, which cannot be read"),
        (pa.binary(), [b"\xff"], "the column 'label' of binary that cannot be read as text"),
        (pa.binary(2), [b"\xff\xfe"], r"the column 'label' of fixed_size_binary\[2\] that cannot be read as text"),
    ],
)
def test_a_column_that_is_needed_and_cannot_be_read_is_named_with_its_type(tmp_path, kind, values, reason):
    parquet.write_table(pa.table({"key": ["a"], "label": pa.array(values, kind)}), tmp_path / "t.parquet")
    assert re.search(reason, one_line(LabelError, read_table, tmp_path / "t.parquet"))
    (tmp_path / "t.json").write_text('[{"key": "a", "label": [0, 0]}]')
    assert "the column 'label' of arrays or objects" in one_line(LabelError, read_table, tmp_path / "t.json")


def test_bytes_of_images_are_not_read_where_they_are_not_needed(tmp_path):
    parquet.write_table(
        pa.table({"image": [b"\xff\xd8"], "file_name": ["a.png"], "x": [b"\xff"]}), tmp_path / "t.parquet"
    )
    table = read_rows(tmp_path / "t.parquet")
    assert (table.found, table.rows) == ({"key": "file_name"}, [{"file_name": "a.png"}])
    assert table.unreadable == {"image": "binary", "x": "binary"}
    parquet.write_table(pa.table({"image": [{"bytes": b"", "path": "a.png"}], "x": ["dog"]}), tmp_path / "t.parquet")
    assert "the column 'image' of struct<" in one_line(LabelError, read_rows, tmp_path / "t.parquet")


def test_cells_of_a_workbook_are_as_a_person_expects(tmp_path, caplog):
    rows = [[], ["key", "label", "note"], ["0012", 1.0, True], [], [12.0, 0, 2.5]]
    write_xlsx(tmp_path / "t.xlsx", {"empty": [], "hidden": rows, "more": [["x"]], "PULabels": rows}, hidden=["hidden"])
    table = read_table(tmp_path / "t.xlsx")
    assert table == [{"key": "0012", "label": "1", "note": "true"}, {"key": "12", "label": "0", "note": "2.5"}]
    assert [row.line for row in table] == [3, 5]
    assert "the sheet 'PULabels' is read; 'more', which has rows too, is not" in caplog.text


def test_labels_by_key_and_a_list_of_keys_in_json(tmp_path):
    (tmp_path / "t.json").write_text('{"a.png": 1, "b.png": false}')
    assert read_table(tmp_path / "t.json") == [{"key": "a.png", "label": "1"}, {"key": "b.png", "label": "false"}]
    (tmp_path / "t.json").write_text('["a.png", "b.png"]')
    assert read_table(tmp_path / "t.json") == [{"key": "a.png"}, {"key": "b.png"}]
    (tmp_path / "t.txt").write_text("[1].png\n{a}.png\n")
    assert [row["key"] for row in read_table(tmp_path / "t.txt")] == ["[1].png", "{a}.png"]


NO_TABLES = ["", "7", "[1, 2]", '{"a": [0.5], "b": []}', "[" * 100_000, '[{"key": "a"}, 1]', "[]"]


@pytest.mark.parametrize("content", NO_TABLES, ids=range(len(NO_TABLES)))
def test_json_that_is_no_table_is_refused(tmp_path, content):
    (tmp_path / "t.json").write_text(content)
    assert "t.json" in one_line(LabelError, read_table, tmp_path / "t.json")


def test_an_old_code_page_is_read_and_said(tmp_path, caplog):
    (tmp_path / "t.csv").write_bytes("key,label\né.png,1\n".encode("cp1252"))
    assert read_table(tmp_path / "t.csv") == [{"key": "é.png", "label": "1"}]
    assert "t.csv is not UTF-8 text (byte 10) and is read as cp1252; another encoding: --encoding" in caplog.text
    with pytest.raises(ValueError, match="encoding 'klingon' is not known"):
        read_table(LabelTable(str(tmp_path / "t.csv"), encoding="klingon"))
    with pytest.raises(LabelError, match=r"is not UTF-8 text \(byte 10\); name its encoding"):
        read_table(LabelTable(str(tmp_path / "t.csv"), encoding="utf-8"))


def test_a_first_line_longer_than_a_cell_of_csv_is_read(tmp_path):
    names = [f"column {number}" for number in range(20_000)]
    (tmp_path / "t.csv").write_text(",".join(["key", *names]) + "\na.png" + ",1" * len(names) + "\n")
    assert read_table(tmp_path / "t.csv", {"key": ("key",)})[0]["key"] == "a.png"
    (tmp_path / "t.csv").write_text("key\n" + "a" * 200_000 + "\n")
    assert "line 2: field larger than field limit" in one_line(LabelError, read_table, tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("a" * 200_000 + "\n")
    assert "line 1: field larger than field limit" in one_line(LabelError, read_table, tmp_path / "t.csv")


HEADS = [b"PK\3\4", b"\xd0\xcf\x11\xe0", b"PAR1\x15", b"ARROW1\0\0", b"\xff" * 4, b"{", b"["]


@settings(max_examples=30)
@given(data=st.binary(max_size=300), head=st.sampled_from(HEADS))
@pytest.mark.parametrize("ending", [".csv", ".txt", ".xlsx", ".parquet", ".json"])
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory, ending, data, head):
    path = tmp_path_factory.getbasetemp() / f"any{ending}"
    path.write_bytes(head + data)
    accepted(LabelError, read_table, path)


# --- names that are numbers ------------------------------------------------------------------------


def numbers(kind):
    def write(path, values):
        parquet.write_table(pa.table({"id": pa.array(values, kind)}), path)

    return ".parquet", write


NUMBERS = {
    "double": (53, *numbers(pa.float64())),
    "float": (24, *numbers(pa.float32())),
    "JSON": (53, ".json", lambda path, values: path.write_text(json.dumps([{"id": value} for value in values]))),
    "xlsx": (53, ".xlsx", lambda path, values: write_xlsx(path, {"a": [["id"], *[[value] for value in values]]})),
    "ods": (53, ".ods", lambda path, values: write_ods(path, {"a": [["id"], *[[value] for value in values]]})),
}


@pytest.mark.parametrize("column", [{"key": ["id"]}, {"path": ["id"]}, {"key": ["x"], "group": ["id"]}])
@pytest.mark.parametrize("form", NUMBERS)
@settings(max_examples=5)
@given(data=st.data())
def test_names_that_a_number_rounds_are_refused_and_others_read(tmp_path_factory, form, column, data):
    bits, ending, write = NUMBERS[form]
    path = tmp_path_factory.getbasetemp() / f"ids{ending}"
    exact = data.draw(st.integers(0, (1 << bits) - 1))
    write(path, [float(exact)])
    if "group" not in column:
        assert [row["id"] for row in read_rows(path, column).rows] == [str(exact)]
        write(path, [float(exact), float(1 << bits)])
        assert "save them as text" in one_line(LabelError, read_rows, path, column)


@given(st.integers(1 << 53, 1 << 90))
def test_whole_numbers_of_any_length_are_names(tmp_path_factory, number):
    path = tmp_path_factory.getbasetemp() / "ids.json"
    path.write_text(json.dumps([{"id": number}]))
    assert read_table(path)[0]["key"] == str(number)


# --- JSON ------------------------------------------------------------------------------------------


@given(key=st.text(LETTERS, min_size=1), values=st.lists(st.sampled_from([0, 1]), min_size=2, max_size=4))
@pytest.mark.parametrize("form", ["{%s}", '[{"key": "a", %s}]', '{"key": "b", "label": 1}\n{"key": "a", %s}'])
def test_a_name_that_stands_twice_with_two_values_is_refused(tmp_path_factory, form, key, values):
    path = tmp_path_factory.getbasetemp() / "twice.json"
    path.write_text(form % ", ".join(f"{json.dumps(key)}: {value}" for value in values), "utf-8")
    if len(set(values)) > 1:
        assert "twice, with" in one_line(LabelError, read_rows, path)
    elif form == "{%s}" and key.casefold() not in ("key", "id", "path", "url", "file"):
        assert len(read_rows(path).rows) == 1


@pytest.mark.parametrize("content", ['{"\\ud800.png": 1}', '["\\uDFFF"]', '[{"key": "a", "\\ud83d": 1}]'])
def test_half_of_a_character_is_refused(tmp_path, content):
    (tmp_path / "t.json").write_text(content)
    assert "half of a character" in one_line(LabelError, read_rows, tmp_path / "t.json")
    (tmp_path / "t.json").write_text('["\\ud83d\\ude00.png"]')
    assert read_table(tmp_path / "t.json") == [{"key": "\U0001f600.png"}]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"info": {}, "images": [{"id": 1}], "annotations": [], "categories": []}, "COCO annotations"),
        ({"images": [{"file": "a.jpg"}], "detection_categories": {"1": "animal"}, "info": {}}, "of MegaDetector"),
        ([{"id": 7, "data": {"image": "a.png"}, "annotations": [{"result": []}]}], "an export of Label Studio"),
        ({"samples": [{"filepath": "a.png"}]}, "an export of FiftyOne"),
        ([{"image_id": 7, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}], "COCO results.*'annotations'"),
    ],
)
def test_annotations_of_other_programs_are_called_what_they_are(tmp_path, content, kind):
    for name in ("t.json", "t.txt"):
        (tmp_path / name).write_text(json.dumps(content))
        assert re.search(kind, one_line(LabelError, read_rows, tmp_path / name))


# --- columns that nobody wants, and files that are others --------------------------------------------


UNWANTED = {
    "a decimal of 38 digits": pa.array([Decimal("9" * 38)], pa.decimal128(38, 0)),
    "a decimal of 70 digits": pa.array([Decimal("9" * 70)], pa.decimal256(70, 0)),
    "a time beyond the year 9999": pa.array([10**12], pa.timestamp("s")).dictionary_encode(),
    "bytes": pa.array([b"\xff"]),
    "a list": pa.array([[1.0]]),
}


@pytest.mark.parametrize("name", UNWANTED)
@pytest.mark.parametrize("write", [parquet.write_table, feather.write_feather, stream])
def test_a_column_that_nobody_wants_stops_nothing(tmp_path, name, write):
    write(pa.table({"key": ["a"], "label": ["1"], "x": UNWANTED[name]}), str(tmp_path / "t.parquet"))
    rows = read_table(tmp_path / "t.parquet")
    assert [(row["key"], row["label"]) for row in rows] == [("a", "1")]


def test_cells_of_a_workbook_that_are_merged_have_one_value(tmp_path):
    path = write_xlsx(tmp_path / "t.xlsx", {"a": [["key", "label"], ["a", 1], ["b", ""], ["c", ""], ["d", 0]]})
    merged = b'</sheetData><mergeCells><mergeCell ref="B2:B4"/></mergeCells>'
    edit(path, lambda content: content.replace(b"</sheetData>", merged))
    assert [row["label"] for row in read_table(path)] == ["1", "1", "1", "0"]


@pytest.mark.parametrize("name", ["t.csv", "t.xlsx", "t.parquet", "t.json", "t.txt"])
def test_a_pointer_of_git_lfs_is_no_table(tmp_path, name):
    (tmp_path / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12\n")
    assert "git lfs pull" in one_line(LabelError, read_rows, tmp_path / name)


# --- what asks for more than a limit is refused by one line that names it, in bounded memory ---------

MB = 1 << 20


def test_a_packed_table_of_many_times_its_size_is_refused(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"key,label\n" + b"photos/0001.png,1\n" * 5_000_000))
    with bounded(300 * MB):
        assert "at most 100 times its size" in one_line(LabelError, read_rows, path)


@pytest.mark.parametrize("place", ["XFD1048576", "XFD13"])
def test_a_stray_cell_of_a_workbook_aborts_nothing(tmp_path, place):
    """It lies far from the others, and no word of it is in the extent of the sheet."""
    path = write_xlsx(tmp_path / "t.xlsx", {"a": [["key", "label"], *[[f"{row}.png", 1] for row in range(12)]]})
    stray = f'<row r="{place[3:]}"><c r="{place}" t="inlineStr"><is><t>stray</t></is></c></row></sheetData>'
    edit(path, lambda content: content.replace(b"</sheetData>", stray.encode()))
    with bounded(1500 * MB):
        assert accepted(LabelError, read_rows, path) is None or place == "XFD13"


@pytest.mark.parametrize(("rows", "columns"), [(100_000, 1), (4_000_000_000, 4_000_000_000)])
def test_repeated_cells_of_a_sheet_abort_nothing(tmp_path, rows, columns):
    path = write_ods(tmp_path / "t.ods", {"a": [["key"], ["z.png"]]})
    last = '<table:table-row{}><table:table-cell{} office:value-type="string"><text:p>z.png'
    often = f' table:number-rows-repeated="{rows}"', f' table:number-columns-repeated="{columns}"'
    edit(path, lambda content: content.replace(last.format("", "").encode(), last.format(*often).encode()))
    with bounded(1500 * MB):
        accepted(LabelError, read_rows, path)


def test_a_parquet_table_of_many_more_rows_than_bytes_is_refused(tmp_path):
    keys = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 10_000_000), ["a.png"])
    parquet.write_table(pa.table({"key": keys}), tmp_path / "t.parquet", store_schema=False)
    assert (tmp_path / "t.parquet").stat().st_size < MB // 16
    with bounded(300 * MB):
        assert "more than 100 rows for each of its" in one_line(LabelError, read_rows, tmp_path / "t.parquet")


@pytest.mark.parametrize("content", ["[" * 10**6, "[" + "9" * 10**6 + "]", json.dumps({"a": "b"})[:-1] + "," * 10**6])
def test_nested_json_and_long_numbers_are_refused(tmp_path, content):
    (tmp_path / "t.json").write_text(content)
    with bounded(300 * MB):
        assert "t.json" in one_line(LabelError, read_rows, tmp_path / "t.json")
