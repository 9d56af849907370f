import resource
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from helpers.learned import MEAN, STD, description, network, write_run
from helpers.limits import limited
from helpers.refusals import one_line
from helpers.sealing import reseal_model

from pucache.encoders.pretrained_file import FILE_FORMAT, NAME, load, read, write
from pucache.errors import EncoderError
from pucache.storage import tensor_file

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def saved(tmp_path):
    """A whole file of a few bytes; reading does not ask whether such a network exists."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        write(tmp_path / NAME, torch.nn.Linear(2, 3), description())
    return tmp_path / NAME


def refusal(action, path):
    text = one_line(EncoderError, action, path)
    assert len(text) < 400 + len(str(path)) and text.isprintable()
    return text


def sealed(path, tensors=None, **changed):
    """An encoder whose description was changed by somebody who knows how to seal one."""
    told = {name: value for name, value in (vars(description()) | changed).items() if value != "absent"}
    tensor_file.write(path, FILE_FORMAT, tensors or {}, told)
    return path


# --- there and back ------------------------------------------------------------------------------


@pytest.mark.parametrize(("architecture", "stem"), [("test_resnet", "small"), ("test_efficientnet", "standard")])
def test_a_network_and_its_description_come_back_to_the_bit(tmp_path, architecture, stem):
    model = write_run(tmp_path, architecture=architecture, stem=stem)
    for where in (tmp_path, str(tmp_path), tmp_path / NAME):
        loaded, config, name = load(where)
        assert name == f"pretrained:{architecture}" + ("-small" if stem == "small" else "")
        assert (config["input_size"], config["mean"], config["std"]) == ((3, 24, 24), tuple(MEAN), tuple(STD))
        assert (config["interpolation"], config["crop_pct"], config["crop_mode"]) == ("bilinear", 1.0, "squash")
        ours, theirs = model.state_dict(), loaded.state_dict()
        assert list(ours) == list(theirs)
        assert all(torch.equal(ours[n], theirs[n]) and ours[n].dtype == theirs[n].dtype for n in ours)
    assert read(tmp_path)[1] == description(architecture=architecture, stem=stem)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, value):
    model = write_run(tmp_path, architecture="test_efficientnet")
    model.bn1.bias.data[0] = value
    write(tmp_path / NAME, model, description(architecture="test_efficientnet"))
    assert "holds NaN, infinity or a negative variance in 1 tensors (bn1.bias)" in refusal(load, tmp_path)


# --- damage --------------------------------------------------------------------------------------


def test_a_folder_without_an_encoder_or_a_foreign_file_is_refused_with_what_to_pass(tmp_path):
    told = refusal(read, tmp_path)
    assert told.startswith(f"{tmp_path} holds no {NAME}; expected a folder that pretrain wrote")
    assert "no such encoder" in refusal(read, tmp_path / "gone")
    (tmp_path / "run.json").write_text("{}")
    assert "has trained nothing yet; run the same pretrain again" in refusal(read, tmp_path)
    safetensors.torch.save_file({"weight": torch.zeros(2)}, tmp_path / NAME)
    assert "not a pucache encoder; pass a folder that pretrain wrote" in refusal(read, tmp_path)
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).mkdir()
    assert "is a directory" in refusal(read, tmp_path)


def test_an_encoder_of_another_version_is_refused_by_its_number(saved):
    saved.write_bytes(saved.read_bytes().replace(b'\\"version\\": \\"1\\"', b'\\"version\\": \\"2\\"'))
    reseal_model(saved)
    told = refusal(read, saved)
    assert "encoder of format version 2" in told and "upgrade pucache, or run pretrain again" in told


# --- descriptions of a stranger, sealed as ours are ----------------------------------------------

HOSTILE = {
    "a size a little beyond": {"size": 2049},
    "a size as text": {"size": "24"},
    "a mean that is no number": {"mean": [0.5, float("nan"), 0.5]},
    "another stem": {"stem": "large"},
    "another interpolation": {"interpolation": "nearest"},
    "fewer than no steps": {"steps": -1},
    "an architecture that moves the cursor": {"architecture": "\x1b[31mtest_resnet"},
    "an architecture that lies on the hub": {"architecture": "hf-hub:timm/resnet18.a1_in1k"},
    "something missing": {"steps": "absent"},
    "something more": {"surplus": 1},
}


@pytest.mark.parametrize("problem", HOSTILE)
def test_a_description_without_sense_is_refused_when_it_is_read(tmp_path, problem):
    told = refusal(read, sealed(tmp_path / NAME, **HOSTILE[problem]))
    assert told.startswith(f"{tmp_path / NAME} does not describe an encoder (") and "run pretrain again" in told


@pytest.mark.parametrize("name", ["resnt18", "__init__", "test_resnet.surely_not"])
def test_an_architecture_that_timm_does_not_have_is_refused_by_name(tmp_path, name):
    assert f"timm has no model called {name!r}" in refusal(load, sealed(tmp_path / NAME, architecture=name))


def test_a_name_of_a_network_of_gigabytes_costs_none(tmp_path):
    name = "eva_giant_patch14_224"
    where = sealed(tmp_path / NAME, architecture=name, stem="standard")
    have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with limited("AS", have + (1 << 30)):
        assert f"does not fit {name} as this timm builds it" in refusal(load, where)


def changed_tensors():
    state = {name: tensor.numpy() for name, tensor in network().state_dict().items()}
    first = next(iter(state))
    return {
        "one missing": {name: values for name, values in state.items() if name != first},
        "one more": state | {"more": np.zeros(1, np.float32)},
        "another shape": state | {first: state[first][:1]},
        "the same numbers in another shape": state | {first: np.ascontiguousarray(state[first].reshape(1, -1))},
        "another type": state | {first: state[first].astype(np.float64)},
        "a count in half numbers": state | {"bn1.num_batches_tracked": np.array(0.5, np.float32)},
    }


@pytest.mark.parametrize("problem", changed_tensors())
def test_tensors_that_are_not_those_of_the_network_are_refused(tmp_path, problem):
    where = sealed(tmp_path / NAME, changed_tensors()[problem])
    assert "does not fit test_resnet as this timm builds it; run pretrain again" in refusal(load, where)
