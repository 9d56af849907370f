"""The original CIFAR files: read as images by class, or refused by name."""

import hashlib
import pickle

import numpy as np
import pytest
from PIL import Image

from benchmarks.common import unpack
from pucache.errors import SourceError


def original(folder, kind, monkeypatch, names, labels):
    """Small files of the layout of the original ones; their sums take the place of the published ones."""
    folder = folder / kind.base_folder
    folder.mkdir(parents=True)
    key = "labels" if kind is unpack.CIFAR10 else "fine_labels"
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 3072), np.uint8)

    def write(name, content):
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    half = len(labels) // 2
    parts = [("first", slice(0, half)), ("second", slice(half, None))]
    train = [write(name, {"data": pixels[rows], key: labels[rows]}) for name, rows in parts]
    meta = write("names", {kind.meta["key"]: names})
    monkeypatch.setattr(kind, "train_list", train)
    monkeypatch.setattr(kind, "test_list", [write("last", {"data": pixels[::-1], key: labels[::-1]})])
    monkeypatch.setattr(kind, "meta", {"filename": "names", "key": kind.meta["key"], "md5": meta[1]})
    return folder, pixels


@pytest.mark.parametrize("within", [False, True], ids=["the folder itself", "a folder that holds it"])
def test_original_batches_become_png_files_by_class_and_place(tmp_path, monkeypatch, within):
    labels = [1, 0, 1, 1, 0, 1]
    folder, pixels = original(tmp_path, unpack.CIFAR10, monkeypatch, ["bird", "ship"], labels)
    made = unpack.unpacked(folder.parent if within else folder, tmp_path / "work")
    files = sorted(str(path.relative_to(made)) for path in made.rglob("*.png"))
    names = [("bird", "ship")[label] for label in labels]
    expected = [f"train/{name}/{at:05}.png" for at, name in enumerate(names)]
    expected += [f"test/{name}/{at:05}.png" for at, name in enumerate(reversed(names))]
    assert files == sorted(expected)
    third = np.asarray(Image.open(made / "train/ship/00003.png"))
    assert (third == pixels[3].reshape(3, 32, 32).transpose(1, 2, 0)).all()
    assert unpack.unpacked(folder, tmp_path / "work") == made  # once


def test_batches_that_are_not_the_original_ones_are_refused_before_they_are_read(tmp_path, monkeypatch):
    folder, _ = original(tmp_path, unpack.CIFAR10, monkeypatch, ["bird", "ship"], [0, 1])
    (folder / "first").write_bytes(b"something else")
    with pytest.raises(SourceError, match="not the original, whole"):
        unpack.unpacked(folder, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_a_folder_of_neither_layout_is_refused_by_name(tmp_path):
    with pytest.raises(SourceError, match="cifar-10-batches-py or cifar-100-python"):
        unpack.unpacked(tmp_path, tmp_path / "work")
