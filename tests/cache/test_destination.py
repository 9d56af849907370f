"""Caches and tables behind URLs, from the images to the table, on a real S3 server."""

import re

import pytest
from helpers.embedding_runs import During, ctrl_c, run
from helpers.refusals import one_line
from helpers.tiny import save_image, tiny_encoder

from pucache import EmbeddingCache, open_source
from pucache.cache.destination import atomic_output, encoder_of_existing, open_destination
from pucache.cache.parts import part_files
from pucache.embedding import blocks
from pucache.errors import CacheError, CacheLockedError, OutputError, SourceError
from pucache.storage import retries
from pucache.storage.file_kinds import TABLE

CACHE, SCORES = "s3://bucket/made/cache.h5", "s3://bucket/made/scores.csv"
pytestmark = pytest.mark.usefixtures("one_thread", "fixed_time", "store")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ROWS", 16)


@pytest.fixture
def images(image_folder):
    """Sixty images, one of which is none."""
    folder = image_folder(60)
    (folder / "033.png").write_bytes(b"no image")
    return open_source(folder)


def embedded(images, cache, action=lambda: None, **options):
    return run(images, cache, progress=During("embedding", 40, action), **options)


def writes_all(store):
    return lambda: store.put("made/cache.h5", b"of another machine")


# --- caches ------------------------------------------------------------------------------------


def test_a_cache_in_a_store_has_the_bytes_of_one_on_a_disk_and_is_not_fetched(images, store, tmp_path):
    there = embedded(images, CACHE)
    embedded(images, tmp_path / "cache.h5")
    assert (there.name, there.rows, list(there.failures)) == (CACHE, 59, ["033.png"])
    assert store.get("made/cache.h5") == (tmp_path / "cache.h5").read_bytes() == there.cache.read_bytes()
    assert store.keys() == ["made/cache.h5"]
    again = embedded(images, CACHE)
    assert (again.written, again.computed, again.kept) == (False, 0, 59)
    assert EmbeddingCache(CACHE).files[0].path == there.cache == again.cache
    assert (store.relay.asked["PUT", "made/cache.h5"], store.relay.asked["GET", "made/cache.h5"]) == (1, 0)


def test_an_interrupted_run_goes_on_here_and_leaves_nothing_in_the_store(images, store, tmp_path):
    embedded(images, tmp_path / "cache.h5")
    with pytest.raises(KeyboardInterrupt):
        embedded(images, CACHE, ctrl_c)
    assert store.keys() == [] and encoder_of_existing(CACHE) == tiny_encoder().spec
    report = embedded(images, CACHE)
    assert 0 < report.computed < 59 and part_files(open_destination(CACHE).local) == []
    assert store.get("made/cache.h5") == (tmp_path / "cache.h5").read_bytes()


def test_a_cache_that_is_there_is_fetched_and_added_to(images, store, tmp_path, monkeypatch):
    embedded(images, CACHE)
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "another machine"))
    save_image(tmp_path / "images/new.png", 99)
    assert encoder_of_existing(CACHE) == tiny_encoder().spec
    report = embedded(images, CACHE)
    assert (report.computed, report.kept, report.rows) == (1, 59, 60)
    assert store.relay.asked["GET", "made/cache.h5"] == 1


def test_an_object_that_changed_meanwhile_is_refused_and_the_next_run_computes_nothing(images, store, tmp_path):
    embedded(images, tmp_path / "cache.h5")
    with pytest.raises(OutputError) as refused:
        embedded(images, CACHE, writes_all(store))
    local = open_destination(CACHE).local
    told = f"{CACHE} was changed by another writer while this command ran; nothing was sent, and {local} is kept: run "
    assert str(refused.value).startswith(told)
    assert store.get("made/cache.h5") == b"of another machine"
    assert local.read_bytes() == (tmp_path / "cache.h5").read_bytes()
    store.files.rm_file("bucket/made/cache.h5")
    assert embedded(images, CACHE, writes_all(store), force=True).computed == 0
    assert store.get("made/cache.h5") == (tmp_path / "cache.h5").read_bytes()


def test_an_upload_that_is_cut_costs_no_image(images, store, monkeypatch):
    with monkeypatch.context() as once:
        once.setattr(retries, "RETRY_PAUSES", [])
        store.relay.fail("PUT", "made/cache.h5", times=10)
        with pytest.raises(OutputError, match=rf"cannot write {CACHE}: .* \(tried 1 time\); run again when the store"):
            embedded(images, CACHE)
    store.relay.faults.clear()
    assert store.keys() == [] and embedded(images, CACHE).computed == 0


def test_two_writers_of_one_machine_are_kept_apart(images):
    def second():
        with pytest.raises(CacheLockedError, match=f"{CACHE} is being written by another process"):
            embedded(images, CACHE)

    assert embedded(images, CACHE, second).rows == 59


# --- before any work ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "fault", "reason"),
    [
        ("s3://missing/c.h5", None, "cannot write s3://missing/c.h5: .*bucket does not exist; make it first"),
        ("s3://bucket/c.h5", ("HEAD", "c.h5"), "cannot write s3://bucket/c.h5: Forbidden; check the credentials, and"),
        ("s3://bucket/c.h5", ("PUT", ".c.h5.writable"), "cannot write s3://bucket/c.h5: Access Denied; check the cred"),
        ("s3://bucket/folder", None, "s3://bucket/folder is a folder; name a file in it, such as s3://bucket/f"),
        ("nosuch://bucket/c.h5", None, "cannot write nosuch://bucket/c.h5: Protocol not known: nosuch"),
        ("simplecache::s3://bucket/c.h5", None, "simplecache would keep copies of the files elsewhere; leave it"),
    ],
)
def test_a_url_that_cannot_be_written_is_refused(store, url, fault, reason):
    store.put("folder/c.h5", b"data")
    if fault:
        store.relay.fail(*fault, "denied")
    assert re.search(reason, one_line(OutputError, open_destination(url).check))
    assert [key for key in store.keys() if "writable" not in key] == ["folder/c.h5"]  # noqa: SIM118  no dict


@pytest.fixture
def without_credentials(store, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    store.forget()
    yield
    store.forget()


def test_missing_credentials_are_said_to_be_missing(without_credentials):
    reason = "Unable to locate credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    with pytest.raises(OutputError, match=f"cannot write s3://bucket/c.h5: {reason}"):
        open_destination("s3://bucket/c.h5").check()
    with pytest.raises(CacheError, match=f"cannot fetch s3://bucket/c.h5: {reason}"):
        EmbeddingCache("s3://bucket/c.h5")
    with pytest.raises(SourceError, match=f"cannot read s3://bucket/root: {reason}"):
        open_source("s3://bucket/root").scan()


# --- tables ------------------------------------------------------------------------------------


def test_a_table_is_written_whole_or_not_at_all(store):
    store.put("made/scores.csv", b"old")
    with pytest.raises(RuntimeError), atomic_output(SCORES) as path:
        path.write_text("half")
        raise RuntimeError
    assert store.get("made/scores.csv") == b"old"
    with atomic_output(SCORES) as path:
        path.write_text("whole")
        with pytest.raises(CacheLockedError, match=f"{SCORES} is being written"), atomic_output(SCORES):
            pass
    assert store.get("made/scores.csv") == b"whole"


def test_an_object_is_replaced_by_its_own_kind_alone_and_never_where_it_is_read(store):
    destination = open_destination(SCORES)
    destination.check(TABLE)
    for content in (b"", b"key,margin,posterior,label\n"):
        store.put("made/scores.csv", content)
        destination.check(TABLE)
    store.put("made/scores.csv", b"\x89PNG\r\n")
    text = one_line(OutputError, destination.check, TABLE)
    assert text.startswith(f"{SCORES} is a PNG picture, where a table is to be written; remove it first")
    destination.check(TABLE, force=True)
    for where in (SCORES, "s3://bucket/made", "s3://bucket/made/*.csv"):
        told = one_line(OutputError, destination.check, TABLE, inputs=[where], force=True)
        assert f"{SCORES} is also an input" in told
