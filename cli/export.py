"""`pucache export`."""

from __future__ import annotations

from typing import Any

import click

from pucache.cache.embedding_cache import open_cache
from pucache.cache.exporting import check_parquet
from pucache.cache.exporting import export as run
from pucache.errors import counted
from pucache.storage.file_kinds import EXPORT, ONNX
from pucache.storage.urls import without_secrets

from . import options, output
from .destinations import check_outputs
from .progress import terminal_progress


@options.command("export")
@click.argument("what", metavar="CACHE_OR_MODEL")
@click.argument("out")
@options.option("--session", metavar="FOLDER", help="Folder of a review: adds the column decision, 1 or 0.")
@options.option(
    "--thumbnails",
    is_flag=False,
    flag_value=160,
    type=click.IntRange(min=1),
    metavar="[PIXELS]",
    help="Add the column thumbnail, a JPEG of at most so many pixels a side (160 where no number is given).",
)
@options.images
@options.option(
    "--input",
    "pixels",
    type=click.Choice(["uint8", "float32"]),
    help="Images that model.onnx takes: from 0 to 255, of any size, or from 0 to 1, of the encoder's input size.  "
    "[default: uint8]",
)
@options.as_json
def export(
    what: str,
    out: str,
    pixels: str | None,
    **of_cache: Any,
) -> None:
    """Write a cache as Parquet, or a model as ONNX.

    Of a CACHE, OUT is FILE.parquet with the columns key, embedding (float16 or float32), digest, size, mtime_ns;
    import-embeddings makes the same cache from it again. Of a MODEL it is FILE.onnx, which takes images, resizes and
    crops them, and gives embedding, margin, posterior and label; it needs pip install -e '.[onnx]'.

    \b
    pucache export cache.h5 embeddings.parquet
    pucache export cache.h5 images.parquet --session cache.h5.review --thumbnails
    pucache export model.safetensors model.onnx
    """
    name = without_secrets(out)
    if out.lower().endswith(".onnx"):
        if any(value is not None for value in of_cache.values()):
            raise ValueError("--session, --thumbnails and --images are for a cache; leave them out")
        from pucache.scoring.onnx_model import export_onnx

        check_outputs(("out", out, ONNX))
        model = export_onnx(what, out, images=pixels or "uint8")
        result = {**vars(model), "out": name, "encoder": str(model.encoder or "")}
        described = "; ".join(f"{each} {kind}" for each, kind in {**model.inputs, **model.outputs}.items())
        check = f"margins are within {model.difference:.1e} of pucache's on 32 images"
        output.print_result(result, [f"{name}: {described}", check])
        return
    if pixels is not None:
        raise ValueError("--input is for a model that is written as .onnx; leave it out")
    if of_cache["images"] is not None and of_cache["thumbnails"] is None:
        raise ValueError("--images are for --thumbnails; leave them out")
    check_parquet(out)
    check_outputs(("out", out, EXPORT))
    cache, columns = open_cache(what), []
    if of_cache["session"] is not None:
        from pucache.reviewing.session_labels import decision_column

        columns.append(decision_column(cache, of_cache["session"]))
    if of_cache["thumbnails"] is not None:
        from pucache.pages.thumbnails import thumbnail_column

        columns.append(thumbnail_column(cache, of_cache["thumbnails"], of_cache["images"]))
    report = run(cache, out, columns=columns, progress=terminal_progress())
    result = {**vars(report), "out": name, "encoder": str(report.encoder)}
    more = "".join(f", {field.name}" for field, _ in columns)
    output.print_result(result, [f"{name}: {counted(report.rows, 'row')} of {report.encoder}, {report.dtype}{more}"])
