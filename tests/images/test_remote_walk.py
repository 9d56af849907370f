import contextlib
import functools
import http.server
import io
import os
import pickle
import socket
import tarfile
import threading
import zipfile
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from helpers.pictures import refusal

from pucache.errors import SourceError
from pucache.images.source import open_source
from pucache.storage import filesystem, retries


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Four tries without a pause."""
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0, 0.0, 0.0])
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def shard(name, data):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


# --- a web server ------------------------------------------------------------------------------


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def send_head(self):
        status, left = self.server.faults.get(self.path.rstrip("/"), (0, 0))
        if not left:
            return self.send_range() if "Range" in self.headers else super().send_head()
        self.server.faults[self.path.rstrip("/")] = status, left - 1
        self.send_error(status)
        return None

    def send_range(self):
        data = Path(self.translate_path(self.path)).read_bytes()
        start, end = self.headers["Range"].removeprefix("bytes=").split("-")
        part = data[int(start) : int(end) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        return io.BytesIO(part)


class Website:
    """Files of a folder behind a URL, some of which are refused."""

    def __init__(self, folder, server):
        self.folder, self.server = folder, server
        self.url = f"http://127.0.0.1:{server.server_port}"

    def put(self, name, data):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def fail(self, name, status, times=10**6):
        """Answer the next requests for a name with this status."""
        self.server.faults[f"/{name}"] = status, times


@pytest.fixture
def website(tmp_path):
    folder = tmp_path / "website"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    server.daemon_threads, server.faults = True, {}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield Website(folder, server)
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def manifest(website, tmp_path):
    """Two images of the website in a list of this machine."""
    for name in ("a.png", "b.png"):
        website.put(name, name.encode())
    path = tmp_path / "list.txt"
    path.write_text(f"{website.url}/a.png\n{website.url}/b.png\n")
    return path


def test_a_web_server_that_is_busy_twice_is_asked_a_third_time(website, manifest):
    website.fail("b.png", 503, times=4)  # each look-up asks for the head, and then for the whole
    source = open_source(manifest)
    assert [source.read(key) for key in source.scan().keys] == [b"a.png", b"b.png"]
    website.fail("b.png", 503, times=4)
    assert source.read(f"{website.url}/b.png") == b"b.png"


@pytest.mark.parametrize(
    ("status", "reason"), [(503, r"503.* \(tried 4 times\); run again"), (403, "403.*; check the credentials")]
)
def test_a_web_server_that_fails_or_refuses_does_not_say_that_there_is_no_such_file(website, manifest, status, reason):
    website.fail("b.png", status)
    with pytest.raises(SourceError, match=f"2 images that .* names; first {website.url}/b.png: {reason}"):
        open_source(manifest).scan()
    assert f"{status}" in refusal(open_source(manifest).read, f"{website.url}/b.png")


@pytest.mark.parametrize("status", [404, 410])
def test_what_a_web_server_does_not_have_is_a_failure(website, manifest, status):
    website.fail("b.png", status)
    listing = open_source(manifest).scan()
    assert listing.keys == [f"{website.url}/a.png"]
    assert listing.failures == {f"{website.url}/b.png": f"cannot be read: no such file: {website.url}/b.png"}


def test_a_web_server_that_cannot_be_reached_does_not_say_that_there_is_no_such_file(tmp_path):
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        (tmp_path / "list.txt").write_text(f"http://127.0.0.1:{taken.getsockname()[1]}/a.png\n")
        with pytest.raises(SourceError, match=r"cannot look up 1 of the 1 images .*Connect.* \(tried 4 times\)"):
            open_source(tmp_path / "list.txt").scan()


def test_a_folder_below_whose_listing_fails_is_not_taken_for_an_empty_one(website):
    website.put("root/a.png", b"a")
    website.put("root/sub/b.png", b"b")
    source = open_source(f"{website.url}/root")
    website.fail("root/sub", 503, times=2)
    assert source.scan().keys == ["a.png", "sub/b.png"]
    website.fail("root/sub", 503)
    with pytest.raises(SourceError, match=rf"cannot read {website.url}/root: .*503.* \(tried 4 times\); run again"):
        source.scan()
    website.fail("root/sub", 403)
    listing = source.scan()
    assert (listing.keys, list(listing.failures)) == (["a.png"], ["sub/"])
    assert listing.failures["sub/"].startswith("directory cannot be listed: 403")


@pytest.mark.parametrize("where", ["root", "root/*.tar"])
def test_a_folder_that_is_not_there_is_no_source(website, where):
    with pytest.raises(SourceError, match="no such source: "):
        open_source(f"{website.url}/{where}").scan()


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("shards/*.tar", ["1.tar/a.png", "2.tar/a.png"]),
        ("shards/[1].tar", ["1.tar/a.png"]),
        ("*/1.tar", ["shards/1.tar/a.png"]),
        ("**/[23].tar", ["shards/2.tar/a.png", "shards/sub/3.tar/a.png"]),
        ("shards/1.tar?of=2", ["a.png"]),
    ],
)
def test_a_glob_of_shards_reads_those_of_its_web_server(website, pattern, keys):
    for name in ("1.tar", "2.tar", "sub/3.tar"):
        website.put(f"shards/{name}", shard("a.png", name[-5:].encode()))
    source = open_source(f"{website.url}/{pattern}")
    assert source.scan().keys == keys
    source = pickle.loads(pickle.dumps(source))
    assert [source.read(key) for key in keys] == [(key.rpartition("/")[0][-5:] or "1.tar").encode() for key in keys]


def test_the_query_of_a_shard_is_no_wildcard(website):
    website.put("1.tar", shard("a.png", b"data"))
    website.fail("1.tar?of=2", 503)
    with pytest.raises(SourceError, match=rf"cannot read {website.url}/1.tar: .*503.*tried 4 times"):
        open_source(f"{website.url}/1.tar?of=2").scan()


def test_a_glob_lists_no_folder_that_it_does_not_lead_to(website):
    website.put("shards/1.tar", shard("a.png", b"data"))
    website.put("other/2.tar", shard("a.png", b"data"))
    website.fail("other", 503)
    assert open_source(f"{website.url}/s*/*.tar").scan().keys == ["shards/1.tar/a.png"]
    with pytest.raises(SourceError, match=r"/\*/\*.tar: .*503.*tried 4 times"):
        open_source(f"{website.url}/*/*.tar").scan()


# --- other kinds of stores ---------------------------------------------------------------------


class Hosted(fsspec.AbstractFileSystem):
    """Files of a host, which a path does not tell, and listings of which are remembered."""

    protocol = "hosted"
    hosts: ClassVar = {}

    def __init__(self, host, **options):
        super().__init__(host=host, **options)
        self.files = self.hosts[host]

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.split("://")[-1].partition("/")[2] if "://" in path else path

    @staticmethod
    def _get_kwargs_from_urls(url):
        return {"host": url.split("://")[1].partition("/")[0].rpartition("@")[2]}

    def ls(self, path, detail=True, **_):
        if path not in self.dircache:
            above = path.rstrip("/") + "/"
            below = {name[len(above) :].partition("/")[::2] for name in self.files if name.startswith(above)}
            self.dircache[path] = [
                {"name": above + name, "type": "directory", "size": 0}
                if rest
                else {"name": above + name, "type": "file", "size": len(self.files[above + name])}
                for name, rest in sorted(below)
            ]
        return self.dircache[path]

    def invalidate_cache(self, path=None):
        self.dircache.clear()

    def cat_file(self, path, start=None, end=None, **_):
        if isinstance(self.files[path], Exception):
            raise self.files[path]
        return self.files[path][start:end]


@pytest.fixture
def hosted(monkeypatch):
    fsspec.register_implementation("hosted", Hosted, clobber=True)
    monkeypatch.setattr(Hosted, "hosts", {"far": {}})
    Hosted.clear_instance_cache()
    return Hosted.hosts["far"]


@pytest.mark.parametrize(("where", "key"), [("root", "{}.png"), ("root/*.tar", "{}.tar/a.png")])
def test_what_has_come_since_the_last_listing_is_found(hosted, where, key):
    source = open_source(f"hosted://user:hunter2@far/{where}")
    for number in range(2):
        hosted[f"/root/{number}.png"] = b"%d" % number
        hosted[f"/root/{number}.tar"] = shard("a.png", b"%d" % number)
        assert source.scan().keys == [key.format(n) for n in range(number + 1)]
    assert source.read(key.format(1)) == b"1"


def test_a_damaged_shard_is_named_with_its_host_and_without_a_password(hosted):
    hosted["/root/[1].tar"] = b"no tar" * 200
    with pytest.raises(SourceError, match=r"cannot read hosted://far/root/\[1\].tar as tar: "):
        open_source("hosted://user:hunter2@far/root/[1].tar").scan()


def test_keys_of_an_archive_are_whole_and_reading_them_holds_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem, "_KEPT_OPEN", {})
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in ("a.png", "sub/b.png"):
            archive.writestr(name, name)
    source = open_source(f"zip://::{tmp_path}/x.zip")
    assert [source.read(key).decode() for key in source.scan().keys] == ["a.png", "sub/b.png"]
    assert filesystem._KEPT_OPEN == {}


def test_keys_at_the_root_of_a_store_are_whole():
    files = fsspec.filesystem("memory")
    files.store.clear()
    for name in ("a.png", "sub/b.png"):
        files.pipe(f"/{name}", name.encode())
    source = open_source("memory://")
    assert [source.read(key).decode() for key in source.scan().keys] == ["a.png", "sub/b.png"]
    files.store.clear()


def test_of_file_systems_with_an_event_loop_each_is_held_once(website, monkeypatch):
    monkeypatch.setattr(filesystem, "_KEPT_OPEN", {})
    with zipfile.ZipFile(website.folder / "x.zip", "w") as archive:
        archive.writestr("a.png", b"data")
    source = open_source(f"zip://::{website.url}/x.zip")
    assert [source.read("a.png") for _ in range(3)] == [b"data"] * 3
    (held,) = filesystem._KEPT_OPEN.values()
    assert held is filesystem.open_filesystem(website.url)[0]


def test_a_loop_of_links_behind_a_url_ends(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root/a.png").touch()
    os.symlink(tmp_path / "root", tmp_path / "root/loop")
    assert "a.png" in open_source(f"file://{tmp_path}/root").scan().keys
