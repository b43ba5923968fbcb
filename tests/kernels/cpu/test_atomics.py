"""Atomic operations: the value left in memory and the one returned, masks, conflicts within and between programs."""

from __future__ import annotations

import pytest
import torch

from .harness import Interpreter, Kernel, Tol, differ, rng, values

INTEGER = ("add", "max", "min", "and", "or", "xor", "xchg")
OPS = {
    "i32": INTEGER,
    "u32": INTEGER,
    "i64": INTEGER,
    "u64": INTEGER,
    "f16": ("add",),
    "f32": ("add", "max", "min", "xchg"),
    "f64": ("add", "max", "min", "xchg"),
}
CASES = [(dtype, op) for dtype, ops in OPS.items() for op in ops]


@pytest.mark.parametrize("dtype, op", CASES)
def test_blocks(interpreter: Interpreter, dtype: str, op: str) -> None:
    """Distinct places: every returned value is the old one, every masked place is untouched."""
    setup = f"""
        i = tl.arange(0, 64)
        x = tl.load(x_ptr + i)
        a = tl.atomic_{op}(y_ptr + i, x)
        b = tl.atomic_{op}(y_ptr + 64 + i * 2, x, mask=i < 23)
        c = tl.atomic_{op}(y_ptr + 192 + i, x, mask=i % 3 == 0)
        d = tl.atomic_{op}(y_ptr + 256 + i, tl.load(x_ptr + 3), mask=i > 50)
        tl.atomic_{op}(y_ptr + 320 + i, x, mask=i < 0)
        g = tl.atomic_{op}(y_ptr + 384 + i[:, None] * 2 + tl.arange(0, 2)[None, :], x[:, None])
    """
    exprs = ["a", "tl.where(i < 23, b, 0)", "tl.where(i % 3 == 0, c, 0)", "tl.where(i > 50, d, 0)", "g"]
    args = {"x_ptr": values(dtype, 64, 1, special=False), "y_ptr": values(dtype, 512, 2, special=False)}
    differ(interpreter, Kernel(setup, exprs, args))


@pytest.mark.parametrize("dtype, op", CASES)
def test_scalars(interpreter: Interpreter, dtype: str, op: str) -> None:
    setup = f"""
        x = tl.load(x_ptr + 1)
        a = tl.atomic_{op}(y_ptr + n, x)
        b = tl.atomic_{op}(y_ptr + n + 1, x, mask=n > 2)
        c = tl.atomic_{op}(y_ptr + n + 2, x, mask=n > 20)
        d = tl.atomic_{op}(y_ptr + n, tl.load(x_ptr + 2), sem="relaxed", scope="gpu")
    """
    args = {"x_ptr": values(dtype, 8, 1, special=False), "y_ptr": values(dtype, 16, 2, special=False), "n": 5}
    differ(interpreter, Kernel(setup, ["a", "b", "d"], args))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("op", ["max", "min"])
def test_float_extrema(interpreter: Interpreter, dtype: str, op: str) -> None:
    """Negative numbers, both zeros and infinities: the order of floats, not of their bits."""
    odd = [0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), 1e-30, -1e-30]
    x = torch.tensor(odd * 8, dtype=values(dtype, 1).dtype)
    y = torch.tensor(odd, dtype=x.dtype).repeat_interleave(8)
    setup = f"i = tl.arange(0, 64)\na = tl.atomic_{op}(y_ptr + i, tl.load(x_ptr + i))"
    args = {"x_ptr": x, "y_ptr": y}
    differ(interpreter, Kernel(setup, ["a"], args, arg_tol=Tol(1e-9)))


@pytest.mark.parametrize("dtype, op", [c for c in CASES if c[1] != "xchg"])
def test_conflicts(interpreter: Interpreter, dtype: str, op: str) -> None:
    """Many programs, and lanes of one block, on the same few places: nothing is lost. Small values add exactly."""
    setup = f"""
        i = tl.program_id(0) * 64 + tl.arange(0, 64)
        tl.atomic_{op}(y_ptr + tl.load(at_ptr + i), tl.load(x_ptr + i))
        tl.atomic_{op}(y_ptr + 8, tl.load(x_ptr + tl.program_id(0)))
    """
    at = torch.from_numpy(rng("conflict").integers(0, 8, 64 * 64)).to(torch.int32)
    x = values(dtype, 64 * 64, 1, special=False, small=True)
    if dtype == "f16":
        x = x.clamp(0, 1)
    args = {"x_ptr": x, "y_ptr": values(dtype, 16, 2, special=False, small=True), "at_ptr": at}
    differ(interpreter, Kernel(setup, [], args, grid=(64,), arg_tol=Tol(1e-9)))


@pytest.mark.parametrize("dtype", ["i32", "i64", "u32", "u64"])
def test_tickets(interpreter: Interpreter, dtype: str) -> None:
    """Every returned value of a shared counter is handed out once, across programs and lanes."""
    setup = """
        ticket = tl.atomic_add(count_ptr, 1)
        tl.atomic_add(seen_ptr + ticket, 1)
        more = tl.atomic_add(count_ptr + 1 + tl.arange(0, 16) * 0, tl.full([16], 1, count_ptr.dtype.element_ty))
        tl.atomic_add(seen_ptr + 256 + more, 1)
    """
    seen = torch.zeros(256 + 256 * 16, dtype=torch.int32)
    args = {"count_ptr": torch.zeros(2, dtype=values(dtype, 1).dtype), "seen_ptr": seen}
    got = differ(interpreter, Kernel(setup, [], args, grid=(256,)))
    assert (got["args"]["seen_ptr"] == 1).all()


@pytest.mark.parametrize("dtype", ["i16", "u16", "i32", "u32", "i64", "u64", "f32", "f64", "f16"])
def test_cas(interpreter: Interpreter, dtype: str) -> None:
    """Compare and swap that succeeds and that fails, on scalars and blocks; the old value comes back."""
    setup = """
        i = tl.arange(0, 64)
        old = tl.load(y_ptr + i)
        a = tl.atomic_cas(y_ptr + i, tl.where(i % 2 == 0, old, tl.load(x_ptr + i)), tl.load(x_ptr + i))
        s = tl.load(y_ptr + 70)
        b = tl.atomic_cas(y_ptr + 70, s, tl.load(x_ptr + 1))
        c = tl.atomic_cas(y_ptr + 71, tl.load(x_ptr + 2), tl.load(x_ptr + 3))
    """
    args = {"x_ptr": values(dtype, 64, 1, special=False), "y_ptr": values(dtype, 128, 2, special=False)}
    differ(interpreter, Kernel(setup, ["a", "b", "c"], args))


def test_lock(interpreter: Interpreter) -> None:
    """A spin lock by cas and xchg keeps read, add, write whole across programs."""
    setup = """
        i = tl.arange(0, 32)
        while tl.atomic_cas(lock_ptr, 0, 1) == 1:
            pass
        x = tl.load(y_ptr + i)
        tl.store(y_ptr + i, x + i)
        tl.debug_barrier()
        tl.atomic_xchg(lock_ptr, 0)
    """
    args = {"lock_ptr": torch.zeros(1, dtype=torch.int32), "y_ptr": torch.zeros(32, dtype=torch.int32)}
    got = differ(interpreter, Kernel(setup, [], args, grid=(200,)))
    assert torch.equal(got["args"]["y_ptr"], 200 * torch.arange(32, dtype=torch.int32))


@pytest.mark.parametrize("sem", ["relaxed", "acquire", "release", "acq_rel"])
@pytest.mark.parametrize("scope", ["cta", "gpu", "sys"])
def test_orders_and_scopes(interpreter: Interpreter, sem: str, scope: str) -> None:
    setup = f"""
        i = tl.arange(0, 16)
        a = tl.atomic_add(y_ptr + i, i, sem="{sem}", scope="{scope}")
        b = tl.atomic_cas(y_ptr + 20, 0, 5, sem="{sem}", scope="{scope}")
        c = tl.atomic_xchg(y_ptr + 21, 7, sem="{sem}", scope="{scope}")
    """
    differ(interpreter, Kernel(setup, ["a", "b", "c"], {"y_ptr": torch.arange(32, dtype=torch.int32)}))


def test_atomic_load_and_store(interpreter: Interpreter) -> None:
    setup = """
        i = tl.arange(0, 16)
        a = tl.atomic_load(y_ptr + i, sem="acquire")
        s = tl.atomic_load(y_ptr + 3)
        tl.atomic_store(y_ptr + 16 + i, a * 2, sem="release")
        tl.atomic_store(y_ptr + 40, s + 1)
    """
    differ(interpreter, Kernel(setup, ["a", "s"], {"y_ptr": torch.arange(64, dtype=torch.int32)}))
