"""`pucache review`."""

from __future__ import annotations

from typing import Any

import click

from pucache.cache.embedding_cache import open_cache

from . import options, output


@options.command()
@options.caches
@options.positives
@options.option(
    "--labels",
    metavar="TABLE",
    help="Labels of all kinds, as pucache labels writes them, with groups or concepts. Without any, and without "
    "--words or --like, a review begins with images that are spread over CACHE; one that has begun keeps its own.",
)
@options.query
@options.option(
    "--session",
    metavar="FOLDER",
    help="Folder of decisions, labels and the address of the page.  [default: CACHE.review beside CACHE]",
)
@options.option(
    "--beside",
    metavar="REVIEW",
    help="Another reader's review of the same images: this one begins with its labels, and shows none of its answers.",
)
@options.images
@options.option("--no-browser", is_flag=True, help="Print the address only.")
@options.option(
    "--reviewer",
    section=options.MACHINE,
    metavar="NAME",
    help="Name to log with each decision.  [default: the name of the user]",
)
@options.option(
    "--port",
    section=options.MACHINE,
    type=int,
    metavar="N",
    help="Port of the page; where it is in use, the next free one. 0: any.  [default: that of the session, or 8321]",
)
@options.option(
    "--host",
    section=options.MACHINE,
    default="127.0.0.1",
    metavar="ADDRESS",
    help="Address to serve at. With another one, whoever has the printed address may review over the network, "
    "unencrypted; prefer ssh -L.",
)
def review(cache: tuple[str, ...], positives: str | None, labels: str | None, no_browser: bool, **served: Any) -> None:
    """Accept and reject images, and see what is still hidden.

    Each decision is on disk before the next image. A classifier is trained on them meanwhile and says what is shown
    next; a few images are drawn at random and say how many positives are still hidden. Ctrl-C ends; the same command
    goes on.

    \b
    pucache review cache.h5 --positives found.txt
    pucache review cache.h5 --words 'a dress'
    """
    from pucache.reviewing.serve import review as serve

    opened = open_cache(cache)
    named = positives is not None or labels is not None
    serve(
        opened,
        options.open_labels(opened, positives, labels) if named else None,
        open_browser=not no_browser,
        announce=lambda line: click.echo(output.escaped(line)),  # the token of its own address is for the user
        **served,
    )
