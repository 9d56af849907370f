import contextlib
import errno
import fcntl
import logging
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from helpers.refusals import one_line

from pucache.cache.parts import writer_lock
from pucache.errors import CacheLockedError, OutputError, RunError, SessionLockedError
from pucache.pretraining.run_folder import RunFolder
from pucache.reviewing.session_folder import lock_folder
from pucache.storage.atomic import check_writable, make_folder, remove_partials, replacing

LONG = "🦊" * 60 + ".h5"  # 243 bytes: a legal name that leaves no room for a longer temporary one


@pytest.fixture
def out(tmp_path):
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")
    return path


def names(folder):
    return sorted(os.listdir(folder))


# --- replacing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["new.bin", "out.bin", "made/on/the/way/new.bin", LONG])
def test_what_was_written_gets_its_name_and_nothing_else_stays(out, name):
    path = check_writable(str(out.parent / name))
    assert names(out.parent) == ["out.bin"]
    with replacing(path) as temporary:
        temporary.write_bytes(b"new")
        assert out.read_bytes() == b"old"
    assert path == out.parent / name and path.read_bytes() == b"new"
    assert set(names(path.parent)) <= {"out.bin", path.name}


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (OSError(errno.ENOSPC, "No space"), OutputError, "out.bin: No space; what was there before is untouched"),
    ],
)
def test_an_error_leaves_the_old_file_alone(out, error, kind, reason):
    with pytest.raises(kind, match=reason), replacing(out) as temporary:
        temporary.write_bytes(b"half")
        raise error
    assert out.read_bytes() == b"old"
    assert names(out.parent) == ["out.bin"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_permissions_follow_the_umask_which_stays(out, umask, mode):
    before = os.umask(umask)
    try:
        with replacing(out):
            pass
    finally:
        assert os.umask(before) == umask
    assert out.stat().st_mode & 0o777 == mode


def test_writing_never_sets_the_umask_which_other_threads_use_meanwhile(out, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask of the process was set"))
    with replacing(out, mode=0o600):
        pass
    assert out.stat().st_mode & 0o777 == 0o600


def test_content_reaches_the_disk_before_the_name_and_the_name_before_the_end(out, monkeypatch):
    done = []

    def sync(descriptor, real=os.fsync):
        done.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        real(descriptor)

    def replace(source, target, real=os.replace):
        done.append(("replace", Path(target)))
        real(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    with replacing(out) as temporary:
        pass
    assert done == [("fsync", temporary), ("replace", out), ("fsync", out.parent)]


# --- remove_partials ---------------------------------------------------------------------------


def abandon(path):
    """What a writer of `path` leaves behind that ends without any of its own clearing up."""
    before = set(path.parent.iterdir())
    child = os.fork()
    if not child:
        writer = replacing(path)
        writer.__enter__()
        os._exit(0)
    os.waitpid(child, 0)
    (partial,) = set(path.parent.iterdir()) - before
    return partial


def test_what_another_writer_is_writing_stays_and_what_a_killed_one_left_goes_before_the_next_work(out):
    partial = abandon(out)
    assert out.read_bytes() == b"old"
    with replacing(out) as first:
        check_writable(out)
        assert first.exists() and not partial.exists()
        with replacing(out) as second:
            second.write_bytes(b"second")
        assert out.read_bytes() == b"second"
        first.write_bytes(b"first")
    assert out.read_bytes() == b"first" and names(out.parent) == ["out.bin"]


def test_new_folders_reach_the_disk_each_in_the_one_above(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("pucache.storage.atomic.fsync_directory", synced.append)
    make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"] and (tmp_path / "a/b/c").is_dir()
    make_folder(tmp_path / "a" / "b")
    assert len(synced) == 3


@pytest.mark.parametrize("name", ["out", "a[1]*.h5", LONG])
def test_partials_of_this_file_go_and_those_of_its_neighbours_stay(tmp_path, name):
    partial = abandon(tmp_path / name)
    neighbours = [abandon(tmp_path / neighbour) for neighbour in (f"x{name[1:]}", f"{name[:40]}.h5", "a1x.h5")]
    remove_partials(tmp_path / "nowhere" / name)
    remove_partials(tmp_path / name)
    assert set(tmp_path.iterdir()) == set(neighbours) and partial not in neighbours


# --- file systems without locks ----------------------------------------------------------------


@contextlib.contextmanager
def session_lock(folder):
    with contextlib.ExitStack() as stack:
        lock_folder(folder, stack)
        yield


LOCKS = {
    "writer of a cache": (lambda folder: writer_lock(folder / "cache.h5"), CacheLockedError),
    "review": (session_lock, SessionLockedError),
    "pretraining": (RunFolder, RunError),
}


@pytest.fixture(params=["ENOSYS", "EOPNOTSUPP"])
def no_locks(monkeypatch, request):
    """What a network disk without locks answers."""
    number = getattr(errno, request.param)

    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


def held_by_another(lock, folder, act):
    """What `act` gives while another process holds a lock; that process is killed at the end."""
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        with lock(folder):
            os.write(told, b"1")
            signal.pause()
    try:
        assert os.read(ready, 1)
        return act()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("name", LOCKS)
def test_without_locks_a_file_keeps_others_out_until_its_process_has_ended(tmp_path, no_locks, caplog, name):
    lock, refusal = LOCKS[name]

    def taken():
        with lock(tmp_path):
            return True

    assert one_line(refusal, held_by_another, lock, tmp_path, taken)
    caplog.clear()
    with caplog.at_level(logging.INFO, "pucache"):
        assert taken()
    (told,) = caplog.messages
    assert told.startswith(f"{tmp_path} has no file locks; ") and ".soft.lock keeps other writers out" in told
    assert not [path for path in names(tmp_path) if "soft" in path]


def test_without_locks_outputs_are_written_and_what_a_killed_writer_left_stays(out, no_locks):
    partial = abandon(out)
    with replacing(check_writable(out)) as temporary:
        temporary.write_bytes(b"new")
    assert out.read_bytes() == b"new" and partial.exists()


# --- check_writable ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".", "is a directory; name a file"),
        ("out.bin/below", "cannot write .*; name another file, in a folder to write to"),
        ("/proc/pucache/out.bin", "cannot write .*; name another file, in a folder to write to"),
        ("/dev/null", "/dev/null is not a regular file; name a file to write instead"),
        ("pipe", "/pipe is not a regular file; name a file to write instead"),
        ("link", "/link is a link to no file; name a file to write instead"),
        ("n" * 300, "cannot write .*; name another file, in a folder to write to"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_before_any_work(out, path, reason):
    (out.parent / "link").symlink_to("nowhere")
    os.mkfifo(out.parent / "pipe")
    assert re.search(reason, one_line(OutputError, check_writable, out.parent / path, is_table=True))
    assert names(out.parent) == ["link", "out.bin", "pipe"]


# --- what an output may be ---------------------------------------------------------------------


def test_a_link_to_a_file_stays_a_link_and_its_file_is_replaced(out):
    link = out.parent / "link"
    link.symlink_to(out)
    with replacing(check_writable(link)) as temporary:
        temporary.write_bytes(b"new")
    assert link.is_symlink() and out.read_bytes() == b"new"
    assert names(out.parent) == ["link", "out.bin"]


def test_a_closed_standard_output_is_said(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="cannot write -: the standard output is closed"), replacing("-") as table:
        table.write_text("key\n")


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_only_a_table_is_written_to_the_standard_output(capfdbinary, name):
    with pytest.raises(OutputError, match=f"{name} is the standard output, which only tables are written to; name a"):
        check_writable(name)
    with replacing(check_writable(name, is_table=True)) as temporary:
        temporary.write_bytes(b"key,label\n")
    assert capfdbinary.readouterr().out == b"key,label\n"
