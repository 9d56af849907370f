"""benchmarks/quality/review.py: simulated reviews on made-up rows, their arms, and the page."""

import importlib.util
import math

import numpy as np
import pytest
from helpers.planted import planted, write_cache

from benchmarks.quality import review, review_page
from benchmarks.quality.review import Pile
from pucache.neighbours.graph import cached_graph

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def pile(tmp_path_factory):
    X, s, y = planted(n=250, d=6, labelled=12, prior=0.2, apart=1.2)
    cache = write_cache(tmp_path_factory.mktemp("review") / "rows.h5", X)
    return Pile(cache, cached_graph(cache), s, y.astype(bool))


def test_a_review_finds_every_positive_and_counts_every_look(pile):
    facts = review.simulated_review(pile, seed=0)
    assert len(facts["found_at"]) == pile.hidden
    assert facts["found_at"] == sorted(set(facts["found_at"]))
    assert facts["found_at"][-1] <= facts["looks"] == 10 * facts["fits"]
    half = facts["found_at"][pile.hidden // 2]
    assert half < 0.75 * (len(pile.s) - pile.s.sum()) / 2  # at random it would take half of the pile


def test_rounds_end_where_all_are_found(pile):
    facts = review.rounds(pile)
    assert len(facts["found_at"]) == pile.hidden
    assert facts["looks"] <= 100 * -(-len(pile.s) // 100)


@pytest.mark.skipif(importlib.util.find_spec("asreview") is None, reason="ASReview is not installed")
def test_asreview_finds_positives(pile):
    from benchmarks.quality.review_asreview import found_at

    looks = found_at(pile.cache.X.astype(np.float32), pile.s, pile.y.astype(int), looks=60, c=None, step=1, seed=0)
    assert len(looks) > 20


# --- the page -----------------------------------------------------------------------------------------


def row(arm, found_at, *, looks=500, hidden=10, share=0.01, task="cat", **more):
    facts = {"group": "cifar classes", "task": task, "share": share, "labelled": 20, "seed": 0, "arm": arm}
    counts = {"looks": looks, "hidden": hidden, "rows": 1000, "fits": 50, "cpu_seconds": 3.0, "audits": 4}
    return facts | counts | {"found_at": found_at} | more


def test_figures_of_a_review():
    found = row("every 10", [1, 2, 3, 60, 70, 80, 90, 400])
    assert review_page.positives_after(60)(found) == 4
    assert review_page.looks_until(0.8)(found) == 400
    assert math.isnan(review_page.looks_until(0.95)(found))
    assert math.isnan(review_page.positives_after(500)(row("every 10", [1], looks=100)))
    assert review_page.positives_after(500)(row("every 10", [1], looks=100, hidden=1)) == 1  # all are found


def test_arms_are_compared_in_the_same_cells():
    rows = [
        row(review_page.DEFAULT, list(range(1, 11))),
        row(review_page.ROUNDS, list(range(2, 21, 2))),
        row(review_page.ROUNDS, [1], task="dog"),
    ]
    assert review_page.against(rows, review_page.DEFAULT, review_page.ROUNDS, review_page.looks_until(0.8)) == (
        "0.500 (1)"
    )


def test_the_page_says_what_was_asked_and_what_is_so():
    rows = [
        row(review_page.DEFAULT, list(range(1, 11))),
        row(review_page.ROUNDS, list(range(2, 21, 2))),
        row("ASReview", list(range(1, 11)), asreview="3.0.8"),
    ]
    page = review_page.report(rows)
    assert "| cifar classes | 1% | looks until 80% | at most 0.9 of the looks by rounds | 8 | 16 | yes | 1/1 |" in page
    assert "more than by ASReview | 10 | 10 | **no** | 0/1 |" in page
    assert "ASReview 3.0.8." in page
