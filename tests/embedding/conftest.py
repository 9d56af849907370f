import multiprocessing
import threading

import pytest
import torch
from helpers.hangs import eventually

from pucache.embedding import blocks

BLOCK = 32


@pytest.fixture
def left_behind():
    """Assert that neither threads, nor processes, nor another number of torch's threads are left by what is within."""
    threads, torch_threads = set(threading.enumerate()), torch.get_num_threads()
    yield
    eventually(lambda: not set(threading.enumerate()) - threads)  # a queue's own feeder may take a moment
    assert torch.get_num_threads() == torch_threads
    assert multiprocessing.active_children() == []


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ROWS", BLOCK)


@pytest.fixture
def out(tmp_path):
    """Where the cache goes: a folder with nothing else in it."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "cache.h5"
