"""An import that is killed, or loses a file half-way, goes on, and ends in the bytes of an undisturbed one."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet
import pytest
from helpers.parts import write_clip_folder
from helpers.slow import slow

from pucache.cache.interchange import importing, resumable_file
from pucache.cache.interchange.importing import import_embeddings
from pucache.cache.paths import writer_lock
from pucache.errors import CacheError, CacheLockedError, OutputError

N = 6_000
RUN = """
import json, sys
from pucache.cache.interchange import importing, key_order, resumable_file, row_blocks
resumable_file.SEGMENT_BYTES, row_blocks.BLOCK_BYTES, key_order._RUN_BYTES = 1, 1 << 14, 1 << 12
print("ready", flush=True)
report = importing.import_embeddings(*sys.argv[1:3])
print(json.dumps(report.rows))
"""


@pytest.fixture(autouse=True)
def same_time(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")


@pytest.fixture
def small_segments(monkeypatch):
    monkeypatch.setattr(resumable_file, "SEGMENT_BYTES", 1)  # so that one holds 256 rows


def make_source(folder, kind):
    """Parts with keys in another order than the rows."""
    X = np.random.default_rng(0).normal(size=(N, 16)).astype("f4")
    keys = [f"{number:06}.jpg" for number in np.random.default_rng(1).permutation(N)]
    if kind == "arrays":
        return write_clip_folder(folder / "clip", X, keys, [N // 12] * 12)
    (folder / "table").mkdir()
    for number, part in enumerate(np.array_split(np.arange(N), 4)):
        lists = pyarrow.FixedSizeListArray.from_arrays(X[part].ravel(), 16)
        table = pyarrow.table({"key": [keys[row] for row in part], "embedding": lists})
        pyarrow.parquet.write_table(table, folder / "table" / f"{number}.parquet", row_group_size=700)
    return folder / "table"


def start(source, out):
    """Start an import in a process of its own, and wait until it has loaded its libraries."""
    process = subprocess.Popen([sys.executable, "-c", RUN, str(source), str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def ended(process):
    rest = process.stdout.read()
    process.stdout.close()
    return process.wait(), rest


@pytest.mark.parametrize(("kind", "kills"), [("arrays", 2), slow("table", 2), slow("arrays", 50), slow("table", 50)])
def test_an_import_killed_at_any_moment_ends_in_the_same_bytes(tmp_path, kind, kills):
    source = make_source(tmp_path, kind)
    process, began = start(source, tmp_path / "whole.h5"), time.monotonic()
    assert ended(process)[0] == 0
    whole, seconds = (tmp_path / "whole.h5").read_bytes(), time.monotonic() - began
    out, random, struck = tmp_path / "out" / "c.h5", np.random.default_rng(kills), 0
    while struck < kills:
        process = start(source, out)
        time.sleep(random.uniform(0, 0.7 * seconds))
        process.send_signal(signal.SIGKILL)
        code, _ = ended(process)
        if code == -signal.SIGKILL:
            struck += 1
            assert not out.exists() or out.read_bytes() == whole
        if out.exists():
            out.unlink()  # it had ended: begin again
    code, text = ended(start(source, out))
    assert code == 0 and json.loads(text) == N
    assert out.read_bytes() == whole
    assert sorted(name for name in os.listdir(tmp_path / "out") if not name.endswith(".lock")) == ["c.h5"]


class Stop(BaseException):
    """Stands for a kill: no `except Exception` sees it."""


POINTS = {
    "the keys are sorted": (importing, "ResumableFile"),
    "the structure is written": (resumable_file.ResumableFile, "fill"),
    "the first segment is on disk": (resumable_file.ResumableFile, "_record"),
    "all segments are on disk": (resumable_file.ResumableFile, "publish"),
    "the checksums are appended": (os, "chmod"),
    "it has its name": (resumable_file, "fsync_directory"),
}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", ["arrays", slow("table")])
def test_an_import_that_ends_at_a_point_goes_on_from_there(tmp_path, monkeypatch, small_segments, kind, point):
    source = make_source(tmp_path, kind)
    import_embeddings(source, tmp_path / "whole.h5")

    def stop(*arguments, **options):
        raise Stop

    with monkeypatch.context() as patch:
        owner, name = POINTS[point]
        original = getattr(owner, name)
        if name == "_record":

            def stop(*arguments, original=original):
                original(*arguments)
                raise Stop

        if name == "chmod":  # earlier calls are those of other files

            def stop(path, mode, original=original):
                if os.fspath(path).endswith("unfinished.h5"):
                    raise Stop
                original(path, mode)

        patch.setattr(owner, name, stop)
        with pytest.raises(Stop):
            import_embeddings(source, tmp_path / "c.h5")
    report = import_embeddings(source, tmp_path / "c.h5")
    done = {"the first segment is on disk": 256, "all segments are on disk": N, "the checksums are appended": N}
    assert report.resumed_rows == done.get(point, 0)
    assert (tmp_path / "c.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert not (tmp_path / "c.h5.import").exists()


def test_a_kill_while_the_work_folder_is_removed(tmp_path, monkeypatch):
    source = make_source(tmp_path, "arrays")
    import_embeddings(source, tmp_path / "whole.h5")

    def removes_the_rows_alone(folder):
        next(folder.glob("merged-*")).unlink()
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(importing.shutil, "rmtree", removes_the_rows_alone)
        with pytest.raises(Stop):
            import_embeddings(source, tmp_path / "c.h5")
    assert import_embeddings(source, tmp_path / "c.h5").resumed_rows == 0
    assert (tmp_path / "c.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


def after_first_segment(monkeypatch, do):
    """Call `do` once the first segment is on disk."""
    record = resumable_file.ResumableFile._record

    def recorded(*arguments):
        record(*arguments)
        if arguments[1] == 256:
            do()

    monkeypatch.setattr(resumable_file.ResumableFile, "_record", recorded)


def test_a_part_that_vanishes_is_named_and_once_it_is_back_the_import_goes_on(tmp_path, monkeypatch, small_segments):
    source = make_source(tmp_path, "arrays")
    import_embeddings(source, tmp_path / "whole.h5")
    (tmp_path / "c.h5").write_text("precious")
    part = source / "img_emb" / "img_emb_3.npy"
    with monkeypatch.context() as patch:
        after_first_segment(patch, lambda: part.rename(tmp_path / "away.npy"))
        with pytest.raises(CacheError, match=r"img_emb_3.npy is gone; restore it and run the same command"):
            import_embeddings(source, tmp_path / "c.h5")
    assert (tmp_path / "c.h5").read_text() == "precious"
    (tmp_path / "away.npy").rename(part)
    assert import_embeddings(source, tmp_path / "c.h5").resumed_rows >= 256
    assert (tmp_path / "c.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


def test_a_table_that_vanishes_is_named(tmp_path, monkeypatch, small_segments):
    X, keys = np.ones((3_000, 4), "f4"), [f"{number:05}" for number in range(3_000)]
    lists = pyarrow.FixedSizeListArray.from_arrays(X.ravel(), 4)
    (tmp_path / "t").mkdir()
    for number in range(2):
        table = pyarrow.table({"key": [f"{number}{key}" for key in keys], "embedding": lists})
        pyarrow.parquet.write_table(table, tmp_path / "t" / f"{number}.parquet")
    after_first_segment(monkeypatch, (tmp_path / "t" / "1.parquet").unlink)
    with pytest.raises(CacheError, match=r"1.parquet is gone"):
        import_embeddings(tmp_path / "t", tmp_path / "c.h5")


@pytest.mark.parametrize("change", ["another array", "cut short"])
def test_a_part_that_changes_is_named_and_the_next_run_begins_again(tmp_path, monkeypatch, small_segments, change):
    source = make_source(tmp_path, "arrays")
    part = source / "img_emb" / "img_emb_3.npy"

    def alter():
        if change == "cut short":
            os.truncate(part, part.stat().st_size // 2)
        else:
            np.save(part, np.zeros((N // 12, 16), "f4"))

    with monkeypatch.context() as patch:
        after_first_segment(patch, alter)
        with pytest.raises(CacheError, match=r"img_emb_3.npy changed during the import; run the same command"):
            import_embeddings(source, tmp_path / "c.h5")
    np.save(part, np.zeros((N // 12, 16), "f4"))
    assert import_embeddings(source, tmp_path / "c.h5").resumed_rows == 0
    import_embeddings(source, tmp_path / "whole.h5")
    assert (tmp_path / "c.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


def test_other_options_begin_again(tmp_path, monkeypatch, small_segments):
    source = make_source(tmp_path, "arrays")

    def full():
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        after_first_segment(patch, full)
        with pytest.raises(OutputError, match="No space left on device; run the same command to go on"):
            import_embeddings(source, tmp_path / "c.h5")
    assert import_embeddings(source, tmp_path / "c.h5", dtype="float16").resumed_rows == 0
    import_embeddings(source, tmp_path / "whole.h5", dtype="float16")
    assert (tmp_path / "c.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


def test_two_imports_into_one_file_exclude_each_other(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 3)))
    with writer_lock(tmp_path / "c.h5"), pytest.raises(CacheLockedError):
        import_embeddings(tmp_path / "x.npy", tmp_path / "c.h5")


MEASURE = """
import sys
from pucache.cache.interchange.importing import import_embeddings
import_embeddings(sys.argv[1], sys.argv[2], dtype="float16", keys=sys.argv[3] or None)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.parametrize(("kind", "n"), [("array", 600_000), slow("table", 600_000), slow("shuffled", 600_000)])
@pytest.mark.slow
def test_memory_stays_below_500_megabytes(tmp_path, kind, n):
    """Of 614 MB of rows, in one part and one row group."""
    d, keys = 256, ""
    if kind == "table":
        values = pyarrow.array(np.random.default_rng(0).normal(size=n * d).astype("f4"))
        table = pyarrow.table({"embedding": pyarrow.FixedSizeListArray.from_arrays(values, d)})
        pyarrow.parquet.write_table(table, tmp_path / "x", row_group_size=n, use_dictionary=False)
        source = (tmp_path / "x").rename(tmp_path / "x.parquet")
        del values, table
    else:
        source = tmp_path / "x.npy"
        np.lib.format.open_memmap(source, "w+", np.float32, (n, d))  # a file without blocks, of zeros
    if kind == "shuffled":
        keys = tmp_path / "keys.txt"
        numbers = np.random.default_rng(0).permutation(n).tolist()
        keys.write_text("".join(f"https://example.org/photographs/of/{number}.jpg\n" for number in numbers))
    command = [sys.executable, "-c", MEASURE, str(source), str(tmp_path / "c.h5"), str(keys)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(ended.stdout) * 1024 < 500e6, ended.stdout  # getrusage would tell of the process that forked
