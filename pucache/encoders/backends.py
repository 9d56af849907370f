"""Backends of a forward pass: torch, torch.compile, OpenVINO, and streams and memory on CUDA."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ..devices import cores
from ..errors import EncoderError

ForwardPass = Callable[[torch.Tensor], torch.Tensor]
"""Maps a batch of uint8 pixels (B, H, W, 3) to embeddings, float32 (B, d)."""

_OPENVINO_PRECISIONS = {"fp32": "f32", "bf16": "bf16"}


class PixelModel(torch.nn.Module):
    """A network with its normalisation, of pixels scaled to [0, 1]: uint8 pixels in, float32 embeddings out."""

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


def compile_with_openvino(model: PixelModel, shape: tuple[int, ...], precision: str, *, streams: int) -> ForwardPass:
    """Compile for the CPU with OpenVINO, which folds, fuses and lays out the weights itself.

    Every batch has this shape, (B, H, W, 3). ``streams`` passes run at once, and share the cores.
    """
    # OpenVINO would report to its maker; its own way to decline is a file in the user's home
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    model = model.convert(torch.float32)  # OpenVINO lowers the precision itself
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    settings: dict[str, Any] = {
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": cores(),
        "ENABLE_CPU_PINNING": cores() == bound,  # else processes beside each other would pin to the same cores
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


class TimedKernels:
    """Lets cuDNN time its kernels once for each shape and keep the fastest: a context for passes of fixed shapes.

    The setting is one for the process. It is restored when the last of the threads within leaves.
    """

    def __init__(self) -> None:
        self._lock, self._within, self._before = threading.Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._within:
                self._before = torch.backends.cudnn.benchmark
                torch.backends.cudnn.benchmark = True
            self._within += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._within -= 1
            if not self._within:
                torch.backends.cudnn.benchmark = self._before


TIMED_KERNELS = TimedKernels()


class CudaStreams:
    """Runs passes on CUDA from several threads, each in a stream of its own: one copies while another computes."""

    def __init__(self, device: torch.device):
        self._device = device
        self._thread_state = threading.local()

    def run(self, forward: ForwardPass, pixels: torch.Tensor) -> torch.Tensor:
        """Embed a batch that lies on the CPU; the result lies there too. Pinned memory is copied without waiting."""
        if not hasattr(self._thread_state, "stream"):
            self._thread_state.stream = torch.cuda.Stream(self._device)
        stream = self._thread_state.stream
        with torch.cuda.stream(stream), TIMED_KERNELS:
            embeddings = forward(pixels.to(self._device, non_blocking=True))
            on_host = torch.empty(embeddings.shape, dtype=embeddings.dtype, pin_memory=True)
            on_host.copy_(embeddings, non_blocking=True)
            stream.synchronize()
        return on_host
