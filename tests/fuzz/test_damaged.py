"""Damaged files of every kind: read as a plain reading of their bytes gives, or refused by name in one line."""

import copy
import io
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cache_files import FAILURES, write
from helpers.tiny import SIDE, tiny_encoder
from PIL import Image

from fuzz import samples
from fuzz.damage import accepted, bounded, damaged, fuzzed, untouched
from fuzz.samples import KEYS
from pucache import EmbeddingCache, import_embeddings, open_source
from pucache.cache.keys import Keys, encode_keys
from pucache.cache.reader import CacheFile
from pucache.encoders.checkpoints import load_weights, read_state
from pucache.errors import CacheError, EncoderError, ImageError, LabelError, SourceError
from pucache.images.decoding import MAX_PIXELS, decode
from pucache.images.listing import MAX_KEY_BYTES
from pucache.labels.listing import read_listing
from pucache.scoring.score_tables import COLUMNS, read_scores

# --- caches ------------------------------------------------------------------------------------


def made(make):
    """Bytes of what a function writes to a path."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        make(path)
        return path.read_bytes()


@cache
def caches():
    kinds = {
        "float16": (["a.png", "b/é.png", "c\nd.png", "e.png"], {"failures": FAILURES}),
        "float32": (["a.png", "b"], {"dtype": "float32"}),
        "no row": ([], {"failures": FAILURES}),
        "many": ([f"{row:05}.png" for row in range(600)], {}),
        "long keys": (["é" * 500, "b"], {"failures": {"x" * 300: "y" * 200}}),
    }
    return {
        name: made(lambda path, keys=keys, options=options: write(path, keys, **options))
        for name, (keys, options) in kinds.items()
    }


def content(path):
    """Everything that a cache file says, once every byte of it was checked."""
    file = CacheFile(path)
    EmbeddingCache(file).verify()
    columns = [np.array(column) for column in (file.raw_keys, file.X, file.digests, file.size_mtime)]
    said = [file.encoder, file.source, file.created, file.pucache_version, file.failures]
    return [(column.tobytes(), column.shape, column.dtype) for column in columns] + said


@cache
def written(name):
    """What the undamaged cache says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        path.write_bytes(caches()[name])
        return content(path)


# --- images and sources ------------------------------------------------------------------------


def image(path):
    """Decoded twice the same, in the memory that its pixels need, and small enough for an encoder or refused by it."""
    data = path.read_bytes()
    try:
        with Image.open(io.BytesIO(data)) as header:
            declared = header.width * header.height
    except Exception:
        declared = 0
    # a pixel takes 4 bytes in Pillow, and an image is there twice while it is converted
    with bounded((96 << 20) + 8 * len(data) + 16 * (declared if declared <= MAX_PIXELS else 0)):
        read = decode(data)
    assert read.mode == "RGB" and read.width * read.height <= MAX_PIXELS
    pixels = accepted(ImageError, tiny_encoder().preprocess, read)  # one side may be too long
    assert pixels is None or tuple(pixels.shape) == (SIDE, SIDE, 3)
    assert min(decode(data, 8).size) >= min(8, *read.size)
    return read.size, read.tobytes()


def tar(path):
    """Content of each member by key, "" for one that is a failure."""
    with bounded((96 << 20) + 8 * path.stat().st_size):
        source = open_source(path)
        listing = source.scan()
    assert not os.path.exists("/planted.png")
    read = {key: accepted(ImageError, source.read, key) for key in listing.keys}
    return dict.fromkeys(listing.failures, "") | read


def same_members(found, expected):
    """No other content than tarfile extracts, and every plain member is an image or a failure."""
    lost = [
        key
        for key, data in expected.items()
        if data is not None and key.isprintable() and key.isascii() and len(key) <= MAX_KEY_BYTES
        if not any(part.startswith(".") and part not in (".", "..") for part in key.split("/"))
        if not any(name.startswith(key[:50]) for name in found)
    ]
    return not lost and all(data == "" or data == expected[key] for key, data in found.items())


def manifest(path):
    """Files that a manifest names have their bytes, or are failures."""
    source = open_source(path)
    for key in source.scan().keys:
        data = accepted(ImageError, source.read, key)
        assert data is None or data.decode() in samples.PLAIN
    return True


# --- tables, arrays, weights -------------------------------------------------------------------


def positives(path):
    """Positive keys of a listing; the keys must be known, as those that a cache lacks are refused."""
    listing = read_listing(Keys([encode_keys(KEYS)]), path)
    listing.require_known(Keys([encode_keys(KEYS)]), listing.label == 1)
    return set(listing.key[listing.label == 1].tolist())


def table(path):
    read = read_scores(path)
    return list(zip(*(read[name].tolist() for name in COLUMNS), strict=True))


def array(path):
    with tempfile.TemporaryDirectory() as folder:
        import_embeddings(path, Path(folder, "c.h5"), keys=list("abcd"))
        return EmbeddingCache(Path(folder, "c.h5")).X.tolist()


def weights(path):
    """Bytes of the tensors of a network that was blank before."""
    model = copy.deepcopy(samples.network())
    model.load_state_dict({name: torch.full_like(tensor, 7) for name, tensor in model.state_dict().items()})
    load_weights(model, samples.ARCHITECTURE, read_state(path), path)
    for name, values in model.state_dict().items():
        assert name.endswith("num_batches_tracked") or not bool((values == 7).all())
    return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}


# --- the table ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """Files of one kind: what draws a damaged one, what reads it, how it may refuse, and what a plain reading gives."""

    files: Any
    read: Callable[[Path], Any]
    refusals: Any
    plain: Callable[[str, bytes], Any] = lambda name, data: None  # None: nothing is known
    agree: Callable[[Any, Any], bool] = lambda found, expected: found == expected
    examples: int = 40
    text: bool = False

    @property
    def damaged(self):
        return damaged(self.files(), text=self.text)


FILES = {
    "cache": Format(
        caches,
        content,
        CacheError,
        lambda name, data: [written(name), *(written(other) for other in caches() if caches()[other] == data)],
        lambda found, expected: found in expected,
        examples=80,
    ),
    "image": Format(samples.images, image, ImageError, samples.pixels, examples=60),
    "tar": Format(samples.tars, tar, SourceError, samples.members, same_members),
    "archive": Format(
        samples.archives,
        tar,
        SourceError,
        lambda name, data: {"", samples.images()["rgb.png"]} if name == "a.zip" else None,
        lambda found, whole: whole.issuperset(data for data in found.values() if data is not None),
    ),
    "manifest": Format(lambda: samples.MANIFESTS, manifest, (SourceError, ValueError), text=True),
    "positives": Format(lambda: samples.POSITIVES, positives, LabelError, samples.positives, text=True),
    "scores": Format(samples.scores, table, LabelError, samples.score_rows, text=True),
    "array": Format(samples.arrays, array, CacheError, samples.array),
    "weights": Format(
        samples.weights, weights, EncoderError, samples.tensors, lambda a, b: b.items() <= a.items(), examples=30
    ),
}


def check(kind, folder, name, data):
    """What is read of a file, None where it is refused."""
    path = folder / name
    path.write_bytes(data)
    with untouched(folder):
        found = accepted(kind.refusals, kind.read, path)
    if found is not None:
        expected = kind.plain(name, data)
        assert expected is None or kind.agree(found, expected)
    return found


@pytest.fixture
def folder(tmp_path):
    """A folder with what manifests name."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in samples.PLAIN:
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


@pytest.mark.parametrize("kind", FILES.values(), ids=FILES)
def test_whole_files_are_read(kind, folder):
    for name, data in kind.files().items():
        assert check(kind, folder, name, data) is not None, name


@pytest.mark.parametrize("kind", FILES.values(), ids=FILES)
def test_a_damaged_file_is_read_as_its_bytes_say_or_refused_in_one_line(kind, folder):
    @fuzzed(kind.examples)
    def of_kind(drawn):
        check(kind, folder, *drawn.draw(kind.damaged))

    of_kind()
