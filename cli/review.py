"""`pucache review`."""

from __future__ import annotations

from typing import Any

import click

from . import options, output


@click.command()
@options.caches
@options.option(
    "--positives",
    metavar="FILE|GLOB",
    help="Labelled positives, as for train-pu. Without any, and without --words or --like, the review begins with a "
    "selection that is spread over the images; a session that exists has kept its own.",
)
@options.negatives
@options.label_columns
@options.query
@options.concepts
@options.option(
    "--session",
    metavar="FOLDER",
    help="Folder of decisions, labels and the address of the page.  [default: CACHE.review beside CACHE]",
)
@options.images
@options.option("--reviewer", metavar="NAME", help="Name to log with each decision.  [default: the name of the user]")
@options.beside
@options.groups
@options.twins
@options.option(
    "--port",
    type=int,
    metavar="N",
    help="Port of the page; where it is in use, the next free one. 0: any.  [default: that of the session, or 8321]",
)
@options.option(
    "--host",
    default="127.0.0.1",
    metavar="ADDRESS",
    help="Address to serve at. With another one, whoever has the printed address may review over the network, "
    "unencrypted; prefer ssh -L.",
)
@options.option("--no-browser", is_flag=True, help="Print the address only.")
@options.option(
    "--export",
    is_flag=True,
    help="Write reviewed.csv, a table of all labels, into the session's folder, and end; also while its page is open.",
)
@options.device
@options.as_json
def review(
    cache: tuple[str, ...],
    positives: str | None,
    concepts: str | None,
    session: str | None,
    no_browser: bool,
    export: bool,
    device: str,
    **served: Any,
) -> None:
    """Find the positives of CACHE on a page in the browser, and see how many are still hidden.

    Each decision is on disk before the next image. A classifier is trained on them meanwhile and says what is
    shown next; a few images are drawn at random and say how many positives are still hidden. Ctrl-C
    ends; the same command goes on.

    \b
    pucache review cache.h5 --positives found.txt
    pucache review cache.h5 --words 'a dress'
    pucache review cache.h5 --concepts labels.csv
    pucache review cache.h5 --session anna/ --beside cache.h5.review
    pucache review cache.h5 --export
    """
    if output.wants_json() and not export:
        raise ValueError("--json is for --export; leave it out")
    options.check_session(session)
    if export:
        _refuse_what_serves()
        _export(cache, session)
        return
    from pucache.reviewing.serve import review as serve

    if concepts is not None:
        given = {name: served[name] for name in ("negatives", "words", "like")}
        options.check_concepts_alone(positives=positives, **given)
    serve(
        list(cache),
        positives,
        concepts=concepts,
        session=session,
        open_browser=not no_browser,
        device=device,
        announce=lambda line: click.echo(output.escaped(line)),  # the token of its own address is for the user
        **served,
    )


def _refuse_what_serves() -> None:
    """Refuse options that --export would ignore."""
    context = click.get_current_context()
    taken = ("cache", "session", "export", "as_json")
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name not in taken and source is click.core.ParameterSource.COMMANDLINE:
            raise ValueError(f"{parameter.opts[0]} is for the page, which --export does not open; leave it out")


def _export(cache: tuple[str, ...], folder: str | None) -> None:
    """Write the labels of a session into its folder, and say which commands take them."""
    from pucache.reviewing.session import read_session
    from pucache.reviewing.session_labels import export_session

    with read_session(list(cache), folder) as session:
        written = export_session(session)
    (path,), positive, negative = written["files"], written["positive"], written["negative"]
    lines = [f"wrote {path}: {positive:,} positive, {negative:,} negative", *written["commands"]]
    output.print_result(written, lines)
