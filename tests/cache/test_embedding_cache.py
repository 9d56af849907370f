import copy
import dataclasses
import errno
import json
import multiprocessing
import os
import pickle
import re

import h5py
import numpy as np
import pytest
from fuzz.damage import untouched
from helpers.cache_files import FAILURES, SPEC, refusal, rows_of, write, write_rows
from helpers.embedding_runs import run
from helpers.planted import planted, write_cache
from helpers.refusals import one_line
from helpers.sealing import edited
from helpers.sources import archive
from helpers.tiny import save_image, tiny_encoder
from hypothesis import given, settings
from hypothesis import strategies as st

import pucache
from pucache import EmbeddingCache
from pucache.cache import reader
from pucache.cache.keys import encode_keys
from pucache.cache.layout import COLUMNS
from pucache.cache.reader import CacheFile
from pucache.errors import CacheError

OTHER = tiny_encoder("other", seed=1).spec


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
        assert [block.start for block, _ in several.blocks()] == [0, 2, 4]
        for block, X in several.blocks():
            np.testing.assert_array_equal(X, several.X[block])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"keys": ["z", "a"]}, "the key 'a' stands both in .*a.h5 and in .*b.h5"),
        ({"spec": OTHER}, r"a.h5 .* of tiny \(8-d.*b.h5 of other \(8-d.*differ in name, weights"),
        ({"dtype": "float32"}, "a.h5 holds float16.*b.h5 float32"),
    ],
    ids=["overlap", "encoder", "dtype"],
)
def test_files_that_do_not_go_together_are_refused_by_name(tmp_path, changes, expected):
    paths = [write(tmp_path / "a.h5", ["a", "b"]), write(tmp_path / "b.h5", **{"keys": ["z"], **changes})]
    text = refusal(EmbeddingCache, *paths)
    assert re.search(expected, text), text


def test_a_folder_that_lacks_a_share_is_opened_with_a_warning(tmp_path, caplog):
    for number in (1, 4):
        write(tmp_path / f"{number}.h5", [str(number)], shard=f"{number}/4")
    assert len(EmbeddingCache(tmp_path)) == 2
    assert f"{tmp_path} lacks 2 of 4 shares: embed 2/4, 3/4 with --shard" in caplog.text
    caplog.clear()
    EmbeddingCache(tmp_path / "1.h5")
    assert not caplog.text
    (tmp_path / "4.h5").unlink()
    assert len(EmbeddingCache(tmp_path)) == 1
    assert "lacks 3 of 4 shares" in caplog.text


def test_a_share_of_another_source_does_not_stand_for_that_of_this_one(tmp_path, caplog):
    for number, source in ((1, "photos"), (2, "elsewhere")):
        write(tmp_path / f"{number}.h5", [str(number)], shard=f"{number}/2", source=source)
    EmbeddingCache(tmp_path)
    assert "lacks 1 of 2 shares of photos: embed 2/2" in caplog.text
    assert "lacks 1 of 2 shares of elsewhere: embed 1/2" in caplog.text


# --- Files of another layout than docs/cache-format.md says, sealed as a stranger could: refused by---

KEYS = ["a", "b", "c", "d", "e"]


def replaced(name, values=None, **options):
    """Return what puts another dataset, such as one of these values, in the place of one."""

    def change(file):
        data = {} if values is None else {"data": values(np.asarray(file[name])) if callable(values) else values}
        del file[name]
        file.create_dataset(name, **data, **options)

    return change


def linked(name, target):
    def change(file):
        del file[name]
        file[name] = target(file) if callable(target) else target

    return change


def virtual(file):
    layout = h5py.VirtualLayout((5, SPEC.dim), "<f2")
    layout[:] = h5py.VirtualSource("other.h5", "embeddings", shape=(5, SPEC.dim))
    del file["embeddings"]
    file.create_virtual_dataset("embeddings", layout)


def drop(name):
    return lambda file: file.__delitem__(name)


def attribute(name, value):
    return lambda file: file.attrs.__setitem__(name, value)


def encoder_of(**fields):
    return attribute("encoder", np.bytes_(json.dumps({**dataclasses.asdict(SPEC), **fields})))


def lack(name):
    return lambda file: file.attrs.__delitem__(name)


GZIP = {"compression": "gzip"}
SECRET = "../outside/secret.png"
NO_ENCODER = "damaged: its encoder attribute cannot be read"
REFUSED = {
    "foreign": (lack("format"), "HDF5 file but not a pucache cache"),
    "newer": (attribute("version", 4), "format version 4; this pucache .* reads versions 2 and 3: upgrade"),
    "version of parts of images": (attribute("version", 3), "damaged: its encoder is not one of format version 3"),
    "version is a list": (attribute("version", [1, 1]), "damaged: it lacks the attribute version"),
    "encoder": (attribute("encoder", np.bytes_(b"{}")), NO_ENCODER),
    "encoder nested deeply": (attribute("encoder", np.bytes_(b"[" * 60_000)), NO_ENCODER),
    "encoder that is not text": (attribute("encoder", np.bytes_(b"\xff\xfe{")), NO_ENCODER),
    "encoder of no dimensions": (encoder_of(dim=0), "damaged"),
    "source of variable width": (attribute("source", "photos"), "damaged: it lacks the attribute source"),
    "no keys at all": (replaced("keys", h5py.Empty("S1")), "damaged: keys is not contiguous"),
    "fewer keys": (replaced("keys", lambda k: k[:3]), "embeddings have the wrong shape"),
    "numbers as keys": (replaced("keys", np.arange(5)), "keys or failures are not fixed-width text"),
    "keys of any width": (replaced("keys", ["a"] * 5, dtype=h5py.string_dtype()), "damaged"),
    "keys of another file": (replaced("keys", shape=(5,), dtype="S8", external=[(SECRET, 0, 40)]), "damaged"),
    "keys that unpack without end": (replaced("keys", shape=(1 << 28,), dtype="S8", chunks=(1 << 20,), **GZIP), "dam"),
    "narrow X": (replaced("embeddings", lambda X: X[:, :-1]), "embeddings have the wrong shape"),
    "double X": (replaced("embeddings", lambda X: X.astype(float)), "embeddings are float64, expected float16 or"),
    "a million million rows": (replaced("embeddings", shape=(1 << 40, SPEC.dim), dtype="<f2"), "damaged"),
    "a virtual dataset": (virtual, "damaged"),
    "gzip": (replaced("embeddings", lambda X: X, **GZIP), "embeddings is not contiguous"),
    "short digests": (replaced("digests", lambda d: d[:, :31]), "digests have the wrong layout"),
    "fields": (replaced("digests", np.zeros((5, 32), [("a", "u1"), ("b", "u1")])), "digests have the wrong layout"),
    "wide times": (replaced("size_mtime", lambda t: t[:, [0, 1, 1]]), "size_mtime has the wrong layout"),
    "references": (replaced("size_mtime", shape=(5, 2), dtype=h5py.ref_dtype), "damaged"),
    "lone failure": (replaced("failures/keys", lambda k: k[:1]), "failures do not pair up"),
    "a link to another file": (linked("keys", h5py.ExternalLink(SECRET, "/keys")), "damaged or incomplete"),
    "a link to nothing": (linked("keys", h5py.SoftLink("/nothing")), "damaged or incomplete"),
    "links in a circle": (linked("embeddings", h5py.SoftLink("/embeddings")), "cannot be read"),
    "a group within itself": (linked("failures", lambda file: file["/"]), "damaged or incomplete"),
    **{
        f"no {name}": (drop(name), "damaged or incomplete: a dataset is missing")
        for name in (*COLUMNS, "failures/keys", "failures/reasons")
    },
    **{
        f"no {name}": (lack(name), f"lacks the attribute {name}")
        for name in ("version", "encoder", "created", "pucache_version", "source")
    },
}


@pytest.fixture
def stranger(tmp_path):
    """Write a cache of five rows, changed and sealed as if whole, beside a file that it must not read."""
    (tmp_path / "outside").mkdir()
    (tmp_path / SECRET[3:]).write_bytes(b"secret" * 20)
    (tmp_path / "within").mkdir()

    def make(change):
        path = write(tmp_path / "within/cache.h5", KEYS, failures=FAILURES)
        with edited(path) as file:
            change(file)
        return path

    return make


@pytest.mark.parametrize(("change", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_file_of_another_layout_is_refused_on_opening(stranger, change, expected):
    path = stranger(change)
    with untouched(path.parent):
        text = refusal(CacheFile, path)
    assert text.startswith(str(path)) and re.search(expected, text), text


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("keys", ["b", "a", "c", "d", "e"], "keys are not sorted and unique"),
        ("keys", ["a", "a", "c", "d", "e"], "keys are not sorted and unique"),
        ("keys", np.array([b"a", b"b\xff", b"c\xc3", b"d", b"e"]), "is not UTF-8"),
        ("X", np.full((5, SPEC.dim), np.nan, "f2"), r"cache.h5 holds NaN or infinite embeddings \('a', 'b', 'c'\); "),
        ("keys", ["", "\x1b[31ma", "=cmd()", "b\x07\r", "d\u202e"], None),
    ],
)
def test_verify_checks_the_rows_that_a_right_seal_covers(tmp_path, column, values, expected):
    rows = dataclasses.replace(rows_of(KEYS), **{column: values if column == "X" else encode_keys(values)})
    path = write_rows(tmp_path / "cache.h5", rows)
    if expected is None:
        EmbeddingCache(path).verify()
    else:
        assert re.search(expected, refusal(EmbeddingCache(path).verify))


# --- A cache in another process, or copied: the paths travel, and the files must still be the same ---

X, S, _ = planted(80, labelled=20)
WAYS = {
    "pickle": lambda cache: pickle.loads(pickle.dumps(cache)),
    "spawn": lambda cache: in_a_spawned_process(cache),
}


def in_a_spawned_process(cache):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(copy.copy, [cache])[0]


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """A cache of two files that was read already, by relative paths."""
    monkeypatch.chdir(tmp_path)
    for number, rows in enumerate((slice(0, 50), slice(50, 80))):
        write_cache(f"{number}.h5", X[rows], [f"{number}{row:03}" for row in range(len(X[rows]))])
    cache = pucache.EmbeddingCache("0.h5", "1.h5")
    assert cache.X.shape == (80, 6) and cache.keys[0] == "0000"
    return cache


@pytest.mark.parametrize("way", WAYS)
def test_a_cache_is_the_same_elsewhere(caches, tmp_path, monkeypatch, way):
    other = WAYS[way](caches)
    monkeypatch.chdir("/")
    assert list(other.keys) == list(caches.keys) and (other.X == X).all()


def test_little_is_pickled_however_much_was_read(caches):
    _ = caches.digests, caches.matrix
    assert len(pickle.dumps(caches)) < 1000


@pytest.mark.parametrize("one", ["cache", "file"])
def test_another_file_of_the_name_is_refused(caches, one):
    pickled = pickle.dumps(caches if one == "cache" else caches.files[1])
    write_cache("1.h5", X[:30] + 1, [f"1{row:03}" for row in range(30)])
    assert "1.h5 was replaced since this cache was opened" in one_line(CacheError, pickle.loads, pickled)


def test_a_file_that_is_gone_is_named(caches, tmp_path):
    pickled = pickle.dumps(caches)
    (tmp_path / "0.h5").unlink()
    assert one_line(CacheError, pickle.loads, pickled).startswith(f"no such cache: {tmp_path / '0.h5'}; name a file")
    (tmp_path / "0.h5").symlink_to("nowhere.h5")
    assert "0.h5 is a link to no file" in one_line(CacheError, EmbeddingCache, tmp_path)


def test_results_go_along_and_a_notebook_shows_them_shortly(caches):
    model = pucache.train_pu(caches, S, method="linear")
    prior, ranking = pucache.estimate_prior(caches, S)[0], pucache.retrieve_positives(caches, S, model, k=3)
    sweep = pucache.sweep_priors(caches, S, priors=[0.3], seeds=1)
    results = [model, model.figures_, prior, ranking, sweep, pucache.info(caches), pucache.PULabels(S, S - 1)]
    results += [caches.encoder, pucache.score(model, caches, "s.csv")]
    for thing in [*results, caches, caches.files[0], caches.keys]:
        assert len(repr(thing)) < 400 and not re.search(r"object at 0x|array\(", repr(thing))
    for thing in results:
        assert repr(pickle.loads(pickle.dumps(thing))) == repr(copy.deepcopy(thing)) == repr(thing)
    assert (pickle.loads(pickle.dumps(model)).margins(X) == model.margins(X)).all()
    assert repr(caches).endswith("80 rows of imported:planted (6-d), float32)")


# --- The mark of caches whose rows were sorted out of the order of their input --------------------


def imported(path, keys, **options):
    X = np.random.default_rng(0).normal(size=(len(keys), 3)).astype(np.float32)
    pucache.import_embeddings(X, path, keys=keys, force=True, **options)
    return EmbeddingCache(path)


@given(st.lists(st.text("ab0", min_size=1, max_size=3), min_size=1, max_size=6, unique=True))
@settings(max_examples=15)
def test_an_import_is_marked_where_its_keys_were_sorted(tmp_path_factory, keys):
    cache = imported(tmp_path_factory.mktemp("order") / "c.h5", keys)
    assert cache.reordered == (keys != sorted(keys))


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


def test_a_table_of_images_is_marked_and_a_folder_is_not(tmp_path, manifest):
    manifest(2, 10, 1)
    images = {f"{number}.png": (tmp_path / f"{number}.png").read_bytes() for number in (2, 10, 1)}
    for source, marked in ((archive(tmp_path / "t.parquet", images), True), (tmp_path, False)):
        run(source, tmp_path / f"{marked}.h5", tiny_encoder())
        assert EmbeddingCache(tmp_path / f"{marked}.h5").reordered == marked


# --- files that change while they are open ------------------------------------------------------


@pytest.mark.parametrize("meanwhile", [lambda path: write(path, ["z"]), lambda path: path.unlink()])
def test_a_cache_that_is_open_is_read_to_the_end_as_it_was(path, meanwhile):
    before, cache = EmbeddingCache(path).X.copy(), EmbeddingCache(path)
    meanwhile(path)
    np.testing.assert_array_equal(cache.X, before)
    np.testing.assert_array_equal(np.concatenate([block.copy() for _, block in cache.blocks()]), before)
    assert list(cache.keys) == ["a", "bé", "c\nd", "e"] and cache.failures == FAILURES


def test_a_map_beyond_the_end_of_its_file_is_one_line_and_no_death(path):
    cache = EmbeddingCache(path)
    path.rename(path.with_name("other"))
    os.truncate(path.with_name("other"), 100)
    assert "was cut short while it was read; restore it from a copy" in refusal(lambda: list(cache.blocks()))


def test_an_error_of_the_disk_is_one_line_and_no_death(path, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    cache = EmbeddingCache(path)
    monkeypatch.setattr(os, "preadv", broken)
    for action in (lambda: list(cache.blocks()), cache.verify):
        assert refusal(action) == f"cannot read {path}: Input/output error"


def test_a_file_replaced_after_it_was_opened_is_not_mixed_with_the_new_one(path):
    file = CacheFile(path)
    write(path, ["z"])
    one = EmbeddingCache(file)
    for action in (lambda: file.X, lambda: list(one.blocks()), lambda: file.take("keys", np.arange(2)), one.verify):
        assert "was replaced or removed while it was open; open it again" in refusal(action)
    path.unlink()
    assert "was replaced or removed while it was open" in refusal(lambda: file.X)
