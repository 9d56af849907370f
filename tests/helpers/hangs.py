"""How long tests wait before they call a process hung, and the waiting."""

import time

HANG_SECONDS = 240  # on the clock: ends what never ends; no busy machine has reached a quarter of it


def eventually(happens):
    """Wait until a function gives what is true."""
    until = time.monotonic() + HANG_SECONDS
    while not happens():
        assert time.monotonic() < until
        time.sleep(0.02)
