"""A damaged cache is mended by the next `embed`: what is whole is kept, the rest is embedded again."""

import dataclasses
import errno
import os
import shutil

import h5py
import numpy as np
import pytest
from helpers.tiny import save_image, tiny_encoder

from pucache.cache import checksums
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.reader import CacheFile
from pucache.embedding import row_blocks
from pucache.embedding.embed import run_embedding
from pucache.embedding.plan import EmbedOptions
from pucache.errors import CacheError, OutputError
from pucache.images.source import LocalFolder, open_source
from pucache.progress import Silent

N, BLOCK = 40, 8
COLUMNS = ["embeddings", "keys", "digests", "size_mtime"]


@pytest.fixture
def folder(image_folder, monkeypatch, fixed_time):
    monkeypatch.setattr(checksums, "_MIN_ROWS_PER_HASH", BLOCK)
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", BLOCK)
    folder = image_folder(N)
    (folder / "broken.png").write_text("no image")
    return folder


@pytest.fixture
def cache(folder, tmp_path):
    (tmp_path / "out").mkdir()
    run(folder, tmp_path / "out" / "cache.h5")
    return tmp_path / "out" / "cache.h5"


def run(folder, cache, encoder=None, progress=None, **options):
    chosen, encoder = EmbedOptions(**options), encoder or tiny_encoder()
    return run_embedding(open_source(folder), cache, encoder, workers=0, options=chosen, progress=progress)


def damage(path, name, row=0):
    """Flip a bit in one row of a dataset; returns the bytes of the damaged file."""
    with h5py.File(path) as file:
        offset, size = file[name].id.get_offset(), file[name].nbytes // len(file[name])
    data = bytearray(path.read_bytes())
    data[offset + size * row] ^= 0x80
    path.write_bytes(data)
    return bytes(data)


def visible(folder):
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("row", [0, 19, N - 1])
def test_damaged_rows_are_embedded_again_and_no_others(folder, cache, encoder, name, row, caplog):
    whole = cache.read_bytes()
    damaged = damage(cache, name, row)
    report = run(folder, cache, encoder, verify=True)
    assert cache.read_bytes() == whole
    assert (report.damaged, report.computed, report.kept, report.reused) == (BLOCK, BLOCK, N - BLOCK, 0)
    assert encoder.forward.rows == BLOCK
    assert cache.with_name("cache.h5.damaged").read_bytes() == damaged
    assert visible(cache.parent) == ["cache.h5", "cache.h5.damaged"]
    assert f"{cache} is damaged ({name}): 8 of its 40 rows are given up" in caplog.text


def test_damage_in_many_places_is_mended_at_once(folder, cache):
    whole = cache.read_bytes()
    for number, name in enumerate(COLUMNS):
        damage(cache, name, number * BLOCK)
    report = run(folder, cache, verify=True)
    assert cache.read_bytes() == whole and report.computed == 4 * BLOCK


@pytest.mark.parametrize("name", ["failures/keys", "failures/reasons"])
def test_damaged_failures_are_found_again(folder, cache, name):
    whole = cache.read_bytes()
    damage(cache, name)
    report = run(folder, cache, verify=True)
    assert cache.read_bytes() == whole and (report.computed, report.damaged) == (0, 0)
    assert list(report.failures) == ["broken.png"]


def test_damaged_failures_are_found_where_nothing_else_is_to_be_done(image_folder, tmp_path):
    class Half(LocalFolder):
        """Lists a folder of it as one that cannot be read, which is a failure that is not tried again."""

        def scan(self):
            listing = super().scan()
            return dataclasses.replace(listing, failures={"gone/": "directory cannot be listed"})

    source, cache = Half(str(image_folder(3))), tmp_path / "cache.h5"
    run_embedding(source, cache, tiny_encoder(), workers=0)
    damage(cache, "failures/reasons")
    report = run_embedding(source, cache, tiny_encoder(), workers=0)
    assert report.written and report.computed == 0 and report.failures == {"gone/": "directory cannot be listed"}
    EmbeddingCache(cache).verify()
    assert EmbeddingCache(cache).failures == report.failures


@pytest.mark.parametrize("change", [lambda folder: save_image(folder / "new.png", 99), lambda folder: None])
@pytest.mark.parametrize("verify", [True, False])
def test_damage_is_looked_for_when_asked_and_whenever_the_cache_is_written_anew(folder, cache, change, verify):
    (folder / "broken.png").unlink()  # a failure is tried again each time, which is work to do
    run(folder, cache)
    damaged = damage(cache, "embeddings", 12)
    change(folder)
    something_new = (folder / "new.png").exists()
    report = run(folder, cache, verify=verify)
    assert report.written == (something_new or verify) and report.damaged == BLOCK * report.written
    if report.written:
        EmbeddingCache(cache).verify()
    else:
        assert cache.read_bytes() == damaged


def test_the_mended_cache_is_that_of_a_run_from_scratch_after_any_change(folder, cache, tmp_path):
    damage(cache, "keys", 3)
    save_image(folder / "005.png", 500)
    save_image(folder / "0050.png", 501)
    (folder / "030.png").unlink()
    run(folder, cache, prune=True)
    run(folder, tmp_path / "scratch.h5")
    assert cache.read_bytes() == (tmp_path / "scratch.h5").read_bytes()


def test_a_damaged_row_whose_image_is_gone_is_given_up_and_counted(folder, cache):
    (folder / "001.png").unlink()
    (folder / "020.png").unlink()
    damage(cache, "embeddings", 0)
    report = run(folder, cache)
    assert (report.damaged, report.computed, report.vanished, report.rows) == (BLOCK, BLOCK - 1, 1, N - 1)
    assert "020.png" in list(EmbeddingCache(cache).keys)
    EmbeddingCache(cache).verify()


def test_an_image_of_a_whole_row_is_still_known_by_content(folder, cache, encoder):
    shutil.copy(folder / "020.png", folder / "zopy.png")
    shutil.copy(folder / "001.png", folder / "zzpy.png")
    damage(cache, "embeddings", 0)
    report = run(folder, cache, encoder)
    assert report.reused == 1 and report.computed == BLOCK + 1
    both = EmbeddingCache(cache)
    np.testing.assert_array_equal(*(both.X[both.keys.rows([key])] for key in ("001.png", "zzpy.png")))
    both.verify()


def test_mending_can_be_interrupted_and_goes_on(folder, cache):
    class Stop(Silent):
        def advance(self, steps):
            raise KeyboardInterrupt

    whole = cache.read_bytes()
    damaged = [damage(cache, name, 9 * number) for number, name in enumerate(COLUMNS)][-1]
    with pytest.raises(KeyboardInterrupt):
        run(folder, cache, verify=True, progress=Stop())
    assert cache.read_bytes() == damaged
    run(folder, cache, verify=True)
    assert cache.read_bytes() == whole
    assert cache.with_name("cache.h5.damaged").read_bytes() == damaged


def test_a_file_system_without_links_gets_a_copy(folder, cache, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    damaged = damage(cache, "embeddings")
    monkeypatch.setattr(os, "link", refuse)
    run(folder, cache, verify=True)
    assert cache.with_name("cache.h5.damaged").read_bytes() == damaged
    CacheFile(cache).verify()


def test_a_damaged_file_that_cannot_be_set_aside_stays_where_it_is(folder, cache):
    damaged = damage(cache, "embeddings")
    cache.with_name("cache.h5.damaged").mkdir()
    with pytest.raises(OutputError, match=r"cannot set .*cache\.h5 aside as cache\.h5\.damaged"):
        run(folder, cache, verify=True)
    assert cache.read_bytes() == damaged


@pytest.mark.parametrize("where", [20, -100])
def test_damage_outside_of_the_columns_is_refused_with_the_way_out(folder, cache, where):
    data = bytearray(cache.read_bytes())
    data[where] ^= 1
    cache.write_bytes(data)
    with pytest.raises(CacheError, match=r"is damaged.*restore it from a copy, or move it away and embed again"):
        run(folder, cache, verify=True)
    assert cache.read_bytes() == data and visible(cache.parent) == ["cache.h5"]


def test_a_damaged_cache_is_not_copied_from(folder, cache, tmp_path):
    damage(cache, "embeddings")
    with pytest.raises(CacheError, match="embeddings are not as they were written"):
        run(folder, tmp_path / "new.h5", reuse=[cache])
