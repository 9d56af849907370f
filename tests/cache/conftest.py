import pytest
from helpers.cache_files import FAILURES, write

from pucache.cache import exporting, import_files, importing, merging, reader


@pytest.fixture
def path(tmp_path):
    """A cache of four rows and two failures."""
    return write(tmp_path / "cache.h5", ["a", "bé", "c\nd", "e"], failures=FAILURES)


@pytest.fixture
def shards(tmp_path):
    """Three files of one encoder, and two things beside them that are none."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, keys in enumerate([["b", "d"], [], ["a", "c", "eee"]]):
        write(folder / f"{number}.h5", keys, failures={f"{number}.png": "gone"})
    (folder / ".hidden.h5").write_text("no cache")
    (folder / "notes.txt").write_text("no cache")
    return folder


@pytest.fixture
def small_blocks(monkeypatch):
    """Everything that imports, exports and merges do in blocks is done in blocks of a few rows."""
    monkeypatch.setattr(reader, "BLOCK_BYTES", 40)
    monkeypatch.setattr(importing, "BLOCK_BYTES", 60)
    monkeypatch.setattr(import_files, "BATCH_KEYS", 7)
    monkeypatch.setattr(import_files, "FIRST_ROWS", 20)
    monkeypatch.setattr(merging, "BLOCK_BYTES", 40)
    monkeypatch.setattr(exporting, "GROUP_BYTES", 100)
