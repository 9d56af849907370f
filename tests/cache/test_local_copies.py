"""What this machine keeps of remote caches, and what `cache_dir` removes of it."""

import pytest
from helpers.command_line import run, run_json
from helpers.planted import planted, write_cache

from pucache import EmbeddingCache, cache_dir
from pucache.cache.destination import open_destination
from pucache.cache.local_copies import working_folder
from pucache.cache.remote import local_copies
from pucache.reviewing.resume import session_folder

X, *_ = planted(40)
VERSION = "0123456789abcdef"
pytestmark = pytest.mark.usefixtures("work")


@pytest.fixture
def fetched(memory):
    """Copies for reading of a file, and of a folder."""
    for name in ("a.h5", "shards/b.h5", "shards/c.h5"):
        memory.pipe_file(f"/{name}", name.encode())
    return [*local_copies("memory://a.h5"), *local_copies("memory://shards")]


@pytest.fixture
def unfinished(work):
    """Part of a cache that is written for a URL."""
    part = open_destination("memory://made.h5").local.with_name("made.h5.parts") / "part-1.h5"
    part.parent.mkdir()
    part.write_bytes(b"x" * 3_000_000)
    return part


# --- folders -----------------------------------------------------------------------------------


def test_the_folder_to_work_in_is_told_or_found(work, monkeypatch, tmp_path):
    def parent():
        return working_folder("s3://b/c.h5").parent

    assert parent() == work
    monkeypatch.delenv("PUCACHE_WORK")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert parent() == tmp_path / "xdg/pucache"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert parent() == tmp_path / "home/.cache/pucache"


def test_two_urls_never_share_a_folder_but_for_a_password():
    url = "https://{}host.invalid/c.h5{}"
    places = [url.format(*parts) for parts in (("", ""), ("a:p@", ""), ("b:p@", ""), ("", "?run=1"), ("", "?run=2"))]
    assert len(set(map(working_folder, places))) == len(places)
    assert working_folder(url.format("a:p@", "")) == working_folder(url.format("a:changed@", ""))


def test_a_session_of_a_remote_cache_is_found_in_every_version_and_where_it_was_before(memory, tmp_path):
    for rows in (20, 40):
        memory.pipe_file("/s/c.h5", write_cache(tmp_path / "c.h5", X[:rows]).files[0].path.read_bytes())
        of_file, of_folder = EmbeddingCache("memory://s/c.h5"), EmbeddingCache("memory://s/")
        assert session_folder(of_file) == working_folder("memory://s/c.h5", "-read") / "c.h5.review"
        assert session_folder(of_folder) == working_folder("memory://s", "-read") / "s/c.h5.review"
    local = EmbeddingCache(tmp_path / "c.h5")
    assert session_folder(local) == tmp_path / "c.h5.review"


# --- listing and clearing ----------------------------------------------------------------------


def test_copies_are_listed_with_url_size_and_purpose_and_nothing_is_changed(work, fetched, unfinished):
    before = {path: path.lstat().st_mtime_ns for path in work.rglob("*")}
    listed = [(copy.url, copy.purpose, copy.bytes, copy.unfinished_parts) for copy in cache_dir().copies]
    made = ("memory://made.h5", "writing", 3_000_000, 1)
    assert listed == [("memory://a.h5", "reading", 4, 0), made, ("memory://shards", "reading", 22, 0)]
    lines = run("cache-dir").stdout.splitlines()
    assert lines[0] == f"{work}: 3 copies, 3.0 MB"
    assert "memory://made.h5: 3.0 MB, for writing, 1 unfinished parts" in lines
    result = run_json("cache-dir")
    assert (result["folder"], result["bytes"], result["removed"]) == (str(work), 3_000_026, [])
    assert {path: path.lstat().st_mtime_ns for path in work.rglob("*")} == before


def test_clearing_removes_copies_alone(work, fetched, unfinished, tmp_path):
    copy, outside = fetched[0], tmp_path / "outside"
    (copy.parent / ".a.h5.12345678.partial").write_bytes(b"of a killed download")
    others = [
        copy.parent.parent / "a.h5.review/decisions.sqlite",
        copy.parent.parent / "a.h5.neighbours",
        copy.with_name("a.h5.damaged"),
        work / f"notes-read/{VERSION}/mine.h5",
        outside / VERSION / "mine.h5",
    ]
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(b"other")
    (work / f"{VERSION}-read").symlink_to(outside)
    (copy.parent.parent / "linked").symlink_to(outside)
    assert run("cache-dir --clear").stdout.startswith("removed 2 copies, 0.0 KB\n")
    assert not any(path.exists() for path in fetched) and all(other.exists() for other in [*others, unfinished])
    assert [copy.url for copy in cache_dir().copies] == ["memory://a.h5", "memory://made.h5"]
    assert local_copies("memory://a.h5") == [copy] and copy.read_bytes() == b"a.h5"
