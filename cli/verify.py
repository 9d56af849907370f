"""`pucache verify`."""

from __future__ import annotations

import click

from pucache.errors import CacheError, counted
from pucache.verify_files import verify as run

from . import options, output

_DESCRIPTIONS = {
    "cache": ("", "row"),
    "neighbours": ("neighbours of ", "row"),
    "model": ("", "dimension"),
    "encoder": ("an encoder after ", "step"),
    "checkpoint": ("a checkpoint after ", "step"),
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
    described = [(file, *_DESCRIPTIONS[file.kind]) for file in whole]
    lines = [f"{file.path}: {what}{counted(file.rows, noun)}, whole" for file, what, noun in described]
    rows = sum(file.rows for file in whole if file.kind == "cache")
    result = {"whole": not damage, "rows": rows, "files": [str(file.path) for file in verified], "damage": damage}
    if lines or output.wants_json():
        output.print_result(result, lines)
    if damage:
        for text in damage[:-1]:
            click.echo(f"Error: {output.printable(text)}", err=True)
        raise CacheError(damage[-1])
