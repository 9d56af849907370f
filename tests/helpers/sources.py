"""Tiny sources of images: files, the bytes of tar shards, and archives of every kind."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import pyarrow
from PIL import Image
from pyarrow import parquet

from helpers.pictures import encode


def picture(colour=(10, 20, 30), form="PNG"):
    return encode(Image.new("RGB", (4, 3), colour), form)


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def tar(*members):
    """Bytes of a tar; a member is (name, bytes), or (name, type of a special member)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.mtime = 1_700_000_000
            if content in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
                info.type, info.linkname = content, "a.png"
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


PACKS = {".tar": bytes, ".gz": gzip.compress, ".tgz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def archive(path, members):
    """Write an archive of the kind that the ending of its name says; `members` are bytes by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, data in members.items():
                packed.writestr(name, data)
    elif path.suffix == ".parquet":
        images = [{"bytes": data, "path": name} for name, data in members.items()]
        parquet.write_table(pyarrow.table({"image": images}), path, row_group_size=2)
    elif path.suffix == ".zst":
        with pyarrow.CompressedOutputStream(str(path), "zstd") as out:
            out.write(tar(*members.items()))
    else:
        path.write_bytes(PACKS[path.suffix](tar(*members.items())))
    return path
