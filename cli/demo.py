"""`pucache demo`."""

from __future__ import annotations

import click

from . import options, output


@click.command()
@click.argument("folder", default="pucache-demo")
@options.device
@options.as_json
def demo(folder: str, device: str, as_json: bool) -> None:
    """Run the whole pipeline on the 2,040 images inside the package and write all outputs to FOLDER.

    \b
    pucache demo
    """
    from pucache.allocator import keep_freed_memory

    keep_freed_memory()  # before the first thread, or large array
    from pucache.demonstration import demo as run

    from .progress import terminal_progress

    result, lines = run(folder, device=device, progress=terminal_progress())
    output.print_result(result, lines, as_json)
