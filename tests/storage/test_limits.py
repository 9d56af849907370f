"""What asks for more than a limit is refused by one line that names it, in bounded memory; measured in a child."""

import gzip
import json
import math
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.slow import slow
from helpers.spreadsheets import write_ods, write_xlsx
from PIL import Image
from pyarrow import parquet

MB = 1 << 20
READ = 'len(read_rows(sys.argv[1]).rows), "rows"'
MEASURE = """
import resource, sys
from pucache.errors import PUCacheError
from pucache.storage.tables import read_rows
try:
    print({0})
except PUCacheError as error:
    print(error)
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print((own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) >> 10)
"""


def measured(path, what=READ):
    """What a child process says of a file, and the megabytes of it and of its own child."""
    command = [sys.executable, "-c", MEASURE.format(what), str(path)]
    here = os.environ | {"PYTHONPATH": f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"}
    child = subprocess.run(command, capture_output=True, text=True, check=True, env=here)
    said, memory = child.stdout.rsplit("\n", 2)[:2]
    assert "\n" not in said and not child.stderr
    return said, int(memory)


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


@pytest.mark.parametrize("content", [b"a\n", b"photos/0001.png,1\n", b"\n"], ids=["keys", "labels", "blank lines"])
def test_a_packed_table_of_many_times_its_size_is_refused(tmp_path, content):
    said, memory = measured(packed(tmp_path / "t.csv.gz", content, 20_000))
    assert "at most 100 times its size" in said and memory < 300


def test_a_packed_table_as_people_have_them_is_read(tmp_path):
    with gzip.open(tmp_path / "t.csv.gz", "wt") as stream:
        stream.write("key,label\n" + "".join(f"photos/{row:06}.png,1\n" for row in range(20_000)))
    assert measured(tmp_path / "t.csv.gz")[0] == "20000 rows"


@pytest.mark.parametrize("place", ["XFD1048576", slow("XFD6000"), slow("A1048576"), slow("ZZ200000"), "XFD13"])
def test_a_stray_cell_of_a_workbook_aborts_nothing(tmp_path, place):
    said, memory = measured(moved(tmp_path / "t.xlsx", place))
    assert "remove" in said or said.endswith(" rows")
    assert memory < 1500


@pytest.mark.parametrize(("rows", "columns"), [(100_000, 1), (1_048_576, 16_384), (4_000_000_000, 4_000_000_000)])
def test_repeated_cells_of_a_sheet_abort_nothing(tmp_path, rows, columns):
    said, memory = measured(repeated(tmp_path / "t.ods", rows, columns))
    assert "t.ods" in said or said.endswith(" rows")
    assert memory < 1500


def test_a_count_of_texts_that_lies_aborts_nothing(tmp_path):
    write_xlsx(tmp_path / "t.xlsx", {"a": [["key"], ["a.png"]]})
    texts = '<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" uniqueCount="99999999999999"></sst>'
    with zipfile.ZipFile(tmp_path / "t.xlsx", "a") as archive:
        archive.writestr("xl/sharedStrings.xml", texts)
    said, memory = measured(tmp_path / "t.xlsx")
    assert ("t.xlsx" in said or said == "1 rows") and memory < 1000


def test_a_parquet_table_of_many_more_rows_than_bytes_is_refused(tmp_path):
    keys = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 10_000_000), ["a.png"])
    parquet.write_table(pa.table({"key": keys}), tmp_path / "t.parquet", store_schema=False)
    assert (tmp_path / "t.parquet").stat().st_size < MB // 16
    said, memory = measured(tmp_path / "t.parquet")
    assert "more than 100 rows for each of its" in said and memory < 400


def test_nested_json_and_long_numbers_are_refused(tmp_path):
    for content in ("[" * 10**6, "[" + "9" * 10**6 + "]", json.dumps({"a": "b"})[:-1] + "," * 10**6):
        (tmp_path / "t.json").write_text(content)
        said, memory = measured(tmp_path / "t.json")
        assert "t.json" in said and memory < 300


TILED = '__import__("helpers.tiles").tiles.parts(sys.argv[1], "64 overlap 32")'


@pytest.mark.parametrize("size", [(3000, 3000), (3000, 2900)])
def test_the_parts_of_a_large_image_are_in_memory_a_few_at_a_time(tmp_path, size):
    """At 224 pixels they take 1.2 GB; the image itself, which is decoded once, takes 27 MB."""
    (tmp_path / "photos").mkdir()
    Image.new("L", size).save(tmp_path / "photos" / "0.png")
    said, _ = measured(tmp_path / "photos", TILED)
    count, memory = map(int, re.findall(r"\d+", said))
    assert count == math.prod(-(-(side - 64) // 32) + 1 for side in size) and memory < 600
