"""Resizing and cropping of images to an encoder's input size, following timm's configuration of the model.

Sizes and crops equal timm's to the pixel. For bicubic and bilinear models the resampling is torch's
antialiased uint8 kernel: the same filter as Pillow's at several times its speed, and except for extreme
squashing within two grey levels of it. Every other model uses timm's own transform. Networks that bring no
configuration have what the user states (`preprocessing`), or the preprocessor_config.json of transformers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..errors import EncoderError, ImageError, one_line

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


PREPROCESSOR_FILE = "preprocessor_config.json"
_INTERPOLATIONS = {2: "bilinear", 3: "bicubic"}  # by the numbers of Pillow


def preprocessing(
    image_size: int | Sequence[int],
    mean: Sequence[float],
    std: Sequence[float],
    interpolation: str = "bicubic",
    crop: float | str = 1.0,
) -> dict[str, Any]:
    """Preprocessing in timm's terms; raises `ValueError` where it makes no sense.

    Parameters
    ----------
    image_size : int, or (height, width)
        Pixels that the network takes.
    mean, std : three numbers
        Per channel, of pixels in [0, 1].
    interpolation : {"bicubic", "bilinear"}
    crop : float or "squash"
        Share of the shorter side that the crop of the centre keeps, in (0, 1]; or the whole image is resized to the
        input size, whatever its aspect.
    """
    sides = [image_size] * 2 if isinstance(image_size, int) else image_size
    kept = 1.0 if crop == "squash" else float(crop)
    sound = min(sides) > 0 and 0 < kept <= 1 and len(mean) == len(std) == 3 and min(std) > 0
    if not sound or interpolation not in _INTERPOLATIONS.values():
        raise ValueError(
            "expected an image size above 0, three numbers for mean and std, std above 0, bicubic or bilinear, a crop "
            f"in (0, 1] or squash; got {image_size}, {mean}, {std}, {interpolation}, {crop}"
        )
    return {
        "input_size": (3, *sides),
        "mean": tuple(map(float, mean)),
        "std": tuple(map(float, std)),
        "interpolation": interpolation,
        "crop_pct": kept,
        "crop_mode": "squash" if crop == "squash" else "center",
    }


def read_options(path: Path) -> dict[str, Any]:
    """Arguments of `preprocessing` in a file of transformers; raises `EncoderError` where it needs others."""
    try:
        given = json.loads(path.read_bytes())
        scale = 255 * (given.get("rescale_factor", 1 / 255) if given.get("do_rescale", True) else 1)
        is_normalised, size = given.get("do_normalize", True), given["size"]
        mean, std = (given["image_mean"], given["image_std"]) if is_normalised else ([0.0] * 3, [1.0] * 3)
        side, shorter = _side(size), isinstance(size, dict) and "shortest_edge" in size
        kept = _side(given["crop_size"]) if given.get("do_center_crop") else side
        if not given.get("do_resize", True) or shorter != (given.get("do_center_crop") or False):
            raise ValueError("it does not resize and crop to one size")
        return {
            "image_size": kept,
            "mean": [round(value / scale, 9) for value in mean],
            "std": [round(value / scale, 9) for value in std],
            "interpolation": _INTERPOLATIONS[given.get("resample", 3)],
            # a little less than the quotient, as the side before the crop is rounded down
            "crop": kept / (side + 1e-6) if shorter else "squash",
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise EncoderError(
            f"{path} has no preprocessing that pucache knows ({one_line(error, 120)}); use options"
        ) from error


def _side(size: Any) -> int:
    """Side of a square, or the shorter one, in pixels."""
    sides = set(size.values()) if isinstance(size, dict) else {size}
    if len(sides) != 1:
        raise ValueError(f"a size of {size}; expected a square")
    return int(*sides)
