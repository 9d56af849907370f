"""What this machine keeps of remote caches, with a real S3 server and processes that use copies."""

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner
from helpers.planted import planted, write_cache

import pucache
from pucache.cache import working_folders
from pucache.cache.destination import open_destination
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.local_copies import LocalCopies, cache_dir
from pucache.cache.remote import RemoteCache, local_copy
from pucache.cli.main import main
from pucache.errors import OutputError
from pucache.storage import fetch_log, retries

X, *_ = planted(40)
READER = """
import sys
from pucache.cache.working_folders import READING, working_folder
print(working_folder(sys.argv[1], suffix=READING if sys.argv[2] == "reading" else ""), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """Parent of the copies, which this process ceases to hold after the test."""
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0])
    monkeypatch.setattr(working_folders, "_held", {})
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "work"))
    yield tmp_path / "work"
    let_go()


@pytest.fixture
def store(s3_server, monkeypatch):
    return s3_server.connect(monkeypatch)


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def let_go():
    """What the end of a process does."""
    for descriptor in working_folders._held.values():
        os.close(descriptor)
    working_folders._held.clear()


def fetched(memory, *names):
    """Copies for reading of files in memory, which nobody uses; their folders."""
    folders = []
    for name in names:
        memory.pipe_file(f"/{name}", name.encode())
        folders.append(local_copy(f"memory://{name}").parent)
    let_go()
    return folders


def run(arguments, code=0):
    ended = CliRunner().invoke(main, ["cache-dir", *arguments])
    assert ended.exit_code == code, ended.output
    return ended.output


@pytest.fixture
def user():
    """Start processes that use the folder of a URL until the test ends."""
    started = []

    def start(url, purpose="reading"):
        command = [sys.executable, "-c", READER, url, purpose]
        process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.communicate("")


# --- listing -----------------------------------------------------------------------------------


def test_without_copies_there_is_nothing_to_list_or_to_clear(work):
    assert cache_dir() == cache_dir(clear=True) == LocalCopies(work, ())
    assert not work.exists()
    assert run([]) == f"{work}: 0 copies, 0.0 KB\n"
    assert run(["--clear"]) == f"removed 0 copies, 0.0 KB\n{work}: 0 copies, 0.0 KB\n"


def test_copies_are_listed_with_url_size_and_purpose(work, store, tmp_path):
    cache = write_cache(tmp_path / "cache.h5", X)
    store.put("folder/a.h5", cache.files[0].path.read_bytes())
    read = EmbeddingCache("s3://bucket/folder/a.h5")
    remote = RemoteCache("s3://bucket/made.h5")
    remote.local.write_bytes(b"x" * 3_000_000)
    copies = {copy.url: copy for copy in cache_dir().copies}
    assert set(copies) == {"s3://bucket/folder/a.h5", "s3://bucket/made.h5"}
    one, other = copies["s3://bucket/folder/a.h5"], copies["s3://bucket/made.h5"]
    assert (one.folder, one.purpose, one.in_use) == (read.files[0].path.parent, "reading", True)
    assert (other.folder, other.purpose, other.bytes) == (remote.local.parent, "writing", 3_000_000)
    size = cache.files[0].path.stat().st_size
    assert size <= one.bytes < size + 200, "and the record of the download"
    told = run([]).splitlines()
    assert told[0] == f"{work}: 2 copies, {cache_dir().bytes / 1e6:.1f} MB"
    assert "s3://bucket/made.h5: 3.0 MB, for writing, in use" in told
    result = json.loads(run(["--json"]))
    assert (result["folder"], result["removed"]) == (str(work), [])
    assert sum(copy["bytes"] for copy in result["copies"]) == result["bytes"] == cache_dir().bytes


def test_listing_changes_nothing_and_other_files_are_no_copies(work, memory):
    fetched(memory, "a.h5")
    (work / "notes").mkdir()
    (work / "notes/mine.h5").write_bytes(b"mine")
    (work / ("0" * 15)).mkdir()
    (work / ("1" * 16)).symlink_to(work / "notes")
    before = {path: path.lstat().st_mtime_ns for path in work.rglob("*")}
    assert [copy.url for copy in cache_dir().copies] == ["memory://a.h5"]
    assert {path: path.lstat().st_mtime_ns for path in work.rglob("*")} == before
    assert len(cache_dir(clear=True).removed) == 1
    assert sorted(path.name for path in work.iterdir()) == sorted(["notes", "0" * 15, "1" * 16])
    assert (work / "notes/mine.h5").read_bytes() == b"mine"


def test_a_password_is_not_recorded(work):
    open_destination("https://user:hunter2@host.invalid/c.h5?X-Signature=hunter2")
    assert all(b"hunter2" not in path.read_bytes() for path in work.rglob("*") if path.is_file())


# --- clearing ----------------------------------------------------------------------------------


def test_copies_that_nobody_uses_are_removed_and_fetched_again(work, memory):
    fetched(memory, "a.h5", "b.h5")
    result = cache_dir(clear=True)
    assert ({copy.url for copy in result.removed}, result.copies) == ({"memory://a.h5", "memory://b.h5"}, ())
    assert list(work.iterdir()) == []
    assert local_copy("memory://a.h5").read_bytes() == b"a.h5"


@pytest.mark.parametrize("purpose", ["reading", "writing"])
def test_a_copy_is_kept_until_the_process_that_uses_it_ends(work, memory, user, purpose):
    (unused,) = fetched(memory, "unused.h5")
    if purpose == "reading":
        (used,) = fetched(memory, "used.h5")
    else:
        used = RemoteCache("memory://used.h5").local.parent
        (used / "used.h5").write_bytes(b"used")
        let_go()
    process = user("memory://used.h5", purpose)
    assert [copy.url for copy in cache_dir().copies if copy.in_use] == ["memory://used.h5"]
    told = run(["--clear"])
    assert told.startswith("removed 1 copy, ") and "kept memory://used.h5: a process uses it\n" in told
    assert (used / "used.h5").exists() and not unused.exists()
    process.communicate("")
    assert [copy.url for copy in cache_dir(clear=True).removed] == ["memory://used.h5"]
    assert list(work.iterdir()) == []


def test_what_this_process_has_open_is_kept(memory, tmp_path):
    memory.pipe_file("/c.h5", write_cache(tmp_path / "c.h5", X).files[0].path.read_bytes())
    cache = EmbeddingCache("memory://c.h5")
    (kept,) = cache_dir(clear=True).copies
    assert (kept.in_use, kept.kept_because) == (True, "a process uses it")
    np.testing.assert_array_equal(EmbeddingCache("memory://c.h5").X, cache.X)


def test_a_killed_process_uses_nothing(memory, user):
    fetched(memory, "a.h5")
    process = user("memory://a.h5")
    process.kill()
    process.wait()
    assert len(cache_dir(clear=True).removed) == 1


def test_parts_of_an_unfinished_cache_are_kept(work):
    remote = RemoteCache("memory://c.h5")
    folder = remote.local.parent
    (folder / "c.h5.parts").mkdir()
    (folder / "c.h5.parts/part-1.h5").write_bytes(b"rows")
    let_go()
    (kept,) = cache_dir(clear=True).copies
    assert (kept.unfinished_parts, kept.in_use) == (1, False)
    assert "memory://c.h5: 0.0 KB, for writing, 1 unfinished parts\n" in run([])
    assert "holds 1 part of an unfinished cache; finish it with the same command" in kept.kept_because
    (folder / "c.h5.parts/part-1.h5").unlink()
    (folder / "c.h5").write_bytes(b"cache")
    assert len(cache_dir(clear=True).removed) == 1 and list(work.iterdir()) == []


@pytest.mark.parametrize("name", ["a.h5.review/decisions.sqlite", "a.h5.review/scores.csv", "notes.txt", "a.h5.old"])
def test_a_review_beside_a_copy_is_never_removed(memory, name):
    (folder,) = fetched(memory, "a.h5")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"decisions")
    (kept,) = cache_dir(clear=True).copies
    assert f"{folder / name.partition('/')[0]}, which is no copy; move that" in kept.kept_because
    assert (folder / name).read_bytes() == b"decisions" and (folder / "a.h5").exists()


def test_what_is_computed_from_a_copy_goes_with_it(work, memory):
    (folder,) = fetched(memory, "a.h5")
    for name in ("a.h5.neighbours", "a.h5.ivf", "a.h5.hnsw", "a.h5.ivfpq", ".a.h5.0123abcd.partial"):
        (folder / name).write_bytes(b"x")
    assert len(cache_dir(clear=True).removed) == 1 and list(work.iterdir()) == []


def test_every_kind_of_copy_is_removed(work, store, tmp_path):
    whole = write_cache(tmp_path / "c.h5", X).files[0].path.read_bytes()
    for name in ("caches/a.h5", "one.h5", "named.hdf5"):
        store.put(name, whole)
    for url in ("s3://bucket/caches/", "s3://bucket/one.h5", "s3://bucket/named.hdf5"):
        assert len(EmbeddingCache(url)) == 40
    remote = RemoteCache("s3://bucket/one.h5")
    remote.fetch()
    assert remote.local.read_bytes() == whole
    (RemoteCache("s3://bucket/scores.parquet").local).write_bytes(b"scores")
    let_go()
    assert len(cache_dir(clear=True).removed) == 5 and list(work.iterdir()) == []
    assert len(EmbeddingCache("s3://bucket/caches/")) == 40


def test_a_folder_that_an_earlier_version_made_is_listed_and_removed(work, memory):
    (folder,) = fetched(memory, "a.h5")
    (folder / ".url").unlink()
    (folder / ".in-use").unlink()
    (copy,) = cache_dir().copies
    assert (copy.url, copy.in_use, copy.folder) == ("", False, folder)
    assert f"{folder}: 0.1 KB, for reading" in run([]) and not (folder / ".in-use").exists()
    assert len(cache_dir(clear=True).removed) == 1 and list(work.iterdir()) == []


def test_readers_that_begin_while_copies_are_removed_have_whole_copies(memory, work):
    memory.pipe_file("/a.h5", b"whole")
    wrong, over = [], threading.Event()

    def clear():
        while not over.is_set():
            cache_dir(clear=True)

    cleaner = threading.Thread(target=clear)
    cleaner.start()
    try:
        for _ in range(200):
            copy = local_copy("memory://a.h5")
            if copy.read_bytes() != b"whole" or not cache_dir().copies:
                wrong.append(sorted(work.rglob("*")))
            let_go()
    finally:
        over.set()
        cleaner.join()
    assert wrong == []


def test_a_folder_removed_by_hand_is_made_again_and_held(memory, work):
    memory.pipe_file("/a.h5", b"whole")
    copy = local_copy("memory://a.h5")
    subprocess.run(["rm", "-r", str(work)], check=True)
    assert local_copy("memory://a.h5") == copy and copy.read_bytes() == b"whole"
    assert cache_dir(clear=True).copies[0].in_use


# --- bad input ---------------------------------------------------------------------------------


def test_a_parent_that_is_no_folder_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "file"))
    with pytest.raises(OutputError, match=r"cannot list the copies in .*file: Not a directory; name the folder"):
        cache_dir()
    for arguments in ([], ["--clear"], ["--json"]):
        assert run(arguments, code=1).count("\n") == 1


def test_a_copy_that_may_not_be_removed_is_kept_with_the_reason(memory, monkeypatch):
    (folder,) = fetched(memory, "a.h5")

    def refuse(path, missing_ok=False):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    (kept,) = cache_dir(clear=True).copies
    assert kept.kept_because == "it cannot be removed: Permission denied" and (folder / "a.h5").exists()


def test_a_file_system_without_locks_keeps_copies(memory, monkeypatch):
    (folder,) = fetched(memory, "a.h5")

    def refuse(descriptor, operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    (kept,) = cache_dir(clear=True).copies
    assert kept.kept_because == "it cannot be locked: No locks available" and (folder / "a.h5").exists()
    assert local_copy("memory://a.h5").exists(), "which can be used all the same"


def test_an_argument_or_an_unknown_option_is_wrong_usage():
    assert "unexpected extra argument" in run(["s3://bucket/a.h5"], code=2)
    assert "No such option" in run(["--clean"], code=2)


def test_the_function_has_the_name_of_the_command():
    assert pucache.cache_dir is cache_dir


# --- progress of a download --------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Six seconds pass between two looks at the clock."""
    now = iter(range(0, 10**6, 6))
    monkeypatch.setattr(fetch_log, "monotonic", lambda: next(now))


def test_a_download_is_logged_every_ten_seconds_for_readers_and_writers(store, monkeypatch, caplog, clock):
    monkeypatch.setattr("pucache.storage.transfer.BLOCK_BYTES", 1 << 20)
    store.put("c.h5", bytes(4 << 20))
    caplog.set_level(logging.INFO, "pucache")
    for fetch in (lambda: local_copy("s3://bucket/c.h5"), RemoteCache("s3://bucket/c.h5").fetch):
        caplog.clear()
        fetch()
        lines = [record.getMessage() for record in caplog.records]
        assert lines == [
            "fetching s3://bucket/c.h5: 2 MB of 4, 0.2 MB/s, 12 s left",
            "fetching s3://bucket/c.h5: 4 MB of 4, 0.2 MB/s, 0 s left",
        ]
        caplog.clear()
        fetch()
        assert caplog.records == [], "of what is here already"


def test_the_lines_about_a_folder_count_the_mb_of_all_that_is_fetched(store, monkeypatch, caplog, clock):
    monkeypatch.setattr("pucache.storage.transfer.BLOCK_BYTES", 1 << 20)
    for name in "abc":
        store.put(f"shards/{name}.h5", bytes(2 << 20))
    caplog.set_level(logging.INFO, "pucache")
    for ends in ((6, [2, 4, 6]), (2, [2])):
        caplog.clear()
        local_copy("s3://bucket/shards")
        told = [record.getMessage().partition(" MB/s")[0] for record in caplog.records]
        assert told == [f"fetching s3://bucket/shards: {done} MB of {ends[0]}, 0.2" for done in ends[1]]
        store.put("shards/b.h5", bytes((2 << 20) - 1))


def test_a_fast_download_says_nothing(store, caplog):
    store.put("c.h5", bytes(2 << 20))
    caplog.set_level(logging.INFO, "pucache")
    local_copy("s3://bucket/c.h5")
    assert caplog.records == []


def test_the_command_line_shows_the_line(store, tmp_path):
    store.put("c.h5", write_cache(tmp_path / "c.h5", X).files[0].path.read_bytes())
    code = "import pucache.storage.fetch_log as f; f.EVERY_SECONDS = 0.0; from pucache.cli.main import run; run()"
    command = [sys.executable, "-c", code, "pack", "s3://bucket/c.h5", "--out", tmp_path / "out.h5"]
    ended = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), cwd=Path(__file__).parents[2])
    assert ended.returncode == 0, ended.stderr
    assert "fetching s3://bucket/c.h5: 1 MB of 1, " in ended.stderr
