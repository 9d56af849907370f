"""`pucache review`."""

from __future__ import annotations

import click

from . import options


@click.command()
@options.caches
@click.option(
    "--positives",
    metavar="FILE|GLOB",
    help="Labelled positives, as for train-pu. Without any, the review begins with a selection that is spread over "
    "the images; a session that exists has kept its own.",
)
@options.negatives
@click.option(
    "--session",
    metavar="FOLDER",
    help="Folder of decisions, labels and the address of the page.  [default: CACHE.review beside CACHE]",
)
@options.images
@click.option("--reviewer", metavar="NAME", help="Name to log with each decision.  [default: the name of the user]")
@options.twins
@click.option(
    "--port",
    type=int,
    metavar="N",
    help="Port of the page; where it is in use, the next free one. 0: any.  [default: that of the session, or 8321]",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to serve at. With another one, whoever has the printed address may review over the network, "
    "unencrypted; prefer ssh -L.",
)
@click.option("--no-browser", is_flag=True, help="Print the address only.")
@click.option(
    "--export",
    is_flag=True,
    help="Write reviewed.csv, model.safetensors and metrics.json into the session's folder, and end; also while its "
    "page is open.",
)
@options.device
@options.as_json
def review(
    cache: tuple[str, ...],
    positives: str | None,
    negatives: str | None,
    session: str | None,
    images: str | None,
    reviewer: str | None,
    twins: float,
    port: int | None,
    host: str,
    no_browser: bool,
    export: bool,
    device: str,
    as_json: bool,
) -> None:
    """Find the positives of CACHE on a page in the browser, and see how many are still hidden.

    Each decision is on disk before the next image. A classifier is trained on them meanwhile and says what is
    shown next; a few images are drawn at random and say how many positives are still hidden. Ctrl-C
    ends; the same command goes on.

    \b
    pucache review cache.h5 --positives found.txt
    pucache review cache.h5 --export
    """
    if as_json and not export:
        raise ValueError("--json is for --export; leave it out")
    if export:
        _export(cache, session, device, as_json)
        return
    from pucache.reviewing.serve import review as serve

    from . import output

    serve(
        list(cache),
        positives,
        negatives=negatives,
        session=session,
        images=images,
        reviewer=reviewer,
        twins=options.twin_cosine(twins),
        port=port,
        host=host,
        open_browser=not no_browser,
        device=device,
        announce=lambda line: click.echo(output.printable(line)),
    )


def _export(cache: tuple[str, ...], folder: str | None, device: str, as_json: bool) -> None:
    """Write labels and model of a session into its folder."""
    from pucache.errors import LabelError
    from pucache.pages.review_page import EXPORT
    from pucache.reviewing.export import write_reviewed
    from pucache.reviewing.session import read_session

    from .train_pu import train_pu

    with read_session(list(cache), folder) as session:
        s, reviewed = session.labels()
        labels = write_reviewed(session, session.folder / EXPORT)
    if not as_json:
        positive, negative = int(((s == 1) | (reviewed == 1)).sum()), int((reviewed == -1).sum())
        click.echo(f"wrote {labels}: {positive:,} positive, {negative:,} negative")
    if not (s == 1).any():
        raise LabelError(f"{labels} holds no positive, and a model needs one: decide one, and export again")
    click.get_current_context().invoke(
        train_pu,
        cache=cache,
        session=str(labels.parent),
        out=str(labels.with_name("model.safetensors")),
        device=device,
        as_json=as_json,
    )
