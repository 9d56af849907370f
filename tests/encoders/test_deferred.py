import dataclasses

import pytest
import torch
from helpers.learned import write_run

from pucache.encoders import pretrained_file
from pucache.encoders.deferred import DeferredEncoder, EncoderOptions, open_encoder
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
def test_the_bundled_encoder_of_a_cache_is_not_loaded(bundled_spec, never_loaded, device, precision, runtime):
    like = dataclasses.replace(bundled_spec, precision=precision, runtime=runtime)
    for options in (EncoderOptions(device=device), EncoderOptions(device=device, precision=precision, runtime=runtime)):
        encoder = open_encoder(options, like=like)
        assert isinstance(encoder, DeferredEncoder) and encoder.spec == like


def test_the_bundled_encoder_of_a_cache_is_loaded_on_demand(bundled_spec):
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
    "other decoding": {"decoder": "pillow-2;large-images"},
    "another precision": {"precision": "bf16"},
    "another runtime": {"runtime": "compile"},
    "scaled rows": {"normalization": "l2"},
}


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_an_encoder_that_is_not_that_of_the_cache_is_loaded(bundled_spec, change):
    like = dataclasses.replace(bundled_spec, **change)
    encoder = open_encoder(EncoderOptions(**PLAIN), like=like)
    assert isinstance(encoder, Encoder) and encoder.spec == bundled_spec


def test_a_pretrained_encoder_of_other_weights_is_loaded(run_folder, tmp_path):
    like = load_encoder(run_folder, **PLAIN).spec
    write_run(tmp_path / "other", seed=1)
    encoder = open_encoder(EncoderOptions(name=tmp_path / "other", **PLAIN), like=like)
    assert isinstance(encoder, Encoder) and encoder.spec.differences(like) == ["weights"]


def test_a_device_that_is_not_there_is_refused_though_nothing_is_loaded(bundled_spec, never_loaded):
    with pytest.raises(ValueError, match="unknown device 'tpu'"):
        open_encoder(EncoderOptions(device="tpu"), like=bundled_spec)


def test_bundled_weights_of_another_version_are_refused_when_they_are_loaded(bundled_spec):
    like = dataclasses.replace(bundled_spec, weights="0" * 64)
    encoder = open_encoder(EncoderOptions(**PLAIN), like=like)
    with pytest.raises(EncoderError, match=r"\(they differ in weights\); write another cache"):
        encoder.load()


def test_an_encoder_that_is_built_differently_now_is_refused_when_it_is_loaded(run_folder):
    like = dataclasses.replace(load_encoder(run_folder, **PLAIN).spec, pooling="token")
    encoder = open_encoder(EncoderOptions(name=run_folder, **PLAIN), like=like)
    with pytest.raises(EncoderError, match=r"^the encoder is now .*\(they differ in pooling\); write another"):
        encoder.load()
