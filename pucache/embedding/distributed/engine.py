"""The engine of many machines: Ray Data streams chunks of images to encoder actors.

On the CPU an actor has one core and does everything that happens to a chunk, as a thread of the engine
of one machine does. Beside GPUs tasks on any CPU of the cluster read and decode, and an actor has a GPU.
Only the driver writes: what comes back is assembled as on one machine, so the cache is the same to the
byte, and what Ray does a second time, because a worker was killed, changes nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import ray
import ray.data
import ray.exceptions
import torch
from ray.data import ActorPoolStrategy, DataContext

from ...errors import EngineError, ImageError, PUCacheError, one_line
from ...images.source import image_digest
from ..batching import whole_batches
from ..engine import Job, Results
from ..profiling import Profile
from .cluster import joined, last_line
from .nodes import check_nodes
from .tasks import Done, EmbedChunk, PrepareChunk, Shipped, Slab, start_attempts, unpacked

_CHUNK_ROWS = {"cpu": 256, "cuda": 512}  # images in a call of Ray's: about a second of work
_SLAB = 64  # chunks whose keys lie in one object of Ray's
_PROBES = 16  # images that are tried, to find one by which nodes tell that they see the source


class RayEngine:
    """A Ray cluster; a context manager, within which it does jobs.

    Parameters
    ----------
    address : str, optional
        ``HOST:PORT`` of a running cluster, or ``auto`` for the one that this machine belongs to. By default
        the one that RAY_ADDRESS names; without that Ray is started on this machine, and ended again.
    workers : int, optional
        Encoder actors; by default one per GPU of the cluster, or per CPU where the CPU is used.

    Raises
    ------
    EngineError
        The cluster cannot be reached, or is of another version of Ray or Python.
    ValueError
        Fewer than one worker; an address though this process has joined a cluster by itself.
    """

    def __init__(self, address: str | None = None, *, workers: int | None = None):
        if workers is not None and workers < 1:
            raise ValueError(f"the engine ray needs at least 1 worker, got {workers}")
        self._asked = address
        self._address = address or os.environ.get("RAY_ADDRESS") or None
        self._workers = workers
        self._stack = ExitStack()

    def __enter__(self) -> RayEngine:
        if not ray.is_initialized():
            self._stack.enter_context(joined(self._address))
        elif self._asked is not None:
            raise ValueError(
                f"this process has joined a Ray cluster already, and cannot join {self._asked}; leave out the address, "
                "or call ray.shutdown() first"
            )
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def device(self, asked: str = "auto") -> torch.device:
        """Where encoders will run; ``auto`` is CUDA where the cluster has GPUs now, else the CPU.

        Parameters
        ----------
        asked : {"auto", "cpu", "cuda"}

        Returns
        -------
        torch.device

        Raises
        ------
        ValueError
            Neither auto, cpu nor cuda.
        """
        if asked not in ("auto", "cpu", "cuda"):
            raise ValueError(f"Ray shares out GPUs itself: its device is auto, cpu or cuda, got {asked!r}")
        return torch.device("cuda" if asked == "auto" and _count("GPU") else asked.replace("auto", "cpu"))

    def __call__(self, job: Job, profile: Profile) -> Results:
        """Do a job: results in the order in which they come.

        Raises
        ------
        EngineError
            A node has another pucache or does not see the images; a worker died time and again.
        What else a worker raises, in a source say, is raised as it is.
        """
        kind = job.encoder.runtime.device.type
        actors = self._actors(kind)
        rows = _rows(job, actors)
        chunks = -(-len(job.keys) // rows)
        with profile.stage("starting"), _one_line():
            shipped = ray.put(Shipped(job.source, job.encoder, job.lookup.sorted_digests, rows, _probe(job)))
            check_nodes(shipped, job.encoder.spec)
            prepare = PrepareChunk(shipped, _slabs(job, rows * _SLAB), _SLAB, start_attempts())
        actors = min(actors, chunks)
        profile.begin(threads=actors, workers=0, passes=actors)
        bug = None
        with _one_line():
            for done in _stream(prepare, shipped, chunks, actors, kind):
                if isinstance(done, Exception):
                    bug = done
                    break
                profile.add(done.seconds)
                if done.cosine is not None:
                    job.encoder.runtime.record_cosine(done.cosine)
                yield done.chunk
                yield from done.embedded
        if bug is not None:
            raise bug
        profile.end()

    def _actors(self, kind: str) -> int:
        there = _count({"cpu": "CPU", "cuda": "GPU"}[kind])
        if not (self._workers or there):
            raise EngineError(
                f"the cluster has no {'GPU' if kind == 'cuda' else 'CPU'} now; use another --device, or say with "
                "--workers how many encoders a cluster that grows shall have"
            )
        return self._workers or there


def _count(resource: str) -> int:
    return int(ray.cluster_resources().get(resource, 0))


def _rows(job: Job, actors: int) -> int:
    """Images in a chunk: whole batches, and few where there are few, so that every actor gets some."""
    runtime = job.encoder.runtime
    most = _CHUNK_ROWS[runtime.device.type]
    return whole_batches(runtime.batch_size or most, max(1, min(most, len(job.keys) // (4 * actors))))


def _probe(job: Job) -> tuple[str, bytes] | None:
    for key in job.keys[:_PROBES]:
        try:
            return key, image_digest(job.source.read(key))
        except ImageError:
            continue  # it will be recorded
    return None


def _slabs(job: Job, rows: int) -> list[ray.ObjectRef]:
    """Keys and sizes in pieces, so that a process need not hold those of all images."""
    sizes = job.size_mtime[:, 0].tolist()
    starts = range(0, len(job.keys), rows)
    return [ray.put(Slab(start, job.keys[start : start + rows], sizes[start : start + rows])) for start in starts]


def _stream(
    prepare: PrepareChunk, shipped: ray.ObjectRef, chunks: int, actors: int, kind: str
) -> Iterator[Done | Exception]:
    """Let Ray Data do every chunk, or fail at one.

    It keeps as much under way as the actors, the driver and its memory can take.
    """
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # set anew whenever Ray starts
    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    # not a range, which tasks would read: they would wait for the CPUs that the actors have
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
    # nothing ahead, and not by rows: either holds back what is done until more is
    for table in done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for payload in table["payload"].to_pylist():
            yield unpacked(payload)


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn what Ray raises into the error of ours that is behind it, or into one line."""
    try:
        yield
    except (GeneratorExit, KeyboardInterrupt):
        raise
    except Exception as error:
        if isinstance(error, PUCacheError) and not isinstance(error, ray.exceptions.RayError):
            raise
        why = last_line(error)
        for cause in _causes(error):
            if isinstance(cause, ray.exceptions.RayError):
                continue
            if isinstance(cause, PUCacheError | ValueError):
                raise cause from error
            if str(cause):
                why = f"{type(cause).__name__}: {one_line(cause)}"
        raise EngineError(f"Ray gave up ({why}); what was finished is kept: run again to go on") from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = getattr(error, "cause", None) or error.__cause__ or error.__context__
