"""Lists of positives, globs, true labels, and scores."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np

from fuzz.mutators import mutate_text
from fuzz.oracle import require
from fuzz.readers import Malformed, lines, matches, table
from fuzz.target import Target
from pucache.cache.keys import Keys, encode_keys
from pucache.errors import LabelError
from pucache.labels.label_files import find_keys, read_truth
from pucache.scoring.evaluate import evaluate
from pucache.scoring.score_tables import COLUMNS, read_scores

_NAMES = ["a.png", "b/c.png", "b/é.png", "b/d/e.png", 'odd, "name".png', "=cmd()", " space ", "line\nend.png"]
KEYS = sorted([*_NAMES, "a" * 60, "a/" * 12 + "a.png"], key=str.encode)
POSITIVE = ("1", "1.0", "true", "yes", "positive")
NEGATIVE = ("0", "0.0", "-1", "-1.0", "false", "no", "negative")


def keys() -> Keys:
    return Keys([encode_keys(KEYS)])


# --- positives ---------------------------------------------------------------------------------


@cache
def positives() -> dict[str, bytes]:
    return {
        "plain.txt": "a.png\nb/é.png\n\n=cmd()\n".encode(),
        "crlf.txt": b"\xef\xbb\xbfa.png\r\nb/c.png\r\n space \r\n",
        "table.csv": b'key,label\na.png,1\n"odd, ""name"".png",0\n"line\nend.png",\n,\n',
        "only.csv": b"key\r\na.png\r\nb/c.png",
    }  # fmt: skip


def listed(sample: str, data: bytes) -> list[str]:
    """Keys that a file lists, by a plain reading."""
    if not sample.endswith(".csv"):
        return lines(data)
    header, rows = table(data)
    rows = [row for row in rows if any(row.values())]
    if "key" not in header or not all(row["key"] for row in rows):
        raise Malformed("no key in every row")
    return [row["key"] or "" for row in rows]


def check_positives(sample: str, data: bytes, folder: Path) -> str:
    """The rows of the keys that a plain reading lists; refused where there are none, or unknown ones."""
    path = folder / sample
    path.write_bytes(data)
    try:
        expected = _decided(sample, data)
    except Malformed:
        expected = []
    known = bool(expected) and set(expected) <= set(KEYS)
    try:
        rows = find_keys(keys(), path)
    except LabelError:
        require(not known, f"refused, though it lists {expected}")
        raise
    require(known and [KEYS[row] for row in rows] == sorted(set(expected), key=str.encode), f"{rows} for {expected}")
    return "read"


def _decided(sample: str, data: bytes) -> list[str]:
    """The keys that are listed, but of a table with labels those whose label is positive."""
    named = listed(sample, data)
    header, rows = table(data) if sample.endswith(".csv") else ([], [])
    if "label" not in header:
        return named
    if {"margin", "posterior"} <= set(header):
        raise Malformed("labels of a model")
    words = [(row["label"] or "").strip().lower() for row in rows if any(row.values())]
    if not set(words) <= {*POSITIVE, *NEGATIVE, ""}:
        raise Malformed(f"labels {words}")
    positive, negative = (
        [key for key, word in zip(named, words, strict=True) if word in of] for of in (POSITIVE, NEGATIVE)
    )
    if set(positive) & set(negative):
        raise Malformed("both labels of a key")
    return positive


@cache
def globs() -> dict[str, bytes]:
    patterns = (
        "*",
        "**",
        "b/*",
        "b/**",
        "**/*.png",
        "?.png",
        "b/**/e.png",
        "*/*",
        "a*a*a*",
        "[ab].png",
        "**/**/a*",
        "b/?.*",
        "*.[!j]*",
    )
    return {pattern: pattern.encode() for pattern in patterns}


@cache
def slow_globs() -> dict[str, bytes]:
    """Patterns that a backtracking matcher never finishes."""
    patterns = {
        "stars": "a*" * 30 + "b",
        "stars between folders": "/".join(["*a*"] * 12) + "/b",
        "folders": "**/" * 30 + "b",
        "folders and stars": "**/a*/" * 15 + "b",
        "questions": "*?" * 30 + "b",
        "brackets": "[a]*" * 30 + "b",
        "one long bracket": "[" + "a-" * 50_000 + "]",
        "unclosed brackets": "[" * 50_000 + "*",
        "many stars": "*" * 100_000,
        "many segments": "*/" * 50_000,
    }
    return {name: pattern.encode() for name, pattern in patterns.items()}


def check_glob(sample: str, data: bytes, folder: Path) -> str:
    """The keys that a plain matcher finds; brackets only have to come to an end."""
    try:
        pattern = data.decode()
    except UnicodeDecodeError:
        return "not text"
    if not set("*?[") & set(pattern) or "\0" in pattern:
        return "no glob"
    try:
        expected = None if "[" in pattern else [key for key in KEYS if matches(pattern, key)]
    except (Malformed, RecursionError):
        expected = None
    try:
        rows = find_keys(keys(), pattern)
    except LabelError:
        require(not expected, f"refused, though it matches {expected}")
        raise
    require(
        expected is None or [KEYS[row] for row in rows] == expected, f"{[KEYS[row] for row in rows]} for {expected}"
    )
    return "matched"


# --- truth -------------------------------------------------------------------------------------


@cache
def truths() -> dict[str, bytes]:
    return {
        "numbers.csv": "key,label\na.png,1\nb/c.png,0\nb/é.png,-1.0\n".encode(),
        "words.csv": b'label,key,note\nTrue ,a.png,x\n no,"odd, ""name"".png",\nPositive,=cmd(),\nfalse, space ,\n',
        "plain.txt": b"a.png\nb/c.png\nunknown.png\n",
        "list.csv": b"key\na.png\n",
    }  # fmt: skip


def check_truth(sample: str, data: bytes, folder: Path) -> str:
    """The labels that a plain reading finds."""
    path = folder / sample
    path.write_bytes(data)
    y = read_truth(path, KEYS)
    try:
        expected = _truth(sample, data)
    except Malformed as error:
        require(False, f"accepted, though malformed: {error}")
    require(y.tolist() == [expected.get(key, expected.get(None, -1)) for key in KEYS], f"{y.tolist()} for {expected}")
    return "read"


def _truth(sample: str, data: bytes) -> dict[str | None, int]:
    """Key to label, and None to the label of all other keys."""
    named = listed(sample, data)
    header, rows = table(data) if sample.endswith(".csv") else ([], [])
    if "label" not in header:
        return {None: 0, **dict.fromkeys(named, 1)}
    rows = [row for row in rows if any(row.values())]
    words = [(row["label"] or "").strip().lower() for row in rows]
    if not set(words) <= {*POSITIVE, *NEGATIVE}:
        raise Malformed(f"labels {words}")
    return dict(zip(named, [int(word in POSITIVE) for word in words], strict=True))


# --- scores ------------------------------------------------------------------------------------


@cache
def scores() -> dict[str, bytes]:
    rows = "".join(f'"{key.replace(chr(34), chr(34) * 2)}",{n - 4.5},{n / 10},{n % 2}\n' for n, key in enumerate(KEYS))
    return {
        "scores.csv": ("key,margin,posterior,label\n" + rows).encode(),
        "more.csv": b"label,key,posterior,rank,margin\n1,a.png,0.75,1,1.5e0\n0,b/c.png,1e-3,2,-2\n",
    }


def check_scores(sample: str, data: bytes, folder: Path) -> str:
    """The table that a plain reading finds, in finite numbers, and measures that can be computed from it."""
    path = folder / sample
    path.write_bytes(data)
    got = read_scores(path)
    try:
        header, rows = table(data)
    except Malformed as error:
        require(False, f"accepted, though malformed: {error}")
    require(set(COLUMNS) <= set(header), f"accepted with the columns {header}")
    require(got["key"].tolist() == [row["key"] for row in rows], "other keys than the file holds")
    for name in COLUMNS[1:]:
        expected = [float(row[name] or "nan") for row in rows]
        exact = name != "label" or all(value.is_integer() for value in expected)
        require(not exact or got[name].tolist() == expected, f"{name} is {got[name]} for {expected}")
    _evaluate(path, folder)
    return "read"


def _evaluate(path: Path, folder: Path) -> None:
    (folder / "truth.csv").write_bytes(truths()["numbers.csv"])
    try:
        result = evaluate(path, folder / "truth.csv", at=(1,))
    except LabelError:
        return
    shares = {name: value for name, value in result.items() if isinstance(value, float) and "loss" not in name}
    require(all(np.isnan(value) or -1 <= value <= 1 for value in shares.values()), f"measures {shares}")


@cache
def parquets() -> dict[str, bytes]:
    import pyarrow
    import pyarrow.parquet

    found = {}
    n = len(KEYS)
    columns = {
        "key": KEYS,
        "margin": np.arange(n, dtype="f4"),
        "posterior": np.arange(n) / n,
        "label": np.arange(n, dtype="i1") % 2,
    }
    for name in ("none", "snappy", "gzip", "zstd"):
        stream = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), stream, compression=name, use_dictionary=name == "gzip")
        found[f"{name}.parquet"] = stream.getvalue()
    return found


def check_parquet(sample: str, data: bytes, folder: Path) -> str:
    """Columns of one length and of finite numbers; a flipped value cannot be told, as Parquet holds no checksum."""
    path = folder / "scores.parquet"
    path.write_bytes(data)
    got = read_scores(path)
    require(
        set(got) == set(COLUMNS) and len({len(column) for column in got.values()}) == 1, "columns of several lengths"
    )
    require(all(isinstance(key, str) for key in got["key"]), f"keys {got['key'][:3]}")
    require(all(np.isfinite(got[name]).all() for name in COLUMNS[1:]), "numbers that are not finite")
    require(data != parquets()[sample] or got["key"].tolist() == KEYS, "other keys than the file holds")
    return "read"


TARGETS = [
    Target("positives", positives, check_positives, (LabelError,), 80, mutate=mutate_text),
    Target("glob", globs, check_glob, (LabelError, ValueError), 60, mutate=mutate_text),
    Target("truth", truths, check_truth, (LabelError,), 60, mutate=mutate_text),
    Target("scores csv", scores, check_scores, (LabelError,), 60, mutate=mutate_text),
    Target("scores parquet", parquets, check_parquet, (LabelError,), 40),
]
