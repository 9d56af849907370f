"""The verb `export` of a model: encoder, head, posterior and threshold as one ONNX graph."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import math
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..cache.embedding_cache import files_read
from ..encoders.deferred import EncoderOptions
from ..encoders.spec import EncoderSpec
from ..errors import EncoderError, MissingExtraError, one_line
from ..images.preprocessing import Preprocess
from ..storage.atomic import replacing
from ..storage.file_kinds import ONNX
from ..storage.outputs import check_output
from ..training.sklearn_classifier import PULinearClassifier
from .score import encoder_of

TOLERANCE = 1e-3  # of a margin on the images of the check, relative to the largest margin or 1
RESIZED_TOLERANCE = 0.02  # the same where the graph resizes too, to within a few grey levels at a few pixels
_CHECKED = 32  # images
IMAGES = ("uint8", "float32")
# As `pucache.images.preprocessing`: the filter of Pillow, and a crop whose offset is rounded to the even number
_RESIZING = """
resizing (uint8[n, h, w, 3] images) => (uint8[n, {height}, {width}, 3] {pixels})
<int64[2] side = {{{height}, {width}}}, int64[2] target = {{{target}}}, int64[2] axes = {{2, 3}}, float two = {{2}}>
{{
    original = Transpose <perm = [0, 3, 1, 2]> (images)
    {resized}
    others = Shape <start = 0, end = 2> (original)
    sizes = Concat <axis = 0> (others, resized)
    large = Resize <mode = "{mode}", antialias = 1, cubic_coeff_a = -0.5, exclude_outside = 1> (original, , , sizes)
    spare = Sub (resized, side)
    spare_float = Cast <to = 1> (spare)
    half = Div (spare_float, two)
    rounded = Round (half)
    start = Cast <to = 7> (rounded)
    end = Add (start, side)
    cropped = Slice (large, start, end, axes)
    {pixels} = Transpose <perm = [0, 2, 3, 1]> (cropped)
}}"""
_BY_SHORTER_SIDE = """size = Shape <start = 2, end = 4> (original)
    shorter = ReduceMin <keepdims = 1> (size)
    scaled = Mul (size, target)
    resized = Div (scaled, shorter)"""
_MODES = {"bicubic": "cubic", "bilinear": "linear"}


@dataclass(frozen=True)
class OnnxReport:
    """Result of an export.

    Attributes
    ----------
    out : str
    encoder : EncoderSpec or None
    inputs, outputs : dict of str to str
        Name to type and shape.
    difference : float
        Largest difference of a margin from pucache's in fp32, on the images of the check.
    """

    out: str
    encoder: EncoderSpec | None
    inputs: dict[str, str]
    outputs: dict[str, str]
    difference: float


class _Scorer(torch.nn.Module):
    """Images, or embeddings where there is no encoder, to embedding, margin, posterior and label."""

    def __init__(self, model: PULinearClassifier, encoder: torch.nn.Module | None, images: str):
        super().__init__()
        self.encoder, self.scale = encoder, 255.0 if images == "float32" else 1.0
        self.coef = torch.nn.Parameter(torch.from_numpy(model.coef_[0].astype(np.float32)), requires_grad=False)
        self.intercept, self.threshold = float(model.intercept_[0]), float(np.float32(model.threshold_))
        tilt, share = model.tilt_, model.share_
        self.shift, self.slope = float(tilt.alpha + math.log(share / (1 - share))), float(tilt.slope)
        self.has_posterior = model.figures_.has_probabilities

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.encoder is None:
            embedding = inputs
        else:
            embedding = self.encoder(inputs * self.scale if self.scale != 1 else inputs)
        margin = embedding @ self.coef + self.intercept
        posterior = [torch.sigmoid(self.shift + self.slope * margin)] if self.has_posterior else []
        return embedding, margin, *posterior, (margin > self.threshold).to(torch.int64)


def export_onnx(
    model: str | Path | PULinearClassifier,
    out: str | Path,
    *,
    weights: str | Path | None = None,
    images: str = "uint8",
) -> OnnxReport:
    """Write a model as one ONNX file, which needs no pucache.

    Input: ``images``, RGB (n, height, width, 3): uint8 from 0 to 255, of any size, as the graph resizes and crops them;
    or float32 from 0 to 1, of the encoder's input size; or ``embedding``, float32 (n, d), where the model was trained
    on embeddings that pucache does not make. Where ONNX cannot resize as the encoder does, uint8 images are of its
    input size too. The metadata entry ``preprocessing`` says what is left to do. Outputs:
    ``embedding`` float32 (n, d), ``margin`` float32 (n,), ``posterior`` float32 (n,) (with 30 labelled positives or
    more), and ``label`` int64 (n,), 1 where the margin is above the threshold. Neighbours are not looked at. The file
    is compared with pucache in float32 on 32 images before it appears under its name, and once more as it resizes.

    Parameters
    ----------
    model : path or PULinearClassifier
    out : path or str
        The file to write, which ends in ``.onnx``.
    weights : path, optional
        Of the encoder, as for `pucache.load_encoder`.
    images : {"uint8", "float32"}
        Type of the images.

    Returns
    -------
    OnnxReport

    Raises
    ------
    ValueError
        The name does not end in ``.onnx``, or the type is unknown.
    MissingExtraError
        The packages of the extra ``onnx`` are not installed.
    EncoderError
        ONNX cannot express the encoder, or gives other margins; nothing is written.
    ModelError, OutputError
        The model cannot be read, or the file not be written.
    """
    if os.path.splitext(out)[1].lower() != ".onnx" or images not in IMAGES:
        raise ValueError(
            f"expected a file that ends in .onnx and images of {' or '.join(IMAGES)}, got {out}, {images!r}"
        )
    for package in ("onnx", "onnxruntime", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(f"export to ONNX needs {package}; pip install -e '.[onnx]'")
    path = check_output(out, ONNX, inputs=files_read(model, weights))
    classifier = PULinearClassifier.load(model) if isinstance(model, str | Path) else model
    spec = classifier.encoder_
    encoder = network = None
    if spec is not None and spec.runtime == "onnxruntime":
        raise EncoderError(f"the encoder, {spec}, is an ONNX file already; run it, then score its embeddings")
    if spec is not None and spec.input_size:
        options = EncoderOptions(weights=weights, device="cpu", precision="fp32", runtime="torch")
        encoder = encoder_of(classifier.encoder_, options).load()
        network = encoder.runtime.network()
    elif weights is not None:
        raise ValueError(f"weights are those of an encoder, and the model was trained on {spec or 'bare arrays'}")
    scorer = _Scorer(classifier, network, images).eval()
    sample, name = _sample(scorer, spec, images), str(spec or "the head")
    resizes = encoder is not None and images == "uint8" and encoder.preprocess.fast
    with replacing(path) as temporary:
        graph = _write(scorer, sample, temporary, name)
        difference = _compare(temporary, sample, scorer, classifier, name)
        if encoder is not None and resizes:
            _resize_first(temporary, encoder.spec)
            graph["inputs"] = {"images": "uint8 (n, height, width, 3)"}
            difference = _compare(temporary, _oblong(sample), scorer, classifier, name, encoder.preprocess)
        _describe(temporary, classifier, resizes=resizes)
    return OnnxReport(os.fspath(out), spec, graph["inputs"], graph["outputs"], difference)


def _sample(scorer: _Scorer, spec: EncoderSpec | None, images: str) -> torch.Tensor:
    """Images of blots and noise, or rows of normal numbers; the same in every run."""
    generator = torch.Generator().manual_seed(0)
    if scorer.encoder is None or spec is None:
        return torch.randn((_CHECKED, len(scorer.coef)), generator=generator)
    coarse = torch.rand((_CHECKED, 3, 5, 5), generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, tuple(spec.input_size), mode="bicubic").permute(0, 2, 3, 1)
    pixels = (smooth + 0.1 * torch.randn(smooth.shape, generator=generator)).clamp(0, 1)
    return pixels if images == "float32" else (pixels * 255).to(torch.uint8)


def _write(scorer: _Scorer, sample: torch.Tensor, path: Path, name: str) -> dict[str, dict[str, str]]:
    """Write the graph; returns names, types and shapes of its inputs and outputs."""
    inputs = "embedding" if scorer.encoder is None else "images"
    outputs = ["embedding", "margin", *(["posterior"] if scorer.has_posterior else []), "label"]
    outputs = [f"{each}_out" if each == inputs else each for each in outputs]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                scorer,
                (sample[:2],),
                str(path),
                input_names=[inputs],
                output_names=outputs,
                dynamic_shapes=({0: torch.export.Dim("n", min=1)},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # the exporter raises almost anything on an operator that it lacks
        if (of_disk := _error_of_disk(error)) is not None:
            raise of_disk from error
        raise EncoderError(f"ONNX cannot express {name} ({one_line(error, 160)}); nothing was written") from error
    dim = len(scorer.coef)
    shapes = {inputs: f"{str(sample.dtype)[6:]} (n, {', '.join(map(str, sample.shape[1:]))})"}
    kinds = dict.fromkeys(outputs, "float32 (n,)") | {"label": "int64 (n,)", outputs[0]: f"float32 (n, {dim})"}
    return {"inputs": shapes, "outputs": kinds}


def _error_of_disk(error: BaseException | None) -> OSError | None:
    """The error of the operating system that an error is, or was raised for: a full disk, say."""
    while error is not None and not (isinstance(error, OSError) and error.errno):
        error = error.__cause__ or error.__context__
    return error


def _resize_first(path: Path, spec: EncoderSpec) -> None:
    """Put the encoder's resizing and cropping before the graph, for images of any size."""
    import onnx

    graph, pixels = onnx.load(str(path)), "pixels"
    text = _RESIZING.format(
        height=spec.input_size[0],
        width=spec.input_size[1],
        target=", ".join(map(str, _target(spec))),
        pixels=pixels,
        mode=_MODES[spec.interpolation],
        resized="resized = Identity (target)" if spec.crop_mode == "squash" else _BY_SHORTER_SIDE,
    )
    settings = {"opset_imports": graph.opset_import, "ir_version": graph.ir_version}
    first = onnx.helper.make_model(onnx.parser.parse_graph(text), **settings)
    io_map = [(f"resizing_{pixels}", "images")]
    first = onnx.compose.add_prefix(first, "resizing_", rename_inputs=False)
    onnx.save(onnx.compose.merge_models(first, graph, io_map=io_map), str(path))


def _target(spec: EncoderSpec) -> tuple[int, ...]:
    """Size before the crop, (height, width); unless images are squashed, both are that of the shorter side."""
    return tuple(math.floor(side / spec.crop_pct) for side in spec.input_size)


def _preprocessing(spec: EncoderSpec, *, resizes: bool) -> str:
    """What is to be done with images before the graph."""
    decode = (
        f"decode to upright RGB, transparency over white; of JPEG files what Image.draft reads where the shorter side "
        f"{'of each part ' if spec.tiles else ''}keeps {2 * max(_target(spec))} pixels"
        f"{f'; cut into parts (tiles {spec.tiles}), each of which is an input' if spec.tiles else ''}"
    )
    if resizes:
        return decode
    sides, size = (" x ".join(map(str, each)) for each in (_target(spec), spec.input_size))
    what = {"center": f"the shorter side to {_target(spec)[0]}", "squash": f"to {sides}"}.get(spec.crop_mode)
    if what is None:
        return f"{decode}; then as timm.data.create_transform does with the settings of the entry encoder"
    return f"{decode}; resize {what} by {spec.interpolation}, with antialias as in Pillow; crop the centre to {size}"


def _oblong(images: torch.Tensor) -> torch.Tensor:
    """Images of another size and aspect, (n, H, W, 3)."""
    height, width = images.shape[1:3]
    channels = images.permute(0, 3, 1, 2)
    larger = torch.nn.functional.interpolate(channels, (height * 3 // 2, width * 5 // 2), mode="bilinear")
    return larger.permute(0, 2, 3, 1)


def _describe(path: Path, model: PULinearClassifier, *, resizes: bool) -> None:
    """Write what the model is into the file, and remove what the exporter notes of this machine."""
    import onnx

    graph, spec = onnx.load(str(path)), model.encoder_
    for node in [*graph.graph.node, *(node for function in graph.functions for node in function.node)]:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    graph.ClearField("metadata_props")
    facts = {
        "encoder": spec.to_json() if spec else "",
        "preprocessing": _preprocessing(spec, resizes=resizes) if spec and spec.input_size else "",
        "threshold": repr(float(np.float32(model.threshold_))),
        "share": repr(float(model.share_)),
        "classes": ", ".join(map(str, model.classes_.tolist())),
    }
    onnx.helper.set_model_props(graph, facts)
    onnx.save(graph, str(path))


def _compare(
    path: Path,
    sample: torch.Tensor,
    scorer: _Scorer,
    model: PULinearClassifier,
    name: str,
    preprocess: Preprocess | None = None,
) -> float:
    """Largest difference of a margin from pucache's; raises `EncoderError` where it is too large."""
    import onnxruntime

    pixels, tolerance = sample, TOLERANCE
    if preprocess is not None:
        pixels = torch.stack([preprocess(Image.fromarray(image)) for image in sample.numpy()])
        tolerance = RESIZED_TOLERANCE
    with torch.no_grad():
        X = (pixels if scorer.encoder is None else scorer(pixels)[0]).numpy()
    expected = model.margins(X)
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found: dict[str, Any] = dict(
            zip(
                [output.name for output in session.get_outputs()],
                session.run(None, {session.get_inputs()[0].name: sample.numpy()}),
                strict=True,
            )
        )
    except Exception as error:  # of onnxruntime, which are its own
        raise EncoderError(f"ONNX Runtime cannot run {name} ({one_line(error, 160)}); nothing was written") from error
    difference = float(np.abs(found["margin"] - expected).max())
    if not difference <= tolerance * max(1.0, float(np.abs(expected).max())):
        raise EncoderError(f"ONNX gives {name} other margins, by up to {difference:.2g}; nothing was written")
    near = np.abs(expected - scorer.threshold) <= difference
    if (found["label"] != (expected > scorer.threshold))[~near].any():
        raise EncoderError(f"ONNX gives {name} other labels; nothing was written")
    return difference
