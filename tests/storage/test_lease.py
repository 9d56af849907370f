"""One writer per URL: leases in memory, on a real S3 server, and between processes."""

import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from helpers.hangs import HANG_SECONDS
from hypothesis import given
from hypothesis import strategies as st

from pucache.errors import CacheLockedError, LeaseHeldError, LeaseLostError, OutputError
from pucache.storage import conditional, lease, retries
from pucache.storage.conditional import ObjectChangedError, conditional_object
from pucache.storage.filesystem import open_filesystem
from pucache.storage.lease import Lease, LeaseFormatError, LeaseText

WRITER = """
import sys
from pathlib import Path
from pucache.storage import lease
from pucache.storage.filesystem import open_filesystem
fs, path = open_filesystem(sys.argv[1])
try:
    with lease.Lease(fs, path, name=sys.argv[1], record=Path(sys.argv[2])):
        print("holds", flush=True)
        sys.stdin.read()
except lease.LeaseHeldError as error:
    print(error, flush=True)
"""
URL = "s3://bucket/made/c.h5"


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0, 0.0])


@pytest.fixture
def store(s3_server, monkeypatch):
    return s3_server.connect(monkeypatch)


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture(params=["memory://made/c.h5", URL])
def url(request, memory):
    if request.param == URL:
        request.getfixturevalue("store")
    return request.param


@pytest.fixture
def writer(tmp_path):
    """Make leases of writers, each of a machine of its own."""

    def make(url, machine="here"):
        fs, path = open_filesystem(url)
        return Lease(fs, path, name=url, record=tmp_path / f"{machine}.lease")

    return make


@pytest.fixture
def process(tmp_path):
    """Start processes that hold a lease until they are told to end; each prints one line."""
    started = []

    def start(url, machine):
        command = [sys.executable, "-c", WRITER, url, tmp_path / f"{machine}.lease"]
        running = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(running)
        return running

    yield start
    for running in started:
        running.communicate("")


def lease_object(url):
    fs, path = open_filesystem(url)
    folder, _, name = path.rpartition("/")
    return conditional_object(fs, f"{folder}/.{name}.lease")


def text_at(url):
    return LeaseText.parse(lease_object(url).read().data)


def put(url, data):
    stored = lease_object(url).read()
    lease_object(url).write(data, stored and stored.tag)


def someone(**changes):
    return replace(LeaseText.of_this_process(), host="gpu-7", pid=4242, since="2026-11-22T21:40:03Z", **changes)


# --- one writer at a time ------------------------------------------------------------------------


def test_a_second_writer_is_refused_in_one_line_and_may_write_afterwards(url, writer):
    with writer(url, "a"):
        held = text_at(url)
        for enter in (writer(url, "b").__enter__, writer(url, "b").refuse_if_held):
            with pytest.raises(LeaseHeldError) as refused:
                enter()
        assert text_at(url) == held
    assert isinstance(refused.value, CacheLockedError) and isinstance(refused.value, OutputError)
    began = held.since.replace("T", " ").replace("Z", " UTC")
    start, _, end = str(refused.value).partition("; its lease ends in ")
    assert start == f"{url} is being written by process {held.pid} on {held.host} since {began}"
    assert 0 < int(end.split()[0]) <= 120
    assert end.endswith("s unless it is renewed: wait for that process, or, if it is dead, run again then")
    assert lease_object(url).read() is None, "a lease is removed at the end"
    with writer(url, "b"):
        pass


def test_a_writer_that_fails_gives_its_lease_back(url, writer, tmp_path):
    with pytest.raises(RuntimeError), writer(url):
        raise RuntimeError
    assert lease_object(url).read() is None and list(tmp_path.glob("*.lease")) == []


def test_of_many_writers_that_begin_at_once_one_holds_the_lease(url, writer):
    ready, outcome = threading.Barrier(6), []

    def begin(machine):
        candidate = writer(url, machine)
        ready.wait()
        try:
            candidate.__enter__()
        except LeaseHeldError as error:
            outcome.append(str(error))
        else:
            outcome.append(candidate)

    threads = [threading.Thread(target=begin, args=(f"machine {number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (holder,) = [result for result in outcome if isinstance(result, Lease)]
    assert len(outcome) == 6
    holder.confirm()
    holder.__exit__()


def test_two_processes_are_kept_apart_and_a_killed_one_is_taken_over_after_its_lease_has_ended(store, process):
    first = process(URL, "a")
    assert first.stdout.readline() == "holds\n"
    refused = process(URL, "b").stdout.readline()
    assert f"{URL} is being written by process {first.pid} on " in refused
    first.kill()
    first.wait()
    put(URL, replace(text_at(URL), seconds=1).encode())  # as if 119 of its 120 seconds had passed
    deadline = time.monotonic() + HANG_SECONDS
    while (line := process(URL, "b").stdout.readline()) != "holds\n":
        assert "its lease ends in" in line and time.monotonic() < deadline


def test_the_same_machine_need_not_wait_for_the_lease_of_its_killed_process(store, process):
    first = process(URL, "a")
    assert first.stdout.readline() == "holds\n"
    first.kill()
    first.wait()
    assert text_at(URL).seconds == 120
    assert "its lease ends in" in process(URL, "b").stdout.readline()
    assert process(URL, "a").stdout.readline() == "holds\n"


# --- renewing, losing ----------------------------------------------------------------------------


def test_a_lease_is_renewed_in_the_background(url, writer, monkeypatch):
    monkeypatch.setattr(lease, "RENEWAL_SECONDS", 0.02)
    with writer(url):
        deadline = time.monotonic() + HANG_SECONDS
        while text_at(url).renewals < 3:
            assert time.monotonic() < deadline


def test_a_lease_that_ended_is_taken_over_and_its_writer_stops_before_it_publishes(url, writer, monkeypatch):
    with writer(url, "a") as first:
        first.confirm()
        monkeypatch.setattr(conditional, "_age", lambda written, date: 121.0)
        with writer(url, "b") as second:
            for _ in range(2):
                with pytest.raises(LeaseLostError, match=r"was taken over by process .* nothing is lost: run the same"):
                    first.confirm()
            with pytest.raises(LeaseLostError):
                first.check()
            second.confirm()
            kept = text_at(url)
            first.__exit__()
            assert text_at(url) == kept, "a writer that lost its lease removes nothing"


def test_a_writer_whose_successor_has_come_and_gone_has_lost_its_lease(url, writer, monkeypatch):
    with writer(url, "a") as first:
        monkeypatch.setattr(conditional, "_age", lambda written, date: 121.0)
        with writer(url, "b"):
            pass
        with pytest.raises(LeaseLostError, match="was taken over by another writer, which has ended, because"):
            first.confirm()


def test_a_lease_that_ended_and_that_nobody_took_is_renewed(url, writer, monkeypatch):
    """A laptop that was suspended goes on where nobody wrote meanwhile."""
    with writer(url) as held:
        monkeypatch.setattr(conditional, "_age", lambda written, date: 10**6)
        clock = lease._clock()
        monkeypatch.setattr(lease, "_clock", lambda: clock + 10**6)
        held.confirm()
    assert lease_object(url).read() is None


def test_the_end_of_a_lease_is_that_of_the_stores_clock(url, writer, monkeypatch):
    """A clock that jumps on the machine of either writer changes nothing."""
    with writer(url, "a"):
        if url == URL:
            monkeypatch.setattr(time, "time", lambda: 2e9)
        with pytest.raises(LeaseHeldError):
            writer(url, "b").__enter__()


@pytest.mark.parametrize("begin", [True, False])
def test_an_answer_that_is_lost_does_not_lose_the_lease(store, writer, monkeypatch, begin):
    real, failures = conditional._S3Object.write, [1]

    def arrives_and_fails(self, data, tag):
        written = real(self, data, tag)
        if failures:
            failures.pop()
            raise OSError("connection lost")
        return written

    with contextlib.ExitStack() as stack:
        if not begin:
            held = stack.enter_context(writer(URL))
        monkeypatch.setattr(conditional._S3Object, "write", arrives_and_fails)
        if begin:
            held = stack.enter_context(writer(URL))
        held.confirm()
        assert failures == []
    assert lease_object(URL).read() is None


def test_a_store_that_is_down_at_the_end_leaves_a_lease_which_this_machine_takes_over(store, writer, caplog):
    with writer(URL):
        store.relay.fail("DELETE", "made/.c.h5.lease", "busy")
    assert "s3://bucket/made/.c.h5.lease remains for 120 s: " in caplog.text
    store.relay.faults.clear()
    with pytest.raises(LeaseHeldError):
        writer(URL, "elsewhere").__enter__()
    with writer(URL):
        pass
    assert store.keys() == []


# --- stores without conditional writes -------------------------------------------------------------


def test_a_store_that_ignores_conditions_is_warned_about_in_one_line(store, writer, caplog, monkeypatch):
    real = type(store.files).call_s3

    def careless(self, method, *arguments, **options):
        return real(self, method, *arguments, **{name: options[name] for name in options if not name.startswith("If")})

    monkeypatch.setattr(type(store.files), "call_s3", careless)
    with writer(URL) as held:
        held.check()
        held.confirm()
    (record,) = caplog.records
    told = f"{URL}: this store does not keep two writers apart; let only one write this file"
    assert (record.levelno, record.getMessage()) == (logging.WARNING, told)
    assert store.keys() == []


@pytest.mark.parametrize("code", ["NotImplemented", "InvalidArgument"])
def test_a_store_that_refuses_conditions_is_warned_about(store, writer, caplog, monkeypatch, code):
    monkeypatch.setattr(conditional, "_s3_code", lambda error: code)
    monkeypatch.setattr(type(store.files), "call_s3", lambda *_, **options: refuse(options))

    def refuse(options):
        raise OSError(22, "not implemented") if "Body" in options else FileNotFoundError

    with writer(URL):
        assert "does not keep two writers apart" in caplog.text


def test_a_store_with_conditions_for_writes_alone_is_enough(store, writer, caplog, monkeypatch):
    real = conditional._S3Object._request

    def partial(self, method, **options):
        if method == "delete_object" and options:
            raise NotImplementedError
        return real(self, method, **options)

    monkeypatch.setattr(conditional._S3Object, "_request", partial)
    with writer(URL), pytest.raises(LeaseHeldError):
        writer(URL, "elsewhere").__enter__()
    assert caplog.records == [] and store.keys() == []


def test_a_renewal_that_is_under_way_at_the_end_does_not_leave_the_lease(url, writer, monkeypatch):
    monkeypatch.setattr(lease, "RENEWAL_SECONDS", 0.0)
    for _ in range(20):
        with writer(url):
            pass
        assert lease_object(url).read() is None


def test_a_kind_of_store_without_conditional_writes_is_warned_about(writer, tmp_path, caplog):
    files = SimpleNamespace(protocol=("sftp", "ssh"))
    with Lease(files, "/data/c.h5", name="sftp://host/data/c.h5", record=tmp_path / "r.lease") as held:
        held.refuse_if_held()
        held.confirm()
    assert "sftp://host/data/c.h5: this store does not keep two writers apart" in caplog.text


# --- the text of a lease -----------------------------------------------------------------------------

LEASES = st.builds(
    LeaseText,
    id=st.text("0123456789abcdef", min_size=32, max_size=32),
    host=st.text(max_size=255),
    pid=st.integers(0, 2**31),
    since=st.datetimes(max_value=None).filter(lambda t: t.year >= 1000).map(lambda t: t.strftime("%Y-%m-%dT%H:%M:%SZ")),
    seconds=st.integers(1, 3600),
    renewals=st.integers(0, 2**40),
)


@given(LEASES)
def test_a_lease_is_read_as_it_was_written_and_its_message_is_one_printable_line(text):
    assert LeaseText.parse(text.encode()) == text
    assert len(text.encode()) < conditional._READ_BYTES
    assert text.holder().isprintable()


@given(LEASES, st.data())
def test_a_damaged_lease_is_a_lease_or_refused(text, data):
    raw = bytearray(text.encode())
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position : position + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    with contextlib.suppress(LeaseFormatError):
        LeaseText.parse(bytes(raw)).holder()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda x: st.lists(x, max_size=2)
)


@given(st.binary() | st.dictionaries(st.text(max_size=5), JSON).map(lambda x: json.dumps(x).encode()))
def test_what_is_no_lease_is_refused(data):
    with pytest.raises(LeaseFormatError):
        LeaseText.parse(data)


@given(st.sampled_from(["id", "host", "pid", "since", "seconds", "renewals", "pucache_lease"]), JSON)
def test_a_field_of_another_type_is_refused(name, value):
    content = json.loads(someone().encode()) | {name: value}
    with contextlib.suppress(LeaseFormatError):
        parsed = LeaseText.parse(json.dumps(content).encode())
        assert type(value) is (int if name in ("pid", "seconds", "renewals", "pucache_lease") else str)
        assert 1 <= parsed.seconds <= 3600


@pytest.mark.parametrize("data", [b"", b"mine", b"{}", b"\xff" * 100, b'{"pucache_lease": 2}', bytes(100_000)])
def test_an_object_that_is_no_lease_is_named_and_stays(url, writer, data):
    put(url, data)
    with pytest.raises(LeaseHeldError) as refused:
        writer(url).__enter__()
    folder, name = url.rsplit("/", 1)
    assert str(refused.value) == (
        f"{folder}/.{name}.lease is not a lease of this version of pucache; make sure that nobody writes {url}, then "
        "remove that object"
    )
    assert lease_object(url).read().data == data[: 1 << 16]


def test_the_name_of_a_host_cannot_control_the_terminal(memory, writer):
    put("memory://made/c.h5", someone(seconds=60).encode().replace(b"gpu-7", b"\\u001b[2J\\n"))
    with pytest.raises(LeaseHeldError, match=r"process 4242 on \?\[2J\? since 2026-11-22 21:40:03 UTC; its lease"):
        writer("memory://made/c.h5").__enter__()


# --- objects that are written on a condition ----------------------------------------------------------


def test_an_object_is_written_and_removed_only_in_the_version_that_was_seen(url):
    target = lease_object(url)
    assert target.read() is None
    with pytest.raises(ObjectChangedError):
        target.write(b"no", "another tag")
    first = target.write(b"one", None)
    with pytest.raises(ObjectChangedError):
        target.write(b"two", None)
    second = target.write(b"two", first)
    for refused in (lambda: target.write(b"three", first), lambda: target.remove(first)):
        with pytest.raises(ObjectChangedError):
            refused()
    stored = target.read()
    assert (stored.data, stored.tag) == (b"two", second) and 0 <= stored.age < 60
    assert target.keeps_conditions(b"two") and target.read().data == b"two"
    target.remove(target.read().tag)
    assert target.read() is None


class GoogleFiles:
    """What gcsfs offers, and Google's rules for conditions, as far as leases use them."""

    protocol, base = ("gs", "gcs"), "https://storage.googleapis.com/storage/v1/"

    def __init__(self):
        self.objects, self.generation = {}, 100

    def split_path(self, path):
        return *path.split("/", 1), None

    def call(self, method, path, bucket, key=None, *, data=None, json_out=False, name=None, **options):
        key = key or name
        content, generation = self.objects.get(key, (None, 0))
        if method == "GET" and content is None:
            raise FileNotFoundError(path)
        if options.get("alt") == "media":
            return {}, content
        if method == "GET":
            info = {"size": str(len(content)), "generation": str(generation), "updated": "2026-11-22T21:00:00.000Z"}
            return {"Date": "Sun, 22 Nov 2026 21:01:30 GMT"}, json.dumps(info).encode()
        if options["ifGenerationMatch"] != str(generation):
            raise FileExistsError(path)
        if method == "DELETE":
            del self.objects[key]
            return {}, b""
        assert (path, options["uploadType"]) == ("https://storage.googleapis.com/upload/storage/v1/b/{}/o", "media")
        self.generation += 1
        self.objects[key] = (data, self.generation)
        return {"generation": str(self.generation)}


def test_leases_in_google_cloud_storage(tmp_path):
    files = GoogleFiles()
    arguments = {"fs": files, "path": "bucket/made/c.h5", "name": "gs://bucket/made/c.h5"}
    with Lease(**arguments, record=tmp_path / "a") as held:
        held.confirm()
        assert list(files.objects) == ["made/.c.h5.lease"]
        with pytest.raises(LeaseHeldError, match="its lease ends in 30 s unless it is renewed"):
            Lease(**arguments, record=tmp_path / "b").__enter__()
    assert files.objects == {}


def test_the_record_of_this_machine_that_cannot_be_written_is_one_line(memory, tmp_path):
    (tmp_path / "file").touch()
    fs, path = open_filesystem("memory://c.h5")
    with pytest.raises(OutputError, match="cannot write"):
        Lease(fs, path, name="memory://c.h5", record=Path(tmp_path / "file/record")).__enter__()
    assert lease_object("memory://c.h5").read() is None
