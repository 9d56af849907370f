import pytest

from pucache.embedding import profile as profiles
from pucache.embedding.profile import Profile


@pytest.fixture
def clock(monkeypatch):
    """The seconds that the profile sees, in a list of one."""
    seconds = [100.0]
    monkeypatch.setattr(profiles.time, "perf_counter", lambda: seconds[0])
    return seconds


def test_a_start_is_time_that_the_encoder_waits(clock):
    profile = Profile()
    profile.begin(1)
    assert profile.first_batch is None
    clock[0] += 6
    with profile.forward_pass():
        clock[0] += 2
    profile.end()
    assert (profile.waited, profile.first_batch) == (0.75, 8.0)
    assert profile.summary() == {"seconds": {"encoder": 2.0}, "first_batch": 8.0, "device_waited": 0.75}


@pytest.mark.parametrize(("passes", "waited"), [(1, 0.5), (2, 0.5), (4, 0.75)])
def test_passes_beside_each_other_keep_the_device_no_busier_than_it_can_be(clock, passes, waited):
    profile = Profile()
    profile.begin(passes)
    with profile.forward_pass(), profile.forward_pass():
        clock[0] += 5
    clock[0] += 5
    assert profile.waited == waited
    assert profile.seconds["encoder"] == 10


def test_a_pass_that_fails_is_no_first_batch(clock):
    profile = Profile()
    profile.begin(1)
    with pytest.raises(MemoryError), profile.forward_pass():
        raise MemoryError
    assert profile.first_batch is None
