"""The sample of unlabelled rows: what is drawn, that nothing else depends on it, and that it is said."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import run, run_json
from helpers.planted import planted, write_cache

from pucache import EmbeddingCache, PULabels, train_pu
from pucache.cache.keys import Keys, encode_keys
from pucache.errors import CacheError
from pucache.labels.read_labels import open_labels
from pucache.labels.sample import (
    SAMPLE_BYTES,
    SAMPLE_ROWS,
    UnlabelledSample,
    draw_sample,
    key_numbers,
    sample_size,
    smallest_numbers,
)
from pucache.training.training_set import TrainingRows, TrainingSet

pytestmark = pytest.mark.usefixtures("one_thread")
N, LABELLED, LIMIT = 600, 40, 300
X, S, _ = planted(N, labelled=LABELLED, prior=0.2, seed=3)
NAMES = [f"{'a' * (row % 17)}/{row:04}.png" for row in range(N)]  # of many widths, and in another order than the rows


@pytest.fixture
def limit(monkeypatch):
    monkeypatch.setattr("pucache.labels.sample.SAMPLE_ROWS", LIMIT)


@pytest.fixture
def cache(tmp_path):
    return write_cache(tmp_path / "cache.h5", X, NAMES)


@pytest.fixture
def positives(tmp_path):
    path = tmp_path / "found.txt"
    path.write_text("\n".join(name for name, label in zip(NAMES, S, strict=True) if label))
    return path


def training_set(cache: EmbeddingCache, positives: Path | PULabels, seed: int = 0) -> TrainingSet:
    labels = open_labels(cache, positives)
    return TrainingRows.of_cache(cache, labels, seed=seed, device="cpu").labelled_by(labels.only)


def sampled_keys(data: TrainingSet) -> list[str]:
    return data.keys(np.arange(len(data.training.s)))


# --- the draw ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 250, 559, 560])
def test_the_smallest_numbers_are_taken_by_brute_force_too(size):
    keys, among = Keys([encode_keys(sorted(NAMES))]), np.arange(N) % 15 != 0
    numbers = key_numbers(encode_keys(sorted(NAMES)), 5).astype(object)
    expected = sorted(np.flatnonzero(among), key=lambda row: numbers[row])[:size]
    assert sorted(smallest_numbers(keys, among, size, 5)) == sorted(expected)


def test_the_sample_does_not_depend_on_files_or_their_order_and_holds_every_positive(limit, cache, positives, tmp_path):
    draw, whole = np.random.default_rng(0), training_set(cache, positives, seed=4)
    assert whole.rows.sample == UnlabelledSample(rows=LIMIT, unlabelled=N - LABELLED, seed=4)
    assert len(whole.training.s) == LIMIT + LABELLED and whole.n_unlabelled == N - LABELLED
    rows, keys = whole.cache_rows(np.arange(len(whole.training.s))), sampled_keys(whole)
    assert (np.diff(rows) > 0).all() and (cache.X[rows] == whole.rows.X).all()
    labelled = {key for key, label in zip(keys, whole.training.s, strict=True) if label}
    assert labelled == set(positives.read_text().split("\n"))
    for count in (2, 5):
        shard, paths = draw.integers(count, size=N), []  # files of other sizes, in another order
        for number in draw.permutation(count):
            of = np.flatnonzero(shard == number)
            paths.append(tmp_path / f"{count}-{number}.h5")
            write_cache(paths[-1], X[of], [NAMES[row] for row in of])
        shards = training_set(EmbeddingCache(*paths), positives, seed=4)
        by_key = dict(zip(sampled_keys(shards), shards.rows.X, strict=True))
        assert set(by_key) == set(keys) and (np.array([by_key[key] for key in keys]) == whole.rows.X).all()


def test_up_to_the_limit_in_rows_and_in_bytes_all_rows_are_taken(monkeypatch):
    assert sample_size(128) == sample_size(512) == SAMPLE_ROWS
    assert sample_size(4096) == SAMPLE_BYTES // 4096
    labels, keys = PULabels.of(S), Keys([encode_keys(sorted(NAMES))])
    monkeypatch.setattr("pucache.labels.sample.SAMPLE_ROWS", N - LABELLED)
    assert draw_sample(keys, labels, row_bytes=24) is None
    monkeypatch.setattr("pucache.labels.sample.SAMPLE_ROWS", N - LABELLED - 1)
    sample, rows = draw_sample(keys, labels, row_bytes=24)
    assert sample.rows == N - LABELLED - 1 and len(rows) == N - 1
    monkeypatch.setattr("pucache.labels.sample.SAMPLE_BYTES", 24 * 100)
    sample, rows = draw_sample(keys, labels, row_bytes=24)
    assert sample.rows == 100 and len(rows) == LABELLED + 100


def test_after_a_review_all_rows_are_taken(limit, cache):
    reviewed = np.zeros(N, np.int8)
    reviewed[np.flatnonzero(S == 0)[0]] = -1
    assert training_set(cache, PULabels(S, reviewed)).rows.sample is None


# --- training ------------------------------------------------------------------------------------------


def test_training_on_a_sample_is_training_on_a_cache_of_its_rows(limit, cache, positives, tmp_path, monkeypatch):
    data = training_set(cache, positives)
    few = write_cache(tmp_path / "few.h5", data.rows.X, sampled_keys(data))
    model = train_pu(cache, positives, penalty=0.01, device="cpu")
    monkeypatch.setattr("pucache.labels.sample.SAMPLE_ROWS", SAMPLE_ROWS)
    expected = train_pu(few, positives, penalty=0.01, device="cpu")
    assert (model.coef_ == expected.coef_).all() and model.threshold_ == expected.threshold_
    assert model.figures_.to_json() == expected.figures_.to_json() and model.prior_estimate_ == expected.prior_estimate_
    assert (model.n_labelled_, model.n_unlabelled_) == (LABELLED, N - LABELLED)
    assert model.unlabelled_sample_ == UnlabelledSample(LIMIT, N - LABELLED, 0)
    assert not list(tmp_path.glob("cache.h5.*"))  # no graph of the sample is kept for one of the cache


def test_damage_anywhere_is_found_though_a_sample_is_taken(limit, cache, positives, tmp_path):
    taken = set(sampled_keys(training_set(cache, positives)))
    row = next(row for row in range(N) if cache.keys[row] not in taken)
    content = bytearray((tmp_path / "cache.h5").read_bytes())
    content[content.index(cache.X[row].tobytes())] ^= 1
    (tmp_path / "cache.h5").write_bytes(content)
    with pytest.raises(CacheError, match="damaged"):
        training_set(EmbeddingCache(tmp_path / "cache.h5"), positives)


# --- commands ------------------------------------------------------------------------------------------


def test_commands_say_what_was_taken_and_all_takes_all(limit, cache, positives, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = f"trained on {LIMIT} of {N - LABELLED} unlabelled rows, drawn by seed %d; train-pu --all takes all"
    fields = {"rows": LIMIT, "unlabelled": N - LABELLED, "seed": 3}
    of = f"cache.h5 --positives {positives}"
    train = f"train-pu {of} --seed 3 --method linear --penalty 0.001"
    told = run(train).stdout
    assert said % 3 in told and "positives are hidden in this sample" in told  # about 60, of 300 rows
    metrics = json.loads((tmp_path / "model.metrics.json").read_text())
    assert metrics["unlabelled_sample"] == fields and metrics["unlabelled"] == N - LABELLED
    assert "drawn by seed" not in run(f"{train} --all").stdout
    assert said % 0 in run(f"sweep-priors {of} --priors 0.2 --seeds 1").stdout
    assert run_json(f"estimate-prior {of}")["unlabelled_sample"] == fields | {"seed": 0}
