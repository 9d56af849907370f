"""Review sessions over small caches of bare arrays."""

import hashlib
import sqlite3
import uuid
from pathlib import Path

import numpy as np

from helpers.planted import write_cache
from pucache.reviewing.log import Choice
from pucache.reviewing.state import Proposal


def pile_of(folder, keys=60, *, twins=(), contents=None, name="pile.h5", seed=0):
    """A cache without pictures whose images have digests; pairs of `twins` have the same one.

    `keys` is a number of rows or the keys; `contents` names the content of each key, by default the key itself.
    """
    keys = [f"{row:03}.png" for row in range(keys)] if isinstance(keys, int) else list(keys)
    contents = {key: key for key in keys} | (contents or {})
    for first, second in twins:
        contents[keys[second]] = contents[keys[first]]
    digests = np.array([list(hashlib.sha256(contents[key].encode()).digest()) for key in keys], np.uint8)
    X = np.random.default_rng(seed).normal(size=(len(keys), 6)).astype(np.float32)
    return write_cache(folder / name, X, keys, digests=digests)


def labels_of(n, positives=(0, 1, 2)):
    s = np.zeros(n, np.int8)
    s[list(positives)] = 1
    return s


def proposal(row, choice=Choice.POSITIVE, replaces=0, request=None, **rest):
    """A decision with a request of its own."""
    return Proposal(request or uuid.uuid4().hex, row, Choice(choice), replaces, **rest)


def decide(session, row, choice=Choice.POSITIVE, replaces=None):
    """Decide a row; what it replaces is looked up."""
    current = session.state.in_force(row)
    replaces = (current.serial if current else 0) if replaces is None else replaces
    return session.decide(proposal(row, choice, replaces))


def session_of(version, cache, folder=None):
    """The folder of a session on this cache whose log a version of pucache wrote."""
    script = Path(__file__).parents[1] / f"reviewing/session_of_{version}.sql"
    folder = folder or Path(f"{cache.files[0].path}.review")
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "decisions.sqlite") as log:
        log.executescript(script.read_text().replace("CHECKSUM", cache.files[0].checksum))
    log.close()
    return folder
