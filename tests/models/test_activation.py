"""Dropout: rates, scaling, gradients, seeds, refusals."""

from __future__ import annotations

import pytest
import torch

from braidwork.kernels.fused import drop_rate
from braidwork.models.activation import dropout, keep_mask


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=r"dropout: the rate must be in \[0, 1\)"):
        dropout(torch.ones(3), rate)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_mask_keeps_its_share(p: float) -> None:
    n = 1_000_003  # not a multiple of the eight values that one draw covers
    kept = keep_mask(torch.Size([n]), p, torch.device("cpu")).float().mean().item()
    expected = 1 - drop_rate(p)
    assert abs(kept - expected) < 5 * (expected * (1 - expected) / n) ** 0.5


def test_mask_follows_the_seed_and_neighbours_are_independent() -> None:
    def draw(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return keep_mask(torch.Size([4096, 64]), 0.5, torch.device("cpu"))

    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))
    sign = draw(3).double() * 2 - 1
    for shift in (1, 8, 64):
        correlation = (sign.flatten()[shift:] * sign.flatten()[:-shift]).mean().abs()
        assert correlation < 5 / sign.numel() ** 0.5


def test_dropout_scales_what_stays_and_its_gradient_alike() -> None:
    x = torch.randn(300, 7, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.25)
    kept = y != 0
    torch.testing.assert_close(y, torch.where(kept, x / 0.75, 0.0))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, kept / torch.tensor(0.75, dtype=torch.float64))
    assert dropout(x, 0.0) is x
