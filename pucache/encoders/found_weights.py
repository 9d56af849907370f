"""Weights that a cache's encoder names and that are not given: where the cache says, then in ``$PUCACHE_WEIGHTS``.

A file, or folder, is the right one by the digest of its weights, as the encoder loads them. Digests are remembered by
path, size and time in ``weights.json`` of `pucache.storage.atomic.parent_folder`.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from ..errors import PUCacheError
from ..storage.atomic import parent_folder, replacing
from .spec import EncoderSpec

VARIABLE = "PUCACHE_WEIGHTS"


def find_weights(spec: EncoderSpec) -> str | None:
    """Path of the weights of an encoder; where there are none of its digest, what the cache names, or None."""
    folder = os.environ.get(VARIABLE)
    named = [spec.origin] if spec.origin and os.path.exists(spec.origin) else []
    listed = sorted(str(path) for path in Path(folder).absolute().iterdir()) if folder and os.path.isdir(folder) else []
    return next((path for path in named + listed if _digest(path, spec) == spec.weights), next(iter(named), None))


def _digest(path: str, spec: EncoderSpec) -> str:
    """Digest of weights as an encoder has them; empty where they are not of its network."""
    known, identity = _index(), _identity(path, spec)
    if identity not in known:
        from .encoder import load_encoder  # which looks for weights here

        known[identity] = ""
        with contextlib.suppress(PUCacheError, ValueError):
            known[identity] = load_encoder(spec.name, weights=path, device="cpu", like=spec).spec.weights
        remember(path, spec, known[identity])
    return known[identity]


def remember(path: str, spec: EncoderSpec, digest: str) -> None:
    """Remember the digest of weights for an encoder of this name, size and pooling."""
    known, identity = _index(), _identity(path, spec)
    if known.get(identity) != digest:
        with contextlib.suppress(PUCacheError, OSError), replacing(parent_folder() / "weights.json") as temporary:
            temporary.write_text(json.dumps(known | {identity: digest}))


def _identity(path: str, spec: EncoderSpec) -> str:
    """What a digest is remembered by: the files, and how the network takes them."""
    files = sorted(Path(path).glob("*")) if os.path.isdir(path) else [Path(path)]
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return json.dumps([spec.name, spec.input_size, spec.pooling, stats])


def _index() -> dict[str, str]:
    try:
        return dict(json.loads((parent_folder() / "weights.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
