import os
from pathlib import Path

import pytest
from helpers.refusals import one_line
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from pucache.errors import OutputError
from pucache.storage.file_kinds import BINARY, CACHE, EMPTY, JSON, MARK, ONNX, PAGE, PNG, SCORES, TABLE, TEXT
from pucache.storage.outputs import check_distinct, check_output, is_read, may_replace_derived

CONTENTS = {  # what lies at the output: its name, and its first bytes
    CACHE: ("c.h5", b"\x89HDF\r\n\x1a\n"),
    "a pucache model": ("m.safetensors", b'12345678{"__metadata__":{"pucache-model":'),
    TABLE: ("t.csv", b"key,label\n"),
    PAGE: ("p.html", b"<!doctype html>"),
    JSON: ("j.json", b"{}"),
    PNG: ("p.png", b"\x89PNG\r\n"),
    ONNX: ("o.onnx", b"\x08\x07"),
    TEXT: ("keys.txt", b"a.png\nb.png\n"),
    BINARY: ("b", b"\0\1\2"),
    "an SQLite database": ("s", b"SQLite format 3\0"),
}


@pytest.mark.parametrize("existing", CONTENTS)
@pytest.mark.parametrize("kind", [CACHE, "a pucache model", TABLE, PAGE, JSON, PNG, ONNX, SCORES])
def test_a_file_is_replaced_by_its_own_kind_and_by_another_where_it_is_forced(tmp_path, kind, existing):
    name, content = CONTENTS[existing]
    path = tmp_path / name
    path.write_bytes(content)
    if kind == existing:
        assert check_output(path, kind) == path
    else:
        text = one_line(OutputError, check_output, path, kind)
        assert f"{name} is {existing}, where {kind} is to be written; remove it first, or name another file" in text
    assert check_output(path, kind, force=True) == path
    assert path.read_bytes() == content


def test_an_empty_file_is_replaced_by_any_kind(tmp_path):
    (tmp_path / "new").touch()
    assert check_output(tmp_path / "new", CACHE) == tmp_path / "new"
    assert EMPTY != CACHE


def spellings(file):
    """Paths that are this file in another folder, or by other words."""
    link, hard, folder = (file.with_name(f"{name}.csv") for name in ("link", "hard", "folder"))
    link.symlink_to(file)
    os.link(file, hard)
    folder.symlink_to(file.parent, target_is_directory=True)
    return [file, link, hard, folder / file.name, Path(f"{file.parent}/../{file.parent.name}/{file.name}")]


def test_an_input_is_known_by_every_name_of_it(tmp_path):
    (tmp_path / "in.csv").write_text("key,label\n")
    for path in spellings(tmp_path / "in.csv"):
        text = one_line(OutputError, check_output, path, TABLE, inputs=[tmp_path / "in.csv"], force=True)
        assert "is also an input, which would be overwritten" in text
        assert "is also an input" in one_line(OutputError, check_output, tmp_path / "in.csv", TABLE, inputs=[path])


def test_of_a_folder_that_is_read_only_what_an_earlier_run_wrote_is_replaced(tmp_path):
    for name, content in CONTENTS.values():
        (tmp_path / name).write_bytes(content)
    for name in ("reviewed.csv", "log.csv"):
        (tmp_path / name).write_text("key,label\n")
    table = {name for name, _ in CONTENTS.values() if is_read(str(tmp_path / name), str(tmp_path), TABLE, TABLE)}
    assert table == {"p.png"}  # by its ending
    cache = {name for kind, (name, _) in CONTENTS.items() if is_read(str(tmp_path / name), str(tmp_path), CACHE, kind)}
    assert cache == {"m.safetensors", "p.png", "keys.txt", "b", "s"}
    for name in ("reviewed.csv", "log.csv"):
        assert is_read(str(tmp_path / name), str(tmp_path), TABLE, TABLE)


def test_a_picture_in_a_folder_of_images_is_replaced_where_pucache_wrote_it(tmp_path):
    foreign, own = tmp_path / "a.png", tmp_path / "views.png"
    Image.new("RGB", (4, 4)).save(foreign)
    own.write_bytes(foreign.read_bytes().replace(b"IDAT", b"tEXtSoftware\0" + MARK.encode(), 1))
    assert check_output(own, PNG, inputs=[tmp_path]) == own and may_replace_derived(own, [tmp_path])
    assert "is also an input" in one_line(OutputError, check_output, foreign, PNG, inputs=[tmp_path], force=True)
    assert not may_replace_derived(foreign) and may_replace_derived(tmp_path / "new.png")


NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp", "Zs"), exclude_characters="/\\"), min_size=1, max_size=50
)


@given(name=NAMES)
@example(name='{"')  # the table begins as a safetensors file does
@pytest.mark.parametrize("ending", ["txt", "csv", "tsv"])
def test_an_image_that_a_list_names_is_an_input(tmp_path_factory, ending, name):
    folder = tmp_path_factory.mktemp("listed")
    image, listing = folder / f"{name}.png", folder / f"list.{ending}"
    image.write_bytes(b"\x89PNG")
    quoted = '"' + image.name.replace('"', '""') + '"'
    lines = {"txt": image.name, "csv": f"path,n\n{quoted},1", "tsv": f"path\tn\n{quoted}\t1"}
    listing.write_text(lines[ending] + "\nother.png\n", encoding="utf-8")
    assert is_read(str(image), str(listing), PNG, PNG)
    (folder / "free.png").write_bytes(image.read_bytes())
    assert not is_read(str(folder / "free.png"), str(listing), PNG, PNG)


@pytest.mark.parametrize(
    ("output", "where", "read"),
    [
        ("s3://bucket/a/x.csv", "s3://bucket/a/x.csv", True),
        ("s3://bucket/a/x.parquet", "s3://bucket/a", True),
        ("s3://bucket/a/3.tar", "s3://bucket/a/{0..9}.tar", True),
        ("s3://bucket/a/x.parquet", "s3://bucket/b", False),
        ("s3://bucket/ab/x.parquet", "s3://bucket/a", False),
        ("s3://bucket/a/x.csv", "a/x.csv", False),
        ("s3://bucket/a/x.zip", "zip://*.png::s3://bucket/a/x.zip", True),
    ],
)
def test_urls_are_compared_by_their_text(output, where, read):
    assert is_read(output, where, TABLE, BINARY) == read


def test_two_outputs_are_two_files(tmp_path):
    (tmp_path / "a").touch()
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ValueError, match=r"--one and --two are one file, .*; name two"):
        check_distinct([("--one", tmp_path / "a"), ("--two", tmp_path / "b")])
    with pytest.raises(ValueError, match="--one and --two are one file"):
        check_distinct([("--one", "s3://b/x"), ("--two", "s3://b/x")])
    check_distinct([("--one", "-"), ("--two", "-"), ("--three", tmp_path / "c")])
