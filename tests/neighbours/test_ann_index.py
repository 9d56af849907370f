import hashlib
import logging
import signal

import faiss
import numpy as np
import pytest
from helpers import plain
from helpers.planted import write_cache
from helpers.slow import slow
from helpers.started import Started, Strike
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.errors import CacheError, OutputError
from pucache.labels.labels import Labels
from pucache.neighbours import ann_index, ann_index_file, index_memory, index_tuning, product_codes
from pucache.neighbours.ann_index import KINDS, Index, open_or_build
from pucache.neighbours.ann_index_file import index_path, read_index
from pucache.neighbours.index_tuning import RECALL, RECALL_AT
from pucache.neighbours.whitening import Whitening
from pucache.retrieval.indexed_similarity import IndexedSimilarity
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.similarity import Similarity

pytestmark = pytest.mark.usefixtures("one_thread")
N = 3000
OF = np.random.default_rng(0).integers(0, 30, N)
X = np.random.default_rng(1).normal(size=(30, 16))[OF] + 0.4 * np.random.default_rng(2).normal(size=(N, 16))
X = X.astype(np.float32)
S = ((OF == 0) & (np.arange(N) < 1000)).astype(np.int8)


@pytest.fixture
def cache(tmp_path):
    return write_cache(tmp_path / "cache.h5", X)


@pytest.fixture
def small(tmp_path):
    """A cache so small that its index can be damaged in every place."""
    return write_cache(tmp_path / "small.h5", X[:40, :4])


@pytest.fixture
def built(monkeypatch):
    """Counts how often an index is built."""
    genuine, count = ann_index._build, []
    monkeypatch.setattr(ann_index, "_build", lambda *given: count.append(given[1]) or genuine(*given))
    return count


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "pucache")
    return lambda: [record.getMessage() for record in caplog.records]


def enough(size):
    """Memory that an index of this size can be built in: a quarter of it goes to the rows that it learns from."""
    return -(-4 * size // 3)


def too_little(size):
    return 4 * (size - 8 * X.shape[1] - 1) // 3


# --- what it finds -----------------------------------------------------------------------------


STORAGES = {"ivf": ("float16", "8 bit"), "hnsw": ("float16", "8 bit"), "ivfpq": ("16-byte codes",)}


@pytest.mark.parametrize("kind, storage", [(kind, storage) for kind in KINDS for storage in STORAGES[kind]])
def test_an_index_finds_the_neighbours_that_brute_force_finds(cache, kind, storage):
    size = N * {"ivf": 48, "hnsw": 304, "ivfpq": 36}[kind]
    index = open_or_build(cache, kind, memory=too_little(size) if storage == "8 bit" else enough(size))
    assert index.trailer.storage == storage
    Z = plain.unit(X)
    queries = np.arange(0, N, 60)
    true = np.argsort(-Z[queries] @ Z.T, axis=1)[:, :RECALL_AT]
    found = index.search(Z[queries].astype(np.float32), RECALL_AT)
    recall = np.mean([len(np.intersect1d(a, b)) / RECALL_AT for a, b in zip(found, true, strict=True)])
    assert recall > (0.9 if storage == "8 bit" else 0.97)
    assert recall == pytest.approx(index.trailer.recall, abs=0.03), "what it says of itself"
    assert index.trailer.recall >= RECALL or storage == "8 bit"


@pytest.mark.parametrize("kind", KINDS)
def test_an_ivf_index_visits_no_more_cells_than_it_must(cache, kind):
    index = open_or_build(cache, kind)
    if kind != "hnsw":
        assert 1 <= index.trailer.effort < faiss.extract_index_ivf(index._index).nlist / 2
    assert (index.trailer.n, index.trailer.d, index.trailer.kind) == (N, 16, kind)


@pytest.mark.parametrize("similarity", ["whitened", slow("centroid"), slow("topk"), "max"])
@pytest.mark.parametrize("kind", KINDS)
def test_retrieval_by_an_index_is_nearly_that_of_all_rows_and_its_scores_are_exact(opened, kind, similarity):
    rows, s = X[:600], S[:600]
    cache = opened(rows)
    exact = Similarity(similarity, "cpu")
    result = rank_unlabelled(cache, s, k=20, scorer=IndexedSimilarity(exact, kind))
    full = rank_unlabelled(cache, s, k=None, scorer=exact)
    assert len(np.intersect1d(result.rows, full.rows[:20])) >= 18
    scores = dict(zip(full.rows.tolist(), full.scores, strict=True))
    np.testing.assert_allclose(result.scores, [scores[row] for row in result.rows.tolist()], atol=2e-5)
    assert len(result.rows) == 20 and (np.diff(result.scores) <= 0).all() and not s[result.rows].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 5, 63, 100, 130])
def test_small_caches_are_found_whole(tmp_path, kind, n):
    cache = write_cache(tmp_path / "cache.h5", X[:n])
    s = (np.arange(n) == 1).astype(np.int8)
    result = rank_unlabelled(cache, s, k=10**6, scorer=IndexedSimilarity(Similarity("max", "cpu"), kind), twins=None)
    assert sorted(result.rows) == [row for row in range(n) if row != 1]


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_and_rows_that_are_all_alike_can_be_indexed(tmp_path, kind):
    for name, rows in {"one": X[:1], "alike": np.ones((200, 4), np.float32)}.items():
        cache = write_cache(tmp_path / f"{name}.h5", rows)
        index = open_or_build(cache, kind)
        assert index.search(np.zeros((1, rows.shape[1]), np.float32), 1).shape == (1, index.width(1))


def test_where_an_index_returns_fewer_rows_those_are_ranked(cache, monkeypatch):
    genuine = Index.search

    def few(self, queries, k, *, device="cpu"):
        found = genuine(self, queries, k, device=device)
        found[:, 7:] = -1
        return found

    monkeypatch.setattr(Index, "search", few)
    by = IndexedSimilarity(Similarity("centroid", "cpu"), "ivf")
    s = np.zeros(N, np.int8)
    s[0] = 1
    result = rank_unlabelled(cache, s, k=50, scorer=by, twins=None)
    assert 5 <= len(result.rows) <= 7 and np.isfinite(result.scores).all()


def test_what_the_index_finds_is_told(cache, said):
    IndexedSimilarity(Similarity("max", "cpu"), "hnsw")(cache, Labels.of(S), 5)
    assert any(line.startswith("hnsw index: recall@100 ") and line.endswith(" on 250 rows") for line in said())


# --- product codes -----------------------------------------------------------------------------


@pytest.fixture
def wide(tmp_path):
    """More dimensions than a code has bytes, and variances that differ."""
    draw = np.random.default_rng(5)
    centres = draw.normal(size=(200, 150))
    rows = centres[draw.integers(0, 200, 1500)] + draw.normal(size=(1500, 150))
    return (rows / np.sqrt(1 + np.arange(150))).astype(np.float16)


@pytest.mark.slow
def test_of_a_folder_of_shards_the_codes_find_what_brute_force_finds(wide, tmp_path):
    (tmp_path / "shards").mkdir()
    for number, part in enumerate(np.array_split(wide, 3)):
        keys = [f"{number}/{row:05}.png" for row in range(len(part))]
        write_cache(tmp_path / "shards" / f"{number}.h5", part, keys)
    cache = EmbeddingCache(tmp_path / "shards")
    s = np.zeros(len(wide), np.int8)
    s[::150] = 1
    exact = rank_unlabelled(cache, s, k=50, scorer=Similarity("max", "cpu"))
    ranking = rank_unlabelled(cache, s, k=50, scorer=IndexedSimilarity(Similarity("max", "cpu"), "ivfpq"))
    assert len(np.intersect1d(ranking.rows, exact.rows)) >= 48
    shared = np.isin(ranking.rows, exact.rows)
    scores = dict(zip(exact.rows.tolist(), exact.scores, strict=True))
    expected = [scores[row] for row in ranking.rows[shared].tolist()]
    np.testing.assert_allclose(ranking.scores[shared], expected, atol=2e-5, err_msg="scores are of the rows")
    path = tmp_path / "shards" / "0.h5.ivfpq"
    index, trailer = read_index(path)
    assert trailer.storage == "64-byte codes" and faiss.extract_index_ivf(index).code_size == 64
    Z = plain.unit(wide.astype(np.float32)).astype(np.float32)
    true = np.argsort(-Z[::15] @ Z.T, axis=1)[:, :RECALL_AT]
    found = Index(index, trailer).search(Z[::15], RECALL_AT)
    assert found.shape[1] == RECALL_AT * trailer.candidates
    recall = np.mean([len(np.intersect1d(a, b)) / RECALL_AT for a, b in zip(found, true, strict=True)])
    assert recall == pytest.approx(trailer.recall, abs=0.03) and trailer.recall >= RECALL


def test_codes_that_are_too_short_are_searched_no_longer_than_it_helps_and_the_shortfall_is_printed(
    wide, tmp_path, monkeypatch, said
):
    monkeypatch.setattr(product_codes, "CODE_BYTES", 2)
    monkeypatch.setattr(index_tuning, "_MAX_CANDIDATES", 2)
    cache = write_cache(tmp_path / "wide.h5", wide)
    IndexedSimilarity(Similarity("max", "cpu"), "ivfpq")(cache, Labels.of(np.eye(1, len(wide), dtype=np.int8)[0]), 5)
    trailer = read_index(index_path(cache, "ivfpq"))[1]
    assert trailer.storage == "2-byte codes" and 0.3 < trailer.recall < RECALL and trailer.candidates == 2
    assert f"ivfpq index: recall@100 {trailer.recall:.3f} on {trailer.sample} rows (asked for 0.99)" in said()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 90), st.integers(1, 300))
def test_the_projection_keeps_inner_products_within_its_directions(seed, d, n):
    rows = np.random.default_rng(seed).normal(size=(n, d)) / (1 + np.arange(d))
    whitening = Whitening.estimate(rows.astype(np.float32))
    directions = product_codes.projection(whitening)
    q = len(whitening.directions)
    groups = min(product_codes.CODE_BYTES, q)
    assert directions.shape[0] % groups == 0 and q <= len(directions) < q + groups
    units = whitening.centred_units(rows.astype(np.float32))
    expected = units @ whitening.directions.T @ whitening.directions @ units.T
    np.testing.assert_allclose((units @ directions.T) @ (units @ directions.T).T, expected, atol=1e-5)


def test_directions_are_dealt_so_that_groups_have_equal_products_of_variances():
    variances = 1 / (1 + np.arange(256.0)) ** 2
    members = product_codes._deal(variances, 64, 4)
    assert sorted(row for group in members for row in group) == list(range(256)) and {
        len(group) for group in members
    } == {4}
    logs = [np.log(variances[group]).sum() for group in members]
    plainly = np.log(variances).reshape(64, 4).sum(1)
    assert np.ptp(logs) < np.ptp(plainly) / 4


def test_memory_for_codes_does_not_grow_with_the_dimensions(wide, tmp_path):
    cache = write_cache(tmp_path / "wide.h5", wide)
    with pytest.raises(ValueError, match=r"an ivfpq index of .*wide.h5 takes 0.0 GB .*--memory, or use --index exact"):
        open_or_build(cache, "ivfpq", memory=len(wide) * 100)
    assert index_memory.choose_storage(cache, "ivfpq", len(wide) * 108) == "64-byte codes"


# --- a GPU -------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    """A copy that stands for the one on a GPU, and what was asked of it."""
    asked = []

    def copy(index, device):
        if device == "cpu":
            return None
        asked.append(device)
        return faiss.clone_index(index)

    monkeypatch.setattr(ann_index, "to_gpu", copy)
    return asked


@pytest.mark.parametrize("kind, k, used", [("ivf", 10, 1), ("ivf", 2048, 1), ("ivf", 2049, 0), ("hnsw", 10, 0)])
def test_a_gpu_serves_cells_and_as_many_neighbours_as_it_can(cache, gpu, kind, k, used):
    index = open_or_build(cache, kind)
    Z = plain.unit(X)[:5].astype(np.float32)
    found = index.search(Z, k, device="cuda")
    assert gpu == ["cuda"] * used and found.shape == (5, k)
    assert (found == index.search(Z, k, device="cpu")).all() and gpu == ["cuda"] * used


# --- the file ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_is_built_once_and_read_from_then_on(cache, kind, built, said):
    first = open_or_build(cache, kind)
    again = open_or_build(cache, kind)
    assert built == [kind] and again.trailer == first.trailer and said() == []
    Z = plain.unit(X)[:9].astype(np.float32)
    assert (first.search(Z, 30) == again.search(Z, 30)).all()


def test_both_kinds_stand_side_by_side(cache, built):
    for _ in range(2):
        assert [open_or_build(cache, kind).trailer.kind for kind in KINDS] == list(KINDS)
    assert built == list(KINDS) and [index_path(cache, kind).name for kind in KINDS] == [
        "cache.h5.ivf",
        "cache.h5.hnsw",
        "cache.h5.ivfpq",
    ]


def test_a_cache_that_was_written_anew_has_its_index_built_anew_and_is_told(cache, tmp_path, built, said):
    open_or_build(cache, "ivf")
    changed = write_cache(tmp_path / "cache.h5", X[::-1])
    index = open_or_build(changed, "ivf")
    assert built == ["ivf"] * 2 and said() == [f"{index_path(cache, 'ivf')} is of another state of the cache; "
                                               "building it anew"]  # fmt: skip
    Z = plain.unit(X)
    assert index.search(Z[:1].astype(np.float32), 1)[0, 0] == N - 1
    open_or_build(changed, "ivf")
    assert len(built) == 2


def test_an_index_of_the_other_kind_under_its_name_is_replaced(cache, built):
    open_or_build(cache, "ivf")
    index_path(cache, "ivf").rename(index_path(cache, "hnsw"))
    assert open_or_build(cache, "hnsw").trailer.kind == "hnsw" and built == ["ivf", "hnsw"]


def test_a_further_cache_file_means_another_index(cache, tmp_path, built):
    open_or_build(cache, "ivf")
    other = write_cache(tmp_path / "d.h5", X[:50] + 1, [f"more/{row}.png" for row in range(50)])
    index = open_or_build(EmbeddingCache(tmp_path / "cache.h5", other.files[0].path), "ivf")
    assert built == ["ivf"] * 2 and index.trailer.n == N + 50


@pytest.fixture
def no_faiss(monkeypatch):
    """Lets no byte reach faiss."""
    monkeypatch.setattr(faiss, "read_index", lambda *given: pytest.fail("faiss saw damaged bytes"))


@pytest.mark.parametrize("kind", [kind if kind == "ivf" else slow(kind) for kind in KINDS])
def test_no_truncated_index_reaches_faiss(small, kind, no_faiss):
    open_or_build(small, kind)
    path = index_path(small, kind)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 7), *range(len(whole) - 60, len(whole))]:
        path.write_bytes(whole[:length])
        with pytest.raises(CacheError, match=r"is no index of pucache, or is truncated|is damaged"):
            read_index(path)


@pytest.mark.parametrize("kind", [kind if kind == "hnsw" else slow(kind) for kind in KINDS])
def test_no_index_with_a_flipped_bit_reaches_faiss(small, kind, no_faiss):
    open_or_build(small, kind)
    path = index_path(small, kind)
    whole = path.read_bytes()
    draw = np.random.default_rng(0)
    for place in [*draw.integers(0, len(whole), 500), *range(len(whole) - 700, len(whole))]:
        data = bytearray(whole)
        data[place] ^= 1 << draw.integers(8)
        path.write_bytes(data)
        with pytest.raises(CacheError, match=r"is no index of pucache, or is truncated|is damaged"):
            read_index(path)


DAMAGE = {
    "empty": lambda data: b"",
    "short": lambda data: data[:10],
    "half": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[:99] + bytes([data[99] ^ 4]) + data[100:],
    "longer": lambda data: data + b"x",
    "text": lambda data: b"precious notes\n" * 40,
    "magic": lambda data: ann_index_file._MAGIC,
    "doubled": lambda data: data + data,
    "head cut": lambda data: data[8:],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_is_built_anew_with_one_line(small, kind, damage, built, said):
    right = open_or_build(small, kind).trailer
    path = index_path(small, kind)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert open_or_build(small, kind).trailer == right and built == [kind] * 2
    (line,) = said()
    assert line.startswith(f"{path} is ") and line.endswith("; building it anew") and "\n" not in line
    assert read_index(path)[1] == right


@pytest.mark.parametrize("text", [b"{}", b"[]", b"no json", b"\xff", b'{"kind": "ivf"}'])
def test_a_whole_file_whose_trailer_is_another_versions_is_built_anew(small, text, built, said):
    open_or_build(small, "ivf")
    path = index_path(small, "ivf")
    data = text + len(text).to_bytes(8, "little")
    path.write_bytes(data + hashlib.sha256(data).digest() + ann_index_file._MAGIC)
    open_or_build(small, "ivf")
    assert len(built) == 2 and said() == [f"{path} is an index of another version of pucache; building it anew"]


def test_an_index_that_faiss_cannot_read_is_built_anew(small, built, said, monkeypatch):
    open_or_build(small, "ivf")

    def refuse(name):
        raise RuntimeError("Error in faiss::read_index\nat line 3")

    monkeypatch.setattr(faiss, "read_index", refuse)
    open_or_build(small, "ivf")
    assert len(built) == 2 and len(said()) == 1 and "cannot read" in said()[0] and "\n" not in said()[0]


# --- where it cannot be ------------------------------------------------------------------------


def test_a_folder_in_the_place_of_the_index_is_an_output_error(small):
    index_path(small, "ivf").mkdir()
    with pytest.raises(OutputError, match=r"small.h5.ivf is a directory"):
        open_or_build(small, "ivf")


def test_a_folder_that_cannot_be_written_to_is_an_output_error_before_the_work(small, monkeypatch):
    def refuse(*given, **named):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    monkeypatch.setattr(ann_index.Whitening, "estimate", lambda cache: pytest.fail("it has begun to work"))
    with pytest.raises(OutputError, match=r"cannot write .*small.h5.ivf: Permission denied"):
        open_or_build(small, "ivf")


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_an_output_error_and_leaves_the_index_that_was_there(cache, kind, small_disk, built):
    open_or_build(cache, kind)
    path = index_path(cache, kind)
    path.write_bytes(before := path.read_bytes()[:-1])
    with small_disk(20_000), pytest.raises(OutputError, match=f"cannot write .*{kind}.*what was there .*untouched"):
        open_or_build(cache, kind)
    assert path.read_bytes() == before and sorted(path.parent.iterdir()) == sorted([path, cache.files[0].path])


def test_too_little_memory_means_eight_bits_and_then_a_line_that_names_the_option(cache):
    assert open_or_build(cache, "ivf", memory=enough(N * 48)).trailer.storage == "float16"
    index_path(cache, "ivf").unlink()
    assert open_or_build(cache, "ivf", memory=too_little(N * 48)).trailer.storage == "8 bit"
    index_path(cache, "ivf").unlink()
    assert open_or_build(cache, "ivf", memory=enough(N * 32)).trailer.storage == "8 bit"
    index_path(cache, "ivf").unlink()
    with pytest.raises(ValueError, match=r"an ivf index of .*cache.h5 takes 0.0 GB .*--memory, or use --index exact"):
        open_or_build(cache, "ivf", memory=too_little(N * 32))
    assert not index_path(cache, "ivf").exists()


def test_no_memory_at_all_is_not_the_default(cache):
    with pytest.raises(ValueError, match=r"--memory"):
        open_or_build(cache, "ivf", memory=0)


def test_an_unknown_kind_is_refused(small):
    with pytest.raises(ValueError, match=r"unknown index 'flat'; use exact, ivf, hnsw or ivfpq"):
        open_or_build(small, "flat")


@pytest.mark.slow  # the fast one of a file beside the cache is that of the graph
@pytest.mark.parametrize("before", [None, b"the index of an earlier state"])
@pytest.mark.parametrize(
    "strike",
    [Strike(signal.SIGKILL, "faiss.write_index", after=True), Strike(signal.SIGKILL, "os.replace", of=".ivf")],
    ids=["written", "renamed"],
)
def test_killed_while_it_is_written_it_leaves_what_was_there(small, tmp_path, strike, before):
    (tmp_path / "found.txt").write_text("00000.png\n")
    path = index_path(small, "ivf")
    if before is not None:
        path.write_bytes(before)
    command = ["retrieve-positives", small.files[0].path, "--positives", tmp_path / "found.txt", "-k", 3, "--index",
               "ivf", "--similarity", "max", "--out", tmp_path / "ranked.csv", "--device", "cpu"]  # fmt: skip
    with Started(command, tmp_path / "killed", strike=strike) as process:
        assert process.wait() == -signal.SIGKILL
    assert (path.read_bytes() if path.exists() else None) == before and not (tmp_path / "ranked.csv").exists()
    assert list(tmp_path.glob(".small.h5.ivf*"))
    with Started(command, tmp_path / "again") as process:
        assert process.wait() == 0, process.stderr
    assert read_index(path)[1].n == 40 and not list(tmp_path.glob(".small.h5.ivf*"))
    assert (tmp_path / "ranked.csv").read_text().count("\n") == 4


def test_what_is_read_is_what_was_hashed_whatever_takes_its_name_meanwhile(cache, tmp_path, monkeypatch):
    open_or_build(cache, "ivf")
    smaller = write_cache(tmp_path / "smaller.h5", X[: N // 2])
    other = open_or_build(smaller, "ivf") and index_path(smaller, "ivf").read_bytes()
    genuine = ann_index_file._read_trailer

    def replaced(stream, path):
        trailer = genuine(stream, path)
        path.unlink()
        path.write_bytes(other)
        return trailer

    monkeypatch.setattr(ann_index_file, "_read_trailer", replaced)
    index = open_or_build(cache, "ivf")
    assert index.trailer.n == N and index.search(index.whitening.centred_units(X[N // 2 :]), 1).max() >= N // 2


@pytest.mark.parametrize("kind", KINDS)
def test_blank_pictures_do_not_make_an_index_search_without_end(tmp_path, kind):
    rows = np.random.default_rng(0).normal(size=(3000, 16)).astype(np.float32)
    rows[::20] = rows[0]
    index = open_or_build(write_cache(tmp_path / "blank.h5", rows), kind)
    assert index.trailer.recall >= RECALL and index.trailer.effort < 1000


def test_in_a_container_its_memory_counts(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    free = index_memory.free_memory()
    monkeypatch.setattr(index_memory, "_CGROUP", tmp_path)
    assert index_memory.free_memory() == 2_000_000 < free
    (tmp_path / "memory.max").write_text("max\n")
    assert index_memory.free_memory() > 2_000_000
