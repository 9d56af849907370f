"""How a forward pass is run: uint8 pixels in, float32 embeddings out.

Every batch that reaches the model has one fixed shape, the last one being padded, so a row does not
depend on how many came with it. Several passes may run at once, in threads of the caller's: on the
CPU one a core, each on one thread (from nine cores on, on a few), so that none waits for another at a
barrier and whoever decodes beside them takes no more than its time; on CUDA two, so that one copies
while the other computes.
"""

from __future__ import annotations

import copy
import functools
import logging
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..devices import PRECISIONS, cores
from ..errors import EncoderError
from ..allocator import keep_freed_memory
from .batchnorm_folding import fold_batch_norm

log = logging.getLogger("pucache")

CPU_BATCH = {"torch": 16, "compile": 16, "openvino": 4}  # small ones stay in the caches
_MOST_STREAMS = 8  # on the CPU; with more cores each stream has several
_LARGEST_BATCH = 512  # of those found on CUDA; beyond it nothing gets faster
_CHECKED = 8  # images that a path other than fp32 is compared on

Pass = Callable[[torch.Tensor], torch.Tensor]


class Runtime:
    """Runs a frozen model on fixed-shape batches of uint8 pixels.

    Nothing is built before the first batch, so a run that finds nothing to do pays nothing.

    Parameters
    ----------
    model : torch.nn.Module
        Maps normalised (B, 3, H, W) to (B, d).
    mean, std : tuple of 3 floats
        Of pixels scaled to [0, 1].
    input_size : tuple of int
        (H, W).
    device : torch.device
    precision : {"fp32", "bf16", "fp16"}
    runtime : {"torch", "compile", "openvino"}
    batch_size : int, optional
        The one batch shape that is run; on CUDA by default the largest power of two up to 512 that
        fits into the memory that is free. Running out of memory later halves it.

    Attributes
    ----------
    streams, hands : int
        Passes that run at once, and threads from which to call so that they do.
    cosine : float or None
        Least cosine between what this path and torch in float32 gave for the first images; None
        before them, and where this path is torch in float32.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        *,
        input_size: tuple[int, int],
        device: torch.device,
        precision: str,
        runtime: str = "torch",
        batch_size: int | None = None,
    ):
        if device.type == "cpu":
            keep_freed_memory()
        self._made_of: tuple[Any, ...] | None = (model, mean, std)
        self.device, self.precision, self.name, self.input_size = device, precision, runtime, input_size
        self.cosine: float | None = None
        self._asked = batch_size
        self.batch_size = batch_size or (CPU_BATCH[runtime] if device.type == "cpu" else 0)  # 0: found at the start
        self.bind(cores())
        self._exact: _FromPixels | None = _FromPixels(model.eval().requires_grad_(False), mean, std)
        self._run: Pass | None = None
        self._lock = threading.RLock()
        self._own = threading.local()

    def bind(self, count: int) -> None:
        """Use no more than so many cores; before the first pass."""
        self._cores = count
        self._threads = -(-count // _MOST_STREAMS)  # of each
        self.streams = count // self._threads if self.device.type == "cpu" else 2
        # OpenVINO computes in threads of its own; one more of the caller's has the next batch ready for them
        self.hands = self.streams + (self.name == "openvino")

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it be sent to another process, for whose machine it is made anew."""
        if self._made_of is None:
            raise TypeError("an encoder that has run cannot be sent to another process; load it anew")
        settings: dict[str, Any] = {"input_size": self.input_size, "device": self.device, "precision": self.precision}
        settings.update(runtime=self.name, batch_size=self._asked)
        return functools.partial(type(self), *self._made_of, **settings), ()

    def enter_thread(self) -> None:
        """Make the calling thread one of those that run passes beside each other."""
        if self.device.type == "cpu":
            torch.set_num_threads(self._threads)

    def start(self) -> None:
        """Build what runs, unless that is done; the first pass would do it otherwise."""
        with self._lock, torch.inference_mode(False), torch.no_grad():
            if self._run is None:
                try:
                    self._run, self._made_of = self._build(), None
                except torch.OutOfMemoryError as error:
                    raise EncoderError(
                        f"out of memory on {self.device} with the encoder itself; use --device cpu, or a smaller one"
                    ) from error

    @torch.inference_mode()
    def __call__(self, pixels: torch.Tensor) -> np.ndarray:
        """Embed images; may be called from several threads at once.

        Parameters
        ----------
        pixels : uint8 tensor, (b, H, W, 3)
            On the CPU, or on the runtime's own device.

        Returns
        -------
        ndarray of float32, (b, d)
        """
        self.start()
        rows, first = [], 0
        while first < len(pixels):
            size = self.batch_size
            batch = pixels[first : first + size]
            try:
                rows.append(self._one(batch, size))
            except torch.OutOfMemoryError:
                self._halve(size)
            else:
                first += len(batch)
        X = np.concatenate(rows) if len(rows) != 1 else rows[0]
        if self._exact is not None:
            self._check(pixels[:_CHECKED], X[:_CHECKED])
        return X

    def _one(self, pixels: torch.Tensor, size: int) -> np.ndarray:
        assert self._run is not None
        count = len(pixels)
        if self.device.type != "cuda":
            if count < size:
                pixels = torch.cat([pixels, pixels.new_zeros((size - count, *pixels.shape[1:]))])
            return self._run(pixels)[:count].numpy()
        stream, staged = self._stream(size)
        if pixels.is_cuda:  # decoded there
            batch = torch.cat([pixels, pixels.new_zeros((size - count, *pixels.shape[1:]))])
            torch.cuda.current_stream(self.device).synchronize()
        else:
            staged[:count], staged[count:] = pixels, 0
            batch = staged
        with torch.cuda.stream(stream):
            found = self._run(batch.to(self.device, non_blocking=True))
            back = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            back.copy_(found, non_blocking=True)
            stream.synchronize()
        return back[:count].numpy()

    def _stream(self, size: int) -> tuple[torch.cuda.Stream, torch.Tensor]:
        """CUDA stream of this thread, and pinned memory to copy from while the other thread computes."""
        if getattr(self._own, "size", None) != size:
            self._own.stream = torch.cuda.Stream(self.device)
            self._own.staged = torch.zeros((size, *self.input_size, 3), dtype=torch.uint8, pin_memory=True)
            self._own.size = size
        return self._own.stream, self._own.staged

    # --- building what runs ----------------------------------------------------------------------

    def _build(self) -> Pass:
        assert self._exact is not None
        exact = self._exact
        if self.device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = False  # fp32 says fp32
        sample = torch.rand((1, 3, *self.input_size), generator=torch.Generator().manual_seed(0))
        exact.model = fold_batch_norm(exact.model, sample)
        exact.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        plain = (self.name, self.precision) == ("torch", "fp32")
        fast = (exact if plain else copy.deepcopy(exact)).with_numbers(PRECISIONS[self.precision])
        if not self.batch_size:
            self.batch_size = self._largest_batch(fast)
        run = self._engine(fast)
        if self.name == "compile":  # now, and not in several threads at once
            run(torch.zeros((self.batch_size, *self.input_size, 3), dtype=torch.uint8, device=self.device))
        if plain:
            self._exact = None  # nothing to compare with
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the streams of other threads do not wait for this one's
        return run

    def _engine(self, model: _FromPixels) -> Pass:
        if self.name == "openvino":
            shape = (self.batch_size, *self.input_size, 3)
            return _openvino(model, shape, self.precision, streams=self.streams, threads=self._cores)
        if self.name == "compile":
            return _compiled(model, freeze=self.device.type == "cpu")
        return model

    def _largest_batch(self, run: Pass) -> int:
        """Largest power of two of which `streams` batches fit into what is free, from the need of two small ones."""
        free, _ = torch.cuda.mem_get_info(self.device)
        needs = {}
        for size in (8, 8, 16):  # the first pass also takes what libraries keep
            before = torch.cuda.memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            try:
                run(torch.zeros((size, *self.input_size, 3), dtype=torch.uint8, device=self.device))
            except torch.OutOfMemoryError:
                return size // 2
            needs[size] = torch.cuda.max_memory_allocated(self.device) - before
        an_image = max(1, (needs[16] - needs[8]) // 8)
        fitting = int(free * 0.8 / self.streams / an_image)  # a fifth is left for fragments and workspaces
        return 1 << max(0, min(fitting, _LARGEST_BATCH).bit_length() - 1)

    def _halve(self, size: int) -> None:
        with self._lock:
            if self.batch_size != size:
                return  # the other thread has done it
            if size == 1:
                raise EncoderError(
                    f"out of memory on {self.device} with a single image; use --device cpu, or a smaller encoder"
                )
            self.batch_size = size // 2
            log.warning("out of memory on %s; going on with batches of %d", self.device, self.batch_size)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    # --- what the path costs in accuracy -----------------------------------------------------------

    def _check(self, pixels: torch.Tensor, X: np.ndarray) -> None:
        with self._lock:
            if self._exact is None:
                return
            exact, self._exact = self._exact, None
            try:
                expected = exact(pixels.to(self.device)).cpu().numpy()
            except torch.OutOfMemoryError:
                log.warning("too little memory on %s to compare with fp32", self.device)
                return
            lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(X, axis=1)
            with np.errstate(invalid="ignore", divide="ignore"):
                self.compared(float(np.min(np.einsum("ij,ij->i", expected, X) / lengths)))

    def compared(self, cosine: float) -> None:
        """Note how near to float32 the first embeddings are, found here or by another process; warn if far."""
        if self.cosine is not None and not cosine < self.cosine:
            return
        self.cosine = cosine
        if not cosine > 0.95:  # also where it is NaN
            log.warning(
                "%s in %s is far from fp32 with this encoder: cosine %.3f; use --precision fp32",
                self.name,
                self.precision,
                cosine,
            )


class _FromPixels(torch.nn.Module):
    """Normalisation, the model in its own precision, and float32 again."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, model: torch.nn.Module, mean: tuple[float, ...], std: tuple[float, ...]):
        super().__init__()
        self.model, self.numbers = model, torch.float32
        self.register_buffer("mean", torch.tensor(mean).mul(255).view(1, 3, 1, 1))
        self.register_buffer("scale", torch.tensor(std).mul(255).reciprocal().view(1, 3, 1, 1))

    def with_numbers(self, numbers: torch.dtype) -> _FromPixels:
        self.model.to(numbers)
        self.numbers = numbers
        return self

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Map uint8 (B, H, W, 3), which is channels-last already, to float32 (B, d)."""
        x = pixels.permute(0, 3, 1, 2).float().sub_(self.mean).mul_(self.scale)
        return self.model(x.to(self.numbers)).float()


def _compiled(model: torch.nn.Module, *, freeze: bool) -> Pass:
    """Freezing lays the weights out for the CPU once, instead of in every pass."""
    compiled: Pass = torch.compile(model, dynamic=False, options={"freezing": True} if freeze else None)

    def run(pixels: torch.Tensor) -> torch.Tensor:
        try:
            with torch.inference_mode(False), torch.no_grad():  # freezing refuses inference tensors
                return compiled(pixels)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).split())[:160]
            raise EncoderError(f"torch.compile failed ({reason}); use --runtime torch") from error

    return run


def _openvino(model: _FromPixels, shape: tuple[int, ...], precision: str, *, streams: int, threads: int) -> Pass:
    """Compile for the CPU with OpenVINO: it does its own folding, fusing and laying out of weights."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # which would report to its maker
    import openvino

    model = model.with_numbers(torch.float32)  # it lowers the precision itself
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on how it traces the model
            graph = openvino.convert_model(model, example_input=torch.zeros(shape, dtype=torch.uint8))
        graph.reshape(list(shape))
        settings: dict[str, Any] = {
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": threads == cores(),  # else every process would pin its threads to the same cores
            "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[precision],
        }
        compiled = openvino.Core().compile_model(graph, "CPU", settings)
    except Exception as error:  # its converters raise almost anything on an operator they lack
        reason = " ".join(str(error).split())[:160]
        raise EncoderError(f"OpenVINO cannot run this encoder ({reason}); use --runtime torch") from error
    own = threading.local()

    def run(pixels: torch.Tensor) -> torch.Tensor:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        own.request.set_input_tensor(openvino.Tensor(pixels.contiguous().numpy(), shared_memory=True))
        own.request.start_async()
        own.request.wait()
        return torch.from_numpy(own.request.get_output_tensor(0).data.copy())

    return run
