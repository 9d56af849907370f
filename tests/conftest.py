import gc
import importlib
import logging
import os
import signal
import sys

import numpy as np
import pytest
from helpers.browser import chromium
from helpers.hangs import HANG_SECONDS
from helpers.limits import limited
from helpers.shard_tasks import InProcess
from hypothesis import HealthCheck, settings

# A busy machine is no failure: examples are counted, not timed.
settings.register_profile("pucache", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pucache")

# A test that imports openvino itself would let it report to its maker, from a process for each conversion.
sys.modules.setdefault("openvino_telemetry", None)

# A shell starts jobs in the background with SIGINT ignored, and processes that tests start and interrupt inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run the tests that take long and say little more")


def pytest_configure(config):
    """Import what nearly all tests use; the process that hands tests to others (-n) needs none of it."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        for name in ("torch", "helpers.planted", "helpers.tiny", "pucache.cache.embedding_cache"):
            importlib.import_module(name)


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="takes long and says little more than others; run with --slow"))


def pytest_collection(session):
    """Look for no garbage while thousands of tests are collected, all of which are kept."""
    gc.disable()


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config):
    gc.unfreeze()


@pytest.fixture(autouse=True)
def logs_are_seen():
    """Let caplog see what the library logs, whatever ran before in this process; commands then add no handler."""
    log = logging.getLogger("pucache")
    log.handlers[:] = [logging.NullHandler()]
    log.propagate = True
    log.setLevel(logging.INFO)  # as commands have it
    logging.root.setLevel(logging.WARNING)


@pytest.fixture(autouse=True)
def subnormal_numbers():
    """Libraries may leave this thread flushing subnormal numbers to zero; hypothesis then refuses to draw floats."""
    import torch

    torch.set_flush_denormal(False)


@pytest.fixture(scope="module")
def one_thread():
    """Batches this small gain nothing from threads, which wait for each other on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def endings(one_thread):
    """A test that hangs is ended; one that asks for 4 GB more than the process has ends with a MemoryError."""
    from fuzz.damage import resident

    signal.alarm(HANG_SECONDS)
    with limited("AS", resident("VmSize") + (4 << 30)):
        yield
    signal.alarm(0)


@pytest.fixture
def encoder():
    from helpers.tiny import tiny_encoder

    return tiny_encoder()


@pytest.fixture
def image_folder(tmp_path):
    """Make a folder of `n` tiny distinct images, 000.png, 001.png, ..."""
    from helpers.tiny import save_image

    def make(n, name="images"):
        folder = tmp_path / name
        folder.mkdir()
        for number in range(n):
            save_image(folder / f"{number:03}.png", number)
        return folder

    return make


@pytest.fixture(params=["one block", "small blocks of three files"])
def opened(request, tmp_path, monkeypatch):
    """Open rows as a cache, in one block or in many; digests may be given."""
    from helpers.planted import write_cache

    from pucache.cache.embedding_cache import EmbeddingCache

    if request.param != "one block":
        monkeypatch.setattr("pucache.cache.reader.BLOCK_BYTES", 300)

    def make(X, digests=None):
        parts = np.array_split(np.arange(len(X)), 3 if "files" in request.param else 1)
        for number, rows in enumerate(parts):
            keys = [f"{row:04}.png" for row in rows]
            write_cache(tmp_path / f"{number}.h5", X[rows], keys, digests=None if digests is None else digests[rows])
        cache = EmbeddingCache(tmp_path)
        assert (len(list(cache.blocks())) > 3) == (request.param != "one block")
        return cache

    return make


@pytest.fixture
def without_ray(monkeypatch):
    monkeypatch.setattr("pucache.scaling.tasks.cluster_tasks", InProcess)
    monkeypatch.setattr("pucache.scaling.tasks.is_retry", lambda: False)


@pytest.fixture
def fixed_time(monkeypatch):
    """Let every cache be created at one time, so that equal content means equal bytes."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


@pytest.fixture
def small_disk():
    """Return a context manager within which no file can grow beyond so many bytes."""
    return lambda room: limited("FSIZE", room)


@pytest.fixture
def few_descriptors():
    """Leave room for only a handful of further open files."""
    gc.collect()  # files that an earlier test left to the collector would make room later
    taken = set(map(int, os.listdir("/dev/fd")))
    with limited("NOFILE", [number for number in range(4096) if number not in taken][12]):
        yield


@pytest.fixture(scope="session")
def s3_server():
    """A server like S3's; `connect` empties it and lets a test find it."""
    from helpers.object_store import object_store

    with object_store() as started:
        yield started


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Folder of what lies behind URLs."""
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "work"))
    return tmp_path / "work"


@pytest.fixture
def store(s3_server, monkeypatch, work):
    """An empty bucket; a request that fails is made again at once, however long it took."""
    monkeypatch.setattr("pucache.storage.retries.RETRY_PAUSES", [0.0, 0.0, 0.0])
    monkeypatch.setattr("pucache.storage.retries.MAX_RETRY_SECONDS", HANG_SECONDS)
    return s3_server.connect(monkeypatch)


@pytest.fixture
def memory(monkeypatch, work):
    """fsspec's file system in memory, empty."""
    import fsspec

    monkeypatch.setattr("pucache.storage.retries.RETRY_PAUSES", [0.0])
    files = fsspec.filesystem("memory")
    files.store.clear()  # a test that does not use this fixture may have left files
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium, with an event loop that no other module's tests shall meet."""
    with chromium() as started:
        yield started


@pytest.fixture
def write(tmp_path):
    """Write content (bytes, or text as it is) to a file of this name."""

    def make(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make
