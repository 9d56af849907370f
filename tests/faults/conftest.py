import os

import pytest

from faults.commands import Zygote
from faults.places import World


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Images, caches, a model, and a process that starts commands."""
    if not hasattr(os, "pidfd_open"):
        pytest.skip("needs Linux")
    folder = tmp_path_factory.mktemp("world")
    folder.chmod(0o755)
    with Zygote(tmp_path_factory.mktemp("logs")) as zygote:
        yield World(folder, zygote)
