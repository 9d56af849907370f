"""Small tar shards with all that tar can hold, and some that no honest writer makes."""

from __future__ import annotations

import io
import random
import tarfile
from functools import cache

from fuzz.image_samples import images
from fuzz.mutators import mutate

SECRET = "../../outside/secret.png"  # seen from the folder in which a check runs


@cache
def tars() -> dict[str, bytes]:
    """Name to bytes; every one of them can be listed."""
    first, second = images()["rgb.png"], images()["rgb.jpg"]
    plain = [("a.png", first), ("folder/b.jpg", second), ("./c.png", first), ("notes.txt", b"no image")]
    long = "folder/" * 30 + "é" * 60 + ".png"
    return {
        "plain.tar": shard(plain),
        "ustar.tar": shard(plain, form=tarfile.USTAR_FORMAT),
        "gnu-long.tar": shard([(long, first), ("a.png", second)], form=tarfile.GNU_FORMAT),
        "pax-long.tar": shard([(long, first), ("a.png", second)], form=tarfile.PAX_FORMAT),
        "pax-headers.tar": shard([("a.png", first)], pax={"path": "renamed.png", "mtime": "1.5", "comment": "é"}),
        "twice.tar": shard([("a.png", first), ("a.png", second), ("a.png", first + b"\0")]),
        "hidden.tar": shard([(".hidden.png", first), ("x/.y/z.png", first), ("a.png", first)]),
        "outside.tar": shard([(SECRET, first), ("/planted.png", second), ("a/../../b.png", first)]),
        "links.tar": links(),
        "special.tar": special(),
        "sparse.tar": sparse(),
        "empty-member.tar": shard([("empty.png", b""), ("a.png", first)]),
        "hostile-names.tar": shard(
            [("a\x1b[31m.png", first), ("b\nc.png", first), ("=cmd().png", first), ("é\udcff.png", first)]
        ),
        "empty.tar": shard([]),
        "no-end.tar": shard(plain)[: -tarfile.RECORDSIZE // 2],
    }


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mtime, info.type = 1_700_000_000, kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def shard(files: list[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT, pax: dict[str, str] | None = None) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:", format=form, errors="surrogateescape") as tar:
        for name, data in files:
            tar.addfile(member(name, size=len(data), pax_headers=pax or {}), io.BytesIO(data))
    return stream.getvalue()


def links() -> bytes:
    """Links to a member, out of the tar, and over a member of the same name."""
    data, stream = images()["rgb.png"], io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:") as tar:
        for name in ("a.png", "b.png"):
            tar.addfile(member(name, size=len(data)), io.BytesIO(data))
        for name, kind, target in (
            ("soft.png", tarfile.SYMTYPE, "a.png"), ("hard.png", tarfile.LNKTYPE, "a.png"),
            ("out.png", tarfile.SYMTYPE, SECRET), ("hard-out.png", tarfile.LNKTYPE, SECRET),
            ("passwd.png", tarfile.SYMTYPE, "/etc/passwd"), ("b.png", tarfile.SYMTYPE, SECRET),
            ("loop.png", tarfile.SYMTYPE, "loop.png"), ("folder", tarfile.SYMTYPE, "../../outside"),
        ):  # fmt: skip
            tar.addfile(member(name, kind, linkname=target))
        tar.addfile(member("folder/secret.png", size=len(data)), io.BytesIO(data))
    return stream.getvalue()


def special() -> bytes:
    """Devices, a pipe, a folder named as an image, and a type that nobody knows."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:") as tar:
        for name, kind in (
            ("zero.png", tarfile.CHRTYPE),
            ("disk.png", tarfile.BLKTYPE),
            ("pipe.png", tarfile.FIFOTYPE),
        ):
            tar.addfile(member(name, kind, devmajor=1, devminor=5))
        tar.addfile(member("folder.png", tarfile.DIRTYPE))
        tar.addfile(member("contiguous.png", tarfile.CONTTYPE, size=3), io.BytesIO(b"abc"))
        tar.addfile(member("unknown.png", b"Z", size=3), io.BytesIO(b"abc"))
    return stream.getvalue()


def sparse() -> bytes:
    """A sparse member as GNU tar writes it with pax headers, and one of the old kind."""
    head = {
        "GNU.sparse.map": "0,3,100,2",
        "GNU.sparse.size": "200",
        "GNU.sparse.numblocks": "2",
        "GNU.sparse.name": "holes.png",
    }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:") as tar:
        tar.addfile(member("whole.png", size=5), io.BytesIO(b"12345"))
        tar.addfile(member("sparse.png", size=5, pax_headers=head), io.BytesIO(b"abcde"))
        end = tar.offset
    old = bytearray(member("old.png", size=5, devmajor=0, devminor=0).tobuf(tarfile.GNU_FORMAT))
    old[156:157] = tarfile.GNUTYPE_SPARSE
    old[386:410] = b"%011o\0%011o\0" % (0, 5)
    old[483:495] = b"%011o\0" % 64
    return stream.getvalue()[:end] + _summed(old) + b"abcde".ljust(512, b"\0") + bytes(1024)


def _summed(header: bytearray) -> bytes:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def with_size(size: int, kind: bytes = tarfile.REGTYPE, then: bytes = b"") -> bytes:
    """One member whose header claims a size, in base 256 where octal digits cannot hold it, negative ones too."""
    header = bytearray(member("claim.png").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = kind
    if 0 <= size < 8**11:
        header[124:136] = b"%011o\0" % size
    else:
        header[124:136] = (size % (1 << 96)).to_bytes(12, "big")
        header[124] |= 0x80
    return _summed(header) + then


@cache
def claims() -> dict[str, bytes]:
    """Headers that claim what the file does not hold; never a reason to allocate, or to go round in circles."""
    whole = shard([("a.png", images()["rgb.png"])])
    found = {}
    kinds = {
        "file": tarfile.REGTYPE,
        "pax": tarfile.XHDTYPE,
        "global": tarfile.XGLTYPE,
        "name": tarfile.GNUTYPE_LONGNAME,
        "solaris": tarfile.SOLARIS_XHDTYPE,
        "unknown": b"Z",
    }
    for what, kind in kinds.items():
        for size in (1 << 20, 8**11 - 1, (1 << 63) - 1, 1 << 90, -1, -512, -1024, -(1 << 62)):
            found[f"{what} of {size} bytes"] = with_size(size, kind, whole)
    pax = b"30 GNU.sparse.size=99999999999\n"
    found["pax size"] = with_size(
        len(b"20 size=99999999999\n"), tarfile.XHDTYPE, b"20 size=99999999999\n".ljust(512, b"\0") + whole
    )
    found["pax negative size"] = with_size(12, tarfile.XHDTYPE, b"12 size=-512\n".ljust(512, b"\0") + whole)
    found["pax sparse size"] = with_size(len(pax), tarfile.XHDTYPE, pax.ljust(512, b"\0") + whole)
    found["pax length of 0"] = with_size(6, tarfile.XHDTYPE, b"0 a=b\n".ljust(512, b"\0") + whole)
    found["pax long number"] = with_size(9000, tarfile.XHDTYPE, (b"9" * 8990 + b" a=b\n").ljust(9216, b"\0") + whole)
    return found


def mutate_tar(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Damage a header and set its checksum right, so that the reader believes it; or damage anything."""
    starts = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
    if not starts or draw.random() < 0.3:
        return mutate(data, other, draw)
    for at in draw.sample(starts, min(len(starts), draw.choice((1, 1, 2)))):
        header = bytearray(mutate(data[at : at + 512], other[:512], draw)[:512].ljust(512, b"\0"))
        data = data[:at] + _summed(header) + data[at + 512 :]
    return data
