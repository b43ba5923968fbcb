"""The dense product against PyTorch's, in one process, in turns: compute-bound, tall and skinny, ragged."""

from __future__ import annotations

import pytest
import torch

from braidwork.kernels.micro.matmul import cost, matmul
from braidwork.kernels.testing import assert_close, devices
from braidwork.kernels.timing import compare


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("M", "N", "K"), [(1024, 1024, 512), (20_000, 64, 256), (2708, 16, 1433)], ids=str)
def test_matmul(benchmark, capsys, device, dtype, M, N, K):
    a, b = (torch.randn(shape, device=device).to(dtype) for shape in ((M, K), (K, N)))
    assert_close("c", matmul(a, b), a.double() @ b.double(), baseline=a @ b)
    calls = {"matmul": lambda: matmul(a, b), "torch": lambda: a @ b}
    timings = compare(calls, rounds=20, device=device)
    work = cost(M, N, K, a.element_size())
    with capsys.disabled():
        print(f"\nmatmul {M} x {N} x {K}, {dtype}\n{timings.table(cost=work)}")
    benchmark.extra_info.update(
        speedup=timings.speedup("matmul", over="torch"), gflop_per_s=timings["matmul"].gflop_per_s(work)
    )
    benchmark(calls["matmul"])
