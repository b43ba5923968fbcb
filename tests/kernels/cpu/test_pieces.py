"""Reductions and scans of tensors that are too large for straight code: loops over pieces of the tensor."""

from __future__ import annotations

import pytest

from braidwork.kernels.cpu import reduce

from .harness import Interpreter, Kernel, Tol, differ, values

# With pieces of 128 elements: groups of whole slices; parts of the axis, more than once; columns of wide slices.
SHAPES = [(64, 4), (512,), (2, 128, 2), (8, 64), (4, 128), (2, 4, 128)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pieces(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    """Along every axis and in both directions: a sum, a region that is not commutative, and one with control flow."""
    monkeypatch.setattr(reduce, "STRAIGHT", 1)
    loops: list[int] = []
    for name in ("_reduce_pieces", "_scan_pieces"):
        real = getattr(reduce, name)
        monkeypatch.setattr(reduce, name, lambda *args, real=real: loops.append(1) or real(*args))
    n = values("i32", shape, 2)
    setup = f"at = tl.reshape(tl.arange(0, {n.numel()}), {list(shape)})\n"
    setup += "x = tl.load(x_ptr + at)\nn = tl.load(n_ptr + at)\n"
    exprs: list = []
    for axis in range(len(shape)):
        setup += f"a{axis}, b{axis} = tl.reduce((n, n + 1), {axis}, linear_combine)\n"
        exprs += [(f"tl.sum(x, {axis})", Tol(64, of_max=True)), f"a{axis}", f"b{axis}"]
        exprs += [f"tl.reduce(x, {axis}, select_combine)", f"tl.max(x > 0, {axis})"]
        for reverse in (False, True):
            name = f"{axis}{'r' if reverse else ''}"
            setup += f"c{name}, d{name} = tl.associative_scan((n, n + 1), {axis}, linear_combine, {reverse})\n"
            exprs += [f"c{name}", f"d{name}", f"tl.associative_scan(x, {axis}, select_combine, {reverse})"]
    args = {"x_ptr": values("f32", shape, 1, special=False), "n_ptr": n}
    differ(interpreter, Kernel(setup, exprs, args))
    assert loops
