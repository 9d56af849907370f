import errno
import hashlib
import itertools
import json
import mmap
import os
import re
import signal
import zlib

import h5py
import numpy as np
import pytest
from helpers.sealing import edited, unseal
from helpers.slow import slow
from helpers.tiny import tiny_encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.cache import checksums, hdf5, reader, writer
from pucache.cache.cache_info import info
from pucache.cache.embedding_cache import EmbeddingCache, is_cache, open_cache
from pucache.cache.keys import Keys, encode_keys
from pucache.cache.merging import pack
from pucache.cache.reader import CacheFile
from pucache.cache.writer import Rows
from pucache.errors import CacheError, OutputError

SPEC = tiny_encoder().spec
OTHER = tiny_encoder("other", seed=1).spec
FAILURES = {"broken.png": "not an image", "gone/é.png": "cannot be read"}
ODD_KEYS = ["", "a", "a b", "ab", "b/é.png", "b/🦊.png", "c\nd\r\n.png", "x" * 4000, "é", "\x01", "\U0010ffff"]
DATASETS = ["embeddings", "keys", "digests", "size_mtime", "failures/keys", "failures/reasons"]
ATTRIBUTES = ["version", "encoder", "created", "pucache_version", "source"]


def rows_of(keys, dtype="float16"):
    """Rows that depend on nothing but their keys, sorted."""
    keys = sorted(keys)
    draws = [np.random.default_rng(zlib.crc32(key.encode())) for key in keys]
    X = np.array([draw.normal(size=SPEC.dim) for draw in draws], dtype).reshape(-1, SPEC.dim)
    digests = np.array([draw.integers(0, 256, 32) for draw in draws], np.uint8).reshape(-1, 32)
    size_mtime = np.array([draw.integers(0, 1 << 62, 2) for draw in draws], np.int64).reshape(-1, 2)
    return Rows(encode_keys(keys), X, digests, size_mtime)


def write(path, keys, *, dtype="float16", spec=SPEC, source="photos", failures=None):
    rows = rows_of(keys, dtype)
    shape = (len(rows.keys), rows.keys.itemsize, np.dtype(dtype))
    writer.write_file(path, spec, source, [rows], shape=shape, failures=failures or {})
    return path


def read(path):
    """Everything that a cache file says."""
    file = CacheFile(path)
    file.verify()
    columns = [file.raw_keys, file.X, file.digests, file.size_mtime]
    told = [file.encoder, file.source, file.created, file.pucache_version, file.failures]
    return [(column.tobytes(), column.shape, column.dtype) for column in columns] + told


def refusal(action, *arguments):
    with pytest.raises(CacheError) as caught:
        action(*arguments)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "cache.h5", ["a", "bé", "c\nd", "e"], failures=FAILURES)


# --- one file ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("keys", [[], ["a"], ODD_KEYS], ids=["none", "one", "odd"])
def test_what_was_written_is_read_back(tmp_path, keys, dtype):
    written = EmbeddingCache(write(tmp_path / "c.h5", keys[::-1], dtype=dtype, source="s3://é", failures=FAILURES))
    rows = rows_of(keys, dtype)
    assert list(written.keys) == sorted(keys)
    assert len(written) == len(keys)
    for got, expected in ((written.X, rows.X), (written.digests, rows.digests)):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(written.files[0].size_mtime, rows.size_mtime)
    assert written.failures == FAILURES
    assert (written.encoder, written.files[0].source) == (SPEC, "s3://é")
    written.verify()


def test_a_source_that_is_not_utf8_survives(tmp_path):
    odd = os.fsdecode(b"/data/\xff\xfe")
    assert read(write(tmp_path / "c.h5", ["a"], source=odd))[5] == odd


def test_the_arrays_are_read_only_maps_of_the_file(path):
    file = CacheFile(path)
    for array in (file.X, EmbeddingCache(path).X, file.raw_keys, file.digests, file.size_mtime):
        base = array
        while isinstance(base, np.ndarray):
            base = base.base
        assert isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)
        assert not array.flags.writeable
    assert file.X.flags.aligned


def test_a_released_file_maps_itself_again(path):
    file = CacheFile(path)
    before = file.X.copy()
    file.release()
    np.testing.assert_array_equal(file.X, before)


def test_a_file_replaced_after_it_was_opened_is_not_mixed_with_the_new_one(path):
    file = CacheFile(path)
    write(path, ["z"])
    for action in (lambda: file.X, lambda: list(file.blocks()), lambda: file.take("keys", np.arange(2)), file.verify):
        assert "was replaced or removed while it was open; open it again" in refusal(action)
    path.unlink()
    assert "was replaced or removed while it was open" in refusal(lambda: file.X)


@pytest.mark.parametrize("meanwhile", [lambda path: write(path, ["z"] * 1), lambda path: path.unlink()])
def test_a_cache_that_is_open_is_read_to_the_end_as_it_was(path, meanwhile):
    before, cache = EmbeddingCache(path).X.copy(), EmbeddingCache(path)
    meanwhile(path)
    np.testing.assert_array_equal(cache.X, before)
    np.testing.assert_array_equal(np.concatenate([block.copy() for _, block in cache.blocks()]), before)
    assert list(cache.keys) == ["a", "bé", "c\nd", "e"] and cache.failures == FAILURES


@pytest.mark.parametrize("room", [1, 40, 1 << 20])
def test_rows_are_taken_in_stretches_as_indexing_gives_them(tmp_path, monkeypatch, room):
    monkeypatch.setattr(reader, "BLOCK_BYTES", room)
    file = CacheFile(write(tmp_path / "c.h5", [f"{n:03}" for n in range(50)]))
    for rows in ([], [0], [49], [0, 1, 2, 30, 31, 49], range(50)):
        rows = np.array(rows, np.int64)
        for name, whole in {"embeddings": file.X, "keys": file.raw_keys, "size_mtime": file.size_mtime}.items():
            np.testing.assert_array_equal(file.take(name, rows), whole[rows])


def test_the_time_of_creation_follows_source_date_epoch(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert CacheFile(write(tmp_path / "c.h5", ["a"])).created == "1970-01-01T00:00:00Z"


# --- keys --------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)


@st.composite
def split_keys(draw):
    """Distinct keys, dealt out to several files; many of them prefixes of one another."""
    stems = draw(st.lists(TEXT, max_size=12))
    ends = draw(st.lists(st.sampled_from(["", "a", "é", "aa"]), min_size=len(stems), max_size=len(stems)))
    keys = sorted({stem + end for stem, end in zip(stems, ends, strict=True)} | set(stems))
    count = draw(st.integers(1, 3))
    homes = draw(st.lists(st.integers(0, count - 1), min_size=len(keys), max_size=len(keys)))
    return [[key for key, home in zip(keys, homes, strict=True) if home == part] for part in range(count)]


@settings(max_examples=150, deadline=None)
@given(split_keys(), st.lists(TEXT, max_size=5), st.data())
def test_keys_behave_like_a_list_and_find_rows_like_brute_force(parts, strangers, data):
    expected = list(itertools.chain.from_iterable(parts))
    keys = Keys([encode_keys(part) for part in parts])
    assert list(keys) == expected
    assert len(keys) == len(expected)
    assert [keys[i] for i in range(-len(keys), len(keys))] == expected * 2
    part = data.draw(st.slices(len(expected)))
    assert keys[part] == expected[part]
    wanted = [
        *expected,
        *strangers,
        *(key + end for key in expected for end in ("a", "\n" * 30)),
        *(k[:-1] for k in expected),
    ]
    brute = [expected.index(key) if key in expected else -1 for key in wanted]
    assert keys.rows(wanted).tolist() == brute


def test_keys_take_arrays_of_rows_and_masks():
    keys = Keys([encode_keys(["a", "b"]), encode_keys(["ccc"])])
    assert keys[np.array([2, 0])] == ["ccc", "a"]
    assert keys[np.array([True, False, True])] == ["a", "ccc"]
    assert keys[np.int64(-1)] == "ccc"


def test_a_key_that_ends_in_nul_is_not_the_one_without():
    keys = Keys([encode_keys(["a", "b"])])
    assert keys.rows(["a", "a\0", "\0", "b"]).tolist() == [0, -1, -1, 1] and keys.rows([]).tolist() == []


@pytest.mark.parametrize("row", [3, -4])
def test_a_row_that_is_not_there_is_an_index_error(row):
    with pytest.raises(IndexError, match=f"row {row} of 3"):
        Keys([encode_keys(["a", "b", "c"])])[row]


def test_encoded_keys_are_not_encoded_again():
    encoded = encode_keys(["a", "é"])
    assert encode_keys(encoded) is encoded
    assert encode_keys([]).dtype.kind == "S" and len(encode_keys([])) == 0


def test_keys_are_walked_in_blocks_without_losing_one(monkeypatch):
    monkeypatch.setattr(reader, "BLOCK_BYTES", 7)
    names = sorted(str(i) for i in range(50))
    assert list(Keys([encode_keys(names)])) == names


# --- several files -----------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path):
    """Three files of one encoder, and two things beside them that are none."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, keys in enumerate([["b", "d"], [], ["a", "c", "eee"]]):
        write(folder / f"{number}.h5", keys, failures={f"{number}.png": "gone"})
    (folder / ".hidden.h5").write_text("no cache")
    (folder / "notes.txt").write_text("no cache")
    return folder


def test_several_files_or_a_folder_of_them_read_as_one(shards, monkeypatch):
    monkeypatch.setattr(reader, "BLOCK_BYTES", 40)  # 2 rows of embeddings
    expected = [rows_of(["b", "d"]), rows_of([]), rows_of(["a", "c", "eee"])]
    for several in (EmbeddingCache(shards), EmbeddingCache(*(shards / f"{n}.h5" for n in range(3)))):
        several.verify()
        assert list(several.keys) == ["b", "d", "a", "c", "eee"]
        np.testing.assert_array_equal(several.X, np.concatenate([rows.X for rows in expected]))
        np.testing.assert_array_equal(several.digests, np.concatenate([rows.digests for rows in expected]))
        assert several.failures == {f"{n}.png": "gone" for n in range(3)}
        assert several.name == f"{shards / '0.h5'} and 2 more"
        blocks = list(several.blocks())
        assert [block.start for block, _ in blocks] == [0, 2, 4]
        for block, X in several.blocks():
            np.testing.assert_array_equal(X, several.X[block])


def test_several_files_are_copied_into_memory_once_and_one_file_never(shards):
    several = EmbeddingCache(shards)
    assert several.load_embeddings() is several.load_embeddings() is several.X
    assert several.digests is several.digests
    assert not several.X.flags.writeable and not several.digests.flags.writeable
    one = EmbeddingCache(shards / "0.h5")
    assert np.shares_memory(one.load_embeddings(), one.files[0].X) and np.shares_memory(one.X, one.X)
    assert np.shares_memory(one.digests, one.files[0].digests)


def test_a_cache_is_opened_from_paths_and_from_opened_caches(shards):
    opened = open_cache(shards)
    assert open_cache(opened) is opened
    paths = [shards / f"{number}.h5" for number in range(3)]
    first = EmbeddingCache(paths[0])
    for given_caches in (
        str(shards),
        [shards],
        paths,
        tuple(map(str, paths)),
        [first, *paths[1:]],
        [first, paths[1], EmbeddingCache(paths[2])],
    ):
        assert list(open_cache(given_caches).keys) == list(opened.keys)
    assert open_cache([first, paths[2]]).files[0] is first.files[0], "an opened file is not opened again"
    assert "stands both in" in refusal(open_cache, [first, shards])
    assert "no cache given" in refusal(open_cache, [])


def test_info_describes_every_file(shards):
    contents = info(shards)
    assert (contents.rows, contents.encoder) == (5, SPEC)
    assert contents.failures == {f"{n}.png": "gone" for n in range(3)}
    assert [(file.path.name, file.rows, file.dtype, file.source) for file in contents.files] == [
        ("0.h5", 2, "float16", "photos"),
        ("1.h5", 0, "float16", "photos"),
        ("2.h5", 3, "float16", "photos"),
    ]
    assert contents.files[0].checksum == CacheFile(shards / "0.h5").checksum
    assert info(EmbeddingCache(shards)) == contents


def test_a_cache_is_an_h5_file_or_a_folder_of_them(shards, tmp_path):
    assert is_cache(shards)
    assert is_cache(tmp_path / "not there yet.h5")
    assert not is_cache(tmp_path)
    assert not is_cache(shards / "notes.txt")


def test_a_folder_without_caches_and_no_path_at_all_are_refused(tmp_path):
    assert f"no cache in folder {tmp_path}; expected *.h5 files" in refusal(EmbeddingCache, tmp_path)
    assert "no cache given" in refusal(EmbeddingCache)


def pack_beside(*paths):
    pack(paths, paths[0].with_name("packed.h5"))


@pytest.mark.parametrize("action", [EmbeddingCache, pack_beside])
@pytest.mark.parametrize(
    ("changes", "telling"),
    [
        ({"keys": ["z", "a"]}, ["'a'", "more than one|both in .*a.h5 and in .*b.h5"]),
        ({"spec": OTHER}, ["a.h5", "b.h5", r"tiny \(8-d", r"other \(8-d", "differ in name, weights"]),
        ({"dtype": "float32"}, ["a.h5 holds float16", "b.h5 float32"]),
    ],
    ids=["overlap", "encoder", "dtype"],
)
def test_files_that_do_not_go_together_are_refused_by_name(tmp_path, changes, telling, action):
    first = write(tmp_path / "a.h5", ["a", "b"])
    text = refusal(action, first, write(tmp_path / "b.h5", **{"keys": ["z"], **changes}))
    for pattern in telling:
        assert re.search(pattern, text), text
    assert not (tmp_path / "packed.h5").exists()


# --- damage ------------------------------------------------------------------------------------


def replace(name, values, **options):
    """Return what puts another dataset in the place of one."""

    def change(file):
        stored = np.asarray(file[name]) if name in DATASETS else None
        attributes = values(stored) if callable(values) else values
        del file[name]
        file.create_dataset(name, data=attributes, **options)

    return change


def drop(name):
    return lambda file: file.__delitem__(name)


def attribute(name, value):
    return lambda file: file.attrs.__setitem__(name, value)


def group(file):
    del file["keys"]
    file.create_group("keys")


DAMAGE = {
    "foreign": (lambda file: file.attrs.__delitem__("format"), "HDF5 file but not a pucache cache"),
    "other format": (attribute("format", np.bytes_(b"anndata")), "HDF5 file but not a pucache cache"),
    "format is a number": (attribute("format", [1, 2]), "HDF5 file but not a pucache cache"),
    "newer": (attribute("version", 3), "format version 3; this pucache .* reads version 2: upgrade"),
    "version is text": (attribute("version", np.bytes_(b"2")), "format version 2; .*upgrade"),
    "version is a list": (attribute("version", [1, 1]), "damaged: it lacks the attribute version"),
    "encoder": (attribute("encoder", np.bytes_(b"{}")), "damaged: its encoder attribute cannot be read"),
    "source of variable width": (attribute("source", "photos"), "damaged: it lacks the attribute source"),
    "group": (group, "damaged or incomplete"),
    "scalar keys": (replace("keys", np.bytes_(b"a")), "keys or failures are not fixed-width text"),
    "no keys at all": (replace("keys", h5py.Empty("S1")), "damaged: keys is not contiguous"),
    "square keys": (replace("keys", lambda k: k.reshape(2, 2)), "keys or failures are not fixed-width text"),
    "fewer keys": (replace("keys", lambda k: k[:3]), "embeddings have the wrong shape"),
    "numbers as keys": (replace("keys", np.arange(4)), "keys or failures are not fixed-width text"),
    "flat X": (replace("embeddings", lambda X: X.reshape(-1)), "embeddings have the wrong shape"),
    "narrow X": (replace("embeddings", lambda X: X[:, :-1]), "embeddings have the wrong shape"),
    "double X": (replace("embeddings", lambda X: X.astype(float)), "embeddings are float64, expected float16 or"),
    "foreign order": (replace("embeddings", lambda X: X.astype(">f2")), "embeddings are >f2"),
    "short digests": (replace("digests", lambda d: d[:, :31]), "digests have the wrong layout"),
    "signed digests": (replace("digests", lambda d: d.astype("i1")), "digests have the wrong layout"),
    "wide times": (replace("size_mtime", lambda t: t[:, [0, 1, 1]]), "size_mtime has the wrong layout"),
    "short times": (replace("size_mtime", lambda t: t.astype("i4")), "size_mtime has the wrong layout"),
    "lone failure": (replace("failures/keys", lambda k: k[:1]), "failures do not pair up"),
    "gzip": (replace("embeddings", lambda X: X, compression="gzip"), "embeddings is not contiguous"),
    "chunks": (replace("digests", lambda d: d, chunks=(1, 32)), "digests is not contiguous"),
    **{f"no {name}": (drop(name), "damaged or incomplete: a dataset is missing") for name in DATASETS},
    **{
        f"no {name}": (lambda file, name=name: file.attrs.__delitem__(name), f"lacks the attribute {name}")
        for name in ATTRIBUTES
    },
}


@pytest.mark.parametrize(("change", "telling"), DAMAGE.values(), ids=DAMAGE)
def test_a_file_of_another_layout_is_refused_on_opening(path, change, telling):
    with edited(path) as file:
        change(file)
    text = refusal(CacheFile, path)
    assert text.startswith(str(path))
    assert re.search(telling, text), text


NOT_HDF5 = {
    "missing": (lambda path: path.unlink(), "no such cache: "),
    "directory": (lambda path: (path.unlink(), path.mkdir()), "is a directory, not a cache file"),
    "empty": (lambda path: path.write_bytes(b""), r"is empty \(0 bytes\)"),
    "text": (lambda path: path.write_text("key,margin\n" * 500), r"is not a pucache cache \(not an HDF5 file\)"),
}


@pytest.mark.parametrize(("change", "telling"), NOT_HDF5.values(), ids=NOT_HDF5)
def test_what_is_no_hdf5_file_is_refused_on_opening(path, change, telling):
    change(path)
    text = refusal(CacheFile, path)
    assert str(path) in text
    assert re.search(telling, text), text


def test_a_file_truncated_anywhere_is_refused_on_opening(path):
    whole = path.read_bytes()
    for length in [*range(1, len(whole) - 64, 41), *range(len(whole) - 64, len(whole))]:
        path.write_bytes(whole[:length])
        text = refusal(CacheFile, path)
        assert length < 8 or "it is truncated, or an HDF5 file from elsewhere; restore it from a copy" in text


@pytest.mark.parametrize(("mask", "step"), [slow(0x01, 1), slow(0x20, 1), slow(0xFF, 1), (0x20, 7)])
def test_every_flipped_bit_is_seen_by_verify_and_outside_of_columns_on_opening(path, mask, step):
    whole = path.read_bytes()
    columns = [range(c.offset, c.offset + c.size) for c in CacheFile(path)._checksums.columns.values()]
    for position in range(0, len(whole), step):
        damaged = bytearray(whole)
        damaged[position] ^= mask
        path.write_bytes(damaged)
        if any(position in column for column in columns):
            assert "not as they were written" in refusal(CacheFile(path).verify)
        else:
            refusal(CacheFile, path)


def test_damage_that_hdf5_would_loop_over_or_die_of_is_found_before_it_sees_the_file(path, monkeypatch):
    monkeypatch.setattr(hdf5, "read", lambda *_: pytest.fail("HDF5 was given a damaged file"))
    whole = path.read_bytes()
    for position in (8, 40, 100, 600, len(whole) - 400, len(whole) - 1):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        refusal(CacheFile, path)


def damage(path, name, row=-1):
    """Flip one bit in one row of a dataset."""
    with h5py.File(path) as file:
        offset, size, n = file[name].id.get_offset(), file[name].nbytes, len(file[name])
    data = bytearray(path.read_bytes())
    data[offset + size // n * (row % n)] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", DATASETS)
def test_verify_sees_a_change_in_every_dataset_and_names_it(path, name):
    damage(path, name)
    assert f"{name} are not as they were written" in refusal(CacheFile(path).verify)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_change_in_every_attribute_is_seen_on_opening(path, name):
    data, stored = path.read_bytes(), h5py.File(path).attrs[name]
    at = data.index(stored if isinstance(stored, bytes) else np.int64(stored).tobytes(), 200)
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert "structure or attributes are not as they were written" in refusal(CacheFile, path)


@pytest.mark.parametrize(("name", "row"), [("embeddings", 0), ("keys", 5000), ("digests", 255), ("size_mtime", -1)])
def test_damage_is_found_down_to_its_block_of_rows(tmp_path, name, row):
    n = 9000
    path = write(tmp_path / "c.h5", [f"{number:06}" for number in range(n)])
    damage(path, name, row)
    rows, datasets = CacheFile(path).damaged_rows()
    block = row % n // 256
    assert datasets == [name]
    assert np.flatnonzero(rows).tolist() == list(range(block * 256, min(n, (block + 1) * 256)))


SENSELESS = [
    b"{",
    b"[]",
    b"{}",
    b"[" * 100_000,
    b'{"columns":{"keys":7},"rest":"","size":1}',
    b'{"columns":{},"rest":"","size":Infinity}',
    *(
        json.dumps(
            {"columns": {"keys": {"offset": 0, "size": 1, "block": 1, "sha256": [""], **odd}}, "rest": "", "size": 9}
        )
        for odd in ({"offset": -1}, {"size": -1}, {"block": 0}, {"size": 1 << 70, "block": 1 << 70}, {"sha256": []})
    ),
]


@pytest.mark.parametrize("text", SENSELESS, ids=range(len(SENSELESS)))
def test_a_seal_without_sense_is_refused(path, text):
    unseal(path)
    text = text if isinstance(text, bytes) else text.encode()
    with path.open("ab") as stream:
        stream.write(text + f"\npucache-seal {len(text):012d} {hashlib.sha256(text).hexdigest()}\n".encode())
    assert "its seal makes no sense" in refusal(CacheFile, path)


@pytest.mark.parametrize("where", ["offset", "block"])
def test_a_seal_of_other_places_than_the_datasets_is_refused(path, where):
    table = CacheFile(path)._checksums
    unseal(path)
    shift = {"offset": -8} if where == "offset" else {"block": 8}
    column = table.columns["size_mtime"]
    content = path.read_bytes()[column.offset + shift.get("offset", 0) :][: column.size]
    hasher = checksums.ColumnHasher(shift.get("block", column.block))
    hasher.update(memoryview(content))
    moved = hasher.checksums(column.offset + shift.get("offset", 0))
    checksums.append_table(path, {**table.columns, "size_mtime": moved})
    assert "seal" in refusal(CacheFile, path)


def test_an_error_of_the_disk_is_one_line_and_no_death(path, monkeypatch):
    cache = EmbeddingCache(path)

    def broken(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", broken)
    monkeypatch.setattr(os, "pread", broken)
    for action in (lambda: list(cache.blocks()), cache.verify):
        assert refusal(action) == f"cannot read {path}: Input/output error"
    assert "Input/output error" in refusal(CacheFile, path)


@pytest.mark.parametrize("keys", [["b", "a"], ["a", "a"]])
def test_verify_sees_keys_out_of_order_or_twice(tmp_path, keys):
    rows = rows_of(["x", "y"])
    rows.keys = encode_keys(keys)
    writer.write_file(tmp_path / "c.h5", SPEC, "", [rows], shape=(2, 1, rows.X.dtype), failures={})
    assert "keys are not sorted and unique" in refusal(CacheFile(tmp_path / "c.h5").verify)


# --- writing -----------------------------------------------------------------------------------


def test_a_failure_while_writing_leaves_no_file_and_the_old_one_alone(path):
    def blocks():
        yield rows_of(["a"])
        raise KeyboardInterrupt

    before = path.read_bytes()
    for target in (path, path.with_name("new.h5")):
        with pytest.raises(KeyboardInterrupt):
            writer.write_file(target, SPEC, "", blocks(), shape=(2, 1, np.dtype("f2")), failures={})
    assert os.listdir(path.parent) == [path.name]
    assert path.read_bytes() == before


@pytest.mark.parametrize("call", range(0, 40, 3))
def test_ctrl_c_within_hdf5_waits_until_it_is_out_of_it(path, monkeypatch, call):
    """An exception in a call that HDF5 makes back has been seen to leave it in disorder, and other errors behind."""
    calls = []

    def write(self, data, real=hdf5._Output.write):
        calls.append(len(calls))
        if len(calls) == call + 1:
            signal.raise_signal(signal.SIGINT)
        return real(self, data)

    before = path.read_bytes()
    monkeypatch.setattr(hdf5._Output, "write", write)
    try:
        writer.write_file(path, SPEC, "", [rows_of(["z"])], shape=(1, 1, np.dtype("f2")), failures={})
        struck = False
    except KeyboardInterrupt:
        struck = True
    assert struck == (len(calls) > call) and os.listdir(path.parent) == [path.name]
    assert not struck or path.read_bytes() == before


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 0.97])
def test_a_full_disk_is_an_output_error_and_leaves_no_file(tmp_path, small_disk, share):
    keys = [f"{number:03}" for number in range(500)]
    room = int(write(tmp_path / "c.h5", keys).stat().st_size * share)
    (tmp_path / "c.h5").unlink()
    with small_disk(room), pytest.raises(OutputError, match=r"cannot write .*c\.h5: File too large"):
        write(tmp_path / "c.h5", keys)
    assert os.listdir(tmp_path) == []


# --- merging -----------------------------------------------------------------------------------


def test_pack_equals_the_file_of_a_single_run_byte_for_byte(shards, fixed_time, monkeypatch):
    monkeypatch.setattr(reader, "BLOCK_BYTES", 40)
    packed, whole = shards.parent / "packed.h5", shards.parent / "whole.h5"
    assert pack([shards], packed) == 5
    write(whole, ["a", "b", "c", "d", "eee"], failures={f"{n}.png": "gone" for n in range(3)})
    assert packed.read_bytes() == whole.read_bytes()
    pack([shards / "2.h5", shards / "0.h5", shards / "1.h5"], packed)
    assert packed.read_bytes() == whole.read_bytes()
    for caches in ([packed], packed, str(packed), EmbeddingCache(packed), EmbeddingCache(shards)):
        pack(caches, packed)
        assert packed.read_bytes() == whole.read_bytes()


def test_pack_forgets_a_failure_that_another_file_has_a_row_for(tmp_path):
    first = write(tmp_path / "1.h5", ["a"], failures={"b": "timeout", "c": "gone"})
    second = write(tmp_path / "2.h5", ["b"], source="elsewhere")
    pack([first, second], tmp_path / "out.h5")
    packed = CacheFile(tmp_path / "out.h5")
    assert packed.failures == {"c": "gone"}
    assert packed.source == ""


def test_pack_refuses_a_damaged_file_and_writes_nothing(path, tmp_path):
    damage(path, "embeddings")
    assert "embeddings are not as they were written" in refusal(pack, [path], tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()


def test_pack_takes_more_files_than_there_are_file_descriptors(tmp_path, few_descriptors):
    paths = [write(tmp_path / f"{n}.h5", [f"{n:02}"], failures={f"x{n}": "gone"}) for n in range(40)]
    assert pack(paths, tmp_path / "out.h5") == 40
    assert list(EmbeddingCache(tmp_path / "out.h5").keys) == [f"{n:02}" for n in range(40)]
    assert "Too many open files" in refusal(EmbeddingCache, *paths)
