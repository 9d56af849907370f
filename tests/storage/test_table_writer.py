import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from pucache.storage.table_writer import six_digits


@given(values=st.lists(st.one_of(st.floats(), st.floats(-20, 20), st.integers(-(10**8), 10**8)), max_size=20))
@example([0.5, 1.0000005, 100000.5, 99999.95, 0.1234565, -0.0, 1e-17, 5e-324, 1e300, 9.999995e-5])
def test_numbers_are_rounded_as_text_of_six_digits_is(values):
    values = np.array(values, np.float64)
    np.testing.assert_array_equal(six_digits(values), [float(f"{value:.6g}") for value in values])
