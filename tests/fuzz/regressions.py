"""What fuzzing ever found, as small as it can be: target to inputs, each with the name of the sample it is like."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.array_targets import models
from fuzz.cache_samples import KEYS, caches, written
from pucache.storage import tensor_file
from pucache.training import model_file


def regressions() -> dict[str, dict[str, bytes]]:
    """Target to label to input; whatever becomes of them, it is named and comes to an end."""
    return {
        "glob": {  # a path that the system finds too long was an OSError
            "a long pattern": b"*" + b"a" * 5000,
            "a long name without a star": b"[" + b"a" * 300,
        },
        "keys": {  # the reason of a failure, which may quote the file, was printed as it is
            "an escape": b"\x1b]0;title\x07",
            "a carriage return": b"a\rb",
            "a C1 control": "\x9b31m".encode(),
        },
        "npy": {  # numpy itself tries to mend a header, with a tokenizer that raises what nobody expects
            "header cut in brackets": b"\x93NUMPY\x01\x00\x0a\x00{'descr': (" + bytes(64),
            "header with an odd indent": b"\x93NUMPY\x01\x00\x0a\x00 a\n  b\n c\n" + bytes(64),
        },
        "scores parquet": {  # thrift speaks in several lines
            "none.parquet": b"PAR1" + b"\xff" * 16 + (16).to_bytes(4, "little") + b"PAR1",
        },
        "cache command": {  # score wrote its table, and failed after that
            "a flipped reason": caches()["float16.h5"].replace(b"not an image", b"not an omage"),
        },
        "cache resealed": {  # text that is not UTF-8 was a UnicodeDecodeError, and so "wrong usage"
            "keys that are not UTF-8": written(KEYS, keys=np.array([b"a", b"b\xff", b"c", b"d", b"e"])),
        },
        "model resealed": {  # a state of another shape was a KeyError, a TypeError, or an IndexError later on
            "no encoder": _model(lambda state: state.pop("encoder")),
            "surplus parameter": _model(lambda state: state["parameters"].update(surplus=1)),
            "parameters in a list": _model(lambda state: state.update(parameters=[])),
            "no classes": _model(lambda state: state.update(classes=[])),
            "one class": _model(lambda state: state.update(classes=[0, "<i8"])),
            "classes of objects": _model(lambda state: state.update(classes=[[0, 1], "O"])),
            "one count": _model(lambda state: state.update(counts=[1])),
            "encoder as a number": _model(lambda state: state.update(encoder=1)),
            "encoder nested deeply": _model(lambda state: state.update(encoder="[" * 100_000)),
            "estimate of another kind": _model(lambda state: state.update(prior_estimate={"surplus": 1})),
            "unknown protocol": _model(lambda state: state["parameters"].update(protocol={"surplus": 1})),
        },
    }


def _model(change: Callable[[dict[str, Any]], object]) -> bytes:
    """A model whose state was changed by somebody who knows how to write one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        path.write_bytes(models()["given-prior.safetensors"])
        tensors, state = tensor_file.read(path, model_file.KIND, max_bytes=model_file.MAX_BYTES)
        change(state)
        tensor_file.write(path, model_file.KIND, tensors, state)
        return path.read_bytes()
