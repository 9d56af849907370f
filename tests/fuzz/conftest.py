import pytest

from fuzz.damage import marker  # noqa: F401


@pytest.fixture(autouse=True)
def all_end(endings):
    """Whatever is read."""
