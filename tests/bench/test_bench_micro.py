"""The dense kernels, a launch and a compilation on this CPU, beside PyTorch in one process, in turns.

The floors are 0.8 of what the project asks of itself, so that they catch a regression and not a busy machine.
"""

from __future__ import annotations

import pytest
import torch
import triton

from braidwork.kernels import backend_of
from braidwork.kernels.codec import quantize_int8
from braidwork.kernels.codec.quantize import cost as quantize_cost
from braidwork.kernels.launch import launch
from braidwork.kernels.micro import multiply_add_relu, softmax
from braidwork.kernels.micro.elementwise import cost as elementwise_cost
from braidwork.kernels.micro.softmax import cost as softmax_cost
from braidwork.kernels.testing import assert_close
from braidwork.kernels.timing import compare, copy_bandwidth

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton runs on the GPU here")


def race(benchmark, capsys, name, calls, cost, floor):
    """Time `calls` in turns, the first against the second, and hold the first to a floor."""
    ours, peer = calls
    timing = compare(calls, rounds=15, device="cpu")
    with capsys.disabled():
        print(f"\n{name}\n{timing.table(over=peer, cost=cost)}")
    speedup = timing.speedup(ours, over=peer)
    benchmark.extra_info.update(speedup=speedup, gb_per_s=timing[ours].gb_per_s(cost))
    benchmark(calls[ours])
    assert speedup >= floor
    return timing


def test_elementwise_chain(benchmark, capsys):
    a, b, c = (torch.randn(1 << 24) for _ in range(3))
    compiled = torch.compile(lambda a, b, c: torch.relu(a * b + c))
    torch.testing.assert_close(multiply_add_relu(a, b, c), compiled(a, b, c))
    calls = {"braidwork": lambda: multiply_add_relu(a, b, c), "torch.compile": lambda: compiled(a, b, c)}
    timing = race(benchmark, capsys, "multiply-add-relu, 16 Mi", calls, elementwise_cost(1 << 24, 4), 0.8 * 0.9)
    with capsys.disabled():
        print(f"a plain copy: {copy_bandwidth() / 1e9:.1f} GB/s")
    assert len(timing) == 2


def test_softmax(benchmark, capsys):
    x = torch.randn(2048, 4096)
    assert_close("y", softmax(x), torch.softmax(x.double(), 1), baseline=torch.softmax(x, 1))
    calls = {"braidwork": lambda: softmax(x), "torch": lambda: torch.softmax(x, 1)}
    race(benchmark, capsys, "softmax, 2048 x 4096", calls, softmax_cost(2048, 4096, 4), 0.8)


def test_quantize(benchmark, capsys):
    x = torch.randn(1 << 22)

    def eager() -> tuple[torch.Tensor, torch.Tensor]:
        blocks = x.view(-1, 256)
        scale = blocks.abs().amax(1, keepdim=True) / 127
        return torch.round(blocks / scale).to(torch.int8), scale

    (q, scale), (q_eager, scale_eager) = quantize_int8(x), eager()
    torch.testing.assert_close(scale, scale_eager.view(-1))
    assert (q.int() - q_eager.view(-1).int()).abs().max() <= 1  # they round at different points
    calls = {"braidwork": lambda: quantize_int8(x), "eager torch": eager}
    race(benchmark, capsys, "quantise to int8, 4 Mi", calls, quantize_cost(1 << 22, 4, 256), 0.8 * 3)


@triton.jit
def empty_kernel(x_ptr, y_ptr, z_ptr, n, m, BLOCK: triton.language.constexpr):
    """Nothing."""


def test_launch(benchmark, capsys):
    """Python call to return of a cached kernel with an empty body, one program and five arguments."""
    x = torch.zeros(4)
    assert backend_of(x.device) == "cpu"
    timing = compare({"launch": lambda: launch(empty_kernel, (1,), x, x, x, 5, 7, BLOCK=4)}, rounds=50, device="cpu")
    with capsys.disabled():
        print(f"\nlaunch of an empty kernel: {timing['launch'].median_s * 1e6:.1f} us")
    benchmark(lambda: launch(empty_kernel, (1,), x, x, x, 5, 7, BLOCK=4))
    assert timing["launch"].median_s < 15e-6 / 0.8
