"""Resizing and cropping of images to an encoder's input size, following timm's configuration of the model.

Sizes and crops equal timm's to the pixel. For bicubic and bilinear models the resampling is torch's
antialiased uint8 kernel: the same filter as Pillow's at several times its speed, and except for extreme
squashing within two grey levels of it. Every other model uses timm's own transform.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..errors import ImageError

if TYPE_CHECKING:
    import torch

MAX_ASPECT = 500  # models resize the shorter side, so the longer one grows with the aspect ratio
_FAST = ("bilinear", "bicubic")


class Preprocess:
    """Bring an RGB image to the model's input size, by timm's configuration and its transform to uint8 (3, H, W)."""

    def __init__(self, config: dict[str, Any], transform: Callable[[Image.Image], torch.Tensor]):
        self.input_size: tuple[int, int] = tuple(config["input_size"][1:])  # type: ignore[assignment]
        self._mode, self._squash = config["interpolation"], config["crop_mode"] == "squash"
        self._resized = tuple(math.floor(side / config["crop_pct"]) for side in self.input_size)
        # pixels beyond which the shorter side of an original adds hardly any detail: twice the size it is resized to
        self.sufficient_side = 2 * max(self._resized)
        square = len(set(self._resized)) == 1
        supported_crop = self._squash or (config["crop_mode"] == "center" and square)
        crop_inside = all(resized >= side for resized, side in zip(self._resized, self.input_size, strict=True))
        self._transform = transform
        # whether torch resamples instead of the transform
        self.fast = self._mode in _FAST and supported_crop and crop_inside and not config.get("crop_border_pixels")

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Resize and crop an RGB image to uint8, (H, W, 3), not always contiguous.

        Raises `ImageError` where the image is so narrow that resizing its shorter side would fill the memory.
        """
        import torch

        width, height = image.size
        if max(image.size) > MAX_ASPECT * min(image.size):
            raise ImageError(f"{width} x {height} pixels; one side is more than {MAX_ASPECT} times the other")
        if not self.fast:
            return self._transform(image).permute(1, 2, 0)
        pixels = torch.from_numpy(np.array(image))[None].permute(0, 3, 1, 2)
        size = self._resized_size(height, width)
        if size != (height, width):
            pixels = torch.nn.functional.interpolate(pixels, size, mode=self._mode, antialias=True)
        top, left = (round((resized - side) / 2) for resized, side in zip(size, self.input_size, strict=True))
        return pixels[0, :, top : top + self.input_size[0], left : left + self.input_size[1]].permute(1, 2, 0)

    def _resized_size(self, height: int, width: int) -> tuple[int, ...]:
        """Size before the crop."""
        if self._squash:
            return self._resized
        short = self._resized[0]
        long = int(short * max(height, width) / min(height, width))
        return (short, long) if height <= width else (long, short)
