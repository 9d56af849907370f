"""`pucache verify`."""

from __future__ import annotations

import click

from . import options


@click.command()
@options.caches
@options.as_json
def verify(cache: tuple[str, ...], as_json: bool) -> None:
    """Read every byte of CACHE and hold it against its checksum; exits with 1 when it is damaged.

    \b
    pucache verify cache.h5
    """
    from pucache.cache import EmbeddingCache

    opened = EmbeddingCache(*cache)
    opened.verify()
    lines = [f"{file.path}: {len(file):,} rows, whole" for file in opened.files]
    options.show(
        {"whole": True, "rows": len(opened), "files": [str(file.path) for file in opened.files]}, lines, as_json
    )
