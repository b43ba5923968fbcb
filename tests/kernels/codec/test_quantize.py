"""Block quantisation against its definition and the bound on its error."""

from __future__ import annotations

import math

import pytest
import torch

from braidwork.kernels.codec import dequantize_int8, quantize_int8
from braidwork.kernels.testing import assert_close, devices

DEVICES = pytest.mark.parametrize("device", devices())
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


def blocks(x: torch.Tensor, block: int) -> torch.Tensor:
    """x in fp64 on the CPU, padded with zeros: [number of blocks, block]."""
    flat = x.detach().cpu().double().flatten()
    return torch.nn.functional.pad(flat, (0, -flat.numel() % block)).reshape(-1, block)


@DEVICES
@DTYPES
@pytest.mark.parametrize(("n", "block"), [(1, 16), (15, 16), (1000, 256), (4096, 64), (5000, 4096), (0, 256)])
def test_quantize(device, dtype, n, block):
    x = (torch.randn(n) * torch.logspace(-6, 4, n) if n else torch.zeros(0)).to(device, dtype)
    q, scale = quantize_int8(x, block)
    assert q.shape == x.shape and q.dtype == torch.int8
    ref = blocks(x, block)
    ref_scale = ref.abs().amax(1) / 127
    assert_close("scale", scale, ref_scale)
    # Within half a step, up to the rounding of x * (127 / largest), which is at most 127 in fp32.
    error = (blocks(q, block) * ref_scale[:, None] - ref).abs()
    assert (error <= ref_scale[:, None] * (0.5 + 127 * 2**-22)).all()
    # The largest magnitude of a block is coded as 127.
    assert (blocks(q, block).abs().amax(1)[ref_scale > 0] == 127).all()
    back = dequantize_int8(q, scale, block, dtype)
    exact = (blocks(q, block) * scale.cpu().double()[:, None]).flatten()[:n]
    assert_close("decoded", back.flatten(), exact)


@DEVICES
def test_ties_go_to_even_and_codes_are_fixed_points(device):
    x = torch.zeros(2, 16, device=device)
    x[0] = torch.tensor([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 0, 1, 2, 3, -1, -2, -3, -127])
    x[1] = x[0] * 3
    q, scale = quantize_int8(x, 16)
    assert q[0].tolist() == [127, 0, 2, 2, 0, -2, -2, 126, 0, 1, 2, 3, -1, -2, -3, -127]
    assert scale.tolist() == [1.0, 3.0]
    again, _ = quantize_int8(dequantize_int8(q, scale, 16), 16)
    assert torch.equal(again, q)


@DEVICES
def test_zeros_tiny_values_and_values_that_are_not_finite(device):
    x = torch.ones(6, 16, device=device)
    x[0] = 0.0
    x[1] = 1e-40  # 127 / 1e-40 is no fp32
    x[2, 3] = math.nan
    x[3, 3] = -math.inf
    x[4, 3] = 3e38
    q, scale = quantize_int8(x, 16)
    back = dequantize_int8(q, scale, 16)
    assert (back[0] == 0).all() and (back[1] == 0).all()
    assert back[2].isnan().all() and back[3].isnan().all()
    assert back[4].isfinite().all() and (back[5] == 1).all()


@DEVICES
def test_views_are_read_in_row_major_order(device):
    x = torch.randn(40, 30, device=device)
    for view in (x.T, x[::2], x[:, 3:20]):
        q, scale = quantize_int8(view, 32)
        q_copy, scale_copy = quantize_int8(view.contiguous(), 32)
        assert torch.equal(q, q_copy) and torch.equal(scale, scale_copy)


def test_bad_input():
    x = torch.ones(64)
    with pytest.raises(TypeError, match="x: need float32"):
        quantize_int8(x.double())
    for block in (0, 8, 100, 8192):
        with pytest.raises(ValueError, match="block"):
            quantize_int8(x, block)
    q, scale = torch.ones(64, dtype=torch.int8), torch.ones(4)
    with pytest.raises(TypeError, match="q, scale"):
        dequantize_int8(x, scale, 16)
    with pytest.raises(TypeError, match="dtype"):
        dequantize_int8(q, scale, 16, torch.float64)
    with pytest.raises(ValueError, match="scale"):
        dequantize_int8(q, scale, 32)
