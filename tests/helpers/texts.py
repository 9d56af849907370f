"""A small text encoder with random weights, in the files of sentence-transformers."""

import json

import torch
from safetensors.torch import save_file

LETTERS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz ,:()-'"]  # its tokens
WIDTH, INNER = 16, 32
CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "layer_norm_eps": 1e-12,
}


def save_text_encoder(folder, **changed):
    """Write config, tokenizer and weights into a folder; `changed` are entries of the config."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    folder.mkdir(exist_ok=True)
    numbers = {letter: number for number, letter in enumerate(LETTERS)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(CONFIG | changed))
    save_file(random_tensors(), folder / "model.safetensors")
    return folder


def random_tensors(layers=2):
    """Tensors under the names of BERT."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "embeddings.word_embeddings.weight": (len(LETTERS), WIDTH),
        "embeddings.position_embeddings.weight": (64, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        **_norm("embeddings.LayerNorm"),
    }
    for number in range(layers):
        layer = f"encoder.layer.{number}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            tensors |= _dense(f"{layer}attention.{name}", WIDTH, WIDTH)
        tensors |= _dense(layer + "intermediate.dense", INNER, WIDTH) | _dense(layer + "output.dense", WIDTH, INNER)
        tensors |= _norm(layer + "attention.output.LayerNorm") | _norm(layer + "output.LayerNorm")
    return {name: torch.randn(shape, generator=generator) for name, shape in tensors.items()}


def _dense(name, rows, columns):
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _norm(name):
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
