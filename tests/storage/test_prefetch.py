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


@given(items=st.lists(st.integers() | st.none()), ahead=st.integers(1, 5))
def test_every_item_comes_once_and_in_order(items, ahead):
    assert list(prefetch(items, ahead)) == items
    assert list(prefetch(iter(items), ahead)) == items


def test_one_thread_advances_the_iterable_and_the_caller_does_not():
    def items():
        for _ in range(20):
            yield threading.current_thread()

    threads = set(prefetch(items(), ahead=3))
    assert len(threads) == 1 and threading.current_thread() not in threads


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_no_more_than_ahead_items_are_computed_in_advance(ahead):
    computed = []

    def items():
        for number in range(30):
            computed.append(number)
            yield number

    for number in prefetch(items(), ahead):
        if number + ahead < 30:
            wait_for(lambda number=number: len(computed) == number + 1 + ahead)
        assert len(computed) <= number + 1 + ahead


def wait_for(condition):
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the items in advance were never computed"
        time.sleep(0.001)


class Broken(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError, StopIteration, Broken, KeyboardInterrupt])
@pytest.mark.parametrize("position", [0, 1, 4])
def test_an_exception_reaches_the_caller_in_place_of_the_item(error, position, running):
    class Items:
        def __init__(self):
            self.count = 0

        def __iter__(self):
            return self

        def __next__(self):
            if self.count == position:
                raise error("broken")
            self.count += 1
            return self.count

    received = []
    if error is StopIteration:  # which ends an iterable
        assert list(prefetch(Items(), ahead=2)) == list(range(1, position + 1))
        return
    with pytest.raises(error, match="broken"):
        for item in prefetch(Items(), ahead=2):
            received.append(item)
    assert received == list(range(1, position + 1))
    assert running() == 0


def test_a_generator_that_is_closed_early_ends_its_thread_and_computes_no_more(running):
    computed = []

    def items():
        while True:  # never ends
            computed.append(None)
            yield

    generator = prefetch(items(), ahead=4)
    next(generator)
    assert running() == 1
    generator.close()
    assert running() == 0
    count = len(computed)
    assert 1 <= count <= 5
    time.sleep(0.01)
    assert len(computed) == count


def test_closing_waits_for_the_item_that_is_being_computed(running):
    began, released, ended = threading.Event(), threading.Event(), threading.Event()

    def items():
        yield 0
        began.set()
        assert released.wait(HANG_SECONDS)
        ended.set()
        yield 1

    generator = prefetch(items())
    assert next(generator) == 0
    assert began.wait(HANG_SECONDS)
    timer = threading.Timer(0.05, released.set)
    timer.start()
    generator.close()
    assert ended.is_set()
    timer.join()
    assert running() == 0


def test_an_error_of_the_caller_ends_the_thread(running):
    with pytest.raises(ZeroDivisionError):
        for _ in prefetch(range(10)):
            raise ZeroDivisionError
    assert running() == 0


def test_a_generator_that_is_never_advanced_starts_no_thread(running):
    generator = prefetch(range(3))
    assert running() == 0
    generator.close()


@pytest.mark.parametrize("items", [[], (), iter(()), (item for item in ())])
def test_no_items_give_none(items, running):
    assert list(prefetch(items)) == []
    assert running() == 0
