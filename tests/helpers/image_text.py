"""A small image-text model of open_clip with random weights, in a folder as its hub has them."""

import json

import torch
from safetensors.torch import save_file

ARCHITECTURE = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}
PREPROCESSING = {
    "mean": [0.48145466, 0.4578275, 0.40821073],
    "std": [0.26862954, 0.26130258, 0.27577711],
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}


def save_image_text(folder, *, seed=0, architecture=ARCHITECTURE, **changed):
    """Write weights and configuration into a folder; `changed` are entries of the preprocessing."""
    import open_clip

    folder.mkdir(exist_ok=True)
    config = {"model_cfg": architecture, "preprocess_cfg": PREPROCESSING | changed}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = open_clip.CLIP(**architecture)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return folder
