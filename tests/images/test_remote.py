"""Images behind URLs: a web server and a real S3 server, which fail where they are told to."""

import re
import zipfile

import numpy as np
import pytest
from helpers.pictures import refusal
from helpers.refusals import one_line
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
def far(store, site, tmp_path):
    """Sources in the store: two images of the web server in a list of this machine, its pages, a folder and shards."""
    for name in ("a.png", "b.png", "sub/c.png"):
        store.put(f"site/{name}", name.encode())
    show(store, "site", "a.png", "sub/")
    show(store, "site/sub", "c.png")
    for number in (1, 2):
        store.put(f"shards/{number}.tar", tar(("a.png", b"data")))
    listed = write(tmp_path / "list.txt", f"{site}/a.png\n{site}/b.png\n".encode())
    return {"list": listed, "pages": site, "folder": "s3://bucket/site", "shards": "s3://bucket/shards/*.tar"}


ALWAYS, BOTH = 10**6, "site/a.png site/b.png"
NONE = r"cannot look up 2 of the 2 images that .*list.txt names; first .*/[ab].png: "
FAULTS = [  # source, what fails, how and how often; the keys that are listed, None where the listing fails, and why
    ("list", "site/b.png", "busy", ALWAYS, ["a.png"], r"503 [^']+ \(tried 4 times\); run again.*, or leave it out$"),
    ("list", "site/b.png", "denied", ALWAYS, ["a.png"], "403 Forbidden; check the credentials.*, or leave it out$"),
    ("list", "site/b.png", "gone", ALWAYS, ["a.png"], "^cannot be read: no such file: .*/site/b.png$"),
    ("list", BOTH, "busy", ALWAYS, None, NONE + r"503.* \(tried 4 times\); run again.*, or leave it out$"),
    ("list", BOTH, "denied", ALWAYS, None, NONE + "403.*; check the credentials.*, or leave it out$"),
    ("pages", "site/sub", "busy", 2, ["a.png", "sub/c.png"], ""),
    ("pages", "site/sub", "busy", ALWAYS, None, r"^cannot read .*: .*503.* \(tried 4 times\); run again"),
    ("pages", "site/sub", "denied", ALWAYS, ["a.png"], "^directory cannot be listed: 403"),
    (
        "folder",
        "",
        "denied",
        ALWAYS,
        None,
        "^cannot read s3://bucket/site: Access Denied; check the credentials, and what",
    ),
    ("shards", "shards/2.tar", "cut", 3, ["1.tar/a.png", "2.tar/a.png"], ""),
    (
        "shards",
        "shards/2.tar",
        "cut",
        ALWAYS,
        None,
        r"^cannot read s3://bucket/shards/2.tar: .* \(tried 4 times\); run",
    ),
    ("shards", "shards/2.tar", "denied", ALWAYS, ["1.tar/a.png"], "^tar shard cannot be read: Access Denied$"),
]


@pytest.mark.parametrize(("source", "failing", "kind", "times", "keys", "reason"), FAULTS)
def test_what_is_out_of_reach_is_told_from_what_is_not_there(
    store, site, far, source, failing, kind, times, keys, reason
):
    for key in failing.split(" "):
        for method in (
            ("HEAD", "GET") if source == "list" else ("GET",)
        ):  # look-ups ask for the head, then for the whole
            store.relay.fail(method, key, kind, times)
    opened = open_source(far[source])
    if keys is None:
        assert re.search(reason, one_line(SourceError, opened.scan))
        return
    listing = opened.scan()
    assert [key.removeprefix(f"{site}/") for key in listing.keys] == keys
    assert len(listing.failures) == bool(reason)
    assert all(re.search(reason, told) for told in listing.failures.values())
    if source == "list" and kind != "gone":
        assert listing.unanswered == listing.failures.keys() == {f"{site}/b.png"}
        assert reason[:3] in refusal(opened.read, f"{site}/b.png")


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
    store.relay.fail("GET", "site/other", "busy")
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


@pytest.mark.parametrize(("where", "key"), [("root", "{}.png"), ("root/*.tar", "{}.tar/a.png")])
def test_what_has_come_since_the_last_listing_is_found(store, where, key):
    source = open_source(f"s3://bucket/{where}")
    for number in range(2):
        store.put(f"root/{number}.png", b"image %d" % number)
        store.put(f"root/{number}.tar", tar(("a.png", b"image %d" % number)))
        assert source.scan().keys == [key.format(n) for n in range(number + 1)]
    assert source.read(key.format(1)) == b"image 1"


@pytest.mark.parametrize(
    ("source", "fault", "times", "reason", "tries"),
    [
        ("root", "cut", 2, None, 3),  # nothing beneath tries on its own account
        ("root", "short", 2, None, 3),
        ("root/list.txt", "busy", 2, None, 3),
        ("shards/*.tar", "cut", 2, None, 3),
        ("shards/*.tar", "busy", 2, None, 3),
        ("root", "busy", 10**6, r".* \(tried 4 times\)", 4),
        ("root", "denied", 10**6, "Access Denied", 1),
        ("root", None, 0, "no such file: bucket/root/a.png", 0),
    ],
)
def test_a_read_that_fails_is_tried_again_unless_the_failure_is_certain(store, source, fault, times, reason, tries):
    store.put("root/a.png", picture())
    store.put("root/list.txt", b"a.png")
    store.put("shards/1.tar", tar(("a.png", picture())))
    opened = open_source(f"s3://bucket/{source}")
    (key,) = opened.scan().keys
    where = "shards/1.tar" if "tar" in source else "root/a.png"
    store.relay.asked.clear()
    if fault:
        store.relay.fail("GET", where, fault, times)
    else:
        store.files.rm_file(f"bucket/{where}")
    if reason:
        assert re.fullmatch(f"cannot be read: {reason}", refusal(opened.read, key))
    else:
        assert opened.read(key) == picture()
    assert store.relay.asked["GET", where] == tries
    assert not reason or store.relay.asked["HEAD", where] == max(tries, 1)


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
