"""`pucache import-embeddings`."""

from __future__ import annotations

import click

from . import options, output


@click.command("import-embeddings")
@click.argument("npy")
@click.argument("cache")
@click.option(
    "--keys",
    required=True,
    metavar="FILE",
    help="Keys of the rows (unique names), in order: a text file, or a CSV with a 'key' column.",
)
@click.option("--name", help="Name of the encoder.  [default: the name of NPY]")
@click.option(
    "--dtype",
    type=click.Choice(["float16", "float32"]),
    help="Type of the stored embeddings.  [default: float16 if NPY is, else float32]",
)
@options.as_json
def import_embeddings(npy: str, cache: str, keys: str, name: str | None, dtype: str | None, as_json: bool) -> None:
    """Write embeddings from another program (a .npy array, one row per key) into the file CACHE.

    \b
    pucache import-embeddings clip.npy cache.h5 --keys files.txt --name clip-vit-b32
    """
    from pucache.cache.importing import import_embeddings as run
    from pucache.storage.atomic import check_writable

    check_writable(cache, inputs=[npy, keys])
    rows = run(npy, keys, cache, name=name, dtype=dtype)
    output.print_result({"cache": cache, "rows": rows}, [f"{cache}: {rows:,} rows"], as_json)
