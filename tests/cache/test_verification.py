"""Verification of one cache file, in a child process where HDF5 is concerned."""

import os
import subprocess

import numpy as np
import pytest
from helpers.planted import write_cache
from helpers.sealing import edited

from pucache.cache import verification
from pucache.cache.verification import verify_cache_file
from pucache.errors import CacheError


@pytest.fixture
def cache(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float16)
    return write_cache(tmp_path / "cache.h5", X).files[0].path


def error_of(path):
    with pytest.raises(CacheError) as caught:
        verify_cache_file(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_number_of_rows_of_a_whole_cache_is_returned(cache):
    assert verify_cache_file(cache) == 20


@pytest.mark.parametrize("at", [9, 1000, -200])
def test_a_changed_byte_is_found(cache, at):
    data = bytearray(cache.read_bytes())
    data[at] ^= 1
    cache.write_bytes(data)
    assert str(cache) in error_of(cache)


def test_keys_out_of_order_under_a_right_seal_are_found(cache):
    with edited(cache) as file:
        file["keys"][:] = file["keys"][:][::-1]
    assert "keys are not sorted and unique" in error_of(cache)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os.kill(os.getpid(), 11)", "HDF5 ends with signal 11 on it"),
        ("import sys; sys.exit(70)", "could not be opened in a process of its own (exit code 70)"),
        ("raise ImportError('no h5py')", "could not be opened in a process of its own (ImportError: no h5py)"),
        ("import time; time.sleep(3600)", "HDF5 does not come to an end with it"),
    ],
)
def test_a_file_that_crashes_or_hangs_hdf5_is_reported(cache, monkeypatch, code, message):
    """The child process is replaced by one that ends as HDF5 has been seen to end."""

    def start(command, real=subprocess.run, **options):
        return real([command[0], "-c", code], **options)

    monkeypatch.setattr(subprocess, "run", start)
    if "sleep" in code:
        monkeypatch.setattr(verification, "SECONDS", 1)
    assert message in error_of(cache)


def test_no_module_of_the_working_directory_is_run(cache, tmp_path, monkeypatch):
    for name in ("h5py", "json", "pucache", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'trap')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert verify_cache_file(cache) == 20 and not (tmp_path / "trap").exists()


def test_more_memory_than_a_structure_needs_is_refused(cache, monkeypatch):
    monkeypatch.setattr(verification, "CacheFile", lambda path: bytearray(verification.MEMORY + (1 << 28)))
    child = os.fork()
    if not child:
        os._exit(0 if "HDF5 asks for more than 1024 MiB" in verification._open_with_limits(str(cache)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
