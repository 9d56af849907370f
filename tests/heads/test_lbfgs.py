import pytest
import torch

from pucache.heads.lbfgs import minimise

pytestmark = pytest.mark.usefixtures("one_thread")
LIMIT = 400


def test_a_step_out_of_the_domain_is_shortened():
    """x - a log x is NaN at negative x, where the first step leads."""
    scale = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)

    def barrier(x, k):
        return (x - scale[k, None] * x.log()).sum(1), 1 - scale[k, None] / x

    start = torch.full((3, 1), 0.9, dtype=torch.float64)
    far = minimise(barrier, start, lambda v, k: 9 * v, tolerance=1e-8, evaluations=LIMIT)
    torch.testing.assert_close(far.parameters[:, 0], scale, rtol=1e-6, atol=0)
