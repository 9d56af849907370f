"""`pucache info`."""

from __future__ import annotations

import dataclasses

import click

from . import options, output


@click.command()
@options.caches
@click.option("--failures", is_flag=True, help="List the images that could not be read, with reasons.")
@options.as_json
def info(cache: tuple[str, ...], failures: bool, as_json: bool) -> None:
    """Print the contents of CACHE (a file, a folder of cache files, or several).

    \b
    pucache info cache.h5
    """
    from pucache.cache.embedding_cache import EmbeddingCache

    opened = EmbeddingCache(*cache)
    failed = opened.failures
    files = [
        {
            "path": str(file.path),
            "rows": len(file),
            "dtype": str(file.dtype),
            "created": file.created,
            "pucache_version": file.pucache_version,
            "source": file.source,
            "checksum": file.checksum,
        }
        for file in opened.files
    ]
    result = {
        "rows": len(opened),
        "encoder": dataclasses.asdict(opened.encoder),
        "files": files,
        "failures": failed if failures else len(failed),
    }
    lines = [f"{len(opened):,} rows of {opened.encoder}, {len(failed):,} images that could not be read"]
    for file in opened.files:
        origin = f"made {file.created} by pucache {file.pucache_version} from {file.source or 'elsewhere'}"
        lines.append(f"{file.path}: {len(file):,} rows, {file.dtype}, {origin}")
    if failures:
        lines += [f"{key!r}: {reason}" for key, reason in failed.items()]
    output.print_result(result, lines, as_json)
