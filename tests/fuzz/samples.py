"""Whole files of every kind that pucache reads, and what a plain reading of their bytes gives."""

import ast
import csv
import gzip
import io
import json
import os
import tarfile
import zipfile
from functools import cache

import numpy as np
import pyarrow
import pyarrow.parquet
import safetensors.torch
import timm
import torch
from helpers.pictures import encode
from PIL import Image, PngImagePlugin

from pucache.images.listing import EXTENSIONS

NAMES = ["a.png", "b/c.png", "b/é.png", "b/d/e.png", 'odd, "name".png', "=cmd()", " space ", "line\nend.png", "a" * 60]
KEYS = sorted([*NAMES, "a/" * 12 + "a.png"], key=str.encode)
POSITIVE = ("1", "1.0", "true", "yes", "positive")
ARCHITECTURE = "test_byobnet"


# --- images ------------------------------------------------------------------------------------


def picture(mode="RGB", size=(23, 17)):
    """A smooth picture, so that lossy formats keep it, with some noise."""
    y, x = np.mgrid[: size[1], : size[0]]
    noise = np.random.default_rng(0).integers(0, 40, (size[1], size[0], 3))
    image = Image.fromarray((np.stack([x * 9, y * 12, (x + y) * 5], 2) % 200 + noise).astype(np.uint8))
    if mode == "I;16":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    return image.convert(mode)


@cache
def images():
    turned, texts = Image.Exif(), PngImagePlugin.PngInfo()
    turned[0x0112] = 6
    texts.add_itxt("packed", "é" * 50, zip=True)
    several = {"save_all": True}
    kinds = {
        "grey.jpg": ("L", "JPEG", {}), "rgb.jpg": ("RGB", "JPEG", {}), "cmyk.jpg": ("CMYK", "JPEG", {}),
        "progressive.jpg": ("RGB", "JPEG", {"progressive": True, "exif": turned}), "mpo.jpg": ("RGB", "MPO", several),
        "1bit.png": ("1", "PNG", {}), "16bit.png": ("I;16", "PNG", {}), "rgb.png": ("RGB", "PNG", {"pnginfo": texts}),
        "rgba.png": ("RGBA", "PNG", {}), "palette.png": ("P", "PNG", {"transparency": bytes(range(0, 256, 2))}),
        "apng.png": ("RGB", "PNG", several), "raw.tif": ("RGB", "TIFF", {}), "pages.tif": ("RGB", "TIFF", several),
        "lzw.tif": ("RGB", "TIFF", {"compression": "tiff_lzw"}), "jpeg.tif": ("RGB", "TIFF", {"compression": "jpeg"}),
        "fax.tif": ("1", "TIFF", {"compression": "group4"}), "still.gif": ("P", "GIF", {}),
        "animated.gif": ("P", "GIF", several), "lossy.webp": ("RGB", "WEBP", {}), "rgb.bmp": ("RGB", "BMP", {}),
        "lossless.webp": ("RGBA", "WEBP", {"lossless": True}), "palette.bmp": ("P", "BMP", {}),
        "rgb.ppm": ("RGB", "PPM", {}), "grey.pgm": ("L", "PPM", {}),
    }  # fmt: skip
    return {
        name: encode(picture(mode), form, **options, **({"append_images": [picture()]} if options is several else {}))
        for name, (mode, form, options) in kinds.items()
    }


def pixels(name, data):
    """The first frame as Pillow makes it RGB; None for what pucache does differently on purpose."""
    with Image.open(io.BytesIO(data)) as image:
        if image.width * image.height > 1 << 20:
            return None
        image.load()
        try:
            turned = image.getexif().get(0x0112, 1) in range(2, 9)
        except Exception:
            turned = False
        if turned or image.has_transparency_data or image.mode not in ("1", "L", "P", "RGB", "CMYK", "YCbCr"):
            return None
        return image.size, image.convert("RGB").tobytes()


# --- tars --------------------------------------------------------------------------------------

PLAIN = ("a.png", "folder/b.jpg", "./c.png")
SECRET = "../../outside/secret.png"  # seen from the folder of the tar


def member(name, kind=tarfile.REGTYPE, **fields):
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def shard(*names, form=tarfile.PAX_FORMAT, special=(), **fields):
    """A tar with an image under each name, and special members."""
    stream, data = io.BytesIO(), images()["rgb.png"]
    with tarfile.open(fileobj=stream, mode="w:", format=form, errors="surrogateescape") as tar:
        for name in names:
            tar.addfile(member(name, size=len(data), **fields), io.BytesIO(data))
        for info in special:
            tar.addfile(info, io.BytesIO(b"abc"[: info.size]))
    return stream.getvalue()


@cache
def tars():
    long = "folder/" * 30 + "é" * 60 + ".png"
    soft = {
        "soft.png": "a.png",
        "out.png": SECRET,
        "passwd.png": "/etc/passwd",
        "b.png": SECRET,
        "loop.png": "loop.png",
    }
    hard = {"hard.png": "a.png", "hard-out.png": SECRET}
    links = [member(name, tarfile.SYMTYPE, linkname=target) for name, target in soft.items()]
    links += [member(name, tarfile.LNKTYPE, linkname=target) for name, target in hard.items()]
    links.append(member("folder", tarfile.SYMTYPE, linkname="../../outside"))
    kinds = {"zero": tarfile.CHRTYPE, "disk": tarfile.BLKTYPE, "pipe": tarfile.FIFOTYPE, "folder": tarfile.DIRTYPE}
    special = [member(f"{name}.png", kind, devmajor=1, devminor=5) for name, kind in kinds.items()]
    special += [member(f"{name}.png", kind, size=3) for name, kind in (("cont", tarfile.CONTTYPE), ("odd", b"Z"))]
    holes = {"GNU.sparse.map": "0,3,100,2", "GNU.sparse.size": "200", "GNU.sparse.numblocks": "2"}
    made = {
        "plain": shard(*PLAIN),
        "ustar": shard(*PLAIN, form=tarfile.USTAR_FORMAT),
        "gnu-long": shard(long, "a.png", form=tarfile.GNU_FORMAT),
        "pax-long": shard(long, "a.png"),
        "pax-headers": shard("a.png", pax_headers={"path": "renamed.png", "mtime": "1.5", "comment": "é"}),
        "twice": shard("a.png", "a.png"),
        "hidden": shard(".hidden.png", "x/.y/z.png", "a.png"),
        "outside": shard(SECRET, "/planted.png", "a/../../b.png"),
        "links": shard("a.png", "b.png", special=links),
        "special": shard("a.png", special=special),
        "sparse": shard("a.png", special=[member("holes.png", size=3, pax_headers=holes)]),
        "hostile-names": shard("a\x1b[31m.png", "b\nc.png", "=cmd().png", "é\udcff.png"),
    }
    return {f"{name}.tar": data for name, data in made.items()}


def archives():
    """Compressed tars, ZIP archives and Parquet files, by name."""
    zipped, parquet, whole = io.BytesIO(), io.BytesIO(), images()["rgb.png"]
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in PLAIN:
            archive.writestr(name, whole)
    rows = [{"bytes": whole, "path": name} for name in PLAIN]
    pyarrow.parquet.write_table(pyarrow.table({"image": rows}), parquet, row_group_size=2)
    return {"a.tar.gz": gzip.compress(shard(*PLAIN)), "a.zip": zipped.getvalue(), "a.parquet": parquet.getvalue()}


def members(name, data):
    """Image members by name as `tarfile` extracts them, the last of a name; those that are no plain files are None."""
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for info in tar:
                key = info.name.removeprefix("./")
                if os.path.splitext(key)[1].lower() in EXTENSIONS and not info.isdir():
                    plain = info.isreg() and info.sparse is None and 0 <= info.size <= len(data)
                    found[key] = extracted(tar, info) if plain else None
    except Exception:
        return found
    return found


def extracted(tar, info):
    try:
        return tar.extractfile(info).read()
    except (tarfile.ReadError, OSError, ValueError):
        return None


# --- lists and tables --------------------------------------------------------------------------

MANIFEST = [*PLAIN, "missing.png", "/dev/zero", "pipe", SECRET, "sub/../a.png", "file:///no/such.png"]
MANIFEST += [f"{kind}::file:///no/such.png" for kind in ("simplecache", "filecache", "blockcache")]
MANIFESTS = {
    "plain.txt": "\n".join(MANIFEST[:6]).encode(),
    "crlf.lst": b"\xef\xbb\xbf" + "\r\n".join(MANIFEST[:6]).encode() + b"\r\n\r\n",
    "table.csv": b"path,label\n" + b"".join(f'"{path}",1\n'.encode() for path in MANIFEST),
    "keys.csv": b'key,path\nfirst,a.png\n,folder/b.jpg\n"third, with ""quotes""",a.png\n\n',
    "table.tsv": "file\tnote\na.png\tx\n\té\nfolder/b.jpg\t\n".encode(),
}
POSITIVES = {
    "plain.txt": "a.png\nb/é.png\n\n=cmd()\n".encode(),
    "crlf.txt": b"\xef\xbb\xbfa.png\r\nb/c.png\r\n space \r\n",
    "table.csv": b'key,label\na.png,1\n"odd, ""name"".png",0\n"line\nend.png",\n,\n',
    "only.csv": b"key\r\na.png\r\nb/c.png",
}


def scores():
    rows = "".join(f'"{key.replace(chr(34), chr(34) * 2)}",{n - 4.5},{n / 10},{n % 2}\n' for n, key in enumerate(KEYS))
    return {
        "scores.csv": ("key,margin,posterior,label\n" + rows).encode(),
        "more.csv": b"label,key,posterior,rank,margin\n1,a.png,0.75,1,1.5e0\n0,b/c.png,1e-3,2,-2\n",
    }


def table(data):
    """Rows of a CSV as dicts, without empty ones; None where it is malformed."""
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        return [row for row in reader if any(row.values())]
    except (UnicodeDecodeError, csv.Error):
        return None


def labels(name, data):
    """Key to the word of its label, "" where there is none; None where a plain reading finds no such table."""
    if not name.endswith(".csv"):
        text = data.removeprefix(b"\xef\xbb\xbf").decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
        return dict.fromkeys((line for line in text.split("\n") if line.strip()), "1")
    rows = table(data)
    if rows is None or not all(row.get("key") for row in rows):
        return None
    if rows and "label" not in rows[0] and any(name != "key" for name in rows[0]):
        return None  # another name may stand for the labels
    return {row["key"]: (row["label"] or "").strip().lower() if "label" in row else "1" for row in rows}


def positives(name, data):
    found = labels(name, data)
    return found and {key for key, word in found.items() if word in POSITIVE}


def score_rows(name, data):
    rows = table(data)
    return rows and [(row["key"], *(float(row[name]) for name in ("margin", "posterior", "label"))) for row in rows]


# --- arrays and weights ------------------------------------------------------------------------


def npy(X, version=None):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, X, version)
    return stream.getvalue()


@cache
def arrays():
    X = np.random.default_rng(0).normal(size=(4, 3))
    found = {f"{dtype}.npy": npy(X.astype(dtype)) for dtype in ("f2", "f4", "f8", ">f4")}
    return found | {"fortran.npy": npy(np.asfortranarray(X.astype("f4"))), "second.npy": npy(X.astype("f4"), (2, 0))}


def array(name, data):
    """The rows that the header describes."""
    start = 8 + (2 if data[6] == 1 else 4)
    start, header = start + int.from_bytes(data[8:start], "little"), start
    told = ast.literal_eval(data[header:start].decode("latin1").strip())
    flat = np.frombuffer(data, np.dtype(told["descr"]), int(np.prod(told["shape"])), start)
    X = flat.reshape(told["shape"], order="F" if told["fortran_order"] else "C")
    return X.astype("f2" if X.dtype.itemsize == 2 else "f4").tolist()


@cache
def network():
    return timm.create_model(ARCHITECTURE, pretrained=False, num_classes=0)


def saved(state, **options):
    stream = io.BytesIO()
    torch.save(state, stream, **options)
    return stream.getvalue()


@cache
def weights():
    state = network().state_dict()
    wrapped = {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}, "epoch": 3}
    return {
        "plain.safetensors": safetensors.torch.save(state),
        "plain.pth": saved(state),
        "wrapped.pth": saved(wrapped),
        "old.pth": saved(state, _use_new_zipfile_serialization=False),
    }


def tensors(name, data):
    """Bytes of each tensor of a safetensors file; None for pickles, which nothing else shall read."""
    if not name.endswith(".safetensors"):
        return None
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    places = {tensor: header[tensor]["data_offsets"] for tensor in header if tensor[0] != "_"}
    read = (each for each in places.items() if not each[0].endswith("num_batches_tracked"))  # not loaded
    return {tensor: data[start + begin : start + end] for tensor, (begin, end) in read}
