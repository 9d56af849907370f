import os
import re

import numpy as np
import pytest
from helpers.cache_files import refusal, write

from pucache.cache import reader
from pucache.cache.reader import CacheFile


@pytest.mark.parametrize("room", [1, 40, 1 << 20])
def test_rows_are_taken_in_stretches_as_indexing_gives_them(tmp_path, monkeypatch, room):
    monkeypatch.setattr(reader, "BLOCK_BYTES", room)
    file = CacheFile(write(tmp_path / "c.h5", [f"{n:03}" for n in range(50)]))
    for rows in ([], [0], [49], [3, 3, 5], [0, 1, 2, 30, 31, 49], range(50)):
        rows = np.array(rows, np.int64)
        for name, whole in {"embeddings": file.X, "keys": file.raw_keys, "size_mtime": file.size_mtime}.items():
            np.testing.assert_array_equal(file.take(name, rows), whole[rows])


NO_CACHE = {
    "missing": (lambda path: path.unlink(), "no such cache: "),
    "directory": (lambda path: (path.unlink(), path.mkdir()), "is a directory, not a cache file"),
    "pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "cannot read .* is not a regular file"),
    "empty": (lambda path: path.write_bytes(b""), r"is empty \(0 bytes\)"),
    "text": (lambda path: path.write_text("key,margin\n" * 500), r"is not a pucache cache \(not an HDF5 file\)"),
}


@pytest.mark.parametrize(("change", "expected"), NO_CACHE.values(), ids=NO_CACHE)
def test_what_is_no_hdf5_file_is_refused_on_opening(path, change, expected):
    change(path)
    text = refusal(CacheFile, path)
    assert str(path) in text and re.search(expected, text), text


def test_a_file_whose_first_bytes_cannot_be_read_is_refused():
    assert "Input/output error" in refusal(CacheFile, "/proc/self/mem")
