"""The mark of caches whose rows were sorted out of the order of their input."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from helpers.embedding_runs import run
from helpers.tiny import save_image, tiny_encoder
from hypothesis import given, settings
from hypothesis import strategies as st

import pucache
from pucache.cache.embedding_cache import EmbeddingCache


def imported(path, keys, **options):
    X = np.random.default_rng(0).normal(size=(len(keys), 3)).astype(np.float32)
    pucache.import_embeddings(X, path, keys=keys, force=True, **options)
    return EmbeddingCache(path)


@given(st.lists(st.text("ab0", min_size=1, max_size=3), min_size=1, max_size=6, unique=True))
@settings(deadline=None, max_examples=30)
def test_an_import_is_marked_where_its_keys_were_sorted(tmp_path_factory, keys):
    cache = imported(tmp_path_factory.mktemp("order") / "c.h5", keys)
    assert cache.reordered == (keys != sorted(keys))


def test_the_mark_is_all_that_differs(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    X = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    pucache.import_embeddings(X, tmp_path / "sorted.h5", keys=["a", "b", "c"])
    pucache.import_embeddings(X[::-1], tmp_path / "other.h5", keys=["c", "b", "a"])
    plain, marked = EmbeddingCache(tmp_path / "sorted.h5"), EmbeddingCache(tmp_path / "other.h5")
    assert b"reordered" not in (tmp_path / "sorted.h5").read_bytes() and marked.reordered
    assert (plain.X == marked.X).all() and list(plain.keys) == list(marked.keys)
    assert not plain.files[0].header.checksums.columns.keys() ^ marked.files[0].header.checksums.columns.keys()
    marked.verify()


def test_the_mark_goes_through_packing_and_exports(tmp_path):
    plain, marked = imported(tmp_path / "a.h5", ["a1", "a2"]), imported(tmp_path / "b.h5", ["b2", "b1"])
    assert EmbeddingCache(plain, marked).reordered and not EmbeddingCache(plain).reordered
    pucache.pack([plain, marked], tmp_path / "both.h5")
    pucache.pack([plain], tmp_path / "one.h5")
    assert EmbeddingCache(tmp_path / "both.h5").reordered and not EmbeddingCache(tmp_path / "one.h5").reordered
    for name, cache in (("plain", plain), ("marked", marked)):
        pucache.export(cache, tmp_path / f"{name}.parquet")
        pucache.import_embeddings(tmp_path / f"{name}.parquet", tmp_path / f"{name}.h5")
        assert EmbeddingCache(tmp_path / f"{name}.h5").reordered == cache.reordered


# --- images ------------------------------------------------------------------------------------


@pytest.fixture
def manifest(tmp_path):
    """Write a manifest of the images with these numbers, of which each is drawn once."""

    def write(*numbers):
        for number in numbers:
            save_image(tmp_path / f"{number}.png", number)
        (tmp_path / "list.txt").write_text("".join(f"{number}.png\n" for number in numbers))
        return tmp_path / "list.txt"

    return write


def test_a_manifest_is_marked_while_its_order_is_another(tmp_path, manifest):
    out, encoder = tmp_path / "c.h5", tiny_encoder()
    run(manifest(1, 2), out, encoder)
    assert not EmbeddingCache(out).reordered
    run(manifest(2, 1, 3), out, encoder)
    assert EmbeddingCache(out).reordered
    run(manifest(3, 4), out, encoder)
    assert EmbeddingCache(out).reordered  # rows of the manifest before are kept
    run(manifest(3, 4, 5), out, encoder, prune=True)
    assert not EmbeddingCache(out).reordered


def test_shares_of_a_manifest_say_what_the_whole_says(tmp_path, manifest):
    where = manifest(2, 1, *range(30, 50))
    for number in (1, 2):
        run(where, tmp_path / f"{number}.h5", tiny_encoder(), shard=(number, 2))
        assert EmbeddingCache(tmp_path / f"{number}.h5").reordered


@pytest.mark.parametrize("numbers", [(1, 2, 3), (2, 10, 1)])
def test_a_table_of_images_is_marked_and_a_folder_is_not(tmp_path, manifest, numbers):
    manifest(*numbers)
    images = [{"bytes": (tmp_path / f"{each}.png").read_bytes(), "path": f"{each}.png"} for each in numbers]
    pyarrow.parquet.write_table(pa.table({"image": images}), tmp_path / "t.parquet")
    run(tmp_path / "t.parquet", tmp_path / "table.h5", tiny_encoder())
    run(tmp_path, tmp_path / "folder.h5", tiny_encoder())
    assert EmbeddingCache(tmp_path / "table.h5").reordered == (numbers != (1, 2, 3))
    assert not EmbeddingCache(tmp_path / "folder.h5").reordered
