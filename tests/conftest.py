import os
import resource

import pytest
from tiny import save_image, tiny_encoder


@pytest.fixture
def encoder():
    return tiny_encoder()


@pytest.fixture
def image_folder(tmp_path):
    """Make a folder of `n` tiny distinct images, 000.png, 001.png, ..."""

    def make(n, name="images"):
        folder = tmp_path / name
        folder.mkdir()
        for number in range(n):
            save_image(folder / f"{number:03}.png", number)
        return folder

    return make


@pytest.fixture
def fixed_time(monkeypatch):
    """Let every cache be created at one time, so that equal content means equal bytes."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


@pytest.fixture
def limit():
    """Lower a soft limit of this process for the rest of the test: limit("FSIZE", bytes)."""
    before = {}

    def lower(name, value):
        kind = getattr(resource, f"RLIMIT_{name}")
        soft, hard = resource.getrlimit(kind)
        before.setdefault(kind, (soft, hard))
        resource.setrlimit(kind, (value, hard))

    yield lower
    for kind, limits in before.items():
        resource.setrlimit(kind, limits)


@pytest.fixture
def few_descriptors(limit):
    """Leave room for only a handful of further open files."""
    taken = set(map(int, os.listdir("/dev/fd")))
    limit("NOFILE", [number for number in range(4096) if number not in taken][12])
