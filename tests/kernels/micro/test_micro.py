"""The dense kernels against fp64 references, over dtypes, ragged shapes, strides and values that are not finite."""

from __future__ import annotations

import math

import pytest
import torch

from braidwork.kernels.micro import elementwise, matmul, multiply_add_relu, softmax
from braidwork.kernels.testing import FLOAT_DTYPES, assert_close, devices

DEVICES = pytest.mark.parametrize("device", devices())
DTYPES = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def normal(*shape: int, device: str, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, dtype=torch.float64) * scale).to(device, dtype)


@DEVICES
@DTYPES
@pytest.mark.parametrize(
    ("M", "N", "K"),
    [(1, 1, 1), (7, 5, 3), (64, 128, 64), (33, 70, 129), (1, 300, 17), (200, 1, 64), (5, 6, 0), (0, 4, 3)],
    ids=str,
)
def test_matmul(device, dtype, M, N, K):
    a, b = normal(M, K, device=device, dtype=dtype), normal(K, N, device=device, dtype=dtype)
    ref = a.cpu().double() @ b.cpu().double()
    assert_close("c", matmul(a, b), ref, baseline=a @ b)


@DEVICES
def test_matmul_of_views(device):
    big = normal(80, 90, device=device, dtype=torch.float32)
    for a, b in (
        (big[3:40, 5:70], big[:65, 8:41]),  # row strides wider than the rows
        (big.T, big),  # stride 1 in the wrong place
        (big[:, 10::2], big[::2]),
        (big[:1].expand(7, 90), big.T),  # row stride 0
    ):
        assert_close("c", matmul(a, b), a.cpu().double() @ b.cpu().double(), baseline=a @ b)


@DEVICES
@DTYPES
def test_matmul_keeps_sums_wide(device, dtype):
    # 1 + 4096 small terms: each is lost if the sum is kept in 16 bits, all of them together are 1.
    K = 4097
    a = torch.full((8, K), 1 / 4096, dtype=dtype, device=device)
    a[:, 0] = 1.0
    c = matmul(a, torch.ones(K, 16, dtype=dtype, device=device))
    assert_close("c", c, torch.full((8, 16), 2.0, dtype=torch.float64))


@DEVICES
def test_matmul_propagates_nan_and_infinity(device):
    a, b = normal(20, 40, device=device, dtype=torch.float32), normal(40, 50, device=device, dtype=torch.float32)
    a[3, 7], a[5, 1], b[0, 9] = math.nan, math.inf, -math.inf
    assert_close("c", matmul(a, b), a.cpu().double() @ b.cpu().double(), baseline=a @ b)


@DEVICES
@DTYPES
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (4, 64), (17, 129), (2, 4096), (1, 20_000), (0, 8), (3, 0)], ids=str)
def test_softmax(device, dtype, shape):
    x = normal(*shape, device=device, dtype=dtype, scale=5.0)
    assert_close("y", softmax(x), torch.softmax(x.cpu().double(), 1), baseline=torch.softmax(x, 1))


@DEVICES
@pytest.mark.parametrize("cols", [6, 1000])
def test_softmax_of_extreme_rows(device, cols):
    x = normal(8, cols, device=device, dtype=torch.float32)
    x[0] = 1e30  # exp would overflow without the subtraction of the maximum
    x[1, 0] = -math.inf
    x[2] = -math.inf
    x[3, cols // 2] = math.nan
    x[4, 1] = math.inf
    x[5] *= 1e-40
    x[6] = torch.linspace(-200, 200, cols)
    assert_close("y", softmax(x), torch.softmax(x.cpu().double(), 1), baseline=torch.softmax(x, 1))
    tilted = normal(cols, 5, device=device, dtype=torch.float32).T
    assert_close("y", softmax(tilted), torch.softmax(tilted.cpu().double(), 1))
    part = normal(4, cols + 7, device=device, dtype=torch.float32)[:, 3:-4]
    assert_close("y", softmax(part), torch.softmax(part.cpu().double(), 1))


@DEVICES
@DTYPES
@pytest.mark.parametrize("shape", [(1,), (1000,), (33, 129), (4096,), (0,), ()], ids=str)
def test_multiply_add_relu(device, dtype, shape):
    a, b, c = (normal(*shape, device=device, dtype=dtype) for _ in range(3))
    ref = torch.relu(a.cpu().double() * b.cpu().double() + c.cpu().double())
    assert_close("y", multiply_add_relu(a, b, c), ref, baseline=torch.relu(a * b + c))


@DEVICES
def test_multiply_add_relu_of_views_and_special_values(device):
    a = normal(9, 14, device=device, dtype=torch.float32).T
    b, c = normal(28, 9, device=device, dtype=torch.float32)[::2], normal(14, 1, device=device, dtype=torch.float32)
    c = c.expand(14, 9).clone()
    c[0, 0], c[1, 1], c[2, 2] = math.nan, math.inf, -math.inf
    y = multiply_add_relu(a, b, c)
    assert y.is_contiguous()
    ref = torch.relu(a.cpu().double() * b.cpu().double() + c.cpu().double())
    assert_close("y", y, ref, baseline=torch.relu(a * b + c))
    assert elementwise.cost(10, 4).bytes == 160


@DEVICES
def test_bad_input(device):
    x = torch.ones(4, 4, device=device)
    for bad in (x[0], x[:3], torch.ones(4, 4, device="meta")):
        with pytest.raises(ValueError, match="a, b:|b:|device"):
            matmul(x, bad)
    for bad in (x.half(), x.int()):
        with pytest.raises(TypeError, match="dtype"):
            matmul(x, bad)
        with pytest.raises(TypeError, match="dtype"):
            multiply_add_relu(x, x, bad)
    with pytest.raises(TypeError, match="dtype"):
        multiply_add_relu(x.int(), x.int(), x.int())
    with pytest.raises(ValueError, match="b: shape"):
        multiply_add_relu(x, x[:3], x)
    with pytest.raises(ValueError, match="matrix"):
        softmax(x[0])
    with pytest.raises(TypeError, match="floating-point"):
        softmax(x.int())
