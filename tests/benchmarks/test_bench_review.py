"""benchmarks/quality/review.py: simulated reviews on made-up rows, their arms, and the page."""

import importlib.util
import math
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from helpers.planted import planted, write_cache

from benchmarks.quality import review, review_page
from benchmarks.quality.review_arms import ARMS, Pile, Until, clusters_in_turn, growing, rounds, simulated_review
from pucache.labels.labels import Labels
from pucache.neighbours.graph import cached_graph
from pucache.reviewing.session import open_session
from pucache.reviewing.trainer import RankingResult

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


def test_more_fits_for_smaller_batches(pile, tmp_path):
    end = Until(looks=40, recall=0.0, most=40)
    fits = {
        arm: simulated_review(pile, ARMS[arm], end, seed=0, work=tmp_path)["fits"] for arm in ("every 10", "every 25")
    }
    assert fits == {"every 10": 4, "every 25": 2}


def test_batches_that_grow():
    sizes, batch = [], 0
    for _ in range(15):
        batch = growing(batch)
        sizes.append(batch)
    assert sizes == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19]


def test_clusters_take_turns(pile, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.quality.review_arms.IN_TURN", 30)
    scores = np.random.default_rng(0).random(len(pile.s)).astype(np.float32)
    with open_session(pile.cache, Labels.of(pile.s), folder=tmp_path / "session", twins=None) as session:
        best = np.flatnonzero(session.unknown)[np.argsort(-scores[session.unknown])]
        turned = clusters_in_turn(RankingResult(scores, None, 0.0), session, pile.cache, pile.graph)
    order = best[np.argsort(-turned[best], kind="stable")]
    assert {*order[:30]} == {*best[:30]}
    assert order[0] == best[0]
    assert order[30:].tolist() == best[30:].tolist()
    assert order[:30].tolist() != best[:30].tolist()


def test_rounds_end_where_a_share_is_found(pile):
    facts = rounds(pile, Until(looks=1, recall=0.5, most=10_000))
    assert len(facts["found_at"]) >= 0.5 * pile.hidden
    assert facts["looks"] == 100 * facts["fits"]


def test_a_run_goes_on_where_the_last_one_ended(pile, tmp_path, monkeypatch):
    measured = []

    def measure(pile, arm, end, **options):
        measured.append((arm, end.recall))
        return {"found_at": [1], "looks": 5, "fits": 1, "cpu_seconds": 0.0, "audits": 0, "recall": end.recall}

    monkeypatch.setattr(review, "measure", measure)
    monkeypatch.setattr(review.Piles, "__getitem__", lambda self, setting: pile)
    options = {"classes": ["cat"], "shares": [0.01], "seeds": 1, "fashion": None, "minutes": 9, "asreview_python": None}
    groups = Namespace(prefix="")
    for recall in (0.8, 0.8, 0.95):
        arguments = Namespace(arms=["every 10", "every 25"], recall=recall, **options)
        rows = review.run(groups, arguments, tmp_path)
    assert measured == [("every 10", 0.8), ("every 25", 0.8), ("every 10", 0.95)]
    assert len(rows) == 2


def test_asreview_is_called_with_the_best_c(pile, tmp_path, monkeypatch):
    calls = []

    def run(command, check):
        calls.append(command[4:])
        found = 9 if "0.67" in command else 3
        Path(command[3]).write_text(f'{{"found_at": {list(range(1, found + 1))}}}')

    monkeypatch.setattr(review.subprocess, "run", run)
    facts = review.asreview(pile, Path("python"), seed=1, tuned=True)
    assert len(calls) == len(review.PENALTIES) + 1
    assert calls[-1] == ["--looks", "500", "--seed", "1", "--c", "0.67"]
    assert facts["C"] == "0.67"


@pytest.mark.skipif(importlib.util.find_spec("asreview") is None, reason="ASReview is not installed")
def test_asreview_finds_positives(pile):
    from benchmarks.quality.review_asreview import found_at

    looks = found_at(pile.cache.X.astype(np.float32), pile.s, pile.y.astype(int), looks=60, c=None, step=1, seed=0)
    assert len(looks) > 20


# --- the page -----------------------------------------------------------------------------------------


def row(arm, found_at, *, looks=500, hidden=10, share=0.01, task="cat", **more):
    facts = {"group": "cifar classes", "task": task, "share": share, "labelled": 20, "seed": 0, "arm": arm}
    counts = {"looks": looks, "hidden": hidden, "rows": 1000, "fits": 50, "cpu_seconds": 3.0, "audits": 4}
    return facts | counts | {"found_at": found_at, "commit": "abc"} | more


def test_figures_of_a_review():
    review = row("growing", [1, 2, 3, 60, 70, 80, 90, 400])
    assert review_page.positives_after(60)(review) == 4
    assert review_page.looks_until(0.8)(review) == 400
    assert math.isnan(review_page.looks_until(0.95)(review))
    assert math.isnan(review_page.positives_after(500)(row("growing", [1], looks=100)))
    assert review_page.positives_after(500)(row("growing", [1], looks=100, hidden=1)) == 1  # all are found


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
    page = review_page.report(rows, arms="Arms.", ranker="Ranker.")
    assert "| cifar classes | 1% | looks until 80% | at most 0.9 of the looks by rounds | 8 | 16 | yes | 1/1 |" in page
    assert "more than by ASReview | 10 | 10 | **no** | 0/1 |" in page
    assert "ASReview 3.0.8." in page
