"""Running a frozen network: uint8 pixels in, float32 embeddings out.

Every batch that reaches the network has one fixed shape, and the last one is padded, so a row does not
depend on the other images in its batch. Several passes may run at once, in threads of the caller. On the
CPU there is one pass per core, each on one thread (with more than eight cores: on a few threads), so that
no thread waits for another at a barrier. On CUDA there are two, so that one batch is
prepared while the other is computed.
"""

from __future__ import annotations

import copy
import logging
import threading

import numpy as np
import torch

from ..allocator import keep_freed_memory
from ..devices import cores, torch_dtype, upload
from ..errors import EncoderError
from .backends import ForwardPass, PixelModel, compile_with_openvino, fold_batch_norm

log = logging.getLogger("pucache")

CPU_BATCH = {"torch": 16, "openvino": 4}  # images; small batches stay in the processor's caches
CUDA_BATCH = 512  # images; larger batches are no faster
MOST_CPU_STREAMS = 8  # with more cores each stream gets several threads
_COMPARED_IMAGES = 8  # images on which a precision or runtime is compared with float32 by torch


class Runtime:
    """Runs a frozen network on fixed-shape batches of uint8 pixels.

    Nothing is built before the first batch, so a run without new images pays nothing. `model` maps normalised (B, 3, H,
    W) to (B, d); `mean` and `std` are per channel, of pixels scaled to [0, 1]. Running out of memory halves the batch,
    on CUDA also at the start.
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
        keep_freed_memory()
        self.device, self.precision, self.name, self.input_size = device, precision, runtime, input_size
        # least cosine between the first embeddings and those of the same network in float32 by torch; None before the
        # first batch, and where the network runs in float32 by torch
        self.cosine: float | None = None
        self.batch_size = batch_size or (CPU_BATCH[runtime] if device.type == "cpu" else CUDA_BATCH)
        self._threads_per_stream = -(-cores() // MOST_CPU_STREAMS)
        self.streams = cores() // self._threads_per_stream if device.type == "cpu" else 2  # passes that run at once
        # OpenVINO computes in threads of its own; one more caller has the next batch ready for them
        self.caller_threads = self.streams + (runtime == "openvino")
        self._reference: PixelModel | None = PixelModel(model.eval().requires_grad_(False), mean, std)
        self._forward: ForwardPass | None = None
        self._lock = threading.RLock()

    def network(self) -> PixelModel:
        """The network with its normalisation, as float32 in torch, before it is built for its device."""
        assert self._reference is not None and self._forward is None
        return self._reference

    def enter_thread(self) -> None:
        """Make the calling thread one of those that run passes beside each other."""
        if self.device.type == "cpu":
            torch.set_num_threads(self._threads_per_stream)

    def start(self) -> None:
        """Build the network for its device; the first pass does it otherwise. Does nothing the second time."""
        with self._lock, torch.inference_mode(False), torch.no_grad():
            if self._forward is None:
                try:
                    self._forward = self._build()
                except torch.OutOfMemoryError as error:
                    raise EncoderError(
                        f"out of memory on {self.device} with the encoder itself; use the device cpu, or a smaller one"
                    ) from error

    @torch.inference_mode()
    def __call__(self, pixels: torch.Tensor) -> np.ndarray:
        """Map uint8 pixels of the CPU, (b, H, W, 3), to float32 (b, d); several threads may call at once."""
        self.start()
        expected = self._float32_by_torch(pixels[:_COMPARED_IMAGES])
        rows, start = [], 0
        while start < len(pixels):
            batch_size = self.batch_size
            batch = pixels[start : start + batch_size]
            try:
                rows.append(self._run_batch(batch, batch_size))
            except torch.OutOfMemoryError:
                self._halve_batch(batch_size)
            else:
                start += len(batch)
        X = np.concatenate(rows) if len(rows) != 1 else rows[0]
        if expected is not None:
            self._compare(expected, X[: len(expected)])
        return X

    def _run_batch(self, pixels: torch.Tensor, batch_size: int) -> np.ndarray:
        assert self._forward is not None
        black = pixels.new_zeros((batch_size - len(pixels), *pixels.shape[1:]))
        batch = torch.cat([pixels, black]) if len(black) else pixels
        return self._forward(upload(batch, self.device))[: len(pixels)].cpu().numpy()

    def _build(self) -> ForwardPass:
        assert self._reference is not None
        reference = self._reference
        if self.device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = False  # fp32 must not mean TF32
            # cuDNN's heuristics: with its tuning the first batch of a depthwise network took 14 s on an H100
            torch.backends.cudnn.benchmark = False
        sample = torch.rand((1, 3, *self.input_size), generator=torch.Generator().manual_seed(0))
        reference.network = fold_batch_norm(reference.network, sample)
        reference.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        is_reference = (self.name, self.precision) == ("torch", "fp32")
        model = (reference if is_reference else copy.deepcopy(reference)).convert(torch_dtype(self.precision))
        if self.device.type == "cuda":
            self._warm_up(model)
        if is_reference:
            self._reference = None  # nothing to compare with
        if self.name == "openvino":
            shape = (self.batch_size, *self.input_size, 3)
            return compile_with_openvino(model, shape, self.precision, streams=self.streams)
        return model

    def _warm_up(self, model: PixelModel) -> None:
        """Run a batch, and halve it until the device has the memory."""
        while True:
            batch_size = self.batch_size
            try:
                model(torch.zeros((batch_size, *self.input_size, 3), dtype=torch.uint8, device=self.device))
            except torch.OutOfMemoryError:
                self._halve_batch(batch_size)
            else:
                return

    def _halve_batch(self, failed_size: int) -> None:
        with self._lock:
            if self.batch_size != failed_size:
                return  # another thread has done it
            if failed_size == 1:
                raise EncoderError(
                    f"out of memory on {self.device} with a single image; use the device cpu, or a smaller encoder"
                )
            self.batch_size = failed_size // 2
            text = "out of memory on %s with batches of %d; going on with batches of %d"
            log.warning(text, self.device, failed_size, self.batch_size)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _float32_by_torch(self, pixels: torch.Tensor) -> np.ndarray | None:
        """Embeddings by the network as it was, which is freed; None for all but the first images.

        No other pass has begun, so cuDNN can be off for this one: to choose its kernels for the few images took 2.6 s
        for the bundled encoder on an H100.
        """
        with self._lock:
            if self._reference is None:
                return None
            reference, self._reference = self._reference, None
            try:
                with torch.backends.cudnn.flags(enabled=False):
                    return reference(pixels.to(self.device)).cpu().numpy()
            except torch.OutOfMemoryError:
                log.warning("too little memory on %s to compare with fp32", self.device)
                return None

    def _compare(self, expected: np.ndarray, X: np.ndarray) -> None:
        self.cosine = float(np.min(_cosines(expected, X)))
        if np.isnan(self.cosine):
            raise EncoderError(
                f"{self.name} in {self.precision} and torch in fp32 give embeddings of this encoder that cannot be "
                "compared: all zeros, NaN or infinity in one of them; use --precision fp32, or check the weights"
            )
        if self.cosine <= 0.95:
            text = "%s in %s is far from fp32 with this encoder: cosine %.3f; use --precision fp32"
            log.warning(text, self.name, self.precision, self.cosine)


def _cosines(expected: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Cosine of each pair of rows: 1 where both are all zeros, NaN where one is, or has NaN or infinity."""
    expected, X = expected.astype(np.float64), X.astype(np.float64)
    with np.errstate(invalid="ignore"):
        norms = np.linalg.norm(expected, axis=1) * np.linalg.norm(X, axis=1)
        cosines = np.einsum("ij,ij->i", expected, X) / norms
    return np.where(expected.any(1) | X.any(1), cosines, 1.0)
