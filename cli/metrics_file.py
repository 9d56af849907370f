"""The estimates of train-pu as JSON: beside their model, or where --metrics says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pucache.storage.atomic import replacing
from pucache.storage.file_kinds import MARK, is_of_pucache
from pucache.training.concept_models import METRICS, SUFFIX

from . import output
from .destinations import may_write_derived

_OF_VERSION_0_3 = b'"labelled_positives"'


def metrics_beside(model: str | Path) -> Path:
    """File of a model's metrics: ``m.metrics.json`` of ``m.safetensors``."""
    path = Path(model)
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}.{METRICS}")


def write_metrics(result: dict[str, Any], metrics: str | None, derived: Path) -> str:
    """Write `result` to the file that --metrics names, or else to `derived`; returns what to say of it.

    A file of the derived name that pucache did not mark as its own is left as it is.
    """
    path = Path(metrics or derived)
    if metrics is None and not may_write_derived(path, "out", "metrics"):
        return f"; {path} was left as it is, not updated, as it has no mark of pucache: rename it, or use --metrics"
    with replacing(path) as temporary:
        temporary.write_text(output.to_json({"written_by": MARK, **result}) + "\n")
    return f" and {path}"


def not_updated(model: str | Path, metrics: str | None) -> Iterator[str]:
    """Name the metrics.json that version 0.3 wrote beside a model, which now is of an older training."""
    older = Path(model).with_name(METRICS)
    if not older.is_file() or is_of_pucache(older) or (metrics is not None and older.samefile(metrics)):
        return
    with older.open("rb") as stream:
        if _OF_VERSION_0_3 in stream.read(4096):
            yield f"{older} is of an earlier training by pucache 0.3, and was not updated"
