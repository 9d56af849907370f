"""Random views of images: crop, flips, colour jitter, grey, blur and solarisation.

A view is a function of an image and of `N_RANDOM` random numbers in [0, 1), which depend on the seed, the
step and the position of the image in the batch. Up to rounding, a view is therefore the same on any device,
with any number of processes and after any interruption.

Crop, resize, flips and blur are linear along each axis. Together they are one matrix for the rows and one
for the columns of each image. The colour operations are affine in the three channels; together they are one
3 x 4 matrix per image. A view therefore costs three small matrix products. Colours are clipped to [0, 1]
once, at the end, and the hue is rotated in YIQ instead of HSV. Brightness, contrast, saturation and hue
therefore commute, and their order is not random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

_RANDOM_NAMES = (
    "area ratio left top flip turn_over transpose jitter brightness contrast saturation hue grey blur sigma "
    "solarize".split()
)
N_RANDOM = len(_RANDOM_NAMES)
_GREY = (0.299, 0.587, 0.114)  # luma of ITU-R BT.601
_TO_YIQ = (_GREY, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))
_BLUR_SIZE = 224  # view size in pixels for which the width of the blur is stated
_VIEW_STREAM = 1  # separates the random numbers of step i from the image order of epoch i


@dataclass(frozen=True)
class View:
    """Random operations that make a view of an image."""

    area: tuple[float, float] = (0.2, 1.0)  # smallest and largest share of the image's area in a crop
    ratio: float = 4 / 3  # largest aspect ratio of the crop relative to that of the image, in either direction
    flip: float = 0.5  # probability of a mirror left to right
    turn_over: float = 0.0  # probability of a mirror top to bottom
    transpose: float = 0.0  # probability of a mirror along the diagonal
    jitter: float = 0.8  # probability that brightness, contrast, saturation and hue change
    brightness: float = 0.4  # factor from [1 - x, 1 + x], as those of contrast and saturation
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1  # largest rotation in either direction, in full circles
    grey: float = 0.2  # probability that colour is removed
    blur: float = 0.0  # probability of a Gaussian blur
    # least and greatest standard deviation of the blur, in pixels of a view of 224; it scales with the view. There is
    # no blur if the greatest is under 0.35 pixels of the view (for 2.0, in views under 40).
    sigma: tuple[float, float] = (0.1, 2.0)
    solarize: float = 0.0  # probability that values above one half are inverted


_medical = View((0.3, 1.0), turn_over=0.5, saturation=0.2, hue=0.02)
_grey = View(contrast=0.6, saturation=0.0, hue=0.0, grey=0.0)
VIEWS: dict[str, tuple[View, ...]] = {
    # from the authors' code: strengths and crops of SimCLR on ImageNet
    "impulses": (View((0.08, 1.0), brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2),),
    # half the colour strength; the two views differ in blur and solarisation as in Grill et al. 2020, table 6
    "natural": (View(blur=0.5), View(blur=0.1, solarize=0.1)),
    # the diagnosis depends on colour and on the entire image: larger crops, little change of hue and saturation
    "medical": (replace(_medical, grey=0.0, blur=0.5), replace(_medical, grey=0.1, blur=0.1)),
    # images from above have no upright orientation: all eight symmetries
    "overhead": (View(turn_over=0.5, transpose=0.5, blur=0.3), View(turn_over=0.5, transpose=0.5, solarize=0.1)),
    # X-rays, scans, prints: no colour
    "grey": (replace(_grey, blur=0.5), replace(_grey, blur=0.1, solarize=0.1)),
}


def random_numbers(seed: int, step: int, *, images: int, views: int) -> torch.Tensor:
    """Random numbers for the views of one batch, float32 (images, views, N_RANDOM) in [0, 1)."""
    # torch.Generator uses only 32 bits of its seed: among 100,000 steps some would get the same numbers
    generator = np.random.default_rng((seed, step, _VIEW_STREAM))
    return torch.from_numpy(generator.random((images, views, N_RANDOM), np.float32))


class Augment:
    """Make views of images, (b, D, D, 3), of `size` pixels a side; `views` are used in turn if more are made."""

    def __init__(self, views: Sequence[View], size: int, device: torch.device | str = "cpu"):
        self.views, self.size = tuple(views), size
        # uploaded once: copying to a GPU would wait for its queue
        self._grey = torch.tensor(_GREY, device=device)
        self._basis = torch.from_numpy(_colour_basis()).to(device)
        self._identity = torch.eye(3, 4, device=device)

    def __call__(self, images: torch.Tensor, randoms: torch.Tensor) -> torch.Tensor:
        """Return views of uint8 images (b, D, D, 3): float32 in [0, 1], (M, b, 3, size, size).

        `images` are on the device of the constructor; `randoms` (b, M, N_RANDOM) are from `random_numbers`, on any.
        """
        pixels = images.permute(0, 3, 1, 2).float().div_(255)
        randoms = randoms.to(images.device)
        M = randoms.shape[1]
        return torch.stack([self._view(pixels, self.views[m % len(self.views)], randoms[:, m]) for m in range(M)])

    def _view(self, pixels: torch.Tensor, view: View, randoms: torch.Tensor) -> torch.Tensor:
        """One view of each image: (b, 3, D, D) -> (b, 3, size, size)."""
        u = dict(zip(_RANDOM_NAMES, randoms.T, strict=True))
        x = self._resample(pixels, view, u)
        x = self._adjust_colours(x, view, u)
        if view.solarize:
            x = torch.where((u["solarize"] < view.solarize)[:, None, None, None] & (x >= 0.5), 1 - x, x)
        return x

    def _resample(self, pixels: torch.Tensor, view: View, u: dict[str, torch.Tensor]) -> torch.Tensor:
        """Crop, resize, flip and blur: (b, 3, D, D) -> (b, 3, size, size)."""
        b, channels, D, _ = pixels.shape
        low, high = view.area
        area = low + (high - low) * u["area"]
        # |log ratio| <= -log area keeps the crop inside the image
        max_log_ratio = torch.minimum(-area.log(), torch.full_like(area, math.log(view.ratio)))
        ratio = torch.exp((2 * u["ratio"] - 1) * max_log_ratio)
        width, height = (area * ratio).sqrt(), (area / ratio).sqrt()
        blur = self._blur_weights(view, u)
        columns = self._axis_weights(u["left"] * (1 - width), width, D, u["flip"] < view.flip, blur)
        rows = self._axis_weights(u["top"] * (1 - height), height, D, u["turn_over"] < view.turn_over, blur)
        x = torch.bmm(pixels.reshape(b, channels * D, D), columns.transpose(1, 2)).view(b, channels, D, self.size)
        x = torch.matmul(rows[:, None], x)
        if view.transpose:
            x = torch.where((u["transpose"] < view.transpose)[:, None, None, None], x.transpose(2, 3), x)
        return x

    def _axis_weights(
        self, start: torch.Tensor, length: torch.Tensor, D: int, mirrored: torch.Tensor, blur: torch.Tensor | None
    ) -> torch.Tensor:
        """Weights of the D input pixels in each output pixel, (b, size, D): bilinear, antialiased when shrinking."""
        position = (torch.arange(self.size, device=start.device) + 0.5) / self.size
        position = torch.where(mirrored[:, None], 1 - position, position)
        centre = (start[:, None] + length[:, None] * position) * D - 0.5
        support = (length * D / self.size).clamp_min(1)  # half the width of the triangle, in input pixels
        pixel = torch.arange(D, device=start.device)
        weights = (1 - (pixel - centre[:, :, None]).abs() / support[:, None, None]).clamp_min(0)
        weights = weights / weights.sum(2, keepdim=True)
        return weights if blur is None else torch.bmm(blur, weights)

    def _blur_weights(self, view: View, u: dict[str, torch.Tensor]) -> torch.Tensor | None:
        """Gaussian weights, (b, size, size): the identity for images without blur, None if the view has no blur."""
        low, high = (sigma * self.size / _BLUR_SIZE for sigma in view.sigma)
        if not view.blur or high < 0.35:  # neighbouring pixels would weigh less than 2 % each
            return None
        sigma = torch.where(u["blur"] < view.blur, low + (high - low) * u["sigma"], 0.0).clamp_min(0.01)
        pixel = torch.arange(self.size, device=sigma.device)
        weights = torch.exp(-0.5 * ((pixel - pixel[:, None]) / sigma[:, None, None]).square())
        return weights / weights.sum(2, keepdim=True)

    def _adjust_colours(self, x: torch.Tensor, view: View, u: dict[str, torch.Tensor]) -> torch.Tensor:
        """Jitter and grey: one affine map of the channels per image, then clipping to [0, 1]."""
        b, _, *size = x.shape
        colour = self._jitter_matrix(x.mean((2, 3)), view, u)
        if view.grey:
            grey = self._grey.expand(3, 3) @ colour
            colour = torch.where((u["grey"] < view.grey)[:, None, None], grey, colour)
        x = torch.baddbmm(colour[:, :, 3:], colour[:, :, :3], x.flatten(2))
        return x.clamp_(0, 1).view(b, 3, *size)

    def _jitter_matrix(self, mean: torch.Tensor, view: View, u: dict[str, torch.Tensor]) -> torch.Tensor:
        """Affine map of brightness, contrast, saturation and hue, (b, 3, 4) with the constant in the last column.

        `mean`, (b, 3), holds the channel means of each image: lower contrast moves colours towards their grey level.
        """
        identity = self._identity.expand(len(mean), 3, 4)
        if not view.jitter:
            return identity
        brightness, contrast, saturation = (
            1 + getattr(view, name) * (2 * u[name] - 1) for name in ("brightness", "contrast", "saturation")
        )
        angle = 2 * math.pi * view.hue * (2 * u["hue"] - 1)
        scale, level = brightness * contrast, brightness * (1 - contrast) * (mean @ self._grey)
        chroma = scale * saturation
        weights = torch.stack([scale, chroma * angle.cos(), chroma * angle.sin(), level], 1)
        return torch.where((u["jitter"] < view.jitter)[:, None, None], (weights @ self._basis).view(-1, 3, 4), identity)


def _colour_basis() -> np.ndarray:
    """Maps of the channels that a jitter adds up, float32 (4, 3 x 4).

    They are the luma of YIQ, its IQ plane, that plane turned by a right angle, and a constant.
    """
    to_yiq = np.array(_TO_YIQ)
    from_yiq = np.linalg.inv(to_yiq)
    quarter_turn = np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0]])
    in_yiq = np.stack([np.diag([1, 0, 0]), np.diag([0, 1, 1]), quarter_turn])
    basis = np.zeros((4, 3, 4), np.float32)
    basis[:3, :, :3] = from_yiq @ in_yiq @ to_yiq
    basis[3, :, 3] = 1
    return basis.reshape(4, 12)
