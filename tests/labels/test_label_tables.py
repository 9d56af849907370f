"""Tables of labels as spreadsheets and other programs write them."""

import re
import zipfile

import pyarrow
import pytest
from helpers.cache_files import write
from helpers.refusals import one_line
from pyarrow import parquet

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.errors import LabelError
from pucache.labels.concepts import open_concepts
from pucache.labels.label_files import read_truth
from pucache.labels.labels import Labels
from pucache.storage.table_columns import LABEL_NAMES
from pucache.storage.tables import LabelTable, has_columns, read_rows, read_table

ROWS = [("a.png", "yes"), ("b,c.png", "no"), ("é.png", "")]
EXPECTED = [("a.png", "1"), ("b,c.png", "0"), ("é.png", "")]
COLUMNS = {"key": "file", "label": "is dress", "value": "yes"}


@pytest.fixture
def cache_of(tmp_path):
    return EmbeddingCache(write(tmp_path / "c.h5", ["x/a.png", "x/b.png", "y.png"], source="/data/photos"))


def text(mark):
    quote = '"{}"'.format
    return "\r\n".join(
        mark.join(map(quote, row)) for row in [(" File", "n", "Is dress"), *((k, 7, v) for k, v in ROWS)]
    )


def write_parquet(path, **columns):
    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(("name", "mark"), [("x.csv", ","), ("x.csv", ";"), ("x.csv", "\t"), ("x.tsv", "\t")])
def test_columns_separators_and_byte_order_marks(tmp_path, name, mark, encoding):
    (tmp_path / name).write_bytes(text(mark).encode(encoding))
    table = read_table(LabelTable(str(tmp_path / name), **COLUMNS))
    assert [(row["key"], row["label"]) for row in table] == EXPECTED
    assert read_rows(tmp_path / name, {"key": ["file"]}).columns == ["file", "n", "is dress"]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("mark", "before"),
    [
        (";", ["sep=;"]),
        (",", ['"sep=,"', ""]),
        ("\t", ["SEP=\t"]),
        ("|", ["", "sep=|"]),
        (",", ["", " \t", ",,", '"",""']),
        (";", ["", ";;"]),
    ],
)
def test_blank_lines_and_the_separator_of_excel_before_the_names_of_columns(tmp_path, mark, before, ending):
    lines = [*before, f"is dress{mark}file", f"yes{mark}a.png", "", f'no{mark}"b{mark}c.png"']
    (tmp_path / "x.csv").write_bytes(ending.join(lines).encode("utf-8-sig"))
    table = read_table(LabelTable(str(tmp_path / "x.csv"), **COLUMNS))
    assert table == [{"key": "a.png", "label": "1"}, {"key": f"b{mark}c.png", "label": "0"}]
    assert [row.line for row in table] == [len(before) + 2, len(before) + 4]


def test_a_first_column_without_a_name_is_no_blank_line(tmp_path):
    (tmp_path / "x.csv").write_text(",key,label\n0,a.png,1\n")
    assert read_table(tmp_path / "x.csv") == [{"": "0", "key": "a.png", "label": "1"}]


@pytest.mark.parametrize(
    ("content", "columns", "reason"),
    [
        (
            b"key,label\na.png,maybe\n",
            {},
            "has the label 'maybe'; expected 1 or 0 .* in row 2, or name .*--label-value",
        ),
        (b"key,x\na.png,1\n", {"label": "y"}, "has columns key, x; expected one called 'y'"),
        (b"key,x\na.png,1\n", {"key": "file"}, "has columns key, x; expected one called 'file'"),
        (b"key,x\na.png,no\n", {"label": "x", "value": "yes"}, "has no 'yes' in the column 'x'; it has 'no'"),
        (
            b"key,x\na.png,no\n",
            {"value": "yes"},
            "has columns key, x; expected one called 'label', labels, .* by --label-column",
        ),
        (b"file,x\na.png,1\n,2\n", {"key": "file"}, "has a row without a key, 3; complete or remove it"),
        (b"sep=;\nkey,label\na.png,1\n", {}, "has columns key,label; expected one called 'key'"),
        (b"\n\n", {}, r"has columns \(none\); expected one called 'key'"),
        (b"PK\3\4\x14\0", {}, "is a spreadsheet .* that cannot be read: .*; save its sheet as CSV"),
    ],
)
def test_what_is_not_understood_is_said_with_its_row(tmp_path, cache_of, content, columns, reason):
    (tmp_path / "x.csv").write_bytes(content)
    table = LabelTable(str(tmp_path / "x.csv"), **columns)
    assert re.search(reason, one_line(LabelError, Labels.read, cache_of, table))


@pytest.mark.parametrize("column", LABEL_NAMES)
def test_a_value_is_looked_for_in_a_column_of_any_usual_name(tmp_path, column):
    (tmp_path / "x.csv").write_text(f"key,{column.title()}\na.png,cat\nb.png,dog\n")
    table = read_table(LabelTable(str(tmp_path / "x.csv"), value="cat"))
    assert table == [{"key": "a.png", "label": "1"}, {"key": "b.png", "label": "0"}]


@pytest.mark.parametrize("name", ["x.xlsx", "X.XLSX", "x.ods", "renamed.csv", "renamed.txt"])
def test_a_workbook_that_is_damaged_is_said_to_be_one_with_and_without_names_of_columns(tmp_path, name):
    with zipfile.ZipFile(tmp_path / name, "w") as book:
        book.writestr("[Content_Types].xml", "<Types/>")
        book.writestr("xl/worksheets/sheet1.xml", "<worksheet/>")
    for table in (tmp_path / name, LabelTable(str(tmp_path / name), key="file")):
        with pytest.raises(LabelError, match=r"is a spreadsheet \(.xlsx, .ods or .xls\) or a ZIP archive that cannot"):
            read_table(table)
    assert has_columns(tmp_path / name), "options that name columns are for it"


@pytest.mark.parametrize("prefix", ["", "./", "photos/", "./photos/", "/data/photos/", "data/photos/", "x/"])
def test_the_path_of_the_source_before_keys_is_left_out_and_said(tmp_path, cache_of, caplog, prefix):
    (tmp_path / "x.txt").write_text("".join(f"{prefix}{key}\n" for key in ("x/a.png", "x/b.png")))
    labels = Labels.read(cache_of, tmp_path / "x.txt")
    assert labels.s.tolist() == [1, 1, 0]
    assert (f"begin with {prefix!r}, the source itself" in caplog.text) == bool(prefix)


def test_another_folder_before_keys_is_refused(tmp_path, cache_of):
    (tmp_path / "x.txt").write_text("other/x/a.png\n")
    with pytest.raises(LabelError, match="without the folders before them each names one image: --match-keys folders"):
        Labels.read(cache_of, tmp_path / "x.txt")


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.parquet", "x.txt"])
def test_labels_are_read_behind_a_url(tmp_path, memory, cache_of, name):
    pyarrow_file = write_parquet(tmp_path / "x.parquet", key=["y.png"], label=[1])
    content = {
        "x.csv": b"path;label\ny.png;1\n",
        "x.jsonl": b'{"path": "y.png", "label": 1}\n',
        "x.parquet": pyarrow_file.read_bytes(),
        "x.txt": b"y.png\n",
    }
    memory.pipe(f"/labels/{name}", content[name])
    url = f"memory://labels/{name}"
    assert Labels.read(cache_of, url).s.tolist() == [0, 0, 1]
    assert read_truth(url, ["y.png"]).tolist() == [1]
    assert "cannot read memory://labels/none.csv" in one_line(LabelError, read_truth, "memory://labels/none.csv", ["a"])


def test_concepts_behind_a_url(memory, cache_of):
    memory.pipe("/labels/x.csv", b"file_name,class\ny.png,car\nx/a.png,cat\n")
    assert list(open_concepts(cache_of, "memory://labels/x.csv").labels) == ["car", "cat"]
    with pytest.raises(LabelError, match=r"cannot read memory://labels/none\.csv"):
        open_concepts(cache_of, "memory://labels/none.csv")


def test_keys_of_concepts_are_matched_by_a_rule(tmp_path, cache_of):
    (tmp_path / "x.csv").write_text("key,concept\na.png,car\nY.PNG,cat\n")
    assert "none of the 2 concepts" in one_line(LabelError, open_concepts, cache_of, tmp_path / "x.csv")
    found = open_concepts(cache_of, LabelTable(str(tmp_path / "x.csv"), match_keys="case+ends")).labels
    assert {name: labels.s.tolist() for name, labels in found.items()} == {"car": [1, 0, 0], "cat": [0, 0, 1]}
