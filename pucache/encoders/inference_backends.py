"""Backends of a forward pass: torch, torch.compile, OpenVINO, and streams and memory on CUDA."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ..devices import cores
from ..errors import EncoderError
from .cudnn import TIMED_KERNELS

ForwardPass = Callable[[torch.Tensor], torch.Tensor]
"""Maps a batch of uint8 pixels (B, H, W, 3) to embeddings, float32 (B, d)."""

_LARGEST_BATCH = 512  # on CUDA; larger batches are no faster
_OPENVINO_PRECISIONS = {"fp32": "f32", "bf16": "bf16"}


class PixelModel(torch.nn.Module):
    """A network with its normalisation: uint8 pixels in, float32 embeddings out.

    Parameters
    ----------
    network : torch.nn.Module
        Maps normalised (B, 3, H, W) to (B, d).
    mean, std : tuple of 3 floats
        Per channel, of pixels scaled to [0, 1].
    """

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, network: torch.nn.Module, mean: tuple[float, ...], std: tuple[float, ...]):
        super().__init__()
        self.network, self.dtype = network, torch.float32
        self.register_buffer("mean", torch.tensor(mean).mul(255).view(1, 3, 1, 1))
        self.register_buffer("scale", torch.tensor(std).mul(255).reciprocal().view(1, 3, 1, 1))

    def convert(self, dtype: torch.dtype) -> PixelModel:
        """Convert the network, and what it is given, to another floating-point type, in place."""
        self.network.to(dtype)
        self.dtype = dtype
        return self

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Map uint8 (B, H, W, 3), which is channels-last already, to float32 (B, d)."""
        x = pixels.permute(0, 3, 1, 2).float().sub_(self.mean).mul_(self.scale)
        return self.network(x.to(self.dtype)).float()


def compile_with_torch(model: PixelModel, *, freeze: bool) -> ForwardPass:
    """Compile with torch.compile; `freeze` lays the weights out for the CPU once instead of in every pass."""
    compiled: ForwardPass = torch.compile(model, dynamic=False, options={"freezing": True} if freeze else None)

    def run(pixels: torch.Tensor) -> torch.Tensor:
        try:
            with torch.inference_mode(False), torch.no_grad():  # freezing refuses inference tensors
                # one kind of tensor, as torch compiles anew for the other
                return compiled(pixels.clone() if pixels.is_inference() else pixels)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).split())[:160]
            raise EncoderError(f"torch.compile failed ({reason}); use --runtime torch") from error

    return run


def compile_with_openvino(
    model: PixelModel, shape: tuple[int, ...], precision: str, *, streams: int, threads: int
) -> ForwardPass:
    """Compile for the CPU with OpenVINO, which folds, fuses and lays out the weights itself.

    Parameters
    ----------
    model : PixelModel
    shape : tuple of int
        (B, H, W, 3) of every batch.
    precision : {"fp32", "bf16"}
    streams, threads : int
        Passes that run at once, and threads that all of them share.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it would report to its maker
    import openvino

    model = model.convert(torch.float32)  # OpenVINO lowers the precision itself
    settings: dict[str, Any] = {
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": threads == cores(),  # else every process would pin its threads to the same cores
        "INFERENCE_PRECISION_HINT": _OPENVINO_PRECISIONS[precision],
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about tracing the model
            graph = openvino.convert_model(model, example_input=torch.zeros(shape, dtype=torch.uint8))
        graph.reshape(list(shape))
        compiled = openvino.Core().compile_model(graph, "CPU", settings)
    except Exception as error:  # its converters raise almost anything on an operator they lack
        reason = " ".join(str(error).split())[:160]
        raise EncoderError(f"OpenVINO cannot run this encoder ({reason}); use --runtime torch") from error
    thread_state = threading.local()

    def run(pixels: torch.Tensor) -> torch.Tensor:
        if not hasattr(thread_state, "request"):
            thread_state.request = compiled.create_infer_request()
        request = thread_state.request
        request.set_input_tensor(openvino.Tensor(pixels.contiguous().numpy(), shared_memory=True))
        request.start_async()
        request.wait()
        return torch.from_numpy(request.get_output_tensor(0).data.copy())

    return run


class CudaStreams:
    """Runs passes on CUDA from several threads, so that one thread copies while another computes.

    Each thread has a stream and pinned memory of its own.

    Parameters
    ----------
    device : torch.device
    input_size : tuple of int
        (H, W).
    """

    def __init__(self, device: torch.device, input_size: tuple[int, int]):
        self._device, self._input_size = device, input_size
        self._thread_state = threading.local()

    def run(self, forward: ForwardPass, pixels: torch.Tensor, batch_size: int) -> torch.Tensor:
        """Embed at most `batch_size` images, padded to that; returns float32 (b, d) on the CPU.

        Parameters
        ----------
        forward : callable
        pixels : uint8 tensor, (b, H, W, 3)
            On the CPU or on the device.
        batch_size : int
        """
        count = len(pixels)
        stream, staging = self._stream_and_staging(batch_size)
        if pixels.is_cuda:  # decoded on the device
            batch = pad(pixels, batch_size)
            stream.wait_stream(torch.cuda.current_stream(self._device))
        elif count == batch_size and pixels.is_pinned():
            batch = pixels
        else:
            staging[:count], staging[count:] = pixels, 0
            batch = staging
        with torch.cuda.stream(stream), TIMED_KERNELS:
            embeddings = forward(batch.to(self._device, non_blocking=True))
            on_host = torch.empty(embeddings.shape, dtype=embeddings.dtype, pin_memory=True)
            on_host.copy_(embeddings, non_blocking=True)
            stream.synchronize()
        return on_host[:count]

    def _stream_and_staging(self, batch_size: int) -> tuple[torch.cuda.Stream, torch.Tensor]:
        state = self._thread_state
        if getattr(state, "batch_size", None) != batch_size:
            state.stream = torch.cuda.Stream(self._device)
            state.staging = torch.zeros((batch_size, *self._input_size, 3), dtype=torch.uint8, pin_memory=True)
            state.batch_size = batch_size
        return state.stream, state.staging


def pad(pixels: torch.Tensor, batch_size: int) -> torch.Tensor:
    """Append black images up to a full batch."""
    missing = batch_size - len(pixels)
    return torch.cat([pixels, pixels.new_zeros((missing, *pixels.shape[1:]))]) if missing else pixels


def largest_cuda_batch(forward: ForwardPass, *, device: torch.device, input_size: tuple[int, int], streams: int) -> int:
    """Largest power of two, up to 512, such that `streams` batches fit into the free memory of a CUDA device.

    The memory of one image is measured as the difference between a pass of 16 images and one of 8.
    """
    free_bytes, _ = torch.cuda.mem_get_info(device)
    peak_bytes = {}
    for size in (8, 8, 16):  # the first pass also allocates what libraries keep
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        try:
            forward(torch.zeros((size, *input_size, 3), dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:
            return size // 2
        peak_bytes[size] = torch.cuda.max_memory_allocated(device) - before
    bytes_per_image = max(1, (peak_bytes[16] - peak_bytes[8]) // 8)
    images = int(free_bytes * 0.8 / streams / bytes_per_image)  # a fifth is left for fragments and workspaces
    return 1 << max(0, min(images, _LARGEST_BATCH).bit_length() - 1)
