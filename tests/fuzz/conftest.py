import signal

import pytest
from helpers.hangs import HANG_SECONDS
from helpers.limits import limited

from fuzz.damage import marker, resident  # noqa: F401

ADDRESSES = 8 << 30  # bytes of address space that a test may take beyond what the process has


@pytest.fixture(autouse=True)
def endings(one_thread):
    """A test that hangs is ended; one that asks for too much memory ends with a MemoryError."""
    signal.alarm(HANG_SECONDS)
    with limited("AS", resident("VmSize") + ADDRESSES):
        yield
    signal.alarm(0)
