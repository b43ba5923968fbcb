"""Ops that move elements and compute nothing: exact for every dtype."""

from __future__ import annotations

import itertools

import pytest
import torch

from .harness import ALL, Interpreter, Kernel, check_native, differ, rng, values

SOME = ("i1", "i8", "i64", "f16", "f32")


def block(shape: tuple[int, ...], name: str = "x") -> str:
    return f"{name} = tl.load({name}_ptr + tl.reshape(tl.arange(0, {torch.Size(shape).numel()}), {list(shape)}))"


@pytest.mark.parametrize("dtype", ALL)
def test_every_dtype(interpreter: Interpreter, dtype: str) -> None:
    setup = (
        block((8, 16)) + "\n" + block((8, 16), "y") + "\na, b = tl.split(tl.reshape(x, [64, 2]))\ns = tl.load(x_ptr)"
    )
    exprs = [
        "tl.trans(x)",
        "x.T",
        "tl.permute(x, 1, 0)",
        "tl.reshape(x, [4, 32])",
        "tl.reshape(x, [2, 2, 2, 16])",
        "tl.ravel(x)",
        "tl.expand_dims(x, 1)",
        "x[:, None, :]",
        "tl.broadcast_to(tl.load(x_ptr + tl.arange(0, 16))[None, :], [8, 16])",
        "tl.join(x, y)",
        "tl.interleave(x, y)",
        "a",
        "b",
        "tl.flip(x.to(tl.int8) if x.dtype == tl.int1 else x, 1)",
        "tl.broadcast_to(s, [4, 4])",
        "tl.squeeze(tl.unsqueeze(x, 0), 0)",
        "tl.view(x, [16, 8])",
    ]
    # The compiled language may take the elements of a concatenation in any order: sorted here.
    exprs += (
        ["tl.sort(tl.cat(tl.ravel(x), tl.ravel(y), can_reorder=True))"]
        if dtype not in ("i1", "f16", "bf16", "f32", "f64")
        else []
    )
    differ(interpreter, Kernel(setup, exprs, {"x_ptr": values(dtype, 128, 1), "y_ptr": values(dtype, 128, 2)}))


@pytest.mark.parametrize("shape", [(8,), (4, 8), (16, 2), (1, 8), (8, 1), (2, 4, 8), (4, 2, 1), (2, 4, 2, 8)], ids=str)
def test_permutations(interpreter: Interpreter, shape: tuple[int, ...]) -> None:
    """Every order of the axes, of ranks up to 4."""
    exprs = [f"tl.permute(x, {list(p)})" for p in itertools.permutations(range(len(shape))) if len(shape) > 1] or ["x"]
    exprs += [f"tl.trans(x, {list(p)})" for p in itertools.islice(itertools.permutations(range(len(shape))), 1, 3)]
    x = values("f32", shape, 3)
    differ(interpreter, Kernel(block(shape), exprs, {"x_ptr": x}))


@pytest.mark.parametrize("source", [(64,), (8, 8), (2, 32), (64, 1), (1, 64), (4, 4, 4), (2, 2, 4, 4)], ids=str)
def test_reshapes(interpreter: Interpreter, source: tuple[int, ...]) -> None:
    targets = [(64,), (8, 8), (32, 2), (1, 64), (64, 1), (2, 4, 8), (4, 1, 16), (2, 2, 2, 8)]
    exprs = [f"tl.reshape(x, {list(t)})" for t in targets]
    exprs += [f"tl.sum(tl.reshape(x, {list(t)}), {len(t) - 1})" for t in targets]
    exprs += [f"tl.reshape(tl.reshape(x, {list(t)}) * 2, {list(source)}) + x" for t in targets]
    differ(interpreter, Kernel(block(source), exprs, {"x_ptr": values("f32", source, 4, small=True, special=False)}))


@pytest.mark.parametrize("dtype", SOME)
@pytest.mark.parametrize("shape", [(), (1,), (2,), (64,), (4, 16), (16, 1), (2, 4, 8)], ids=str)
def test_join_and_split(interpreter: Interpreter, dtype: str, shape: tuple[int, ...]) -> None:
    if shape:
        setup = block(shape) + "\n" + block(shape, "y")
    else:
        setup = "x = tl.load(x_ptr)\ny = tl.load(y_ptr)"
    setup += "\nj = tl.join(x, y)\na, b = tl.split(j)\nk = tl.join(j, j)\nc, d = tl.split(k)"
    exprs = ["j", "a", "b", "k", "c", "d", "tl.interleave(x, y)"]
    differ(
        interpreter,
        Kernel(
            setup,
            exprs,
            {
                "x_ptr": values(dtype, max(1, torch.Size(shape).numel()), 5),
                "y_ptr": values(dtype, max(1, torch.Size(shape).numel()), 6),
            },
        ),
    )


@pytest.mark.parametrize("n", [1, 4, 32, 256])
def test_cat(interpreter: Interpreter, n: int) -> None:
    """With can_reorder no order is promised: compared sorted."""
    setup = block((n,)) + "\n" + block((n,), "y") + "\nc = tl.cat(x, y, can_reorder=True)"
    exprs = ["tl.sort(c)", "tl.sum(c, 0)", "tl.max(c, 0)"]
    differ(interpreter, Kernel(setup, exprs, {"x_ptr": values("i32", n, 7), "y_ptr": values("i32", n, 8)}))


@pytest.mark.parametrize("dim", [0, 1])
def test_cat_along(interpreter: Interpreter, dim: int) -> None:
    """Along a named dimension the order is kept."""
    setup = block((4, 8)) + "\n" + block((4, 8), "y")
    x, y = values("f32", (4, 8), 1), values("f32", (4, 8), 2)
    want = torch.cat([x, y], dim).flatten()
    differ(interpreter, Kernel(setup, [f"tl.cat(x, y, dim={dim})"], {"x_ptr": x, "y_ptr": y}), {0: lambda: want})


@pytest.mark.parametrize("dtype", ["i32", "u32"])
@pytest.mark.parametrize("n, bins", [(2, 1), (32, 8), (512, 64), (64, 256)])
def test_histogram(interpreter: Interpreter, dtype: str, n: int, bins: int) -> None:
    """With masks; what lies outside the bins is not counted."""
    gen = rng("histogram", dtype, n, bins)
    x = torch.from_numpy(gen.integers(-3 if dtype == "i32" else 0, bins + 3, n)).to(values(dtype, 1).dtype)
    setup = block((n,)) + "\nm = tl.arange(0, " + str(n) + ") < 20"
    differ(interpreter, Kernel(setup, [f"tl.histogram(x, {bins})", f"tl.histogram(x, {bins}, mask=m)"], {"x_ptr": x}))


@pytest.mark.parametrize("start, stop", [(0, 1), (0, 8), (3, 7), (16, 32), (0, 1024), (1000, 1256)])
def test_arange(interpreter: Interpreter, start: int, stop: int) -> None:
    setup = f"i = tl.arange({start}, {stop})"
    exprs = [
        "i",
        "i * 3 - 5",
        "i // 3",
        "i % 5",
        "i ^ 5",
        "i & 12",
        "i << 3",
        "i >> 1",
        "-i",
        "~i",
        "i.to(tl.float32) * 0.5",
        "i.to(tl.int8)",
    ]
    exprs += [
        "i < n",
        "i * n + n",
        "i.to(tl.int64) * n * 1000000007",
        "i[:, None] * n + i[None, :] - n" if stop - start <= 64 else "i",
        "(i * 2 + n) // n",
    ]
    differ(interpreter, Kernel(setup, exprs, {"n": 21}))


@pytest.mark.parametrize("dtype", ["i32", "f32", "f16"])
def test_map_elementwise(interpreter: Interpreter, dtype: str) -> None:
    """A scalar function over tensors, with control flow of its own."""
    setup = block((64,)) + "\n" + block((64,), "y")
    x, y = values(dtype, 64, 1, special=False), values(dtype, 64, 2, special=False)
    check_native(
        interpreter,
        Kernel(setup, ["tl.map_elementwise(select_combine, x, y)"], {"x_ptr": x, "y_ptr": y}),
        [torch.maximum(x, y)],
    )
