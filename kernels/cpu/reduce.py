"""Reductions and scans with any combine region, along any axis, of any number of operands; histogram; map_elementwise.

A region is applied to whole rows at once: its operations are the elementwise ones. Only a region with control flow is
applied element by element. What would be too much straight code is a loop over pieces of the tensor, in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .elementwise import level, spread
from .lower import Lowering, lowers, one_op
from .shapes import permuted
from .ttir import Block, Op
from .values import LANES, Row, Tensor, in_memory, size_of, storage, vtype

# Vector instructions that one reduction or scan may take as straight code; LLVM's time grows faster than their number.
STRAIGHT = 512
_SIMPLE = (
    *("arith.", "math.", "tt.bitcast", "tt.fp_to_fp"),
    *("tt.clampf", "tt.extern_elementwise", "tt.precise", "tt.mulhiui"),
)
_COMMUTATIVE = {
    f"arith.{name}"
    for name in (
        *("addi", "muli", "andi", "ori", "xori", "maxsi", "minsi", "maxui", "minui"),
        *("addf", "mulf", "maxnumf", "minnumf", "maximumf", "minimumf"),
    )
}


def _straight(block: Block) -> bool:
    """Whether the region is nothing but elementwise operations."""
    return all(op.name.startswith(_SIMPLE) for op in block.ops[:-1])


def combine(L: Lowering, block: Block, args: Sequence[Tensor]) -> list[Tensor]:
    """The region applied to each element of tensors of one shape and row width."""
    columns = [_apply(L, block, rows) for rows in zip(*(t.rows for t in args))]
    return [Tensor(args[0].shape, rows[0].elt, list(rows), args[0].w) for rows in zip(*columns)]


def _apply(L: Lowering, block: Block, rows: Sequence[Row]) -> list[Row]:
    """The region applied to each element of rows of one width."""
    n = rows[0].n
    if n > 1 and not _straight(block):
        return _each(L, block, rows)
    out = L.region(block, [Tensor((n,) if n > 1 else (), r.elt, [r], n) for r in rows])
    return [spread(L, t.rows[0], n) for t in out]


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


# -- pieces of large tensors -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Pieces:
    """A tensor seen as (outer, n, inner), cut into pieces of (group, part, chunk) elements; n is the axis.

    A piece has all of n and inner if group > 1, and all of inner unless it has but one row to a slice of the axis.
    """

    n: int
    inner: int
    group: int
    part: int
    chunk: int

    @staticmethod
    def of(shape: Sequence[int], axis: int, size: int) -> _Pieces:
        """Pieces of at most `size` elements (a power of two, and at least one row)."""
        n, inner = shape[axis], int(np.prod(shape[axis + 1 :], dtype=np.int64))
        outer = int(np.prod(shape[:axis], dtype=np.int64))
        chunk = inner if 2 * inner <= size else min(inner, LANES)
        part = min(n, size // chunk)
        whole = part == n and chunk == inner
        return _Pieces(n, inner, min(outer, size // (part * chunk)) if whole else 1, part, chunk)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.group, self.part, self.chunk

    def start(self, L: Lowering, piece: str, part: int) -> str:
        """Index of the first element of a piece in a tensor that has `part` slices for each `self.part` of this one."""
        across = self.inner // self.chunk
        if across == 1:
            return L.emit(f"mul i64 {piece}, {self.group * part * self.inner}")
        slab, column = L.emit(f"udiv i64 {piece}, {across}"), L.emit(f"urem i64 {piece}, {across}")
        slab, column = L.emit(f"mul i64 {slab}, {part * self.inner}"), L.emit(f"mul i64 {column}, {self.chunk}")
        return L.emit(f"add i64 {slab}, {column}")

    def _runs(self, L: Lowering, buf: str, elt: str, start: str, part: int) -> tuple[list[str], int]:
        """Where the contiguous runs of a piece of `part` slices begin in memory, and how many elements each has."""
        count, size = (1, self.group * part * self.inner) if self.chunk == self.inner else (part, self.chunk)
        mem = storage(in_memory(elt))
        at = L.emit(f"getelementptr {mem}, ptr {buf}, i64 {start}")
        return [L.emit(f"getelementptr {mem}, ptr {at}, i64 {k * self.inner}") for k in range(count)], size

    def load(self, L: Lowering, buf: str, elt: str, start: str, part: int) -> Tensor:
        runs, size = self._runs(L, buf, elt, start, part)
        rows = [row for at in runs for row in L.reload(at, (size,), elt).rows]
        return Tensor((self.group, part, self.chunk), elt, rows, min(size, LANES))

    def store(self, L: Lowering, buf: str, start: str, t: Tensor) -> None:
        runs, size = self._runs(L, buf, t.elt, start, t.shape[1])
        t = L.rechunk(t, min(size, LANES))
        mem, align = in_memory(t.elt), min(64, size_of(t.elt) * t.w)
        for i, row in enumerate(t.rows):
            at = runs[i * t.w // size]
            if i * t.w % size:
                at = L.emit(f"getelementptr {storage(mem)}, ptr {at}, i64 {i * t.w % size}")
            L.do(f"store {vtype(mem, row.n)} {L.to_memory(row)}, ptr {at}, align {align}")


def _flat(L: Lowering, args: Sequence[Tensor]) -> list[Tensor]:
    """The operands with rows as wide as can be, so that no lane is idle."""
    return [L.rechunk(t, min(LANES, t.numel)) for t in level(L, args)]


def _room(block: Block, times: int) -> int:
    """Elements on which the region can be applied `times` over as straight code."""
    each = len(block.ops) if _straight(block) else 4 * len(block.ops) + 16  # a loop through memory
    return LANES << max(1, (STRAIGHT // (each * times)).bit_length() - 1)


# -- reductions --------------------------------------------------------------------------------------------------------
@lowers("tt.reduce")
def _reduce(L: Lowering, op: Op, *args: Tensor) -> list[Tensor]:
    axis, block = int(op.attr("axis") or 0), op.regions[0].blocks[0]
    # The order of operands is kept, except where it cannot matter: then halves meet, which moves fewer elements.
    halves = one_op(op.regions[0]) in _COMMUTATIVE
    tensors = _flat(L, args)
    while tensors[0].numel > _room(block, 1) and tensors[0].shape[axis] > 1:
        tensors = _reduce_pieces(L, block, axis, tensors, halves)
    tensors = _reduce_straight(L, block, axis, tensors, halves)
    shape = [d for k, d in enumerate(tensors[0].shape) if k != axis]
    return [Tensor(shape, t.elt, t.rows, t.w) for t in tensors]


def _reduce_straight(L: Lowering, block: Block, axis: int, tensors: list[Tensor], halves: bool) -> list[Tensor]:
    """The tensors with one element left along the axis."""
    shape = list(tensors[0].shape)
    while shape[axis] > 1:
        n = shape[axis]
        index = np.arange(tensors[0].numel).reshape(shape)
        shape[axis] = n // 2
        pairs = (range(n // 2), range(n // 2, n)) if halves else (range(0, n, 2), range(1, n, 2))
        parts = [np.take(index, pair, axis).ravel() for pair in pairs]
        w = min(LANES, len(parts[0]))
        first, second = ([permuted(L, t, part, shape, w) for t in tensors] for part in parts)
        tensors = combine(L, block, first + second)
    return tensors


def _reduce_pieces(L: Lowering, block: Block, axis: int, tensors: list[Tensor], halves: bool) -> list[Tensor]:
    """One element along the axis for each piece of it, by a loop over the pieces."""
    shape, numel = list(tensors[0].shape), tensors[0].numel
    cut = _Pieces.of(shape, axis, max(2 * LANES, _room(block, 1) // 4))
    ins = [L.spill(t) for t in tensors]
    outs = [L.alloca(storage(in_memory(t.elt)), numel // cut.part) for t in tensors]

    def body(piece: str) -> None:
        start = cut.start(L, piece, cut.part)
        given = [cut.load(L, buf, t.elt, start, cut.part) for buf, t in zip(ins, tensors)]
        start = cut.start(L, piece, 1)
        for buf, t in zip(outs, _reduce_straight(L, block, 1, given, halves)):
            cut.store(L, buf, start, t)

    L.loop(numel // int(np.prod(cut.shape)), body)
    shape[axis] //= cut.part
    left = [L.reload(buf, (numel // cut.part,), t.elt) for buf, t in zip(outs, tensors)]
    return [Tensor(shape, t.elt, t.rows, t.w) for t in left]


# -- scans -------------------------------------------------------------------------------------------------------------
@lowers("tt.scan")
def _scan(L: Lowering, op: Op, *args: Tensor) -> list[Tensor]:
    axis, block = int(op.attr("axis") or 0), op.regions[0].blocks[0]
    reverse = op.attr("reverse") == "true"
    tensors = _flat(L, args)
    shape, numel = tensors[0].shape, tensors[0].numel
    cut = _Pieces.of(shape, axis, numel)
    room = _room(block, 1 + min(shape[axis], LANES // min(cut.inner, LANES)).bit_length())
    if numel > room:
        return _scan_pieces(L, block, tensors, _Pieces.of(shape, axis, max(LANES, room // 4)), reverse)
    return _scan_straight(L, block, tensors, cut, reverse)


def _scan_straight(L: Lowering, block: Block, tensors: list[Tensor], cut: _Pieces, reverse: bool) -> list[Tensor]:
    """Scan each group of one piece."""
    w, inner = tensors[0].w, cut.chunk
    lane, run = np.arange(w), min(cut.part, max(1, w // inner))
    place, step = lane // inner % run, 1  # of a lane along the axis, within its row
    while step < run:
        # Lane i takes in what lane i - step has: the prefix doubles (W. D. Hillis and G. L. Steele, 1986).
        inside = place + step < run if reverse else place >= step
        source = np.where(inside, lane + (step if reverse else -step) * inner, lane).tolist()
        shifted = [Tensor(t.shape, t.elt, [L.shuffle(r, None, source) for r in t.rows], w) for t in tensors]
        merged = combine(L, block, shifted + tensors)
        blend = np.where(inside, lane, lane + w).tolist()
        tensors = [
            Tensor(t.shape, t.elt, [L.shuffle(a, b, blend) for a, b in zip(m.rows, t.rows)], w)
            for m, t in zip(merged, tensors)
        ]
        step *= 2
    # Then each row takes in the last slice before it.
    back, count = max(1, inner // w), max(1, cut.part * inner // w)  # rows to a slice of the axis, and to a group
    tail = lane % inner + (0 if reverse or inner >= w else w - inner)
    rows = [list(t.rows) for t in tensors]
    for k in range(back, count):
        for group in range(0, len(rows[0]), count):
            at = group + (count - 1 - k if reverse else k)
            before = at + back if reverse else at - back
            carry = [L.shuffle(r[before], None, tail.tolist()) if inner < w else r[before] for r in rows]
            for r, row in zip(rows, _apply(L, block, [*carry, *(r[at] for r in rows)])):
                r[at] = row
    return [Tensor(t.shape, t.elt, r, w) for t, r in zip(tensors, rows)]


def _scan_pieces(L: Lowering, block: Block, tensors: list[Tensor], cut: _Pieces, reverse: bool) -> list[Tensor]:
    """Scan piece after piece, each of which takes in the last slice of the piece before it."""
    shape, numel = tensors[0].shape, tensors[0].numel
    bufs = [L.spill(t) for t in tensors]
    count, across = numel // int(np.prod(cut.shape)), cut.inner // cut.chunk
    per_group = cut.n // cut.part * across  # pieces

    def body(i: str) -> None:
        piece = L.emit(f"sub i64 {count - 1}, {i}") if reverse else i
        start = cut.start(L, piece, cut.part)
        given = [cut.load(L, buf, t.elt, start, cut.part) for buf, t in zip(bufs, tensors)]
        done = _scan_straight(L, block, given, cut, reverse)
        for buf, t in zip(bufs, done):
            cut.store(L, buf, start, t)
        if per_group == across:
            return
        nth = L.emit(f"urem i64 {i}, {per_group}")

        def carry() -> None:
            at = L.emit(f"add i64 {start}, {cut.part * cut.inner if reverse else -cut.inner}")
            index = np.broadcast_to(np.arange(cut.chunk), cut.shape).ravel()
            last = [permuted(L, cut.load(L, buf, t.elt, at, 1), index, cut.shape, t.w) for buf, t in zip(bufs, done)]
            for buf, t in zip(bufs, combine(L, block, last + done)):
                cut.store(L, buf, start, t)

        L.when(L.emit(f"icmp uge i64 {nth}, {across}"), carry)

    L.loop(count, body)
    out = [L.reload(buf, (numel,), t.elt) for buf, t in zip(bufs, tensors)]
    return [Tensor(shape, t.elt, t.rows, t.w) for t in out]


# -- functions of elements ---------------------------------------------------------------------------------------------
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

    def body(i: str) -> None:
        value = L.vec(L.peek(bufs[0], x.elt, i))
        counted = L.emit(f"icmp ult i32 {value}, {bins}")  # a negative one is large
        if mask is not None:
            counted = L.emit(f"and i1 {counted}, {L.vec(L.peek(bufs[1], 'i1', i))}")

        def add() -> None:
            at = L.emit(f"getelementptr i32, ptr {counts}, i64 {L.emit(f'zext i32 {value} to i64')}")
            more = L.emit(f"add i32 {L.emit(f'load i32, ptr {at}')}, 1")
            L.do(f"store i32 {more}, ptr {at}")

        L.when(counted, add)

    L.loop(x.numel, body)
    return L.reload(counts, (bins,), "i32")
