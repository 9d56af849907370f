"""Printing results: as lines for a person, or as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from pucache.storage.urls import without_secrets

_JSON = "pucache.json"


def remember_json(context: click.Context, parameter: click.Parameter, as_json: bool) -> None:
    """Keep --json for `print_result`."""
    context.meta[_JSON] = as_json


def wants_json() -> bool:
    """Whether the command was asked for JSON."""
    return bool(click.get_current_context().meta.get(_JSON))


def print_result(result: Mapping[str, Any], lines: Iterable[str], *, out: str = "") -> None:
    """Print `lines`, or `result` as JSON; on stderr where the table `out` is written to the standard output."""
    text = to_json(result) if wants_json() else "\n".join(map(printable, lines))
    click.echo(text, err=out in ("-", "/dev/stdout"))


def print_concepts(
    result: Mapping[str, Any],
    failures: Mapping[str, str],
    rows: Mapping[str, Mapping[str, str]],
    *lines: str,
    out: str = "",
) -> None:
    """Print a table with a row for each concept, and `lines`; list those that failed on stderr and exit with 3."""
    print_result({**result, "failures": failures}, [*concept_lines(rows), *lines], out=out)
    if failures:
        failed = concept_lines({name: {"failed because": reason} for name, reason in failures.items()})
        click.echo("\n".join(map(printable, failed)), err=True)
        raise click.exceptions.Exit(3)


def printable(text: str) -> str:
    """Text as `escaped`, without the secrets of URLs."""
    return escaped(without_secrets(text))


def escaped(text: str) -> str:
    """Escape control characters, and whatever else a terminal cannot show, in the names and contents of files."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def to_json(result: Mapping[str, Any]) -> str:
    """Write `result` as JSON: paths as text; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_plain(result), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def failure_lines(failures: Mapping[str, str], listing: str = "") -> list[str]:
    """Lines that name the first images which failed; `listing` says where the others are named."""
    lines = [f"  failed: {key!r}: {reason}" for key, reason in list(failures.items())[:3]]
    if len(failures) > 3:
        lines.append(f"  ... and {len(failures) - 3:,} more{listing}")
    return lines


def concept_lines(rows: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Lines of a table with a row for each concept; the columns are those of the first row."""
    if not rows:
        return []
    titles = list(next(iter(rows.values())))
    cells = [["concept", *titles], *([name, *row.values()] for name, row in rows.items())]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]


def exit_for_failures(failures: int, strict: bool) -> None:
    """Exit with 3 where images failed and --strict is set."""
    if strict and failures:
        raise click.exceptions.Exit(3)
