"""`pucache export`."""

from __future__ import annotations

import click

from . import options, output


@click.command()
@click.argument("cache")
@click.argument("out")
@options.as_json
def export(cache: str, out: str, as_json: bool) -> None:
    """Write CACHE (a file, or a folder of cache files) as the Parquet file OUT.

    Columns: key, embedding (float16 or float32), digest, size, mtime_ns. import-embeddings makes the same
    cache from it again.

    \b
    pucache export cache.h5 embeddings.parquet
    """
    from pucache.cache.exporting import export as run
    from pucache.storage.urls import without_secrets

    from .progress import terminal_progress

    report = run(cache, out, progress=terminal_progress())
    name = without_secrets(out)
    result = {"out": name, "rows": report.rows, "encoder": str(report.encoder), "dtype": report.dtype}
    output.print_result(result, [f"{name}: {report.rows:,} rows of {report.encoder}, {report.dtype}"], as_json)
