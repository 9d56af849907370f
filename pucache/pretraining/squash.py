"""Bringing the images of a run to one square size.

The sides are squashed, in training as later in embedding, so that no part of an image is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from PIL import Image

from ..encoders.pretrained_file import Description
from ..errors import ImageError
from ..images.decoding import DECODER
from ..images.preprocessing import Preprocess
from .augmentations import View

_MIN_CROP_SIDE = 4  # pixels of the original image in the smallest crop
_SMALL_VIEW = 64  # views up to this size are cut from images of their own size


class Squash:
    """Resize an image to D x D pixels; picklable, so that worker processes can use it.

    Parameters
    ----------
    side : int
        D.
    interpolation : {"bilinear", "bicubic"}
    views : sequence of View
        The views that are cropped later. An image is refused if their smallest crop would have fewer
        than 4 pixels a side.

    Attributes
    ----------
    settings : dict
        Everything that determines the pixels, as JSON values.
    """

    def __init__(self, side: int, interpolation: str, views: Sequence[View]):
        config = {"input_size": (3, side, side), "interpolation": interpolation, "crop_pct": 1.0, "crop_mode": "squash"}
        self._resize = Preprocess(config, _no_transform)
        self.input_size, self.sufficient_side = self._resize.input_size, self._resize.sufficient_side
        self._min_side = min(side, math.ceil(_MIN_CROP_SIDE / math.sqrt(min(v.area[0] / v.ratio for v in views))))
        self.settings = {"side": side, "interpolation": interpolation, "least": self._min_side, "decoder": DECODER}

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Return uint8 (D, D, 3)."""
        if min(image.size) < self._min_side:
            raise ImageError(
                f"{image.width} x {image.height} pixels, too small for the crop: the smallest one would be under "
                f"{_MIN_CROP_SIDE} pixels (each side must have {self._min_side})"
            )
        return self._resize(image)


def _no_transform(image: Image.Image) -> torch.Tensor:
    raise AssertionError("squashing needs no transform of timm's")


def squash_for(description: Description, views: Sequence[View]) -> Squash:
    """Resizing for a network: views over 64 pixels are cut from images 8/7 as large, so that crops keep detail."""
    size = description.size
    side = size if size <= _SMALL_VIEW else round(size * 8 / 7)
    return Squash(side, description.interpolation, views)
