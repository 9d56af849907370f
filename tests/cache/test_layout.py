"""Files of another layout than docs/cache-format.md says, sealed as a stranger could: refused by name."""

import dataclasses
import json
import re

import h5py
import numpy as np
import pytest
from fuzz.damage import untouched
from helpers.cache_files import FAILURES, SPEC, refusal, rows_of, write, write_rows
from helpers.sealing import edited

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.keys import encode_keys
from pucache.cache.layout import COLUMNS
from pucache.cache.reader import CacheFile

KEYS = ["a", "b", "c", "d", "e"]


def replaced(name, values=None, **options):
    """Return what puts another dataset, such as one of these values, in the place of one."""

    def change(file):
        data = {} if values is None else {"data": values(np.asarray(file[name])) if callable(values) else values}
        del file[name]
        file.create_dataset(name, **data, **options)

    return change


def linked(name, target):
    def change(file):
        del file[name]
        file[name] = target(file) if callable(target) else target

    return change


def virtual(file):
    layout = h5py.VirtualLayout((5, SPEC.dim), "<f2")
    layout[:] = h5py.VirtualSource("other.h5", "embeddings", shape=(5, SPEC.dim))
    del file["embeddings"]
    file.create_virtual_dataset("embeddings", layout)


def drop(name):
    return lambda file: file.__delitem__(name)


def attribute(name, value):
    return lambda file: file.attrs.__setitem__(name, value)


def encoder_of(**fields):
    return attribute("encoder", np.bytes_(json.dumps({**dataclasses.asdict(SPEC), **fields})))


def lack(name):
    return lambda file: file.attrs.__delitem__(name)


GZIP = {"compression": "gzip"}
SECRET = "../outside/secret.png"
NO_ENCODER = "damaged: its encoder attribute cannot be read"
REFUSED = {
    "foreign": (lack("format"), "HDF5 file but not a pucache cache"),
    "format as a number": (attribute("format", 1), "HDF5 file but not a pucache cache"),
    "newer": (attribute("version", 4), "format version 4; this pucache .* reads versions 2 and 3: upgrade"),
    "version of parts of images": (attribute("version", 3), "damaged: its encoder is not one of format version 3"),
    "version of 2^64-1": (attribute("version", np.uint64((1 << 64) - 1)), "format version 18446744073709551615;"),
    "version is a list": (attribute("version", [1, 1]), "damaged: it lacks the attribute version"),
    "encoder": (attribute("encoder", np.bytes_(b"{}")), NO_ENCODER),
    "encoder nested deeply": (attribute("encoder", np.bytes_(b"[" * 60_000)), NO_ENCODER),
    "encoder with a long number": (attribute("encoder", np.bytes_(b"1" * 50_000)), NO_ENCODER),
    "encoder that is not text": (attribute("encoder", np.bytes_(b"\xff\xfe{")), NO_ENCODER),
    "encoder of no dimensions": (encoder_of(dim=0), "damaged"),
    "encoder of 2^80 dimensions": (encoder_of(dim=1 << 80), "damaged"),
    "source of variable width": (attribute("source", "photos"), "damaged: it lacks the attribute source"),
    "no keys at all": (replaced("keys", h5py.Empty("S1")), "damaged: keys is not contiguous"),
    "fewer keys": (replaced("keys", lambda k: k[:3]), "embeddings have the wrong shape"),
    "numbers as keys": (replaced("keys", np.arange(5)), "keys or failures are not fixed-width text"),
    "keys of any width": (replaced("keys", ["a"] * 5, dtype=h5py.string_dtype()), "damaged"),
    "keys of another file": (replaced("keys", shape=(5,), dtype="S8", external=[(SECRET, 0, 40)]), "damaged"),
    "keys that unpack without end": (replaced("keys", shape=(1 << 28,), dtype="S8", chunks=(1 << 20,), **GZIP), "dam"),
    "narrow X": (replaced("embeddings", lambda X: X[:, :-1]), "embeddings have the wrong shape"),
    "double X": (replaced("embeddings", lambda X: X.astype(float)), "embeddings are float64, expected float16 or"),
    "a million million rows": (replaced("embeddings", shape=(1 << 40, SPEC.dim), dtype="<f2"), "damaged"),
    "a virtual dataset": (virtual, "damaged"),
    "gzip": (replaced("embeddings", lambda X: X, **GZIP), "embeddings is not contiguous"),
    "short digests": (replaced("digests", lambda d: d[:, :31]), "digests have the wrong layout"),
    "fields": (replaced("digests", np.zeros((5, 32), [("a", "u1"), ("b", "u1")])), "digests have the wrong layout"),
    "wide times": (replaced("size_mtime", lambda t: t[:, [0, 1, 1]]), "size_mtime has the wrong layout"),
    "references": (replaced("size_mtime", shape=(5, 2), dtype=h5py.ref_dtype), "damaged"),
    "lone failure": (replaced("failures/keys", lambda k: k[:1]), "failures do not pair up"),
    "a link to another file": (linked("keys", h5py.ExternalLink(SECRET, "/keys")), "damaged or incomplete"),
    "a link to nothing": (linked("keys", h5py.SoftLink("/nothing")), "damaged or incomplete"),
    "links in a circle": (linked("embeddings", h5py.SoftLink("/embeddings")), "cannot be read"),
    "a group within itself": (linked("failures", lambda file: file["/"]), "damaged or incomplete"),
    **{
        f"no {name}": (drop(name), "damaged or incomplete: a dataset is missing")
        for name in (*COLUMNS, "failures/keys", "failures/reasons")
    },
    **{
        f"no {name}": (lack(name), f"lacks the attribute {name}")
        for name in ("version", "encoder", "created", "pucache_version", "source")
    },
}


@pytest.fixture
def stranger(tmp_path):
    """Write a cache of five rows, changed and sealed as if whole, beside a file that it must not read."""
    (tmp_path / "outside").mkdir()
    (tmp_path / SECRET[3:]).write_bytes(b"secret" * 20)
    (tmp_path / "within").mkdir()

    def make(change):
        path = write(tmp_path / "within/cache.h5", KEYS, failures=FAILURES)
        with edited(path) as file:
            change(file)
        return path

    return make


@pytest.mark.parametrize(("change", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_file_of_another_layout_is_refused_on_opening(stranger, change, expected):
    path = stranger(change)
    with untouched(path.parent):
        text = refusal(CacheFile, path)
    assert text.startswith(str(path)) and re.search(expected, text), text


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("keys", ["b", "a", "c", "d", "e"], "keys are not sorted and unique"),
        ("keys", ["a", "a", "c", "d", "e"], "keys are not sorted and unique"),
        ("keys", np.array([b"a", b"b\xff", b"c\xc3", b"d", b"e"]), "is not UTF-8"),
        ("X", np.full((5, SPEC.dim), np.nan, "f2"), r"cache.h5 holds NaN or infinite embeddings \('a', 'b', 'c'\); "),
        ("keys", ["", "\x1b[31ma", "=cmd()", "b\x07\r", "d\u202e"], None),
    ],
)
def test_verify_checks_the_rows_that_a_right_seal_covers(tmp_path, column, values, expected):
    rows = dataclasses.replace(rows_of(KEYS), **{column: values if column == "X" else encode_keys(values)})
    path = write_rows(tmp_path / "cache.h5", rows)
    if expected is None:
        EmbeddingCache(path).verify()
    else:
        assert re.search(expected, refusal(EmbeddingCache(path).verify))
