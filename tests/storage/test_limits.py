"""What asks for more than a limit is refused by one line that names it, in bounded memory."""

import gzip
import json
import zipfile

import pyarrow as pa
import pytest
from fuzz.damage import accepted, bounded
from helpers.refusals import one_line
from helpers.spreadsheets import write_ods, write_xlsx
from pyarrow import parquet

from pucache.errors import LabelError
from pucache.storage.tables import read_rows

MB = 1 << 20


def packed(path, content, times):
    with gzip.open(path, "wb") as stream:
        stream.write(b"key,label\n")
        for _ in range(times):
            stream.write(content * 1000)
    return path


def moved(path, place, cell="stray"):
    """A workbook with one more cell, at a place far from the others, and no word of it in its extent."""
    write_xlsx(path, {"a": [["key", "label"], *[[f"{row}.png", 1] for row in range(12)]]})
    parts = {}
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in parts if name.startswith("xl/worksheets/"))
    row = "".join(character for character in place if character.isdigit())
    stray = f'<row r="{row}"><c r="{place}" t="inlineStr"><is><t>{cell}</t></is></c></row></sheetData>'
    parts[name] = parts[name].replace(b"</sheetData>", stray.encode())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, data in parts.items():
            archive.writestr(each, data)
    return path


def repeated(path, rows, columns):
    """An ODS sheet whose last cell is repeated so often."""
    write_ods(path, {"a": [["key"], ["z.png"]]})
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    last = parts["content.xml"].rindex(b"<table:table-row")
    repeats = f'<table:table-row table:number-rows-repeated="{rows}"'.encode()
    content = parts["content.xml"][:last] + parts["content.xml"][last:].replace(b"<table:table-row", repeats, 1)
    cell = f'<table:table-cell table:number-columns-repeated="{columns}" '.encode()
    parts["content.xml"] = content[: content.rindex(b"<table:table-cell ")] + content[
        content.rindex(b"<table:table-cell ") :
    ].replace(b"<table:table-cell ", cell, 1)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, data in parts.items():
            archive.writestr(each, data)
    return path


def test_a_packed_table_of_many_times_its_size_is_refused(tmp_path):
    path = packed(tmp_path / "t.csv.gz", b"photos/0001.png,1\n", 5_000)
    with bounded(300 * MB):
        assert "at most 100 times its size" in one_line(LabelError, read_rows, path)


@pytest.mark.parametrize("place", ["XFD1048576", "XFD13"])
def test_a_stray_cell_of_a_workbook_aborts_nothing(tmp_path, place):
    with bounded(1500 * MB):
        assert accepted(LabelError, read_rows, moved(tmp_path / "t.xlsx", place)) is None or place == "XFD13"


@pytest.mark.parametrize(("rows", "columns"), [(100_000, 1), (4_000_000_000, 4_000_000_000)])
def test_repeated_cells_of_a_sheet_abort_nothing(tmp_path, rows, columns):
    with bounded(1500 * MB):
        accepted(LabelError, read_rows, repeated(tmp_path / "t.ods", rows, columns))


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
