"""Printing results: as lines for a person, or as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import click


def print_result(result: Mapping[str, Any], lines: Sequence[str], as_json: bool, *, out: str = "") -> None:
    """Print `result` as JSON, or else `lines`; on stderr where the table `out` is written to the standard output."""
    text = to_json(result) if as_json else "\n".join(map(printable, lines))
    click.echo(text, err=out in ("-", "/dev/stdout"))


def printable(text: str) -> str:
    """Escape control characters, and whatever else a terminal cannot show, in the names and contents of files."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def to_json(result: Mapping[str, Any]) -> str:
    """Write `result` as JSON; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(result), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def exit_for_failures(failures: int, strict: bool) -> None:
    """Exit with 3 where images failed and --strict is set."""
    if strict and failures:
        raise click.exceptions.Exit(3)
