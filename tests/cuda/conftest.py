"""A CUDA device for smoke tests: the first GPU, or an emulated device where there is none."""

import pytest
import torch
from helpers.emulated_cuda import emulated_cuda


@pytest.fixture
def cuda(one_thread):
    """The device; on the emulated one, everything until the end of the test runs."""
    if torch.cuda.is_available():
        yield torch.device("cuda")
        return
    if not hasattr(torch._C, "_ensureCUDADeviceGuardSet"):
        pytest.skip(f"torch {torch.__version__} cannot emulate a GPU")
    with emulated_cuda():
        yield torch.device("cuda")
