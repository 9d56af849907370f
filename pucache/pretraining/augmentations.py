"""Random views of images: a crop, flips, colour, grey, blur and solarisation, each image by its own draw.

A view is a function of an image and of a row of numbers in [0, 1), `DRAWN` of them, which depend on the
seed, the step and the image's place in the batch. So a view is the same on any device, in any number of
processes and after any interruption, up to rounding.

Crop, resize, flips and blur are linear along each axis, so together they are one matrix for the rows
and one for the columns of each image; the colour operations are affine in the three channels, so
together they are one 3 x 4 matrix for each image. A view therefore costs three small matrix products,
whatever is in it. Colours leave [0, 1] only between the operations and are clipped once, at the end;
hue is turned in YIQ, not in HSV. So brightness, contrast, saturation and hue commute, and no order of
them is drawn.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from ..storage.atomic import check_writable, replacing

_NAMES = (
    "area ratio left top flip turn_over transpose jitter brightness contrast saturation hue grey blur sigma "
    "solarize".split()
)
DRAWN = len(_NAMES)
_GREY = (0.299, 0.587, 0.114)  # luma of ITU-R BT.601
_TO_YIQ = (_GREY, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))
_FROM_YIQ = tuple(map(tuple, np.linalg.inv(_TO_YIQ).tolist()))
_SIDE = 224  # pixels in which the width of a blur is told
_VIEWS = 1  # keeps the draws of a step apart from the order of the images in the epoch of that number


@dataclass(frozen=True)
class View:
    """What may happen to an image, and how probably.

    Attributes
    ----------
    area : tuple of float
        Least and greatest share of the image's area that is cropped.
    ratio : float
        Greatest ratio of the crop's sides to that of the image, either way.
    flip, turn_over, transpose : float
        Probabilities of a mirror left to right, top to bottom, and along the diagonal.
    jitter : float
        Probability of the next four.
    brightness, contrast, saturation : float
        Factors are drawn from 1 - x to 1 + x.
    hue : float
        Turned by up to so many full circles, either way.
    grey : float
        Probability of all colour being taken away.
    blur : float
        Probability of a Gaussian blur.
    sigma : tuple of float
        Its least and greatest width, in pixels of a view of 224; it grows with the view. One so small that
        the greatest is under 0.35 of its own pixels (2.0 in a view under 40) is never blurred.
    solarize : float
        Probability that what is brighter than one half is inverted.
    """

    area: tuple[float, float] = (0.2, 1.0)
    ratio: float = 4 / 3
    flip: float = 0.5
    turn_over: float = 0.0
    transpose: float = 0.0
    jitter: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    grey: float = 0.2
    blur: float = 0.0
    sigma: tuple[float, float] = (0.1, 2.0)
    solarize: float = 0.0


_whole = View((0.3, 1.0), turn_over=0.5, saturation=0.2, hue=0.02)
_toneless = View(contrast=0.6, saturation=0.0, hue=0.0, grey=0.0)
VIEWS: dict[str, tuple[View, ...]] = {
    # as the authors' code has it: the strengths and the crops of SimCLR on ImageNet
    "impulses": (View((0.08, 1.0), brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2),),
    # half the strength of colour; the two views differ in blur and solarisation, as in Grill et al. 2020, table 6
    "natural": (View(blur=0.5), View(blur=0.1, solarize=0.1)),
    # colour and the whole of the image carry the diagnosis: larger crops, hue and saturation nearly kept
    "medical": (replace(_whole, grey=0.0, blur=0.5), replace(_whole, grey=0.1, blur=0.1)),
    # from above there is no up: all eight symmetries
    "overhead": (View(turn_over=0.5, transpose=0.5, blur=0.3), View(turn_over=0.5, transpose=0.5, solarize=0.1)),
    # X-rays, scans, prints: nothing that needs colour
    "grey": (replace(_toneless, blur=0.5), replace(_toneless, blur=0.1, solarize=0.1)),
}


def draw(seed: int, step: int, images: int, views: int) -> torch.Tensor:
    """Numbers for the views of one batch, float32 (images, views, DRAWN) in [0, 1)."""
    # not by torch.Generator, of whose seed only 32 bits count: among 100,000 steps some would draw the same
    return torch.from_numpy(np.random.default_rng((seed, step, _VIEWS)).random((images, views, DRAWN), np.float32))


class Augment:
    """Make views of images.

    Parameters
    ----------
    views : sequence of View
        Taken in turn where more views are asked for.
    size : int
        Side of a view, in pixels.
    """

    def __init__(self, views: Sequence[View], size: int):
        self.views, self.size = tuple(views), size

    def __call__(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """Return views, float32 in [0, 1], (M, b, 3, size, size).

        Parameters
        ----------
        images : uint8 tensor, (b, D, D, 3)
        drawn : float32 tensor, (b, M, DRAWN)
            See `draw`; on any device.
        """
        pixels = images.permute(0, 3, 1, 2).float().div_(255)
        drawn = drawn.to(images.device)
        made = [self._one(pixels, self.views[m % len(self.views)], drawn[:, m]) for m in range(drawn.shape[1])]
        return torch.stack(made)

    def _one(self, pixels: torch.Tensor, view: View, drawn: torch.Tensor) -> torch.Tensor:
        u = dict(zip(_NAMES, drawn.T, strict=True))
        x = self._reshaped(pixels, view, u)
        x = _coloured(x, view, u)
        if view.solarize:
            x = torch.where((u["solarize"] < view.solarize)[:, None, None, None] & (x >= 0.5), 1 - x, x)
        return x

    def _reshaped(self, pixels: torch.Tensor, view: View, u: dict[str, torch.Tensor]) -> torch.Tensor:
        """Crop, resize, flip and blur: (b, 3, D, D) -> (b, 3, size, size)."""
        b, channels, D, _ = pixels.shape
        low, high = view.area
        area = low + (high - low) * u["area"]
        reach = torch.minimum(-area.log(), torch.full_like(area, math.log(view.ratio)))  # the crop is in the image
        ratio = torch.exp((2 * u["ratio"] - 1) * reach)
        width, height = (area * ratio).sqrt(), (area / ratio).sqrt()
        blur = self._blur(view, u)
        columns = self._axis(u["left"] * (1 - width), width, D, u["flip"] < view.flip, blur)
        rows = self._axis(u["top"] * (1 - height), height, D, u["turn_over"] < view.turn_over, blur)
        x = torch.bmm(pixels.reshape(b, channels * D, D), columns.transpose(1, 2)).view(b, channels, D, self.size)
        x = torch.matmul(rows[:, None], x)
        if view.transpose:
            x = torch.where((u["transpose"] < view.transpose)[:, None, None, None], x.transpose(2, 3), x)
        return x

    def _axis(
        self, start: torch.Tensor, length: torch.Tensor, D: int, mirrored: torch.Tensor, blur: torch.Tensor | None
    ) -> torch.Tensor:
        """Weights of D pixels in each of `size`, (b, size, D): bilinear, with antialiasing where it shrinks."""
        at = (torch.arange(self.size, device=start.device) + 0.5) / self.size
        at = torch.where(mirrored[:, None], 1 - at, at)
        centre = (start[:, None] + length[:, None] * at) * D - 0.5
        reach = (length * D / self.size).clamp_min(1)
        pixel = torch.arange(D, device=start.device)
        weights = (1 - (pixel - centre[:, :, None]).abs() / reach[:, None, None]).clamp_min(0)
        weights = weights / weights.sum(2, keepdim=True)
        return weights if blur is None else torch.bmm(blur, weights)

    def _blur(self, view: View, u: dict[str, torch.Tensor]) -> torch.Tensor | None:
        """Gaussian weights of `size` pixels in each, (b, size, size); the unit matrix where there is no blur."""
        low, high = (sigma * self.size / _SIDE for sigma in view.sigma)
        if not view.blur or high < 0.35:  # its neighbours would weigh less than 2 % each
            return None
        sigma = torch.where(u["blur"] < view.blur, low + (high - low) * u["sigma"], 0.0).clamp_min(0.01)
        pixel = torch.arange(self.size, device=sigma.device)
        weights = torch.exp(-0.5 * ((pixel - pixel[:, None]) / sigma[:, None, None]).square())
        return weights / weights.sum(2, keepdim=True)


def _coloured(x: torch.Tensor, view: View, u: dict[str, torch.Tensor]) -> torch.Tensor:
    """Jitter and grey: one affine map of the channels for each image, then clipped to [0, 1]."""
    b, _, *size = x.shape
    colour = _jitter(x.mean((2, 3)), view, u)
    if view.grey:
        grey = _constant(_GREY, x.device).expand(3, 3) @ colour
        colour = torch.where((u["grey"] < view.grey)[:, None, None], grey, colour)
    x = torch.baddbmm(colour[:, :, 3:], colour[:, :, :3], x.flatten(2))
    return x.clamp_(0, 1).view(b, 3, *size)


def _jitter(mean: torch.Tensor, view: View, u: dict[str, torch.Tensor]) -> torch.Tensor:
    """Brightness, contrast, saturation and hue, in any order: (b, 3, 4), last column a constant.

    Parameters
    ----------
    mean : tensor, (b, 3)
        Of the channels, towards whose grey the contrast goes.
    """
    b = len(mean)
    same = torch.eye(3, 4, device=mean.device).expand(b, 3, 4)
    if not view.jitter:
        return same
    brightness, contrast, saturation = (
        1 + getattr(view, name) * (2 * u[name] - 1) for name in ("brightness", "contrast", "saturation")
    )
    level = brightness * (1 - contrast) * (mean @ _constant(_GREY, mean.device))
    chroma = _chroma(saturation, 2 * math.pi * view.hue * (2 * u["hue"] - 1))
    colour = (brightness * contrast)[:, None, None] * chroma
    colour = torch.cat([colour, level[:, None, None].expand(b, 3, 1)], 2)
    return torch.where((u["jitter"] < view.jitter)[:, None, None], colour, same)


def _chroma(factor: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Matrices that multiply the saturation and turn the hue, (b, 3, 3): they stretch and turn the IQ plane of YIQ."""
    to_yiq, from_yiq = _constant(_TO_YIQ, angle.device), _constant(_FROM_YIQ, angle.device)
    cos, sin, one, none = factor * angle.cos(), factor * angle.sin(), torch.ones_like(angle), torch.zeros_like(angle)
    turn = torch.stack([one, none, none, none, cos, -sin, none, sin, cos], 1).view(-1, 3, 3)
    return from_yiq @ turn @ to_yiq


@functools.cache
def _constant(values: tuple, device: torch.device) -> torch.Tensor:
    """A tensor, made once: to bring one to a GPU waits for everything that is under way there."""
    return torch.tensor(values, device=device)


def preview(path: str | Path, images: torch.Tensor, augment: Augment, drawn: torch.Tensor) -> None:
    """Draw each image and its views side by side, a row each, into a PNG.

    Parameters
    ----------
    path : path
    images : uint8 tensor, (b, D, D, 3)
    augment : Augment
    drawn : float32 tensor, (b, M, DRAWN)

    Raises
    ------
    OutputError
        It cannot be written.
    """
    views = augment(images, drawn)
    M, side, gap, top = len(views), max(96, min(augment.size, 224)), 4, 18
    sheet = Image.new("RGB", ((M + 1) * (side + gap) + gap, top + len(images) * (side + gap)), "white")
    pen = ImageDraw.Draw(sheet)
    for column, title in enumerate(["original", *(f"view {m % len(augment.views) + 1}" for m in range(M))]):
        pen.text((gap + column * (side + gap), 3), title, fill="black")
    for row, original in enumerate(images):
        pictures = [original, *(views[:, row].permute(0, 2, 3, 1) * 255).round().to(torch.uint8)]
        for column, pixels in enumerate(pictures):
            tile = Image.fromarray(pixels.cpu().numpy()).resize((side, side), Image.Resampling.NEAREST)
            sheet.paste(tile, (gap + column * (side + gap), top + row * (side + gap)))
    with replacing(check_writable(path)) as temporary:
        sheet.save(temporary, "PNG")
