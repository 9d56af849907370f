"""Tasks of the benchmarks: what is in a pile, and files of Fashion-MNIST."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from benchmarks.common import fashion
from benchmarks.common.image_classes import one_vs_rest_rows

# --- piles ---------------------------------------------------------------------------------------------


@given(share=st.sampled_from([0.01, 0.05, 0.2]), labelled=st.integers(1, 30), seed=st.integers(0, 5))
def test_a_pile_has_all_negatives_and_the_share_of_hidden_positives(share, labelled, seed):
    y = np.random.default_rng(seed).random(1000) < 0.3
    pile, s = one_vs_rest_rows(y, share=share, labelled=labelled, draw=np.random.default_rng(seed))
    hidden = np.count_nonzero(pile & y & (s == 0))
    assert pile[~y].all() and s.sum() == labelled and (y & pile)[s == 1].all()
    assert abs(hidden / np.count_nonzero(pile & (s == 0)) - share) < 1e-3


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
