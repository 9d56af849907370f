import numpy as np
import pytest
from helpers.cache_files import write

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
