"""A session whose log was lost, emptied, cut or put back from another time: it is refused, and nothing is written."""

import os
import random
import shutil
import signal
import sqlite3
import traceback
from contextlib import closing

import numpy as np
import pytest
from helpers.refusals import one_line
from helpers.sessions import decide, labels_of, pile_of

from pucache import audit
from pucache.errors import SessionError
from pucache.reviewing.log import Choice, Stream
from pucache.reviewing.session import open_session, read_session

N = 120


@pytest.fixture
def cache(tmp_path):
    return pile_of(tmp_path, N, twins=[(1, 3), (10, 11)])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "pile.h5.review"


def review_some(cache, first, last, *, kill=False):
    """Decide rows in a process of its own, which may kill itself while the session is open."""
    child = os.fork()
    if not child:
        try:
            with open_session(cache, labels_of(N)) as session:
                for row in range(first, last):
                    decide(session, row, Choice.POSITIVE if row % 3 else Choice.NEGATIVE)
                if kill:
                    os.kill(os.getpid(), signal.SIGKILL)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == (signal.SIGKILL if kill else 0)


def content(folder):
    """What the files of a folder hold; empty ones and the shared memory of SQLite hold nothing."""
    files = (path for path in folder.iterdir() if path.is_file() and not path.name.endswith("-shm"))
    return {path.name: path.read_bytes() for path in files if path.stat().st_size}


def refusal(cache, folder):
    """The one line by which each way to open a session refuses it; nothing in its folder changes."""
    before, ways = content(folder), (lambda: open_session(cache), lambda: read_session(cache), lambda: audit(folder))
    (line,) = {one_line(SessionError, way) for way in ways}
    assert content(folder) == before and "decisions.sqlite" in line
    return line


def decided(cache):
    with open_session(cache) as session:
        return len(session.entries())


# --- the log is gone -----------------------------------------------------------------------------


def without_tables(log):
    log.unlink()
    with closing(sqlite3.connect(log)) as database:
        database.execute("PRAGMA user_version = 1")


def never_written(log):
    log.unlink()
    sqlite3.connect(log).execute("PRAGMA journal_mode = WAL").connection.close()


def link_to_nothing(log):
    log.unlink()
    log.symlink_to("/no/such/disk/decisions.sqlite")


def emptied(log):
    log.write_bytes(b"")


LOSSES = {"missing": os.unlink, "empty": emptied, "without tables": without_tables}
LOSSES |= {"before its first transaction": never_written, "link": link_to_nothing}
BESIDE = "reviewed.csv acknowledged.txt ranking.npz pile-0123456789abcdef.npz server.json decisions.sqlite-wal".split()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_log_is_no_first_start_where_anything_of_its_session_is_left(cache, folder, loss):
    open_session(cache, labels_of(N)).close()
    for path in folder.iterdir():
        if path.name != "decisions.sqlite":
            path.unlink()
    LOSSES[loss](folder / "decisions.sqlite")
    for beside in BESIDE[: -1 if loss == "link" else None]:  # the WAL of a link lies where the link leads
        (folder / beside).write_bytes(b"anything")
        line = refusal(cache, folder)
        assert "are lost" in line and "decisions.sqlite-wal" in line and "--session" in line and beside in line
        (folder / beside).unlink()
    if loss != "link":  # nothing of a session is left
        (folder / "notes.txt").write_text("mine")
        (folder / ".lock").touch()
        assert decided(cache) == 0 and (folder / "notes.txt").read_text() == "mine"


def test_a_folder_of_concepts_is_not_taken_for_a_review_whose_log_is_lost(cache, folder):
    open_session(cache, labels_of(N), folder=folder / "deer").close()
    (folder / "server.json").write_text("{}")
    with pytest.raises(SessionError, match=r"holds the sessions of 1 concepts \(deer\); pass their labels"):
        open_session(cache)


def test_a_first_start_that_is_killed_begins_again(cache, folder):
    draw = random.Random(0)
    for _ in range(8):
        child = os.fork()
        if not child:
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.02 * draw.random())
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            open_session(cache, labels_of(N)).close()
            os._exit(0)
        os.waitpid(child, 0)
        draw.random()
        with open_session(cache, labels_of(N)) as session:
            assert not session.entries()
        shutil.rmtree(folder)


# --- the log holds less than it did --------------------------------------------------------------


@pytest.mark.parametrize(("count", "kill"), [(60, False), (2, True)])
def test_a_log_that_is_damaged_is_refused_and_its_wal_stays(cache, folder, count, kill):
    review_some(cache, 20, 20 + count, kill=kill)
    log = folder / "decisions.sqlite"
    whole = log.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(b"CREATE TRIGGER")] ^= 128  # what SQLite says of it is no text
    far = () if kill else (8192, len(whole) // 2, len(whole) - 4096, len(whole) - 1)  # else the WAL may mend it
    for damaged in (flipped, *(whole[:size] for size in (1, 100, 4096, 5000, 8191, *far))):
        log.write_bytes(damaged)
        assert "restore decisions.sqlite" in refusal(cache, folder)
    log.write_bytes(whole)
    assert decided(cache) == count


@pytest.mark.parametrize("is_noted", [True, False])
def test_what_opens_after_a_kill_holds_all_that_its_files_hold(cache, folder, is_noted):
    """All pairs of a log and a WAL of one review, also a WAL that is missing, empty or cut.

    What was acknowledged is noted since 0.4.
    """
    logs, wals = [], [(0, None), (0, b"")]  # entries that each holds whatever stands beside it, and its bytes
    for number, (first, last) in enumerate([(20, 22), (22, 56), (56, 60), (60, 100)]):
        review_some(cache, first, last, kill=True)
        logs.append((0, (folder / "decisions.sqlite").read_bytes()))
        wals.append((last - 20, (folder / "decisions.sqlite-wal").read_bytes()))
        if number % 2:
            assert decided(cache) == last - 20  # which puts the WAL into the log
            logs.append((last - 20, (folder / "decisions.sqlite").read_bytes()))
    wals.append((0, wals[-1][1][: len(wals[-1][1]) // 2]))
    if not is_noted:
        (folder / "acknowledged.txt").unlink()
    opened = 0
    for of_log, log in logs:
        for of_wal, wal in wals:
            for path in folder.glob("decisions.sqlite*"):
                path.unlink()
            (folder / "decisions.sqlite").write_bytes(log)
            if wal is not None:
                (folder / "decisions.sqlite-wal").write_bytes(wal)
            try:
                with read_session(cache) as session:
                    count = len(session.entries())
            except SessionError as error:
                assert "\n" not in str(error) and "decisions.sqlite-shm" in str(error)
                continue
            opened += 1
            assert count >= max(of_wal, of_log, 80 * is_noted), (of_log, of_wal)
    assert opened


def test_the_log_of_another_review_of_the_same_cache_is_refused(cache, folder, tmp_path):
    with open_session(cache, labels_of(N), folder=tmp_path / "another") as session:
        for row in range(20, 90):
            decide(session, row)
    review_some(cache, 20, 40)
    shutil.copy(tmp_path / "another/decisions.sqlite", folder)
    assert "holds the entries of another review" in refusal(cache, folder)


def test_a_log_of_before_notes_its_last_entry_from_now_on(cache, folder):
    review_some(cache, 20, 56)
    (folder / "acknowledged.txt").unlink()
    assert decided(cache) == 36 and (folder / "acknowledged.txt").read_text().startswith("36 ")


# --- copies --------------------------------------------------------------------------------------


def test_a_folder_copied_in_the_order_of_names_while_it_is_written_opens_whole(cache, folder, tmp_path):
    rng = np.random.default_rng(0)
    with open_session(cache, labels_of(N)) as session:
        for number, row in enumerate(range(20, 60)):
            session.draw(rng, Stream.AUDIT, 1)
            copy = tmp_path / f"copy{number}"
            copy.mkdir()
            for path in sorted(folder.iterdir()):
                shutil.copy(path, copy)
                if path.name == "acknowledged.txt":
                    decide(session, row)
            with read_session(cache, copy) as reader:
                assert len(reader.entries()) == len(session.entries())


def test_a_log_behind_a_link_is_checked_where_it_lies(cache, folder, tmp_path):
    review_some(cache, 20, 30)
    early = (folder / "decisions.sqlite").read_bytes()
    shutil.move(folder / "decisions.sqlite", tmp_path / "real.sqlite")
    (folder / "decisions.sqlite").symlink_to(tmp_path / "real.sqlite")
    review_some(cache, 30, 50, kill=True)
    assert (tmp_path / "real.sqlite-wal").stat().st_size
    aside = (tmp_path / "real.sqlite-wal").rename(tmp_path / "aside")
    with pytest.raises(SessionError, match=r"holds 10 entries; acknowledged\.txt says that 30 were"):
        open_session(cache)
    aside.rename(tmp_path / "real.sqlite-wal")
    assert decided(cache) == 30
    (tmp_path / "real.sqlite").write_bytes(early)
    with pytest.raises(SessionError, match="holds 10 entries"):
        open_session(cache)
