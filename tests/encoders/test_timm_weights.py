"""Checkpoints in their authors' own names: untrained networks of timm, written as those who train them do."""

import logging

import pytest
import timm
import torch
from helpers.authors import IMAGES, dinov2, dinov2_with_registers, network, renamed
from helpers.refusals import one_line
from helpers.slow import slow

from pucache.encoders.backbones import from_timm
from pucache.encoders.encoder import load_encoder
from pucache.errors import EncoderError

pytestmark = pytest.mark.usefixtures("one_thread")


def dinov3(model):
    """Meta's names; queries, keys and values have one bias, which is zero for keys."""
    state = renamed(model.state_dict(), (r"gamma_([12])", r"ls\1.gamma"), ("reg_token", "storage_tokens"))
    for block in range(len(model.blocks)):
        start = f"blocks.{block}.attn."
        query, value = (state.pop(f"{start}{part}_bias") for part in "qv")
        state[f"{start}qkv.bias"] = torch.cat([query, torch.zeros_like(query), value])
        state[f"{start}qkv.bias_mask"] = torch.ones(3 * len(query))
    return state | {"mask_token": torch.ones(1, 384), "rope_embed.periods": torch.ones(16)}


def mae(model):
    decoder = {"decoder_pos_embed": torch.ones(1, 197, 8), "decoder_blocks.0.norm1.weight": torch.ones(8)}
    return {"model": dict(model.state_dict()) | {"mask_token": torch.ones(1, 1, 8)} | decoder}


def clip(model):
    """OpenAI's names, with both towers."""
    state = renamed(
        model.state_dict(),
        (r"^patch_embed\.proj", "conv1"),
        (r"^pos_embed", "positional_embedding"),
        (r"^cls_token", "class_embedding"),
        (r"^norm_pre", "ln_pre"),
        (r"^norm\.", "ln_post."),
        (r"\.norm([12])", r".ln_\1"),
        (r"qkv\.", "in_proj_"),
        (r"attn\.proj", "attn.out_proj"),
        (r"mlp\.fc1", "mlp.c_fc"),
        (r"mlp\.fc2", "mlp.c_proj"),
        (r"^blocks", "transformer.resblocks"),
    )
    state["class_embedding"], state["positional_embedding"] = (
        state["class_embedding"].flatten(),
        state["positional_embedding"][0],
    )
    return {f"visual.{name}": tensor for name, tensor in state.items()} | {
        "visual.proj": torch.ones(768, 512),
        "token_embedding.weight": torch.ones(3, 3),
    }


AUTHORS = {  # network of timm, what its authors' file holds, and settings
    "DINOv2": ("vit_small_patch14_dinov2", dinov2, {"img_size": 224}),
    "DINOv2, registers": ("vit_small_patch14_reg4_dinov2", dinov2_with_registers, {"img_size": 224}),
    "DINOv3": ("vit_small_patch16_dinov3_qkvb", dinov3, {"img_size": 224}),
    "MAE": ("vit_tiny_patch16_224", mae, {}),
    "CLIP": ("vit_base_patch32_clip_quickgelu_224", clip, {}),
}


@pytest.mark.parametrize("family", [slow(family) if family == "CLIP" else family for family in AUTHORS])
def test_a_file_of_the_authors_gives_the_embeddings_of_the_network(tmp_path, family):
    name, of_authors, settings = AUTHORS[family]
    model = network(name, **settings)
    torch.save(of_authors(model), tmp_path / "weights.pth")
    with torch.inference_mode():
        loaded = from_timm(name, tmp_path / "weights.pth", image_size=(224, 224)).eval()
        assert torch.cosine_similarity(loaded(IMAGES), model(IMAGES)).min() > 0.9999


@pytest.mark.parametrize("family", ["DINOv2", "MAE"])
def test_what_an_encoder_never_has_is_left_out_and_named(tmp_path, caplog, family):
    name, of_authors, settings = AUTHORS[family]
    torch.save(of_authors(network(name, **settings)), tmp_path / "weights.pth")
    with caplog.at_level(logging.INFO, "pucache"):
        from_timm(name, tmp_path / "weights.pth", image_size=(224, 224))
    (line,) = caplog.messages
    assert "mask_token" in line and line.endswith("left out") and ("decoder_blocks" in line) == (family == "MAE")


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
    with caplog.at_level(logging.INFO, "pucache"):
        X = {
            side: load_encoder(
                "timm:vit_small_patch14_dinov2", weights=tmp_path / "weights.pth", image_size=side, device="cpu"
            )
            for side in (224, 518)
        }
    assert X[224].spec.input_size == (224, 224) and X[518].spec.input_size == (518, 518)
    assert X[224].spec.differences(X[518].spec) == ["weights", "input_size"]
    told = [message for message in caplog.messages if "resampled" in message]
    assert len(told) == 1 and "pos_embed resampled from 257 to 1370 positions" in told[0]


def test_patches_of_another_size_are_refused(tmp_path):
    torch.save(timm.create_model("vit_small_patch16_224").state_dict(), tmp_path / "weights.pth")
    told = one_line(EncoderError, from_timm, "vit_small_patch32_224", tmp_path / "weights.pth")
    assert "has another shape of 1 of" in told and "patch_embed.proj.weight" in told


def test_positions_that_are_resampled_in_a_way_of_their_own_are_refused(tmp_path):
    """timm resamples those of FlexiViT by another kernel, which this way does not know."""
    torch.save(timm.create_model("flexivit_small", img_size=224).state_dict(), tmp_path / "weights.pth")
    told = one_line(EncoderError, from_timm, "flexivit_small", tmp_path / "weights.pth")
    assert told.endswith("(pos_embed); pass the weights of that model")
