"""Tensors of transformers' vision towers by the names of timm: ViT, ViT-MAE, DINOv2, DINOv3, SigLIP and CLIP.

Where timm's own filter renames what the authors of DINO published, tensors get the authors' names.
"""

from __future__ import annotations

import re

import torch

_RULES = {  # in this order; what stands before a name is kept
    r"head\.probe$": "attn_pool.latent",
    r"head\.attention\.in_proj_": "attn_pool.qkv.",
    r"head\.attention\.out_proj\.": "attn_pool.proj.",
    r"head\.layernorm\.": "attn_pool.norm.",
    r"head\.mlp\.": "attn_pool.mlp.",
    r"embeddings\.(cls_token|mask_token|register_tokens)$": r"\1",
    r"embeddings\.class_embedding$": "cls_token",
    r"embeddings\.position_embedding(?:s|\.weight)$": "pos_embed",
    r"embeddings\.patch_embedding(?:s\.projection|s)?\.": "patch_embed.proj.",
    r"(?:encoder\.|model\.)?layers?\.(\d+)\.": r"blocks.\1.",
    r"attention\.(?:attention|output)\.|attention\.(?=[qkvo])|self_attn\.": "attn.",
    r"attn\.(?:dense|o_proj|out_proj)\.": "attn.proj.",
    r"attn\.([qkv])(?:uery|ey|alue|_proj)\.": r"attn.\1.",
    r"layernorm_before\.|layer_norm1\.": "norm1.",
    r"layernorm_after\.|layer_norm2\.": "norm2.",
    r"layer_scale([12])\.lambda1$": r"ls\1.gamma",
    r"intermediate\.dense\.|mlp\.weights_in\.": "mlp.fc1.",
    r"output\.dense\.|mlp\.weights_out\.": "mlp.fc2.",
    r"pre_layrnorm\.": "norm_pre.",  # as transformers spells it
    r"(?:post_)?layernorm\.": "norm.",
}
_PLAIN_MLP = {"up_proj": "fc1", "down_proj": "fc2"}
_GATED_MLP = {"gate_proj": "w1", "up_proj": "w2", "down_proj": "w3"}  # as in DINOv3
_PART = re.compile(r"attn\.([qkv])\.")


def timm_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors by other names, queries, keys and values in one; those of other programs as they are."""
    if not any(re.search(r"(^|\.)embeddings\.patch_embeddings?\.", name) for name in tensors):
        return tensors
    mlp = _GATED_MLP if any(".gate_proj." in name for name in tensors) else _PLAIN_MLP
    rules = {rf"(?<![^.]){pattern}": name for pattern, name in _RULES.items()}
    rules |= {rf"mlp\.{old}\.": f"mlp.{new}." for old, new in mlp.items()}
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        for pattern, substitute in rules.items():
            name = re.sub(pattern, substitute, name)
        is_flat = name.endswith(("cls_token", "pos_embed")) and tensor.ndim < 3
        renamed[name] = tensor.view(1, -1, tensor.shape[-1]) if is_flat else tensor
    if not any(name.endswith("pos_embed") for name in renamed):  # DINOv3, whose authors name its registers otherwise
        renamed = {name.replace("register_tokens", "storage_tokens"): tensor for name, tensor in renamed.items()}
    return _joined(renamed)


def _joined(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Queries, keys and values as one tensor in each block, and as two in a pooling layer."""
    joined: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if "attn_pool.qkv." in name:
            third = len(tensor) // 3
            joined[name.replace("qkv", "q")], joined[name.replace("qkv", "kv")] = tensor[:third], tensor[third:]
        elif not _PART.search(name):
            joined[name] = tensor
        elif ".q." in name:
            parts = [tensors.get(_PART.sub(f"attn.{part}.", name), torch.zeros_like(tensor)) for part in "qkv"]
            joined[_PART.sub("attn.qkv.", name)] = torch.cat(parts)  # keys have no bias in DINOv3
    return joined
