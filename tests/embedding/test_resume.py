"""What an earlier run left: finished blocks are kept, and a damaged cache is mended by embedding what is damaged."""

import os
import shutil

import numpy as np
import pytest
from helpers.cache_files import damage
from helpers.embedding_runs import MemorySource, expect_current, interrupt, parts_of, picture, pictures, run, work
from helpers.files import visible
from helpers.tiny import save_image

from pucache import EmbeddingCache
from pucache.cache.reader import CacheFile
from pucache.embedding import blocks as row_blocks
from pucache.embedding import engine
from pucache.errors import CacheError, SourceError
from pucache.images.listing import Listing

pytestmark = pytest.mark.usefixtures("small_blocks", "fixed_time")

# --- an interrupted run ------------------------------------------------------------------------


@pytest.fixture
def folder(image_folder):
    """150 images in 5 blocks; among them copies and what is no image, in a block of its own too."""
    folder = image_folder(150)
    for number in (5, 40, 41, *range(64, 96), 149):
        (folder / f"{number:03}.png").write_text(f"no image {number}")
    for number in (6, 50, 148):
        shutil.copy2(folder / "000.png", folder / f"{number:03}.png")
    return folder


@pytest.fixture
def undisturbed(folder, tmp_path):
    """Bytes of the cache that a run without any disturbance writes."""
    report = run(folder, tmp_path / "undisturbed.h5")
    assert (report.computed, len(report.failures)) == (114, 36)
    return report.cache.read_bytes()


def finished_rows(cache):
    return [len(CacheFile(path)) for path in parts_of(cache)]


@pytest.mark.parametrize(("blocks", "workers"), [(0, 2), (3, 0), (5, 2)])
def test_an_interrupted_run_goes_on_to_the_same_bytes(folder, out, undisturbed, encoder, left_behind, blocks, workers):
    interrupt(folder, out, blocks, workers=workers)
    finished = finished_rows(out)
    assert blocks <= len(finished) <= blocks + 1  # the one being written is finished
    assert not out.exists()
    report = run(folder, out, encoder)
    assert encoder.runtime.rows == report.computed == 114 - sum(finished)
    assert out.read_bytes() == undisturbed
    assert visible(out.parent) == ["cache.h5"]


def test_an_update_interrupted_time_and_again_ends_in_the_same_bytes(folder, out):
    run(folder, out)
    other = shutil.copy2(out, out.with_name("other.h5"))
    for number in range(0, 150, 2):
        save_image(folder / f"{number:03}.png", 150 + number)
    (folder / "001.png").unlink()
    os.utime(folder / "007.png", (1, 1))
    old = out.read_bytes()
    for _ in range(2):
        interrupt(folder, out, 1, prune=True)
        assert out.read_bytes() == old
    done = sum(finished_rows(out))
    save_image(folder / "000.png", 500)  # of these two the finished rows are no longer right
    (folder / "002.png").unlink()
    report = run(folder, out, prune=True)
    assert report.computed + report.reused == 75 - (done - 2) < 75  # one was only touched
    run(folder, other, prune=True)
    assert out.read_bytes() == other.read_bytes()
    expect_current(out, folder)


def test_failures_of_an_interrupted_run_are_tried_again(out):
    """As where a store was out of reach: size and time of the image are the same."""
    files = pictures(80)
    interrupt(MemorySource(files, gone=["0003.ppm"]), out, 1)
    report = run(MemorySource(files), out)
    assert (report.rows, report.failures) == (80, {})


def test_what_was_finished_stays_when_nothing_can_be_looked_up(out):
    source = MemorySource(pictures(80))
    interrupt(source, out, 1)
    parts, unlisted = parts_of(out), dict.fromkeys(pictures(80), "cannot be read: 503")
    with pytest.raises(SourceError, match="none of the 80 images"):
        run(source, out, listing=Listing([], np.empty((0, 2), np.int64), unlisted))
    assert parts_of(out) == parts != []
    assert run(source, out).computed < 80


@pytest.mark.parametrize("hurt", [lambda part: os.truncate(part, 2000), lambda part: damage(part, "embeddings")])
def test_a_damaged_part_is_set_aside_and_its_images_are_embedded_again(folder, out, undisturbed, hurt, caplog):
    interrupt(folder, out, 4)
    finished = sum(finished_rows(out))
    part = max(parts_of(out), key=lambda path: len(CacheFile(path)))
    lost = len(CacheFile(part))
    hurt(part)
    interrupt(folder, out, 0)
    assert part.with_suffix(".damaged").exists() and not part.exists()
    assert f"set aside as {part.stem}.damaged" in caplog.text
    assert run(folder, out).computed == lost + 114 - finished
    assert out.read_bytes() == undisturbed
    assert visible(out.parent) == ["cache.h5"]


def test_there_may_be_more_parts_than_file_descriptors(folder, out, undisturbed, monkeypatch, few_descriptors):
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 4)
    monkeypatch.setattr(engine, "CHUNK_ROWS", 4)
    interrupt(folder, out, 30)
    run(folder, out)
    assert out.read_bytes() == undisturbed


# --- a damaged cache ---------------------------------------------------------------------------

N, HASHED = 600, 256  # rows; of which so many are hashed together, the last 88
FILES = {**pictures(N), "broken.ppm": b"no image"}
COLUMNS = ["embeddings", "keys", "digests", "size_mtime"]


def source(changes=None, **options):
    """The source of the cache; with `changes`, other bytes by key, or None for an image that is gone."""
    files = {**FILES, **(changes or {})}
    return MemorySource({key: data for key, data in files.items() if data is not None}, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Bytes of the undamaged cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        return run(source(), tmp_path_factory.mktemp("whole") / "cache.h5").cache.read_bytes()


@pytest.fixture
def cache(out, whole):
    out.write_bytes(whole)
    return out


@pytest.mark.parametrize(
    ("name", "row", "rows"), [*((name, 0, HASHED) for name in COLUMNS), ("embeddings", N - 1, N - 2 * HASHED)]
)
def test_damaged_rows_are_embedded_again_and_no_others(cache, whole, encoder, name, row, rows, caplog):
    damaged = damage(cache, name, row)
    report = run(source(), cache, encoder, verify=True)
    assert cache.read_bytes() == whole
    assert (report.damaged, *work(report)) == (rows, rows, 0, N - rows)
    assert encoder.runtime.rows == rows
    assert cache.with_name("cache.h5.damaged").read_bytes() == damaged
    assert visible(cache.parent) == ["cache.h5", "cache.h5.damaged"]
    assert f"{cache} is damaged ({name}): {rows} of its 600 rows are given up" in caplog.text


@pytest.mark.parametrize("changes", [{"broken.ppm": None}, {"broken.ppm": None, "new.ppm": picture(N)}])
@pytest.mark.parametrize("verify", [True, False])
def test_damage_is_looked_for_when_asked_and_whenever_the_cache_is_written_anew(cache, changes, verify):
    run(source({"broken.ppm": None}), cache)  # a failure is tried again each time, which is work to do
    damaged = damage(cache, "embeddings", 12)
    report = run(source(changes), cache, verify=verify)
    assert report.written == ("new.ppm" in changes or verify) and report.damaged == HASHED * report.written
    assert report.written or cache.read_bytes() == damaged


def test_a_damaged_row_whose_image_is_gone_is_given_up_and_a_whole_one_stays(cache):
    damage(cache, "embeddings")
    report = run(source({"0001.ppm": None, "0300.ppm": None}), cache)
    assert (report.damaged, report.computed, report.vanished, report.rows) == (HASHED, HASHED - 1, 1, N - 1)
    mended = EmbeddingCache(cache)
    mended.verify()
    assert mended.keys.rows(["0001.ppm"])[0] == -1 < mended.keys.rows(["0300.ppm"])[0]


def test_a_damaged_cache_is_not_copied_from(cache):
    damage(cache, "embeddings")
    with pytest.raises(CacheError, match="embeddings are not as they were written"):
        run(source(), cache.with_name("new.h5"), reuse=[cache])
