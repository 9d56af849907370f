"""Tasks whose positives cut across the classes: images of CIFAR-10 that were rotated, tinted, compressed or greyed.

The nearest neighbours of an image show the same object, whatever was done to it, so they may mislead.
"""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.common.cifar import Cifar
from benchmarks.common.image_classes import Task, embedded, one_vs_rest_rows

TRANSFORMED, TRANSFORMED_TEST = 3300, 1000  # images by attribute; 5 % of the pile and 500 labelled fit
TINT = (1.15, 1.0, 0.8)  # factors of red, green, blue
QUALITY = 10  # of the JPEG files
DONE = "COMPLETE"


def rotated(image: Image.Image) -> Image.Image:
    """By 90 degrees against the clock."""
    return image.transpose(Image.Transpose.ROTATE_90)


def tinted(image: Image.Image) -> Image.Image:
    """Warmer: more red, less blue."""
    return Image.fromarray(np.minimum(np.asarray(image) * np.array(TINT), 255).astype(np.uint8))


def compressed(image: Image.Image) -> Image.Image:
    """As JPEG of quality `QUALITY` shows it."""
    file = BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return Image.open(file).convert("RGB")


def grey(image: Image.Image) -> Image.Image:
    """Luminance in all three channels."""
    return image.convert("L").convert("RGB")


ATTRIBUTES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "rotated": rotated,
    "tinted": tinted,
    "compressed": compressed,
    "grey": grey,
}


class Attributes:
    """Embeddings of CIFAR-10 images, and of transformed copies of some of them.

    An image is either transformed or not, never both, in the pile and in the test set of a task. Which images are
    transformed is drawn once for each attribute.

    Parameters
    ----------
    cifar : Cifar
        The images as they are, whole or a part.
    work : Path
        Where the transformed images and their embeddings are kept.
    """

    def __init__(self, cifar: Cifar, work: Path):
        self.cifar = cifar
        name = "attributes" if cifar.part == 1 else "quick-attributes"
        folder = work / name
        if not (folder / DONE).exists():
            for attribute in ATTRIBUTES:
                self._write(folder, attribute)
            (folder / DONE).touch()
        transformed = embedded(folder, work / f"{name}.h5")
        self.X, self.row = np.array(transformed.X), {key: row for row, key in enumerate(transformed.keys)}

    def rows(self, attribute: str, part: str) -> np.ndarray:
        """Which training or test images are transformed, in a random order.

        Returns
        -------
        ndarray of int64, (k,)
            Rows of the embeddings of the images as they are.
        """
        count, n = (
            (TRANSFORMED, len(self.cifar.keys)) if part == "train" else (TRANSFORMED_TEST, len(self.cifar.keys_test))
        )
        draw = np.random.default_rng([list(ATTRIBUTES).index(attribute), part == "train"])
        return draw.permutation(n)[: count // self.cifar.part]

    def base(self, attribute: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Embeddings of a task before its positives are drawn.

        Returns
        -------
        negatives, positives : ndarray of float16, (n, d) and (k, d)
            Training images as they are, and transformed others.
        X_test : ndarray of float16, (m, d)
        y_test : ndarray of bool, (m,)
            Which test images are transformed.
        """
        train, test = self.rows(attribute, "train"), self.rows(attribute, "test")
        negatives = np.delete(self.cifar.X, train, axis=0)
        X_test, y_test = self.cifar.X_test.copy(), np.zeros(len(self.cifar.X_test), bool)
        X_test[test], y_test[test] = self._embeddings(attribute, "test"), True
        return negatives, self._embeddings(attribute, "train"), X_test, y_test

    def one_vs_rest(self, name: str, share: float, labelled: int, seed: int) -> Task:
        """Images that were transformed in one way, at a share of the unlabelled, among images as they are."""
        negatives, positives, X_test, y_test = self.base(name)
        draw = np.random.default_rng([list(ATTRIBUTES).index(name), round(1000 * share), labelled, seed])
        X = np.concatenate([positives, negatives])
        y = np.arange(len(X)) < len(positives)
        pile, s = one_vs_rest_rows(y, share=share, labelled=labelled, draw=draw)
        order = draw.permutation(np.flatnonzero(pile))
        return Task(X[order], s[order], y[order], X_test, y_test)

    def _embeddings(self, attribute: str, part: str) -> np.ndarray:
        return self.X[[self.row[self._key(attribute, part, row)] for row in self.rows(attribute, part)]]

    def _key(self, attribute: str, part: str, row: int) -> str:
        keys = self.cifar.keys if part == "train" else self.cifar.keys_test
        return f"{attribute}/{part}/{keys[row]}"

    def _write(self, folder: Path, attribute: str) -> None:
        for part in ("train", "test"):
            for row in self.rows(attribute, part):
                target = folder / (key := self._key(attribute, part, row))
                target.parent.mkdir(parents=True, exist_ok=True)
                with Image.open(self.cifar.folder / key.partition("/")[2]) as image:
                    ATTRIBUTES[attribute](image.convert("RGB")).save(target)
