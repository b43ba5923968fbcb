"""Operations that move elements without computing: ranges, broadcasts, reshapes, transposes, joins, gathers.

Most move nothing at all: rows are shared, so a broadcast repeats references and a reshape relabels them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .elementwise import spread
from .lower import Lowering, lowers
from .ttir import Op
from .values import LANES, Row, Tensor, in_memory, mangle, size_of, storage, vtype, width

INLINE = 256  # elements that are moved through memory by straight code; more are moved by a loop


@lowers("tt.make_range")
def _make_range(L: Lowering, op: Op) -> Tensor:
    start, n = int(op.attr("start") or 0), op.types[0].numel
    w = width((n,))
    rows = [L.with_offs(w, "i32", 0, np.arange(i, i + w)) for i in range(start, start + n, w)]
    return Tensor((n,), "i32", rows, w)


@lowers("tt.splat")
def _splat(L: Lowering, op: Op, x: Tensor) -> Tensor:
    ty = op.types[0]
    w = width(ty.shape)
    return Tensor(ty.shape, ty.elt, [spread(L, x.rows[0], w)] * (ty.numel // w), w)


@lowers("tt.unsplat")
def _unsplat(L: Lowering, op: Op, x: Tensor) -> Tensor:
    return Tensor((), x.elt, [L.lane(x.rows[0], 0)], 1)


@lowers("tt.expand_dims", "tt.reshape")
def _reshape(L: Lowering, op: Op, x: Tensor) -> Tensor:
    out = Tensor(op.types[0].shape, x.elt, x.rows, x.w)
    # Affine rows become scalars at once, so that addresses are computed on scalars; others stay as wide as they are.
    return L.canonical(out) if all(r.affine for r in x.rows) else out


@lowers("tt.broadcast")
def _broadcast(L: Lowering, op: Op, x: Tensor) -> Tensor:
    shape = op.types[0].shape
    if shape == x.shape:
        return x
    if x.numel == 1:
        w = width(shape)
        row = spread(L, L.lane(x.rows[0], 0), w)
        return Tensor(shape, x.elt, [row] * (op.types[0].numel // w), w)
    if (x.w > width(x.shape) and shape[-1] < x.w) or all(r.literal for r in x.rows):
        # Rows wider than the last dimension stay so; constants cost nothing in any form.
        source = np.broadcast_to(np.arange(x.numel).reshape(x.shape), shape).ravel()
        return permuted(L, x, source, shape, min(LANES, len(source)))
    x = L.canonical(x)
    w = width(shape)
    index = np.arange(x.numel // x.w).reshape(x.shape[:-1] + (-1,))  # which row holds an element
    if x.shape[-1] == 1:
        index = np.broadcast_to(index, shape[:-1] + (shape[-1] // w,))
        rows = {i: spread(L, L.lane(r, 0), w) for i, r in enumerate(x.rows)}
    else:
        index = np.broadcast_to(index, shape[:-1] + index.shape[-1:])
        rows = dict(enumerate(x.rows))
    return Tensor(shape, x.elt, [rows[i] for i in index.ravel().tolist()], w)


def permuted(L: Lowering, x: Tensor, source: np.ndarray, shape: Sequence[int], w: int) -> Tensor:
    """The tensor whose row-major element i is element `source[i]` of `x`, in rows of `w`.

    Shuffles of at most two rows each; where elements come from more rows, through memory.
    """
    if all(r.literal for r in x.rows):
        values = np.concatenate([r.constants() for r in x.rows])[source]
        return Tensor(shape, x.elt, [L.with_offs(w, x.elt, 0, values[i : i + w]) for i in range(0, len(values), w)], w)
    plan = []
    for part in source.reshape(-1, w):
        origin = np.unique(part // x.w)
        if len(origin) > 2:
            return _through_memory(L, x, source, shape, w)
        plan.append((part, origin))
    rows = []
    for part, origin in plan:
        a = x.rows[origin[0]]
        b = x.rows[origin[1]] if len(origin) > 1 else None
        lanes = part % x.w + np.where(part // x.w == origin[0], 0, x.w)
        if b is None and w == x.w and (lanes == np.arange(w)).all():
            rows.append(a)
        else:
            rows.append(L.shuffle(a, b, lanes.tolist()))
    return Tensor(shape, x.elt, rows, w)


def _through_memory(L: Lowering, x: Tensor, source: np.ndarray, shape: Sequence[int], w: int) -> Tensor:
    """`permuted` by writing the tensor to the stack and gathering from there."""
    buf = L.spill(x)
    # No instruction gathers elements of less than four bytes, so that a row would be as many loads as elements.
    if len(source) > (INLINE if size_of(x.elt) >= 4 else INLINE // 4):
        return _copied(L, x, buf, source, shape, w)
    rows = []
    for part in source.reshape(-1, w):
        if len(part) > 1 and (np.diff(part) == 1).all():
            at = L.emit(f"getelementptr {storage(in_memory(x.elt))}, ptr {buf}, i64 {part[0]}")
            rows.append(
                L.from_memory(L.emit(f"load {vtype(in_memory(x.elt), w)}, ptr {at}, align {size_of(x.elt)}"), x.elt, w)
            )
        else:
            rows.append(_read(L, buf, x.elt, L.const_vec(part, "i64") if w > 1 else str(part[0]), w))
    return Tensor(shape, x.elt, rows, w)


def _copied(L: Lowering, x: Tensor, buf: str, source: np.ndarray, shape: Sequence[int], w: int) -> Tensor:
    """Elements of a stack buffer in another order, by a loop over a table of positions."""
    n, mem = len(source), storage(in_memory(x.elt))
    out, table = L.alloca(mem, n), f"@table{len(L.globals)}"
    L.globals.append(
        f"{table} = private constant [{n} x i32] {L.const_vec(source, 'i32').replace('<', '[').replace('>', ']')}"
    )

    def body(i: str) -> None:
        at = L.emit(f"load i32, ptr {L.emit(f'getelementptr i32, ptr {table}, i64 {i}')}")
        v = L.emit(f"load {mem}, ptr {L.emit(f'getelementptr {mem}, ptr {buf}, i32 {at}')}")
        L.do(f"store {mem} {v}, ptr {L.emit(f'getelementptr {mem}, ptr {out}, i64 {i}')}")

    L.loop(n, body)
    return L.rechunk(L.reload(out, shape, x.elt), w)


def _read(L: Lowering, buf: str, elt: str, index: str, n: int) -> Row:
    """Elements of a stack buffer at a vector of positions."""
    mem = in_memory(elt)
    at = L.emit(f"getelementptr {storage(mem)}, ptr {buf}, {vtype('i64', n)} {index}")
    if n == 1:
        return L.from_memory(L.emit(f"load {storage(mem)}, ptr {at}, align {size_of(elt)}"), elt, 1)
    ty = vtype(mem, n)
    args = f"<{n} x ptr> align {size_of(elt)} {at}, <{n} x i1> splat (i1 true), {ty} poison"
    return L.from_memory(L.call(ty, f"llvm.masked.gather.{mangle(mem, n)}.v{n}p0", args), elt, n)


@lowers("tt.trans")
def _trans(L: Lowering, op: Op, x: Tensor) -> Tensor:
    order = [int(i) for i in (op.attr("order") or "").removeprefix("array<i32:").rstrip(">").split(",")]
    shape = op.types[0].shape
    source = np.arange(x.numel).reshape(x.shape).transpose(order).ravel()
    if (source == np.arange(x.numel)).all():
        return Tensor(shape, x.elt, x.rows, x.w)
    if order[-1] == len(order) - 1:
        x = L.canonical(x)
    return permuted(L, x, source, shape, width(shape))


@lowers("tt.join")
def _join(L: Lowering, op: Op, a: Tensor, b: Tensor) -> Tensor:
    shape = op.types[0].shape
    if a.w != b.w:
        a, b = L.canonical(a), L.canonical(b)
    n = a.w
    lanes = np.arange(2 * n).reshape(2, n).T.ravel().tolist()
    halves = [lanes] if 2 * n <= 64 else [lanes[:n], lanes[n:]]
    rows = [L.shuffle(r, s, half) for r, s in zip(a.rows, b.rows) for half in halves]
    return Tensor(shape, a.elt, rows, len(halves[0]))


@lowers("tt.split")
def _split(L: Lowering, op: Op, x: Tensor) -> list[Tensor]:
    x = L.rechunk(x, min(x.numel, 64))
    shape, w = op.types[0].shape, x.w // 2
    return [Tensor(shape, x.elt, [L.shuffle(r, None, range(k, x.w, 2)) for r in x.rows], w) for k in (0, 1)]


@lowers("tt.cat")
def _cat(L: Lowering, op: Op, a: Tensor, b: Tensor) -> Tensor:
    w = min(a.w, b.w)
    a, b = L.rechunk(a, w), L.rechunk(b, w)
    return Tensor(op.types[0].shape, a.elt, a.rows + b.rows, w)


@lowers("tt.gather")
def _gather(L: Lowering, op: Op, x: Tensor, index: Tensor) -> Tensor:
    axis = int(op.attr("axis") or 0)
    index = L.canonical(index)
    shape, n = index.shape, x.shape[axis]
    stride = int(np.prod(x.shape[axis + 1 :], dtype=np.int64))
    # An element's address without its index: its own coordinates, with 0 along the axis.
    grid = np.indices(shape)
    grid[axis] = 0
    start = np.ravel_multi_index(tuple(grid), x.shape).ravel() if x.numel else grid
    buf, bits = L.spill(x), index.elt
    rows = []
    for k, row in enumerate(index.rows):
        w = row.n
        ity = vtype(bits, w)
        # An index out of range reads some element and not beyond the tensor.
        last = L.splat(str(n - 1), bits, w)
        i = L.call(ity, f"llvm.umin.{mangle(bits, w)}", f"{ity} {L.vec(row)}, {ity} {last}")
        i64 = vtype("i64", w)
        i = L.emit(f"zext {ity} {i} to {i64}") if bits != "i64" else i
        i = L.emit(f"mul {i64} {i}, {L.splat(str(stride), 'i64', w)}")
        base = L.const_vec(start[k * w : (k + 1) * w], "i64") if w > 1 else str(start[k])
        i = L.emit(f"add {i64} {i}, {base}")
        rows.append(_read(L, buf, x.elt, i, w))
    return Tensor(shape, x.elt, rows, index.w)
