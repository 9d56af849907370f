"""The original files of CIFAR-10 and CIFAR-100 as folders of PNG files."""

from pathlib import Path

from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100

from pucache.errors import SourceError

KINDS = (CIFAR10, CIFAR100)
DONE = "COMPLETE"


def unpacked(folder: Path, work: Path) -> Path:
    """A folder with train/<class>/*.png and test/<class>/*.png.

    Parameters
    ----------
    folder : Path
        Such a folder already, which is returned; or ``cifar-10-batches-py`` or ``cifar-100-python`` as their makers
        give them out, or what holds one of them. Those files are pickles: torchvision reads them, and only where
        their MD5 sums are the published ones.
    work : Path
        Where the PNG files of the original files go, once: train/<class>/<index>.png, `index` being the place among
        all images of the training, or of the test set.

    Raises
    ------
    SourceError
        The folder holds none of these, or the original files are incomplete or other ones.
    """
    if all((folder / part).is_dir() for part in ("train", "test")):
        return folder
    for kind in KINDS:
        if folder.name == kind.base_folder:
            return _written(kind, folder.parent, work / kind.base_folder)
        if (folder / kind.base_folder).is_dir():
            return _written(kind, folder, work / kind.base_folder)
    originals = " or ".join(kind.base_folder for kind in KINDS)
    raise SourceError(f"{folder} has no folders train and test, expected them with PNG files by class, or {originals}")


def _written(kind: type[CIFAR10], root: Path, target: Path) -> Path:
    if (target / DONE).exists():
        return target
    for part in ("train", "test"):
        try:
            images = kind(root, train=part == "train", download=False)
        except RuntimeError as error:
            raise SourceError(
                f"{root / kind.base_folder} is not the original, whole: {error}".split(". You")[0]
            ) from error
        for name in images.classes:
            (target / part / name).mkdir(parents=True, exist_ok=True)
        for index, (pixels, label) in enumerate(zip(images.data, images.targets, strict=True)):
            Image.fromarray(pixels).save(target / part / images.classes[label] / f"{index:05}.png")
    (target / DONE).touch()
    return target
