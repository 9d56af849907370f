"""Tiny sources of images: files, and the bytes of tar shards."""

import io
import tarfile

from PIL import Image

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
