"""benchmarks/paper/tables.py: the figures, the data sets and what the page says, on small made-up data."""

import hashlib
import pickle

import numpy as np
import pytest
from helpers.tiny import save_image, tiny_encoder
from PIL import Image

from benchmarks.common import unpack
from benchmarks.common.cifar import Task
from benchmarks.paper import datasets as paper_data
from benchmarks.paper import pages as paper_pages
from benchmarks.paper import rows as paper_rows
from benchmarks.paper.published import TEN

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(autouse=True)
def small_encoder(monkeypatch):
    monkeypatch.setattr(paper_data, "load_encoder", tiny_encoder)


def blobs(n=600, seed=0):
    """A task of two overlapping clouds; one in three is positive, and one in six of those is labelled."""
    draw = np.random.default_rng(seed)
    y, y_test = draw.random(n) < 1 / 3, draw.random(n) < 1 / 2
    X, X_test = ((draw.normal(size=(n, 6)) + 1.2 * of[:, None]).astype(np.float16) for of in (y, y_test))
    return Task(X, (y & (draw.random(n) < 1 / 6)).astype(np.int8), y, X_test, y_test)


# --- figures ---------------------------------------------------------------------------------------


def test_every_way_of_a_task_is_better_than_chance_and_the_supervised_one_not_behind_by_far():
    cell = paper_rows.transfer(blobs(), 0)
    accuracy = {way: of["accuracy"] for way, of in cell["ways"].items()}
    assert {
        paper_rows.AT_ZERO,
        paper_rows.TEST_SHARE,
        paper_rows.OWN,
        paper_rows.AUTHORS,
        paper_rows.SUPERVISED_HEAD,
    } <= set(accuracy)
    assert min(accuracy.values()) > 0.6
    assert accuracy[paper_rows.SUPERVISED_HEAD] > max(accuracy.values()) - 0.03
    labelled, hidden, negative, test, share = cell["counts"]
    task = blobs()
    assert (labelled + hidden, labelled + hidden + negative, test) == (task.y.sum(), len(task.y), len(task.y_test))
    assert share == task.y_test.mean() and cell["prior"][-1] == hidden / (hidden + negative)


@pytest.mark.parametrize("solver", paper_rows.SOLVERS)
def test_a_supervised_head_of_the_ablation_sees_the_true_labels(solver):
    task = blobs()
    supervised, plain = (paper_rows.ablation(task, loss, solver, (0,))[0] for loss in (paper_rows.SUPERVISED, "bce"))
    assert supervised["accuracy"] > 0.8
    assert plain["called"] < 0.25 * supervised["called"]  # one row in eighteen is labelled


# --- data sets -------------------------------------------------------------------------------------


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


FINE = [paper_data.VEHICLES_100.get(number, f"class{number:02}") for number in range(100)]


def test_cifar_100_from_original_files_labels_one_vehicle_in_five(tmp_path, monkeypatch):
    labels = [*range(100)] * 2
    folder, _ = original(tmp_path, unpack.CIFAR100, monkeypatch, FINE, labels)
    of = paper_data.cifar100(folder, tmp_path)
    task, other = of(0), of(1)
    assert (len(task.y), task.y.sum(), task.s.sum(), task.y_test.sum()) == (200, 20, 4, 20)
    assert task.y[task.s == 1].all() and not np.array_equal(task.s, other.s)
    assert np.array_equal(of(0).s, task.s)


def fundus(folder):
    for number in range(60):
        save_image(folder / ("sick" if number % 3 == 0 else "sound") / f"{number}.png", number)
    return folder


def test_glaucoma_is_divided_and_labelled_by_the_seed(tmp_path):
    of = paper_data.glaucoma(fundus(tmp_path / "images"), tmp_path, "sick")
    task = of(0)
    assert (len(task.y), len(task.y_test)) == (51, 9)
    assert task.y.sum() + task.y_test.sum() == 20
    assert task.s.sum() == round(0.2 * task.y.sum()) and task.y[task.s == 1].all()
    rows = {row.tobytes() for row in np.concatenate([task.X, task.X_test])}
    assert len(rows) == 60  # no image is in both
    assert not np.array_equal(of(1).X_test, task.X_test)


# --- the page --------------------------------------------------------------------------------------


def cell(seed=0, **accuracy):
    """A cell of the transfer table whose figures are all of one value."""
    names = [value for value in vars(paper_rows).values() if isinstance(value, str)]
    names += [paper_rows.LOGISTIC.format(C) for C in paper_rows.CS]
    names += [name.format(penalty) for name in paper_rows.BEST for penalty in paper_rows.PENALTIES]
    keys = ("accuracy", "f1", "auc", "called", "ap")
    ways = {name: dict.fromkeys(keys, accuracy.get("all", 0.9)) | {"seconds": 1.0} for name in names}
    for name, value in accuracy.items():
        if name != "all":
            ways[getattr(paper_rows, name)].update(dict.fromkeys(keys, value))
    counts = [600, 2400, 30000, 10000, 0.4]
    prior, bins = [0.07, 0.06, 0.08, 0.074], {"unlabelled": [[0.1, 0.1, 5]], "test": [[0.1, 0.2, 5]]}
    return {"seed": seed, "ways": ways, "counts": counts, "prior": prior, "bins": bins, "penalty": 1e-3}


def test_data_that_are_not_at_hand_are_said_to_be_with_the_paper_s_rows_and_the_command():
    text = paper_pages.transfer({TEN: [cell()]})
    of_hundred = text[text.index("### CIFAR-100") :]
    assert (
        "not run, data not at hand" in of_hundred
        and "`python -m benchmarks.paper.tables DIR --cifar100 DIR`" in of_hundred
    )
    assert "| 91.57 | 68.39 | 97.14 |" in of_hundred and "| 65.28 | 53.18 | 72.46 |" in of_hundred
