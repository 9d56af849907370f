import sys

import pytest


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Images, caches, a model, and the jobs on them."""
    from faults.places import World

    if sys.platform != "linux":
        pytest.skip("needs Linux")
    return World(tmp_path_factory.mktemp("world"))
