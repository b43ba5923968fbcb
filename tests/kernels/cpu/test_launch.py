"""Launching: grids, arguments of every kind, threads, processes, caching, tuning, and errors a user can act on."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from braidwork.kernels.launch import launch

Pair = namedtuple("Pair", ["scale", "shift"])


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, scale, BLOCK: tl.constexpr):
    """y[i] = x[i] * scale."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * scale, mask=offs < n)


@triton.jit
def strided_kernel(x_ptr, y_ptr, stride_m, stride_n, M: tl.constexpr, N: tl.constexpr):
    """y[m, n] = x[m, n] for a strided x and a contiguous y."""
    offs_m, offs_n = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    tl.store(y_ptr + offs_m * N + offs_n, tl.load(x_ptr + offs_m * stride_m + offs_n * stride_n))


@triton.jit
def optional_kernel(x_ptr, bias_ptr, y_ptr, flag, pair, N: tl.constexpr, MODE: tl.constexpr = "plain"):
    """Arguments that may be None, a bool, a named tuple, a string constant."""
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs) * pair.scale + pair.shift
    if bias_ptr is not None:
        x += tl.load(bias_ptr + offs)
    if flag:
        x = -x
    if MODE == "double":
        x = x * 2
    tl.store(y_ptr + offs, x)


@triton.jit
def numbers_kernel(y_ptr, a, b):
    """y = [a, b] in the type of y."""
    tl.store(y_ptr, a)
    tl.store(y_ptr + 1, b)


@triton.jit
def count_kernel(counter_ptr, order_ptr):
    """order[pid] = how many programs started before."""
    tl.store(order_ptr + tl.program_id(0), tl.atomic_add(counter_ptr, 1))


@triton.jit
def empty_kernel(x_ptr):
    pass


@triton.jit
def descriptor_kernel(x, y, M: tl.constexpr, N: tl.constexpr):
    """y = x + 1 through tensor descriptors made on the host."""
    at = tl.program_id(0) * M
    y.store([at, 0], x.load([at, 0]) + 1)


@triton.autotune([triton.Config({"BLOCK": b}) for b in (64, 256)], key=["n"])
@triton.jit
def tuned_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + 1, mask=offs < n)


def by_subscript(kernel, grid, *args, **meta):
    return kernel[grid](*args, **meta)


both_ways = pytest.mark.parametrize("run", [by_subscript, launch], ids=["subscript", "launch"])


@both_ways
def test_empty_grids(run: Callable) -> None:
    """No program runs, whichever axis is empty."""
    y = torch.full((4,), 7.0)
    for grid in [(0,), (0, 3), (3, 0), (2, 2, 0)]:
        run(scale_kernel, grid, torch.ones(4), y, 4, 2.0, BLOCK=4)
    assert (y == 7).all()


@both_ways
def test_large_grids(run: Callable) -> None:
    order, counter = torch.full((300_000,), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    run(count_kernel, (300_000,), counter, order)
    assert counter.item() == 300_000
    assert torch.equal(order.sort().values, torch.arange(300_000, dtype=torch.int32))


def test_grid_of_a_function() -> None:
    x = torch.randn(1000)
    y = torch.empty(1000)
    scale_kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, y, 1000, 3.0, BLOCK=128)
    assert torch.equal(y, x * 3)


@both_ways
def test_specialisations(run: Callable) -> None:
    """The same kernel with other values, alignments, dtypes and types of integers, in any order, repeatedly."""
    for _ in range(2):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.int32):
            for n in (1, 16, 17, 1000):
                for offset in (0, 1):
                    x = torch.arange(n + 1).to(dtype)[offset : offset + n]
                    y = torch.zeros(n + 1, dtype=dtype)[offset : offset + n]
                    run(scale_kernel, (triton.cdiv(n, 128),), x, y, n, 2, BLOCK=128)
                    assert torch.equal(y, x * 2), (dtype, n, offset)


@both_ways
@pytest.mark.parametrize("a, b", [(2**40 + 1, -(2**40)), (2**31, -(2**31)), (2**63 - 1, 1), (5, 16), (1, 0)])
def test_integer_arguments(run: Callable, a: int, b: int) -> None:
    y = torch.zeros(2, dtype=torch.int64)
    run(numbers_kernel, (1,), y, a, b)
    assert y.tolist() == [a, b]


@both_ways
def test_other_scalar_arguments(run: Callable) -> None:
    """Bools are 0 and 1; floats are fp32 in the kernel; inf and NaN arrive."""
    y = torch.zeros(2, dtype=torch.float64)
    run(numbers_kernel, (1,), y, True, 0.1)
    assert y.tolist() == [1.0, float(np.float32(0.1))]
    run(numbers_kernel, (1,), y, float("-inf"), float("nan"))
    assert y[0] == float("-inf") and y[1].isnan()
    run(numbers_kernel, (1,), y, False, -0.0)
    assert y.tolist() == [0.0, 0.0] and np.signbit(y[1].item())


@both_ways
@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mode", ["plain", "double"])
def test_optional_and_tuple_arguments(run: Callable, flag: bool, bias: bool, mode: str) -> None:
    x, b, y = torch.randn(16), torch.randn(16), torch.empty(16)
    run(optional_kernel, (1,), x, b if bias else None, y, flag, Pair(2.0, 3), N=16, MODE=mode)
    want = (x * 2 + 3 + (b if bias else 0)) * (-1 if flag else 1) * (2 if mode == "double" else 1)
    torch.testing.assert_close(y, want)


@both_ways
def test_views(run: Callable) -> None:
    """Strided, transposed, offset and expanded tensors are read where their strides say."""
    base = torch.randn(40, 50)
    for x in (
        base[3:11, 5:21],
        base[::2, ::3][:8, :16],
        base.T[:8, :16],
        base[7, :16].expand(8, 16),
        base[:8, 4:5].expand(8, 16),
    ):
        y = torch.full((8, 16), torch.nan)
        run(strided_kernel, (1,), x, y, x.stride(0), x.stride(1), M=8, N=16)
        assert torch.equal(y, x)


class Tagged(torch.Tensor):
    """A subclass with no behaviour of its own."""


@both_ways
def test_kinds_of_tensors(run: Callable) -> None:
    """Parameters, subclasses, tensors that want gradients, pinned dtypes of one byte, empty ones."""
    plain = torch.arange(8.0)
    for x in (torch.nn.Parameter(plain.clone()), plain.as_subclass(Tagged), plain.clone().requires_grad_()):
        y = torch.zeros(8)
        run(scale_kernel, (1,), x, y, 8, 2.0, BLOCK=8)
        assert torch.equal(y, plain * 2)
    none = torch.empty(0)
    run(scale_kernel, (1,), none, none, 0, 2.0, BLOCK=8)


@both_ways
def test_options_of_gpus_are_accepted(run: Callable) -> None:
    y = torch.zeros(8)
    run(scale_kernel, (1,), torch.ones(8), y, 8, 4.0, BLOCK=8, num_warps=8, num_stages=3)
    assert (y == 4).all()


def test_host_descriptors() -> None:
    x, y = torch.randn(20, 16), torch.zeros(20, 16)
    descriptors = [TensorDescriptor.from_tensor(t, [8, 16]) for t in (x, y)]
    descriptor_kernel[(3,)](*descriptors, M=8, N=16)
    assert torch.equal(y, x + 1)


def test_empty_kernel_returns() -> None:
    launch(empty_kernel, (1000,), torch.zeros(1))


# -- threads and processes


@both_ways
def test_two_threads_launch_at_once(run: Callable) -> None:
    """From the first compilation on: no launch sees another's arguments, and no kernel is half compiled."""
    failures: list[str] = []
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        x = torch.full((10_000 + seed,), float(seed))
        start.wait()
        for k in range(100):
            y = torch.full_like(x, torch.nan)
            run(scale_kernel, (triton.cdiv(len(x), 512),), x, y, len(x), k, BLOCK=512)
            if not torch.equal(y, x * k):
                failures.append(f"thread {seed}, launch {k}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not failures and not any(t.is_alive() for t in threads)


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, run):
        ctx.run, ctx.thread = run, threading.get_ident()
        y = torch.empty_like(x)
        run(scale_kernel, (1,), x, y, x.numel(), 3.0, BLOCK=64)
        return y

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        ctx.run(scale_kernel, (1,), grad.contiguous(), out, grad.numel(), 3.0, BLOCK=64)
        return out, None


@both_ways
def test_backward_thread(run: Callable) -> None:
    x = torch.randn(64, requires_grad=True)
    for _ in range(20):
        (grad,) = torch.autograd.grad((Triple.apply(Triple.apply(x, run), run) * 2).sum(), x)
        assert torch.equal(grad, torch.full((64,), 18.0))


def in_process(body: str, tmp_path: Path, **env: str) -> str:
    """Run a program that has `scale` (launch x * 2 and check it) in a process of its own; returns what it prints."""
    program = """
        import os, sys, torch, triton, triton.language as tl
        import braidwork.kernels
        from braidwork.kernels.launch import launch

        @triton.jit
        def scale_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
            offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)

        def scale(n=100_000):
            x, y = torch.randn(n), torch.empty(n)
            scale_kernel[(triton.cdiv(n, 256),)](x, y, n, BLOCK=256)
            assert torch.equal(y, x * 2)
            y.zero_()
            launch(scale_kernel, (triton.cdiv(n, 256),), x, y, n, BLOCK=256)
            assert torch.equal(y, x * 2)
    """
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program) + textwrap.dedent(body))
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=120, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_forked_processes(tmp_path: Path) -> None:
    """A data loader's forked workers launch after their parent did, while its pool of threads exists."""
    body = """
        class Items(torch.utils.data.Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, k):
                scale(1000 + k)
                return k

        scale()
        options = dict(num_workers=2, batch_size=2, timeout=60, multiprocessing_context="fork")
        loader = torch.utils.data.DataLoader(Items(), **options)
        print(sorted(torch.cat(list(loader)).tolist()))
        pid = os.fork()
        if pid == 0:
            torch.set_num_threads(1)
            scale()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        scale()
    """
    assert in_process(body, tmp_path).strip() == str(list(range(8)))


def test_objects_are_cached_across_processes(tmp_path: Path) -> None:
    body = """
        hits = []
        triton.knobs.compilation.listener = lambda *, cache_hit, **rest: hits.append(cache_hit)
        scale()
        print(hits)
    """
    cache = str(tmp_path / "cache")
    first, second = (in_process(body, tmp_path, TRITON_CACHE_DIR=cache).strip() for _ in range(2))
    assert (first, second) == ("[False]", "[True]")


def test_interpreter_still_works(tmp_path: Path) -> None:
    """TRITON_INTERPRET=1 wins over the backend."""
    body = "scale(500)\nprint(type(scale_kernel).__name__)"
    assert in_process(body, tmp_path, TRITON_INTERPRET="1").strip() == "InterpretedFunction"


def test_number_of_threads_is_obeyed() -> None:
    """One thread runs the programs in order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        order, counter = torch.full((20_000,), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        launch(count_kernel, (20_000,), counter, order)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(order, torch.arange(20_000, dtype=torch.int32))


# -- tuning


def test_autotune() -> None:
    x, y = torch.randn(1000), torch.zeros(1000)
    for n in (1000, 500):
        y.zero_()
        tuned_kernel[lambda meta, n=n: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
        assert torch.equal(y[:n], x[:n] + 1) and (y[n:] == 0).all()
    assert tuned_kernel.best_config.kwargs["BLOCK"] in (64, 256)


def test_do_bench() -> None:
    """Milliseconds, from the benchmarker that Triton's own helper uses."""
    x, y = torch.randn(1 << 16), torch.empty(1 << 16)
    ms = triton.testing.do_bench(lambda: launch(scale_kernel, (64,), x, y, 1 << 16, 2.0, BLOCK=1024), warmup=5, rep=20)
    assert 0 < ms < 1000


def test_warmup_compiles_without_running() -> None:
    x = torch.zeros(8)
    compiled = empty_kernel.warmup(x, grid=(1,))
    assert compiled.asm["ttir"] and compiled.metadata.name == "empty_kernel"


# -- errors


@both_ways
@pytest.mark.parametrize(
    "bad, words",
    [
        (lambda: torch.zeros(4, device="meta"), "meta"),
        (lambda: np.zeros(4, np.float32), "numpy|ndarray"),
        (lambda: torch.zeros(4, dtype=torch.complex64), "complex"),
        (lambda: [1.0, 2.0], "list"),
        (lambda: torch.zeros(4).to_sparse(), "sparse|layout"),
    ],
    ids=["another device", "numpy", "complex", "list", "sparse"],
)
def test_bad_arguments(run: Callable, bad: Callable, words: str) -> None:
    """The error says which argument, what it was, and before anything ran."""
    of_triton = isinstance(bad(), (np.ndarray, list)) or bad().is_complex()
    if run is by_subscript and of_triton:
        pytest.skip("Triton's own front end refuses it first, without naming the argument")
    y = torch.full((4,), 7.0)
    with pytest.raises((TypeError, ValueError), match=rf"(?si)x_ptr.*({words})|({words}).*x_ptr"):
        run(scale_kernel, (1,), bad(), y, 4, 2.0, BLOCK=4)
    assert (y == 7).all()


@both_ways
def test_missing_argument(run: Callable) -> None:
    with pytest.raises(TypeError, match="scale|BLOCK"):
        run(scale_kernel, (1,), torch.ones(4), torch.ones(4), 4, BLOCK=4)


def test_too_large_integer() -> None:
    with pytest.raises((OverflowError, TypeError, ValueError)):
        launch(numbers_kernel, (1,), torch.zeros(2, dtype=torch.int64), 2**70, 1)
