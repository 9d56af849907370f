"""The original files of CIFAR-10 as folders of PNG files."""

from pathlib import Path

from PIL import Image
from torchvision.datasets import CIFAR10

from pucache.errors import SourceError

DONE = "COMPLETE"


def unpacked(folder: Path, work: Path) -> Path:
    """A folder with train/<class>/*.png and test/<class>/*.png.

    Parameters
    ----------
    folder : Path
        Such a folder already, which is returned; or what holds ``cifar-10-batches-py`` as its makers give it out. Those
        files are pickles: torchvision reads them, and only where their MD5 sums are the published ones.
    work : Path
        Where the PNG files of the original files go, once: train/<class>/<index>.png, `index` being the place among
        all images of the training, or of the test set.

    Raises
    ------
    SourceError
        The folder holds none of these, or the original files are incomplete or other ones.
    """
    target = work / CIFAR10.base_folder
    if all((folder / part).is_dir() for part in ("train", "test")):
        return folder
    if (target / DONE).exists():
        return target
    for part in ("train", "test"):
        try:
            images = CIFAR10(folder, train=part == "train", download=False)
        except RuntimeError as error:
            raise SourceError(
                f"{folder} has no folders train and test of PNG files by class, nor the original {CIFAR10.base_folder}"
            ) from error
        for name in images.classes:
            (target / part / name).mkdir(parents=True, exist_ok=True)
        for index, (pixels, label) in enumerate(zip(images.data, images.targets, strict=True)):
            Image.fromarray(pixels).save(target / part / images.classes[label] / f"{index:05}.png")
    (target / DONE).touch()
    return target
