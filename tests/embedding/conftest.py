import pytest

from pucache.embedding import blocks

BLOCK = 32


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ROWS", BLOCK)


@pytest.fixture
def out(tmp_path):
    """Where the cache goes: a folder with nothing else in it."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "cache.h5"
