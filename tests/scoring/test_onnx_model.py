"""Models as ONNX graphs, run by ONNX Runtime on the CPU."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.learned import write_run
from helpers.limits import limited
from helpers.planted import planted
from helpers.refusals import one_line
from helpers.slow import slow
from PIL import Image

from pucache import EncoderSpec, PULinearClassifier, load_encoder
from pucache.errors import EncoderError, MissingExtraError, ModelError, OutputError
from pucache.scoring import onnx_model
from pucache.scoring.onnx_model import export_onnx

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of red among blue images, the folder of its encoder, pixels that it has not seen, and their margins."""
    folder = tmp_path_factory.mktemp("run")
    write_run(folder)
    encoder = load_encoder(folder, device="cpu", precision="fp32", runtime="torch")
    draw = np.random.default_rng(0)
    red = draw.random(500) < 0.4
    colours = np.where(red[:, None], (200, 60, 60), (60, 60, 200))
    pixels = draw.normal(colours[:, None, None], 60, (500, *encoder.preprocess.input_size, 3)).clip(0, 255)
    pixels = torch.from_numpy(pixels.astype(np.uint8))
    X = encoder.runtime(pixels)
    model = PULinearClassifier(prior=0.3, device="cpu").fit(X[:250], (red & (np.arange(500) < 100))[:250])
    model.encoder_ = encoder.spec
    return model, folder, pixels[250:], X[250:]


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """The graph of the model for images from 0 to 255, alone in its folder, and what was said of it."""
    path = tmp_path_factory.mktemp("exported") / "m.onnx"
    return path, export_onnx(trained[0], path)  # the run lies where the model says


def run(path, inputs):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {session.get_inputs()[0].name: inputs}), strict=True))


def preprocessing(path):
    return next(entry.value for entry in onnx.load(str(path)).metadata_props if entry.key == "preprocessing")


@pytest.mark.parametrize("kind", ["uint8", slow("float32")])
def test_a_graph_gives_what_pucache_does_for_any_number_of_images(tmp_path, trained, exported, kind):
    model, folder, pixels, X = trained
    path, report = exported
    if kind != "uint8":
        path = tmp_path / "m.onnx"
        report = export_onnx(model, path, weights=folder, images=kind)
    margins = model.margins(X)
    inputs = pixels.numpy() if kind == "uint8" else pixels.numpy().astype(np.float32) / 255
    for count in (1, 7, len(X)):
        found = run(path, inputs[:count])
        assert list(found) == ["embedding", "margin", "posterior", "label"] == list(report.outputs)
        np.testing.assert_allclose(found["embedding"], X[:count], atol=1e-3)
        np.testing.assert_allclose(found["margin"], margins[:count], atol=2e-2)
        np.testing.assert_allclose(found["posterior"], model.posterior(margins[:count]), atol=1e-2)
        far = np.abs(margins[:count] - model.threshold_) > 2e-2
        assert (found["label"] == (margins[:count] > model.threshold_))[far].all()
    assert 0 < found["label"].sum() < len(X)
    graph = onnx.load(str(path))
    onnx.checker.check_model(graph)
    facts = {entry.key: entry.value for entry in graph.metadata_props}
    assert EncoderSpec.from_json(facts["encoder"]) == model.encoder_
    assert b"site-packages" not in path.read_bytes(), "no path of the machine that wrote it"
    assert [file.name for file in path.parent.iterdir()] == ["m.onnx"]


def test_images_of_any_size_are_resized_inside_as_pucache_does(trained, exported):
    model, folder, pixels, _ = trained
    encoder = load_encoder(folder, device="cpu", precision="fp32", runtime="torch")
    path, report = exported
    assert report.inputs == {"images": "uint8 (n, height, width, 3)"}
    assert preprocessing(path).endswith("the shorter side keeps 48 pixels")
    for size in [(60, 24), (24, 95), (7, 5), (301, 200)]:
        resized = torch.nn.functional.interpolate(pixels[:60].permute(0, 3, 1, 2), size, mode="bilinear")
        images = resized.permute(0, 2, 3, 1).numpy()
        expected = model.margins(encoder([Image.fromarray(image) for image in images]))
        np.testing.assert_allclose(run(path, images)["margin"], expected, atol=2e-2)


@pytest.mark.slow
def test_the_metadata_say_what_is_to_be_done_before_a_graph_that_does_not_resize(tmp_path, trained):
    model, folder, *_ = trained
    export_onnx(model, tmp_path / "m.onnx", weights=folder, images="float32")
    said = preprocessing(tmp_path / "m.onnx")
    assert said.endswith("; resize to 24 x 24 by bilinear, with antialias as in Pillow; crop the centre to 24 x 24")


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes(tmp_path, trained):
    model, folder, *_ = trained
    for name in ("1.onnx", "2.onnx"):
        export_onnx(model, tmp_path / name, weights=folder)
    assert (tmp_path / "1.onnx").read_bytes() == (tmp_path / "2.onnx").read_bytes()


def test_the_head_alone_for_imported_embeddings_and_no_posterior_on_few_labels(tmp_path):
    X, s, _ = planted(labelled=9)
    model = PULinearClassifier(prior=0.3, method="linear", device="cpu").fit(X, s)
    model.encoder_ = EncoderSpec.imported("clip", X.shape[1])
    model.save(tmp_path / "m.safetensors")
    export_onnx(tmp_path / "m.safetensors", tmp_path / "m.onnx")
    found = run(tmp_path / "m.onnx", X)
    assert list(found) == ["embedding_out", "margin", "label"]
    np.testing.assert_allclose(found["margin"], model.margins(X), atol=1e-4)
    with pytest.raises(ValueError, match="weights are those of an encoder"):
        export_onnx(model, tmp_path / "m.onnx", weights=tmp_path)


def test_a_disk_without_room_is_named_and_not_onnx(tmp_path):
    X, s, _ = planted(labelled=40)
    model = PULinearClassifier(prior=0.3, method="linear", device="cpu").fit(X, s)
    model.encoder_ = EncoderSpec.imported("clip", X.shape[1])
    with limited("FSIZE", 64):
        told = one_line(OutputError, export_onnx, model, tmp_path / "m.onnx")
    assert told == f"cannot write {tmp_path}/m.onnx: File too large; what was there before is untouched"
    assert not list(tmp_path.iterdir())


def test_what_is_missing_is_named(tmp_path, trained, monkeypatch):
    model, *_ = trained
    with pytest.raises(ValueError, match=r"ends in \.onnx"):
        export_onnx(model, tmp_path / "m.pt")
    monkeypatch.setattr(model, "encoder_", dataclasses.replace(model.encoder_, origin=""))
    one_line(EncoderError, export_onnx, model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="expects"):
        write_run(tmp_path / "other", seed=1)
        export_onnx(model, tmp_path / "m.onnx", weights=tmp_path / "other")
    monkeypatch.setattr(onnx_model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[onnx\]'"):
        export_onnx(model, tmp_path / "m.onnx")
