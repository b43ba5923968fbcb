"""device_print, device_assert, and the error for an op that the backend does not have."""

from __future__ import annotations

import inspect

import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def print_kernel(x_ptr, n):
    x = tl.load(x_ptr + tl.arange(0, 4))
    if tl.program_id(0) == 1:
        tl.device_print("value of x", x)
        tl.device_print("n and pid", n, tl.program_id(0))
        tl.device_print("just words")
        tl.device_print("in hex", n, hex=True)
        tl.device_print("a flag", n > 3)


@triton.jit(debug=True)
def assert_kernel(x_ptr, y_ptr):
    i = tl.arange(0, 8)
    x = tl.load(x_ptr + i)
    tl.device_assert(x >= 0, "x must not be negative")
    tl.store(y_ptr + i, x)


@triton.jit
def quiet_assert_kernel(x_ptr, y_ptr):
    i = tl.arange(0, 8)
    x = tl.load(x_ptr + i)
    tl.device_assert(x >= 0, "x must not be negative")
    tl.store(y_ptr + i, x)


@triton.jit
def asm_kernel(x_ptr):
    i = tl.arange(0, 8)
    y = tl.inline_asm_elementwise("mov.u32 $0, $1;", "=r,r", [tl.load(x_ptr + i)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(x_ptr + i, y)


@pytest.mark.parametrize(
    "dtype, shown",
    [(torch.int32, "-7"), (torch.float32, "-7"), (torch.int8, "-7"), (torch.float64, "-7"), (torch.bfloat16, "-7")],
)
def test_device_print(capfd: pytest.CaptureFixture[str], dtype: torch.dtype, shown: str) -> None:
    print_kernel[(3,)](torch.tensor([5, -7, 11, 13], dtype=dtype), 255)
    out = capfd.readouterr().out
    assert out.count("value of x") >= 1 and shown in out and "11" in out and "13" in out
    assert "n and pid" in out and "255" in out and "just words" in out
    assert "in hex" in out and "ff" in out.lower() and "a flag" in out


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.int8])
def test_device_assert(dtype: torch.dtype) -> None:
    x, y = torch.arange(8).to(dtype), torch.zeros(8, dtype=dtype)
    assert_kernel[(4,)](x, y)
    assert torch.equal(x, y)
    x[5] = -1
    with pytest.raises((AssertionError, RuntimeError), match="x must not be negative"):
        assert_kernel[(4,)](x, y)
    x[5] = 5
    y.zero_()
    assert_kernel[(4,)](x, y)  # a failure does not outlive its launch
    assert torch.equal(x, y)


def test_device_assert_is_off_by_default() -> None:
    x, y = torch.full((8,), -1.0), torch.zeros(8)
    quiet_assert_kernel[(1,)](x, y)
    assert torch.equal(x, y)


def test_integer_overflow_is_caught_in_debug_mode() -> None:
    """Triton's own overflow checks become assertions."""
    x = torch.full((8,), 2**31 - 1, dtype=torch.int32)

    with pytest.raises((AssertionError, RuntimeError), match="overflow"):
        overflow_kernel[(1,)](x)


@triton.jit(debug=True)
def overflow_kernel(x_ptr):
    i = tl.arange(0, 8)
    tl.store(x_ptr + i, tl.load(x_ptr + i) + tl.load(x_ptr + i))


def test_unsupported_op_is_named() -> None:
    """The error carries the op, the kernel and the line of its source."""
    lines, first = inspect.getsourcelines(asm_kernel.fn)
    line = first + next(k for k, text in enumerate(lines) if "inline_asm" in text)
    with pytest.raises(Exception) as caught:
        asm_kernel[(1,)](torch.zeros(8, dtype=torch.int32))
    text = "".join(str(e) for e in (caught.value, caught.value.__cause__) if e is not None)
    assert "elementwise_inline_asm" in text and "asm_kernel" in text and f"test_debug.py:{line}" in text, text
