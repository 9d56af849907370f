import shutil
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace

import pytest
from faults.filling import can_mount, disk
from fuzz.damage import accepted, damaged, fuzzed
from helpers.refusals import one_line

from pucache.errors import SessionError
from pucache.reviewing.log import Choice, DecisionLog, Entry, EpochFacts, LoggedImage, Stream
from pucache.reviewing.log_file import is_unwritten

FACTS = EpochFacts("pile.h5", ("ab", "cd"), 60, (50, 7), "0123", 0.999, "equal bytes")
IMAGES = [LoggedImage("a.png", bytes(range(32)), 1, 0), LoggedImage("b\n é.png", bytes(32))]
DRAW = Entry(serial=1, row=7, group=7, copies=1, stream=Stream.AUDIT, unknown=57, positives=0, time=1.5, urn=1)
DECISION = replace(DRAW, serial=2, request="one", choice=Choice.POSITIVE, model_version=3, reviewer="me")


def record(entry, **changes):
    entry = replace(entry, **changes)
    return replace(entry, key=f"{entry.row:03}.png", digest=bytes([entry.row % 256] * 32))


def decisions(first, count):
    numbers = range(first, first + count)
    return [record(DECISION, serial=number, request=f"r{number}", row=number, group=number) for number in numbers]


@pytest.fixture
def log(tmp_path):
    log = DecisionLog.create(tmp_path / "log.sqlite", FACTS, IMAGES)
    yield log
    log.close()


def changed_by_hand(log, script):
    """Close a log and change its file as no review would."""
    log.close()
    with closing(sqlite3.connect(log.path)) as other:
        other.executescript(script)


def error_of(path, **options):
    """The line by which a file is refused."""
    text = one_line(SessionError, lambda: DecisionLog.open(path, **options).entries())
    assert str(path.name) in text
    return text


def test_what_is_written_is_read_again_in_its_epoch(log):
    written = [record(DRAW), record(DECISION, restores=1)]
    log.append(written)
    log.begin_epoch(replace(FACTS, urns=(3,)), IMAGES[:1])
    log.append([record(DECISION, serial=3, request="two")])
    log.close()
    with closing(DecisionLog.open(log.path)) as again:
        assert again.facts() == replace(FACTS, urns=(3,)) and again.last == 3 and again.epoch == 2
        assert again.images() == [*(image._replace(epoch=1) for image in IMAGES), IMAGES[0]._replace(epoch=2)]
        assert again.entries()[:2] == written and [entry.epoch for entry in again.entries()] == [1, 1, 2]


def test_nothing_that_was_written_can_be_changed(log):
    log.ask("{}")
    log.append([record(DRAW), record(DECISION)])
    for table in ("format", "epochs", "images", "entries", "queries"):
        for change in (f"UPDATE {table} SET rowid = rowid", f"DELETE FROM {table}"):
            with (
                closing(sqlite3.connect(log.path)) as other,
                pytest.raises(sqlite3.IntegrityError, match="append-only"),
            ):
                other.execute(change)
    assert len(log.entries()) == 2


def test_entries_of_one_call_are_written_together_or_not_at_all(log):
    repeated = [record(DRAW), record(DECISION), record(replace(DECISION, serial=3))]
    with pytest.raises(SessionError, match="cannot write"):
        log.append(repeated)
    assert log.entries() == [] and log.last == 0
    log.append(repeated[:2])
    assert len(log.entries()) == 2


def test_a_log_is_read_where_nothing_can_be_written(log, tmp_path):
    if not can_mount(tmp_path):
        pytest.skip("mounting is not permitted")
    log.append([record(DRAW)])
    log.close()
    assert not log.path.with_name("log.sqlite-wal").exists(), "a log that was closed is one file"
    with disk(tmp_path / "disk") as medium:
        shutil.copy(log.path, medium.folder)
        subprocess.run(["mount", "-o", "remount,ro", medium.folder], check=True)
        with closing(DecisionLog.open(medium.folder / "log.sqlite", read_only=True)) as reader:
            assert reader.entries() == [record(DRAW)]
        with pytest.raises(SessionError, match="make its folder writable"):
            DecisionLog.open(medium.folder / "log.sqlite")


@pytest.mark.parametrize("remains", ["moved", "deleted", "replaced"])
def test_a_log_that_is_gone_from_its_path_takes_nothing_more(log, tmp_path, remains):
    log.append([record(DRAW)])
    shutil.move(log.path, tmp_path / "elsewhere.sqlite")
    if remains == "deleted":
        (tmp_path / "elsewhere.sqlite").unlink()
    if remains == "replaced":
        log.path.write_bytes(b"another file")
    for write in (lambda: log.append([record(DECISION)]), lambda: log.begin_epoch(FACTS)):
        assert "log.sqlite was moved, deleted or replaced" in one_line(SessionError, write)
        assert log.last == 1 and log.epoch == 1
    if remains == "moved":
        shutil.move(tmp_path / "elsewhere.sqlite", log.path)
        log.append([record(DECISION)])
        assert len(log.entries()) == 2


# --- files that are no log ------------------------------------------------------------------------


def test_files_that_are_no_log_are_refused_by_name(log, tmp_path):
    text, other = tmp_path / "text.sqlite", tmp_path / "other.sqlite"
    text.write_text("no database at all " * 100)
    with closing(sqlite3.connect(other)) as library:
        library.executescript("CREATE TABLE format (name, version); INSERT INTO format VALUES ('photo library', 1)")
    content = other.read_bytes()
    for read_only in (False, True):
        assert "is damaged" in error_of(text, read_only=read_only)
        assert "is not the log of a review session" in error_of(other, read_only=read_only)
    assert not is_unwritten(other) and other.read_bytes() == content, "a file that is not ours stays as it is"
    changed_by_hand(log, "DROP TRIGGER format_no_update; UPDATE format SET version = 5")
    assert "has version 5 of the log" in error_of(log.path)
    changed_by_hand(log, "UPDATE format SET version = 0")
    assert "is damaged (version 0" in error_of(log.path)


@pytest.mark.parametrize(
    ("script", "missing"),
    [
        ("DROP TRIGGER entries_no_delete; DELETE FROM entries WHERE serial = 3", "entry 3"),
        ("DROP TRIGGER epochs_no_update; UPDATE epochs SET number = 3", "an epoch"),
    ],
)
def test_a_log_without_one_of_its_entries_or_epochs_is_damaged(log, script, missing):
    log.append([record(DRAW), *decisions(2, 3)])
    changed_by_hand(log, script)
    assert f"{missing} is missing" in error_of(log.path)


@fuzzed(100)
def test_a_damaged_log_gives_one_line_or_what_was_written(log, tmp_path, drawn):
    if not log.last:
        log.append(decisions(1, 40))
        log.close()
    path = tmp_path / "damaged.sqlite"
    for old in tmp_path.glob("damaged.sqlite-*"):
        old.unlink()
    path.write_bytes(drawn.draw(damaged({"log": log.path.read_bytes()}))[1])

    def read():
        with DecisionLog.open(path) as again:
            return again.facts() and again.images() and again.entries()

    entries = accepted(SessionError, read)
    assert entries is None or [entry.choice for entry in entries] == [Choice.POSITIVE] * 40


# --- a file that cannot grow --------------------------------------------------------------------------


def test_where_files_cannot_grow_nothing_is_acknowledged_that_is_not_written(log, small_disk):
    acknowledged = 0

    def fill():
        nonlocal acknowledged
        while acknowledged < 20_000:
            log.append(decisions(acknowledged + 1, 5))
            acknowledged += 5

    with small_disk(300_000):
        assert "cannot write" in one_line(SessionError, fill)
    assert len(log.entries()) == acknowledged
    log.append(decisions(acknowledged + 1, 5))
    log.close()
    with closing(DecisionLog.open(log.path)) as again:
        assert len(again.entries()) == acknowledged + 5
