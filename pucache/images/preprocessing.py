"""Images -> uint8 pixels of the encoder's input size, as timm's configuration of the model names it.

The geometry is timm's to the pixel. The resampling of bicubic and bilinear models is torch's
antialiased uint8 kernel: the same filter as Pillow's, at several times its speed, and but for extreme
squashing within two grey levels of it. Every other model uses timm's own transform.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from ..errors import ImageError

MAX_ASPECT = 500  # models resize the shorter side, so the longer one grows with this
_FAST = ("bilinear", "bicubic")


class Preprocess:
    """Bring an RGB image to the model's input size; picklable, so that worker processes can use it.

    Parameters
    ----------
    config : dict
        ``input_size`` (3, H, W), ``interpolation``, ``crop_pct``, ``crop_mode``, in timm's terms.
    transform : callable
        What timm makes of that configuration: PIL image to uint8 (3, H, W).

    Attributes
    ----------
    input_size : tuple of int
        (H, W).
    fast : bool
        Whether torch resamples, and not `transform`.
    sufficient : int
        Short side in pixels beyond which more detail of the original hardly matters: twice the size
        it is brought to.
    """

    def __init__(self, config: dict[str, Any], transform: Callable[[Image.Image], torch.Tensor]):
        self.input_size: tuple[int, int] = tuple(config["input_size"][1:])  # type: ignore[assignment]
        self._mode, self._squash = config["interpolation"], config["crop_mode"] == "squash"
        self._resized = tuple(math.floor(side / config["crop_pct"]) for side in self.input_size)
        self.sufficient = 2 * max(self._resized)
        one_size = len(set(self._resized)) == 1
        crops = self._squash or (config["crop_mode"] == "center" and one_size)
        inside = all(have >= want for have, want in zip(self._resized, self.input_size, strict=True))
        fast = self._mode in _FAST and crops and inside and not config.get("crop_border_pixels")
        self._transform = transform
        self.fast = fast

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Return uint8 pixels, (H, W, 3), not always contiguous.

        Raises
        ------
        ImageError
            So narrow that bringing its short side to size would fill the memory.
        """
        width, height = image.size
        if max(image.size) > MAX_ASPECT * min(image.size):
            raise ImageError(f"{width} x {height} pixels; one side is more than {MAX_ASPECT} times the other")
        if not self.fast:
            return self._transform(image).permute(1, 2, 0)
        return self.resize(torch.from_numpy(np.array(image))[None].permute(0, 3, 1, 2))

    def resize(self, pixels: torch.Tensor) -> torch.Tensor:
        """Bring uint8 pixels, (1, 3, h, w) on any device, to (H, W, 3); only where `fast`."""
        height, width = pixels.shape[2:]
        size = self._target(height, width)
        if size != (height, width):
            on_cpu = pixels.device.type == "cpu"  # elsewhere the kernel knows no uint8
            resized = interpolate(pixels if on_cpu else pixels.float(), size, mode=self._mode, antialias=True)
            pixels = resized if on_cpu else resized.round_().clamp_(0, 255).to(torch.uint8)
        top, left = (round((have - want) / 2) for have, want in zip(size, self.input_size, strict=True))
        return pixels[0, :, top : top + self.input_size[0], left : left + self.input_size[1]].permute(1, 2, 0)

    def _target(self, height: int, width: int) -> tuple[int, ...]:
        if self._squash:
            return self._resized
        short = self._resized[0]
        long = int(short * max(height, width) / min(height, width))
        return (short, long) if height <= width else (long, short)
