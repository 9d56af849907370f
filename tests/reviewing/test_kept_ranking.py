import numpy as np
import pytest
from helpers.sittings import pictured_pile, served

from pucache.reviewing.kept_ranking import FILE, keep_ranking, kept_ranking
from pucache.reviewing.ranking_result import RankingResult


def ranking(n=20, *, posterior=True):
    scores = np.random.default_rng(0).normal(size=n).astype(np.float32)
    return RankingResult(
        scores, np.full(n, 0.25, np.float32) if posterior else None, 0.25 if posterior else np.nan, 1.0
    )


@pytest.mark.parametrize("posterior", [True, False])
def test_a_ranking_is_kept(tmp_path, posterior):
    result = ranking(posterior=posterior)
    keep_ranking(tmp_path, "id", result, 7)
    again, serial = kept_ranking(tmp_path, "id", 20)
    assert serial == 7 and np.array_equal(again.scores, result.scores)
    assert np.array_equal(again.posterior, result.posterior) if posterior else again.posterior is None
    assert np.array_equal(again.expected, result.expected, equal_nan=True)


def test_a_ranking_of_another_cache_is_left_aside(tmp_path):
    assert kept_ranking(tmp_path, "id", 20) is None
    keep_ranking(tmp_path, "id", ranking(), 7)
    assert kept_ranking(tmp_path, "other", 20) is None and kept_ranking(tmp_path, "id", 21) is None


def test_a_damaged_ranking_is_left_aside(tmp_path):
    keep_ranking(tmp_path, "id", ranking(), 7)
    whole, draw = (tmp_path / FILE).read_bytes(), np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(whole[: draw.integers(len(whole))] if draw.random() < 0.3 else whole)
        for position in draw.integers(max(len(data), 1), size=3) if data else ():
            data[position] = draw.integers(256)
        (tmp_path / FILE).write_bytes(bytes(data))
        kept = kept_ranking(tmp_path, "id", 20)
        assert kept is None or kept[0].scores.shape == (20,)


def test_a_ranking_that_cannot_be_written_is_not_kept(tmp_path):
    (tmp_path / FILE).mkdir()
    keep_ranking(tmp_path, "id", ranking(), 7)
    assert kept_ranking(tmp_path, "id", 20) is None


def test_a_server_that_starts_again_ranks_at_once(tmp_path):
    cache = pictured_pile(tmp_path)
    scores = np.arange(60, dtype=np.float32)
    for _ in range(2):
        with served(cache, tmp_path / "session", tmp_path / "found.txt", audit_share=0.0) as (opened, server):
            if not (tmp_path / "session" / FILE).exists():
                opened.sitting.take_ranking(RankingResult(scores, None, float("nan"), 0.1), 0)
            client = server.client()
            assert [card["row"] for card in client.next(2)] == [59, 58]
            client.close()
