import dataclasses
import json

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from helpers.sealing import reseal_model
from helpers.slow import slow
from helpers.tiny import tiny_encoder

from pucache.errors import ModelError, OutputError
from pucache.estimates.calibration import Tilt
from pucache.estimates.priors import PriorEstimate
from pucache.heads.minibatch import SGDSettings
from pucache.training.model_file import (
    FORMAT,
    PARAMETERS,
    PRIOR_ESTIMATE,
    SGD_SETTINGS,
    VERSION,
    ModelState,
    read,
    read_model,
    write,
    write_model,
)
from pucache.training.neighbour_evidence import NeighbourEvidence, NeighbourSettings
from pucache.training.sklearn_classifier import PULinearClassifier
from pucache.version import __version__

TENSORS = {"coef": np.linspace(-1, 1, 5).astype(np.float32), "numbers": np.array([0.1, -2.0, np.pi])}
STATE = {"name": "é", "draws": 3, "share": 0.1, "none": None, "list": [1, "a"], "scalar": np.float32(0.25)}
NAMES = ("coef", "numbers")


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.safetensors"
    write(path, TENSORS, STATE)
    return path


def test_tensors_and_state_come_back_exactly(saved):
    tensors, state = read(str(saved), NAMES)
    for name, values in TENSORS.items():
        assert tensors[name].dtype == values.dtype and tensors[name].tobytes() == values.tobytes()
    assert state == STATE | {"scalar": 0.25}


def test_equal_content_is_equal_bytes_in_whatever_order_it_is_given(saved, tmp_path):
    for number in range(5):
        other = tmp_path / f"{number}.safetensors"
        write(other, dict(reversed(TENSORS.items())), dict(reversed(STATE.items())))
        assert other.read_bytes() == saved.read_bytes()


def test_the_file_tells_what_it_is_without_this_package(saved):
    with safetensors.safe_open(saved, "numpy") as file:
        header = json.loads(file.metadata()["pucache-model"])
        assert set(file.keys()) == set(NAMES)
    assert (header["format"], header["version"], header["pucache_version"]) == ("pucache-model", "3", __version__)
    assert json.loads(header["state"])["draws"] == 3 and len(header["checksum"]) == 64
    assert (FORMAT, VERSION) == ("pucache-model", 3)


def test_writing_again_replaces_the_file_and_leaves_nothing_beside_it(saved):
    write(saved, TENSORS, {"new": 1})
    assert read(saved, NAMES)[1] == {"new": 1} and list(saved.parent.iterdir()) == [saved]
    with pytest.raises(TypeError):
        write(saved, TENSORS, {"no": object()})
    assert read(saved, NAMES)[1] == {"new": 1} and list(saved.parent.iterdir()) == [saved]


def test_a_path_that_cannot_be_written_is_an_output_error(tmp_path):
    with pytest.raises(OutputError, match="is a directory"):
        write(tmp_path, TENSORS, STATE)


def test_a_truncated_file_is_refused_at_every_length(saved):
    whole = saved.read_bytes()
    for length in [*range(0, len(whole), 11), len(whole) - 1]:
        saved.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"model\.safetensors (cannot be read as safetensors|is damaged)"):
            read(saved, NAMES)


@pytest.mark.parametrize("mask", [slow(0x01), 0x20, slow(0xFF)])
def test_damage_of_any_byte_is_refused(saved, mask):
    whole = saved.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= mask
        saved.write_bytes(damaged)
        with pytest.raises(ModelError) as caught:
            read(saved, NAMES)
        assert "\n" not in str(caught.value) and str(saved) in str(caught.value)


@pytest.fixture
def rewrite(saved):
    """Write the saved model again with other tensors or another header."""

    def make(tensors=None, **changed):
        with safetensors.safe_open(saved, "numpy") as file:
            header = json.loads(file.metadata()[FORMAT])
        entry = {FORMAT: json.dumps(header | changed)}
        safetensors.numpy.save_file(TENSORS if tensors is None else tensors, saved, entry)
        return saved

    return make


DAMAGED = "is damaged: content and checksum disagree; train the model again"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"version": "2"}, "a model of format version 2; this pucache .* reads version 3: .*train the model again"),
        ({"version": "4"}, "a model of format version 4; this pucache .* reads version 3: upgrade pucache"),
        ({"version": None}, "format version None"),
        ({"format": "other"}, "a safetensors file but not a pucache model; pass what train-pu wrote"),
        ({"state": "{}"}, DAMAGED),
        ({"checksum": ""}, DAMAGED),
        ({"extra": "x"}, DAMAGED),
        ({"tensors": {**TENSORS, "coef": np.zeros(5, np.float32)}}, DAMAGED),
        ({"tensors": {**TENSORS, "coef": TENSORS["coef"].view(np.int32)}}, DAMAGED),
        ({"tensors": {**TENSORS, "coef": TENSORS["coef"][:, None]}}, DAMAGED),
        ({"tensors": {"coef": TENSORS["coef"]}}, DAMAGED),
        ({"tensors": {**TENSORS, "more": np.zeros(1)}}, DAMAGED),
        ({"tensors": {}}, DAMAGED),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_file_that_was_meddled_with_is_refused_by_name(rewrite, change, message):
    path = rewrite(**change)
    with pytest.raises(ModelError, match=message) as caught:
        read(path, NAMES)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("tensors", [{}, {"coef": TENSORS["coef"]}, {**TENSORS, "more": np.zeros(1)}], ids=len)
def test_a_sealed_file_of_other_tensors_is_refused(tmp_path, tensors):
    write(tmp_path / "model", tensors, STATE)
    with pytest.raises(ModelError, match="holds other tensors than a model of pucache"):
        read(tmp_path / "model", NAMES)


def test_a_file_too_large_for_a_model_is_not_read(saved, monkeypatch):
    monkeypatch.setattr("pucache.training.model_file.MAX_BYTES", saved.stat().st_size - 1)
    with pytest.raises(ModelError, match="is larger than any model"):
        read(saved, NAMES)


@pytest.mark.parametrize("entry", ["[]", "3", "null", "{", '{"format": []}'])
def test_a_header_that_is_not_one_is_refused(saved, entry):
    safetensors.numpy.save_file(TENSORS, saved, {FORMAT: entry})
    with pytest.raises(ModelError, match=r"model\.safetensors (cannot be read|is a safetensors file but not)"):
        read(saved, NAMES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_somebody_else_s_safetensors_are_refused(tmp_path, dtype):
    safetensors.torch.save_file({"coef": torch.zeros(3).to(dtype)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match=r"other\.safetensors.* not a pucache model"):
        read(tmp_path / "other.safetensors", NAMES)


def test_tensors_of_a_type_that_numpy_lacks_are_refused(saved):
    with safetensors.safe_open(saved, "numpy") as file:
        header = file.metadata()
    safetensors.torch.save_file({"coef": torch.zeros(6, dtype=torch.bfloat16)}, saved, header)
    reseal_model(saved)
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        read(saved, NAMES)


@pytest.mark.parametrize("content", [b"", b"key\na.png\n", b"\x80\x04}\x94.", b"\xff" * 64], ids=len)
def test_what_is_no_safetensors_is_refused(tmp_path, content):
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(ModelError, match=r"cannot be read as safetensors.*train the model again"):
        read(tmp_path / "model", NAMES)


@pytest.mark.parametrize("name", ["missing.safetensors", "."])
def test_a_file_that_is_not_there_or_a_folder_is_refused(tmp_path, name):
    with pytest.raises(ModelError, match=f"no such model: {tmp_path}"):
        read(tmp_path / name, NAMES)


# --- the state of a classifier -----------------------------------------------------------------


def example_state(**changes):
    state = ModelState(
        coef=np.linspace(-1, 1, 5).astype(np.float32),
        intercept=0.1,
        threshold=-2.0,
        prior=0.3,
        share=0.4,
        penalty=0.01,
        alpha=0.5,
        slope=np.pi,
        parameters={"loss": "imbupu", "n_folds": 5},
        sgd_settings=vars(SGDSettings()),
        prior_estimate=vars(PriorEstimate(method="tilt", prior=0.3, low=0.1, high=0.5, level=0.9, draws=20)),
        estimates={"pauc": 0.9},
        n_labelled=10,
        n_unlabelled=100,
        n_confirmed=2,
        n_negatives=3,
        classes=np.array(["no", "yes"]),
        encoder=tiny_encoder().spec,
        neighbours=NeighbourSettings(
            evidence=NeighbourEvidence(agreement=(0.1, 0.2, 0.3), held_out=(-0.1, 0.0, 0.1), labels=10),
            search="exact search",
            share=0.2,
            tilt=Tilt(0.5, 1.5, 0.3),
            threshold=-1.0,
        ),
        method="distilled",
    )
    return dataclasses.replace(state, **changes)


@pytest.mark.parametrize(
    "missing",
    [{}, {"sgd_settings": None, "prior_estimate": None, "encoder": None}, {"neighbours": None, "method": "linear"}],
    ids=["all", "few", "linear"],
)
def test_a_state_comes_back_exactly(tmp_path, missing):
    state = example_state(**missing)
    write_model(tmp_path / "model", state)
    restored = read_model(tmp_path / "model")
    for field in dataclasses.fields(ModelState):
        before, after = getattr(state, field.name), getattr(restored, field.name)
        np.testing.assert_array_equal(after, before)
        assert np.asarray(after).dtype == np.asarray(before).dtype
    write_model(tmp_path / "again", restored)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()


def test_the_names_in_the_file_are_those_of_the_classes_that_it_describes():
    assert set(PULinearClassifier().get_params()) - {"sgd_settings"} == PARAMETERS
    assert {field.name for field in dataclasses.fields(SGDSettings)} == SGD_SETTINGS
    assert {field.name for field in dataclasses.fields(PriorEstimate)} == PRIOR_ESTIMATE


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": {"kernel": "rbf"}},
        {"sgd_settings": {"momentum": 0.9}},
        {"sgd_settings": {"epochs": 0}},
        {"sgd_settings": {"min_steps": -1}},
        {"sgd_settings": {"learning_rate": "fast"}},
        {"prior_estimate": {"prior": 0.3}},
        {"classes": np.array([0, 1, 2])},
        {"prior": 1.0},
        {"share": 0.0},
        {"penalty": -1.0},
        {"threshold": np.inf},
        {"method": "propagated"},
        {"neighbours": dataclasses.replace(example_state().neighbours, share=1.5)},
        {"neighbours": dataclasses.replace(example_state().neighbours, threshold=np.nan)},
        {"neighbours": dataclasses.replace(example_state().neighbours, tilt=Tilt(0.0, 1.0, 0.0))},
    ],
    ids=str,
)
def test_a_state_that_no_classifier_has_is_refused_without_torch_too(tmp_path, changes):
    write_model(tmp_path / "model", example_state(**changes))
    with pytest.raises(ModelError, match=r"holds no model of pucache .*; train the model again"):
        read_model(tmp_path / "model")


def rewritten(path, change):
    """Write a model whose content somebody has changed, sealed as it should be."""
    write_model(path, example_state())
    tensors, content = read(path, ("coef", "numbers"))
    change(content)
    write(path, tensors, content)
    return path


def test_a_model_of_before_there_were_neighbours_is_linear(tmp_path):
    def remove(content):
        del content["neighbours"], content["method"]

    state = read_model(rewritten(tmp_path / "model", remove))
    assert state.neighbours is None and state.method == "linear"


STRANGE_NEIGHBOURS = {
    "text": "exact",
    "a list": [1, 2],
    "one entry": {"search": "exact search"},
    "evidence of two weights": {"evidence": {"agreement": [0.1, 0.2], "held_out": [0.1, 0.2], "labels": 10}},
    "evidence in words": {"evidence": {"agreement": ["a"] * 3, "held_out": [0.1] * 3, "labels": 10}},
    "evidence that is infinite": {"evidence": {"agreement": [float("inf")] * 3, "held_out": [0.1] * 3, "labels": 10}},
    "evidence of no labels": {"evidence": {"agreement": [0.1] * 3, "held_out": [0.1] * 3, "labels": -20}},
    "endless labels": {"evidence": {"agreement": [0.1] * 3, "held_out": [0.1] * 3, "labels": float("inf")}},
    "a tilt without slope": {"tilt": {"alpha": 0.0, "prior": 0.5}},
    "a slope that is no number": {"tilt": {"alpha": 0.0, "slope": float("nan"), "prior": 0.5}},
    "a prior of 1": {"tilt": {"alpha": 0.0, "slope": 1.0, "prior": 1.0}},
    "a negative share": {"share": -0.1},
    "no threshold": {"threshold": None},
}


@pytest.mark.parametrize("strange", STRANGE_NEIGHBOURS.values(), ids=STRANGE_NEIGHBOURS)
def test_neighbours_that_a_stranger_wrote_are_refused(tmp_path, strange):
    def change(content):
        whole = "search" not in strange and isinstance(strange, dict)
        content["neighbours"] = content["neighbours"] | strange if whole else strange

    with pytest.raises(ModelError, match=r"holds no model of pucache .*; train the model again") as caught:
        read_model(rewritten(tmp_path / "model", change))
    assert "\n" not in str(caught.value)
