"""The trainer: real child processes, and what happens when either end is killed."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.hangs import HANG_SECONDS, eventually
from helpers.planted import planted, write_cache
from helpers.reviews import pictured_pile, served

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
        """Until there is a ranking by a head."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: any(result.posterior is not None for at, result in self.rankings if at == serial), HANG_SECONDS
            ), self.serials

    @property
    def serials(self):
        return [serial for serial, _ in self.rankings]


def is_gone(process_id):
    """Neither running nor a zombie."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture(scope="module")
def pile(tmp_path_factory):
    X, s, y = planted(n=300, labelled=20)
    cache = write_cache(tmp_path_factory.mktemp("trainer") / "cache.h5", X)
    return cache, s, y


SESSIONS = ("begin", "newest", "changed", "one class", "the other class", "killed")


@pytest.fixture(scope="module")
def one_child(pile):
    """One child process for several tests, each of which has sessions of its own."""
    cache, _, _ = pile
    listeners = {name: Listener() for name in SESSIONS}
    takers, errors = [listener.on_ranking for listener in listeners.values()], []
    groups = np.arange(len(cache)) // 2
    with Trainer([file.path for file in cache.files], takers, errors.append, groups=groups) as trainer:
        yield trainer, listeners, errors


@pytest.fixture
def session(one_child):
    """The trainer, and the number and the listener of a session."""
    trainer, listeners, _ = one_child
    return lambda name: (trainer, SESSIONS.index(name), listeners[name])


def reviewed_rows(s, y, count):
    reviewed = np.zeros(len(s), np.int8)
    rows = np.flatnonzero(s == 0)[:count]
    reviewed[rows] = np.where(y[rows], 1, -1)
    return reviewed


def test_rankings_begin_with_similarity(pile, session):
    trainer, number, listener = session("begin")
    _, s, y = pile
    assert not trainer.busy(number)
    trainer.submit(7, s, np.zeros_like(s), number)
    assert trainer.busy(number)
    listener.wait_for(7)
    eventually(lambda: not trainer.busy(number))
    assert set(listener.serials) == {7} and listener.rankings[0][1].posterior is None
    scores = listener.rankings[-1][1].scores
    assert scores[(y == 1) & (s == 0)].mean() > scores[y == 0].mean()


def test_the_newest_labels_win(pile, session):
    trainer, number, listener = session("newest")
    _, s, y = pile
    for serial in range(1, 200):
        trainer.submit(serial, s, reviewed_rows(s, y, serial % 50), number)
    listener.wait_for(199)
    assert listener.serials == sorted(listener.serials) and len(set(listener.serials)) < 50


def test_a_changed_decision_retrains(pile, session):
    """The number of labels stays the same."""
    trainer, number, listener = session("changed")
    _, s, y = pile
    reviewed = reviewed_rows(s, y, 40)
    trainer.submit(1, s, reviewed, number)
    listener.wait_for(1)
    trainer.submit(2, s, -reviewed, number)
    listener.wait_for(2)
    first, second = (next(r for at, r in listener.rankings[::-1] if at == serial) for serial in (1, 2))
    assert not np.array_equal(first.scores, second.scores)


def test_one_child_trains_for_sessions_that_label_opposite_classes(pile, session):
    _, s, y = pile
    (trainer, first, _), (_, second, _) = both = [session("one class"), session("the other class")]
    trainer.submit(3, s, np.zeros_like(s), first)
    trainer.submit(3, (y == 0).astype(np.int8), np.zeros_like(s), second)
    differences = []
    for _, _, listener in both:
        listener.wait_for(3)
        scores = listener.rankings[-1][1].scores
        differences.append(scores[(y == 1) & (s == 0)].mean() - scores[y == 0].mean())
    assert differences[0] > 0 > differences[1]


def test_a_killed_child_is_started_again_with_the_newest_labels(pile, session, one_child):
    trainer, number, listener = session("killed")
    (_, s, y), errors = pile, one_child[2]
    trainer.submit(1, s, np.zeros_like(s), number)
    listener.wait_for(1)
    before = trainer.process_id
    assert not errors
    trainer.prefer(number)
    os.kill(before, signal.SIGKILL)
    trainer.submit(2, s, reviewed_rows(s, y, 2), number)
    listener.wait_for(2)
    assert is_gone(before) and trainer.process_id != before and listener.serials == sorted(listener.serials)
    (error,) = errors
    assert "signal 9" in error and "\n" not in error


def test_the_open_session_is_trained_first_and_close_ends_the_child(pile):
    """The child was not ready when the session was opened."""
    cache, s, _ = pile
    came = []
    takers = [lambda result, serial, number=number: came.append(number) for number in range(3)]
    with Trainer([file.path for file in cache.files], takers) as trainer:
        trainer.prefer(2)
        for session in range(3):
            trainer.submit(0, s, np.zeros_like(s), session=session)
        eventually(lambda: not any(map(trainer.busy, range(3))))
        assert came.index(2) < came.index(1)
        child = trainer.process_id
        trainer.submit(1, s, np.zeros_like(s))
        trainer.close()
        assert is_gone(child)
        trainer.submit(2, s, np.zeros_like(s))


@pytest.mark.slow
def test_the_child_ends_when_the_parent_is_killed(pile, tmp_path):
    cache, s, _ = pile
    np.save(tmp_path / "s.npy", s)
    script = f"""
        import time
        import numpy as np
        from pucache.reviewing.trainer import Trainer
        ready = lambda result, serial: print(trainer.process_id, flush=True)
        trainer = Trainer([{str(cache.files[0].path)!r}], [ready])
        s = np.load({str(tmp_path / "s.npy")!r})
        trainer.submit(1, s, np.zeros_like(s))
        time.sleep(1000)
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    eventually(lambda: is_gone(child) or _is_zombie(child))


def _is_zombie(process_id):
    """Ended, and not yet fetched by the process that took it over."""
    status = Path(f"/proc/{process_id}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"


# --- the last ranking, kept in the folder of a session ---------------------------------------------


def ranking(n=20, *, posterior=True):
    scores = np.random.default_rng(0).normal(size=n).astype(np.float32)
    return RankingResult(scores, np.full(n, 0.25, np.float32) if posterior else None, 1.0)


@pytest.mark.parametrize("posterior", [True, False])
def test_a_ranking_is_kept_for_its_cache(tmp_path, posterior):
    result = ranking(posterior=posterior)
    assert kept_ranking(tmp_path, "id", 20) is None
    keep_ranking(tmp_path, "id", result, 7)
    assert kept_ranking(tmp_path, "other", 20) is None and kept_ranking(tmp_path, "id", 21) is None
    again, serial = kept_ranking(tmp_path, "id", 20)
    assert serial == 7 and np.array_equal(again.scores, result.scores)
    assert np.array_equal(again.posterior, result.posterior) if posterior else again.posterior is None


def test_a_damaged_ranking_is_left_aside(tmp_path):
    keep_ranking(tmp_path, "id", ranking(), 7)
    whole, draw = (tmp_path / RANKING).read_bytes(), np.random.default_rng(0)
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
    for _ in range(2):
        with served(cache, tmp_path / "session", tmp_path / "found.txt", audit_share=0.0) as (opened, server):
            if not (tmp_path / "session" / RANKING).exists():
                opened.service.take_ranking(RankingResult(scores, None, 0.1), 0)
            client = server.client()
            assert [card["row"] for card in client.next(2)] == [59, 58]
            client.close()
