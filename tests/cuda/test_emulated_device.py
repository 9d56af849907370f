"""The emulated CUDA device itself: it refuses what CUDA refuses."""

import pytest
import torch
from helpers.emulated_cuda import CudaTensor, emulated_cuda

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
    pytest.mark.usefixtures("one_thread"),
]


def test_tensors_of_both_devices_cannot_meet():
    with emulated_cuda():
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        assert isinstance(there, CudaTensor) and there.device.type == "cuda" and here.device.type == "cpu"
        with pytest.raises(RuntimeError, match="on one device, but found cuda:0 and cpu"):
            there + here
        with pytest.raises(TypeError, match="can't convert cuda:0"):
            there.numpy()
        assert (there + there).cpu().tolist() == [2, 2, 2]


def test_a_generator_of_the_host_does_not_draw_on_the_device():
    with emulated_cuda(), pytest.raises(RuntimeError, match="expected a generator of cuda, got one of cpu"):
        torch.rand(3, device="cuda", generator=torch.Generator())


def test_a_freed_address_is_not_taken_for_pinned_memory():
    with emulated_cuda() as device:
        for _ in range(50):
            torch.ones(1000).pin_memory()
        assert not device.is_pinned(torch.ones(1000))
