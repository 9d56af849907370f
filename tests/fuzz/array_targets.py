"""Models, arrays of embeddings, and weights of encoders: files that other libraries read as pickles."""

from __future__ import annotations

import copy
import io
import json
import os
import random
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from fuzz.oracle import require
from fuzz.target import Target
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.importing import import_embeddings
from pucache.errors import CacheError, EncoderError, ModelError
from pucache.storage import tensor_file
from pucache.training import model_file
from pucache.training.sklearn_classifier import PULinearClassifier

MARKER = Path(tempfile.gettempdir(), "pucache-fuzz-code-was-run")


class RunsCode:
    """Unpickling this makes a folder: the trace of code that came out of a file."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(MARKER),)


def require_no_code_was_run() -> None:
    if MARKER.exists():
        MARKER.rmdir()
        require(False, "code from the file was run")


# --- models ------------------------------------------------------------------------------------

ROWS = np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32)


@cache
def _trained() -> dict[str, PULinearClassifier]:
    draw = np.random.default_rng(0)
    s = (np.arange(60) < 15).astype(int)
    X = (draw.normal(size=(60, 6)) + s[:, None]).astype(np.float32)
    return {
        "given-prior.safetensors": PULinearClassifier(prior=0.3, penalty=1.0, n_folds=2).fit(X, s),
        "estimated.safetensors": PULinearClassifier(penalty=1.0, n_folds=2).fit(X, np.where(s, "yes", "no")),
    }


@cache
def models() -> dict[str, bytes]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, model in _trained().items():
            model.save(Path(folder, name))
            found[name] = Path(folder, name).read_bytes()
    return found


def _answers(model: PULinearClassifier) -> list[Any]:
    margins = model.margins(ROWS)
    told = [
        model.get_params(),
        model.threshold_,
        model.prior_,
        model.estimates_,
        model.classes_.tolist(),
        model.encoder_,
    ]
    return [margins.tobytes(), model.posterior(margins).tobytes(), repr(told)]


@cache
def _expected() -> list[list[Any]]:
    return [_answers(_load(Path(tempfile.gettempdir()), data)) for data in models().values()]


def _load(folder: Path, data: bytes) -> PULinearClassifier:
    descriptor, path = tempfile.mkstemp(".safetensors", dir=folder)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
    try:
        return PULinearClassifier.load(path)
    finally:
        os.unlink(path)


def check_model(sample: str, data: bytes, folder: Path) -> str:
    """The answers of the model that was saved."""
    require(_answers(_load(folder, data)) in _expected(), "loaded, and gives other answers")
    return "equal"


ODD = [
    None,
    True,
    0,
    -1,
    1 << 70,
    1e308,
    float("nan"),
    "",
    "x",
    "\x1b[31m",
    [],
    [[]],
    {},
    {"a": 1},
    "O",
    "<U99999999999",
]


def mutate_state(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Change the state and tensors of a model at one or two places and write it as pucache does, checksum and all."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        path.write_bytes(data)
        tensors, state = tensor_file.read(path, model_file.KIND, max_bytes=model_file.MAX_BYTES)
        for _ in range(draw.choice((1, 1, 2))):
            if draw.random() < 0.7:
                change(state, draw)
            else:
                change_tensor(tensors, draw)
        tensor_file.write(path, model_file.KIND, tensors, state)
        return path.read_bytes()


def change(node: Any, draw: random.Random) -> None:
    """Drop, add or replace something in nested dicts and lists."""
    places = list(node) if isinstance(node, dict) else list(range(len(node)))
    if not places:
        return
    at = draw.choice(places)
    if isinstance(node[at], dict | list) and node[at] and draw.random() < 0.7:
        return change(node[at], draw)
    what = draw.random()
    if what < 0.25:
        del node[at]
    elif what < 0.4 and isinstance(node, dict):
        node["surplus"] = copy.deepcopy(draw.choice(ODD))
    else:
        node[at] = copy.deepcopy(draw.choice(ODD))  # a later change must not reach the next input


def change_tensor(tensors: dict[str, np.ndarray], draw: random.Random) -> None:
    """Give a tensor another shape, type or content."""
    name = draw.choice(sorted(tensors))  # safetensors reads them in any order
    values = tensors[name] if tensors[name].ndim else tensors[name][None]
    changed = [
        values[:-1], values[:0], np.append(values, 1).astype(values.dtype), values.astype(np.int64), values[None],
        values * np.nan, values * np.inf, values.astype(np.float16), np.float32(1).reshape(()), values.astype(bool),
    ]  # fmt: skip
    tensors[name] = np.ascontiguousarray(draw.choice(changed))


def check_state(sample: str, data: bytes, folder: Path) -> str:
    """Sealed by somebody who means harm: refused, or a model that can be asked and does not lie about its shape."""
    model = _load(folder, data)
    try:
        margins = model.margins(np.zeros((2, len(model.coef_)), np.float32))
        posterior = model.posterior(margins)
        str(model), str(model.encoder_), model.get_params(), model.predict(np.zeros((2, len(model.coef_)), np.float32))
    except Exception as error:
        require(False, f"loaded, and then fails with {type(error).__name__}: {error}")
    require(margins.shape == (2,) and posterior.shape == (2,), f"margins {margins.shape}")
    require(np.isfinite(margins).all() and np.isfinite(posterior).all(), "loaded, and its margins are not finite")
    return "loaded"


# --- arrays ------------------------------------------------------------------------------------


@cache
def arrays() -> dict[str, bytes]:
    X = np.random.default_rng(0).normal(size=(4, 3))
    return {
        "float16.npy": _npy(X.astype("f2")),
        "float32.npy": _npy(X.astype("f4")),
        "float64.npy": _npy(X),
        "big-endian.npy": _npy(X.astype(">f4")),
        "fortran.npy": _npy(np.asfortranarray(X.astype("f4"))),
        "second-version.npy": _npy(X.astype("f4"), (2, 0)),
    }


def _npy(X: np.ndarray, version: tuple[int, int] | None = None, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, X, version, **options)
    return stream.getvalue()


@cache
def hostile_arrays() -> dict[str, bytes]:
    """Arrays that must be refused: pickles above all."""
    import pickle

    stream = io.BytesIO()
    np.savez(stream, a=np.zeros((4, 3)))
    header = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}"
    return {
        "objects": _npy(np.array([[RunsCode()]], object)),
        "a bare pickle": pickle.dumps(RunsCode()),
        "an archive": stream.getvalue(),
        "more rows than memory": _headed(header.format("<f4", (1 << 50, 3))),
        "more rows than numbers": _headed(header.format("<f4", (1 << 62, 1 << 62))),
        "a negative shape": _headed(header.format("<f4", (-4, 3))),
        "a shape of booleans": _headed(header.format("<f4", (True, True)) + " " * 99),
        "code in the header": _headed("__import__('os').mkdir('" + str(MARKER) + "')"),
        "a deep header": _headed("[" * 5_000),
        "an unclosed header": _headed("{'descr': '''"),
        "a long header": _headed(" " * 60_000),
        "complex numbers": _npy(np.zeros((4, 3), complex)),
        "fields": _npy(np.zeros((4, 3), [("a", "f4"), ("b", "f4")])),
        "one axis": _npy(np.zeros(4)),
        "no rows": _npy(np.zeros((0, 3))),
        "infinity": _npy(np.full((4, 3), np.inf)),
        "nothing": b"",
    }


def _headed(header: str, version: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header.encode() + bytes(48)


def check_array(sample: str, data: bytes, folder: Path) -> str:
    """The rows that a reading of the bytes by hand finds."""
    path = folder / "rows.npy"
    path.write_bytes(data)
    try:
        import_embeddings(path, folder / "cache.h5", keys=list("dbca"))
    except CacheError:
        require(data not in arrays().values(), "a good array was refused")
        raise
    finally:
        require_no_code_was_run()
    made = EmbeddingCache(folder / "cache.h5")
    made.verify()
    expected = _by_hand(data)[[3, 1, 2, 0]]
    require(list(made.keys) == list("abcd") and made.X.shape == expected.shape, f"{made.X.shape} for {expected.shape}")
    require(np.array_equal(made.X, expected.astype(made.X.dtype)), "other rows than the file holds")
    return "equal"


def _by_hand(data: bytes) -> np.ndarray:
    import ast

    width = 2 if data[6] == 1 else 4
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    told = ast.literal_eval(data[8 + width : start].decode("latin1").strip())
    count = int(np.prod(told["shape"]))
    flat = np.frombuffer(data, np.dtype(told["descr"]), count, start)
    return flat.reshape(told["shape"], order="F" if told["fortran_order"] else "C")


# --- weights -----------------------------------------------------------------------------------

ARCHITECTURE = "test_byobnet"


@cache
def network() -> Any:
    import timm

    torch.manual_seed(0)
    return timm.create_model(ARCHITECTURE, pretrained=False, num_classes=0)


@cache
def weights() -> dict[str, bytes]:
    state = network().state_dict()
    wrapped = {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}, "epoch": 3}
    return {
        "plain.safetensors": safetensors.torch.save(state),
        "plain.pth": _saved(state),
        "wrapped.pth": _saved(wrapped),
        "old.pth": _saved(state, _use_new_zipfile_serialization=False),
    }


def _saved(state: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(state, stream, **options)
    return stream.getvalue()


@cache
def hostile_weights() -> dict[str, bytes]:
    """Weights that must be refused: pickles that run code, headers that claim what is not there."""
    import pickle

    state = network().state_dict()
    name = next(iter(state))
    claim = {name: {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}
    return {
        "code.pth": _saved({"state_dict": state, "extra": RunsCode()}),
        "code-alone.pth": _saved(RunsCode()),
        "code-old.pth": _saved({**state, "x": RunsCode()}, _use_new_zipfile_serialization=False),
        "pickle.pth": pickle.dumps(RunsCode()),
        "pickle.safetensors": pickle.dumps(RunsCode()),
        "list.pth": _saved(list(state.values())),
        "number.pth": _saved(3),
        "nothing.pth": b"",
        "nothing.safetensors": b"",
        "long-header.safetensors": struct.pack("<Q", 1 << 62) + b"{}",
        "claim.safetensors": _header(claim),
        "deep.safetensors": struct.pack("<Q", 100_000) + b"[" * 100_000,
        "overlap.safetensors": _header({n: {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} for n in "ab"})
        + bytes(16),
        "other-shape.pth": _saved({n: t[None] for n, t in state.items()}),
        "not-tensors.pth": _saved(dict.fromkeys(state, 1)),
        "sparse.pth": _saved(
            {n: t.to_sparse() if t.ndim == 2 else t for n, t in state.items()} | {name: state[name].to_sparse()}
        ),
        "lacking.pth": _saved(dict(list(state.items())[1:])),
        "double-names.pth": _saved({"state_dict": {"state_dict": state}}),
    }


def _header(told: dict[str, Any]) -> bytes:
    text = json.dumps(told).encode()
    return struct.pack("<Q", len(text)) + text


def check_weights(sample: str, data: bytes, folder: Path) -> str:
    """Refused, or a network of numbers of the right shapes; for safetensors the very numbers of the file."""
    from pucache.encoders import backbones

    path = folder / ("weights.safetensors" if sample.endswith(".safetensors") else "weights.pth")
    path.write_bytes(data)
    model = network()
    blank = {name: torch.full_like(tensor, 7) for name, tensor in model.state_dict().items()}
    model.load_state_dict(blank)
    try:
        backbones.load_weights(model, ARCHITECTURE, path)
    finally:
        require_no_code_was_run()
    loaded = model.state_dict()
    if sample.endswith(".safetensors"):
        for name, tensor in _tensors(data).items():
            require(loaded[name].numpy().tobytes() == tensor, f"{name} is not as in the file")
    left = [
        name
        for name, tensor in loaded.items()
        if not name.endswith("num_batches_tracked") and bool((tensor == 7).all())
    ]
    require(not left, f"the file was accepted, and {left[:3]} were not loaded from it")
    return "loaded"


def _tensors(data: bytes) -> dict[str, bytes]:
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {name: data[start + a : start + b] for name, (a, b) in ((n, t["data_offsets"]) for n, t in header.items())}


def prepare() -> None:
    """Make all samples once, before the process forks; `network` is used by every check, so each starts it blank."""
    for make in (models, _expected, arrays, hostile_arrays, weights, hostile_weights):
        make()


TARGETS = [
    Target("model", models, check_model, (ModelError,), 150),
    Target("model resealed", models, check_state, (ModelError,), 60, mutate=mutate_state),
    Target("npy", arrays, check_array, (CacheError,), 80),
    Target("weights", weights, check_weights, (EncoderError,), 60),
]
