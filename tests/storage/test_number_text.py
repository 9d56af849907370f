import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.storage.number_text import number_words


def texts(values):
    words = number_words(values)
    assert (words.dtype, words.shape) == (np.uint64, (len(values), 3))
    return [row.tobytes().replace(b"\0", b"").decode() for row in words.astype("<u8")]


def expected(values):
    return [f"{value:.6g}" for value in values.tolist()]


def around(values):
    """The values, and the next floating-point numbers on both sides."""
    return np.concatenate([values, np.nextafter(values, np.inf), np.nextafter(values, -np.inf)])


DRAW = np.random.default_rng(0)
POWERS = np.array([float(f"1e{power}") for power in range(-323, 309)])
CASES = {
    "any bits of float64": DRAW.integers(1 << 64, size=20_000, dtype=np.uint64).view(np.float64),
    "any bits of float32": DRAW.integers(1 << 32, size=20_000, dtype=np.uint32).view(np.float32),
    "margins": (DRAW.standard_normal(20_000) * 3).astype(np.float32),
    "posteriors": 1 / (1 + np.exp(DRAW.standard_normal(20_000) * 30)),
    "powers of ten": around(POWERS),
    "carried to the next power": around(np.outer([9.999995, 9.9999949, 99999.95], POWERS[40:-40]).ravel()),
    "ties": around(DRAW.integers(10**7, size=20_000) / 2.0 ** DRAW.integers(20, size=20_000)),
    "decimal ties": around(np.array([float(f"1.{k:05}5e{e}") for k in range(0, 10**5, 997) for e in range(-30, 31)])),
    "whole numbers": np.arange(-1000, 2_000_000, 997.0),
    "special": np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1e-300, 1e300, -1.7e308, 999999.5]),
    "none": np.empty(0),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_formatted_as_python_formats_them(name):
    with np.errstate(all="ignore"):
        values = CASES[name].astype(np.float64)  # of NaN with any bits
    with np.errstate(all="raise"):  # such as a logarithm of zero
        assert texts(values) == expected(values)
        assert texts(-values) == expected(-values)


@given(st.lists(st.floats(), max_size=20))
def test_any_number_is_formatted_as_python_formats_it(values):
    assert texts(np.array(values, np.float64)) == expected(np.array(values, np.float64))


@given(st.lists(st.floats(width=32), max_size=20))
def test_single_precision_is_formatted_as_its_double(values):
    assert texts(np.array(values, np.float32)) == expected(np.array(values, np.float64))
