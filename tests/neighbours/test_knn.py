import faiss
import numpy as np
import pytest
import torch

from pucache.neighbours import knn as module
from pucache.neighbours.knn import MAX_GPU_NEIGHBOURS, nearest, to_gpu

DRAW = np.random.default_rng(0)
ROWS, AMONG = DRAW.normal(size=(7, 5)).astype(np.float32), DRAW.normal(size=(3000, 5)).astype(np.float32)


@pytest.mark.parametrize("k", [1, 10, 2048, 2049, 3000, 10**6])
def test_the_nearest_are_those_of_the_greatest_products(k):
    products, places = nearest(ROWS, AMONG, k, device="cpu")
    every = ROWS.astype(float) @ AMONG.astype(float).T
    expected = -np.sort(-every, axis=1)[:, :k]
    assert products.shape == places.shape == expected.shape and products.dtype == np.float32
    np.testing.assert_allclose(products, expected, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(every, places, 1), expected, atol=1e-5)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that writes down what it is asked, and answers as the CPU."""
    asked = []

    def knn(resources, rows, among, k, metric, device):
        assert k <= MAX_GPU_NEIGHBOURS
        asked.append((k, device))
        return faiss.knn(rows, among, k, metric=metric)

    def copy(resources, device, index):
        asked.append(("index", device))
        return faiss.clone_index(index)

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2)
    monkeypatch.setattr(faiss, "knn_gpu", knn, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", copy, raising=False)
    monkeypatch.setattr(module, "_resources", lambda: None)
    monkeypatch.setattr("pucache.devices.choose_device", lambda name: torch.device("cuda" if name == "auto" else name))
    return asked


@pytest.mark.parametrize(
    "k, device, expected",
    [
        (10, "auto", [(10, 0)]),
        (2048, "cuda:1", [(2048, 1)]),
        (2049, "cuda", []),
        (10**6, "auto", []),
        (10, "cpu", []),
    ],
)
def test_a_gpu_is_used_where_it_is_asked_for_and_can_select_so_many(gpu, k, device, expected):
    products, places = nearest(ROWS, AMONG, k, device=device)
    assert gpu == expected
    other, same = faiss.knn(ROWS, AMONG, min(k, 3000), metric=faiss.METRIC_INNER_PRODUCT)
    assert (products == other).all() and (places == same).all()


def test_what_is_cut_to_few_rows_is_the_gpus(gpu):
    nearest(ROWS, AMONG[:100], 10**6, device="cuda")
    assert gpu == [(100, 0)]


def test_an_index_goes_to_the_gpu_asked_for(gpu):
    index = faiss.IndexFlatIP(5)
    assert to_gpu(index, "cpu") is None and to_gpu(index, "cuda:1") is not None and gpu == [("index", 1)]


def test_without_a_gpu_that_faiss_sees_everything_is_the_cpus(gpu, monkeypatch):
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    assert to_gpu(faiss.IndexFlatIP(5), "cuda") is None
    nearest(ROWS, AMONG, 3, device="cuda")
    assert gpu == []
