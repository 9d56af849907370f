"""Weights as training scripts of other programs save them, and what is refused instead of embedding nonsense."""

import argparse
import collections
import datetime
import logging
import pathlib
import re
from functools import partial

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from fuzz.damage import RunsCode, marker  # noqa: F401
from helpers.refusals import one_line

from pucache.encoders.backbones import digest, from_timm
from pucache.encoders.encoder import load_encoder
from pucache.errors import EncoderError

pytestmark = pytest.mark.usefixtures("one_thread")
NETWORK = "test_efficientnet"
refusal = partial(one_line, EncoderError)


class Options(dict):
    """A configuration as many packages write it: a dictionary with attributes."""

    __getattr__ = dict.__getitem__


class Callback:
    """Something else that a training script keeps."""

    def __init__(self):
        self.best = {"score": np.float64(0.5)}


@pytest.fixture(scope="module")
def state():
    """A full state dict, classifier included."""
    torch.manual_seed(0)
    return timm.create_model(NETWORK, pretrained=False).state_dict()


@pytest.fixture(scope="module")
def other():
    """Other weights of the same network."""
    torch.manual_seed(1)
    return timm.create_model(NETWORK, pretrained=False).state_dict()


def under(prefix, state):
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def saved(folder, content, name="weights.pth", **options):
    torch.save(content, folder / name, **options)
    return folder / name


# --- what stands beside the weights --------------------------------------------------------------

OBJECTS = {
    "Namespace": lambda: argparse.Namespace(lr=0.1, data=pathlib.Path("photos"), inner=argparse.Namespace(a=[1])),
    "path": lambda: pathlib.Path("photos/a"),
    "numpy scalar": lambda: np.float64(0.5),
    "numpy array": lambda: np.arange(3),
    "numpy text": lambda: np.array(["a", "b"]),
    "dict with attributes": lambda: Options(lr=0.1, best=np.float32(1), inner=Options(a=1)),
    "object": Callback,
    "defaultdict": lambda: collections.defaultdict(list),
    "time": lambda: datetime.datetime(2026, 1, 1),
    "type": lambda: {"kind": float, "class": Callback},
    "optimizer": lambda: torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))]).state_dict(),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_weights_are_read_whatever_data_stands_beside_them(tmp_path, state, kind):
    path = saved(tmp_path, {"epoch": 3, "arch": NETWORK, "args": OBJECTS[kind](), "state_dict": state})
    loaded = from_timm(NETWORK, path).state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in loaded.items())


def test_a_checkpoint_of_before_torch_1_6_is_read(tmp_path, state):
    content = {"args": argparse.Namespace(lr=0.1), "state_dict": state}
    path = saved(tmp_path, content, _use_new_zipfile_serialization=False)
    assert torch.equal(from_timm(NETWORK, path).state_dict()["conv_stem.weight"], state["conv_stem.weight"])


class Names:
    """Pickled as a call of the function of this name."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("function", ["mkdir", "eval", "getattr", "exec"])
def test_a_file_that_names_functions_is_refused_and_nothing_runs(tmp_path, state, marker, function, zipped):  # noqa: F811
    code = {
        "mkdir": RunsCode(marker),
        "eval": Names(eval, f"__import__('os').mkdir({str(marker)!r})"),
        "getattr": Names(getattr, "a", "upper"),
        "exec": Names(exec, f"import os; os.mkdir({str(marker)!r})"),
    }[function]
    path = saved(tmp_path, {"args": code, "state_dict": state}, _use_new_zipfile_serialization=zipped)
    told = refusal(from_timm, NETWORK, path)
    assert str(path) in told and (not zipped or ("torch.save(model.state_dict()" in told and function in told))


def test_whole_networks_and_programs_are_named_with_the_remedy(tmp_path, state):
    network = timm.create_model(NETWORK, pretrained=False)
    told = refusal(from_timm, NETWORK, saved(tmp_path, network))
    assert "holds a whole network" in told and "torch.save(model.state_dict(), 'weights.pth')" in told
    torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)).save(str(tmp_path / "script.pt"))
    told = refusal(from_timm, NETWORK, tmp_path / "script.pt")
    assert "is a TorchScript program" in told and "torch.jit.load(" in told


# --- where the weights are -----------------------------------------------------------------------

HEAD = {"projector.0.weight": torch.zeros(3, 3)}
PLACES = {  # a checkpoint of these weights, in which those of another training may stand too
    "backbone": lambda state, other: under("backbone.", state),
    "nested": lambda state, other: under("module._orig_mod.model.encoder.", state),
    "head beside": lambda state, other: under("backbone.", state) | HEAD,
    "head beside, flat": lambda state, other: {**state, **HEAD},
    "both": lambda state, other: {"state_dict": state, "state_dict_ema": other},
    "average alone": lambda state, other: {"state_dict_ema": under("module.", state)},
    "net": lambda state, other: {"net": state, "acc": 93.1, "epoch": 199},
    "lightning": lambda state, other: {"state_dict": under("model.", state), "callbacks": {}, "epoch": 3},
    "DINO": lambda state, other: {"student": under("module.backbone.", other), "teacher": under("backbone.", state)},
    "DINOv2": lambda state, other: {"model": under("student.backbone.", other) | under("teacher.backbone.", state)},
    "MoCo": lambda state, other: {
        "state_dict": under("module.encoder_q.", state) | under("module.encoder_k.", other) | {"module.queue": HEAD}
    },
    "BYOL": lambda state, other: {"state_dict": under("backbone.", state) | under("backbone_momentum.", other)},
    "averages before others": lambda state, other: {"ema": other, "weights": state, "model_ema": other},
    "any name": lambda state, other: {"my_weights": {"trunk": under("body.", state)}},
}


@pytest.mark.parametrize("place", PLACES)
def test_weights_are_found_under_any_name_and_prefix(tmp_path, state, other, place):
    loaded = from_timm(NETWORK, saved(tmp_path, PLACES[place](state, other)))
    assert digest(loaded) == digest(from_timm(NETWORK, saved(tmp_path, state, "plain.pth")))


@pytest.mark.parametrize("form", ["backbone", "head beside"])
def test_safetensors_are_read_by_what_they_hold(tmp_path, state, other, form):
    for name in ("a.safetensors", "a.bin"):
        safetensors.torch.save_file(PLACES[form](state, other), tmp_path / name)
        loaded = from_timm(NETWORK, tmp_path / name)
        assert digest(loaded) == digest(from_timm(NETWORK, saved(tmp_path, state)))


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("both", r"took the weights at state_dict/\*; state_dict_ema/\* would fit too"),
        ("head beside", r"took the weights at backbone\.\*; projector left out"),
        ("head beside, flat", r"took the weights at \*; projector left out"),
        ("DINO", r"took the weights at teacher/backbone\.\*; student/module\.backbone\.\* would fit too"),
        ("backbone", None),
    ],
)
def test_a_choice_is_told_in_one_line(tmp_path, state, other, caplog, place, expected):
    with caplog.at_level(logging.INFO, "pucache"):
        from_timm(NETWORK, saved(tmp_path, PLACES[place](state, other)))
    assert [bool(re.search(expected or "", text)) for text in caplog.messages] == [True] * (expected is not None)


def test_a_larger_network_of_the_same_names_is_not_taken_for_a_smaller(tmp_path, state):
    more = state | {"blocks.9.0.conv.weight": torch.zeros(3, 3)}
    assert "has unknown 1 of" in refusal(from_timm, NETWORK, saved(tmp_path, under("backbone.", more)))


def test_a_file_of_pucache_is_no_state_dict(tmp_path):
    content = b'12345678{"__metadata__":{"pucache-checkpoint":'
    (tmp_path / "a.safetensors").write_bytes(content)
    assert "is a pucache checkpoint, not weights of timm" in refusal(from_timm, NETWORK, tmp_path / "a.safetensors")


# --- numbers that mean nothing -------------------------------------------------------------------

WRONG = {
    "NaN": ("conv_head.weight", lambda tensor: tensor.index_fill(0, torch.tensor([0]), torch.nan), "holds NaN"),
    "infinity": ("bn1.bias", lambda tensor: tensor - torch.inf, "holds NaN, infinity"),
    "NaN in statistics": ("bn1.running_mean", lambda tensor: tensor * torch.nan, "holds NaN"),
    "negative variance": ("bn1.running_var", lambda tensor: -tensor, "negative variance in 1 tensors"),
    "quantised": ("conv_head.weight", lambda tensor: tensor.to(torch.int8), "has another type of 1 of"),
    "complex": ("bn1.bias", lambda tensor: tensor.to(torch.complex64), "has another type of 1 of"),
}


@pytest.mark.parametrize("runtime", ["torch", "openvino"])
@pytest.mark.parametrize("form", ["weights.pth", "weights.safetensors"])
@pytest.mark.parametrize("problem", WRONG)
def test_weights_that_give_nonsense_are_refused_by_the_name_of_the_tensor(tmp_path, state, problem, form, runtime):
    tensor, change, expected = WRONG[problem]
    changed = state | {tensor: change(state[tensor]).contiguous()}
    (safetensors.torch.save_file if form.endswith("s") else torch.save)(changed, tmp_path / form)
    told = refusal(load_encoder, f"timm:{NETWORK}", weights=tmp_path / form, runtime=runtime, device="cpu")
    assert expected in told and tensor in told and str(tmp_path / form) in told


def test_a_head_with_nan_that_is_left_out_does_not_matter(tmp_path, state):
    path = saved(tmp_path, state | {"classifier.bias": state["classifier.bias"] * torch.nan})
    assert digest(from_timm(NETWORK, path))
