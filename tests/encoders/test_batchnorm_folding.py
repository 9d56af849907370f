import copy

import pytest
import timm
import torch
from helpers.slow import slow
from torch import nn

from pucache.encoders.backends import fold_batch_norm

pytestmark = pytest.mark.usefixtures("one_thread")


def trained(model):
    """Give every batch norm statistics and weights that are not those it begins with."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
    return model.eval().requires_grad_(False)


def pixels(side=64, count=2, seed=1):
    return torch.rand((count, 3, side, side), generator=torch.Generator().manual_seed(seed))


def norms(model):
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


def assert_unchanged(model, before):
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("architecture", [slow("resnet18"), "tf_efficientnet_lite0"])
def test_a_folded_network_is_the_same_function_without_norms(architecture):
    model = trained(timm.create_model(architecture, pretrained=False, num_classes=0))
    before, kinds = copy.deepcopy(model.state_dict()), [type(module) for module in model.modules()]
    with torch.inference_mode():
        folded = fold_batch_norm(model, pixels(seed=0))
        expected, found = model(pixels()), folded(pixels())
    assert folded is not model and norms(model) and not norms(folded) and not folded.training
    assert expected.std() > 0
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())
    assert_unchanged(model, before)
    assert [type(module) for module in model.modules()] == kinds


@pytest.mark.parametrize("settings", [{}, {"bias": False}, {"groups": 3, "stride": 2}, {"padding_mode": "reflect"}])
@pytest.mark.parametrize("affine", [True, False])
def test_any_convolution_takes_the_norm_after_it(settings, affine):
    norm = nn.BatchNorm2d(6, affine=affine)
    norm.running_mean.copy_(torch.linspace(-1, 1, 6))
    norm.running_var.copy_(torch.linspace(0.5, 2, 6))
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, **settings), norm).eval()
    folded = fold_batch_norm(model, pixels(8))
    assert folded is not model and not norms(folded)
    torch.testing.assert_close(folded(pixels(9)), model(pixels(9)))


class Convolved(nn.Module):
    """Calls its parts in a way of its own."""

    def __init__(self, call):
        super().__init__()
        self.convolution, self.norm, self.other = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.call = call

    def forward(self, x):
        return self.call(self, x)


def skip(self, x):
    x = self.convolution(x)
    return self.norm(x) + x


def changed_in_place(self, x):
    return self.norm(self.convolution(x).relu_())


@pytest.mark.parametrize("call", [skip, changed_in_place])
def test_where_folding_would_change_the_function_the_model_comes_back(call):
    model = trained(Convolved(call))
    before, expected = copy.deepcopy(model.state_dict()), model(pixels())
    assert fold_batch_norm(model, pixels(seed=0)) is model
    assert_unchanged(model, before)
    assert norms(model) == [model.norm, model.other] and torch.equal(model(pixels()), expected)
