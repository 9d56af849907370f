import random
import shutil
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace

import pytest
from faults.filling import can_mount, disk

from pucache.errors import SessionError
from pucache.reviewing.log import Choice, DecisionLog, Entry, EpochFacts, LoggedImage, Stream
from pucache.reviewing.log_file import is_unwritten

FACTS = EpochFacts("pile.h5", ("ab", "cd"), 60, (50, 7), "0123", 0.999, "equal bytes")
IMAGES = [LoggedImage("a.png", bytes(range(32)), 1, 0), LoggedImage("b\n é.png", bytes(32))]
DRAW = Entry(serial=1, row=7, group=7, copies=1, stream=Stream.AUDIT, unknown=57, positives=0, time=1.5, urn=1)
DECISION = replace(DRAW, serial=2, request="one", choice=Choice.POSITIVE, model_version=3, reviewer="me")


def record(entry, **changes):
    return replace(entry, key=f"{entry.row:03}.png", digest=bytes([entry.row % 256] * 32), **changes)


def decisions(first, count, **changes):
    return [
        record(replace(DECISION, serial=serial, request=f"r{serial}", row=serial, group=serial, **changes))
        for serial in range(first, first + count)
    ]


@pytest.fixture
def log(tmp_path):
    log = DecisionLog.create(tmp_path / "log.sqlite", FACTS, IMAGES)
    yield log
    log.close()


def reopened(log):
    log.close()
    return DecisionLog.open(log.path)


def test_what_is_written_is_read_again_in_its_epoch(log):
    written = [record(DRAW), record(DECISION, restores=1)]
    log.append(written)
    log.begin_epoch(replace(FACTS, urns=(3,)), IMAGES[:1])
    log.append([record(DECISION, serial=3, request="two")])
    again = reopened(log)
    assert again.facts() == replace(FACTS, urns=(3,)) and again.last == 3 and again.epoch == 2
    assert again.images() == [*(image._replace(epoch=1) for image in IMAGES), IMAGES[0]._replace(epoch=2)]
    assert again.entries()[:2] == written and [entry.epoch for entry in again.entries()] == [1, 1, 2]
    again.close()


@pytest.mark.parametrize("table", ["format", "epochs", "images", "entries", "queries"])
@pytest.mark.parametrize("change", ["UPDATE {} SET rowid = rowid", "DELETE FROM {}"])
def test_nothing_that_was_written_can_be_changed(log, table, change):
    log.ask("{}")
    log.append([record(DRAW), record(DECISION)])
    with sqlite3.connect(log.path) as other, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        other.execute(change.format(table))
    other.close()
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
        reader = DecisionLog.open(medium.folder / "log.sqlite", read_only=True)
        assert reader.entries() == [record(DRAW)]
        reader.close()
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
        with pytest.raises(SessionError, match=r"log\.sqlite was moved, deleted or replaced") as caught:
            write()
        assert "\n" not in str(caught.value) and log.last == 1 and log.epoch == 1
    if remains == "moved":
        shutil.move(tmp_path / "elsewhere.sqlite", log.path)
        log.append([record(DECISION)])
        assert len(log.entries()) == 2


# --- files that are no log ------------------------------------------------------------------------


def error_of(path, **options):
    with pytest.raises(SessionError) as caught:
        DecisionLog.open(path, **options).entries()
    text = str(caught.value)
    assert str(path.name) in text and "\n" not in text
    return text


@pytest.mark.parametrize("read_only", [False, True])
def test_files_that_are_no_log_are_refused_by_name(tmp_path, read_only):
    assert "is missing" in error_of(tmp_path / "none.sqlite", read_only=read_only)
    (tmp_path / "text.sqlite").write_text("no database at all " * 100)
    assert "is damaged" in error_of(tmp_path / "text.sqlite", read_only=read_only)
    with sqlite3.connect(tmp_path / "other.sqlite") as other:
        other.execute("CREATE TABLE format (name, version)")
        other.execute("INSERT INTO format VALUES ('photo library', 1)")
    other.close()
    content = (tmp_path / "other.sqlite").read_bytes()
    assert "is not the log of a review session" in error_of(tmp_path / "other.sqlite", read_only=read_only)
    assert not is_unwritten(tmp_path / "other.sqlite")
    assert (tmp_path / "other.sqlite").read_bytes() == content, "a file that is not ours stays as it is"


def test_a_log_of_another_version_says_so(log, tmp_path):
    log.close()
    with sqlite3.connect(log.path) as other:
        other.execute("DROP TRIGGER format_no_update")
        other.execute("UPDATE format SET version = 5")
    other.close()
    assert "has version 5 of the log" in error_of(log.path)


def test_a_log_of_version_3_is_read_and_takes_a_query(log):
    log.append([record(DRAW), record(DECISION)])
    log.close()
    with sqlite3.connect(log.path) as other:
        other.executescript("DROP TABLE queries; DROP TABLE readers; DROP TRIGGER format_no_update;")
        other.execute("UPDATE format SET version = 3")
    other.close()
    with closing(DecisionLog.open(log.path, read_only=True)) as reader:
        assert reader.asked() == "" and len(reader.entries()) == 2
    with closing(DecisionLog.open(log.path)) as writer:
        writer.ask('{"words": ["a dress"]}')
        writer.ask('{"words": ["a gown"]}')
        assert writer.asked() == '{"words": ["a gown"]}' and len(writer.entries()) == 2
    with closing(sqlite3.connect(log.path)) as other:
        assert other.execute("SELECT version FROM format").fetchall() == [(4,)]
        assert [after for (after,) in other.execute("SELECT after FROM queries")] == [2, 2]


def test_a_damaged_log_gives_one_line_or_what_was_written(log, tmp_path):
    log.append(decisions(1, 200))
    log.close()
    content, draw = log.path.read_bytes(), random.Random(0)
    for number in range(60):
        damaged = bytearray(content)
        if number % 3 == 0:
            del damaged[draw.randrange(len(damaged)) :]
        for _ in range(1 + 40 * (number % 2)):
            if damaged:
                damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        path = tmp_path / f"damaged{number}.sqlite"
        path.write_bytes(damaged)
        try:
            with closing(DecisionLog.open(path)) as again:
                assert len(again.entries()) <= 200
                again.facts(), again.images()
        except SessionError as error:
            assert path.name in str(error) and "\n" not in str(error)


def test_a_writer_killed_before_its_first_transaction_leaves_no_log(tmp_path):
    path = tmp_path / "log.sqlite"
    assert is_unwritten(path)
    path.write_bytes(b"")
    assert is_unwritten(path)
    sqlite3.connect(path).execute("PRAGMA journal_mode = WAL").connection.close()
    assert path.stat().st_size and is_unwritten(path)
    DecisionLog.create(path, FACTS).close()
    assert not is_unwritten(path)
    shutil.copy(path, tmp_path / "copy.sqlite")
    assert DecisionLog.open(tmp_path / "copy.sqlite").facts() == FACTS


# --- a file that cannot grow --------------------------------------------------------------------------


def fill(log):
    """Append until it fails; returns the number of entries that were acknowledged, and the error."""
    acknowledged = 0
    while acknowledged < 20_000:
        try:
            log.append(decisions(acknowledged + 1, 5))
        except SessionError as error:
            return acknowledged, str(error)
        acknowledged += 5
    raise AssertionError("never full")


def test_where_files_cannot_grow_nothing_is_acknowledged_that_is_not_written(tmp_path, small_disk):
    path = tmp_path / "log.sqlite"
    log = DecisionLog.create(path, FACTS, IMAGES)
    with small_disk(300_000):
        acknowledged, error = fill(log)
    assert "cannot write" in error and "\n" not in error
    assert len(log.entries()) == acknowledged
    log.append(decisions(acknowledged + 1, 5))
    again = reopened(log)
    assert len(again.entries()) == acknowledged + 5
    again.close()


def test_a_log_without_one_of_its_entries_is_damaged(log):
    log.append([record(DRAW), *decisions(2, 3)])
    log.close()
    with sqlite3.connect(log.path) as other:
        other.execute("DROP TRIGGER entries_no_delete")
        other.execute("DELETE FROM entries WHERE serial = 3")
    other.close()
    assert "entry 3 is missing" in error_of(log.path)
