"""Encoders and checkpoints that pretrain wrote."""

from __future__ import annotations

import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from helpers import learned

from fuzz.array_targets import change, change_tensor
from fuzz.oracle import require
from fuzz.target import Target
from pucache.encoders import pretrained_file
from pucache.errors import EncoderError, RunError
from pucache.pretraining.run_folder import CHECKPOINT, MAX_CHECKPOINT_BYTES, RunFolder
from pucache.storage import tensor_file

STEP = 3
ELSEWHERE = ["hf-hub:timm/resnet18", "local-dir:.", "../outside", "eva_giant_patch14_224", "test_vit", "test_resnet.x"]
NAMES = ["model.0", "model.x", "optimizer.0", "optimizer.x", "optimizer.0.x", "optimizer.7.exp_avg", "x", ""]


def _layer(seed: int) -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


@cache
def encoders() -> dict[str, bytes]:
    """Of a few bytes: reading one does not ask whether there is such a network."""
    return {f"{stem}.safetensors": _written(_layer(0), stem=stem) for stem in ("small", "standard")}


@cache
def networks() -> dict[str, bytes]:
    return {"network.safetensors": _written(learned.network())}


def _written(model: torch.nn.Module, **changed: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, pretrained_file.NAME)
        pretrained_file.write(path, model, learned.description(**changed))
        return path.read_bytes()


def check_encoder(sample: str, data: bytes, folder: Path) -> str:
    """Weights and description are those that were saved."""
    (folder / pretrained_file.NAME).write_bytes(data)
    tensors, told = pretrained_file.read(folder)
    found = {name: values.tobytes() for name, values in tensors.items()}
    require(told in [learned.description(stem=stem) for stem in ("small", "standard")], f"read as {told}")
    wanted = {name: tensor.numpy().tobytes() for name, tensor in _layer(0).state_dict().items()}
    require(found == wanted, "read, and the weights are others than were written")
    return "equal"


def mutate_encoder(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Change the description or the tensors, and seal them as pucache does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, pretrained_file.NAME)
        path.write_bytes(data)
        tensors, state = tensor_file.read(path, pretrained_file.KIND, max_bytes=pretrained_file.MAX_BYTES)
        how = draw.random()
        if how < 0.2:
            state["architecture"] = draw.choice(ELSEWHERE)
        elif how < 0.7:
            change(state, draw)
        else:
            change_tensor(tensors, draw)
        tensor_file.write(path, pretrained_file.KIND, tensors, state)
        return path.read_bytes()


def check_network(sample: str, data: bytes, folder: Path) -> str:
    """Sealed by somebody who means harm: refused, or a network that can be asked."""
    (folder / pretrained_file.NAME).write_bytes(data)
    model, config, name = pretrained_file.load(folder)
    try:
        with torch.inference_mode():
            rows = model.eval()(torch.zeros(1, *config["input_size"]))
    except Exception as error:
        require(False, f"loaded, and then fails with {type(error).__name__}: {error}")
    require(rows.shape == (1, model.num_features), f"{tuple(rows.shape)}")
    require(name == "pretrained:test_resnet-small", f"loaded as {name}")
    return "loaded"


# --- checkpoints -------------------------------------------------------------------------------


def _training(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = _layer(seed)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for parameter in model.parameters():  # by hand, as autograd's threads do not survive the fork of a child
        parameter.grad = 2 * parameter.detach()
    optimizer.step()
    return model, optimizer


@cache
def saved() -> dict[str, bytes]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(2):
            with RunFolder(Path(folder, str(seed))) as run:
                run.save(STEP, *_training(seed), {"losses": [0.5, seed]})
            found[f"{seed}.safetensors"] = next(Path(folder, str(seed), "checkpoints").iterdir()).read_bytes()
    return found


def _load(data: bytes, folder: Path, *training: Any) -> dict[str, Any]:
    """State of the checkpoint of a run that is made of some bytes."""
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / f"{STEP:010}.safetensors").write_bytes(data)
    with RunFolder(folder) as run:
        found = run.load(*training)
    require(found is not None, "not found")
    return found[1] if found else {}


def check_checkpoint(sample: str, data: bytes, folder: Path) -> str:
    """The training that was saved, to the bit."""
    model, optimizer = _training(9)
    state = _load(data, folder, model, optimizer)
    require(state in [{"losses": [0.5, seed], "step": STEP} for seed in range(2)], f"loaded as {state}")
    wanted, moments = _training(state["losses"][1])
    for name, tensor in wanted.state_dict().items():
        require(torch.equal(model.state_dict()[name], tensor), f"{name} is not as it was saved")
    for number, values in moments.state_dict()["state"].items():
        for name, tensor in values.items():
            found = optimizer.state_dict()["state"][number][name]
            require(torch.equal(found, tensor), f"{name} of parameter {number} is not as it was saved")
    return "equal"


def mutate_checkpoint(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Change the state, or the names or the numbers of tensors, and seal them as pucache does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint")
        path.write_bytes(data)
        tensors, state = tensor_file.read(path, CHECKPOINT, max_bytes=MAX_CHECKPOINT_BYTES)
        how = draw.random()
        if how < 0.3:
            change(state, draw)
        elif how < 0.6:
            tensors[draw.choice(NAMES)] = tensors.pop(draw.choice(sorted(tensors)))
        else:
            change_tensor(tensors, draw)
        tensor_file.write(path, CHECKPOINT, tensors, state)
        return path.read_bytes()


def check_resealed(sample: str, data: bytes, folder: Path) -> str:
    """Refused by name, or taken; what it says of its step is what its name says."""
    state = _load(data, folder, *_training(9))
    require(state["step"] == STEP, f"taken for {state}")
    return "loaded"


def prepare() -> None:
    """Make all samples once, and the first network, which takes timm a while."""
    for make in (encoders, networks, saved):
        make()


TARGETS = [
    Target("encoder", encoders, check_encoder, (EncoderError,), 60),
    Target("encoder resealed", networks, check_network, (EncoderError,), 25, mutate=mutate_encoder),
    Target("checkpoint", saved, check_checkpoint, (RunError,), 40),
    Target("checkpoint resealed", saved, check_resealed, (RunError,), 20, mutate=mutate_checkpoint),
]
