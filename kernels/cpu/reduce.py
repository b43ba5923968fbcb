"""Reductions and scans with any combine region, along any axis, of any number of operands; histogram; map_elementwise.

A region is applied to whole rows at once: its operations are the elementwise ones. Only a region with control flow is
applied element by element.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .elementwise import level, spread
from .emit import LANES, Row, Tensor, in_memory, storage
from .lower import Lowering, lowers
from .shapes import permuted
from .ttir import Block, Op

_SIMPLE = ("arith.", "math.", "tt.bitcast", "tt.fp_to_fp", "tt.clampf", "tt.extern_elementwise", "tt.precise", "tt.mulhiui")


def _straight(block: Block) -> bool:
    """Whether the region is nothing but elementwise operations."""
    return all(op.name.startswith(_SIMPLE) for op in block.ops[:-1])


def combine(L: Lowering, block: Block, args: Sequence[Tensor]) -> list[Tensor]:
    """The region applied to each element of tensors of one shape and row width."""
    shape, w, count = args[0].shape, args[0].w, len(args[0].rows)
    straight = _straight(block)
    columns: list[list[Row]] = []
    for i in range(count):
        rows = [t.rows[i] for t in args]
        if straight or w == 1:
            out = L.region(block, [Tensor((w,) if w > 1 else (), r.elt, [r], w) for r in rows])
            columns.append([spread(L, t.rows[0], w) for t in out])
        else:
            columns.append(_each(L, block, rows))
    return [Tensor(shape, rows[0].elt, list(rows), w) for rows in zip(*columns)]


def _each(L: Lowering, block: Block, rows: Sequence[Row]) -> list[Row]:
    """The region applied to one element at a time, through memory."""
    n = rows[0].n
    bufs = [L.spill(Tensor((n,), r.elt, [r], n)) for r in rows]
    outs: list[tuple[str, str]] = []

    def body(i: str) -> None:
        args = [Tensor((), r.elt, [L.peek(buf, r.elt, i)], 1) for buf, r in zip(bufs, rows)]
        for t in L.region(block, args):
            outs.append((L.alloca(storage(in_memory(t.elt)), n), t.elt))
            L.poke(outs[-1][0], i, t.rows[0])

    L.loop(n, body)
    return [L.reload(buf, (n,), elt).rows[0] for buf, elt in outs]


@lowers("tt.reduce")
def _reduce(L: Lowering, op: Op, *args: Tensor) -> list[Tensor]:
    axis, block = int(op.attr("axis") or 0), op.regions[0].blocks[0]
    tensors = level(L, args)
    shape = list(tensors[0].shape)
    while shape[axis] > 1:
        half = shape[axis] // 2
        index = np.arange(tensors[0].numel).reshape(shape)
        shape[axis] = half
        parts = [np.take(index, range(k, k + half), axis).ravel() for k in (0, half)]
        w = min(LANES, len(parts[0]))
        low, high = ([permuted(L, t, part, shape, w) for t in tensors] for part in parts)
        tensors = combine(L, block, low + high)
    del shape[axis]
    return [Tensor(shape, t.elt, t.rows, t.w) for t in tensors]


@lowers("tt.scan")
def _scan(L: Lowering, op: Op, *args: Tensor) -> list[Tensor]:
    axis, block = int(op.attr("axis") or 0), op.regions[0].blocks[0]
    reverse = op.attr("reverse") == "true"
    tensors = level(L, args)
    shape = tensors[0].shape
    index = np.arange(tensors[0].numel).reshape(shape)
    step = 1
    while step < shape[axis]:
        # Element i takes in what element i - step has: the prefix doubles (W. D. Hillis and G. L. Steele, 1986).
        at = np.arange(shape[axis])
        source = at + step if reverse else at - step
        inside = (source >= 0) & (source < shape[axis])
        earlier = np.take(index, np.where(inside, source, at), axis).ravel()
        keep = np.broadcast_to(np.expand_dims(inside, tuple(k for k in range(len(shape)) if k != axis)), shape).ravel()
        w = tensors[0].w
        shifted = [permuted(L, t, earlier, shape, w) for t in tensors]
        merged = combine(L, block, [*shifted, *tensors])
        tensors = [_blend(L, keep, m, t) for m, t in zip(merged, tensors)]
        step *= 2
    return tensors


def _blend(L: Lowering, keep: np.ndarray, new: Tensor, old: Tensor) -> Tensor:
    rows = []
    for i, (a, b) in enumerate(zip(new.rows, old.rows)):
        mask = keep[i * new.w : (i + 1) * new.w]
        rows.append(a if mask.all() else b if not mask.any() else L.shuffle(a, b, np.where(mask, 0, new.w) + np.arange(new.w)))
    return Tensor(new.shape, new.elt, rows, new.w)


@lowers("tt.map_elementwise")
def _map_elementwise(L: Lowering, op: Op, *args: Tensor) -> list[Tensor]:
    pack, block = int(op.attr("pack") or 1), op.regions[0].blocks[0]
    tensors = level(L, args)
    if pack == 1:
        return combine(L, block, tensors)
    # The region takes `pack` neighbours of every operand, operand by operand, and returns results likewise.
    flat = [L.rechunk(t, min(LANES, t.numel)) for t in tensors]
    shape, w = flat[0].shape, flat[0].w
    part = [t.numel // pack for t in flat]
    split = [
        permuted(L, t, np.arange(t.numel).reshape(-1, pack)[:, k], (t.numel // pack,), min(LANES, n))
        for t, n in zip(flat, part)
        for k in range(pack)
    ]
    outs = combine(L, block, split)
    results = []
    for i in range(0, len(outs), pack):
        group = outs[i : i + pack]
        joined = Tensor((pack, part[0]), group[0].elt, [r for t in group for r in t.rows], group[0].w)
        source = np.arange(pack * part[0]).reshape(pack, -1).T.ravel()
        results.append(permuted(L, joined, source, shape, w))
    return results


@lowers("tt.histogram")
def _histogram(L: Lowering, op: Op, x: Tensor, mask: Tensor | None = None) -> Tensor:
    bins = op.types[0].numel
    counts = L.zeroed("i32", bins)
    given = level(L, [x] if mask is None else [x, mask])
    bufs = [L.spill(t) for t in given]
    ty = storage(x.elt)

    def body(i: str) -> None:
        value = L.vec(L.peek(bufs[0], x.elt, i))
        counted = L.emit(f"icmp ult {ty} {value}, {bins}") if x.elt != "i8" or bins < 256 else "true"
        if mask is not None:
            counted = L.emit(f"and i1 {counted}, {L.vec(L.peek(bufs[1], 'i1', i))}")

        def add() -> None:
            index = value if x.elt == "i64" else L.emit(f"zext {ty} {value} to i64")
            at = L.emit(f"getelementptr i32, ptr {counts}, i64 {index}")
            more = L.emit(f"add i32 {L.emit(f'load i32, ptr {at}')}, 1")
            L.do(f"store i32 {more}, ptr {at}")

        L.when(counted, add)

    L.loop(x.numel, body)
    return L.reload(counts, (bins,), "i32")
