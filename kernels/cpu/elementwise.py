"""Operations on elements: the walk over rows, and floating-point arithmetic and functions.

`apply` is the one way to compute row by row. It computes equal rows once, a row of equal elements as a scalar, and
takes tensors whose rows have different widths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .convert import convert
from .lower import Lowering, lowers
from .mathlib import extern_call, math_call
from .ttir import Op
from .values import Row, Tensor, mangle, storage, vtype, width

Emit = Callable[..., str]  # (lowering, operand texts, lanes) -> text


# -- the walk over rows ------------------------------------------------------------------------------------------------
def level(L: Lowering, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors with rows of one width. A single element stands for as many as its partners have."""
    if len({t.w for t in tensors}) == 1:
        return list(tensors)
    many = [t for t in tensors if t.numel > 1]
    # Tensors of constants, or of one scalar and constants, can be cut anew for free: they follow the others.
    firm = {t.w for t in many if len({r.base for r in t.rows}) > 1 or not t.rows[0].affine}
    w = firm.pop() if len(firm) == 1 else width(many[0].shape)
    cut = iter([L.rechunk(t, w) for t in many])
    count = many[0].numel // w
    return [
        next(cut) if t.numel > 1 else Tensor(many[0].shape, t.elt, [spread(L, t.rows[0], w)] * count, w)
        for t in tensors
    ]


def spread(L: Lowering, row: Row, n: int) -> Row:
    """`n` copies of a single element (a row of `n` as it is)."""
    if n == row.n:
        return row
    return L.cached(("spread", id(row), n), row, lambda: Row(n, row.elt, base=row.base))


def single(L: Lowering, row: Row) -> Row:
    """One element of a row of equal elements."""
    if row.n == 1:
        return row
    return L.cached(("single", id(row)), row, lambda: Row(1, row.elt, base=row.base))


def apply(L: Lowering, key: object, elt: str, fn: Callable[..., Row | str], *tensors: Tensor) -> Tensor:
    """Compute `fn(L, rows, n)` for each tuple of rows; it returns a Row or the text of a value of `n` elements."""

    def one(rows: tuple[Row, ...]) -> Row:
        n = rows[0].n
        if n > 1 and all(r.uniform for r in rows):
            return spread(L, one(tuple(single(L, r) for r in rows)), n)

        def make() -> Row:
            out = fn(L, rows, n)
            return out if isinstance(out, Row) else Row(n, elt, vec=out)

        return L.cached((key, *map(id, rows)), rows, make)

    level_tensors = level(L, tensors)
    first = level_tensors[0]
    return Tensor(first.shape, elt, [one(rows) for rows in zip(*(t.rows for t in level_tensors))], first.w)


def texts(L: Lowering, rows: Sequence[Row]) -> list[str]:
    return [L.vec(r) for r in rows]


def constant(n: int, ty: str, value: object) -> str:
    """An LLVM constant with `n` equal elements of LLVM type `ty`."""
    return str(value) if n == 1 else f"splat ({ty} {value})"


@lowers("arith.select")
def _select(L: Lowering, op: Op, cond: Tensor, a: Tensor, b: Tensor) -> Tensor:
    def fn(L: Lowering, rows: tuple[Row, ...], n: int) -> Row | str:
        c, x, y = rows
        if x is y:
            return x
        if c.literal and c.uniform:
            return x if c.base else y
        if c.uniform:
            if x.affine and y.affine and (x.offsets() == y.offsets()).all():
                ty = storage(x.elt)
                base = L.emit(f"select i1 {c.base}, {ty} {L.text(x.base, x.elt)}, {ty} {L.text(y.base, y.elt)}")  # type: ignore
                return Row(n, x.elt, base=base, offs=x.offs)
            return L.emit(f"select i1 {c.base}, {vtype(x.elt, n)} {L.vec(x)}, {vtype(x.elt, n)} {L.vec(y)}")
        ty = vtype(x.elt, n)
        return L.emit(f"select {vtype('i1', n)} {L.vec(c)}, {ty} {L.vec(x)}, {ty} {L.vec(y)}")

    if cond.scalar and not a.scalar:
        cond = Tensor(a.shape, "i1", [spread(L, cond.rows[0], a.w)] * len(a.rows), a.w)
    return apply(L, op.name, a.elt, fn, cond, a, b)


# -- floating point ----------------------------------------------------------------------------------------------------
def compute_type(elt: str) -> str:
    """The type in which elements of a floating-point type are computed."""
    return "f64" if elt == "f64" else "f32"


def widened(L: Lowering, row: Row) -> str:
    """The elements of a floating-point row in the type they are computed in."""
    if row.elt in ("f32", "f64"):
        return L.vec(row)
    return L.cached(("wide", id(row)), row, lambda: convert(L, L.vec(row), row.elt, "f32", row.n))


def float_apply(L: Lowering, key: object, fn: Emit, *tensors: Tensor) -> Tensor:
    """Compute `fn(L, texts, elt, n)` in f64 or f32 and round once to the tensors' type."""
    elt = tensors[0].elt
    ct = compute_type(elt)

    def one(L: Lowering, rows: tuple[Row, ...], n: int) -> str:
        out = fn(L, [widened(L, r) for r in rows], ct, n)
        return out if elt == ct else convert(L, out, ct, elt, n)

    return apply(L, key, elt, one, *tensors)


def _float_binary(what: str) -> Emit:
    return lambda L, xs, elt, n: L.emit(f"{what} {L.fast} {vtype(elt, n)} {xs[0]}, {xs[1]}")


def float_intrinsic(name: str) -> Emit:
    def fn(L: Lowering, xs: list[str], elt: str, n: int) -> str:
        ty = vtype(elt, n)
        return L.call(ty, f"llvm.{name}.{mangle(elt, n)}", ", ".join(f"{ty} {x}" for x in xs))

    return fn


_FLOAT: dict[str, Emit] = {
    "arith.addf": _float_binary("fadd"),
    "arith.subf": _float_binary("fsub"),
    "arith.mulf": _float_binary("fmul"),
    "arith.divf": lambda L, xs, elt, n: L.emit(f"fdiv {vtype(elt, n)} {xs[0]}, {xs[1]}"),
    "arith.remf": lambda L, xs, elt, n: math_call(L, "fmod", xs, elt, n),
    "arith.negf": lambda L, xs, elt, n: L.emit(f"fneg {vtype(elt, n)} {xs[0]}"),
    "arith.minimumf": float_intrinsic("minimum"),
    "arith.maximumf": float_intrinsic("maximum"),
    "arith.minnumf": float_intrinsic("minimumnum"),
    "arith.maxnumf": float_intrinsic("maximumnum"),
    "math.fma": float_intrinsic("fma"),
    "math.absf": float_intrinsic("fabs"),
    "math.sqrt": float_intrinsic("sqrt"),
    "math.floor": float_intrinsic("floor"),
    "math.ceil": float_intrinsic("ceil"),
    "math.trunc": float_intrinsic("trunc"),
    "math.roundeven": float_intrinsic("roundeven"),
    "math.copysign": float_intrinsic("copysign"),
}
_FLOAT["tt.precise_divf"] = _FLOAT["tt.approx_divf"] = _FLOAT["arith.divf"]
_FLOAT["tt.precise_sqrt"] = _FLOAT["math.sqrt"]
_MATH = (
    "exp exp2 log log2 log10 log1p expm1 sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc"
    " rsqrt cbrt round powf"
).split()


def _math(name: str) -> Emit:
    return lambda L, xs, elt, n: math_call(L, name, xs, elt, n)


_FLOAT.update({f"math.{name}": _math("pow" if name == "powf" else name) for name in _MATH})


@lowers(*_FLOAT)
def _float(L: Lowering, op: Op, *args: Tensor) -> Tensor:
    return float_apply(L, op.name, _FLOAT[op.name], *args)


@lowers("tt.clampf")
def _clamp(L: Lowering, op: Op, x: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    all_nan = op.attr("propagateNan") == "all"
    big, small = (float_intrinsic(n) for n in (("maximum", "minimum") if all_nan else ("maximumnum", "minimumnum")))
    return float_apply(
        L, (op.name, all_nan), lambda L, v, elt, n: small(L, [big(L, v[:2], elt, n), v[2]], elt, n), x, lo, hi
    )


@lowers("arith.cmpf")
def _cmpf(L: Lowering, op: Op, a: Tensor, b: Tensor) -> Tensor:
    predicate = op.text.split(",")[0].strip()

    def fn(L: Lowering, rows: tuple[Row, ...], n: int) -> str:
        x, y = (widened(L, r) for r in rows)
        return L.emit(f"fcmp {predicate} {vtype(compute_type(a.elt), n)} {x}, {y}")

    return apply(L, (op.name, predicate), "i1", fn, a, b)


@lowers("tt.extern_elementwise")
def _extern(L: Lowering, op: Op, *args: Tensor) -> Tensor:
    symbol = (op.attr("symbol") or "").strip('"')
    elt = op.types[0].elt

    def fn(L: Lowering, rows: tuple[Row, ...], n: int) -> str:
        if symbol.startswith("convert."):
            _, src, dst, rounding = symbol.split(".")
            return convert(L, L.vec(rows[0]), src, dst, n, rounding)
        out = extern_call(L, symbol, [(L.vec(r), r.elt) for r in rows], elt, n)
        if out is None:
            raise L.unsupported(op, f"symbol {symbol}")
        return out

    return apply(L, (op.name, symbol), elt, fn, *args)
