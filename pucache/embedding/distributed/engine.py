"""The engine of many machines: Ray Data streams chunks of images to encoder actors.

On the CPU an actor has one core; it loads and embeds a chunk, as a thread of the local engine does. With
GPUs an actor has one GPU, and tasks on any CPU of the cluster load images. Only the driver writes. It
assembles results as the local engine does, so the cache is the same to the byte, and a chunk that Ray
repeats because a worker was killed changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import ray
import ray.data
import torch
from ray.data import ActorPoolStrategy, DataContext

from ...distributed.failures import as_one_line
from ...distributed.nodes import check_nodes
from ...distributed.workers import RayWorkers, count, warnings_without
from ...encoders.spec import EncoderSpec
from ...errors import EngineError, ImageError
from ...images.source import image_digest
from ..batching import whole_batches
from ..engine import Job, Results
from ..profiling import Profile
from .tasks import Done, EmbedChunk, PrepareChunk, Shipped, Slab, problem, start_attempts, unpacked

_CHUNK_ROWS = {"cpu": 256, "cuda": 512}  # images per Ray task: about a second of work
_SLAB_CHUNKS = 64  # chunks whose keys are one Ray object
_CHECKED_PACKAGES = ("torch", "torchvision", "pillow", "timm")  # versions that can change an embedding's last bits
_PROBES = 16  # images to try, to find a readable one that every node must be able to read


class RayEngine(RayWorkers):
    """`RayWorkers` that also run the jobs of `embed`: images are embedded on a Ray cluster.

    Parameters
    ----------
    address : str, optional
        As for `pucache.distributed.workers.RayWorkers`, which also names the errors.
    workers : int, optional
        Number of encoder actors; by default one per GPU of the cluster, or per CPU where the CPU is used.
    """

    def device(self, requested: str | torch.device = "auto") -> torch.device:
        """Device on which encoders will run; ``auto`` is CUDA if the cluster has GPUs now, else the CPU.

        Parameters
        ----------
        requested : {"auto", "cpu", "cuda"}

        Returns
        -------
        torch.device

        Raises
        ------
        ValueError
            Neither auto, cpu nor cuda.
        """
        if str(requested) not in ("auto", "cpu", "cuda"):
            raise ValueError(f"Ray shares out GPUs itself: its device is auto, cpu or cuda, got {requested!r}")
        if str(requested) == "auto":
            return torch.device("cuda" if count("GPU") else "cpu")
        return torch.device(requested)

    def __call__(self, job: Job, profile: Profile) -> Results:
        """Run a job; yields results in the order in which they are done.

        Raises
        ------
        EngineError
            A node has another pucache or cannot read the images, or a worker died repeatedly.
        Exception
            What a worker raises, in a source for example.
        """
        kind = job.encoder.runtime.device.type
        actors = self._actors(kind)
        rows = _rows(job, actors)
        chunks = -(-len(job.keys) // rows)
        with profile.stage("starting"), as_one_line():
            shipped = ray.put(Shipped(job.source, job.encoder, job.lookup.sorted_digests, rows, _probe(job)))
            check_nodes(partial(problem, shipped), _packages(job.encoder.spec), results="embeddings")
            prepare = PrepareChunk(shipped, _slabs(job, rows * _SLAB_CHUNKS), _SLAB_CHUNKS, start_attempts())
        actors = min(actors, chunks)
        profile.begin(threads=actors, workers=0, passes=actors)
        failure = None
        with warnings_without("GPU" if kind == "cuda" else "CPU"), as_one_line():
            for done in _stream(prepare, shipped, chunks, actors, kind):
                if isinstance(done, Exception):
                    failure = done
                    break
                profile.add(done.seconds)
                if done.cosine is not None:
                    job.encoder.runtime.record_cosine(done.cosine)
                yield done.chunk
                yield from done.embedded
        if failure is not None:
            raise failure
        profile.end()

    def _actors(self, kind: str) -> int:
        available = count({"cpu": "CPU", "cuda": "GPU"}[kind])
        if not (self._workers or available):
            raise EngineError(
                f"the cluster has no {'GPU' if kind == 'cuda' else 'CPU'} now; use another --device, or say with "
                "--workers how many encoders a cluster that grows shall have"
            )
        return self._workers or available


def _packages(spec: EncoderSpec) -> tuple[str, ...]:
    return ("openvino", *_CHECKED_PACKAGES) if spec.runtime == "openvino" else _CHECKED_PACKAGES


def _rows(job: Job, actors: int) -> int:
    """Images per chunk: whole batches; few where there are few images, so that every actor gets some."""
    runtime = job.encoder.runtime
    most = _CHUNK_ROWS[runtime.device.type]
    return whole_batches(runtime.batch_size or most, max(1, min(most, len(job.keys) // (4 * actors))))


def _probe(job: Job) -> tuple[str, bytes] | None:
    for key in job.keys[:_PROBES]:
        try:
            return key, image_digest(job.source.read(key))
        except ImageError:
            continue  # the failure will be recorded
    return None


def _slabs(job: Job, rows: int) -> list[ray.ObjectRef]:
    """Keys and sizes in pieces, so that no process holds those of all images."""
    sizes = job.size_mtime[:, 0].tolist()
    starts = range(0, len(job.keys), rows)
    return [ray.put(Slab(start, job.keys[start : start + rows], sizes[start : start + rows])) for start in starts]


def _stream(
    prepare: PrepareChunk, shipped: ray.ObjectRef, chunks: int, actors: int, kind: str
) -> Iterator[Done | Exception]:
    """Yield the result of every chunk, or the exception of one.

    Ray Data keeps as many chunks in flight as actors, driver and memory allow.
    """
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # Ray resets it whenever it starts
    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    # not `ray.data.range`: it is read by tasks, which would wait for the CPUs that the actors have
    numbers = ray.data.from_items([{"number": number} for number in range(chunks)], override_num_blocks=chunks)
    resources: dict[str, Any] = {"num_cpus": 1}
    if kind == "cuda":
        numbers = numbers.map_batches(prepare.task, batch_size=1, num_cpus=1)
        resources = {"num_cpus": 0, "num_gpus": 1}
    done = numbers.map_batches(
        EmbedChunk,
        fn_constructor_args=(prepare, shipped),
        batch_size=1,
        compute=ActorPoolStrategy(size=actors),
        **resources,
    )
    # prefetching, or iterating by rows, would hold finished chunks back until more are finished
    for table in done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for payload in table["payload"].to_pylist():
            yield unpacked(payload)
