"""Backends of a forward pass: torch, with batch norms folded into the convolutions before them, and OpenVINO."""

from __future__ import annotations

import copy
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.nn.utils.parametrize import is_parametrized

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


@torch.no_grad()
def fold_batch_norm(model: nn.Module, pixels: torch.Tensor) -> nn.Module:
    """Return a copy of a frozen float32 model in which each batch norm is folded into the convolution before it.

    One forward pass of ``pixels``, (B, 3, H, W), shows which norm follows which convolution, so any architecture will
    do. The folded model is compared with the original on the same input. Where they disagree, because the output of a
    convolution is also used elsewhere, the original is returned.
    """
    folded = copy.deepcopy(model)
    convolution_before = _find_convolutions_before_norms(folded, pixels)
    if not convolution_before:
        return model
    for parent in list(folded.modules()):
        for name, child in list(parent.named_children()):
            if child in convolution_before and isinstance(child, nn.BatchNorm2d):
                convolution = convolution_before[child]
                fused = fuse_conv_bn_eval(convolution, child)
                convolution.weight, convolution.bias = fused.weight, fused.bias
                setattr(parent, name, _drop_and_activation(child))
    expected, actual = model(pixels), folded(pixels)
    agrees = torch.linalg.vector_norm(actual - expected) <= 1e-3 * torch.linalg.vector_norm(expected)
    return folded if agrees else model


def _find_convolutions_before_norms(model: nn.Module, pixels: torch.Tensor) -> dict[nn.Module, nn.Conv2d]:
    """Run the model; map each batch norm whose input is the output of a convolution to that convolution."""
    source_of: dict[int, nn.Conv2d] = {}  # by id of the output
    convolution_before: dict[nn.Module, nn.Conv2d] = {}
    outputs = []  # kept alive, so that no two have the same id

    def watch(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            source_of[id(output)] = module
            outputs.append(output)
        elif id(inputs[0]) in source_of:
            convolution_before[module] = source_of[id(inputs[0])]

    norms = [one for one in model.modules() if isinstance(one, nn.BatchNorm2d) and one.running_mean is not None]
    if not norms:
        return {}
    watched = [*norms, *(one for one in model.modules() if isinstance(one, nn.Conv2d) and not is_parametrized(one))]
    hooks = [module.register_forward_hook(watch) for module in watched]
    try:
        model(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    return convolution_before


def _drop_and_activation(norm: nn.BatchNorm2d) -> nn.Module:
    """What a norm of timm does beside normalising."""
    layers = (getattr(norm, name, None) for name in ("drop", "act"))
    modules = [layer for layer in layers if isinstance(layer, nn.Module)]
    return nn.Sequential(*modules) if modules else nn.Identity()
