"""TIFF files as programs for satellites and microscopes write them, of any number of bands and any type."""

import struct
import zlib

import numpy as np

_KINDS = {"u": 1, "i": 2, "f": 3}


def tiff(bands, *, extra=(), subfiles=(0,), order="<", deflated=False, bits=0):
    """The bytes of a TIFF of bands, (H, W, C), once for each subfile; `extra` is what each band beyond three is.

    Of 12 bits two values are packed into three bytes, so their number is even.
    """
    bands = np.ascontiguousarray(bands, bands.dtype.newbyteorder(order))
    height, width, count = bands.shape
    pixels, pages, at = bands.tobytes(), b"", 8
    if bits == 12:
        first, second = bands.reshape(-1, 2).astype(int).T
        packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], 1)
        pixels = packed.astype(np.uint8).tobytes()
    pixels = zlib.compress(pixels) if deflated else pixels
    for number, subfile in enumerate(subfiles):
        tags = {
            254: (4, [subfile]), 256: (4, [width]), 257: (4, [height]), 258: (3, [bits or 8 * bands.itemsize] * count),
            259: (3, [8 if deflated else 1]), 262: (3, [2 if count > 2 else 1]), 273: (4, [0]), 277: (3, [count]),
            278: (4, [height]), 279: (4, [len(pixels)]), 339: (3, [_KINDS[bands.dtype.kind]] * count),
        }  # fmt: skip
        if extra:
            tags[338] = (3, list(extra))
        room, behind = at + 2 + 12 * len(tags) + 4, b""
        entries = b""
        for tag, (kind, values) in sorted(tags.items()):
            content = b"".join(struct.pack(order + ("H" if kind == 3 else "I"), value) for value in values)
            if len(content) > 4:
                behind, content = behind + content, struct.pack(f"{order}I", room + len(behind))
            entries += struct.pack(f"{order}HHI", tag, kind, len(values)) + content.ljust(4, b"\0")
        start = room + len(behind)
        strip = struct.pack(f"{order}HHI", 273, 4, 1)
        entries = entries.replace(strip + bytes(4), strip + struct.pack(f"{order}I", start))
        end = start + len(pixels)
        following = end if number + 1 < len(subfiles) else 0
        pages += struct.pack(f"{order}H", len(tags)) + entries + struct.pack(f"{order}I", following) + behind + pixels
        at = end
    return struct.pack(f"{order}4sI", b"II*\0" if order == "<" else b"MM\0*", 8) + pages
