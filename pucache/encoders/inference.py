"""Running a frozen network: uint8 pixels in, float32 embeddings out.

Every batch that reaches the network has one fixed shape, and the last one is padded, so a row does not
depend on the other images in its batch. Several passes may run at once, in threads of the caller. On the
CPU there is one pass per core, each on one thread (with more than eight cores: on a few threads), so that
no thread waits for another at a barrier. On CUDA there are two, so that one batch is
prepared while the other is computed. Torch runs a network with batch norms folded into the convolutions before
them; OpenVINO compiles it.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.nn.utils.parametrize import is_parametrized

from ..allocator import keep_freed_memory
from ..devices import cores, torch_dtype, upload
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
