"""Cache files: opened, verified, handed to the command, left as parts, reused, and taken up again by `embed`."""

from __future__ import annotations

import os
import random
import tempfile
from functools import cache, partial
from pathlib import Path

import numpy as np
from helpers.planted import write_cache

from fuzz.array_targets import models
from fuzz.cache_samples import SPEC, caches, content, contents, mutate_within
from fuzz.image_samples import images
from fuzz.image_targets import encoder
from fuzz.mutators import TOKENS, mutate, mutate_text
from fuzz.oracle import command, require, untouched
from fuzz.target import Target
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.layout import DTYPES
from pucache.cache.parts import Parts
from pucache.cache.reader import CacheFile
from pucache.cache.writer import Rows
from pucache.embedding.embed import EmbedOptions, run_embedding
from pucache.errors import CacheError, LabelError, ModelError, OutputError
from pucache.images.source import open_source
from pucache.labels.label_files import find_keys
from pucache.scoring.score import score
from pucache.scoring.score_tables import read_scores
from pucache.training.sklearn_classifier import PULinearClassifier


def check_cache(sample: str, data: bytes, folder: Path) -> str:
    """What was written, to the last byte."""
    path = folder / "cache.h5"
    path.write_bytes(data)
    with untouched(folder.parent.parent):
        require(content(path) in contents(), "opened and verified, and holds something else")
    return "equal"


def check_resealed(sample: str, data: bytes, folder: Path) -> str:
    """Sealed by somebody who means harm: refused, or a cache that agrees with itself and can be read throughout."""
    path = folder / "cache.h5"
    path.write_bytes(data)
    with untouched(folder.parent.parent):
        made = EmbeddingCache(path)
        made.verify()
        keys = list(made.keys)
        require(
            made.X.shape == (len(keys), made.encoder.dim) and made.X.dtype in DTYPES.values(), f"X is {made.X.shape}"
        )
        encoded = [key.encode() for key in keys]
        require(encoded == sorted(set(encoded)), f"verified, and its keys are not sorted and unique: {keys[:5]}")
        str(made.encoder), made.failures, made.digests
        require(sum(len(block) for _, block in made.blocks()) == len(keys), "blocks of other rows")
    return "read"


# --- the command -------------------------------------------------------------------------------


@cache
def model() -> bytes:
    """A model that scores the samples."""
    draw = np.random.default_rng(0)
    s = (np.arange(40) < 10).astype(int)
    trained = PULinearClassifier(prior=0.3, penalty=1.0, n_folds=2).fit(
        draw.normal(size=(40, SPEC.dim)).astype("f4"), s
    )
    trained.encoder_ = SPEC
    with tempfile.TemporaryDirectory() as folder:
        trained.save(Path(folder, "model.safetensors"))
        return Path(folder, "model.safetensors").read_bytes()


def check_command(sample: str, data: bytes, folder: Path, *, resealed: bool = False) -> str:
    """`verify` ends with 0 only where the file is as it was written (or sealed); the others end in order."""
    path = folder / "cache.h5"
    path.write_bytes(data)
    (folder / "model.safetensors").write_bytes(model())
    with untouched(folder.parent.parent):
        verified = command("verify", path)
        told = command("info", path, "--failures")
    require({verified.code, told.code} <= {0, 1}, f"ended with {verified.code} and {told.code}: {told.stderr}")
    scored = command("score", folder / "model.safetensors", path, "--out", folder / "scores.csv")
    require(scored.code in (0, 1), f"score ended with {scored.code}: {scored.stderr}")
    require((folder / "scores.csv").exists() == (scored.code == 0), "scores are there and score failed, or the reverse")
    if verified.code:
        return "refused"
    require(resealed or content(path) in contents(), "verify ended with 0, and the file is not as it was written")
    require(resealed or scored.code == told.code == 0, "verified, and cannot be read")
    return "whole"


def check_model_command(sample: str, data: bytes, folder: Path) -> str:
    """`score` with a damaged model: one line, and no scores."""
    (folder / "cache.h5").write_bytes(caches()["float16.h5"])
    (folder / "model.safetensors").write_bytes(data)
    ended = command("score", folder / "model.safetensors", folder / "cache.h5", "--out", folder / "scores.csv")
    require((folder / "scores.csv").exists() == (ended.code == 0), "scores are there and score failed, or the reverse")
    return "scored" if ended.code == 0 else "refused"


# --- embed -------------------------------------------------------------------------------------

PICTURES = ("rgb.png", "rgb.jpg", "grey.png", "palette.png", "still.gif", "rgb.bmp")
MTIME = 1_700_000_000 * 10**9


def _source(folder: Path) -> Path:
    source = folder / "images"
    source.mkdir()
    for name in PICTURES:
        (source / name).write_bytes(images()[name])
        os.utime(source / name, ns=(MTIME, MTIME))
    return source


@cache
def _embedded() -> tuple[bytes, tuple[np.ndarray, ...]]:
    """The whole cache of the pictures, as bytes and as columns."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", "1700000000")
    with tempfile.TemporaryDirectory() as folder:
        run_embedding(open_source(_source(Path(folder))), Path(folder, "cache.h5"), encoder(), workers=0)
        file = CacheFile(Path(folder, "cache.h5"))
        found = tuple(np.array(column) for column in (file.raw_keys, file.X, file.digests, file.size_mtime))
        return Path(folder, "cache.h5").read_bytes(), found


@cache
def parts() -> dict[str, bytes]:
    """Two parts that hold the first and the last three pictures, and the whole."""
    whole, (keys, X, digests, size_mtime) = _embedded()
    found = {"whole": whole}
    with tempfile.TemporaryDirectory() as folder:
        made = Parts(Path(folder, "cache.h5"), SPEC, DTYPES["float16"])
        for name, rows in (("first", slice(0, 3)), ("last", slice(3, 6))):
            made.add(Rows(keys[rows], X[rows], digests[rows], size_mtime[rows]), {}, "elsewhere")
            found[name] = made.files[-1].path.read_bytes()
    return found


def mutate_rows(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Half of the time flip one bit of a column, which leaves the structure whole; else damage anything."""
    column = draw.choice(_embedded()[1])
    places = [data.find(column[rows].tobytes()) for rows in (slice(0, 6), slice(0, 3), slice(3, 6))]
    at = max(places)
    if at < 0 or draw.random() < 0.5:
        return mutate(data, other, draw)
    at += draw.randrange(column[:3].nbytes)
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def check_embed(sample: str, data: bytes, folder: Path, *, place: str) -> str:
    """A damaged part, old cache or reused cache: the embeddings come out as without it, or it is refused."""
    source, path = _source(folder), folder / "cache.h5"
    parts_folder = folder / "cache.h5.parts"
    parts_folder.mkdir()
    (parts_folder / "part-0000000000000000.h5").write_bytes(parts()["first"])
    damaged = {"part": parts_folder / "part-1111111111111111.h5", "old": path, "reuse": folder / "other.h5"}[place]
    damaged.write_bytes(data)
    report = run_embedding(
        open_source(source),
        path,
        encoder(),
        workers=0,
        options=EmbedOptions(moved=True, reuse=[damaged] if place == "reuse" else []),
    )
    made = CacheFile(path)
    made.verify()
    names = ("keys", "embeddings", "digests", "size_mtime")
    for name, got, expected in zip(
        names, (made.raw_keys, made.X, made.digests, made.size_mtime), _embedded()[1], strict=True
    ):
        same = np.allclose(got, expected, atol=2e-3) if name == "embeddings" else np.array_equal(got, expected)
        require(same, f"{name} came out different from a run without damage")
    require(not report.failures and not parts_folder.exists(), f"failures {report.failures}, or parts left behind")
    return f"{report.computed} embedded again"


# --- keys --------------------------------------------------------------------------------------


@cache
def hostile_keys() -> dict[str, bytes]:
    names = [token for token in TOKENS if "\0" not in token]
    more = [
        "\x1b[2Ja.png",
        "a\nb.png",
        "a\rb.png",
        '"a".png',
        "=1+1.png",
        "é\u202e.png",
        "\x9b31m",
        "a\x08\x08.png",
        "'; rm -rf",
        "%s%n",
    ]
    return {name: name.encode() for name in (*names, *more) if name.strip()}


def check_key(sample: str, data: bytes, folder: Path) -> str:
    """A key that means harm, as a row, a failure and a wish: no control character is printed, and CSV keeps it."""
    key = data.decode("utf-8", "ignore").replace("\0", "")[:1000]
    others = [name for name in ("first.png", "second.png") if name != key]
    path = folder / "cache.h5"
    draw = np.random.default_rng(0)
    X = draw.normal(size=(1 + len(others), SPEC.dim)).astype("f2")
    write_cache(path, X, [key, *others], encoder=SPEC, failures={f"{key}.failed": f"because of {key}"})
    (folder / "model.safetensors").write_bytes(model())
    made = EmbeddingCache(path)
    score(PULinearClassifier.load(folder / "model.safetensors"), made, folder / "scores.csv")
    require(read_scores(folder / "scores.csv")["key"].tolist() == list(made.keys), "the CSV reads back to other keys")
    (folder / "ranked.txt").write_text("first.png\n")
    for arguments in (
        ("info", path, "--failures"),
        ("info", path, "--failures", "--json"),
        ("retrieve-positives", path, "--positives", folder / "ranked.txt", "--out", folder / "ranked.csv"),
    ):
        require(command(*arguments).code == 0, f"{arguments[0]} failed")
    command("embed", folder / (key.replace("/", "_")[:80] or "x"), folder / "new.h5")
    _wish(made, key, folder)
    return "kept"


def _wish(made: EmbeddingCache, key: str, folder: Path) -> None:
    """Ask for the key in a list of positives, and for one that is not there."""
    for name in (key, f"{key}?"):
        (folder / "wish.csv").write_text('key\n"' + name.replace('"', '""') + '"\n', newline="")
        try:
            rows = find_keys(made.keys, folder / "wish.csv")
        except LabelError:
            require(name != key or not key, "a key of the cache was not found")
            command("estimate-prior", folder / "cache.h5", "--positives", folder / "wish.csv")
            continue
        require([made.keys[int(row)] for row in rows] == [name], "another key was found")


def prepare() -> None:
    for make in (caches, contents, models, model, _embedded, parts, hostile_keys):
        make()


TARGETS = [
    Target("cache", caches, check_cache, (CacheError,), 250),
    Target("cache resealed", caches, check_resealed, (CacheError,), 100, mutate=mutate_within),
    Target("cache command", caches, check_command, (), 20),
    Target("model command", lambda: {"model.safetensors": model()}, check_model_command, (ModelError,), 20),
    Target("part", parts, partial(check_embed, place="part"), (CacheError,), 20, mutate_rows),
    Target("old cache", parts, partial(check_embed, place="old"), (CacheError, OutputError), 20, mutate_rows),
    Target("reuse", parts, partial(check_embed, place="reuse"), (CacheError,), 20, mutate_rows),
    Target("keys", hostile_keys, check_key, (), 20, mutate=mutate_text),
]
