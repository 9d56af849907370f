"""Drawing views of a few images into a PNG, to choose them before training."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch.nn.functional import interpolate
from torchvision.utils import make_grid

from ..cache.embedding_cache import files_read
from ..errors import ImageError, SourceError
from ..images.decoding import decode
from ..images.source import Source, open_source
from ..storage.atomic import replacing
from ..storage.file_kinds import MARK, PNG
from ..storage.outputs import check_output
from .augmentations import VIEWS, Augment, random_numbers
from .dataset import list_images, squash_for
from .network import NetworkConfig, build_network
from .recipes import Recipe, find_recipe

_IMAGES, _VIEWS = 8, 6  # rows and columns of the sheet
_MAX_ATTEMPTS = 20 * _IMAGES  # images that are tried
_GAP = 4  # pixels


def show_views(
    source: str | os.PathLike[str] | Source,
    path: str | Path,
    network: NetworkConfig | None = None,
    recipe: str | Recipe = "modern",
    *,
    seed: int = 0,
) -> int:
    """Draw a few images of a source, each beside its views, into a PNG; returns the number of images drawn.

    `source` is what `pucache.open_source` takes or returns. The network determines the size of the views, the recipe
    the views, and `seed` the choice of images. Raises `SourceError` where the source holds no image, or none
    that can be used, and `OutputError` where the PNG cannot be written, as over a file of another kind.
    """
    path = check_output(path, PNG, inputs=files_read(source))
    recipe = find_recipe(recipe)
    source = open_source(source)
    listing = list_images(source)
    model = build_network(network or NetworkConfig(), norm=recipe.projector_norm, seed=seed)
    squash = squash_for(model.description, VIEWS[recipe.views])
    order = np.random.default_rng(seed).permutation(len(listing.keys))[:_MAX_ATTEMPTS]
    images: list[torch.Tensor] = []
    for row in order:
        with contextlib.suppress(ImageError):
            image = decode(source.read(listing.keys[row]), squash.sufficient_side, squash.decoding)
            images.append(squash(image).contiguous())
        if len(images) == _IMAGES:
            break
    if not images:
        raise SourceError(f"none of {len(order)} images of {source.name} can be used")
    size, pixels = model.description.size, torch.stack(images)  # (b, D, D, 3)
    views = Augment(VIEWS[recipe.views], size)(pixels, random_numbers(seed, 0, images=len(images), views=_VIEWS))
    side = max(96, min(size, 224))
    columns = [pixels.permute(0, 3, 1, 2) / 255, *views]  # the image and its views, (b, 3, H, W) each
    tiles = torch.stack([interpolate(column, side, mode="nearest-exact") for column in columns], 1)
    sheet = make_grid(tiles.flatten(0, 1), nrow=len(columns), padding=_GAP, pad_value=1)
    mark = PngInfo()
    mark.add_text("Software", MARK)
    with replacing(path) as temporary:
        Image.fromarray((sheet * 255 + 0.5).clamp(0, 255).byte().permute(1, 2, 0).numpy()).save(
            temporary, "PNG", pnginfo=mark
        )
    return len(images)
