"""Provenance of a report: input files with their hashes, parameters, seeds and package versions."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..cache.embedding_cache import EmbeddingCache
from ..cache.writer import creation_time
from ..training.sklearn_classifier import PULinearClassifier
from ..version import __version__

_PACKAGES = ("numpy", "torch", "scikit-learn", "scipy", "matplotlib")
_FAISS = ("faiss-gpu", "faiss-cpu")


def provenance(
    cache: EmbeddingCache, labels: tuple[Any, Any], model: PULinearClassifier, **settings: Any
) -> dict[str, Any]:
    """Collect what is needed to reproduce the page.

    Parameters
    ----------
    cache : EmbeddingCache
    labels : tuple
        The arguments `positives` and `negatives` of `report`.
    model : PULinearClassifier
        The model trained for the report; its parameters are recorded.
    **settings
        Parameters of the report; None and "" are left out.

    Returns
    -------
    dict
        Lists of dicts and dicts of text, for the page and for JSON.
    """
    return {
        "cache": [
            {
                "file": str(file.path),
                "rows": len(file),
                "checksum": file.checksum,
                "source": file.source or "not recorded",
                "created": file.created,
                "pucache": file.pucache_version,
            }
            for file in cache.files
        ],
        "encoder": {name: str(value) for name, value in asdict(cache.encoder).items() if value not in ("", ())},
        "labels": {
            f"{name}: {field}": value
            for name, source in zip(("positives", "negatives"), labels, strict=True)
            if source is not None
            for field, value in _label_source(source).items()
        },
        "training": _parameters(model),
        "report": {name: str(value) for name, value in settings.items() if value not in (None, "")},
        "versions": {"pucache": __version__, **{name: _version(name) for name in _PACKAGES}, "faiss": _faiss()},
        "created": creation_time(),
    }


def _parameters(model: PULinearClassifier) -> dict[str, str]:
    """Parameters as text."""
    parameters = model.get_params()
    return {name: str(value) for name, value in sorted(parameters.items()) if value is not None}


def _label_source(source: Any) -> dict[str, str]:
    if isinstance(source, str | Path) and os.path.isfile(source):
        return {"file": str(source), "sha256": hashlib.sha256(Path(source).read_bytes()).hexdigest()}
    return {"given as": f"glob {source}" if isinstance(source, str | Path) else "an array of labels"}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _faiss() -> str:
    return next((installed for installed in map(_version, _FAISS) if installed != "not installed"), "not installed")
