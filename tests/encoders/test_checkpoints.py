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
import torchvision
from helpers.authors import IMAGES, dinov2, dinov2_with_registers, network, renamed
from helpers.refusals import one_line
from helpers.slow import slow

from pucache import load_encoder
from pucache.encoders.backbones import digest, from_timm
from pucache.errors import EncoderError

pytestmark = pytest.mark.usefixtures("one_thread")
NETWORK, PATCHES = "test_efficientnet", "patch_embed.proj.weight"
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


def test_whole_networks_and_programs_are_named_with_the_remedy(tmp_path, state):
    network = timm.create_model(NETWORK, pretrained=False)
    told = refusal(from_timm, NETWORK, saved(tmp_path, network))
    assert "holds a whole network" in told and "torch.save(model.state_dict(), 'weights.pth')" in told
    for content, found in (([state], "a list"), ({"model": network}, "no tensors"), ({"args": {}}, "no tensors")):
        told = refusal(from_timm, NETWORK, saved(tmp_path, content))
        assert f"holds {found}" in told and "torch.save(model.state_dict(), 'weights.pth')" in told
    torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)).save(str(tmp_path / "script.pt"))
    told = refusal(from_timm, NETWORK, tmp_path / "script.pt")
    assert "is a TorchScript program" in told and "torch.jit.load(" in told
    (tmp_path / "a.safetensors").write_bytes(b'12345678{"__metadata__":{"pucache-checkpoint":')
    assert "is a pucache checkpoint, not weights of timm" in refusal(from_timm, NETWORK, tmp_path / "a.safetensors")


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
    "compiled within": lambda state, other: renamed(state, (r"blocks\.0\.", "blocks.0._orig_mod.")),
    "any name": lambda state, other: {"my_weights": {"trunk": under("body.", state)}},
}


TOLD = {  # of a place, what one line says of the choice; of the backbone alone there is none
    "both": r"took the weights at state_dict/\*; state_dict_ema/\* would fit too",
    "head beside": r"took the weights at backbone\.\*; projector left out",
    "head beside, flat": r"took the weights at \*; projector left out",
    "DINO": r"took the weights at teacher/backbone\.\*; student/module\.backbone\.\* would fit too",
    "backbone": None,
}


@pytest.mark.parametrize("place", PLACES)
def test_weights_are_found_under_any_name_and_prefix_and_a_choice_is_told(tmp_path, state, other, place, caplog):
    content, expected = PLACES[place](state, other), digest(from_timm(NETWORK, saved(tmp_path, state, "plain.pth")))
    with caplog.at_level(logging.INFO, "pucache"):
        assert digest(from_timm(NETWORK, saved(tmp_path, content))) == expected
    if place in TOLD:
        assert [bool(re.search(TOLD[place] or "", text)) for text in caplog.messages] == [True] * bool(TOLD[place])
    if place in ("backbone", "head beside"):  # safetensors too, whatever the ending of their name
        safetensors.torch.save_file(content, tmp_path / "a.bin")
        assert digest(from_timm(NETWORK, tmp_path / "a.bin")) == expected


# --- numbers that mean nothing -------------------------------------------------------------------

WRONG = {
    "NaN": ("conv_head.weight", lambda tensor: tensor.index_fill(0, torch.tensor([0]), torch.nan), "holds NaN"),
    "infinity": ("bn1.bias", lambda tensor: tensor - torch.inf, "holds NaN, infinity"),
    "NaN in statistics": ("bn1.running_mean", lambda tensor: tensor * torch.nan, "holds NaN"),
    "negative variance": ("bn1.running_var", lambda tensor: -tensor, "negative variance in 1 tensors"),
    "quantised": ("conv_head.weight", lambda tensor: tensor.to(torch.int8), "has another type of 1 of"),
    "complex": ("bn1.bias", lambda tensor: tensor.to(torch.complex64), "has another type of 1 of"),
}


@pytest.mark.parametrize("form", ["weights.pth", "weights.safetensors"])
@pytest.mark.parametrize("problem", WRONG)
def test_weights_that_give_nonsense_are_refused_by_the_name_of_the_tensor(tmp_path, state, problem, form):
    tensor, change, expected = WRONG[problem]
    changed = state | {tensor: change(state[tensor]).contiguous()}
    (safetensors.torch.save_file if form.endswith("s") else torch.save)(changed, tmp_path / form)
    told = refusal(load_encoder, f"timm:{NETWORK}", weights=tmp_path / form, device="cpu")
    assert expected in told and tensor in told and str(tmp_path / form) in told


def test_a_head_with_nan_that_is_left_out_does_not_matter(tmp_path, state):
    path = saved(tmp_path, state | {"classifier.bias": state["classifier.bias"] * torch.nan})
    assert digest(from_timm(NETWORK, path))


# --- Checkpoints in their authors' own names: untrained networks of timm, written as those who trai---


def dinov3(model):
    """Meta's names; queries, keys and values have one bias, which is zero for keys."""
    state = renamed(model.state_dict(), (r"gamma_([12])", r"ls\1.gamma"), ("reg_token", "storage_tokens"))
    for block in range(len(model.blocks)):
        start = f"blocks.{block}.attn."
        query, value = (state.pop(f"{start}{part}_bias") for part in "qv")
        state[f"{start}qkv.bias"] = torch.cat([query, torch.zeros_like(query), value])
        state[f"{start}qkv.bias_mask"] = torch.ones(3 * len(query))
    return state | {"mask_token": torch.ones(1, 384), "rope_embed.periods": torch.ones(16)}


def blocks_in_groups(model):
    """As a training of DINOv2 on several machines keeps its teacher."""
    state = {f"backbone.{name}": tensor for name, tensor in dinov2(model).items()}
    return {"teacher": renamed(state, (r"blocks\.(\d)", r"blocks.0.\1"), (r"blocks\.0\.1(\d)", r"blocks.1.1\1"))}


def mae(model):
    decoder = {"decoder_pos_embed": torch.ones(1, 197, 8), "decoder_blocks.0.norm1.weight": torch.ones(8)}
    masks = {"mask_token": torch.ones(1, 1, 8), "masked_embed": torch.ones(1, 8)}  # the second is iBOT's
    return {"model": dict(model.state_dict()) | masks | decoder}


@pytest.mark.parametrize("name", ["mobilenetv3_large_100", NETWORK])
def test_a_mean_that_another_training_does_not_share_is_told_where_no_tag_is_named(tmp_path, name, caplog):
    path = saved(tmp_path, timm.create_model(name).state_dict())
    from_timm(f"{name}.{timm.get_pretrained_cfg(name).tag}", path)
    assert not caplog.text
    from_timm(name, path)
    assert ("no tag says how its images were prepared" in caplog.text) == (name != NETWORK)


def test_a_fine_tuned_mae_normalises_the_mean_as_it_was_trained(tmp_path):
    model = network("vit_tiny_patch16_224", global_pool="avg")
    assert "fc_norm.weight" in model.state_dict()
    torch.save({"model": model.state_dict() | {"head.weight": torch.ones(3, 192)}}, tmp_path / "weights.pth")
    loaded = from_timm("vit_tiny_patch16_224", tmp_path / "weights.pth").eval()
    with torch.inference_mode():
        torch.testing.assert_close(loaded(IMAGES), model(IMAGES))


def test_positions_of_another_grid_are_resampled_and_the_line_says_so(tmp_path, caplog):
    model = network("vit_small_patch14_dinov2", img_size=224)
    torch.save(dinov2(model), tmp_path / "weights.pth")
    options = {"weights": tmp_path / "weights.pth", "device": "cpu", "runtime": "torch"}
    with caplog.at_level(logging.INFO, "pucache"):
        small, large = (load_encoder("timm:vit_small_patch14_dinov2", image_size=n, **options).spec for n in (224, 280))
    assert small.input_size == (224, 224) and large.input_size == (280, 280)
    assert small.differences(large) == ["weights", "input_size"]
    told = [message for message in caplog.messages if "resampled" in message]
    assert len(told) == 1 and "pos_embed resampled from 257 to 401 positions" in told[0]


RESNET = timm.create_model("resnet18", num_classes=0)
RESNETS = {
    "children": {"state_dict": under("backbone.", torch.nn.Sequential(*RESNET.children()).state_dict())},
    "half, with its counts": {name: tensor.half() for name, tensor in RESNET.state_dict().items()},
    "another library's classifier": RESNET.state_dict() | {"last_linear.bias": torch.ones(9)},
}


@pytest.mark.parametrize("form", RESNETS)
def test_a_resnet_without_its_classifier_is_found(tmp_path, form):
    loaded = from_timm("resnet18", saved(tmp_path, RESNETS[form])).state_dict()
    for name, tensor in RESNET.state_dict().items():
        torch.testing.assert_close(loaded[name].float(), tensor.float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("prefix", ["", "module.", "model.backbone."])
def test_names_of_torchvision_are_those_of_timm_where_timm_knows_them(tmp_path, prefix):
    theirs = torchvision.models.regnet_y_400mf(num_classes=2).eval()
    loaded = from_timm("regnety_004", saved(tmp_path, under(prefix, theirs.state_dict()))).eval()
    theirs.fc = torch.nn.Identity()
    with torch.inference_mode():
        torch.testing.assert_close(loaded(IMAGES), theirs(IMAGES))


STATES = {  # network, its tensors, and what is wrong with them
    "patches of another size": (
        "test_vit",
        lambda state: state | {PATCHES: state[PATCHES][..., ::2, ::2].clone()},
        rf"has another shape of 1 of .*{PATCHES}",
    ),
    # timm resamples those of FlexiViT by another kernel, which this way does not know
    "positions": ("flexivit_small", dict, r"\(pos_embed\); .* export theirs to ONNX"),
    # a traceback had ended the command
    "a table of one dimension": ("test_vit", lambda state: {"patch_embed.pos": torch.ones(3), **state}, "unknown 1 of"),
}


@pytest.mark.parametrize("kind", STATES)
def test_tensors_that_are_not_those_of_the_network_are_refused(tmp_path, kind):
    name, change, told = STATES[kind]
    state = timm.create_model(name, **{"img_size": 224} if kind == "positions" else {}).state_dict()
    assert re.search(told, refusal(from_timm, name, saved(tmp_path, change(state))))


# --- Untrained networks of timm, written by the names that transformers 5.24 gives the same network---

EMBEDDINGS = [
    (r"^(cls_token|mask_token|register_tokens)$", r"embeddings.\1"),
    ("^pos_embed$", "embeddings.position_embeddings"),
]
SEPARATE = {"q": "query", "k": "key", "v": "value"}


def split(state, pattern):
    """Queries, keys and values as three tensors, each by `pattern` with its letter."""
    parts = {}
    for name, tensor in state.items():
        if ".attn.qkv." not in name:
            parts[name] = tensor
            continue
        for letter, part in zip("qkv", tensor.chunk(3), strict=True):
            parts[name.replace("attn.qkv", pattern.format(letter=letter, word=SEPARATE[letter]))] = part
    return parts


def dinov2_of_hub(state):
    return renamed(
        split(state, "attention.attention.{word}"),
        *EMBEDDINGS,
        (r"^patch_embed\.proj", "embeddings.patch_embeddings.projection"),
        (r"attn\.proj", "attention.output.dense"),
        (r"ls([12])\.gamma", r"layer_scale\1.lambda1"),
        (r"^norm", "layernorm"),
        (r"^blocks", "encoder.layer"),
    )


def vit(model):
    return renamed(
        dinov2_of_hub(model.state_dict()),
        (r"norm1", "layernorm_before"),
        (r"norm2", "layernorm_after"),
        (r"mlp\.fc1", "intermediate.dense"),
        (r"mlp\.fc2", "output.dense"),
    ) | {"pooler.dense.weight": torch.ones(3, 3)}


def mae_of_transformers_names(model):
    encoder = {f"vit.{name}": tensor for name, tensor in vit(model).items() if "pooler" not in name}
    return encoder | {"decoder.decoder_pos_embed": torch.ones(1, 197, 8), "decoder.mask_token": torch.ones(1, 1, 8)}


def dinov3_of_transformers_names(model):
    state = renamed(
        split(model.state_dict(), "attention.{letter}_proj"),
        (r"attn\.([qv])_bias", r"attention.\1_proj.bias"),
        (r"^reg_token", "register_tokens"),
        *EMBEDDINGS,
        (r"^patch_embed\.proj", "embeddings.patch_embeddings"),
        (r"attn\.proj", "attention.o_proj"),
        (r"gamma_([12])", r"layer_scale\1.lambda1"),
        (r"mlp\.fc1_g", "mlp.gate_proj"),
        (r"mlp\.fc1(_x)?\.", "mlp.up_proj."),
        (r"mlp\.fc2", "mlp.down_proj"),
        (r"^blocks", "layer"),
    )
    return state | {"embeddings.mask_token": torch.ones(1, 1, 384)}


def vision_tower(model):
    """SigLIP's and CLIP's, with the tower of texts beside it."""
    state = renamed(
        split(model.state_dict(), "self_attn.{letter}_proj"),
        (r"^patch_embed\.proj", "embeddings.patch_embedding"),
        (r"^pos_embed", "embeddings.position_embedding.weight"),
        (r"^cls_token", "embeddings.class_embedding"),
        (r"^norm_pre", "pre_layrnorm"),
        (r"^norm\.", "post_layernorm."),
        (r"\.norm([12])", r".layer_norm\1"),
        (r"attn\.proj", "self_attn.out_proj"),
        (r"^blocks", "encoder.layers"),
        (r"^attn_pool\.latent", "head.probe"),
        (r"^attn_pool\.proj", "head.attention.out_proj"),
        (r"^attn_pool\.norm", "head.layernorm"),
        (r"^attn_pool\.mlp", "head.mlp"),
    )
    for kind in ("weight", "bias") if "head.probe" in state else ():
        parts = [state.pop(f"attn_pool.{part}.{kind}") for part in ("q", "kv")]
        state[f"head.attention.in_proj_{kind}"] = torch.cat(parts)
    flat = {name: tensor.view(-1, tensor.shape[-1]) for name, tensor in state.items() if "position_emb" in name}
    flat |= {name: tensor.flatten() for name, tensor in state.items() if "class_emb" in name}
    text = {
        "text_model.encoder.layers.0.layer_norm1.weight": torch.ones(3),
        "visual_projection.weight": torch.ones(3, 3),
    }
    return {f"vision_model.{name}": tensor for name, tensor in (state | flat).items()} | text


FILES = {  # network of timm, what the file of its authors or of transformers holds, and settings
    "DINOv2": ("vit_small_patch14_dinov2", dinov2, {"img_size": 224}),
    "DINOv2, blocks in groups": ("vit_small_patch14_dinov2", blocks_in_groups, {"img_size": 224}),
    "DINOv2, registers": ("vit_small_patch14_reg4_dinov2", dinov2_with_registers, {"img_size": 224}),
    "DINOv3": ("vit_small_patch16_dinov3_qkvb", dinov3, {"img_size": 224}),
    "MAE": ("vit_tiny_patch16_224", mae, {}),
    "ViT of transformers": ("vit_tiny_patch16_224", vit, {}),
    "MAE of transformers": ("vit_tiny_patch16_224", mae_of_transformers_names, {}),
    "DINOv2, registers of transformers": (
        "vit_small_patch14_reg4_dinov2",
        lambda model: dinov2_of_hub(dinov2_with_registers(model)),
        {"img_size": 224},
    ),
    "DINOv3, gated": ("vit_small_plus_patch16_dinov3_qkvb", dinov3_of_transformers_names, {"img_size": 224}),
    "SigLIP": ("vit_base_patch16_siglip_224", vision_tower, {}),
    "CLIP": ("vit_base_patch32_clip_quickgelu_224", vision_tower, {}),
}
SLOW = {"SigLIP", "CLIP", "DINOv2", "MAE", "ViT of transformers"}  # large, or with fewer names than another


@pytest.mark.parametrize("family", [slow(family) if family in SLOW else family for family in FILES])
def test_a_file_of_the_authors_or_of_transformers_gives_the_embeddings_of_the_network(tmp_path, family):
    name, written, settings = FILES[family]
    model = network(name, **settings)
    torch.save(written(model), tmp_path / "weights.pth")
    with torch.inference_mode():
        loaded = from_timm(name, tmp_path / "weights.pth", image_size=(224, 224)).eval()
        assert torch.cosine_similarity(loaded(IMAGES), model(IMAGES)).min() > 0.9999
