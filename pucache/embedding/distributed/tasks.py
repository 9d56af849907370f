"""Work in Ray's processes: loading and embedding chunks."""

from __future__ import annotations

import pickle
import platform
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...allocator import keep_freed_memory
from ...encoders.encoder import Encoder
from ...errors import EngineError, ImageError, picklable_error
from ...images.device_decoding import device_can_decode
from ...images.loading import Chunk, ChunkLoader
from ...images.source import Source, image_digest
from ...version import __version__
from ..batching import BatchRunner, EmbeddedImages
from ..profiling import Profile

MAX_ATTEMPTS = 4  # for a chunk whose worker dies
_IMAGES_AT_ONCE = 64  # handed to the encoder, or a whole batch
Row = dict[str, list[Any]]  # a Ray Data batch of one row, which holds the number of a chunk or a chunk


@dataclass(frozen=True)
class Shipped:
    """What each of Ray's processes receives once.

    Attributes
    ----------
    source : Source
    encoder : Encoder
    known_digests : ndarray of S32
        Sorted digests of images that need not be embedded.
    rows : int
        Images in a chunk.
    probe : tuple of (str, bytes) or None
        Key of a readable image, and its digest.
    version : str
        Version of the driver's pucache.
    """

    source: Source
    encoder: Encoder
    known_digests: np.ndarray
    rows: int
    probe: tuple[str, bytes] | None
    version: str = __version__


@dataclass(frozen=True)
class Slab:
    """Keys and sizes of consecutive chunks, the first of which begins at position `start`."""

    start: int
    keys: list[str]
    sizes: list[int]


@dataclass
class Done:
    """Result of a chunk."""

    chunk: Chunk  # without pixels or files
    embedded: list[EmbeddedImages]
    seconds: dict[str, float]  # by stage, without the stages of loading
    cosine: float | None  # least cosine to float32, once measured


def problem(reference: ray.ObjectRef) -> str:
    """Reason why this process cannot do the work; empty where it can."""
    shipped: Shipped = ray.get(reference)
    if shipped.version != __version__:  # on a node that joined later
        return f"has pucache {__version__}, the driver {shipped.version}; install the same version on every node"
    if shipped.probe is None:
        return ""
    key, content = shipped.probe
    try:
        reason = "" if image_digest(shipped.source.read(key)) == content else "is another file"
    except ImageError as error:
        reason = str(error)
    if not reason:
        return ""
    return (
        f"does not see the images of {shipped.source.name}: {key!r} {reason}; mount them at the same path on every "
        "node, or use an object store"
    )


@lru_cache(1)
def receive(reference: ray.ObjectRef) -> Shipped:
    """Receive what was shipped, once per process.

    Raises
    ------
    EngineError
        This node cannot do the work.
    """
    keep_freed_memory()
    torch.set_num_threads(1)
    reason = problem(reference)
    if reason:
        raise EngineError(f"node {ray.util.get_node_ip_address()} ({platform.node()}) {reason}")
    return ray.get(reference)


@lru_cache(2)
def _preparing(reference: ray.ObjectRef, slab: ray.ObjectRef) -> tuple[ChunkLoader, int]:
    shipped, part = receive(reference), ray.get(slab)
    leave = device_can_decode if shipped.encoder.decoder else None
    preprocess = shipped.encoder.preprocess
    prepare = ChunkLoader(
        shipped.source,
        preprocess,
        part.keys,
        part.sizes,
        chunk_size=shipped.rows,
        embedded_digests=shipped.known_digests,
        leave_to_device=leave,
    )
    return prepare, part.start


def start_attempts() -> Any:
    """Start an actor that counts the attempts at each chunk, as Ray retries without limit a chunk whose worker dies.

    The actor runs on the node of the driver. Its class is defined in this function, so that Ray pickles it by
    value and its process need not import the modules of workers.
    """

    class Attempts:
        def __init__(self) -> None:
            self._counts: Counter[int] = Counter()
            self._positions: dict[int, int] = {}

        def begin(self, number: int) -> tuple[int, int]:
            """Count an attempt; returns attempts so far, and the position at which the last one died, or -1."""
            self._counts[number] += 1
            return self._counts[number], self._positions.get(number, -1)

        def at(self, number: int, position: int) -> None:
            """Record that an image is being loaded."""
            self._positions[number] = position

    same_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(num_cpus=0, scheduling_strategy=same_node)(Attempts).remote()


class PrepareChunk:
    """Loads the chunk of a number.

    Parameters
    ----------
    shipped : ObjectRef of Shipped
    slabs : list of ObjectRef of Slab
    chunks : int
        Chunks in each slab.
    attempts : actor
        See `start_attempts`.
    """

    def __init__(self, shipped: ray.ObjectRef, slabs: list[ray.ObjectRef], chunks: int, attempts: Any):
        self._shipped, self._slabs, self._chunks, self._attempts = shipped, slabs, chunks, attempts

    def chunk(self, number: int) -> Chunk:
        """Load the chunk of this number.

        Raises
        ------
        EngineError
            Its worker has died too often.
        """
        slab, within = divmod(number, self._chunks)
        prepare, start = _preparing(self._shipped, self._slabs[slab])
        attempt, position = ray.get(self._attempts.begin.remote(number))
        if attempt > MAX_ATTEMPTS:
            where = f"at {prepare.keys[position]!r}" if position >= 0 else "in the encoder"
            raise EngineError(
                f"a worker died {MAX_ATTEMPTS} times {where} (out of memory, or an image that its decoder cannot "
                "take); what was finished is kept: run again, without that image or with more memory for each worker"
            )

        def note(position: int) -> None:
            ray.get(self._attempts.at.remote(number, position))

        chunk = prepare(within, on_image=note if attempt > 1 else None)
        if attempt > 1:
            note(-1)
        return replace(
            chunk,
            first=chunk.first + start,
            to_embed=[position + start for position in chunk.to_embed],
            undecoded={position + start: file for position, file in chunk.undecoded.items()},
        )

    def task(self, row: Row) -> Row:
        """Load the chunk whose number is in a row of Ray Data."""
        return _packed(lambda: self.chunk(int(row["number"][0])))


class EmbedChunk:
    """An actor with an encoder: embeds chunks, and loads those that no task has loaded.

    Parameters
    ----------
    prepare : PrepareChunk
    shipped : ObjectRef of Shipped
    """

    def __init__(self, prepare: PrepareChunk, shipped: ray.ObjectRef):
        self._prepare = prepare
        self._encoder = receive(shipped).encoder
        runtime = self._encoder.runtime
        runtime.use_cores(1)  # Ray shares out the cores
        threads = ThreadPoolExecutor(runtime.caller_threads, initializer=runtime.enter_thread)
        self._profile = Profile()
        self._runner = BatchRunner(self._encoder, threads, _IMAGES_AT_ONCE, self._profile)

    def __call__(self, row: Row) -> Row:
        """Embed a chunk; a row of Ray Data holds the chunk or its number."""
        return _packed(lambda: self._done(row))

    def _done(self, row: Row) -> Done:
        chunk = unpacked(row["payload"][0]) if "payload" in row else self._prepare.chunk(int(row["number"][0]))
        if isinstance(chunk, Exception):
            raise chunk
        before = self._profile.seconds.copy()
        self._runner.add(chunk)
        embedded = list(self._runner.flush())
        seconds = self._profile.seconds - before
        stripped = replace(chunk, pixels=chunk.pixels[:0], undecoded=dict.fromkeys(chunk.undecoded, b""))
        return Done(stripped, embedded, dict(seconds), self._encoder.runtime.cosine)


def _packed(work: Callable[[], Chunk | Done]) -> Row:
    """Result of `work`, or its exception, as a row of Ray Data; Ray would wrap the exception and its text."""
    try:
        result: Chunk | Done | Exception = work()
    except Exception as error:
        result = picklable_error(error)
    return {"payload": [pickle.dumps(result, protocol=5)]}


def unpacked(payload: bytes) -> Any:
    """Undo `_packed`."""
    return pickle.loads(payload)  # noqa: S301  (from our own process, through Ray, which pickles everything)
