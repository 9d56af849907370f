"""`pucache embed`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from pucache.allocator import keep_freed_memory
from pucache.cache.destination import encoder_of_existing
from pucache.cache.embedding_cache import open_cache
from pucache.embedding.embed import EmbedOptions, EmbedReport, run_embedding
from pucache.encoders.deferred import EncoderOptions
from pucache.errors import counted
from pucache.images.decoding import BANDS, PAGES
from pucache.images.regions import BOXES, check_tiles
from pucache.images.source import open_source
from pucache.images.tiling import CLIPPED
from pucache.scaling.embed_shards import embed_shards, shard_names
from pucache.storage.table_writer import write_rows
from pucache.storage.urls import is_url, path_or_url

from . import options, output
from .progress import terminal_progress

_SHOWN_ENDINGS = 4
_HERE = "here"  # value of --ray without an address


@options.command()
@click.argument("source")
@click.argument("cache")
@options.option(
    "--encoder",
    default="bundled",
    metavar="NAME|FILE|FOLDER",
    help="Encoder: bundled, timm:NAME, open_clip:MODEL:TAG, hf-hub:ORG/NAME, an ONNX file, a model of train-pu "
    "(its encoder), or a folder of pretrain or as the hub has them.",
)
@options.weights
@options.option(
    "--tiles",
    metavar="RxC|SIDE[:OVERLAP]",
    help="Embed parts of each image in place of the whole: a grid such as 3x3, or squares of so many pixels that "
    "overlap by some, such as 512:64.",
)
@options.option("--prune", is_flag=True, help="Drop rows of images that are no longer in SOURCE.")
@options.as_json
@options.encoder_choices
@options.computation
@options.reading_of_images
@options.decoding
@options.option(
    "--reuse",
    section=options.FILES,
    multiple=True,
    metavar="CACHE",
    help="Copy the embeddings of images with equal bytes from this cache; repeatable.",
)
@options.option(
    "--verify",
    section=options.FILES,
    is_flag=True,
    help="Check every byte of an existing CACHE and embed damaged rows again.",
)
@options.force
@options.strict
@options.device
@options.batch_size
@options.workers
@options.shard
@options.option(
    "--ray",
    section=options.MACHINE,
    is_flag=False,
    flag_value=_HERE,
    metavar="[HOST:PORT|auto]",
    help="Embed on a Ray cluster (pip install -e '.[ray]'): that at the address, or at RAY_ADDRESS; if unset, Ray "
    "is started on this machine. CACHE is then a folder of shards.",
)
@options.option(
    "--shards",
    section=options.MACHINE,
    type=click.IntRange(min=1),
    metavar="N",
    help="With --ray: number of files 00001.h5, 00002.h5, ... that the folder CACHE shall hold. Each is what --shard "
    "I/N embeds.",
)
def embed(
    source: str,
    cache: str,
    encoder: str,
    shard: tuple[int, int],
    shards: int | None,
    ray: str | None,
    workers: int | None,
    strict: bool,
    tiles: str | None,
    **rest: Any,
) -> None:
    """Embed images into a cache, once.

    SOURCE is a folder, a manifest (.txt, .csv, .xlsx, .json), the JSON of COCO or MegaDetector, .tar, .zip or
    .parquet files ('shards/*.tar'), or an fsspec URL of any of these. CACHE is a path or an fsspec URL. The key of an
    image is its path within SOURCE. Run the command again to continue after an interruption, or to add new and
    changed images; unchanged images are not computed again. `pucache info` lists the images that could not be read.

    \b
    what to try first                          d  multiply-adds  weights
    bundled                                 1280  0.4 billion    Apache-2.0
    timm:vit_small_patch16_dinov3.lvd1689m   384  6.2 billion    DINOv3 licence
    timm:vit_small_patch14_dinov2.lvd142m    384  6.1 billion    Apache-2.0
    open_clip:ViT-B-16-SigLIP2:webli         768  18 billion     see its card

    \b
    pucache embed photos/ cache.h5
    pucache embed photos/ cache.h5 --encoder model.onnx --image-size 224
    pucache embed photos/ parts.h5 --tiles 3x3          # or --tiles 512:64
    pucache embed boxes.json parts.h5 --images photos/ --category animal
    pucache embed photos/ shards/1.h5 --shard 1/4       # then train on shards/
    pucache embed s3://b/photos s3://b/shards --ray head:6379 --shards 64
    """
    keep_freed_memory()  # before the first thread, or large array
    names = ("weights", "device", "precision", "runtime", "batch_size", "image_size", "pooling")
    preprocess = {name: value for name in options.PREPROCESSING if (value := rest.pop(name)) is not None}
    encoder_options = EncoderOptions(
        name=encoder,
        **{name: rest.pop(name) for name in names},
        decoding=options.decoding_of(rest),
        tiles=_tiles(tiles),
        preprocess=preprocess or None,
    )
    given = options.reading(rest)
    run: dict[str, Any] = {"options": EmbedOptions(shard=shard, **rest), "workers": workers}
    opened = source if given is None and ".json" not in source.lower() else open_source(source, **(given or {}))
    more: dict[str, Any] = {}
    if ray is not None:
        count = _shards_for_ray(shards, shard)
        run |= {"address": None if ray == _HERE else ray, "progress": terminal_progress()}
        report = embed_shards(opened, cache, count, encoder_options, **run)
        more["shards"] = shard_names(count)
    elif shards is not None:
        raise ValueError("--shards is for a Ray cluster; add --ray, or leave it out")
    else:
        from pucache.scoring.score import encoder_of, encoder_of_model

        model = encoder_of_model(encoder)
        chosen = encoder_of(model, encoder_options, encoder_of_existing(cache)) if model else encoder_options
        report = run_embedding(opened, cache, chosen, progress=terminal_progress(), **run)
    lines = list(_lines(report, rest["prune"]))
    if concepts := _write_concepts(opened, report.cache, cache):
        more["labels"] = concepts
        lines.append(f"categories of the boxes: {concepts}; for train-pu --labels")
    if report.profile is not None:
        more["profile"] = report.profile.summary()
    fields = {name: value for name, value in vars(report).items() if name not in ("name", "profile", "cosine", "peaks")}
    fields |= {"cache": report.name, "encoder": str(report.encoder), "seconds": round(report.seconds, 3)}
    fields |= {"cosine_to_fp32": report.cosine, "warning": report.range_note or None}
    output.print_result(fields | more, lines)
    output.exit_for_failures(len(report.failures), strict)


def _write_concepts(source: Any, written: str | Path, cache: str) -> str:
    """Write the categories of boxes as labels beside a cache, unless a file is there; returns its name, or ""."""
    concepts, path = getattr(source, "concepts", []), Path(path_or_url(cache))
    beside = path.with_name(f"{path.stem}.concepts.csv")
    if not concepts or is_url(cache) or beside.exists():
        return ""
    rows = open_cache(written).keys.rows([key for key, _ in concepts])
    kept = [concept for concept, row in zip(concepts, rows, strict=True) if row >= 0]
    write_rows(beside, [("key", "concept"), *kept])
    return str(beside)


def _tiles(tiles: str | None) -> str:
    """Tiles as an encoder describes them, of RxC or SIDE[:OVERLAP]."""
    if tiles == BOXES:
        raise ValueError("--tiles boxes is what a manifest with columns x, y, w and h has; leave it out")
    side, _, overlap = (tiles or "").partition(":")
    chosen = f"{side} overlap {overlap}" if side.isdecimal() and overlap not in ("", "0") else tiles or ""
    chosen = side if overlap == "0" else chosen
    check_tiles(chosen)
    return chosen


def _shards_for_ray(shards: int | None, shard: tuple[int, int]) -> int:
    """Number of shards; raises ValueError where the options do not fit a cluster."""
    if shard != (1, 1):
        raise ValueError("--shard is for one file that this machine embeds; leave it out with --ray")
    if shards is None:
        raise ValueError(
            "--ray writes a folder of shards; say how many with --shards N, and name a folder or its URL in "
            "place of a file such as cache.h5"
        )
    return shards


def _lines(report: EmbedReport, pruned: bool) -> Iterator[str]:
    rate = f", {report.computed / report.seconds:,.0f} images/s" if report.computed else ""
    unchanged = "" if report.written else "; nothing had changed"
    yield f"{report.name}: {counted(report.rows, 'row')} of {report.encoder}{unchanged}"
    yield (
        f"computed {report.computed:,}, reused by content {report.reused:,}, unchanged {report.kept:,}, "
        f"failed {len(report.failures):,}; {report.seconds:.1f} s{rate}"
    )
    if report.licence:
        yield f"licence of the encoder's weights: {report.licence}"
    if report.cosine is not None:
        yield f"cosine to fp32 at least {report.cosine:.4f} on the first images"
    if report.range_note:
        yield f"  warning: {report.range_note}"
    yield from output.failure_lines(report.failures, f": pucache info {report.name} --failures")
    if report.partial:
        counts = Counter(report.partial.values())
        known = ", ".join(f"{counts[kind]:,} {kind}" for kind in (PAGES, BANDS, CLIPPED) if kind in counts)
        listing = f"pucache info {report.name} --failures"
        yield f"images read in part: {len(report.partial):,}{known and f' ({known})'}: {listing}"
    if report.vanished and pruned:
        yield f"rows of images no longer in the source: {report.vanished:,} dropped"
    elif report.vanished:
        yield f"rows of images no longer in the source: {report.vanished:,} (--prune drops them)"
    if report.ignored:
        kinds = [f"{count:,} {ending}" for ending, count in report.ignored.most_common(_SHOWN_ENDINGS)]
        rest = report.ignored.total() - sum(count for _, count in report.ignored.most_common(_SHOWN_ENDINGS))
        kinds += [f"and {rest:,} with other endings"] if rest else []
        yield f"left out by their ending: {', '.join(kinds)}"
