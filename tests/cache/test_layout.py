"""Files of another layout than docs/cache-format.md says, sealed as a stranger could: each is refused on opening."""

import re

import h5py
import numpy as np
import pytest
from helpers.cache_files import refusal
from helpers.sealing import edited

from pucache.cache.layout import COLUMNS
from pucache.cache.reader import CacheFile


def replace(name, values, **options):
    """Return what puts another dataset in the place of one."""

    def change(file):
        stored = np.asarray(file[name])
        del file[name]
        file.create_dataset(name, data=values(stored) if callable(values) else values, **options)

    return change


def drop(name):
    return lambda file: file.__delitem__(name)


def attribute(name, value):
    return lambda file: file.attrs.__setitem__(name, value)


def lack(name):
    return lambda file: file.attrs.__delitem__(name)


LAYOUTS = {
    "foreign": (lack("format"), "HDF5 file but not a pucache cache"),
    "newer": (attribute("version", 3), "format version 3; this pucache .* reads version 2: upgrade"),
    "version is a list": (attribute("version", [1, 1]), "damaged: it lacks the attribute version"),
    "encoder": (attribute("encoder", np.bytes_(b"{}")), "damaged: its encoder attribute cannot be read"),
    "source of variable width": (attribute("source", "photos"), "damaged: it lacks the attribute source"),
    "no keys at all": (replace("keys", h5py.Empty("S1")), "damaged: keys is not contiguous"),
    "fewer keys": (replace("keys", lambda k: k[:3]), "embeddings have the wrong shape"),
    "numbers as keys": (replace("keys", np.arange(4)), "keys or failures are not fixed-width text"),
    "narrow X": (replace("embeddings", lambda X: X[:, :-1]), "embeddings have the wrong shape"),
    "double X": (replace("embeddings", lambda X: X.astype(float)), "embeddings are float64, expected float16 or"),
    "short digests": (replace("digests", lambda d: d[:, :31]), "digests have the wrong layout"),
    "wide times": (replace("size_mtime", lambda t: t[:, [0, 1, 1]]), "size_mtime has the wrong layout"),
    "lone failure": (replace("failures/keys", lambda k: k[:1]), "failures do not pair up"),
    "gzip": (replace("embeddings", lambda X: X, compression="gzip"), "embeddings is not contiguous"),
    **{
        f"no {name}": (drop(name), "damaged or incomplete: a dataset is missing")
        for name in (*COLUMNS, "failures/keys", "failures/reasons")
    },
    **{
        f"no {name}": (lack(name), f"lacks the attribute {name}")
        for name in ("version", "encoder", "created", "pucache_version", "source")
    },
}


@pytest.mark.parametrize(("change", "expected"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_file_of_another_layout_is_refused_on_opening(path, change, expected):
    with edited(path) as file:
        change(file)
    text = refusal(CacheFile, path)
    assert text.startswith(str(path)) and re.search(expected, text), text
