import contextlib
import io
import os
import pickle
import stat
import tarfile
from pathlib import Path

import fsspec
import numpy as np
import pytest
from helpers.hangs import HANG_SECONDS
from helpers.pictures import refusal
from helpers.slow import slow
from helpers.tiny import save_image, tiny_encoder

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.paths import part_files
from pucache.cache.remote import RemoteCache, local_copy, upload
from pucache.embedding.embed import run_embedding
from pucache.embedding.local_engine import CHUNK_ROWS
from pucache.errors import CacheError, MissingExtraError, OutputError, SourceError
from pucache.images.source import open_source
from pucache.progress import Silent
from pucache.storage import filesystem as storage
from pucache.storage import retries, transfer
from pucache.storage.atomic import check_writable
from pucache.storage.urls import is_url, without_secrets

ODD = ["a b.png", "x#y.png", "p%20q.png", "w?.png", "w?x=1.png", "p+q.png", "é🦊.png", "[1].png", "d//e.png", "s/t.png"]
URL = "s3://bucket/some folder/cäche #1.h5"
BELOW = "some folder/cäche #1.h5"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def hasty(monkeypatch, tmp_path):
    """Four tries without a pause, however long they take, and a folder to work in."""
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0, 0.0, 0.0])
    monkeypatch.setattr(retries, "MAX_RETRY_SECONDS", HANG_SECONDS)
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "work"))


@pytest.fixture
def once(monkeypatch):
    """One try, also of what s3fs does, which pauses in between as it likes."""
    monkeypatch.setattr(retries, "RETRY_PAUSES", [])


@pytest.fixture
def store(s3_server, monkeypatch):
    return s3_server.connect(monkeypatch)


@pytest.fixture
def another_environment(store):
    """Let fsspec see what a test puts into the environment, and nobody after it."""
    store.forget()
    yield
    store.forget()


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def png(number, folder):
    return save_image(Path(folder) / f"{number}.png", number).read_bytes()


@pytest.fixture
def images(tmp_path):
    """Name to bytes of as many images as make two workers."""
    return {f"{number:02}.png": png(number, tmp_path / "images") for number in range(CHUNK_ROWS + 1)}


def shard(images):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in images.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


# --- reading from a store ----------------------------------------------------------------------


@pytest.mark.parametrize("source", ["root", "root/list.csv", "one.tar"])
def test_a_store_is_listed_and_read_whatever_the_keys(store, source):
    content = {name: name.encode() for name in ODD}
    for name, data in content.items():
        store.put(f"root/{name}", data)
    store.put("root/list.csv", "\n".join(["path", *content]).encode())
    store.put("one.tar", shard(content))
    opened = pickle.loads(pickle.dumps(open_source(f"s3://bucket/{source}")))
    listing = opened.scan()
    assert (listing.keys, listing.failures) == (sorted(content, key=str.encode), {})
    assert listing.size_mtime[:, 0].tolist() == [len(content[key]) for key in listing.keys]
    assert {key: opened.read(key) for key in listing.keys} == content


def test_a_manifest_names_objects_by_their_urls(store, tmp_path):
    for name in ODD:
        store.put(name, name.encode())
    urls = {f"s3://bucket/{name}": name.encode() for name in ODD}
    (tmp_path / "m.txt").write_text("\n".join([*urls, "s3://bucket/gone.png", "s3://missing/a.png"]))
    source = open_source(tmp_path / "m.txt")
    listing = source.scan()
    assert {key: source.read(key) for key in listing.keys} == urls
    assert listing.failures == {
        "s3://bucket/gone.png": "cannot be read: no such file: bucket/gone.png",
        "s3://missing/a.png": "cannot be read: The specified bucket does not exist",
    }


def test_a_shard_that_has_come_since_is_found(store):
    for number in range(2):
        store.put(f"shards/{number}.tar", shard({"a.png": b"%d" % number}))
        source = open_source("s3://bucket/shards/*.tar")
        assert source.scan().keys == [f"{n}.tar/a.png" for n in range(number + 1)]
    assert source.read("1.tar/a.png") == b"1"


@pytest.mark.parametrize("kind", ["cut", "short", "busy"])
@pytest.mark.parametrize("source", ["root", "root/list.txt", "shards/*.tar"])
def test_a_read_that_fails_twice_and_then_works_gives_the_image(store, tmp_path, source, kind):
    data = png(1, tmp_path)
    store.put("root/a.png", data)
    store.put("root/list.txt", b"a.png")
    store.put("shards/1.tar", shard({"a.png": data}))
    opened = open_source(f"s3://bucket/{source}")
    (key,) = opened.scan().keys
    where = "shards/1.tar" if "tar" in source else "root/a.png"
    store.relay.asked.clear()
    store.relay.fail("GET", where, kind, times=2)
    assert opened.read(key) == data
    assert store.relay.asked["GET", where] == 3, "and nothing beneath tries on its own account"


@pytest.mark.parametrize("kind", ["cut", "short", "busy"])
def test_a_read_that_always_fails_is_refused_and_says_how_often_it_was_tried(store, tmp_path, kind):
    store.put("root/a.png", png(1, tmp_path))
    store.relay.fail("GET", "root/a.png", kind)
    reason = refusal(open_source("s3://bucket/root").read, "a.png")
    assert reason.startswith("cannot be read: ") and reason.endswith(" (tried 4 times)")
    assert store.relay.asked["GET", "root/a.png"] == 4


@pytest.mark.parametrize(("key", "kind"), [("gone.png", None), ("a.png", "denied")])
def test_what_is_certain_is_not_tried_again(store, key, kind):
    store.put("root/a.png", b"data")
    if kind:
        store.relay.fail("GET", "root/a.png", kind)
    reason = refusal(open_source("s3://bucket/root").read, key)
    assert reason == ("cannot be read: Access Denied" if kind else "cannot be read: no such file: bucket/root/gone.png")
    assert store.relay.asked["HEAD", f"root/{key}"] == 1
    assert store.relay.asked["GET", f"root/{key}"] == (1 if kind else 0)


def test_an_object_that_grows_while_it_is_read_is_refused(memory, monkeypatch):
    memory.pipe("/root/a.png", b"longer by now")
    monkeypatch.setattr(type(memory), "info", lambda self, path: {"size": 4, "type": "file"})
    assert refusal(open_source("memory://root").read, "a.png").startswith("changed while it was read: 4 bytes at first")


def test_an_empty_object_is_read_as_nothing(store):
    store.put("root/a.png", b"")
    assert open_source("s3://bucket/root").read("a.png") == b""


@pytest.mark.parametrize("each", [False, True])
def test_how_often_botocore_tries_is_up_to_us_unless_fsspec_is_configured(store, monkeypatch, each):
    def attempts():
        files, _ = storage.open_filesystem("s3://bucket", retry_each_request=each)
        return files.s3.meta.config.retries["total_max_attempts"]

    assert attempts() == (4 if each else 1)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"retries": {"total_max_attempts": 7}}})
    assert attempts() == 7


def test_a_store_that_hangs_is_not_asked_for_longer_than_a_minute(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0, 0.0, 0.0])
    clock = [0.0]
    monkeypatch.setattr(retries.time, "monotonic", lambda: clock[0])
    asked = []

    def hang():
        asked.append(clock[0])
        clock[0] += 40
        raise TimeoutError

    with pytest.raises(retries.RetriesExhausted, match=r"TimeoutError \(tried 2 times\)"):
        retries.with_retries(hang)
    assert asked == [0, 40]


def test_pauses_grow(monkeypatch):
    monkeypatch.undo()
    slept = []
    monkeypatch.setattr(retries.time, "sleep", slept.append)
    with pytest.raises(retries.RetriesExhausted, match="tried 4 times"):
        retries.with_retries(lambda: 1 / 0)
    assert slept == sorted(slept) and len(slept) == 3 and sum(slept) < 5


@pytest.mark.parametrize("source", ["root", slow("shards/*.tar")])
def test_worker_processes_read_from_a_store_and_what_always_fails_is_recorded(store, images, tmp_path, source):
    if source == "root":
        for name, data in images.items():
            store.put(f"root/{name}", data)
        store.relay.fail("GET", "root/05.png")
        store.relay.fail("GET", "root/06.png", times=2)
    else:
        store.put("shards/1.tar", shard(images))
        store.put("shards/2.tar", shard({}))
    opened = open_source(f"s3://bucket/{source}")
    opened.scan()
    store.forget()  # what opens the store now is another file system, and workers must not close that one either
    store.relay.asked.clear()
    opened.scan()
    at_first = store.relay.asked.copy()
    if source != "root":
        store.relay.fail("GET", "shards/1.tar", times=3)
    report = run_embedding(opened, tmp_path / "cache.h5", tiny_encoder(), workers=2)
    assert list(report.failures) == (["05.png"] if source == "root" else [])
    assert all(reason.endswith(" (tried 4 times)") for reason in report.failures.values())
    assert report.computed == report.rows == len(images) - len(report.failures)
    store.relay.asked.clear()
    opened.scan()
    assert store.relay.asked == at_first, "an answer that workers take away makes a second request"


def test_keys_of_a_store_in_a_cache_are_those_of_a_folder(store, images, tmp_path):
    for name, data in list(images.items())[:5]:
        store.put(f"root/{name}", data)
        path = tmp_path / "folder" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    for where, name in (("s3://bucket/root", "far.h5"), (tmp_path / "folder", "near.h5")):
        run_embedding(open_source(where), tmp_path / name, tiny_encoder(), workers=0)
    far, near = EmbeddingCache(tmp_path / "far.h5"), EmbeddingCache(tmp_path / "near.h5")
    assert list(far.keys) == list(near.keys) and np.array_equal(far.X, near.X)


# --- listing a store ---------------------------------------------------------------------------


def test_a_listing_that_fails_once_is_done_again(store):
    store.put("root/a.png", b"data")
    store.relay.fail("GET", "", "busy", times=1)
    assert open_source("s3://bucket/root").scan().keys == ["a.png"]


def test_a_shard_whose_headers_cannot_be_read_just_now_is_no_damaged_shard(store):
    store.put("shards/1.tar", shard({"a.png": b"data"}))
    store.put("shards/2.tar", shard({"b.png": b"data"}))
    store.relay.fail("GET", "shards/2.tar", times=3)
    assert open_source("s3://bucket/shards/*.tar").scan().keys == ["1.tar/a.png", "2.tar/b.png"]
    store.relay.fail("GET", "shards/2.tar")
    with pytest.raises(SourceError, match=r"cannot read s3://bucket/shards/2.tar: .* \(tried 4 times\); run again"):
        open_source("s3://bucket/shards/*.tar").scan()


def test_a_shard_that_may_not_be_read_is_no_damaged_shard_and_what_is_in_it_is_unseen(store):
    for number in (1, 2):
        store.put(f"shards/{number}.tar", shard({"a.png": b"data"}))
    store.relay.fail("GET", "shards/2.tar", "denied")
    listing = open_source("s3://bucket/shards/*.tar").scan()
    assert (listing.keys, listing.failures) == (
        ["1.tar/a.png"],
        {"2.tar/": "tar shard cannot be read: Access Denied"},
    )


@pytest.mark.parametrize(
    ("fault", "way_out"), [("busy", "; run again when the store answers"), ("denied", "; check the credentials, and")]
)
def test_a_store_that_does_not_say_whether_an_image_is_there_is_not_taken_for_one_without_it(store, fault, way_out):
    for name in "abc":
        store.put(f"root/{name}.png", b"data")
    store.put("root/list.txt", b"a.png\nb.png\nc.png\n")
    for name in "bc":
        store.relay.fail("HEAD", f"root/{name}.png", fault)
    counted = "cannot look up 2 of the 3 images that s3://bucket/root/list.txt names; first s3://bucket/root/b.png: "
    with pytest.raises(SourceError, match=f"{counted}.*{way_out}.*, or leave it out$"):
        open_source("s3://bucket/root/list.txt").scan()


@pytest.mark.parametrize(
    ("where", "fault", "reason"),
    [
        ("s3://missing/root", None, "cannot read s3://missing/root: The specified bucket does not exist"),
        ("s3://bucket/empty", None, r"no such source: s3://bucket/empty \(nothing is there\)"),
        ("s3://bucket/no.csv", None, "cannot read s3://bucket/no.csv: no such file: bucket/no.csv"),
        ("s3://bucket/no.tar", None, "cannot read s3://bucket/no.tar as tar: no such file: bucket/no.tar"),
        ("s3://bucket/*.tar", None, r"no such source: no shard matches s3://bucket/\*.tar"),
        ("s3://bucket/root", "busy", r"cannot read s3://bucket/root: .* \(tried 1 time\); run again when the store"),
        ("s3://bucket/root", "denied", "cannot read s3://bucket/root: Access Denied; check the credentials, and what"),
    ],
)
def test_a_store_that_cannot_be_listed_is_refused_in_one_line(store, once, where, fault, reason):
    if fault:
        store.relay.fail("GET", "", fault)
    with pytest.raises(SourceError, match=reason) as caught:
        open_source(where).scan()
    assert "\n" not in str(caught.value)


# --- a cache behind a URL ----------------------------------------------------------------------


def test_a_url_is_told_from_a_path():
    assert all(map(is_url, ("s3://b/c.h5", "memory://c.h5")))
    assert not any(map(is_url, ("c.h5", Path("/a/c.h5"), "a:b", "")))


@pytest.fixture(params=[URL, "memory://some folder/cäche #1.h5", "file://"])
def url(request, tmp_path, memory):
    """Of a cache, in a store, in memory, or in a folder as fsspec has it."""
    if request.param == URL:
        request.getfixturevalue("store")
    return f"file://{tmp_path}/far away/cache.h5" if request.param == "file://" else request.param


def there(url):
    """Name to bytes of everything in the folder of a URL."""
    files, path = storage.open_filesystem(url)
    files.invalidate_cache()
    above = path.rpartition("/")[0]
    return {found[len(above) + 1 :]: files.cat_file(found) for found in files.find(above)}


def write_part(remote, name, data):
    path = remote.local.with_name(remote.local.name + ".parts") / f"part-{name}.h5"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def test_a_cache_is_worked_on_here_and_published_there(url):
    name = url.rpartition("/")[2]
    remote = RemoteCache(url)
    remote.check_writable()
    assert there(url) == {}
    remote.fetch()
    assert not remote.local.exists()
    remote.store_part(write_part(remote, "1", b"one"))
    remote.store_part(write_part(remote, "2", b"two"))
    remote.store_part(write_part(remote, "2", b"two"))
    assert there(url) == {f"{name}.parts/part-1.h5": b"one", f"{name}.parts/part-2.h5": b"two"}
    remote.local.write_bytes(b"onetwo")
    remote.publish()
    assert there(url) == {name: b"onetwo"}


def test_another_machine_goes_on_from_what_was_sent(url, tmp_path):
    first = RemoteCache(url)
    first.store_part(write_part(first, "1", b"one"))
    second = RemoteCache(url, tmp_path / "other machine")
    write_part(second, "2", b"two")
    second.fetch()
    second.store_parts(part_files(second.local))
    name = second.local.name
    assert there(url) == {f"{name}.parts/part-1.h5": b"one", f"{name}.parts/part-2.h5": b"two"}, "what was only here"
    assert sorted(path.name for path in second.local.parent.glob("*.parts/part*")) == ["part-1.h5", "part-2.h5"]
    second.local.write_bytes(b"onetwo")
    second.publish()
    assert list(there(url)) == [name]
    first.fetch()
    assert first.local.read_bytes() == b"onetwo"


def test_a_cache_that_the_store_does_not_have_or_has_otherwise_is_not_trusted(url):
    remote = RemoteCache(url)
    remote.local.write_bytes(b"finished here, but it never arrived")
    remote.fetch()
    assert not remote.local.exists()
    remote.local.write_bytes(b"published")
    remote.publish()
    remote.local.write_bytes(b"worked on")
    remote.fetch()
    assert remote.local.read_bytes() == b"published"
    files, path = storage.open_filesystem(url)
    files.pipe_file(path, b"replaced!")
    remote.fetch()
    assert remote.local.read_bytes() == b"replaced!"
    files.rm_file(path)
    remote.fetch()
    assert not remote.local.exists()


def test_what_is_the_same_here_and_there_is_neither_fetched_nor_sent(store):
    remote = RemoteCache(URL)
    remote.local.write_bytes(b"content")
    remote.publish()
    for _ in range(2):
        remote.fetch()
        remote.publish()
    assert store.relay.asked["PUT", BELOW] == 1 and store.relay.asked["GET", BELOW] == 0


def test_parts_that_another_writer_sent_meanwhile_stay(url):
    mine, other = RemoteCache(url), RemoteCache(url, Path(os.environ["PUCACHE_WORK"]) / "other")
    mine.store_part(write_part(mine, "1", b"one"))
    other.store_part(write_part(other, "2", b"two"))
    mine.local.write_bytes(b"one")
    mine.publish()
    assert sorted(there(url)) == [mine.local.name, f"{mine.local.name}.parts/part-2.h5"]


@pytest.mark.parametrize("multipart", [False, True])
def test_an_upload_that_breaks_off_leaves_the_old_cache_whole(store, once, monkeypatch, multipart):
    if multipart:
        monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda size, chunksize=None: 5 << 20)
    remote = RemoteCache(URL)
    remote.local.write_bytes(b"old")
    remote.publish()
    part = write_part(remote, "1", b"one")
    remote.store_part(part)
    remote.local.write_bytes(bytes(11 << 20))
    store.relay.fail("PUT", BELOW)
    with pytest.raises(OutputError, match=r"cannot write s3://bucket/some folder/cäche #1.h5: .* \(tried 1 time\)"):
        remote.publish()
    assert store.get(BELOW) == b"old"
    assert store.get(f"{BELOW}.parts/part-1.h5") == b"one"
    store.relay.faults.clear()
    remote.publish()
    assert store.get(BELOW) == bytes(11 << 20)
    assert store.keys() == [BELOW]


def test_an_upload_that_fails_twice_is_done_a_third_time(store):
    remote = RemoteCache(URL)
    store.relay.fail("PUT", f"{BELOW}.parts/part-1.h5", times=2)
    remote.store_part(write_part(remote, "1", bytes(1000)))
    assert store.get(f"{BELOW}.parts/part-1.h5") == bytes(1000)


def test_a_server_that_dies_for_good_is_an_output_error(store, once, monkeypatch, another_environment):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    remote = RemoteCache(URL)
    with pytest.raises(OutputError, match=r"Could not connect to the endpoint .*; run again when the store answers"):
        remote.store_part(write_part(remote, "1", b"one"))


@pytest.mark.parametrize(
    ("url", "fault", "reason"),
    [
        ("s3://missing/c.h5", None, "cannot write s3://missing/c.h5: .*bucket does not exist; make it first"),
        ("s3://bucket/c.h5", ("HEAD", "c.h5"), "cannot write s3://bucket/c.h5: Forbidden; check the credentials, and"),
        (
            "s3://bucket/c.h5",
            ("PUT", ".c.h5.writable"),
            "cannot write s3://bucket/c.h5: Access Denied; check the credentials, and what",
        ),
        (
            "s3://bucket/c.h5",
            ("DELETE", ".c.h5.writable"),
            "cannot write s3://bucket/c.h5: Access Denied; check the credentials, and",
        ),
        ("s3://bucket/folder", None, "s3://bucket/folder is a folder; name a file in it, such as s3://bucket/f"),
        ("nosuch://bucket/c.h5", None, "cannot write nosuch://bucket/c.h5: Protocol not known: nosuch"),
        ("simplecache::s3://bucket/c.h5", None, "simplecache would keep copies of the files elsewhere; leave it"),
    ],
)
def test_a_cache_that_cannot_be_written_is_refused_before_any_work(store, url, fault, reason):
    store.put("folder/c.h5", b"data")
    if fault:
        store.relay.fail(*fault, "denied")
    with pytest.raises(OutputError, match=reason) as caught:
        RemoteCache(url).check_writable()
    assert "\n" not in str(caught.value)
    assert [key for key in store.keys() if "writable" not in key] == ["folder/c.h5"]  # noqa: SIM118  no dict


def test_missing_credentials_are_said_to_be_missing(store, monkeypatch, another_environment):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    reason = "Unable to locate credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    with pytest.raises(OutputError, match=f"cannot write s3://bucket/c.h5: {reason}"):
        RemoteCache("s3://bucket/c.h5").check_writable()
    with pytest.raises(SourceError, match=f"cannot read s3://bucket/root: {reason}"):
        open_source("s3://bucket/root").scan()


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    def missing(url, **_):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(MissingExtraError, match=r"s3://b/c.h5 needs s3fs; pip install 'pucache\[s3\]'"):
        RemoteCache("s3://b/c.h5").check_writable()
    with pytest.raises(MissingExtraError, match=r"gs://b needs another package \(Install"):
        open_source("gs://b").scan()


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/folder/", "s3://bucket/.."])
def test_a_url_without_a_file_is_no_cache(url):
    with pytest.raises(ValueError, match=r"names no file; expected a URL such as s3://bucket/folder/cache.h5"):
        RemoteCache(url)


def test_the_folder_to_work_in_is_told_or_found_and_refused_where_it_cannot_be(tmp_path, monkeypatch):
    def above(**options):
        return RemoteCache("s3://b/c.h5", **options).local.parent.parent

    assert above(work=tmp_path / "told") == tmp_path / "told"
    assert above() == tmp_path / "work"
    monkeypatch.delenv("PUCACHE_WORK")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert above() == tmp_path / "xdg/pucache"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert above() == tmp_path / "home/.cache/pucache"
    (tmp_path / "file").touch()
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "file/below"))
    with pytest.raises(OutputError, match=r"file/below: Not a directory; name another folder in PUCACHE_WORK"):
        above()


def test_secrets_of_a_url_are_in_no_name_and_no_message(tmp_path):
    secret = RemoteCache("https://user:hunter2@host.invalid/folder/c.h5?X-Signature=hunter2&b=c")
    assert (secret.name, secret.local.name) == ("https://host.invalid/folder/c.h5", "c.h5")
    assert "hunter2" not in "".join(map(str, tmp_path.rglob("*")))
    source = open_source("sftp://user:hunter2@host.invalid/folder")
    assert source.name == "sftp://host.invalid/folder"
    for name in ("list.csv", "shard.tar", "folder"):
        source = open_source(f"https://user:hunter2@host.invalid/{name}?sig=hunter2")
        assert source.name == f"https://host.invalid/{name}"
    told = retries.error_text(
        OSError("GET https://u:hunter2@h/x?sig=hunter2: 500, memory://u:hunter2@h/x?token=hunter2")
    )
    assert told == "GET https://h/x 500, memory://h/x"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sftp://u:hunt@er2@h/a@b.png", "sftp://h/a@b.png"),
        ("sftp://u:hunt/er2@h/a.png", "sftp://h/a.png"),
        ("HTTPS://hunter2@h/a.png?sig=hunter2", "HTTPS://h/a.png"),
        ("http://h:8080/a@b.png", "http://h:8080/a@b.png"),
        ("s3://bucket/a:b@c.png", "s3://bucket/a:b@c.png"),
        ("zip://a.png::memory://b@c.zip", "zip://a.png::memory://b@c.zip"),
        ("zip://a.png::sftp://u:hunter2@h/c.zip", "zip://a.png::sftp://h/c.zip"),
    ],
)
def test_a_password_is_told_from_a_port_and_from_a_path(url, shown):
    assert without_secrets(url) == shown


def test_two_urls_never_share_a_folder_but_for_a_password():
    def folder(url):
        return RemoteCache(url).local.parent

    url = "https://{}host.invalid/c.h5{}"
    places = [url.format(*parts) for parts in (("", ""), ("a:p@", ""), ("b:p@", ""), ("", "?run=1"), ("", "?run=2"))]
    assert len(set(map(folder, places))) == len(places)
    assert folder(url.format("a:p@", "")) == folder(url.format("a:changed@", ""))


# --- a cache behind a URL, for reading ---------------------------------------------------------


def test_a_cache_is_fetched_once_and_again_when_it_has_changed(url):
    files, path = storage.open_filesystem(url)
    RemoteCache(url).check_writable()  # which makes the folder
    files.pipe_file(path, b"first")
    copy = local_copy(url)
    inode = copy.stat().st_ino
    assert (copy.name, copy.read_bytes()) == (path.rpartition("/")[2], b"first")
    assert local_copy(url).stat().st_ino == inode
    files.pipe_file(path, b"2nd..")
    assert local_copy(url).read_bytes() == b"2nd.."
    copy.write_bytes(b"spoilt")
    assert local_copy(url).read_bytes() == b"2nd.."
    files.rm_file(path)
    with pytest.raises(CacheError, match=r"no such cache: .*; check the URL"):
        local_copy(url)


def test_what_is_read_is_apart_from_what_is_worked_on(url):
    remote = RemoteCache(url)
    remote.local.write_bytes(b"published")
    remote.publish()
    remote.local.write_bytes(b"the next one, not published yet")
    assert local_copy(url).read_bytes() == b"published"
    assert remote.local.read_bytes() == b"the next one, not published yet"


def test_a_folder_of_caches_is_fetched_and_follows_what_is_there(store):
    for key in ("a.h5", "b [1].h5", ".hidden.h5", "a.h5.parts/part-1.h5", "notes.md"):
        store.put(f"caches/{key}", key.encode())
    for url in ("s3://bucket/caches", "s3://bucket/caches/"):
        folder = local_copy(url)
        assert {path.name: path.read_bytes() for path in folder.glob("*.h5")} == {
            "a.h5": b"a.h5",
            "b [1].h5": b"b [1].h5",
        }
    assert store.relay.asked["GET", "caches/a.h5"] == 1
    store.files.rm_file("bucket/caches/a.h5")
    assert [path.name for path in local_copy(url).glob("*.h5")] == ["b [1].h5"]
    store.files.rm_file("bucket/caches/b [1].h5")
    with pytest.raises(CacheError, match=r"no cache in folder s3://bucket/caches/; expected \*.h5 files"):
        local_copy(url)


class Counting(Silent):
    def start(self, total, what):
        self.total, self.done = total, 0

    def advance(self, steps):
        self.done += steps


def test_a_large_cache_comes_in_pieces_each_of_which_is_tried_again(store, monkeypatch):
    monkeypatch.setattr(transfer, "BLOCK_BYTES", 1 << 20)
    data = os.urandom((3 << 20) + 5)
    store.put("c.h5", data)
    store.relay.fail("GET", "c.h5", times=3)
    progress = Counting()
    assert local_copy("s3://bucket/c.h5", progress=progress).read_bytes() == data
    assert (progress.total, progress.done) == (4, 4)
    assert store.relay.asked["GET", "c.h5"] == 4 + 3


def test_a_cache_that_is_replaced_while_it_is_fetched_is_fetched_again(store, monkeypatch):
    monkeypatch.setattr(transfer, "BLOCK_BYTES", 10)
    store.put("c.h5", b"old" * 10)

    def piece(*arguments, real=transfer.read_range):
        data = real(*arguments)
        if store.get("c.h5") == b"old" * 10:
            store.put("c.h5", b"new" * 10)
        return data

    monkeypatch.setattr(transfer, "read_range", piece)
    assert local_copy("s3://bucket/c.h5").read_bytes() == b"new" * 10


def test_what_another_process_puts_in_the_place_of_a_copy_is_no_copy(memory, monkeypatch, tmp_path):
    memory.pipe("/c.h5", b"content")
    target = tmp_path / "c.h5"

    @contextlib.contextmanager
    def overtaken(path, real=transfer.replacing):
        with real(path) as temporary:
            yield temporary
        if path == target:
            (tmp_path / "other").write_bytes(b"another")
            os.replace(tmp_path / "other", target)

    monkeypatch.setattr(transfer, "replacing", overtaken)
    transfer.fetch_file(memory, "/c.h5", target)
    assert not transfer.is_copy(target, transfer.object_stamp(memory.info("/c.h5")))
    monkeypatch.undo()
    transfer.fetch_file(memory, "/c.h5", target)
    assert target.read_bytes() == b"content"


def test_where_a_store_tells_the_size_alone_everything_is_fetched_again(memory, monkeypatch, tmp_path):
    monkeypatch.setattr(type(memory), "info", lambda self, path: {"size": 3, "type": "file"})
    for content in (b"old", b"new"):
        memory.pipe("/c.h5", content)
        assert local_copy("memory://c.h5").read_bytes() == content


def test_a_fetch_that_fails_leaves_what_was_here_and_nothing_half(store, monkeypatch):
    store.put("c.h5", b"old")
    copy = local_copy("s3://bucket/c.h5")
    store.put("c.h5", b"new one")
    store.relay.fail("GET", "c.h5")
    with pytest.raises(CacheError, match=r"cannot fetch s3://bucket/c.h5: .*tried 4 times\); run again when the store"):
        local_copy("s3://bucket/c.h5")
    assert copy.read_bytes() == b"old"
    left = {path.name for path in copy.parent.iterdir() if not path.name.endswith(".copied")}
    assert left == {"c.h5", ".in-use", ".url"}


def test_a_full_disk_here_is_told_from_a_failing_store(store, small_disk):
    store.put("c.h5", bytes(200_000))
    with small_disk(100_000), pytest.raises(OutputError, match=r"cannot write .*c.h5: File too large"):
        local_copy("s3://bucket/c.h5")


# --- scores ------------------------------------------------------------------------------------


def test_scores_arrive_whole_or_not_at_all(url, tmp_path):
    path = tmp_path / "scores.csv"
    for content in (b"key,margin\n", b"key,margin\na.png,1\n"):
        path.write_bytes(content)
        upload(path, url)
        assert there(url) == {url.rpartition("/")[2]: content}


def test_scores_that_break_off_leave_the_old_ones(store, once, tmp_path):
    path = tmp_path / "scores.csv"
    path.write_bytes(bytes(1000))
    store.put("scores.csv", b"old")
    store.relay.fail("PUT", "scores.csv")
    with pytest.raises(OutputError, match=r"cannot write s3://bucket/scores.csv: "):
        upload(path, "s3://bucket/scores.csv")
    assert store.get("scores.csv") == b"old"


# --- where only a file of this machine will do --------------------------------------------------


@pytest.mark.parametrize("path", ["s3://bucket/c.h5", Path("s3://bucket/c.h5"), "https://u:hunter2@h/c?t=hunter2"])
def test_a_url_in_the_place_of_a_path_makes_no_folder(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match="is a URL; expected a file of this machine") as caught:
        check_writable(path)
    assert "hunter2" not in str(caught.value)
    assert [path for path in tmp_path.iterdir() if not stat.S_ISDIR(path.stat().st_mode) or ":" in path.name] == []


@pytest.mark.parametrize("name", ["a:b.h5", "c:/d.h5", "12:30/x.h5"])
def test_a_name_with_a_colon_is_a_path(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert check_writable(name) == Path(name)
