"""JPEG files decoded where the encoder runs, a batch at a time, so that the CPU only reads and hashes.

What the device cannot take, or fails on, is decoded by Pillow as everything is otherwise: image by
image, so that a damaged one costs the others nothing.
"""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Sequence

import torch
import torchvision
from PIL import ExifTags, Image

from ..errors import EncoderError, ImageError, one_line
from .decoding import MAX_PIXELS, decode
from .preprocessing import MAX_ASPECT, Preprocess

log = logging.getLogger("pucache")

_AT_ONCE = 32  # files whose full-size pixels are in the device's memory together


def device_can_decode(data: bytes) -> bool:
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
        self._preprocess, self._device, self._told = preprocess, device, False
        # torchvision decodes on a stream of its own, into memory that another thread's pending work may still read
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """Let it be sent to another process, without the lock."""
        return type(self), (self._preprocess, self._device)

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
        with self._lock:
            for first in range(0, len(files), _AT_ONCE):
                some = files[first : first + _AT_ONCE]
                for number, (file, image) in enumerate(zip(some, self._decode(some), strict=True), first):
                    try:
                        pixels[number] = self._resized(file, image)
                    except ImageError as error:
                        failures[number] = str(error)
                self._wait()  # the next files may be put where these have been
        return pixels, failures

    def _decode(self, files: Sequence[bytes]) -> list[torch.Tensor | None]:
        """Decode on the device; None for what it cannot take."""
        try:
            return list(self._by_device(files))
        except RuntimeError as error:
            self._wait()
            if len(files) > 1:  # each alone, so that one costs the others nothing
                return [self._decode([file])[0] for file in files]
            if not self._told:
                self._told = True
                log.warning("the device cannot decode every file; Pillow decodes what it cannot (%s)", one_line(error))
            return [None]

    def _by_device(self, files: Sequence[bytes]) -> list[torch.Tensor]:
        encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
        return torchvision.io.decode_jpeg(encoded, mode=torchvision.io.ImageReadMode.RGB, device=self._device)

    def _resized(self, file: bytes, image: torch.Tensor | None) -> torch.Tensor:
        if image is not None:
            try:
                return self._preprocess.resize(image[None])
            except RuntimeError:  # too little memory, or more reduction than the device's kernel can do
                self._wait()
        return self._preprocess(decode(file, self._preprocess.sufficient))

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
