import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pucache.errors import OutputError
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


@pytest.mark.parametrize("name", ["new.bin", "out.bin", "with [brackets]*?.bin", LONG])
def test_what_was_written_gets_its_name_and_nothing_else_stays(out, name):
    with replacing(out.with_name(name)) as temporary:
        temporary.write_bytes(b"new")
        assert out.read_bytes() == b"old"
    assert out.with_name(name).read_bytes() == b"new"
    assert names(out.parent) == sorted({"out.bin", name})


def test_the_folder_is_made_where_it_is_missing(out):
    with replacing(out.parent / "new" / "one" / "out.bin") as temporary:
        temporary.write_bytes(b"new")
    assert (out.parent / "new/one/out.bin").read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_passes_through_and_leaves_the_old_file_alone(out, error):
    with pytest.raises(error), replacing(out) as temporary:
        temporary.write_bytes(b"half")
        raise error
    assert out.read_bytes() == b"old"
    assert names(out.parent) == ["out.bin"]


def test_a_full_disk_is_an_output_error_that_names_the_file(out):
    reason = "out.bin: No space left on device; what was there before is untouched"
    with pytest.raises(OutputError, match=reason), replacing(out):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert out.read_bytes() == b"old"
    assert names(out.parent) == ["out.bin"]


@pytest.mark.parametrize("target", ["folder", "out.bin/below", "out.bin/far/below"])
def test_a_name_that_cannot_be_taken_is_an_output_error(out, target):
    (out.parent / "folder").mkdir()
    with pytest.raises(OutputError, match="cannot write"), replacing(out.parent / target) as temporary:
        temporary.write_bytes(b"new")
    assert names(out.parent) == ["folder", "out.bin"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_follow_the_umask_which_stays(out, umask, mode):
    before = os.umask(umask)
    try:
        with replacing(out):
            pass
    finally:
        assert os.umask(before) == umask
    assert out.stat().st_mode & 0o777 == mode


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


def test_a_killed_writer_leaves_the_old_file_and_one_partial_that_can_be_removed(out):
    code = f"""if True:
        import os, signal
        from pucache.storage.atomic import replacing
        with replacing({str(out)!r}) as temporary:
            temporary.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)"""
    died = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)
    assert died.returncode == -signal.SIGKILL
    assert out.read_bytes() == b"old"
    assert len(names(out.parent)) == 2
    remove_partials(out)
    assert names(out.parent) == ["out.bin"]


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
    with replacing(out) as first:
        check_writable(out)
        assert first.exists() and not partial.exists()
        with replacing(out) as second:
            second.write_bytes(b"second")
        assert out.read_bytes() == b"second"
        first.write_bytes(b"first")
    assert out.read_bytes() == b"first" and names(out.parent) == ["out.bin"]


def test_a_new_file_that_is_taken_for_a_leftover_is_made_again(out, monkeypatch):
    def late(descriptor, operation, real=fcntl.flock):
        monkeypatch.setattr(fcntl, "flock", real)
        remove_partials(out)  # strikes between the making of the file and its lock
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with replacing(out) as temporary:
        temporary.write_bytes(b"new")
    assert out.read_bytes() == b"new" and names(out.parent) == ["out.bin"]


def test_without_locks_nothing_is_taken_for_a_leftover(out, monkeypatch):
    def none(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    partial = abandon(out)
    monkeypatch.setattr(fcntl, "flock", none)
    with replacing(out) as temporary:
        remove_partials(out)
        temporary.write_bytes(b"new")
    assert out.read_bytes() == b"new" and partial.exists()


def test_new_folders_reach_the_disk_each_in_the_one_above(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("pucache.storage.atomic.fsync_directory", synced.append)
    make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"] and (tmp_path / "a/b/c").is_dir()
    make_folder(tmp_path / "a" / "b")
    assert len(synced) == 3


@pytest.mark.parametrize("name", ["out", "a[1]*.h5", LONG])
def test_partials_of_this_file_go_and_those_of_its_neighbours_stay(tmp_path, name):
    path = tmp_path / name
    neighbours = [tmp_path / neighbour for neighbour in (f"x{name[1:]}", f"{name[:40]}.h5", "a1x.h5")]
    partial = abandon(path)
    writing = [replacing(neighbour) for neighbour in neighbours]
    for writer in writing:
        writer.__enter__()
    remove_partials(path)
    assert not partial.exists()
    for writer in writing:
        writer.__exit__(None, None, None)
    assert names(tmp_path) == sorted(neighbour.name for neighbour in neighbours)


def test_there_may_be_no_partials_and_no_folder(tmp_path):
    remove_partials(tmp_path / "nowhere" / "out.bin")
    assert names(tmp_path) == []


# --- check_writable ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out.bin", "new.bin", "made/on/the/way/new.bin", LONG])
def test_a_writable_path_comes_back_and_only_its_folder_is_made(out, name):
    path = check_writable(str(out.parent / name))
    assert path == out.parent / name
    assert out.read_bytes() == b"old"
    assert path.parent.is_dir()
    assert set(names(path.parent)) <= {"out.bin"}


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".", "is a directory; name a file"),
        ("out.bin/below", "cannot write .*; choose another path"),
        ("out.bin/far/below", "cannot write .*Not a directory; choose another path"),
        ("/proc/pucache/out.bin", "cannot write .*; choose another path"),
        ("/proc/out.bin", "cannot write .*; choose another path"),
        ("/dev/null", "/dev/null is not a regular file"),
        ("n" * 300, "cannot write .*; choose another path"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_before_any_work(out, path, reason):
    with pytest.raises(OutputError, match=reason) as caught:
        check_writable(out.parent / path)
    assert "\n" not in str(caught.value)
    assert names(out.parent) == ["out.bin"]
