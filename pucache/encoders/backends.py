"""Backends of a forward pass: torch and OpenVINO."""

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
