import json
import threading
from types import SimpleNamespace

import pytest

from pucache.embedding import profiling
from pucache.embedding.profiling import ON_DEVICE, Profile


class Clock:
    """Time that passes when told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(profiling, "time", SimpleNamespace(perf_counter=clock))
    return clock


def begun(*, threads=1, workers=0, passes=1):
    told = Profile()
    told.begin(threads=threads, workers=workers, passes=passes)
    return told


def after_ten_seconds(clock, forward, *, threads=1, workers=0, **seconds):
    """A run of 10 s, `forward` of them in the encoder, with these seconds of the other stages."""
    told = begun(threads=threads, workers=workers)
    with told.forward():
        clock.sleep(forward)
    clock.sleep(10 - forward)
    told.seconds.update(seconds)
    told.end()
    return told


def test_the_seconds_of_a_stage_add_up(clock):
    told = begun()
    for seconds in (1.5, 2.25):
        with told.stage("writing"):
            clock.sleep(seconds)
    clock.sleep(4)
    with told.stage("merging"):
        clock.sleep(0.5)
    assert told.seconds == {"writing": 3.75, "merging": 0.5}


def test_a_stage_that_fails_counts_as_well(clock):
    told = begun()
    for within in (lambda: told.stage("encoder"), told.forward):
        with pytest.raises(OSError), within():
            clock.sleep(2)
            raise OSError
    clock.sleep(1)
    assert told.seconds["encoder"] == 4 and told.waited == pytest.approx(1 - 2 / 5), "no pass is left running"


def test_stages_of_several_threads_lose_nothing():
    told = begun()

    def work():
        for _ in range(200):
            with told.forward():
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told._running == 0 and told.seconds["encoder"] > 0 and 0 <= told.waited <= 1


def test_waited_is_the_share_of_time_without_a_pass(clock):
    told = begun()
    assert Profile().waited == 0, "nothing has begun"
    clock.sleep(3)
    assert told.waited == 1
    with told.forward():
        clock.sleep(1)
        assert told.waited == pytest.approx(3 / 4), "the pass under way counts"
    assert told.waited == pytest.approx(3 / 4)
    clock.sleep(4)
    told.end()
    assert told.wall == 8 and told.waited == pytest.approx(7 / 8)
    clock.sleep(100)
    assert told.waited == pytest.approx(7 / 8), "the clock has stopped"


@pytest.mark.parametrize("passes, waited", [(1, 2 / 5), (2, 1 - 2 / 5), (4, 1 - 1 / 5)])
def test_passes_at_once_count_up_to_those_that_fill_the_device(clock, passes, waited):
    told = begun(threads=3, passes=passes)
    with told.forward():
        clock.sleep(1)
        with told.forward():
            clock.sleep(1)
        clock.sleep(1)
    clock.sleep(2)
    told.end()
    assert told.seconds["encoder"] == 4, "1 s of it in two threads"
    assert told.waited == pytest.approx(waited)


LIMITS = [
    (9, {"decoding": 8}, "encoder; a faster --runtime, a lower --precision or another device would help"),
    (2, {ON_DEVICE: 7, "reading": 3}, f"{ON_DEVICE}; --decode host with more --workers would help"),
    (2, {"writing": 6, "reading": 3}, "writing; a faster disk would help"),
    (2, {"reading": 4, "decoding": 3}, "reading; more --workers or a faster disk or network would help"),
    (2, {"reading": 1, "decoding": 3, "resizing": 2}, "decoding; more --workers or smaller files would help"),
    (6, {"reading": 1, "decoding": 4, "resizing": 3}, "decoding; more --workers or smaller files would help"),
    (2, {"resizing": 4}, "resizing; more --workers or smaller files would help"),
    (2, {"starting": 7, "merging": 30}, "starting; more images at a time, or --runtime torch would help"),
]


@pytest.mark.parametrize("forward, seconds, expected", LIMITS)
def test_the_limit_is_what_was_busiest(clock, forward, seconds, expected):
    told = after_ten_seconds(clock, forward, **seconds)
    assert told.limit().startswith(expected)
    assert list(told.lines())[-1] == f"limit: {told.limit()}"


def test_a_stage_is_shared_by_those_who_do_it(clock):
    seconds = {"decoding": 8, "writing": 5, "starting": 1, ON_DEVICE: 8, "listing": 99, "merging": 99}
    by_workers = after_ten_seconds(clock, 3, threads=2, workers=4, **seconds).shares()
    assert by_workers == pytest.approx(
        {"encoder": 0.3, "decoding": 0.2, "writing": 0.5, "starting": 0.1, ON_DEVICE: 0.4}
    )
    by_threads = after_ten_seconds(clock, 3, threads=2, **seconds).shares()
    assert by_threads == pytest.approx({**by_workers, "decoding": 0.4})


def test_nothing_embedded_has_no_limit(clock):
    told = Profile()
    with told.stage("listing"):
        clock.sleep(2)
    assert told.limit() == "nothing was embedded" and told.shares() == {}
    assert told.summary() == {
        "seconds": {"listing": 2.0},
        "busy": {},
        "device_waited": 0.0,
        "limit": "nothing was embedded",
    }
    begun = after_ten_seconds(clock, 0, reading=4)
    del begun.seconds["encoder"]
    assert begun.limit() == "nothing was embedded" and begun.waited == 1


def test_the_table_has_a_line_for_each_stage(clock):
    head, *lines, limit = after_ten_seconds(clock, 2.5, listing=0.125, decoding=4).lines()
    assert head.split()[:3] == ["stage", "seconds", "busy"] and limit.startswith("limit: decoding")
    assert [line.split() for line in lines] == [
        ["encoder", "2.50", "25%"],
        ["listing", "0.12"],
        ["decoding", "4.00", "40%"],
    ]
    assert {len(line) for line in lines} == {40}


def test_the_summary_is_json_with_the_same_numbers(clock):
    told = after_ten_seconds(clock, 2, decoding=1 / 3)
    assert json.loads(json.dumps(told.summary())) == {
        "seconds": {"encoder": 2.0, "decoding": 0.3333},
        "busy": {"encoder": 0.2, "decoding": 0.0333},
        "device_waited": 0.8,
        "limit": told.limit(),
    }
