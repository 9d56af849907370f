"""Decoding of JPEG files in batches on the encoder's device, so that the CPU only reads and hashes them.

Files that the device cannot decode are decoded one by one with Pillow, so that a damaged file does not
affect the others.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import ExifTags, Image

from ..errors import EncoderError, ImageError, one_line
from .decoding import MAX_PIXELS, decode
from .preprocessing import MAX_ASPECT, Preprocess

if TYPE_CHECKING:
    import torch

log = logging.getLogger("pucache")

_FILES_PER_CALL = 32  # files that torchvision decodes at once
_MOST_DECODED_BYTES = 1 << 30  # full-size pixels in the device's memory, beyond which the host waits for the device


def device_can_decode(data: bytes) -> bool:
    """Whether a file is a complete, upright JPEG image in grey or colour, within the limits of size and aspect."""
    if data[:3] != b"\xff\xd8\xff" or data.rstrip(b"\0")[-2:] != b"\xff\xd9":  # markers of the start and the end
        return False
    try:
        with Image.open(io.BytesIO(data)) as image:  # reads the header alone
            upright = image.getexif().get(ExifTags.Base.Orientation, 1) == 1
            short, long = sorted(image.size)
            within_limits = short * long <= MAX_PIXELS and long <= MAX_ASPECT * short
            plain = image.mode == "L" or (image.mode == "RGB" and image.info.get("adobe_transform", 1) == 1)
            return image.format == "JPEG" and plain and upright and within_limits
    except Exception:  # `decode` reports what is wrong with the file
        return False


class DeviceDecoder:
    """Decode and resize JPEG files on a device.

    Parameters
    ----------
    preprocess : Preprocess
        Gives the size and the crop of the pixels; must be `fast`.
    device : torch.device

    Raises
    ------
    EncoderError
        This build of torchvision decodes no JPEG files.
    """

    def __init__(self, preprocess: Preprocess, device: torch.device):
        import torchvision  # takes seconds, so only where it is used

        if not hasattr(torchvision.io, "decode_jpeg"):
            raise EncoderError(f"torchvision {torchvision.__version__} decodes no JPEG files; use --decode host")
        self._preprocess, self._device, self._warned = preprocess, device, False
        self._lock = threading.Lock()
        self._streams: _Streams | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without lock and streams."""
        return type(self), (self._preprocess, self._device)

    def __call__(self, files: Sequence[bytes]) -> tuple[torch.Tensor, dict[int, str]]:
        """Decode a batch; the device has finished it on return.

        Parameters
        ----------
        files : sequence of bytes
            Encoded images, of any format that `decode` accepts.

        Returns
        -------
        pixels : uint8 tensor on the device, (n, H, W, 3)
        failures : dict of int to str
            Index of each file that cannot be decoded, with the reason; its pixels are black.

        Raises
        ------
        EncoderError
            The device has no memory for the pixels of the batch.
        """
        import torch

        shape = (len(files), *self._preprocess.input_size, 3)
        try:
            pixels = torch.zeros(shape, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError as error:
            raise EncoderError(
                f"out of memory on {self._device} for the pixels of {len(files)} images; "
                f"use --batch-size {max(1, len(files) // 2)} or less, or --decode host"
            ) from error
        with self._lock, self._resizing():
            failures: dict[int, str] = {}
            decoded: list[torch.Tensor | None] = []  # kept until the device has read them
            for first in range(0, len(files), _FILES_PER_CALL):
                part = files[first : first + _FILES_PER_CALL]
                held = sum(image.nbytes for image in decoded if image is not None)
                if self._streams is None or held > _MOST_DECODED_BYTES:
                    self._wait()
                    decoded.clear()
                decoded += self._decode(part)
                for index, (file, image) in enumerate(zip(part, decoded[-len(part) :], strict=True), first):
                    try:
                        pixels[index] = self._resized(file, image)
                    except ImageError as error:
                        failures[index] = str(error)
            self._wait()
        return pixels, failures

    def _resizing(self) -> contextlib.AbstractContextManager[object]:
        """Let operations go to the stream that resizes."""
        import torch

        if self._device.type != "cuda":
            return contextlib.nullcontext()
        if self._streams is None:
            self._streams = _Streams(self._device)
        self._streams.resizing.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._streams.resizing)

    def _wait(self) -> None:
        if self._streams is not None:
            self._streams.resizing.synchronize()

    def _decode(self, files: Sequence[bytes]) -> list[torch.Tensor | None]:
        """Decode on the device; None for each file that it cannot decode."""
        try:
            return list(self._decode_on_device(files))
        except RuntimeError as error:
            if len(files) > 1:  # one by one, to separate the file that fails from the others
                return [self._decode([file])[0] for file in files]
            if not self._warned:
                self._warned = True
                log.warning("the device cannot decode every file; Pillow decodes what it cannot (%s)", one_line(error))
            return [None]

    def _decode_on_device(self, files: Sequence[bytes]) -> list[torch.Tensor]:
        import torch
        import torchvision

        encoded = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
        with contextlib.nullcontext() if self._streams is None else torch.cuda.stream(self._streams.decoding):
            images = torchvision.io.decode_jpeg(encoded, mode=torchvision.io.ImageReadMode.RGB, device=self._device)
        if self._streams is not None:
            self._streams.resizing.wait_stream(self._streams.decoding)
        return images

    def _resized(self, file: bytes, image: torch.Tensor | None) -> torch.Tensor:
        """Resize what the device has decoded, or decode the file with Pillow."""
        if image is not None:
            with contextlib.suppress(RuntimeError):  # too little memory, or more reduction than the kernel supports
                return self._preprocess.resize(image[None])
        pixels = self._preprocess(decode(file, self._preprocess.sufficient_side))
        # only pinned memory is copied without waiting for the device
        return pixels if self._streams is None else pixels.pin_memory().to(self._device, non_blocking=True)


class _Streams:
    """Streams of CUDA for decoding and for resizing, each with memory of its own.

    torchvision decodes on a stream that it keeps to itself, into memory of the current stream, which then waits for
    it. Memory of `decoding` holds decoded files alone, and they are kept until the host has waited for `resizing`: so
    torchvision never writes where a resize still reads. What a failed call leaves behind, torchvision waits for itself.
    """

    def __init__(self, device: torch.device):
        import torch

        self.decoding, self.resizing = torch.cuda.Stream(device), torch.cuda.Stream(device)
