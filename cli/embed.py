"""`pucache embed`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from pucache.allocator import keep_freed_memory
from pucache.cache.embedding_cache import open_cache
from pucache.embedding.embed import EmbedOptions, EmbedReport, run_embedding
from pucache.encoders.deferred import EncoderOptions
from pucache.images.decoding import BANDS, PAGES
from pucache.images.regions import BOXES, check_tiles
from pucache.images.shards import label_rows
from pucache.images.source import open_source
from pucache.images.tiling import CLIPPED
from pucache.scaling.embed_shards import embed_shards, shard_names
from pucache.storage.file_kinds import TABLE
from pucache.storage.outputs import check_distinct
from pucache.storage.table_writer import write_rows
from pucache.storage.urls import is_url, path_or_url

from . import options, output
from .destinations import check_outputs
from .progress import terminal_progress

_SHOWN_ENDINGS = 4


@click.command()
@click.argument("source")
@click.argument("cache")
@options.option(
    "--encoder",
    default="bundled",
    metavar="bundled|timm:NAME|open_clip:MODEL:TAG|RUN_DIR",
    help="Encoder that computes the embeddings.",
)
@options.option(
    "--key-column",
    metavar="NAME",
    help="Column of the keys of a manifest, or of Parquet files.  [default: the paths in them]",
)
@options.option(
    "--tiles",
    metavar="RxC|SIDE",
    help="Embed parts of each image in place of the whole: a grid such as 3x3, or squares of so many pixels, such as "
    "512.",
)
@options.option(
    "--overlap",
    type=click.IntRange(min=1),
    metavar="PIXELS",
    help="By how much squares of --tiles SIDE overlap.  [default: 0]",
)
@options.option("--images", metavar="FOLDER", help="Folder of the images that a manifest names.  [default: its own]")
@options.option(
    "--category",
    multiple=True,
    metavar="NAME",
    help="Of the JSON of COCO or MegaDetector: take boxes of this category alone; repeatable.",
)
@options.option(
    "--min-confidence",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Of the JSON of COCO or MegaDetector: leave out boxes of less confidence.",
)
@options.encoding_of_text
@options.option(
    "--labels-to",
    metavar="FILE",
    help="Write the labels in Parquet, tar or ZIP files as CSV key,label, after the embedding, or the categories of "
    "boxes as key,concept.  [default for these: CACHE.concepts.csv, unless it is there]",
)
@options.option(
    "--label-column",
    metavar="NAME",
    help="Column of the labels, for --labels-to. In tar and ZIP files: ending of the members beside the images, such "
    "as cls, txt or json.NAME.",
)
@options.encoding
@options.decoding
@options.option(
    "--reuse",
    multiple=True,
    metavar="CACHE",
    help="Copy the embeddings of images with equal bytes from this cache; repeatable.",
)
@options.option("--moved", is_flag=True, help="Accept a SOURCE with another path than the one CACHE was made from.")
@options.option("--prune", is_flag=True, help="Drop rows of images that are no longer in SOURCE.")
@options.option("--verify", is_flag=True, help="Check every byte of an existing CACHE and embed damaged rows again.")
@options.option(
    "--dtype",
    type=click.Choice(["float16", "float32"]),
    help="Type of the stored embeddings.  [default: that of an existing CACHE, else float16]",
)
@options.option(
    "--shards",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --engine ray: number of files 00001.h5, 00002.h5, ... that the folder CACHE shall hold. Each is what "
    "--shard I/N embeds.",
)
@options.force
@options.option("--profile", is_flag=True, help="Print the time of each stage.")
@options.strict
@options.as_json
def embed(
    source: str,
    cache: str,
    encoder: str,
    shard: tuple[int, int],
    shards: int | None,
    engine: str,
    address: str | None,
    workers: int | None,
    profile: bool,
    strict: bool,
    key_column: str | None,
    encoding: str | None,
    labels_to: str | None,
    label_column: str | None,
    images: str | None,
    category: tuple[str, ...],
    min_confidence: float | None,
    tiles: str | None,
    overlap: int | None,
    **rest: Any,
) -> None:
    """Embed the images of SOURCE into the file CACHE; with --engine ray, into a folder of shards.

    SOURCE is a folder, a manifest (.txt, .csv, .xlsx, .json), the JSON of COCO or MegaDetector, .tar, .zip or .parquet
    files ('shards/*.tar'), or an fsspec URL of any of these. CACHE is a path or an fsspec URL. The key of an image is
    its path within SOURCE. Run the command again to continue after an interruption, or to add new and changed images;
    unchanged images are not computed again. `pucache info` lists the images that could not be read.

    \b
    pucache embed photos/ cache.h5
    pucache embed photos/ cache.h5 --encoder timm:resnet50 --weights resnet50.safetensors
    pucache embed photos/ cache.h5 --encoder open_clip:ViT-B-32:laion2b_s34b_b79k   # then also --words
    pucache embed train.parquet cache.h5 --labels-to labels.csv --label-column label
    pucache embed 'shards/{00000..00099}.tar' cache.h5 --labels-to labels.csv --label-column cls
    pucache embed photos/ parts.h5 --tiles 3x3          # or --tiles 512 --overlap 64
    pucache embed detections.json parts.h5 --images photos/ --category animal --min-confidence 0.2
    pucache embed photos/ shards/1.h5 --shard 1/4       # then train on shards/, or pucache pack
    pucache embed s3://bucket/photos s3://bucket/shards --engine ray --shards 64 --address head:6379
    """
    keep_freed_memory()  # before the first thread, or large array
    check_distinct([("--labels-to", labels_to or "-"), ("CACHE", cache)])
    check_outputs(("labels_to", labels_to, TABLE), force=rest["force"])
    names = ("weights", "device", "precision", "runtime", "batch_size", "decoding")
    encoder_options = EncoderOptions(
        name=encoder, **{name: rest.pop(name) for name in names}, tiles=_tiles(tiles, overlap)
    )
    run: dict[str, Any] = {"options": EmbedOptions(shard=shard, **rest), "workers": workers}
    named = {"key_column": key_column, "encoding": encoding, "images": images, "min_confidence": min_confidence}
    opened: Any = source
    if labels_to is not None or category or any(one is not None for one in named.values()) or ".json" in source.lower():
        opened = open_source(source, category=category, **named)  # type: ignore[arg-type]
    more: dict[str, Any] = {}
    # read first, so that a column that is missing costs no embeddings
    labels, header = _labels(opened, label_column, labels_to, force=rest["force"]), ("key", "label")
    if engine == "ray":
        count = _shards_for_ray(shards, shard, profile)
        run |= {"address": address, "progress": terminal_progress()}
        report = embed_shards(opened, cache, count, encoder_options, **run)
        more["shards"] = shard_names(count)
    else:
        options.refuse_cluster_options(address=address, shards=shards)
        report = run_embedding(opened, cache, encoder_options, progress=terminal_progress(), **run)
    if concepts := getattr(opened, "concepts", []):
        header, labels_to = ("key", "concept"), labels_to or _beside(cache)
        rows = open_cache(report.cache).keys.rows([key for key, _ in concepts])
        labels = [concept for concept, row in zip(concepts, rows, strict=True) if row >= 0]
    if labels and labels_to:
        write_rows(labels_to, [header, *labels])
        more["labels"] = labels_to
    lines = list(_lines(report, rest["prune"]))
    if header[1] == "concept" and labels_to:
        lines.append(f"{len(labels):,} categories of boxes: {labels_to}")
    if profile and report.profile is not None:
        lines.append(report.profile.line())
        more["profile"] = report.profile.summary()
    fields = {name: value for name, value in vars(report).items() if name not in ("name", "profile", "cosine", "peaks")}
    fields |= {"cache": report.name, "encoder": str(report.encoder), "seconds": round(report.seconds, 3)}
    fields |= {"cosine_to_fp32": report.cosine, "warning": report.range_note or None}
    output.print_result(fields | more, lines)
    output.exit_for_failures(len(report.failures), strict)


def _labels(source: Any, column: str | None, out: str | None, *, force: bool) -> list[tuple[str, str]]:
    """Key and label of each image, where a column of them is named; raises ValueError where the options do not fit."""
    if column is not None and out is not None:
        return label_rows(source, column, out, force=force)
    if column is not None or (out is not None and not getattr(source, "boxes", None)):
        raise ValueError("--labels-to FILE and --label-column NAME go together; give both, or neither")
    return []


def _beside(cache: str) -> str:
    """Where categories are written that nobody has named a file for; "" where one is there, which may be edited."""
    path = Path(path_or_url(cache))
    beside = path.with_name(f"{path.stem}.concepts.csv")
    return "" if is_url(cache) or beside.exists() or not path.is_file() else str(beside)


def _tiles(tiles: str | None, overlap: int | None) -> str:
    """Tiles as an encoder describes them; raises ValueError for an overlap of others than squares."""
    if overlap is not None and not (tiles or "").isdecimal():
        raise ValueError("--overlap is for squares of --tiles SIDE, such as --tiles 512 --overlap 64; leave it out")
    if tiles == BOXES:
        raise ValueError("--tiles boxes is what a manifest with columns x, y, w and h has; leave it out")
    chosen = (tiles or "") + (f" overlap {overlap}" if overlap else "")
    check_tiles(chosen)
    return chosen


def _shards_for_ray(shards: int | None, shard: tuple[int, int], profile: bool) -> int:
    """Number of shards; raises ValueError where the options do not fit the engine ray."""
    if shard != (1, 1) or profile:
        option = "--profile" if shard == (1, 1) else "--shard"
        raise ValueError(f"{option} is for one file that this machine embeds; leave it out with --engine ray")
    if shards is None:
        raise ValueError(
            "--engine ray writes a folder of shards; say how many with --shards N, and name a folder or its URL in "
            "place of a file such as cache.h5"
        )
    return shards


def _lines(report: EmbedReport, pruned: bool) -> Iterator[str]:
    rate = f", {report.computed / report.seconds:,.0f} images/s" if report.computed else ""
    yield f"{report.name}: {report.rows:,} rows of {report.encoder}{'' if report.written else '; nothing had changed'}"
    yield (
        f"computed {report.computed:,}, reused by content {report.reused:,}, unchanged {report.kept:,}, "
        f"failed {len(report.failures):,}; {report.seconds:.1f} s{rate}"
    )
    if report.cosine is not None:
        yield f"cosine to fp32 at least {report.cosine:.4f} on the first images"
    if report.range_note:
        yield f"  warning: {report.range_note}"
    yield from output.failure_lines(report.failures, f": pucache info {report.name} --failures")
    if report.partial:
        counts = Counter(report.partial.values())
        known = ", ".join(f"{counts[kind]:,} {kind}" for kind in (PAGES, BANDS, CLIPPED) if kind in counts)
        listing = f"pucache info {report.name} --failures"
        yield f"{len(report.partial):,} images were read in part{known and f' ({known})'}: {listing}"
    if report.vanished and pruned:
        yield f"{report.vanished:,} rows of images no longer in the source are dropped"
    elif report.vanished:
        yield f"{report.vanished:,} rows belong to images no longer in the source (--prune drops them)"
    if report.ignored:
        kinds = [f"{count:,} {ending}" for ending, count in report.ignored.most_common(_SHOWN_ENDINGS)]
        rest = report.ignored.total() - sum(count for _, count in report.ignored.most_common(_SHOWN_ENDINGS))
        kinds += [f"and {rest:,} with other endings"] if rest else []
        yield f"left out by their ending: {', '.join(kinds)}"
