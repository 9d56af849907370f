"""Untrained networks of timm, written by the names that transformers 5.24 gives the same networks."""

import re

import pytest
import torch
from helpers.authors import IMAGES, dinov2, dinov2_with_registers, network, renamed
from helpers.refusals import one_line
from helpers.slow import slow

from pucache.encoders.backbones import from_timm
from pucache.encoders.transformers_names import timm_names
from pucache.errors import EncoderError

pytestmark = pytest.mark.usefixtures("one_thread")
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


def vit(model):
    return renamed(
        split(model.state_dict(), "attention.attention.{word}"),
        *EMBEDDINGS,
        (r"^patch_embed\.proj", "embeddings.patch_embeddings.projection"),
        (r"attn\.proj", "attention.output.dense"),
        (r"norm1", "layernorm_before"),
        (r"norm2", "layernorm_after"),
        (r"mlp\.fc1", "intermediate.dense"),
        (r"mlp\.fc2", "output.dense"),
        (r"^norm", "layernorm"),
        (r"^blocks", "encoder.layer"),
    ) | {"pooler.dense.weight": torch.ones(3, 3)}


def mae(model):
    encoder = {f"vit.{name}": tensor for name, tensor in vit(model).items() if "pooler" not in name}
    return encoder | {"decoder.decoder_pos_embed": torch.ones(1, 197, 8), "decoder.mask_token": torch.ones(1, 1, 8)}


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


def dinov3(model):
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


OF_TRANSFORMERS = {
    "ViT": ("vit_tiny_patch16_224", vit, {}),
    "MAE": ("vit_tiny_patch16_224", mae, {}),
    "DINOv2": ("vit_small_patch14_dinov2", lambda model: dinov2_of_hub(dinov2(model)), {"img_size": 224}),
    "DINOv2, registers": (
        "vit_small_patch14_reg4_dinov2",
        lambda model: dinov2_of_hub(dinov2_with_registers(model)),
        {"img_size": 224},
    ),
    "DINOv3": ("vit_small_patch16_dinov3_qkvb", dinov3, {"img_size": 224}),
    "DINOv3, gated": ("vit_small_plus_patch16_dinov3_qkvb", dinov3, {"img_size": 224}),
    "SigLIP": ("vit_base_patch16_siglip_224", vision_tower, {}),
    "CLIP": ("vit_base_patch32_clip_quickgelu_224", vision_tower, {}),
}


LARGE = {"SigLIP", "CLIP"}


@pytest.mark.parametrize("family", [slow(family) if family in LARGE else family for family in OF_TRANSFORMERS])
def test_a_file_of_transformers_gives_the_embeddings_of_the_network(tmp_path, family):
    name, of_transformers, settings = OF_TRANSFORMERS[family]
    model = network(name, **settings)
    torch.save(of_transformers(model), tmp_path / "pytorch_model.bin")
    with torch.inference_mode():
        loaded = from_timm(name, tmp_path / "pytorch_model.bin", image_size=(224, 224)).eval()
        assert torch.cosine_similarity(loaded(IMAGES), model(IMAGES)).min() > 0.9999


def test_another_network_of_transformers_is_refused_by_name(tmp_path):
    state = {"swin.embeddings.patch_embeddings.projection.weight": torch.ones(96, 3, 4, 4)}
    torch.save(state, tmp_path / "pytorch_model.bin")
    told = one_line(EncoderError, from_timm, "vit_tiny_patch16_224", tmp_path / "pytorch_model.bin")
    assert re.search(r"does not fit vit_tiny_patch16_224: it lacks \d+ of", told)


def test_tensors_of_other_programs_keep_their_names():
    state = {"layer.0.conv.weight": torch.ones(1), "embeddings.weight": torch.ones(1)}
    assert timm_names(state) == state
