import sys

import numpy as np
import pytest
from helpers.planted import planted, write_cache
from helpers.slow import slow

from pucache.pages import background_map, report_page
from pucache.pages.background_map import BackgroundMap
from pucache.pages.embedding_map import embedding_map
from pucache.training.train_on_cache import train_pu

ROWS = np.arange(0, 90, 3)


@pytest.fixture
def child_for_any_size(monkeypatch):
    """A child process for small maps too."""
    monkeypatch.setattr(background_map, "MIN_ROWS", 3)
    monkeypatch.setattr(background_map, "cores", lambda: 2)


@pytest.fixture
def no_map_in_this_process(monkeypatch):
    """Only a child process can compute a map."""

    def refuse(*arguments, **keywords):
        raise AssertionError("the map was computed in this process")

    monkeypatch.setattr(background_map, "embedding_map", refuse)


def same(first, second):
    arrays = all(
        np.array_equal(getattr(first, name), getattr(second, name)) and getattr(first, name).dtype == dtype
        for name, dtype in (("rows", np.int64), ("pca", np.float64), ("tsne", np.float64))
    )
    return arrays and first.explained == second.explained


@pytest.mark.parametrize("dtype", [np.float16, slow(np.float32)])
def test_the_map_of_the_child_process_equals_that_of_this_process(child_for_any_size, no_map_in_this_process, dtype):
    X = planted(n=90, d=6, apart=2.0)[0].astype(dtype)
    with BackgroundMap(X, seed=3) as mapping:
        mapping.start(ROWS)
        assert same(mapping.result(), embedding_map(X, ROWS, seed=3))


@pytest.mark.slow
def test_a_map_without_tsne_comes_back_from_the_child(child_for_any_size, no_map_in_this_process):
    with BackgroundMap(np.ones((4, 3), np.float32), seed=0) as mapping:
        mapping.start(np.arange(4))
        assert mapping.result().tsne is None


def test_a_small_map_starts_no_child(monkeypatch):
    monkeypatch.setattr(background_map, "_start_child", None)
    X = planted(n=90, d=6)[0]
    with BackgroundMap(X, seed=0) as mapping:
        mapping.start(ROWS)
        assert same(mapping.result(), embedding_map(X, ROWS))


@pytest.mark.parametrize("executable", ["/nonexistent/python", "/bin/false"])
def test_a_child_that_fails_is_replaced_by_this_process(child_for_any_size, monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    X = planted(n=90, d=6)[0]
    with BackgroundMap(X, seed=0) as mapping:
        mapping.start(ROWS)
        assert same(mapping.result(), embedding_map(X, ROWS))


def test_leaving_the_context_ends_the_child_and_removes_its_files(child_for_any_size):
    with pytest.raises(KeyboardInterrupt), BackgroundMap(planted(n=90, d=6)[0], seed=0) as mapping:
        mapping.start(ROWS)
        child, folder = mapping._child, mapping._folder
        assert folder.is_dir()
        raise KeyboardInterrupt
    assert child.poll() is not None and not folder.exists()


@pytest.mark.parametrize("with_model", [slow(False), True])
@pytest.mark.slow
def test_the_page_is_the_same_with_and_without_a_child(monkeypatch, tmp_path, fixed_time, with_model):
    X, s, _ = planted(n=120, d=4, labelled=30)
    cache = write_cache(tmp_path / "cache.h5", X)
    model = train_pu(cache, s, device="cpu") if with_model else None
    pages = []
    for minimum in (3, 500):
        monkeypatch.setattr(background_map, "MIN_ROWS", minimum)
        monkeypatch.setattr(background_map, "cores", lambda: 2)
        report_page.report(cache, s, tmp_path / "r.html", model=model, sample=60, device="cpu")
        pages.append((tmp_path / "r.html").read_bytes())
    assert pages[0] == pages[1]
