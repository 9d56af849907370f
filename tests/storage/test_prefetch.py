import threading
import time

import pytest
from helpers.hangs import HANG_SECONDS
from hypothesis import given
from hypothesis import strategies as st

from pucache.storage.prefetch import prefetch


@pytest.fixture
def running():
    """Number of threads that the test has started and that have not ended."""
    before = set(threading.enumerate())
    return lambda: len(set(threading.enumerate()) - before)


@given(items=st.lists(st.integers() | st.none()))
def test_every_item_comes_once_and_in_order(items):
    assert list(prefetch(items)) == items


def test_one_thread_computes_one_item_in_advance_and_ends_when_it_is_closed(running):
    computed, threads = [], set()

    def items():
        while True:  # never ends
            threads.add(threading.current_thread())
            computed.append(None)
            yield len(computed)

    generator = prefetch(items())
    assert running() == 0
    for taken in range(1, 20):
        assert next(generator) == taken
        deadline = time.monotonic() + HANG_SECONDS
        while len(computed) < taken + 1:
            assert time.monotonic() < deadline, "the items in advance were never computed"
            time.sleep(0.001)
        assert len(computed) == taken + 1
    assert len(threads) == running() == 1 and threading.current_thread() not in threads
    generator.close()
    assert running() == 0 and len(computed) <= taken + 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_reaches_the_caller_in_place_of_the_item(error, running):
    def items():
        yield 1
        raise error("broken")

    generator = prefetch(items())
    assert next(generator) == 1
    with pytest.raises(error, match="broken"):
        next(generator)
    assert running() == 0
