"""Loads and stores with masks, tensor descriptors, gathers."""

from __future__ import annotations

import pytest
import torch

from .harness import ALL, Interpreter, Kernel, differ, rng, values

BLOCK = "i = tl.arange(0, 64)\n"


@pytest.mark.parametrize("dtype", ALL)
def test_masked_loads(interpreter: Interpreter, dtype: str) -> None:
    """Masks of every form, empty, full and scalar ones too; `other` as a constant, a scalar and a tensor."""
    setup = (
        BLOCK
        + """
m = tl.load(m_ptr + i)
x = tl.load(x_ptr + i)
never = n > 1000
"""
    )
    masks = [
        "i < 17",
        "i >= 30",
        "(i > 5) & (i < 50)",
        "i < n",
        "m",
        "i < 0",
        "i >= 0",
        "(i % 3) == 1",
        "never & (i >= 0)",
    ]
    exprs = [f"tl.load(x_ptr + i, mask={m}, other=0)" for m in masks]
    exprs += [f"tl.load(x_ptr + i + n, mask=({m}) & (i + n < 64), other=1)" for m in masks[:5]]
    exprs += [f"tl.load(x_ptr + 63 - i, mask={m}, other=x)" for m in masks[:5]]
    exprs += [f"tl.load(x_ptr + i * 2, mask=({m}) & (i < 32), other=tl.load(x_ptr + 9))" for m in masks[:5]]
    exprs += [
        "tl.load(x_ptr + 3, mask=n > 5, other=0)",
        "tl.load(x_ptr + 3, mask=n > 50, other=1)",
        "tl.load(x_ptr + n + i * 0)",
    ]
    args = {"x_ptr": values(dtype, 64, 1), "m_ptr": values("i1", 64, 2), "n": 13}
    differ(interpreter, Kernel(setup, exprs, args))


@pytest.mark.parametrize("dtype", ALL)
def test_masked_stores(interpreter: Interpreter, dtype: str) -> None:
    """What the mask leaves out is untouched."""
    setup = (
        BLOCK
        + """
x = tl.load(x_ptr + i)
m = tl.load(m_ptr + i)
tl.store(y_ptr + i, x, mask=i < 17)
tl.store(y_ptr + 64 + i, x, mask=m)
tl.store(y_ptr + 128 + i * 2, x, mask=i % 2 == 0)
tl.store(y_ptr + 256 + 63 - i, x, mask=i >= n)
tl.store(y_ptr + 320 + i, x, mask=i < 0)
tl.store(y_ptr + 384 + i, tl.load(x_ptr + 5), mask=(i > 3) & (i < n))
tl.store(y_ptr + 448 + n, tl.load(x_ptr + 7), mask=n > 3)
tl.store(y_ptr + 450 + n, tl.load(x_ptr + 8), mask=n > 30)
tl.store(y_ptr + 470 + (i & 7), tl.load(x_ptr + (i & 7)))
"""
    )
    args = {"x_ptr": values(dtype, 64, 1), "y_ptr": values(dtype, 512, 3), "m_ptr": values("i1", 64, 2), "n": 11}
    differ(interpreter, Kernel(setup, [], args))


def test_masks_guard_addresses(interpreter: Interpreter) -> None:
    """Masked-out lanes are never dereferenced: the pointers are far outside any mapping."""
    setup = """
        i = tl.arange(0, 64)
        far = tl.where(i < 8, i, i.to(tl.int64) * 4611686018427387)
        a = tl.load(x_ptr + far, mask=i < 8, other=-1.0)
        b = tl.load(x_ptr + 2**40 + i, mask=i < 0, other=2.0)
        c = tl.load(x_ptr + 2**40, mask=n > 5, other=3.0)
        tl.store(x_ptr + far, a * 2, mask=i < 8)
        tl.store(x_ptr + 2**40 + i, a, mask=n > 5)
        none = (x_ptr.to(tl.int64) * 0).to(tl.pointer_type(tl.float32))
        d = tl.load(none + i, mask=i < 0, other=4.0)
    """
    differ(interpreter, Kernel(setup, ["a", "b", "c", "d"], {"x_ptr": values("f32", 8, special=False), "n": 2}))


@pytest.mark.parametrize("dtype", ["i8", "i32", "i64", "u16", "f16", "f32", "f64"])
@pytest.mark.parametrize("index", ["i32", "i64", "u32"])
def test_gather_scatter(interpreter: Interpreter, dtype: str, index: str) -> None:
    """Loaded indices, repeated ones too; a scatter to distinct places; a table of row pointers."""
    setup = """
        i = tl.arange(0, 64)
        at = tl.load(at_ptr + i)
        order = tl.load(order_ptr + i)
        j = tl.arange(0, 4)
        a = tl.load(x_ptr + at)
        b = tl.load(x_ptr + at[:, None] * 4 + j[None, :], mask=(at < 100)[:, None])
        c = tl.load(x_ptr + tl.load(at_ptr + 3) * 4 + j)
        tl.store(y_ptr + order, a)
        tl.store(y_ptr + 64 + order[:, None] * 4 + j[None, :], b, mask=(order % 2 == 0)[:, None] & (j < 3)[None, :])
    """
    at = torch.from_numpy(rng("at").integers(0, 128, 64)).to(values(index, 1).dtype)
    order = torch.from_numpy(rng("order").permutation(64)).to(values(index, 1).dtype)
    args = {"x_ptr": values(dtype, 512, 1), "y_ptr": values(dtype, 320, 2), "at_ptr": at, "order_ptr": order}
    differ(interpreter, Kernel(setup, ["a", "tl.where((at < 100)[:, None], b, 0)", "c"], args))


def test_strides_and_affine_forms(interpreter: Interpreter) -> None:
    """Addresses that are contiguous, strided, constant, reversed and by division and remainder, over two axes."""
    setup = """
        r = tl.arange(0, 8)
        c = tl.arange(0, 16)
        base = x_ptr + tl.program_id(0) * 4
        rows = base + r[:, None] * stride + c[None, :]
    """
    exprs = [
        "tl.load(rows)",
        "tl.load(base + r[:, None] + c[None, :] * stride)",
        "tl.load(base + r[:, None] * 0 + c[None, :])",
        "tl.load(base + (r[:, None] * 16 + c[None, :]) // 4)",
        "tl.load(base + (r[:, None] * 16 + c[None, :]) % 12)",
        "tl.load(base + 300 - r[:, None] * stride - c[None, :])",
        "tl.load(base + (r[:, None] ^ 3) * stride + (c[None, :] ^ 1))",
        "tl.load(base + r[:, None] * stride + c[None, :] * 2)",
        "tl.load(base + ((r[:, None] * stride) & 63) + (c[None, :] >> 1))",
        "tl.load(base + (r[:, None] * stride + c[None, :]).to(tl.int64) * 2)",
        "tl.load(tl.multiple_of(base, 4) + tl.max_contiguous(tl.multiple_of(c, 16), 16))",
        "tl.load(rows, mask=(r[:, None] * stride + c[None, :]) < 50, other=0.5)",
        "tl.load(rows, mask=c[None, :] < 5, other=0.5)",
        "tl.load(rows, mask=r[:, None] < 5, other=0.5)",
        "tl.load(rows + 4) - tl.load(rows - 4 + 8)",
        "tl.load(base + tl.where(c < 8, c, c + stride))",
        "tl.load(base + tl.minimum(c, 11))",
    ]
    differ(interpreter, Kernel(setup, exprs, {"x_ptr": values("f32", 1024, special=False), "stride": 20}))


def test_modifiers(interpreter: Interpreter) -> None:
    """Cache modifiers, eviction policies and volatile accesses change no value."""
    exprs = [f'tl.load(x_ptr + i, cache_modifier="{c}")' for c in (".ca", ".cg", ".cv")]
    exprs += [f'tl.load(x_ptr + i, mask=i < 9, other=0.0, eviction_policy="evict_{e}")' for e in ("first", "last")]
    exprs += ["tl.load(x_ptr + i, volatile=True)", "tl.load(x_ptr + 1, volatile=True)"]
    stores = [
        f'tl.store(x_ptr + {64 * (k + 1)} + i, i * 2.0, cache_modifier="{c}")'
        for k, c in enumerate((".wb", ".cg", ".cs", ".wt"))
    ]
    stores += ["tl.debug_barrier()", 'tl.store(x_ptr + 320 + i, i * 3.0, mask=i < 3, eviction_policy="evict_first")']
    differ(interpreter, Kernel(BLOCK + "\n".join(stores), exprs, {"x_ptr": values("f32", 384)}))


def test_store_then_load(interpreter: Interpreter) -> None:
    """Memory operations keep their order, also through aliases and in loops."""
    setup = """
        i = tl.arange(0, 64)
        a = tl.load(x_ptr + i)
        tl.store(x_ptr + i, a + 1)
        b = tl.load(x_ptr + i)
        tl.store(y_ptr + 32 + i, b, mask=i < 32)
        c = tl.load(x_ptr + 32 + i, mask=i < 32)
        for k in range(4):
            tl.store(x_ptr + k, tl.load(x_ptr + k + 1) * 2)
        d = tl.load(x_ptr + i)
    """
    x = values("f32", 64, special=False)
    want = x + 1
    after = want.clone()
    for k in range(4):
        after[k] = after[k + 1] * 2
    differ(
        interpreter,
        Kernel(setup, ["a", "b", "d"], {"x_ptr": x, "y_ptr": torch.zeros(128)}),
        {1: lambda: want, 2: lambda: after},
    )


@pytest.mark.parametrize("dtype", ["i8", "i32", "f16", "bf16", "f32", "f64", "u8"])
def test_device_descriptors(interpreter: Interpreter, dtype: str) -> None:
    """Out of bounds on every side: loads read zero (or NaN), stores write nothing; rank 1 to 3; advance by offsets."""
    setup = """
        d = tl.make_tensor_descriptor(x_ptr, shape=[13, 30], strides=[32, 1], block_shape=[8, 16])
        e = tl.make_tensor_descriptor(x_ptr, shape=[3, 4, 32], strides=[128, 32, 1], block_shape=[2, 4, 16])
        o = tl.make_tensor_descriptor(y_ptr, shape=[13, 30], strides=[32, 1], block_shape=[8, 16])
        o.store([8, 16], d.load([8, 16]))
        total = tl.zeros([8, 16], tl.float32)
        for k in range(0, 32, 16):
            total += d.load([0, k]).to(tl.float32)
            tl.store_tensor_descriptor(o, [0, k], d.load([0, k]))
    """
    exprs = [
        "d.load([0, 0])",
        "d.load([8, 16])",
        "tl.load_tensor_descriptor(d, [16, 0])",
        "e.load([2, 0, 16])",
        "total",
        "d.load([-4, 0])",
    ]
    differ(
        interpreter,
        Kernel(setup, exprs, {"x_ptr": values(dtype, 13 * 32, special=False), "y_ptr": values(dtype, 13 * 32, 6)}),
    )


def test_descriptor_padding(interpreter: Interpreter) -> None:
    setup = 'd = tl.make_tensor_descriptor(x_ptr, [5, 32], [32, 1], [8, 16], padding_option="nan")'
    differ(
        interpreter,
        Kernel(setup, ["d.load([0, 0])", "d.load([0, 24 - 8])"], {"x_ptr": values("f32", 5 * 32, special=False)}),
    )


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ALL)
def test_gather_in_registers(interpreter: Interpreter, dtype: str, axis: int) -> None:
    """tl.gather along either axis, with fewer, as many and more indices than elements."""
    setup = """
        x = tl.load(x_ptr + tl.reshape(tl.arange(0, 64), [8, 8]))
        k = tl.load(k_ptr + tl.reshape(tl.arange(0, 64), [8, 8])) % 8
        w = tl.load(k_ptr + tl.reshape(tl.arange(0, 128), SHAPE)) % 8
        v = tl.load(x_ptr + tl.arange(0, 16))
        u = tl.load(k_ptr + tl.arange(0, 32)) % 16
    """
    exprs = [f"tl.gather(x, k, {axis})", f"tl.gather(x, w, {axis})", "tl.gather(v, u, 0)"]
    shape = (16, 8) if axis == 0 else (8, 16)
    args = {"x_ptr": values(dtype, 64), "k_ptr": torch.from_numpy(rng("gather").integers(0, 64, 128)).to(torch.int32)}
    kernel = Kernel(setup.replace("SHAPE", str(list(shape))), exprs, args)
    differ(interpreter, kernel)


def test_pointer_selection(interpreter: Interpreter) -> None:
    """Pointers are values: selected, carried around loops."""
    setup = """
        i = tl.arange(0, 16)
        p = x_ptr if n > 3 else y_ptr
        q = tl.where(i % 2 == 0, x_ptr + i, y_ptr + i)
        a = tl.load(p + i)
        b = tl.load(q)
        walk = x_ptr + i
        total = tl.zeros([16], tl.float32)
        for k in range(3):
            total += tl.load(walk)
            walk += 16
        same = (x_ptr + i).to(tl.int64) == (x_ptr + 3).to(tl.int64)
    """
    args = {"x_ptr": values("f32", 64, 1), "y_ptr": values("f32", 64, 2), "n": 5}
    differ(interpreter, Kernel(setup, ["a", "b", "total", "same"], args))


@pytest.mark.parametrize("mask", ["all", "none", "some"])
@pytest.mark.parametrize("dtype", ["i8", "i32", "f32", "f64", "f16", "i1"])
def test_odd_sizes(interpreter: Interpreter, dtype: str, mask: str) -> None:
    """A whole grid over a ragged length, whose last program is partly, fully, or not at all masked."""
    n = {"all": 256, "none": 192 + 1, "some": 192 + 37}[mask]
    setup = """
        offs = tl.program_id(0) * 64 + tl.arange(0, 64)
        x = tl.load(x_ptr + offs, mask=offs < n)
        tl.store(y_ptr + offs, x, mask=offs < n)
    """
    args = {"x_ptr": values(dtype, n, 1), "y_ptr": values(dtype, n, 2), "n": n}
    got = differ(interpreter, Kernel(setup, [], args, grid=(5,)))
    assert torch.equal(got["args"]["y_ptr"].view(torch.uint8), args["x_ptr"].view(torch.uint8))
