"""`pucache info`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pucache.cache.cache_info import CacheInfo
from pucache.cache.cache_info import info as run
from pucache.errors import counted

from . import options, output


@options.command("info")
@options.caches
@options.option(
    "--failures", is_flag=True, help="List the images that could not be read, or only in part, with reasons."
)
@options.as_json
def info(cache: tuple[str, ...], failures: bool) -> None:
    """Print what a cache holds.

    From a URL only a small part of each file is downloaded.

    \b
    pucache info cache.h5
    pucache info s3://bucket/shards/
    """
    content = run(cache)
    result = dataclasses.asdict(content)
    if not failures:
        result |= {"failures": len(content.failures), "partial": len(content.partial)}
    output.print_result(result, _lines(content, failures))


def _lines(content: CacheInfo, with_failures: bool) -> Iterator[str]:
    failed = counted(len(content.failures), "image")
    yield f"{counted(content.rows, 'row')} of {content.encoder}, {failed} that could not be read"
    for file in content.files:
        share = f"share {file.shard}, " if file.shard else ""
        origin = f"made {file.created} by pucache {file.pucache_version} from {file.source or 'elsewhere'}"
        yield f"{file.path}: {counted(file.rows, 'row')}, {file.dtype}, {share}{origin}"
    if content.partial:
        yield f"rows of images that were read in part: {len(content.partial):,}"
    if with_failures:
        yield from (f"{key!r}: {reason}" for key, reason in {**content.failures, **content.partial}.items())
