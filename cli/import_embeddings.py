"""`pucache import-embeddings`."""

from __future__ import annotations

from typing import Any

import click

from pucache.cache.importing import import_embeddings as run
from pucache.errors import counted
from pucache.storage.file_kinds import CACHE

from . import options, output
from .destinations import check_outputs
from .progress import terminal_progress


@options.command("import-embeddings")
@click.argument("source")
@click.argument("cache")
@options.option(
    "--keys",
    metavar="FILE",
    help="Keys of the rows (unique names), in order: a text file, or a table with a 'key' column.",
)
@options.option(
    "--key-column",
    metavar="NAME",
    help="Column of the metadata, or of the Parquet file, to take as keys.  [default: the first of key, image_path, "
    "path, file_name, filename, url, id, image_id, uid, image, file, file_path, image_file, image_name, img that "
    "exists; else the numbers of the rows]",
)
@options.option(
    "--embedding-column",
    metavar="NAME",
    help="List column of a Parquet file, or tensor of a safetensors file.  [default: embedding, or the only one that "
    "fits]",
)
@options.option(
    "--metadata",
    metavar="FILE|FOLDER",
    help="Parquet files with one row for each embedding, matched by the numbers in their names.  [default: those in "
    "SOURCE, or in a folder 'metadata' in it or beside it]",
)
@options.option("--name", help="Name of the encoder.  [default: the name of SOURCE; for an export, the one in it]")
@options.option(
    "--normalize",
    is_flag=True,
    help="Scale each embedding to length 1. The cache states it, and a model that was trained on one kind "
    "refuses the other.",
)
@options.option(
    "--skip-invalid",
    is_flag=True,
    help="Record rows that cannot be stored, such as NaN, among the failures, and import the others.",
)
@options.force
@options.as_json
def import_embeddings(source: str, cache: str, **chosen: Any) -> None:
    """Make a cache of embeddings from another program.

    SOURCE is a .npy, .safetensors or .parquet file, or a folder of them: parts in the order of the numbers in their
    names, with Parquet metadata beside them, as clip-retrieval writes them (img_emb/, metadata/). CACHE is written.

    \b
    pucache import-embeddings clip.npy cache.h5 --keys files.txt --name clip-b32
    pucache import-embeddings laion/ cache.h5 --key-column url --normalize
    pucache import-embeddings table.parquet cache.h5
    """
    check_outputs(("cache", cache, CACHE), force=chosen["force"])
    report = run(source, cache, **chosen, progress=terminal_progress())
    parts = "" if report.parts == 1 else f" from {report.parts:,} parts"
    lines = [f"{cache}: {counted(report.rows, 'row')} of {report.encoder}, {report.dtype}{parts}; keys: {report.keys}"]
    if report.left_out:
        lines.append(f"rows that cannot be stored are left out: {report.left_out:,} (pucache info {cache} --failures)")
    output.print_result({**vars(report), "cache": cache, "encoder": str(report.encoder)}, lines)
