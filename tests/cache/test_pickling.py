"""A cache in another process, or copied: the paths travel, and the files must still be the same."""

import copy
import io
import multiprocessing
import pickle

import joblib
import pytest
from helpers.planted import planted, write_cache
from helpers.refusals import one_line

import pucache
from pucache.cache.local_copies import cache_dir
from pucache.errors import CacheError

X, S, _ = planted(80, labelled=20)
WAYS = {
    "pickle": lambda cache: pickle.loads(pickle.dumps(cache)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "joblib": lambda cache: through_joblib(cache),
    "spawn": lambda cache: in_a_spawned_process(cache),
}


def through_joblib(cache):
    joblib.dump(cache, stream := io.BytesIO())
    stream.seek(0)
    return joblib.load(stream)


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
    assert one_line(CacheError, pickle.loads, pickled) == f"no such cache: {tmp_path / '0.h5'}"


def test_a_remote_cache_is_fetched_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "here"))
    url = f"memory://{tmp_path.name}/far.h5"
    local = write_cache(tmp_path / "near.h5", X)
    import fsspec

    fsspec.filesystem("memory").pipe(f"/{tmp_path.name}/far.h5", (tmp_path / "near.h5").read_bytes())
    pickled = pickle.dumps(pucache.EmbeddingCache(url))
    assert (pickle.loads(pickled).X == local.X).all()
    cache_dir(clear=True)
    assert (pickle.loads(pickled).X == local.X).all()
    fsspec.filesystem("memory").pipe(
        f"/{tmp_path.name}/far.h5", write_cache(tmp_path / "new.h5", X + 1).files[0].path.read_bytes()
    )
    cache_dir(clear=True)
    assert "was replaced since" in one_line(CacheError, pickle.loads, pickled)


def test_results_go_along(caches):
    model = pucache.train_pu(caches, S, method="linear")
    results = [
        model,
        pucache.retrieve_positives(caches, S, model, k=3),
        pucache.estimate_prior(caches, S),
        pucache.sweep_priors(caches, S, priors=[0.3], seeds=[0]),
        pucache.info(caches),
        pucache.PULabels.of(S),
    ]
    for result in results:
        assert repr(pickle.loads(pickle.dumps(result))) == repr(copy.deepcopy(result)) == repr(result)
    assert (pickle.loads(pickle.dumps(model)).margins(X) == model.margins(X)).all()


def test_what_a_notebook_shows_is_short(caches):
    model = pucache.train_pu(caches, S, method="linear")
    shown = [
        (caches, "80 rows of imported:planted (6-d), float32"),
        (caches.files[0], "50 rows"),
        (caches.keys, "Keys(80: 0000, 0001, 0002, ...)"),
        (caches.encoder, "EncoderSpec(imported:planted (6-d))"),
        (pucache.PULabels.of(S), "PULabels(80 rows: 20 labelled positive)"),
        (pucache.PULabels(S, S - 1), "20 labelled positive, 60 negative"),
        (pucache.info(caches), "80 rows of imported:planted (6-d) in 2 files, 0 failures"),
        (model, "PULinearClassifier(method='linear')"),
        (pucache.estimate_prior(caches, S)[0], "PriorEstimate(tilt: "),
        (pucache.sweep_priors(caches, S, priors=[0.3], seeds=[0]), "Sweep(penalty="),
    ]
    for thing, text in shown:
        assert text in repr(thing) and len(repr(thing)) < 400
        assert "object at 0x" not in repr(thing) and "array(" not in repr(thing)
