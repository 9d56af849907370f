"""JPEG files decoded where the encoder runs, a batch at a time, so that the CPU only reads and hashes.

What the device cannot take, or fails on, is decoded by Pillow as everything is otherwise: image by
image, so that a damaged one costs the others nothing.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import torch
import torchvision
from PIL import ExifTags, Image

from .decoding import MAX_PIXELS, decode
from .errors import EncoderError, ImageError
from .preprocess import MAX_ASPECT, Preprocess

DEVICE_DECODER = "torchvision-1"  # names the recipe, as `pucache.decoding.DECODER` does


def suits_device(data: bytes) -> bool:
    """Whether these are the bytes of a whole, upright, grey or colour JPEG file of a size that is decoded at all."""
    if data[:3] != b"\xff\xd8\xff" or data.rstrip(b"\0")[-2:] != b"\xff\xd9":  # begins and ends as one
        return False
    try:
        with Image.open(io.BytesIO(data)) as image:  # the header alone
            upright = image.getexif().get(ExifTags.Base.Orientation, 1) == 1
            sides = sorted(image.size)
            fits = sides[0] * sides[1] <= MAX_PIXELS and sides[1] <= MAX_ASPECT * sides[0]
            plain = image.mode == "L" or (image.mode == "RGB" and image.info.get("adobe_transform", 1) == 1)
            return image.format == "JPEG" and plain and upright and fits
    except Exception:  # `decode` says what is wrong with it
        return False


class DeviceDecoder:
    """Decodes and resizes JPEG files on a device.

    Parameters
    ----------
    preprocess : Preprocess
        Whose geometry is used; must be `fast`.
    device : torch.device
    """

    def __init__(self, preprocess: Preprocess, device: torch.device):
        if not hasattr(torchvision.io, "decode_jpeg"):
            raise EncoderError(f"torchvision {torchvision.__version__} decodes no JPEG files; use --decode host")
        self._preprocess, self._device = preprocess, device

    def __call__(self, files: Sequence[bytes]) -> tuple[torch.Tensor, dict[int, str]]:
        """Decode a batch.

        Returns
        -------
        pixels : uint8 tensor on the device, (n, H, W, 3)
        failures : dict of int to str
            Number of a file that cannot be decoded to the reason; its pixels are black.
        """
        failures: dict[int, str] = {}
        pixels = torch.zeros((len(files), *self._preprocess.input_size, 3), dtype=torch.uint8, device=self._device)
        try:
            decoded = self._decode(files)
        except RuntimeError:
            decoded = [None] * len(files)
        for number, (file, image) in enumerate(zip(files, decoded, strict=True)):
            try:
                pixels[number] = self._by_pillow(file) if image is None else self._preprocess.resize(image[None])
            except ImageError as error:
                failures[number] = str(error)
        return pixels, failures

    def _decode(self, files: Sequence[bytes]) -> list[torch.Tensor | None]:
        encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
        return list(torchvision.io.decode_jpeg(encoded, mode=torchvision.io.ImageReadMode.RGB, device=self._device))

    def _by_pillow(self, file: bytes) -> torch.Tensor:
        return self._preprocess(decode(file, self._preprocess.sufficient))
