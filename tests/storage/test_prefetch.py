import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.storage.prefetch import prefetch


@pytest.fixture
def running():
    """Number of threads that the test has started and that have not ended."""
    before = set(threading.enumerate())
    return lambda: len(set(threading.enumerate()) - before)


@given(items=st.lists(st.integers() | st.none()), ahead=st.integers(1, 5))
def test_every_item_comes_once_and_in_order(items, ahead):
    assert list(prefetch(items, ahead)) == items


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
