"""Where a report's numbers come from: files and their hashes, parameters, seeds, versions."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..cache.embedding_cache import EmbeddingCache
from ..cache.writer import creation_time
from ..pu.classifier import PULinearClassifier
from ..version import __version__

_PACKAGES = ("numpy", "torch", "scikit-learn", "scipy", "matplotlib")
_FAISS = ("faiss-gpu", "faiss-cpu")


def provenance(
    cache: EmbeddingCache, labels: tuple[Any, Any], model: PULinearClassifier, **settings: Any
) -> dict[str, Any]:
    """Collect what is needed to make the page again.

    Parameters
    ----------
    cache : EmbeddingCache
    labels : tuple
        Positives and negatives, as given to `report`.
    model : PULinearClassifier
        Whose parameters were trained with.
    **settings
        Of the report; None and "" are left out.
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
            f"{name}: {what}": value
            for name, given in zip(("positives", "negatives"), labels, strict=True)
            if given is not None
            for what, value in _labels(given).items()
        },
        "training": _parameters(model),
        "report": {name: str(value) for name, value in settings.items() if value not in (None, "")},
        "versions": {"pucache": __version__, **{name: _version(name) for name in _PACKAGES}, "faiss": _faiss()},
        "created": creation_time(),
    }


def _parameters(model: PULinearClassifier) -> dict[str, str]:
    """As text, but for the draws, which the report makes itself."""
    known = {name: value for name, value in model.get_params(deep=False).items() if name != "draws"}
    return {name: str(value) for name, value in sorted(known.items()) if value is not None}


def _labels(given: Any) -> dict[str, str]:
    if isinstance(given, str | Path) and os.path.isfile(given):
        return {"file": str(given), "sha256": hashlib.sha256(Path(given).read_bytes()).hexdigest()}
    return {"given as": f"glob {given}" if isinstance(given, str | Path) else "an array of labels"}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _faiss() -> str:
    return next((found for found in map(_version, _FAISS) if found != "not installed"), "not installed")
