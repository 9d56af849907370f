"""A folder of shards, each embedded by one Ray task with the local code that ``--shard I/N`` runs.

The driver lists the source once, divides it among the shards, and chooses precision and runtime, so that shards of
unlike machines agree. A task gets the images of its shard, loads the encoder on its node and writes one file. A shard
whose worker is killed is begun again, and goes on from the finished parts where these lie in a folder that all nodes
see.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..cache.destination import encoder_of_existing, open_destination
from ..cache.writer import creation_time
from ..devices import choose_precision, choose_runtime, device_name, follow
from ..embedding.embed import EmbedOptions, EmbedReport, run_embedding, with_boxes
from ..encoders.deferred import EncoderOptions, find_weights
from ..encoders.spec import BUNDLED, EncoderSpec
from ..errors import EngineError, ImageError, PUCacheError
from ..images.decoding import Decoding
from ..images.listing import Listing, check_shard_images, take_shards
from ..images.regions import image_of
from ..images.source import Source, image_digest, open_source
from ..images.tiling import list_images
from ..progress import Progress, Silent
from ..storage.atomic import folder_for_output, temporary_file
from ..storage.urls import is_url, path_or_url, without_secrets
from ..version import __version__

_PACKAGES = ("torch", "torchvision", "pillow", "timm")  # versions that can change an embedding's last bits
_PROBED_IMAGES = 16  # to find a readable one that every node must be able to read
_SUMS = ("rows", "computed", "reused", "kept", "vanished", "damaged")


@dataclass(frozen=True)
class ShardsJob:
    """What all tasks share; `_embed` has the work of one."""

    source: Source
    paths: list[str]
    encoder: EncoderOptions
    model: EncoderSpec | None  # encoder of a model of train-pu, where `encoder` names its file
    options: EmbedOptions
    inputs: list[str]  # weights and a file in the folder of the output, which a node must see
    image: tuple[str, bytes] | None  # key of a readable image, and its digest
    created: str | None  # SOURCE_DATE_EPOCH of the driver
    version: str = __version__  # of the driver's pucache

    def problem(self) -> str:
        """Reason why this node cannot do the work; "" where it can."""
        if self.version != __version__:  # on a node that joined later
            return f"has pucache {__version__}, the driver {self.version}; install the same version on every node"
        unseen = [path for path in self.inputs if not os.path.exists(path)]
        if unseen:
            return f"does not see {unseen[0]}; mount its folder at the same path on every node"
        if self.image is None:
            return ""
        key, digest = self.image
        try:
            reason = "" if image_digest(self.source.read(key)) == digest else "is another file"
        except ImageError as error:
            reason = str(error)
        return reason and (
            f"does not see the images of {self.source.name}: {key!r} {reason}; mount them at the same path on every "
            "node, or use an object store"
        )


class ShardImages(NamedTuple):
    """The images of shard `number`."""

    number: int
    listing: Listing

    def __str__(self) -> str:
        return f"its {len(self.listing.keys):,} images"


def _embed(job: ShardsJob, images: ShardImages) -> EmbedReport:
    """Embed the images of one shard; the work of a task."""
    from .tasks import is_retry

    if problem := job.problem():
        raise EngineError(f"node {platform.node()} {problem}")
    os.environ.pop("SOURCE_DATE_EPOCH", None)
    if job.created is not None:
        os.environ["SOURCE_DATE_EPOCH"] = job.created
    path, options = job.paths[images.number - 1], replace(job.options, shard=(images.number, len(job.paths)))
    workers = 1 if is_retry() else None  # one process reads the images, so that one that kills it is named
    encoder: Any = job.encoder
    if job.model:
        from ..scoring.score import encoder_of

        encoder = encoder_of(job.model, job.encoder, encoder_of_existing(path))
    report = run_embedding(job.source, path, encoder, options=options, listing=images.listing, workers=workers)
    return replace(report, profile=None)  # which holds a lock


def embed_shards(
    source: str | Path | Source,
    folder: str | Path,
    shards: int,
    encoder: str | Path | EncoderOptions = BUNDLED,
    *,
    options: EmbedOptions | None = None,
    workers: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> EmbedReport:
    """Embed every image of a source into a folder of shards, one Ray task for each; run it again to continue.

    The files ``00001.h5``, ``00002.h5``, ... are those that `pucache.embed` writes with ``shard=(I, shards)``.

    Parameters
    ----------
    source : str, Path or Source
        Folder, manifest or tar files that every node sees, or a URL of these; see `pucache.open_source`.
    folder : path or URL
        Folder that every node sees, or one in a store.
    shards : int
        Number of files.
    encoder : str, Path or EncoderOptions
        See `pucache.load_encoder`. Of the device, one of ``auto``, ``cpu`` and ``cuda``, ``auto`` is CUDA where the
        cluster has GPUs; each task then has one. Precision and runtime that are ``auto`` are those of the shards that
        exist, else chosen for the device on this machine, once for all shards.
    options : EmbedOptions, optional
        See `pucache.embedding.embed.EmbedOptions`; of all images, so without a shard.
    workers : int, optional
        Tasks that run at once; by default all that have a GPU or, without GPUs, a core.
    address : str, optional
        Of a running cluster, see `pucache.scaling.tasks.cluster_tasks`; by default this machine alone.
    progress : Progress, optional
        Counts the finished shards.

    Returns
    -------
    EmbedReport
        Figures of all shards.

    Raises
    ------
    SourceError
        The source is empty, or has no image for one of the shards.
    EngineError
        The cluster cannot be reached, or a node cannot do the work.
    PUCacheError, ValueError
        As `pucache.embed`; what a shard ends with names the shard, and does not stop the others.
    """
    from ..scoring.score import encoder_of_model
    from .tasks import cluster_tasks, count  # need the extra ray

    started, options = time.monotonic(), options or EmbedOptions()
    encoder = encoder if isinstance(encoder, EncoderOptions) else EncoderOptions(name=encoder)
    options = replace(options, reuse=[absolute(path) for path in options.reuse])
    options.check()
    creation_time()  # raises before any work
    if options.shard != (1, 1):
        raise ValueError(f"every shard is embedded, got shard {options.shard_name}; leave it out")
    device = device_name(encoder.device)
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"Ray shares out GPUs itself: its device is auto, cpu or cuda, got {device!r}")
    paths = _shard_paths(folder, shards)
    open_destination(paths[0]).check()
    source = open_source(source)
    if model := encoder_of_model(encoder.name):
        weights = encoder.weights or find_weights(model)
        encoder = replace(encoder, weights=weights, tiles=model.tiles, decoding=Decoding.of(model.decoder))
    encoder = with_boxes(encoder, source)
    listing = list_images(source, encoder.tiles, encoder.decoding or Decoding())
    divided = [ShardImages(number, part) for number, part in enumerate(take_shards(listing, shards), 1)]
    for images in divided:
        check_shard_images(images.listing, (images.number, shards), listing, source.name)
    with cluster_tasks(address, workers) as tasks, probe_file(folder) as probe, progress or Silent() as shown:
        if device == "auto":
            device = "cuda" if count("GPU") else "cpu"
        settings = _resolved(encoder, model, device, paths)
        named = map(str, (settings.name, settings.weights, probe))
        inputs = [path for path in named if os.path.isabs(path) and os.path.exists(path)]
        image, created = _readable_image(source, listing, encoder.tiles), os.environ.get("SOURCE_DATE_EPOCH")
        job = ShardsJob(source, paths, settings, model, options, inputs, image, created)
        tasks.check(job.problem, [*_PACKAGES, *["openvino"] * (settings.runtime == "openvino")])
        shown.start(shards, "embedding shards")
        outcomes = tasks.outcomes(_embed, job, divided, gpu=device == "cuda")
        reports = _succeeded(outcomes, shards, shown)
    return replace(
        reports[0],
        cache=os.fspath(folder),
        name=without_secrets(os.fspath(folder)),
        **{name: sum(getattr(report, name) for report in reports) for name in _SUMS},
        failures={key: reason for report in reports for key, reason in report.failures.items()},
        partial={key: reason for report in reports for key, reason in report.partial.items()},
        peaks=sum((report.peaks for report in reports), Counter()),
        written=any(report.written for report in reports),
        seconds=time.monotonic() - started,
        cosine=min((report.cosine for report in reports if report.cosine is not None), default=None),
        licence=next((report.licence for report in reports if report.licence), ""),
    )


def _shard_paths(folder: str | Path, shards: int) -> list[str]:
    """The files to write, as every node finds them."""
    if shards < 1:
        raise ValueError(f"a folder has at least 1 shard, got {shards}")
    folder = absolute(folder).rstrip("/")
    shown = without_secrets(folder)
    if folder.endswith(".h5"):
        raise ValueError(
            f"Ray writes a folder of shards, got the file {shown}; write {shown.removesuffix('.h5')} --shards {shards}"
        )
    return [f"{folder}/{name}" for name in shard_names(shards)]


def shard_names(shards: int) -> list[str]:
    """Names of the files in a folder of so many shards."""
    return [f"{number:05}.h5" for number in range(1, shards + 1)]


def _resolved(encoder: EncoderOptions, model: EncoderSpec | None, device: str, paths: list[str]) -> EncoderOptions:
    """Options with one meaning on every node: absolute paths; for ``auto`` that of an existing shard or the best."""
    import torch

    from ..encoders.onnx_file import file_and_output, is_onnx

    chosen, name = torch.device(device), os.fspath(encoder.name)
    file = file_and_output(name)[0] if is_onnx(name) else name
    if name != BUNDLED and os.path.exists(file):
        encoder = replace(encoder, name=absolute(file) + name[len(file) :])
    if isinstance(encoder.weights, str | os.PathLike):
        encoder = replace(encoder, weights=absolute(encoder.weights))
    encoder = replace(encoder, device=device)
    if is_onnx(model.name if model else name):  # which has its own precision and runtime
        return encoder
    existing = next(filter(None, map(encoder_of_existing, paths)), model)
    precision = follow(existing.precision if existing else None, choose_precision, encoder.precision, chosen)
    runtime = follow(existing.runtime if existing else None, choose_runtime, encoder.runtime, chosen)
    return replace(encoder, precision=precision, runtime=runtime)


def _readable_image(source: Source, listing: Listing, tiles: str) -> tuple[str, bytes] | None:
    """Key and digest of the first image that can be read."""
    for key in listing.keys[:_PROBED_IMAGES]:
        key = image_of(key) if tiles else key
        with contextlib.suppress(ImageError):  # the failure will be recorded
            return key, image_digest(source.read(key))
    return None


def _succeeded(
    outcomes: Iterable[tuple[int, EmbedReport, Exception | None]], shards: int, progress: Progress
) -> list[EmbedReport]:
    """The reports of all shards; once all have ended, raises the error of the first that failed, which names it."""
    reports: dict[int, EmbedReport] = {}
    errors: dict[int, Exception] = {}
    for number, report, error in outcomes:
        if error is None:
            reports[number] = report
        else:
            errors[number + 1] = error
        progress.advance(1)
    if errors:
        first, *others = sorted(errors)
        if not isinstance(errors[first], PUCacheError):
            raise errors[first]
        also = f"; shards {', '.join(map(str, others))} failed too" if others else ""
        raise type(errors[first])(f"shard {first} of {shards}: {errors[first]}{also}")
    return [reports[number] for number in sorted(reports)]


# --- paths as every node finds them -------------------------------------------------------------


def absolute(path: str | Path) -> str:
    """The path as every node finds it: tasks run in a folder of Ray."""
    location = path_or_url(path)
    return location if is_url(location) else os.path.abspath(location)


@contextmanager
def probe_file(folder: str | Path) -> Iterator[str]:
    """Path of a file by which nodes know that they see the folder; "" where it is a URL."""
    location = absolute(folder)
    if is_url(location):
        yield ""
        return
    with folder_for_output(Path(location)), temporary_file(Path(location, "nodes")) as file:
        yield str(file)
