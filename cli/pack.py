"""`pucache pack`."""

from __future__ import annotations

from pucache.cache.merging import pack as run
from pucache.errors import counted
from pucache.storage.file_kinds import CACHE

from . import options, output
from .destinations import check_outputs


@options.command("pack")
@options.caches
@options.option("--out", required=True, metavar="FILE", help="Merged cache to write.")
@options.force
@options.as_json
def pack(cache: tuple[str, ...], out: str, force: bool) -> None:
    """Merge cache files of one encoder into one.

    Every input file is verified. Packing is optional.

    \b
    pucache pack shard-1.h5 shard-2.h5 --out cache.h5
    """
    check_outputs(("out", out, CACHE), force=force)
    rows = run(cache, out, force=force)
    output.print_result({"out": out, "rows": rows}, [f"{out}: {counted(rows, 'row')}"])
