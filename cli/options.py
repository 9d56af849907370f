"""Options that several verbs share, and how results are printed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

caches = click.argument("cache", nargs=-1, required=True)
positives = click.option(
    "--positives",
    required=True,
    metavar="FILE|GLOB",
    help="Labelled positives: a text file of keys (paths within the source), a CSV with a 'key' column, "
    "or a glob on keys ('positives/**').",
)
device = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
seed = click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Makes the result repeatable."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
strict = click.option("--strict", is_flag=True, help="Exit with 3 when an image could not be read.")


def encoding(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of every verb that runs an encoder."""
    for option in (
        click.option(
            "--workers",
            type=click.IntRange(min=0),
            help="Processes that read and decode.  [default: with CUDA one per core, up to 8; else one per 4 cores]",
        ),
        click.option(
            "--batch-size",
            type=click.IntRange(min=1),
            help="Images per forward pass.  [default: 64 on CPU, 256 on CUDA]",
        ),
        click.option(
            "--precision",
            default="auto",
            show_default=True,
            type=click.Choice(["auto", "fp32", "bf16", "fp16"]),
            help="Of the forward pass; auto is fp32 on the CPU and fp16 on CUDA.",
        ),
        device,
        click.option("--weights", metavar="FILE", help="Weights of a timm encoder: safetensors or a state dict."),
    ):
        command = option(command)
    return command


def show(result: dict[str, Any], lines: list[str], as_json: bool) -> None:
    """Print `result` as JSON, or the lines that tell it to a person."""
    click.echo(to_json(result) if as_json else "\n".join(lines))


def to_json(result: dict[str, Any]) -> str:
    """Write `result` as JSON, with null for NaN and infinity, which JSON does not know."""
    return json.dumps(_finite(result), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def finish(failures: int, strict: bool) -> None:
    """Exit with 3 under --strict when images failed."""
    if strict and failures:
        raise click.exceptions.Exit(3)
