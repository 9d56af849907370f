import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import uuid
from importlib.util import find_spec
from pathlib import Path

import fsspec
import numpy as np
import pytest
from helpers.hangs import HANG_SECONDS
from helpers.slow import slow
from helpers.tiny import save_image, tiny_encoder, touch

from pucache.cache.destination import encoder_of_existing
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.merging import pack
from pucache.cache.paths import writer_lock
from pucache.cache.reader import CacheFile
from pucache.embedding import local_engine, row_blocks
from pucache.embedding.embed import run_embedding
from pucache.embedding.plan import EmbedOptions
from pucache.encoders.encoder import load_encoder
from pucache.encoders.spec import EncoderSpec
from pucache.errors import CacheError, CacheLockedError, EncoderError, SourceError
from pucache.images.decoding import decode
from pucache.images.source import UNKNOWN, Listing, LocalFolder, image_digest, open_source
from pucache.progress import Silent

BLOCK = 32


class StopAfter(Silent):
    """Ctrl-C once so many blocks are safe, 0 being before the first."""

    def __init__(self, cache, blocks):
        self._parts, self._blocks = cache.with_name(f"{cache.name}.parts"), blocks

    def start(self, total, what):
        self._before = self._count()
        self.advance(0)

    def advance(self, steps):
        if self._count() >= self._before + self._blocks:
            raise KeyboardInterrupt

    def _count(self):
        return len(list(self._parts.glob("part-*.h5")))


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", BLOCK)
    monkeypatch.setattr(local_engine, "_FEW_IMAGES", 0)


@pytest.fixture
def out(tmp_path):
    """Where the cache goes: a folder with nothing else in it."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "cache.h5"


def run(where, cache, encoder=None, *, workers=0, progress=None, **options):
    settings = {"workers": workers, "progress": progress, "options": EmbedOptions(**options)}
    return run_embedding(open_source(where), cache, encoder or tiny_encoder(), **settings)


def interrupt(where, cache, blocks, **options):
    with pytest.raises(KeyboardInterrupt):
        run(where, cache, progress=StopAfter(cache, blocks), **options)


def work(report):
    return report.computed, report.reused, report.kept


def identity(path):
    return path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()


def visible(folder):
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))


def check(cache, where, encoder=None):
    """Every row must be what the encoder gives for the file of its key, now."""
    written = EmbeddingCache(cache)
    written.verify()
    data = [Path(where, key).read_bytes() for key in written.keys]
    np.testing.assert_array_equal(written.X, (encoder or tiny_encoder())(map(decode, data)).astype(written.X.dtype))
    assert [row.tobytes() for row in written.digests] == [image_digest(d) for d in data]
    stats = [Path(where, key).stat() for key in written.keys]
    assert written.files[0].size_mtime.tolist() == [[s.st_size, s.st_mtime_ns] for s in stats]
    assert len({row.tobytes() for row in written.X}) == len(set(data))  # the encoder tells images apart
    return written


# --- a run, and the next one -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_first_run_embeds_every_image(image_folder, out, encoder, dtype):
    folder = image_folder(20)
    save_image(folder / "deep" / "né\nw.jpg", 99)
    (folder / "notes.txt").write_text("no image")
    report = run(folder, out, encoder, dtype=dtype)
    assert work(report) == (21, 0, 0)
    assert (report.rows, report.written, report.failures, report.ignored) == (21, True, {}, {".txt": 1})
    assert encoder.forward.rows == 21
    written = check(out, folder)
    assert list(written.keys) == [*(f"{n:03}.png" for n in range(20)), "deep/né\nw.jpg"]
    assert (written.encoder, written.files[0].source, written.X.dtype) == (encoder.spec, str(folder), dtype)
    assert visible(out.parent) == ["cache.h5"]


def test_a_second_run_computes_nothing_and_leaves_the_file_untouched(image_folder, out, encoder):
    folder = image_folder(20)
    run(folder, out)
    before = identity(out)
    report = run(folder, out, encoder)
    assert (*work(report), report.written, report.rows) == (0, 0, 20, False, 20)
    assert encoder.forward.rows == 0
    assert identity(out) == before
    assert visible(out.parent) == ["cache.h5"]


def rename(folder):
    (folder / "003.png").rename(folder / "moved.png")


CHANGES = {
    "an added file": (lambda folder: save_image(folder / "new.png", 50), (1, 0, 20)),
    "a changed file": (lambda folder: save_image(folder / "003.png", 50), (1, 0, 19)),
    "a renamed file": (rename, (0, 1, 19)),
    "a touched file": (lambda folder: touch(folder / "003.png"), (0, 1, 19)),
    "a copy": (lambda folder: shutil.copy2(folder / "003.png", folder / "copy.png"), (0, 1, 20)),
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_only_what_has_changed_is_computed(image_folder, out, encoder, change, expected, fixed_time):
    folder = image_folder(20)
    gone = save_image(folder / "the longest name.png", 40)
    run(folder, out)
    gone.unlink()
    change(folder)
    report = run(folder, out, encoder, prune=True)
    assert work(report) == expected
    assert encoder.forward.rows == report.computed
    check(out, folder)
    assert run(folder, out).written is False
    run(folder, out.with_name("anew.h5"))
    assert out.read_bytes() == out.with_name("anew.h5").read_bytes()


class Timeless(LocalFolder):
    """A folder that does not tell when its files were changed, as some remote stores do."""

    def scan(self):
        listing = super().scan()
        listing.size_mtime[:, 1] = UNKNOWN
        return listing


def test_where_no_time_is_told_the_content_decides(image_folder, out, encoder):
    folder = image_folder(20)
    source = Timeless(str(folder))
    run_embedding(source, out, encoder, workers=0)
    changed = folder / "003.png"
    shutil.copy2(folder / "004.png", changed)
    assert work(run_embedding(source, out, encoder, workers=0)) == (0, 20, 0)
    save_image(changed, 50)
    assert work(run_embedding(source, out, encoder, workers=0)) == (1, 19, 0)
    np.testing.assert_array_equal(
        CacheFile(out).digests[3], np.frombuffer(image_digest(changed.read_bytes()), np.uint8)
    )


def test_a_known_image_is_found_in_another_cache_whatever_its_digest(image_folder, out, encoder):
    folder = image_folder(20)
    odd = save_image(folder / "zero.png", 50)
    whole, tail = odd.read_bytes(), 0
    while image_digest(odd.read_bytes())[-1]:  # one digest in 256 ends in a zero byte
        odd.write_bytes(whole + tail.to_bytes(4))
        tail += 1
    run(folder, out.with_name("old.h5"), dtype="float32")
    (folder / "sub").mkdir()
    for path in folder.glob("*.png"):
        path.rename(folder / "sub" / path.name)
    report = run(folder, out, encoder, reuse=[out.with_name("old.h5")])
    assert work(report) == (0, 21, 0)
    assert encoder.forward.rows == 0
    check(out, folder)


def test_rows_of_vanished_files_stay_unless_pruned(image_folder, out, encoder):
    folder = image_folder(20)
    run(folder, out)
    row = CacheFile(out).X[3].copy()
    before = identity(out)
    (folder / "003.png").unlink()
    report = run(folder, out, encoder)
    assert (report.rows, report.vanished, report.written) == (20, 1, False)
    assert identity(out) == before
    save_image(folder / "new.png", 50)
    run(folder, out, encoder)
    np.testing.assert_array_equal(CacheFile(out).X[3], row)
    report = run(folder, out, encoder, prune=True)
    assert (report.rows, report.vanished, report.written) == (20, 1, True)
    assert "003.png" not in list(check(out, folder).keys)
    assert encoder.forward.rows == 1


def test_a_folder_that_cannot_be_listed_for_the_moment_keeps_its_rows(image_folder, out, encoder, monkeypatch):
    where = image_folder(2)
    for number in range(3):
        save_image(where / "sub" / f"{number}.png", 10 + number)
    save_image(where / "sub0.png", 20)  # sorts right behind everything in sub/
    run(where, out, encoder)
    (where / "sub0.png").unlink()
    scandir = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("sub"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    report = run(where, out, encoder, prune=True)
    assert list(EmbeddingCache(out).keys) == ["000.png", "001.png", "sub/0.png", "sub/1.png", "sub/2.png"]
    assert list(report.failures) == ["sub/"]
    assert report.vanished == 1


def test_a_source_with_a_name_that_is_not_utf8_can_be_embedded(image_folder, out, tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.rename(image_folder(3), odd)
    run(odd, out)
    assert check(out, odd).files[0].source == odd


# --- failures ----------------------------------------------------------------------------------


def test_unreadable_files_become_failures_and_are_tried_again(image_folder, out, encoder):
    folder = image_folder(20)
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_text("no image")
    (folder / "cut.png").write_bytes((folder / "000.png").read_bytes()[:200])
    (folder / "loose.png").symlink_to("nowhere")
    report = run(folder, out, encoder)
    assert report.rows == 20
    assert sorted(report.failures) == ["cut.png", "empty.png", "loose.png", "text.png"]
    assert report.failures["empty.png"] == "empty file (0 bytes)"
    assert report.failures["text.png"] == "not an image in a known format"
    assert report.failures["cut.png"].startswith("cannot be decoded: ")
    assert report.failures["loose.png"] == "cannot be read: No such file or directory"
    assert check(out, folder).failures == report.failures
    before = identity(out)
    assert run(folder, out, encoder).written is False
    assert identity(out) == before
    save_image(folder / "text.png", 50)
    (folder / "empty.png").unlink()
    report = run(folder, out, encoder)
    assert work(report) == (1, 0, 20)
    assert sorted(check(out, folder).failures) == ["cut.png", "loose.png"]
    assert encoder.forward.rows == 21


@pytest.mark.parametrize("breaks", [lambda path: path.write_text("broken"), lambda path: path.symlink_to("nowhere")])
def test_an_embedded_file_that_breaks_loses_its_row_to_a_failure(image_folder, out, breaks):
    folder = image_folder(20)
    run(folder, out)
    (folder / "003.png").unlink()
    breaks(folder / "003.png")
    report = run(folder, out)
    assert (report.rows, report.vanished, list(report.failures)) == (19, 0, ["003.png"])
    assert "003.png" not in list(check(out, folder).keys)


def test_without_a_readable_image_nothing_is_written(tmp_path, out):
    (tmp_path / "a.png").write_text("no image")
    with pytest.raises(SourceError, match=r"none of the 1 images in .* can be read \('a.png': not an image"):
        run(tmp_path, out)
    assert visible(out.parent) == []


@pytest.mark.parametrize(("name", "telling"), [(None, "expected files such as"), ("a.mov", r"1 files .*: 1 \.mov")])
def test_a_source_without_images_is_refused(tmp_path, out, name, telling):
    (tmp_path / "images").mkdir()
    if name:
        (tmp_path / "images" / name).write_text("no image")
    with pytest.raises(SourceError, match=f"no image in {tmp_path}/images.*{telling}"):
        run(tmp_path / "images", out)
    assert visible(out.parent) == []


class Unsteady(LocalFolder):
    """A folder that others work on between the listing and the reading."""

    def scan(self):
        listing = super().scan()
        with open(f"{self.name}/003.png", "ab") as stream:
            stream.write(b"more")
        os.unlink(f"{self.name}/004.png")
        return listing


def test_files_that_change_or_go_while_they_are_read_are_failures(image_folder, out, encoder):
    folder = image_folder(20)
    report = run_embedding(Unsteady(str(folder)), out, encoder, workers=0)
    assert report.rows == 18
    assert report.failures["003.png"].startswith("changed while it was read: ")
    assert report.failures["004.png"] == "cannot be read: No such file or directory"
    report = run(folder, out)
    assert (*work(report), report.failures) == (1, 0, 18, {})


@pytest.fixture
def odd_encoder(encoder):
    """Give the image 003.png an embedding of our choice."""

    def give(folder, value):
        forward, odd = encoder.forward, encoder.preprocess(decode((folder / "003.png").read_bytes()))

        def changed(pixels):
            X = forward(pixels)
            X[[bool((image == odd).all()) for image in pixels], -1] = value
            return X

        encoder.forward = changed
        return encoder

    return give


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_image_that_the_encoder_cannot_take_is_a_failure(image_folder, out, odd_encoder, value):
    folder = image_folder(20)
    report = run(folder, out, odd_encoder(folder, value))
    assert report.failures == {"003.png": "the encoder gave NaN or infinite values"}
    assert len(check(out, folder)) == 19


class DeadlySource(LocalFolder):
    """Ends the process that reads a certain image, as the kernel does when memory is short."""

    def read(self, key):
        if key == "040.png":
            os._exit(9)
        return super().read(key)


def test_a_worker_that_dies_is_one_line_that_names_the_place(image_folder, out, small_blocks):
    source = DeadlySource(str(image_folder(64)))
    with pytest.raises(SourceError, match=r"worker process died with '040.png' .*run again"):
        run_embedding(source, out, tiny_encoder(), workers=1)
    assert run(source.name, out).kept == 0  # nothing had been merged
    assert len(EmbeddingCache(out)) == 64


def test_embeddings_beyond_float16_are_an_error_that_names_float32(image_folder, out, odd_encoder):
    folder = image_folder(20)
    encoder = odd_encoder(folder, 1e6)
    with pytest.raises(EncoderError, match=r"'003.png' overflows float16; remove its .parts and use --dtype float32"):
        run(folder, out, encoder)
    assert visible(out.parent) == []
    run(folder, out, encoder, dtype="float32")
    assert CacheFile(out).X[3, -1] == 1e6


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["cache", "parts", "reuse"])
def test_another_encoder_is_refused_by_name(image_folder, out, role, small_blocks):
    folder = image_folder(40)
    other, options = tiny_encoder("other", seed=1), {}
    if role == "parts":
        interrupt(folder, out, 1, encoder=other)
    else:
        target = out if role == "cache" else out.with_name("reuse.h5")
        run(folder, target, other)
        options = {"reuse": [target]} if role == "reuse" else {}
    before = visible(out.parent)
    with pytest.raises(CacheError, match=r"of other \(.* 1{8}, fp32 torch\).* of tiny \(.* 0{8}, fp32 torch\)"):
        run(folder, out, **options)
    assert visible(out.parent) == before


@pytest.mark.parametrize("role", ["cache", "parts", "reuse"])
def test_another_type_of_embeddings_is_refused(image_folder, out, role, small_blocks):
    folder = image_folder(40)
    options = {"dtype": "float32"}
    if role == "parts":
        interrupt(folder, out, 1)
    elif role == "cache":
        run(folder, out)
    else:
        run(folder, out.with_name("reuse.h5"))
        options["reuse"] = [out.with_name("reuse.h5")]
    with pytest.raises(CacheError, match=r"float16.* float32"):
        run(folder, out, **options)


def test_an_update_keeps_the_type_of_the_cache(image_folder, out):
    folder = image_folder(5)
    run(folder, out, dtype="float32")
    save_image(folder / "new.png", 50)
    run(folder, out)
    assert check(out, folder).X.dtype == np.float32


@pytest.mark.parametrize("options", [{"dtype": "int8"}, {"shard": (0, 3)}, {"shard": (4, 3)}, {"shard": (1, 0)}])
def test_unusable_arguments_are_value_errors(image_folder, out, options):
    with pytest.raises(ValueError, match=r"unknown dtype 'int8'|shard \d/\d is not one of"):
        run(image_folder(2), out, **options)
    assert visible(out.parent) == []


def test_a_second_writer_is_refused_while_the_first_one_works(image_folder, out, encoder):
    folder = image_folder(2)
    with writer_lock(out), pytest.raises(CacheLockedError, match=r"cache\.h5 is being written by another process"):
        run(folder, out, encoder)
    assert encoder.forward.rows == 0
    run(folder, out, encoder)
    check(out, folder)


# --- shards and sources ------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [True, False])
def test_another_source_is_refused_unless_it_is_said_to_have_moved(image_folder, out, encoder, finished, small_blocks):
    first, second = image_folder(40), image_folder(3, "others")
    if finished:
        run(first, out)
    else:
        interrupt(first, out, 1)
    with pytest.raises(CacheError, match=r"holds images of .*images, not of .*others; .*--moved"):
        run(second, out)
    moved = first.rename(first.with_name("elsewhere"))
    report = run(moved, out, encoder, moved=True)
    assert (report.rows, encoder.forward.rows) == (40, 0 if finished else 40 - BLOCK)
    assert not run(moved, out).written  # the cache names the new place, so it need not be said again


def test_shards_are_disjoint_and_together_the_whole(image_folder, out, fixed_time):
    folder = image_folder(60)
    (folder / "broken.png").write_text("no image")
    (folder / "loose.png").symlink_to("nowhere")
    run(folder, out)
    shards = [out.with_name(f"{number}.h5") for number in (1, 2, 3)]
    reports = [run(folder, shard, shard=(number, 3)) for number, shard in enumerate(shards, 1)]
    assert sum(report.rows for report in reports) == 60
    assert min(report.rows for report in reports) > 5
    assert sorted(key for report in reports for key in report.failures) == ["broken.png", "loose.png"]
    pack(shards, out.with_name("packed.h5"))
    assert out.with_name("packed.h5").read_bytes() == out.read_bytes()
    save_image(folder / "new.png", 70)
    assert sorted(run(folder, shard, shard=(n, 3)).computed for n, shard in enumerate(shards, 1)) == [0, 0, 1]


def in_memory(folder):
    url = f"memory://{uuid.uuid4().hex}"
    for path in folder.iterdir():
        with fsspec.open(f"{url}/{path.name}", "wb") as stream:
            stream.write(path.read_bytes())
    return url


def in_tar(folder):
    shard = folder.parent / "images.tar"
    with tarfile.open(shard, "w") as archive:
        for path in folder.iterdir():
            archive.add(path, path.name)
    return shard


@pytest.mark.parametrize("move", [in_memory, in_tar])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_source_need_not_be_a_folder(image_folder, out, encoder, move, workers, small_blocks):
    folder = image_folder(20)
    where = move(folder)
    assert work(run(where, out, encoder, workers=workers)) == (20, 0, 0)
    run(folder, out.with_name("folder.h5"))
    ours, theirs = EmbeddingCache(out), EmbeddingCache(out.with_name("folder.h5"))
    assert list(ours.keys) == list(theirs.keys)
    np.testing.assert_array_equal(ours.X, theirs.X)
    np.testing.assert_array_equal(ours.digests, theirs.digests)
    assert work(run(where, out, encoder, workers=workers)) == (0, 0, 20)


# --- interrupted runs --------------------------------------------------------------------------

ROUGH = 150


@pytest.fixture
def rough_folder(image_folder, small_blocks, fixed_time):
    """150 images in 5 blocks; among them copies and what is no image, in a block of its own too."""
    folder = image_folder(ROUGH)
    for number in (5, 40, 41, *range(64, 96), 149):
        (folder / f"{number:03}.png").write_text(f"no image {number}")
    for number in (6, 50, 148):
        shutil.copy2(folder / "000.png", folder / f"{number:03}.png")
    return folder


@pytest.fixture
def undisturbed(rough_folder, tmp_path):
    """Bytes of the cache that a run without any disturbance writes."""
    report = run(rough_folder, tmp_path / "undisturbed.h5")
    assert (report.computed, len(report.failures)) == (114, 36)
    check(report.cache, rough_folder)
    return report.cache.read_bytes()


@pytest.mark.parametrize("workers", [1, 2, None])
def test_the_number_of_workers_changes_nothing(rough_folder, out, undisturbed, workers):
    run(rough_folder, out, workers=workers)
    assert out.read_bytes() == undisturbed


@pytest.mark.parametrize("blocks", [0, 3, 5, *map(slow, (1, 2, 4))])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupted_run_goes_on_to_the_same_bytes(rough_folder, out, undisturbed, encoder, blocks, workers):
    interrupt(rough_folder, out, blocks, workers=workers)
    parts = [len(CacheFile(path)) for path in out.parent.glob("cache.h5.parts/*")]
    assert blocks <= len(parts) <= blocks + 1  # the one being written is finished
    assert not out.exists()
    report = run(rough_folder, out, encoder)
    assert encoder.forward.rows == report.computed == 114 - sum(parts)
    assert out.read_bytes() == undisturbed
    assert visible(out.parent) == ["cache.h5"]


def test_an_update_interrupted_time_and_again_ends_in_the_same_bytes(rough_folder, out, encoder):
    run(rough_folder, out)
    shutil.copy2(out, out.with_name("other.h5"))
    for number in range(0, ROUGH, 2):
        save_image(rough_folder / f"{number:03}.png", ROUGH + number)
    (rough_folder / "001.png").unlink()
    touch(rough_folder / "007.png")
    run(rough_folder, out.with_name("other.h5"), prune=True)
    old = identity(out)
    for _ in range(2):
        interrupt(rough_folder, out, 1, encoder=encoder, prune=True)
        assert identity(out) == old
    done = sum(len(CacheFile(path)) for path in out.parent.glob("cache.h5.parts/*"))
    report = run(rough_folder, out, encoder, prune=True)
    assert report.computed + report.reused == 76 - done < 76  # one was only touched
    assert out.read_bytes() == out.with_name("other.h5").read_bytes()
    check(out, rough_folder)


def test_what_changed_after_an_interruption_is_embedded_anew(rough_folder, out, encoder):
    interrupt(rough_folder, out, 2)
    save_image(rough_folder / "003.png", 500)
    (rough_folder / "004.png").unlink()
    assert run(rough_folder, out, encoder).rows == 113
    check(out, rough_folder)


def test_an_image_restored_after_an_interruption_is_no_failure_beside_its_row(image_folder, out, small_blocks):
    folder = image_folder(40)
    run(folder, out)
    first, second = folder / "003.png", folder / "020.png"
    shutil.copy2(first, folder.with_name("copy"))
    first.write_text("broken")
    touch(second)
    interrupt(folder, out, 1)
    shutil.copy2(folder.with_name("copy"), first)
    report = run(folder, out)
    assert (report.failures, report.rows) == ({}, 40)
    check(out, folder)


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[:2300] + b"!" + data[2301:]])
def test_a_damaged_part_is_set_aside_and_its_images_are_embedded_again(rough_folder, out, undisturbed, damage, caplog):
    interrupt(rough_folder, out, 4)
    part = max(out.parent.glob("cache.h5.parts/*.h5"), key=lambda path: len(CacheFile(path)))
    parts = [len(CacheFile(path)) for path in out.parent.glob("cache.h5.parts/*.h5")]
    lost = len(CacheFile(part))
    part.write_bytes(damage(part.read_bytes()))
    interrupt(rough_folder, out, 0)
    assert part.with_suffix(".damaged").exists()
    assert not part.exists()
    assert f"set aside as {part.with_suffix('.damaged').name}" in caplog.text
    assert run(rough_folder, out).computed == lost + 114 - sum(parts)
    assert out.read_bytes() == undisturbed
    assert visible(out.parent) == ["cache.h5"]


def test_there_may_be_more_parts_than_file_descriptors(rough_folder, out, undisturbed, monkeypatch, few_descriptors):
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 4)
    monkeypatch.setattr(local_engine, "CHUNK_ROWS", 4)
    interrupt(rough_folder, out, 30)
    run(rough_folder, out)
    assert out.read_bytes() == undisturbed


# A child for each place to die in; the last one is killed from outside, wherever it is then.
KILLED = """
import glob, os, shutil, signal, sys, time

import torch
from helpers.tiny import tiny_encoder

from pucache.cache import hdf5, merging
from pucache.embedding import local_engine, row_blocks
from pucache.embedding.embed import run_embedding
from pucache.images.source import open_source

row_blocks.BLOCK_ROWS = 32
PLACES = {
    "in a block": (torch.nn.Conv2d, "forward", 7),
    "in a part": (hdf5.Writer, "write", 16),  # the third: a block of nothing but failures may be the first
    "before a part is named": (os, "replace", 3),
    "in the merge": (merging._ChosenRows, "read", 1),
    "before the cache is named": (os, "replace", 6),
    "before the parts are removed": (shutil, "rmtree", 1),
    "while the parts are removed": (os, "rmdir", 1),
    "anywhere": (time, "sleep", 1 << 30),
}


def die_in(owner, name, call):
    function, calls = getattr(owner, name), 0

    def wrapped(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    setattr(owner, name, wrapped)


def kill_later(child, parts):
    while len(glob.glob(parts + "/part-*.h5")) < 2:
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)


folder, out = sys.argv[1:]
for place, where in PLACES.items():
    child = os.fork()
    if not child:
        die_in(*where)
        encoder = tiny_encoder()
        if place == "anywhere":
            forward = encoder.forward
            encoder.forward = lambda pixels: (time.sleep(0.05), forward(pixels))[1]
        run_embedding(open_source(folder), f"{out}/{place}.h5", encoder, workers=0)
        os._exit(0)
    if place == "anywhere":
        kill_later(child, f"{out}/{place}.h5.parts")
    print(place, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sep=":")
"""


def test_a_killed_run_goes_on_to_the_same_bytes(rough_folder, out, undisturbed):
    paths = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(local_engine.__file__).parents[2])])
    command = [sys.executable, "-c", KILLED, rough_folder, out.parent]
    environ = {**os.environ, "PYTHONPATH": paths}
    told = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=HANG_SECONDS)
    ends = dict(line.split(":") for line in told.stdout.splitlines())
    assert len(ends) == 8, told.stderr
    assert set(ends.values()) == {str(-signal.SIGKILL)}
    for place in ends:
        encoder, cache = tiny_encoder(), out.with_name(f"{place}.h5")
        done = cache.exists()
        assert done == (place in ("before the parts are removed", "while the parts are removed"))
        report = run(rough_folder, cache, encoder)
        assert cache.read_bytes() == undisturbed, place
        assert report.computed == encoder.forward.rows < 114 + (place == "in a block"), place  # the first, maybe
        assert done is not report.written, place
        if done:
            assert report.computed == 0
    assert visible(out.parent) == sorted(f"{place}.h5" for place in ends)


def test_failures_of_an_interrupted_run_are_tried_again(image_folder, out, small_blocks, fixed_time):
    folder = image_folder(80)
    whole = (folder / "003.png").read_bytes()
    (folder / "003.png").write_bytes(b"x" * len(whole))
    touch(folder / "003.png")
    stat = (folder / "003.png").stat()
    interrupt(folder, out, 1)
    (folder / "003.png").write_bytes(whole)  # as if a store had been out of reach: size and time are the same
    os.utime(folder / "003.png", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    report = run(folder, out)
    assert (report.rows, report.failures) == (80, {})
    check(out, folder)


class Unlisted:
    """A source that cannot look up its images just now."""

    def __init__(self, source):
        self.name, self._source = source.name, source

    def scan(self):
        listing = self._source.scan()
        return Listing([], listing.size_mtime[:0], dict.fromkeys(listing.keys, "cannot be read: 503"))


def test_what_was_finished_stays_when_nothing_can_be_looked_up(image_folder, out, small_blocks):
    folder = image_folder(80)
    interrupt(folder, out, 1)
    parts = sorted(out.with_name("cache.h5.parts").iterdir())
    with pytest.raises(SourceError, match="none of the 80 images"):
        run_embedding(Unlisted(open_source(folder)), out, tiny_encoder(), workers=0)
    assert sorted(out.with_name("cache.h5.parts").iterdir()) == parts
    assert run(folder, out).computed < 80


def test_a_folder_that_cannot_be_listed_keeps_its_rows_in_every_share(image_folder, tmp_path, monkeypatch):
    folder = image_folder(10)
    for number in range(40):
        (folder / "sub").mkdir(exist_ok=True)
        save_image(folder / "sub" / f"{number:03}.png", 100 + number)
    caches = [tmp_path / f"{number}.h5" for number in (1, 2)]
    before = [run(folder, cache, shard=(number, 2)).rows for number, cache in enumerate(caches, 1)]
    scan = LocalFolder.scan

    def blind(source):
        listing = scan(source)
        seen = [number for number, key in enumerate(listing.keys) if not key.startswith("sub/")]
        keys = [listing.keys[number] for number in seen]
        return Listing(keys, listing.size_mtime[seen], {"sub/": "directory cannot be listed: Permission denied"})

    monkeypatch.setattr(LocalFolder, "scan", blind)
    reports = [run(folder, cache, shard=(number, 2), prune=True) for number, cache in enumerate(caches, 1)]
    assert [report.rows for report in reports] == before
    assert all(list(report.failures) == ["sub/"] for report in reports)


# --- the encoder that a cache was made with ----------------------------------------------------


def test_the_encoder_of_a_cache_or_of_its_unfinished_parts_is_told_and_of_nothing_else(image_folder, out, small_blocks):
    folder, encoder = image_folder(40), tiny_encoder("mine", seed=3)
    assert encoder_of_existing(out) is None
    interrupt(folder, out, 1, encoder=encoder)
    assert not out.exists() and encoder_of_existing(out) == encoder.spec
    run(folder, out, encoder)
    assert encoder_of_existing(out) == encoder_of_existing(str(out)) == encoder.spec


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x89HDF\r\n\x1a\n" + bytes(3000)])
def test_garbage_was_made_with_no_encoder(out, data):
    out.write_bytes(data)
    assert encoder_of_existing(out) is None
    parts = out.with_name("new.h5.parts")
    parts.mkdir()
    (parts / "part-0.h5").write_bytes(data)
    assert encoder_of_existing(out.with_name("new.h5")) is None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("runtime", ["torch", "compile"])
def test_what_is_left_open_follows_an_earlier_encoder(precision, runtime):
    like = load_encoder(device="cpu", precision=precision, runtime=runtime).spec
    assert (like.precision, like.runtime) == (precision, runtime)
    assert load_encoder(device="cpu", like=like).spec == like
    asked = load_encoder(device="cpu", precision="fp32", runtime="torch", like=like).spec
    assert (asked.precision, asked.runtime) == ("fp32", "torch")


def test_what_an_earlier_encoder_had_and_cannot_be_had_is_chosen_anew(monkeypatch):
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, real=find_spec: None if name == "openvino" else real(name)
    )
    free = load_encoder(device="cpu").spec
    assert free.runtime == "torch" and free.precision in ("fp32", "bf16")
    like = dataclasses.replace(free, precision="fp16", runtime="openvino")
    assert load_encoder(device="cpu", like=like).spec == free
    half = dataclasses.replace(free, precision="fp16", runtime="compile")
    assert load_encoder(device="cpu", like=half).spec == dataclasses.replace(free, runtime="compile")
    imported = EncoderSpec.imported("clip", 512)
    assert load_encoder(device="cpu", like=imported).spec == free


def test_unfinished_work_with_another_decoder_is_refused_by_what_differs(image_folder, out, small_blocks):
    folder = image_folder(40)
    interrupt(folder, out, 1)
    other = tiny_encoder()
    other.spec = dataclasses.replace(other.spec, decoder="another")
    with pytest.raises(
        CacheError, match=r"cache.h5.parts holds unfinished work .* \(they differ in decoder\); finish it"
    ):
        run(folder, out, other)
