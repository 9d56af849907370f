import numpy as np
import pytest
from helpers.cache_files import write
from helpers.planted import write_cache
from matplotlib.figure import Figure
from PIL import Image

from pucache import export
from pucache.scoring.score_tables import TYPES, columns_of, write_table
from pucache.storage.file_kinds import BINARY, EMPTY, EXPORT, MARK, PARQUET, SCORES, is_of_pucache, kind_of

FILES = {  # name: content and kind
    "a.csv": (b"key,label\n", "a table"),
    "utf16.csv": ("key,label\n".encode("utf-16"), "a table"),
    "latin.csv": (b"key;gr\xf6\xdfe\n", "a table"),
    "ranked": (b"rank,key,score\n1,a,2\n", "a table"),
    "keys.txt": (b"a.png\n", "a text file"),
    "notes.md": (b"# notes\n", "a text file"),
    "m.json": (b"[1]", "a JSON file"),
    "metrics": (b'{\n  "written_by": "pucache 1.0"}', "a JSON file"),
    "notebook.ipynb": (b'{"cells": []}', "a text file"),
    "picture.svg": (b"\xef\xbb\xbf<?xml version='1.0'?><svg/>", "an XML file, such as SVG"),
    "labels.bz2": (b"BZh91AY", "a bzip2 archive"),
    "page": (b"\n<!DOCTYPE html>", "an HTML page"),
    "a.csv.png": (b"\x89PNG\r\n", "a PNG picture"),
    "jpeg.csv": (b"\xff\xd8\xff\xe0", "a JPEG picture"),
    "x.npy": (b"\x93NUMPY\1", "a NumPy array"),
    "x.xlsx": (b"PK\x03\x04", "a ZIP archive"),
    "weights": (b'\x10\0\0\0\0\0\0\0{"a":', "a safetensors file"),
    "m.onnx": (b"\x08\x07\x12\x07pytorch", "an ONNX model"),
    "model.onnx.txt": (b"onnx", "a text file"),
    "nothing.h5": (b"", EMPTY),
    "zeros.csv": (bytes(9), BINARY),
    "cut.parquet": (b"PAR1" + b"\xff" * 40, PARQUET),
    "short.parquet": (b"PAR1", PARQUET),
}


@pytest.mark.parametrize("name", FILES)
def test_the_kind_of_a_file_is_told_by_its_content_and_of_text_by_its_ending(tmp_path, name):
    content, kind = FILES[name]
    (tmp_path / name).write_bytes(content)
    assert kind_of(tmp_path / name) == kind


def test_what_is_no_file_has_no_kind(tmp_path):
    assert kind_of(tmp_path) == kind_of(tmp_path / "nowhere") == BINARY


@pytest.mark.parametrize("rows", [1, 3000])
def test_parquet_files_of_ours_are_scores_or_an_export(tmp_path, rows):
    export(write_cache(tmp_path / "c.h5", np.ones((rows, 4), np.float32)), tmp_path / "c.parquet")
    label = np.ones(rows, np.int8)
    block = {"key": [f"{row}" for row in range(rows)], "margin": label.astype(np.float32), "label": label}
    write_table(tmp_path / "s.parquet", TYPES, [block | {"posterior": None}])
    wide = {"key": block["key"], "a_margin": block["margin"], "a_posterior": block["margin"], "a_label": label}
    write_table(tmp_path / "w.parquet", columns_of(["a"]), [wide])
    kinds = [kind_of(tmp_path / f"{name}.parquet") for name in "csw"]
    assert kinds == [EXPORT, SCORES, SCORES]


def test_a_cache_is_a_cache(tmp_path):
    assert kind_of(write(tmp_path / "c", ["a"])) == "a pucache cache"


def test_pictures_and_json_say_that_pucache_wrote_them(tmp_path):
    Figure().savefig(tmp_path / "own.png", metadata={"Software": MARK})
    Figure().savefig(tmp_path / "foreign.png")
    Image.new("RGB", (4, 4)).save(tmp_path / "other.png")
    (tmp_path / "own.json").write_text('{\n  "written_by": "pucache 0.4.0",\n')
    (tmp_path / "old.json").write_text('{\n  "labelled_positives": 40')
    assert [path.name for path in sorted(tmp_path.iterdir()) if is_of_pucache(path)] == ["own.json", "own.png"]
