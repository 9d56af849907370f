"""The trainer: real child processes, and what happens when either end is killed."""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.hangs import HANG_SECONDS, eventually
from helpers.planted import planted, write_cache
from helpers.reviews import ReviewProcess, pictured_pile, served

from pucache.reviewing.trainer import RANKING, Trainer, keep_ranking, kept_ranking
from pucache.training.ranking_result import RankingResult


class Listener:
    """Keeps what a trainer says, and waits for it."""

    def __init__(self):
        self.rankings, self._changed = [], threading.Condition()

    def on_ranking(self, result, serial):
        with self._changed:
            self.rankings.append((serial, result))
            self._changed.notify_all()

    def wait_for(self, serial):
        """The last ranking by these labels, once there is one by a head."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: any(result.posterior is not None for at, result in self.rankings if at == serial), HANG_SECONDS
            ), self.serials
        return [result.scores for at, result in self.rankings if at == serial][-1]

    @property
    def serials(self):
        return [serial for serial, _ in self.rankings]


def has_ended(process_id):
    """Whether a process is gone, or a zombie that whoever took it over has not fetched yet."""
    status = Path(f"/proc/{process_id}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.fixture(scope="module")
def pile(tmp_path_factory):
    X, s, y = planted(n=300, labelled=20)
    cache = write_cache(tmp_path_factory.mktemp("trainer") / "cache.h5", X)
    return [file.path for file in cache.files], s, y


@pytest.fixture(scope="module")
def child(pile):
    """A child process that serves four sessions: its trainer, what it says of each and in which order, its errors."""
    listeners, came, errors = [Listener() for _ in range(4)], [], []

    def taker(number):
        def take(result, serial):
            came.append((number, serial))
            listeners[number].on_ranking(result, serial)

        return take

    with Trainer(pile[0], list(map(taker, range(4))), errors.append, groups=np.arange(300) // 2) as trainer:
        yield trainer, listeners, came, errors
        last = trainer.process_id
        trainer.close()
        assert has_ended(last)
        trainer.submit(1000, pile[1], np.zeros_like(pile[1]))


def reviewed_rows(s, y, count):
    reviewed = np.zeros(len(s), np.int8)
    rows = np.flatnonzero(s == 0)[:count]
    reviewed[rows] = np.where(y[rows], 1, -1)
    return reviewed


def test_one_child_ranks_for_sessions_that_label_opposite_classes_at_first_by_similarity(pile, child):
    _, s, y = pile
    trainer, listeners, *_ = child
    assert not trainer.busy(0)
    trainer.submit(7, s, np.zeros_like(s), 0)
    trainer.submit(7, (y == 0).astype(np.int8), np.zeros_like(s), 1)
    assert trainer.busy(0)
    differences = []
    for listener in listeners[:2]:
        scores = listener.wait_for(7)
        differences.append(scores[(y == 1) & (s == 0)].mean() - scores[y == 0].mean())
        assert set(listener.serials) == {7}
    assert differences[0] > 0 > differences[1] and listeners[0].rankings[0][1].posterior is None
    eventually(lambda: not trainer.busy(0))


def test_the_newest_labels_win_and_a_changed_decision_retrains(pile, child):
    _, s, y = pile
    trainer, listener = child[0], child[1][2]
    for serial in range(1, 200):
        trainer.submit(serial, s, reviewed_rows(s, y, serial % 50), 2)
    first = listener.wait_for(199)
    assert listener.serials == sorted(listener.serials) and len(set(listener.serials)) < 50
    trainer.submit(200, s, -reviewed_rows(s, y, 199 % 50), 2)  # as many labels as before
    assert not np.array_equal(first, listener.wait_for(200))


def test_a_killed_child_is_started_again_with_the_newest_labels_of_the_open_session_first(pile, child):
    _, s, y = pile
    trainer, listeners, came, errors = child
    trainer.submit(1, s, np.zeros_like(s), 3)
    listeners[3].wait_for(1)
    before = trainer.process_id
    assert not errors
    trainer.prefer(3)
    os.kill(before, signal.SIGKILL)
    for session in (1, 2, 3):
        trainer.submit(300, s, reviewed_rows(s, y, 2), session)
    for listener in listeners[1:]:
        listener.wait_for(300)
    assert has_ended(before) and trainer.process_id != before and came.index((3, 300)) < came.index((2, 300))
    assert listeners[3].serials == sorted(listeners[3].serials)
    (error,) = errors
    assert "signal 9" in error and "\n" not in error


@pytest.mark.slow
def test_the_child_ends_when_the_server_is_killed(tmp_path):
    pictured_pile(tmp_path)
    with ReviewProcess(tmp_path, "--positives", "found.txt", "--port", "0") as review:
        tasks = Path(f"/proc/{review.process.pid}/task")
        eventually(lambda: any(path.read_text() for path in tasks.glob("*/children")))
        children = " ".join(path.read_text() for path in tasks.glob("*/children")).split()
        review.process.kill()
        eventually(lambda: all(map(has_ended, children)))


# --- the last ranking, kept in the folder of a session ---------------------------------------------


def test_a_ranking_is_kept_for_its_cache_and_a_damaged_one_left_aside(tmp_path):
    draw, scores = np.random.default_rng(0), np.arange(20, dtype=np.float32)
    assert kept_ranking(tmp_path, "id", 20) is None
    for posterior in (None, scores / 20):
        keep_ranking(tmp_path, "id", RankingResult(scores, posterior, 1.0), 7)
        assert kept_ranking(tmp_path, "other", 20) is None and kept_ranking(tmp_path, "id", 21) is None
        again, serial = kept_ranking(tmp_path, "id", 20)
        assert serial == 7 and np.array_equal(again.scores, scores)
        assert again.posterior is None if posterior is None else np.array_equal(again.posterior, posterior)
    whole = (tmp_path / RANKING).read_bytes()
    for _ in range(300):
        data = bytearray(whole[: draw.integers(len(whole))] if draw.random() < 0.3 else whole)
        for position in draw.integers(max(len(data), 1), size=3) if data else ():
            data[position] = draw.integers(256)
        (tmp_path / RANKING).write_bytes(bytes(data))
        kept = kept_ranking(tmp_path, "id", 20)
        assert kept is None or kept[0].scores.shape == (20,)


def test_a_server_that_starts_again_ranks_at_once(tmp_path):
    cache = pictured_pile(tmp_path)
    scores = np.arange(60, dtype=np.float32)
    for start in range(2):
        with served(cache, tmp_path / "session", tmp_path / "found.txt", audit_share=0.0) as (opened, server):
            if not start:
                opened.service.take_ranking(RankingResult(scores, None, 0.1), 0)
            assert [card["row"] for card in server.client().next(2)] == [59, 58]
