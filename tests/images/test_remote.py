"""Images behind URLs: a web server and a real S3 server, which fail where they are told to."""

import pickle
import re
import zipfile

import numpy as np
import pytest
from helpers.pictures import refusal
from helpers.sources import picture, tar, write
from helpers.tiny import save_image, tiny_encoder

from pucache import EmbeddingCache, open_source
from pucache.embedding.embed import run_embedding
from pucache.embedding.engine import CHUNK_ROWS
from pucache.errors import SourceError
from pucache.images.listing import UNKNOWN

pytestmark = pytest.mark.usefixtures("one_thread")

# --- a web server ------------------------------------------------------------------------------


@pytest.fixture
def site(store):
    """The URL at which a web server shows what lies below `site` in the store."""
    return f"{store.environ['AWS_ENDPOINT_URL']}/bucket/site"


def show(store, folder, *links):
    """Let the web server show a folder as a page of links."""
    page = "".join(f'<a href="{link}">' for link in links)
    store.put(folder, page.encode(), ContentType="text/html")


@pytest.fixture
def manifest(store, site, tmp_path):
    """Two images of the web server in a list of this machine."""
    for name in ("a.png", "b.png"):
        store.put(f"site/{name}", name.encode())
    return write(tmp_path / "list.txt", f"{site}/a.png\n{site}/b.png\n".encode())


def fail(store, key, kind, times=10**6):
    """Let the next look-ups of a key fail, each of which asks for the head, and then for the whole."""
    for method in ("HEAD", "GET"):
        store.relay.fail(method, key, kind, times)


@pytest.mark.parametrize(
    ("kind", "reason"), [("busy", r"503.* \(tried 4 times\); run again"), ("denied", "403.*; check the credentials")]
)
def test_a_web_server_that_fails_or_refuses_does_not_say_that_there_is_no_such_file(
    store, site, manifest, kind, reason
):
    fail(store, "site/b.png", kind)
    listing = open_source(manifest).scan()
    assert listing.keys == [f"{site}/a.png"] and listing.unanswered == listing.failures.keys() == {f"{site}/b.png"}
    assert re.search(f"{reason}.*, or leave it out$", listing.failures[f"{site}/b.png"])
    assert reason[:3] in refusal(open_source(manifest).read, f"{site}/b.png")
    fail(store, "site/a.png", kind)
    counted = f"cannot look up 2 of the 2 images that {manifest} names; first {site}/[ab].png: "
    with pytest.raises(SourceError, match=f"{counted}{reason}.*, or leave it out$"):
        open_source(manifest).scan()


def test_what_a_web_server_does_not_have_any_more_is_a_failure(store, site, manifest):
    fail(store, "site/b.png", "gone")
    listing = open_source(manifest).scan()
    assert listing.keys == [f"{site}/a.png"]
    assert listing.failures == {f"{site}/b.png": f"cannot be read: no such file: {site}/b.png"}


def test_a_folder_below_whose_listing_fails_is_not_taken_for_an_empty_one(store, site):
    show(store, "site", "a.png", "sub/")
    show(store, "site/sub", "b.png")
    source = open_source(site)
    store.relay.fail("GET", "site/sub", "busy", times=2)
    assert source.scan().keys == ["a.png", "sub/b.png"]
    store.relay.fail("GET", "site/sub", "busy")
    with pytest.raises(SourceError, match=rf"cannot read {site}: .*503.* \(tried 4 times\); run again"):
        source.scan()
    store.relay.fail("GET", "site/sub", "denied")
    listing = source.scan()
    assert (listing.keys, list(listing.failures)) == (["a.png"], ["sub/"])
    assert listing.failures["sub/"].startswith("directory cannot be listed: 403")


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("s*/1.tar", ["shards/1.tar/a.png"]),
        ("shards/[1].tar", ["1.tar/a.png"]),
        ("shards/**/[23].tar", ["2.tar/a.png", "sub/3.tar/a.png"]),
        ("shards/1.tar?of=2", ["a.png"]),
    ],
)
def test_a_glob_of_shards_reads_those_of_its_web_server_and_lists_no_other_folder(store, site, pattern, keys):
    for name in ("1.tar", "2.tar", "sub/3.tar"):
        store.put(f"site/shards/{name}", tar(("a.png", name[-5:].encode())))
    show(store, "site", "shards/", "other/")
    show(store, "site/shards", "1.tar", "2.tar", "sub/")
    show(store, "site/shards/sub", "3.tar")
    fail(store, "site/other", "busy")
    source = open_source(f"{site}/{pattern}")
    assert source.scan().keys == keys
    assert [source.read(key) for key in keys] == [(key.rpartition("/")[0][-5:] or "1.tar").encode() for key in keys]
    with pytest.raises(SourceError, match=r"/\*/\*.tar: .*503.*tried 4 times"):
        open_source(f"{site}/*/*.tar").scan()


# --- other file systems ------------------------------------------------------------------------


def test_keys_of_an_archive_and_at_the_root_of_a_store_are_whole(tmp_path, memory):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in ("a.png", "sub/b.png"):
            archive.writestr(name, name)
            memory.pipe(f"/{name}", name.encode())
    for where in (f"zip://::{tmp_path}/x.zip", "memory://"):
        source = open_source(where)
        assert [source.read(key).decode() for key in source.scan().keys] == ["a.png", "sub/b.png"]


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"size": 5, "mtime": 1.5}, [5, 1_500_000_000]),
        ({"size": 5, "mtime": 1e20}, [5, UNKNOWN]),
        ({"size": None}, [UNKNOWN, UNKNOWN]),
    ],
)
def test_a_remote_time_is_in_nanoseconds_and_unknown_when_the_store_tells_none(memory, monkeypatch, info, expected):
    memory.pipe("/root/a.png", picture())
    monkeypatch.setattr(type(memory), "find", lambda self, path, detail: {f"{path}/a.png": info})
    assert open_source("memory://root").scan().size_mtime.tolist() == [expected]


@pytest.mark.parametrize("name", ["ETag", "Last-Modified"])
def test_a_remote_tag_stands_in_for_the_time_and_differs_with_the_content(memory, monkeypatch, name):
    tagged = {f"/root/{i}.png": {"size": 5, name: tag} for i, tag in enumerate("aabcdefgh")}
    monkeypatch.setattr(type(memory), "find", lambda self, path, detail: tagged)
    first, *others = open_source("memory://root").scan().size_mtime[:, 1]
    assert first == others[0] and len(set(others)) == 8 and min(others) >= 0


# --- reading from a store ----------------------------------------------------------------------

ODD = ["a b.png", "x#y.png", "p%20q.png", "w?.png", "w?x=1.png", "p+q.png", "é🦊.png", "[1].png", "d//e.png", "s/t.png"]
CONTENT = {"empty.png": b""} | {name: name.encode() for name in ODD}


@pytest.mark.parametrize("source", ["root", "root/list.csv", "one.tar"])
def test_a_store_is_listed_and_read_whatever_the_keys(store, source):
    for name, data in CONTENT.items():
        store.put(f"root/{name}", data)
    store.put("root/list.csv", "\n".join(["path", *CONTENT]).encode())
    store.put("one.tar", tar(*CONTENT.items()))
    opened = pickle.loads(pickle.dumps(open_source(f"s3://bucket/{source}")))
    listing = opened.scan()
    assert (listing.keys, listing.failures) == (sorted(CONTENT, key=str.encode), {})
    assert listing.size_mtime[:, 0].tolist() == [len(CONTENT[key]) for key in listing.keys]
    assert {key: opened.read(key) for key in listing.keys} == CONTENT


@pytest.mark.parametrize(("where", "key"), [("root", "{}.png"), ("root/*.tar", "{}.tar/a.png")])
def test_what_has_come_since_the_last_listing_is_found(store, where, key):
    source = open_source(f"s3://bucket/{where}")
    for number in range(2):
        store.put(f"root/{number}.png", b"image %d" % number)
        store.put(f"root/{number}.tar", tar(("a.png", b"image %d" % number)))
        assert source.scan().keys == [key.format(n) for n in range(number + 1)]
    assert source.read(key.format(1)) == b"image 1"


@pytest.mark.parametrize(
    ("source", "kind"),
    [("root", "cut"), ("root", "short"), ("root/list.txt", "busy"), ("shards/*.tar", "cut"), ("shards/*.tar", "busy")],
)
def test_a_read_that_fails_twice_and_then_works_gives_the_image(store, source, kind):
    store.put("root/a.png", picture())
    store.put("root/list.txt", b"a.png")
    store.put("shards/1.tar", tar(("a.png", picture())))
    opened = open_source(f"s3://bucket/{source}")
    (key,) = opened.scan().keys
    where = "shards/1.tar" if "tar" in source else "root/a.png"
    store.relay.asked.clear()
    store.relay.fail("GET", where, kind, times=2)
    assert opened.read(key) == picture()
    assert store.relay.asked["GET", where] == 3, "and nothing beneath tries on its own account"


@pytest.mark.parametrize(
    ("key", "fault", "reason", "tries"),
    [
        ("a.png", "busy", r".* \(tried 4 times\)", 4),
        ("a.png", "denied", "Access Denied", 1),
        ("gone.png", None, "no such file: bucket/root/gone.png", 0),
    ],
)
def test_a_read_that_always_fails_is_refused_and_what_is_certain_is_not_tried_again(store, key, fault, reason, tries):
    store.put("root/a.png", b"data")
    if fault:
        store.relay.fail("GET", "root/a.png", fault)
    told = refusal(open_source("s3://bucket/root").read, key)
    assert re.fullmatch(f"cannot be read: {reason}", told)
    assert store.relay.asked["HEAD", f"root/{key}"] == max(tries, 1)
    assert store.relay.asked["GET", f"root/{key}"] == tries


@pytest.mark.slow
def test_worker_processes_read_from_a_store_and_what_always_fails_is_recorded(store, tmp_path):
    for number in range(CHUNK_ROWS + 1):  # enough for two workers
        image = save_image(tmp_path / f"images/{number:02}.png", number)
        store.put(f"root/{image.name}", image.read_bytes())
    (tmp_path / "images/05.png").unlink()
    store.relay.fail("GET", "root/05.png")
    store.relay.fail("GET", "root/06.png", times=2)
    opened = open_source("s3://bucket/root")
    opened.scan()
    store.forget()  # what opens the store now is another file system, and workers must not close that one either
    opened.scan()
    far = run_embedding(opened, tmp_path / "far.h5", tiny_encoder(), workers=2)
    run_embedding(open_source(tmp_path / "images"), tmp_path / "near.h5", tiny_encoder(), workers=0)
    assert list(far.failures) == ["05.png"] and far.failures["05.png"].endswith(" (tried 4 times)")
    assert far.computed == far.rows == CHUNK_ROWS
    far, near = EmbeddingCache(tmp_path / "far.h5"), EmbeddingCache(tmp_path / "near.h5")
    assert list(far.keys) == list(near.keys) and np.array_equal(far.X, near.X)
    store.relay.asked.clear()
    opened.scan()
    assert store.relay.asked.total() == 1, "an answer that workers take away makes a second request"


# --- listing a store ---------------------------------------------------------------------------


def test_a_shard_that_cannot_be_read_is_no_damaged_shard(store):
    for number in (1, 2):
        store.put(f"shards/{number}.tar", tar(("a.png", b"data")))
    source = open_source("s3://bucket/shards/*.tar")
    store.relay.fail("GET", "shards/2.tar", times=3)
    assert source.scan().keys == ["1.tar/a.png", "2.tar/a.png"]
    store.relay.fail("GET", "shards/2.tar")
    with pytest.raises(SourceError, match=r"cannot read s3://bucket/shards/2.tar: .* \(tried 4 times\); run again"):
        source.scan()
    store.relay.fail("GET", "shards/2.tar", "denied")
    listing = source.scan()
    assert listing.keys == ["1.tar/a.png"]
    assert listing.failures == {"2.tar/": "tar shard cannot be read: Access Denied"}


@pytest.mark.parametrize(
    ("where", "fault", "reason"),
    [
        ("s3://missing/root", None, "cannot read s3://missing/root: The specified bucket does not exist"),
        ("s3://bucket/empty", None, r"no such source: s3://bucket/empty \(nothing is there\)"),
        ("s3://bucket/no.csv", None, "cannot read s3://bucket/no.csv: no such file: bucket/no.csv"),
        ("s3://bucket/no.tar", None, "cannot read s3://bucket/no.tar as tar: no such file: bucket/no.tar"),
        ("s3://bucket/*.tar", None, r"no such source: no shard matches s3://bucket/\*.tar"),
        ("s3://bucket/root", "denied", "cannot read s3://bucket/root: Access Denied; check the credentials, and what"),
    ],
)
def test_a_store_that_cannot_be_listed_is_refused_in_one_line(store, where, fault, reason):
    if fault:
        store.relay.fail("GET", "", fault)
    with pytest.raises(SourceError, match=reason) as caught:
        open_source(where).scan()
    assert "\n" not in str(caught.value)
