"""Manifests and tar shards."""

from __future__ import annotations

import io
import os
import tarfile
from functools import cache, partial
from pathlib import Path

from fuzz.image_samples import images
from fuzz.mutators import mutate_text
from fuzz.oracle import require, untouched
from fuzz.readers import Malformed, lines, table
from fuzz.tar_samples import SECRET, mutate_tar, tars
from fuzz.target import Target
from pucache.errors import ImageError, SourceError
from pucache.images.listing import EXTENSIONS, MAX_KEY_BYTES, Listing
from pucache.images.source import Source, open_source

FILES = ("a.png", "sub/b.jpg", "é.png")
COLUMNS = ("path", "image", "file", "filename", "url", "key")


@cache
def manifests() -> dict[str, bytes]:
    paths = [*FILES, "missing.png", "/dev/zero", "pipe", SECRET, "sub/../a.png", "file:///no/such.png"]
    listed = "\n".join(paths).encode()
    return {
        "plain.txt": listed,
        "crlf.lst": b"\xef\xbb\xbf" + listed.replace(b"\n", b"\r\n") + b"\r\n\r\n",
        "table.csv": b"path,label\n" + b"".join(f'"{path}",1\n'.encode() for path in paths),
        "keys.csv": b"key,path\nfirst,a.png\n,sub/b.jpg\n\"third, with \"\"quotes\"\"\",a.png\n\n",
        "table.tsv": "file\tnote\na.png\tx\n\té\nsub/b.jpg\t\n".encode(),
    }  # fmt: skip


def check_manifest(sample: str, data: bytes, folder: Path) -> str:
    """The keys that a plain reading finds, each a file with its bytes or a failure."""
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(images()["rgb.png"] + name.encode())
    os.mkfifo(folder / "pipe")
    manifest = folder / sample
    manifest.write_bytes(data)
    with untouched(folder.parent.parent):
        source = open_source(manifest)
        try:
            listing = source.scan()
        except SourceError:
            _require_refusable(sample, data)
            raise
        expected = _expected(sample, data)
        told = {*listing.keys, *listing.failures}
        require(told == set(map(_printable, expected)) | set(listing.keys), f"{sorted(told)} for {sorted(expected)}")
        require(set(listing.keys) <= set(expected), "a key that the manifest does not name")
        for key in listing.keys:
            _read(source, key, folder / expected[key])
    return "read"


def _require_refusable(sample: str, data: bytes) -> None:
    """A manifest may be refused as a whole where it is malformed, names nothing, or a key twice; not otherwise."""
    try:
        expected = _pairs(sample, data)
    except Malformed:
        return
    keys = [key for key, _ in expected]
    urls = any("://" in path for _, path in expected)
    require(urls or not keys or len(set(keys)) < len(keys), f"refused, though it names {keys[:5]}")


def _pairs(sample: str, data: bytes) -> list[tuple[str, str]]:
    suffix = Path(sample).suffix
    if suffix in (".txt", ".lst"):
        return [(line, line) for line in lines(data)]
    header, rows = table(data, "\t" if suffix == ".tsv" else ",")
    path = next((name for name in COLUMNS if name in header), None)
    if path is None:
        raise Malformed("no column of paths")
    key = "key" if "key" in header else path
    return [(row[key] or row[path] or "", row[path] or "") for row in rows if row[path]]


def _expected(sample: str, data: bytes) -> dict[str, str]:
    try:
        pairs = _pairs(sample, data)
    except Malformed as error:
        require(False, f"accepted, though malformed: {error}")
    require(len(dict(pairs)) == len(pairs), "a key was accepted twice")
    return dict(pairs)


def _printable(key: str) -> str:
    return key.replace("\0", "\\x00").encode()[:MAX_KEY_BYTES].decode("utf-8", "ignore")


def _read(source: Source, key: str, path: Path) -> None:
    try:
        got = source.read(key)
    except ImageError:
        require(not path.is_file(), f"{key!r} cannot be read, yet it is a file")
        return
    require(path.is_file() and got == path.read_bytes(), f"{key!r} was read as other bytes than the file holds")


# --- tar ---------------------------------------------------------------------------------------


def check_tar(sample: str, data: bytes, folder: Path, *, shards: bool = False) -> str:
    """Every member as tarfile extracts it; links and special files as failures, never followed."""
    path = folder / ("x.tar" if shards else "one.tar")
    path.write_bytes(data)
    if shards:
        (folder / "good.tar").write_bytes(tars()["plain.tar"])
    with untouched(folder.parent.parent):
        source = open_source(str(folder / "*.tar") if shards else path)
        listing = source.scan()
        _require_tar(source, listing, data, "x.tar/" if shards else "")
        if shards:
            good = [key for key in listing.keys if key.startswith("good.tar/")]
            require(len(good) == 3, f"of the good shard beside the damaged one only {good} are listed")
            _require_tar(source, listing, tars()["plain.tar"], "good.tar/")
    require(not os.path.exists("/planted.png"), "an absolute name was written")
    return "read, with failures" if listing.failures else "read"


def _require_tar(source: Source, listing: Listing, data: bytes, prefix: str) -> None:
    members, whole = _members(data)
    require(whole or listing.failures, "a damaged tar was listed without a word")
    listed = [key for key in listing.keys if key.startswith(prefix)]
    for key in listed:
        require(key in {prefix + name for name in members}, f"{key!r} is no member")
        try:
            got = source.read(key)
        except ImageError:
            require(members[key.removeprefix(prefix)] is None, f"{key!r} cannot be read, but tarfile extracts it")
            continue
        require(got == members[key.removeprefix(prefix)], f"{key!r} was read as other bytes than tarfile extracts")
    for name, content in members.items():
        there = prefix + name in listed or any(key.startswith((prefix + name)[:50]) for key in listing.failures)
        require(there or content is None or not _storable(prefix + name), f"{name!r} is in the tar and not listed")


def _storable(key: str) -> bool:
    return key.isprintable() and key.isascii() and len(key) <= MAX_KEY_BYTES


def _members(data: bytes) -> tuple[dict[str, bytes | None], bool]:
    """Image members by name, the last of a name; None where its bytes are cut or it is no plain file."""
    found: dict[str, bytes | None] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if os.path.splitext(name)[1].lower() in EXTENSIONS and not member.isdir() and not _hidden(name):
                    found[name] = _content(tar, member, len(data)) if member.isreg() and member.sparse is None else None
            end = tar.offset
    except Exception:
        return found, False
    return found, not data[end : end + 512].strip(b"\0")  # tarfile takes a damaged header for the end


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, most: int) -> bytes | None:
    if not 0 <= member.size <= most:
        return None
    stream = tar.extractfile(member)
    try:
        return stream.read() if stream else None
    except (tarfile.ReadError, OSError, ValueError):
        return None


def _hidden(name: str) -> bool:
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


TARGETS = [
    Target("manifest", manifests, check_manifest, (SourceError,), 80, mutate=mutate_text),
    Target("tar", tars, check_tar, (SourceError,), 100, mutate=mutate_tar),
    Target("tar glob", tars, partial(check_tar, shards=True), (SourceError,), 40, mutate=mutate_tar),
]
