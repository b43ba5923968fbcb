"""ReLU with dropout against its definition: values, gradient, rates, seeds, refusals."""

from __future__ import annotations

import math

import pytest
import torch

from braidwork.kernels.fused import drop_rate, relu_dropout
from braidwork.kernels.testing import FLOAT_DTYPES, assert_close, devices

DEVICES = pytest.mark.parametrize("device", devices())
RATES = [(0.0, 0.0), (0.5, 0.5), (0.3, 77 / 256), (0.001, 0.0), (0.999, 1 - 1 / 256)]


@pytest.mark.parametrize(("asked", "given"), RATES)
def test_rate_is_the_nearest_multiple_of_a_256th(asked, given):
    assert drop_rate(asked) == given


@DEVICES
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_values_and_gradient(device, dtype, p):
    """What is kept is the scaled ReLU, and the gradient passes exactly there."""
    x = torch.randn(37, 61, dtype=torch.float64).to(device, dtype).requires_grad_()
    gy = torch.randn(37, 61, dtype=torch.float64).to(device, dtype)
    y = relu_dropout(x, p)
    (gx,) = torch.autograd.grad(y, x, gy)
    kept = (y != 0).cpu() | (x <= 0).cpu()
    scale = 1 / (1 - drop_rate(p))
    assert bool(kept.all()) == (p == 0)
    assert_close("y", y, torch.where(kept, x.detach().cpu().double().relu() * scale, 0.0))
    assert_close("gx", gx, torch.where((y != 0).cpu(), gy.cpu().double() * scale, 0.0))


@DEVICES
@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_share_and_independence(device, p):
    torch.manual_seed(1)
    x = torch.ones(1_000_003, device=device)  # not a multiple of a tile
    kept = (relu_dropout(x, p) != 0).double()
    expected = 1 - drop_rate(p)
    spread = math.sqrt(expected * (1 - expected) / len(x))
    assert abs(kept.mean().item() - expected) < 5 * spread
    centred = kept - kept.mean()
    for shift in (1, 16, 64, 1024):
        correlation = (centred[shift:] * centred[:-shift]).mean() / centred.square().mean()
        assert abs(correlation.item()) < 5 / math.sqrt(len(x))


@DEVICES
def test_the_seed_decides(device):
    def draw(seed):
        torch.manual_seed(seed)
        return relu_dropout(torch.ones(5000, device=device), 0.5)

    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))


@DEVICES
def test_special_values_and_odd_layouts(device):
    x = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 2.0], device=device)
    got = relu_dropout(x, 0.0)
    assert got[0].isnan() and got[1:].tolist() == [math.inf, 0.0, 0.0, 0.0, 2.0]
    assert relu_dropout(torch.empty(0, 3, device=device), 0.5).shape == (0, 3)
    strided = torch.randn(8, 10, device=device).T
    assert torch.equal(relu_dropout(strided, 0.0), strided.relu())


def test_refusals():
    with pytest.raises(TypeError, match="x: need a floating-point"):
        relu_dropout(torch.ones(3, dtype=torch.int32), 0.5)
    for p in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"dropout: the rate must be in"):
            relu_dropout(torch.ones(3), p)
