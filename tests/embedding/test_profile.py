import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pucache.embedding.profile import Profile


def test_the_seconds_of_a_stage_add_up_over_threads_and_where_it_fails():
    profile = Profile()

    def work():
        with pytest.raises(OSError), profile.stage("writing"):
            time.sleep(0.01)
            raise OSError

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: work(), range(4)))
    profile.add({"writing": 2.0})
    assert profile.seconds["writing"] >= 2.04


@pytest.mark.parametrize(("seconds", "waited"), [(0.0, 1.0), (1e6, 0.0)])
def test_waited_is_the_share_of_time_without_a_pass(seconds, waited):
    profile = Profile()
    assert profile.waited == 0, "nothing has begun"
    profile.begin(4)
    profile.add({"encoder": seconds})
    time.sleep(0.001)
    profile.end()
    assert profile.waited == pytest.approx(waited)


def test_the_line_and_the_summary_name_every_stage():
    profile = Profile()
    assert profile.line().startswith("nothing was embedded")
    profile.add({"decoding": 1 / 3, "encoder": 2.0})
    assert profile.line() == "decoding 0.33 s, encoder 2.00 s (summed over threads); the encoder waited 0%"
    expected = {"seconds": {"decoding": 0.3333, "encoder": 2.0}, "device_waited": 0.0}
    assert json.loads(json.dumps(profile.summary())) == expected
