"""benchmarks/quality/review.py: simulated reviews on made-up rows, their arms, and the page."""

import pytest
from helpers.planted import planted, write_cache

from benchmarks.quality import review_page
from benchmarks.quality.review_arms import ARMS, Pile, Until, simulated_review
from pucache.neighbours.graph import cached_graph

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
ALL = Until(looks=1, recall=1.0, most=10_000)


@pytest.fixture(scope="module")
def pile(tmp_path_factory):
    X, s, y = planted(n=250, d=6, labelled=12, prior=0.2, apart=1.2)
    cache = write_cache(tmp_path_factory.mktemp("review") / "rows.h5", X)
    return Pile(cache, cached_graph(cache), s, y.astype(bool))


@pytest.mark.parametrize("arm", ["every 10", "growing", "no audits", "uncertain first", "clusters in turn"])
def test_a_review_finds_every_positive_and_counts_every_look(pile, tmp_path, arm):
    facts = simulated_review(pile, ARMS[arm], ALL, seed=0, work=tmp_path)
    assert len(facts["found_at"]) == pile.hidden
    assert facts["found_at"] == sorted(set(facts["found_at"]))
    assert facts["found_at"][-1] <= facts["looks"]
    assert not (arm == "no audits" and facts["audits"])
    half = facts["found_at"][pile.hidden // 2]
    assert half < 0.75 * (len(pile.s) - pile.s.sum()) / 2  # at random it would take half of the pile


# --- the page -----------------------------------------------------------------------------------------


def row(arm, found_at, *, looks=500, hidden=10, share=0.01, task="cat", **more):
    facts = {"group": "cifar classes", "task": task, "share": share, "labelled": 20, "seed": 0, "arm": arm}
    counts = {"looks": looks, "hidden": hidden, "rows": 1000, "fits": 50, "cpu_seconds": 3.0, "audits": 4}
    return facts | counts | {"found_at": found_at, "commit": "abc"} | more


def test_the_page_says_what_was_asked_and_what_is_so():
    rows = [
        row(review_page.DEFAULT, list(range(1, 11))),
        row(review_page.ROUNDS, list(range(2, 21, 2))),
        row("ASReview", list(range(1, 11)), asreview="3.0.8"),
    ]
    page = review_page.report(rows, arms="Arms.", ranker="Ranker.")
    assert "| cifar classes | 1% | looks until 80% | at most 0.9 of the looks by rounds | 8 | 16 | yes | 1/1 |" in page
    assert "more than by ASReview | 10 | 10 | **no** | 0/1 |" in page
    assert "ASReview 3.0.8." in page
