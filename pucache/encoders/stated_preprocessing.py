"""Preprocessing of networks that bring none: what the user states, or preprocessor_config.json of transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import EncoderError, one_line

FILE = "preprocessor_config.json"
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
            f"{path} has no preprocessing that pucache knows ({one_line(error)[:120]}); use options"
        ) from error


def _side(size: Any) -> int:
    """Side of a square, or the shorter one, in pixels."""
    sides = set(size.values()) if isinstance(size, dict) else {size}
    if len(sides) != 1:
        raise ValueError(f"a size of {size}; expected a square")
    return int(*sides)
