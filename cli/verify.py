"""`pucache verify`."""

from __future__ import annotations

import click

from pucache.errors import CacheError
from pucache.verify_files import verify as run

from . import options, output

_DESCRIPTIONS = {
    "cache": "{:,} rows",
    "neighbours": "neighbours of {:,} rows",
    "model": "{:,} dimensions",
    "encoder": "an encoder after {:,} steps",
    "checkpoint": "a checkpoint after {:,} steps",
}


@options.command("verify")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@options.as_json
def verify(files: tuple[str, ...]) -> None:
    """Check every byte of files that pucache wrote.

    FILE is a cache, a folder of caches, a model, or output of pretrain: a run folder, an encoder or a
    checkpoint. To repair a cache, run the `pucache embed` that wrote it with
    --verify, which embeds the damaged rows again.

    \b
    pucache verify cache.h5 model.safetensors
    pucache verify RUN_DIR
    """
    verified = run(files)
    whole = [file for file in verified if not file.damage]
    damage = [file.damage for file in verified if file.damage]
    lines = [f"{file.path}: {_DESCRIPTIONS[file.kind].format(file.rows)}, whole" for file in whole]
    rows = sum(file.rows for file in whole if file.kind == "cache")
    result = {"whole": not damage, "rows": rows, "files": [str(file.path) for file in verified], "damage": damage}
    if lines or output.wants_json():
        output.print_result(result, lines)
    if damage:
        for text in damage[:-1]:
            click.echo(f"Error: {output.printable(text)}", err=True)
        raise CacheError(damage[-1])
