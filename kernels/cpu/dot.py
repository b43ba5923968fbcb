"""`tt.dot` and `tt.dot_scaled`: products of tiles.

c[m, :] += a[m, k] * b[k, :] on vectors: a row of b is loaded as it lies, an element of a is broadcast from memory, and
a *register tile* of c stays in half of the vector registers for the whole of K. Small products are written out. Large
ones are loops over register tiles. There b is copied to the stack first, in panels as wide as a register tile and in
the type of the arithmetic, and so is a unless it can be read where it lies: every element is converted once, and the
stride of the caller's matrix cannot thrash the cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .convert import convert
from .elementwise import apply
from .host import features
from .lanes import Lanes
from .lower import Lowering, lowers
from .memory import consecutive
from .shapes import permuted
from .ttir import Op
from .values import Literal, Row, Tensor, is_float, mangle, size_of, storage, vtype, width

# A product of more vector multiply-adds than this is written as loops.
_UNROLLED = 1024
# Steps of K to an iteration of the innermost loop.
_K_STEPS = 4


class _Matrix(NamedTuple):
    """An operand [R, C], `w` elements to a row, and where each row lies in memory, if it does."""

    shape: tuple[int, ...]
    elt: str
    w: int
    rows: Sequence[Row]
    places: Sequence[str | None]


def _matrices(L: Lowering, t: Tensor) -> list[_Matrix]:
    """The matrices of a tensor [..., R, C]."""
    _, pointers, epoch = L.loads.get(id(t), (t, (), -1))
    loaded, t = t, L.canonical(t)
    places: list[str | None] = [None] * len(t.rows)
    if epoch == L.epoch and t is loaded:  # nothing was stored since it was loaded
        for i, p in enumerate(pointers):
            if p.n == 1:
                places[i] = L.scalar(p)
            elif consecutive(p):
                places[i] = L.scalar(L.lane(p, 0))
    shape = t.shape[-2:]
    n = shape[0] * shape[1] // t.w
    return [_Matrix(shape, t.elt, t.w, t.rows[i : i + n], places[i : i + n]) for i in range(0, len(t.rows), n)]


@functools.cache
def _registers() -> tuple[int, int]:
    """The vector registers of this CPU: (bytes of one, how many)."""
    if features().get("avx512f"):
        return 64, 32
    return (32, 16) if features().get("avx2") else (16, 32 if features().get("neon") else 16)


def _register_tile(M: int, N: int, elt: str) -> tuple[int, int]:
    """Rows and columns of c that half of the registers hold: two registers wide, wider where M is small."""
    size, count = _registers()
    rows = min(M, count // 4)
    return rows, min(N, count // 2 // rows * size // size_of(elt))


# -- instructions ------------------------------------------------------------------------------------------------------
def _fma(L: Lowering, elt: str, x: str, y: str, z: str, n: int) -> str:
    """x * y + z on `n` lanes."""
    ty = vtype(elt, n)
    if not is_float(elt):
        return L.emit(f"add {ty} {L.emit(f'mul {ty} {x}, {y}')}, {z}")
    return L.call(ty, f"llvm.fmuladd.{mangle(elt, n)}", f"{ty} {x}, {ty} {y}, {ty} {z}")


def _at(L: Lowering, elt: str, base: str, index: Literal) -> str:
    return base if index == 0 else L.emit(f"getelementptr {storage(elt)}, ptr {base}, i64 {index}")


def _load(L: Lowering, elt: str, base: str, index: Literal, n: int = 1) -> str:
    return L.emit(f"load {vtype(elt, n)}, ptr {_at(L, elt, base, index)}, align {size_of(elt)}")


def _converted(L: Lowering, row: Row, elt: str) -> Row:
    if row.elt == elt:
        return row

    def make() -> Row:
        if row.elt == "i8":
            return Row(row.n, elt, vec=L.emit(f"sext {vtype('i8', row.n)} {L.vec(row)} to {vtype(elt, row.n)}"))
        return Row(row.n, elt, vec=convert(L, L.vec(row), row.elt, elt, row.n))

    return L.cached(("dot", elt, id(row)), row, make)


def _elements(L: Lowering, x: _Matrix, index: int, elt: str, n: int = 1) -> str:
    """`n` elements from the row-major `index` on. Read where they are used: values from before would hold registers."""
    i, lane = divmod(index, x.w)
    place = x.places[i]
    if place is not None and x.elt == elt:
        return _load(L, elt, place, lane, n)
    return L.vec(L.shuffle(_converted(L, x.rows[i], elt), None, range(lane, lane + n)))


def _table(L: Lowering, places: Sequence[str | None]) -> str:
    """Addresses as an array on the stack, for loops to index."""
    table = L.alloca("ptr", len(places))
    for i, place in enumerate(places):
        L.do(f"store ptr {place}, ptr {_at(L, 'ptr<ptr>', table, i)}")
    return table


def _copy(L: Lowering, x: _Matrix, elt: str, cols: int) -> str:
    """Copy to the stack as `elt`, in panels of `cols` columns: [C / cols, R, cols]. Returns the address."""
    (R, C), part = x.shape, min(cols, x.w)
    buf = L.alloca(storage(elt), R * C)

    def put(row: Row, at: str) -> None:
        row = _converted(L, row, elt)
        for lane in range(0, x.w, part):
            v = L.vec(L.shuffle(row, None, range(lane, lane + part)))
            to = _at(L, elt, at, lane // cols * R * cols)
            L.do(f"store {vtype(elt, part)} {v}, ptr {to}, align {min(64, size_of(elt) * part)}")

    if None in x.places:
        for i, row in enumerate(x.rows):
            r, c = divmod(i * x.w, C)
            put(row, _at(L, elt, buf, (c // cols * R + r) * cols + c % cols))
        return buf

    table = _table(L, x.places)

    def copy(i: str) -> None:
        first = L.emit(f"mul i64 {i}, {x.w}")
        r, c = L.emit(f"udiv i64 {first}, {C}"), L.emit(f"urem i64 {first}, {C}")
        panel = L.emit(f"mul i64 {L.emit(f'udiv i64 {c}, {cols}')}, {R}")
        start = L.emit(f"mul i64 {L.emit(f'add i64 {panel}, {r}')}, {cols}")
        at = _at(L, elt, buf, L.emit(f"add i64 {start}, {L.emit(f'urem i64 {c}, {cols}')}"))
        put(Row(x.w, x.elt, vec=_load(L, x.elt, _load(L, "ptr<ptr>", table, i), 0, x.w)), at)

    L.loop(len(x.rows), copy)
    return buf


def _accumulate(L: Lowering, count: int, ty: str, sums: Sequence[str], body: Callable) -> list[str]:
    """`for i in range(count): sums = body(i, sums)` with the sums, of type `ty`, in registers."""
    head, inside, done = L.label("head"), L.label("body"), L.label("done")
    before, i, phis = L.block, L.name("i"), [L.name("sum") for _ in sums]
    L.br(head)
    L.start(head)
    slot = len(L.lines)
    L.cond_br(L.emit(f"icmp ult i64 {i}, {count}"), inside, done)
    L.start(inside)
    L.push()
    ends = body(i, phis)
    L.pop()
    after = L.emit(f"add nuw i64 {i}, 1")
    text = [f"  {i} = phi i64 [0, %{before}], [{after}, %{L.block}]"]
    for phi, start, end in zip(phis, sums, ends):
        text.append(f"  {phi} = phi {ty} [{start}, %{before}], [{end}, %{L.block}]")
    L.lines[slot:slot] = text
    L.br(head)
    L.start(done)
    return phis


# -- a [M, K] b [K, N] + acc [M, N], acc and the result in the type of the arithmetic, `elt` ---------------------------
def _unrolled(L: Lowering, elt: str, a: _Matrix, b: _Matrix, acc: Tensor) -> Tensor:
    (M, K), N = a.shape, b.shape[1]
    rows, cols = _register_tile(M, N, elt)
    out = list(L.rechunk(acc, cols).rows)
    for m0 in range(0, M, rows):
        for n0 in range(0, N, cols):
            at = [(m * N + n0) // cols for m in range(m0, m0 + rows)]
            sums = [L.vec(out[i]) for i in at]
            for k in range(K):
                y = _elements(L, b, k * N + n0, elt, cols)
                for j in range(rows):
                    x = L.splat(_elements(L, a, (m0 + j) * K + k, elt), storage(elt), cols)
                    sums[j] = _fma(L, elt, x, y, sums[j], cols)
            for i, v in zip(at, sums):
                out[i] = Row(cols, elt, vec=v)
    return Tensor(acc.shape, elt, out, cols)


def _looped(L: Lowering, elt: str, a: _Matrix, b: _Matrix, acc: Tensor) -> Tensor:
    (M, K), N = a.shape, b.shape[1]
    rows, cols = _register_tile(M, N, elt)
    places, w = a.places, a.w
    if a.elt != elt or None in places:
        copy = _copy(L, a, elt, K)
        places, w = [_at(L, elt, copy, m * K) for m in range(M)], K
    table, at_b, at_c = _table(L, places), _copy(L, b, elt, cols), L.spill(acc)
    steps = min(w, _K_STEPS)
    ty, align = vtype(elt, cols), min(64, size_of(elt) * cols)

    def tile(n: str, m: str) -> None:
        m0 = L.emit(f"mul i64 {m}, {rows}")
        rows_a = _at(L, "ptr<ptr>", table, L.emit(f"mul i64 {m0}, {K // w}"))
        tile_b = _at(L, elt, at_b, L.emit(f"mul i64 {n}, {cols * K}"))
        tile_c = _at(L, elt, _at(L, elt, at_c, L.emit(f"mul i64 {n}, {cols}")), L.emit(f"mul i64 {m0}, {N}"))
        rows_c = [_at(L, elt, tile_c, j * N) for j in range(rows)]

        def part(i: str, sums: Sequence[str]) -> list[str]:
            """Elements i w to (i + 1) w of K."""
            parts_a = [_load(L, "ptr<ptr>", _at(L, "ptr<ptr>", rows_a, j * (K // w)), i) for j in range(rows)]
            part_b = _at(L, elt, tile_b, L.emit(f"mul i64 {i}, {w * cols}"))

            def step(s: str, sums: Sequence[str]) -> Sequence[str]:
                k0 = L.emit(f"mul i64 {s}, {steps}")
                row_b = _at(L, elt, part_b, L.emit(f"mul i64 {k0}, {cols}"))
                row_a = [_at(L, elt, x, k0) for x in parts_a]
                for k in range(steps):
                    y = _load(L, elt, row_b, k * cols, cols)
                    xs = [L.splat(_load(L, elt, x, k), storage(elt), cols) for x in row_a]
                    sums = [_fma(L, elt, x, y, total, cols) for x, total in zip(xs, sums)]
                return sums

            return _accumulate(L, w // steps, ty, sums, step)

        start = [L.emit(f"load {ty}, ptr {p}, align {align}") for p in rows_c]
        for p, v in zip(rows_c, _accumulate(L, K // w, ty, start, part)):
            L.do(f"store {ty} {v}, ptr {p}, align {align}")

    L.loop(N // cols, lambda n: L.loop(M // rows, lambda m: tile(n, m)))
    return L.reload(at_c, acc.shape, elt)


def _column(L: Lowering, elt: str, a: _Matrix, b: _Matrix, acc: Tensor) -> Tensor:
    """N = 1: products along K, then their sum."""
    n, ty, f = a.w, vtype(elt, a.w), "f" if is_float(elt) else ""
    column = L.rechunk(Tensor(b.shape, b.elt, list(b.rows), b.w), n)
    ys = [L.vec(_converted(L, row, elt)) for row in column.rows]
    out = []
    for m, c in enumerate(L.rechunk(acc, 1).rows):
        xs = [L.vec(_converted(L, row, elt)) for row in a.rows[m * len(ys) : (m + 1) * len(ys)]]
        total = L.emit(f"{f}mul {ty} {xs[0]}, {ys[0]}")
        for x, y in zip(xs[1:], ys[1:]):
            total = _fma(L, elt, x, y, total, n)
        if n > 1:
            start, flags = (f"{storage(elt)} -0.0, ", "reassoc") if f else ("", "")
            reduce = f"llvm.vector.reduce.{f}add.{mangle(elt, n)}"
            total = L.call(storage(elt), reduce, f"{start}{ty} {total}", flags)
        out.append(Row(1, elt, vec=L.emit(f"{f}add {storage(elt)} {total}, {L.vec(c)}")))
    return Tensor(acc.shape, elt, out, 1)


def _products(L: Lowering, a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
    """Sums are kept in f32 (f64 for f64, i32 for integers) and rounded once to the type of `acc`."""
    elt = {"f64": "f64", "i8": "i32"}.get(a.elt, "f32")
    acc = L.canonical(acc)
    (M, N), K, w = acc.shape[-2:], a.shape[-1], acc.w
    fmas = M * K * max(1, N * size_of(elt) // _registers()[0])
    how = _column if N == 1 else _unrolled if fmas <= _UNROLLED else _looped
    rows: list[Row] = []
    for i, (x, y) in enumerate(zip(_matrices(L, a), _matrices(L, b))):
        part = [_converted(L, row, elt) for row in acc.rows[i * M * N // w : (i + 1) * M * N // w]]
        rows += L.rechunk(how(L, elt, x, y, Tensor((M, N), elt, part, w)), w).rows
    return Tensor(acc.shape, acc.elt, [_converted(L, row, acc.elt) for row in rows], w)


@lowers("tt.dot")
def _dot(L: Lowering, op: Op, a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
    return _products(L, a, b, acc)


# -- block-scaled products ---------------------------------------------------------------------------------------------
def _e2m1(L: Lowering, t: Tensor, high: bool) -> Tensor:
    """The 4-bit floats in one half of each byte, as f32."""

    def decode(L: Lowering, rows: tuple[Row, ...], n: int) -> str:
        code = Lanes(L, L.vec(rows[0]), "i8", n).resize("i16")
        code = code.op("lshr", 4) if high else code
        half = (code & 7) << 9 | (code & 8) << 12  # the bits of an f16 that is 2^14 times too small
        return (half.cast("bitcast", "half").cast("fpext", "f32") * 2.0**14).text

    return apply(L, ("e2m1", high), "f32", decode, t)


def _values(L: Lowering, t: Tensor, fmt: str, axis: int) -> Tensor:
    """An operand as f32. e2m1 holds two values to a byte, the first in the low half, along `axis`."""
    if fmt != "e2m1":
        return Tensor(t.shape, "f32", [_converted(L, row, "f32") for row in t.rows], t.w)
    low, high = _e2m1(L, t, False), _e2m1(L, t, True)
    both = Tensor((2, *t.shape), "f32", low.rows + high.rows, low.w)
    source = np.moveaxis(np.arange(both.numel).reshape(both.shape), 0, axis)
    shape = list(t.shape)
    shape[axis] *= 2
    return permuted(L, both, source.ravel(), shape, width(shape))


def _scaled(L: Lowering, values: Tensor, scale: Tensor, axis: int, tiny: bool) -> Tensor:
    """`values` [..., R, C] times `scale` [..., R or C, groups of K], K being `axis` of the values.

    A scale is an fp8 number, or a byte e that stands for 2^(e - 127), 255 for NaN; unless `tiny`, 2^-127 is 0.
    """

    def factor(L: Lowering, rows: tuple[Row, ...], n: int) -> str:
        if is_float(scale.elt):
            return convert(L, L.vec(rows[0]), scale.elt, "f32", n)
        code = Lanes(L, L.vec(rows[0]), "i8", n).resize("i32")
        bits = code << 23
        if tiny:
            bits = code.eq(0).where(1 << 22, bits)
        return code.eq(255).where(float("nan"), bits.cast("bitcast", "f32")).text

    factors = apply(L, ("scale", tiny), "f32", factor, scale)
    source = np.arange(scale.numel).reshape(scale.shape).repeat(values.shape[axis] // scale.shape[-1], -1)
    source = np.moveaxis(source, -1, axis)
    factors = permuted(L, factors, source.ravel(), values.shape, width(values.shape))
    rows = zip(L.canonical(values).rows, factors.rows)
    product = [Row(factors.w, "f32", vec=(_lanes(L, v) * _lanes(L, f)).text) for v, f in rows]
    return Tensor(values.shape, "f32", product, factors.w)


def _lanes(L: Lowering, row: Row) -> Lanes:
    return Lanes(L, L.vec(row), row.elt, row.n)


@lowers("tt.dot_scaled")
def _dot_scaled(L: Lowering, op: Op, *operands: Tensor) -> Tensor:
    # "%a scale %sa, %b, %acc lhs = e4m3 rhs = bf16 {fastMath = false, rhs_k_pack = false} : ...": scales are optional.
    head, tail = op.text.split(" lhs = ", 1)
    formats = tail.split()[0], tail.split()[3]
    given = iter(operands)
    sides = []
    for name, fmt, k, text in zip(("lhs", "rhs"), formats, (-1, -2), head.split(",")):
        packed = k if f"{name}_k_pack = false" not in tail else -3 - k
        side = _values(L, next(given), fmt, packed)
        sides.append(_scaled(L, side, next(given), k, "fp16" not in formats) if " scale %" in text else side)
    a, b = sides
    return _products(L, a, b, next(given))
