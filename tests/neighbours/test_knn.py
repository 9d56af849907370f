import sys

import faiss
import numpy as np
import pytest
import torch
from helpers.emulated_cuda import emulated_cuda

from pucache.errors import MissingExtraError
from pucache.neighbours import backends, knn
from pucache.neighbours.ann_index import open_or_build
from pucache.neighbours.backends import FAISS_CPU, FAISS_GPU, TORCH_CPU, TORCH_GPU
from pucache.neighbours.knn import RowSearch, nearest, to_gpu

DRAW = np.random.default_rng(0)
ROWS, AMONG = DRAW.normal(size=(7, 5)).astype(np.float32), DRAW.normal(size=(3000, 5)).astype(np.float32)


def check(lists, k):
    """Compare products and row numbers with brute force."""
    products, places = lists
    every = ROWS.astype(float) @ AMONG.astype(float).T
    expected = -np.sort(-every, axis=1)[:, :k]
    assert products.shape == places.shape == expected.shape
    assert products.dtype == np.float32 and places.dtype == np.int64
    np.testing.assert_allclose(products, expected, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(every, places, 1), expected, atol=1e-5)


@pytest.mark.parametrize("k", [1, 10, 2048, 2049, 3000, 10**6])
def test_the_nearest_are_those_of_the_greatest_products(k):
    check(nearest(ROWS, AMONG, k, device="cpu"), k)


# --- what searches -----------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    """Two GPUs that faiss sees: what was asked of them is written down, and the CPU answers."""
    asked = []

    class OnGPU:
        def __init__(self, device, index):
            self._device, self._index = device, index
            asked.append(("uploaded", device))

        def search(self, queries, k):
            assert k <= knn.MAX_GPU_NEIGHBOURS
            asked.append((k, self._device))
            return self._index.search(queries, k)

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", lambda resources, device, index: OnGPU(device, index), raising=False)
    monkeypatch.setattr(knn, "faiss_resources", lambda: None)
    monkeypatch.setattr("pucache.devices.choose_device", lambda name: torch.device("cuda" if name == "auto" else name))
    return asked


@pytest.mark.parametrize(
    "k, device, expected",
    [(10, "auto", 0), (2048, "cuda:1", 1), (10, "cpu", None)],
)
def test_faiss_searches_on_the_gpu_that_is_asked_for(gpu, k, device, expected):
    search = RowSearch(AMONG, k, device=device)
    assert search.search_by == (FAISS_CPU if expected is None else FAISS_GPU)
    check(search.nearest(ROWS), k)
    assert gpu == ([] if expected is None else [("uploaded", expected), (k, expected)])


def test_rows_are_uploaded_to_faiss_once_for_many_searches(gpu):
    search = RowSearch(AMONG[:100], 10**6, device="cuda")
    for _ in range(3):
        search.nearest(ROWS)
    assert gpu == [("uploaded", 0), (100, 0), (100, 0), (100, 0)]


def test_an_index_goes_to_the_gpu_asked_for(gpu):
    index = faiss.IndexFlatIP(5)
    assert to_gpu(index, "cpu") is None and to_gpu(index, "cuda:1") is not None and gpu == [("uploaded", 1)]


def test_without_a_gpu_that_faiss_sees_an_index_is_the_cpus(gpu, monkeypatch):
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    assert to_gpu(faiss.IndexFlatIP(5), "cuda") is None and gpu == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("k", [1, 10, 2049, 10**6])
def test_torch_searches_on_a_gpu_that_faiss_does_not_see(one_thread, k):
    with emulated_cuda():
        search = RowSearch(AMONG, k, device="cuda")
        lists = search.nearest(ROWS)
    assert search.search_by == TORCH_GPU
    check(lists, k)


@pytest.fixture
def without_faiss(monkeypatch):
    """`import faiss` fails."""
    monkeypatch.setitem(sys.modules, "faiss", None)


@pytest.mark.parametrize("k", [1, 10, 3000])
def test_without_faiss_torch_searches_on_the_cpu(without_faiss, k):
    search = RowSearch(AMONG, k, device="cpu")
    assert search.search_by == TORCH_CPU
    check(search.nearest(ROWS), k)


def test_an_index_without_faiss_is_refused_with_a_remedy(without_faiss, opened):
    with pytest.raises(MissingExtraError) as caught:
        open_or_build(opened(AMONG), "ivf")
    assert "pip install faiss-cpu" in str(caught.value) and "--index exact" in str(caught.value)
    assert "\n" not in str(caught.value) and backends.find_faiss() is None
