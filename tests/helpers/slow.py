"""Parameters of tests that run with --slow alone."""

import pytest


def slow(*values):
    """Mark one set of parameters: it takes long and says little more than the others."""
    return pytest.param(*values, marks=pytest.mark.slow)
