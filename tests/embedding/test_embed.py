import os
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest
from helpers.embedding_runs import MemorySource, expect_current, identity, interrupt, picture, pictures, run, work
from helpers.files import visible
from helpers.tiny import save_image, tiny_encoder, touch

from pucache import EmbeddingCache, pack
from pucache.cache.reader import CacheFile
from pucache.cli.main import main
from pucache.errors import CacheError
from pucache.images.listing import UNKNOWN, take_shard

# --- a run, and the next one -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_first_run_embeds_every_image_and_a_second_one_leaves_the_file_untouched(image_folder, out, encoder, dtype):
    folder = image_folder(20)
    save_image(folder / "deep" / "né\nw.jpg", 99)
    (folder / "notes.txt").write_text("no image")
    report = run(folder, out, encoder, dtype=dtype)
    assert work(report) == (21, 0, 0)
    assert (report.rows, report.written, report.failures, report.ignored) == (21, True, {}, {".txt": 1})
    summary = report.profile.summary()
    assert summary["seconds"].keys() >= {"listing", "reading", "encoder", "merging"}
    assert 0 <= summary["device_waited"] <= 1
    written = expect_current(out, folder)
    assert list(written.keys) == [*(f"{n:03}.png" for n in range(20)), "deep/né\nw.jpg"]
    assert (written.encoder, written.files[0].source, written.X.dtype) == (encoder.spec, str(folder), dtype)
    before = identity(out)
    report = run(folder, out, encoder)
    assert (*work(report), report.written, report.rows) == (0, 0, 21, False, 21)
    assert encoder.runtime.rows == 21 and identity(out) == before
    assert visible(out.parent) == ["cache.h5"]


def test_only_what_has_changed_is_computed(image_folder, out, encoder, fixed_time):
    folder = image_folder(20)
    gone = save_image(folder / "the longest name.png", 40)
    run(folder, out, dtype="float32")
    gone.unlink()
    save_image(folder / "new.png", 50)
    save_image(folder / "003.png", 51)
    (folder / "004.png").rename(folder / "moved.png")
    touch(folder / "005.png")
    (folder / "006.png").write_text("no image")
    shutil.copy2(folder / "007.png", folder / "copy.png")
    report = run(folder, out, encoder, prune=True)
    assert work(report) == (2, 3, 16) and encoder.runtime.rows == 2
    assert expect_current(out, folder).X.dtype == np.float32, "an update keeps the type"
    assert run(folder, out).written is False
    run(folder, out.with_name("anew.h5"), dtype="float32")
    assert out.read_bytes() == out.with_name("anew.h5").read_bytes()


def test_an_image_of_any_time_is_embedded_once_and_again_when_its_time_changes(image_folder, out):
    folder = image_folder(4)
    for number, when in enumerate((0, 1 - 2**31, 2**32 + 5)):  # in 1970, 1901 and 2106
        os.utime(folder / f"{number:03}.png", (when, when))
    assert [work(run(folder, out)) for _ in range(2)] == [(4, 0, 0), (0, 0, 4)]
    for number in range(3):
        touch(folder / f"{number:03}.png", -1)
    os.utime(out, (0, 0))
    assert work(run(folder, out)) == (0, 3, 1)


def test_where_no_time_is_told_the_content_decides(out):
    files = pictures(20)
    source = MemorySource(files)
    listing = source.scan()
    listing.size_mtime[:, 1] = UNKNOWN  # as of a store that does not tell when its images were changed
    run(source, out, listing=listing)
    files["0003.ppm"] = files["0004.ppm"]
    assert work(run(source, out, listing=listing)) == (0, 20, 0)
    files["0003.ppm"] = picture(50)
    assert work(run(source, out, listing=listing)) == (1, 19, 0)


@pytest.mark.parametrize("shard", [(1, 1), (1, 2), (2, 2)])
def test_a_folder_that_cannot_be_listed_keeps_its_rows_in_every_share(out, shard):
    files = {f"{folder}/{key}": data for folder in ("sub", "sub0", "top") for key, data in pictures(20).items()}
    before = run(MemorySource(files), out, shard=shard).rows
    kept = sum(not key.startswith("sub0/") for key in EmbeddingCache(out).keys)
    listing = MemorySource({key: data for key, data in files.items() if key.startswith("top/")}).scan()
    listing.failures["sub/"] = "directory cannot be listed: Permission denied"
    report = run(MemorySource(files), out, listing=take_shard(listing, shard), shard=shard, prune=True)
    assert list(report.failures) == ["sub/"]
    assert (report.rows, report.vanished) == (kept, before - kept) and before > kept


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["cache", "parts", "reuse"])
@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"encoder": tiny_encoder("other", seed=1)}, {}, r"of other \(.* 1{8}, fp32 torch\).* of tiny \(.* 0{8}, fp32"),
        ({}, {"dtype": "float32"}, "float16.* float32"),
    ],
    ids=["encoder", "dtype"],
)
def test_another_encoder_or_dtype_is_refused_by_name(out, small_blocks, role, before, now, expected):
    source, old = MemorySource(pictures(40)), out.with_name("old.h5")
    if role == "parts":
        interrupt(source, out, 1, **before)
    else:
        run(source, old if role == "reuse" else out, **before)
    files = visible(out.parent)
    with pytest.raises(CacheError, match=expected):
        run(source, out, **now, **({"reuse": [old]} if role == "reuse" else {}))
    assert visible(out.parent) == files


@pytest.mark.parametrize("finished", [True, False])
def test_another_source_is_refused_unless_it_holds_the_same_images(image_folder, out, encoder, finished, small_blocks):
    first, second = image_folder(40), image_folder(3, "others")
    if finished:
        run(first, out)
    else:
        interrupt(first, out, 1)
    with pytest.raises(CacheError, match=r"holds images of .*images, and .*others has others under their keys"):
        run(second, out)
    moved = first.rename(first.with_name("elsewhere"))
    report = run(moved, out, encoder)
    assert (report.rows, encoder.runtime.rows) == (40, 0 if finished else 8)
    assert not run(moved, out).written  # the cache names the new place
    for name in moved.iterdir():  # of the same keys, other images
        name.write_bytes((second / sorted(second.iterdir())[0].name).read_bytes())
    changed = moved.rename(moved.with_name("again"))
    with pytest.raises(CacheError, match=r"has others under their keys"):
        run(changed, out)


# --- shares and sources ------------------------------------------------------------------------


def test_shares_are_disjoint_recorded_and_packed_the_whole(image_folder, out, fixed_time):
    folder = image_folder(60)
    (folder / "broken.png").write_text("no image")
    (folder / "loose.png").symlink_to("nowhere")
    run(folder, out)
    shards, packed = [out.with_name(f"{number}.h5") for number in (1, 2, 3)], out.with_name("packed.h5")
    reports = [run(folder, shard, shard=(number, 3)) for number, shard in enumerate(shards, 1)]
    assert sum(report.rows for report in reports) == 60
    assert min(report.rows for report in reports) > 5
    assert sorted(key for report in reports for key in report.failures) == ["broken.png", "loose.png"]
    assert [CacheFile(shard).shard for shard in shards] == ["1/3", "2/3", "3/3"]
    pack(shards, packed)
    assert packed.read_bytes() == out.read_bytes()
    assert CacheFile(packed).shard == CacheFile(out).shard == ""
    save_image(folder / "new.png", 70)
    assert sorted(run(folder, shard, shard=(n, 3)).computed for n, shard in enumerate(shards, 1)) == [0, 0, 1]
    with pytest.raises(CacheError, match=r"1\.h5 holds share 1/3 of the images, asked for 1/4; .*--reuse .*1\.h5"):
        run(folder, shards[0], shard=(1, 4))


# --- the encoder -------------------------------------------------------------------------------


COMMAND = """
import shlex, sys
from pucache.cli.main import main
for command in sys.argv[1:]:
    main(shlex.split(command), standalone_mode=False)
print([name for name in ("torch", "torchvision", "timm", "openvino", "ray") if name in sys.modules])
"""


def test_an_unchanged_or_pruned_folder_loads_no_network(image_folder, out):
    folder = image_folder(3)
    command = f"embed {folder} {out} --device cpu --precision fp32 --runtime torch"
    main(shlex.split(command), standalone_mode=False)
    (folder / "001.png").unlink()
    process = [sys.executable, "-c", COMMAND, command, f"{command} --prune"]
    ended = subprocess.run(process, capture_output=True, text=True)
    assert ended.stdout.endswith("\n[]\n"), ended.stderr
    assert len(EmbeddingCache(out)) == 2
