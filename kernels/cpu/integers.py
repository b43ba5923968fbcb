"""Integer arithmetic, comparisons and addresses, which keep rows affine (see `values.Row`) where they can."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .elementwise import apply, constant, texts
from .lower import Lowering, lowers
from .ttir import Op
from .values import INT_BITS, Literal, Row, Tensor, mangle, pointee, storage, vtype, wrap


def _add_base(L: Lowering, a: Row, b: Row, sign: int) -> Literal:
    if isinstance(a.base, int) and isinstance(b.base, int):
        return wrap(a.base + sign * b.base, a.elt)
    if b.base == 0:
        return a.base  # type: ignore[return-value]
    if a.base == 0 and sign > 0:
        return b.base  # type: ignore[return-value]
    what = "add" if sign > 0 else "sub"
    x, y = (L.text(r.base, r.elt) for r in (a, b))  # type: ignore[arg-type]
    return L.cached((what, x, y, a.elt), None, lambda: L.emit(f"{what} {storage(a.elt)} {x}, {y}"))


def _addsub(sign: int) -> Callable[..., Row | str]:
    def fn(L: Lowering, rows: tuple[Row, ...], n: int) -> Row | str:
        a, b = rows
        if a.affine and b.affine:
            return L.with_offs(n, a.elt, _add_base(L, a, b, sign), a.offsets() + sign * b.offsets())
        return L.emit(f"{'add' if sign > 0 else 'sub'} {vtype(a.elt, n)} {L.vec(a)}, {L.vec(b)}")

    return fn


def _mul(L: Lowering, rows: tuple[Row, ...], n: int) -> Row | str:
    a, b = rows
    if a.literal and a.uniform:
        a, b = b, a
    if b.literal and b.uniform and a.affine:
        c = b.base
        assert isinstance(c, int)
        if isinstance(a.base, int):
            return L.with_offs(n, a.elt, wrap(a.base * c, a.elt), a.offsets() * c)
        base = L.emit(f"mul {storage(a.elt)} {a.base}, {c}") if c != 1 else a.base
        return L.with_offs(n, a.elt, base, a.offsets() * c)
    return L.emit(f"mul {vtype(a.elt, n)} {L.vec(a)}, {L.vec(b)}")


def _shl(L: Lowering, rows: tuple[Row, ...], n: int) -> Row | str:
    a, b = rows
    bits = INT_BITS[a.elt]
    if b.literal and b.uniform and 0 <= b.base < bits - 1:  # type: ignore[operator]
        return _mul(L, (a, L.with_offs(n, a.elt, 1 << b.base, np.zeros(n))), n)  # type: ignore[operator]
    return _guarded_shift(L, "shl", a, b, n)


def _guarded_shift(L: Lowering, what: str, a: Row, b: Row, n: int) -> str:
    """Shifting all bits out gives 0 (or the sign), where LLVM would give poison."""
    ty, bits, x, y = vtype(a.elt, n), INT_BITS[a.elt], L.vec(a), L.vec(b)
    if b.literal and ((b.constants() >= 0) & (b.constants() < bits)).all():
        return L.emit(f"{what} {ty} {x}, {y}")
    last = constant(n, storage(a.elt), bits - 1)
    safe = L.call(ty, f"llvm.umin.{mangle(a.elt, n)}", f"{ty} {y}, {ty} {last}")
    out = L.emit(f"{what} {ty} {x}, {safe}")
    if what == "ashr":
        return out
    inside = L.emit(f"icmp ule {ty} {y}, {last}")
    return L.emit(f"select {vtype('i1', n)} {inside}, {ty} {out}, {ty} {constant(n, storage(a.elt), 0)}")


def _divide(what: str) -> Callable[..., str]:
    """Division that never traps: x / 0 and x % 0 are 0, and the smallest number / -1 wraps."""
    signed, rem = what[0] == "s", what.endswith("rem")

    def fn(L: Lowering, rows: tuple[Row, ...], n: int) -> str:
        a, b = rows
        ty, bits, elt = vtype(a.elt, n), INT_BITS[a.elt], storage(a.elt)
        x, y, zero = L.vec(a), L.vec(b), constant(n, elt, 0)
        if b.literal and not np.isin(b.constants(), (0, -1)).any():
            return L.emit(f"{what} {ty} {x}, {y}")
        i1 = vtype("i1", n)
        none = L.emit(f"icmp eq {ty} {y}, {zero}")
        bad = none
        if signed:
            smallest = L.emit(f"icmp eq {ty} {x}, {constant(n, elt, wrap(1 << (bits - 1), a.elt))}")
            minus = L.emit(f"icmp eq {ty} {y}, {constant(n, elt, -1)}")
            bad = L.emit(f"or {i1} {none}, {L.emit(f'and {i1} {smallest}, {minus}')}")
        y = L.emit(f"select {i1} {bad}, {ty} {constant(n, elt, 1)}, {ty} {y}")
        if n > 1 and bits <= 32:  # no vector unit divides integers; a double holds these quotients exactly
            f64, i64 = vtype("f64", n), vtype("i64", n)
            to = "sitofp" if signed else "uitofp"
            q = L.emit(f"fdiv {f64} {L.emit(f'{to} {ty} {x} to {f64}')}, {L.emit(f'{to} {ty} {y} to {f64}')}")
            q = L.emit(f"trunc {i64} {L.emit(f'fptosi {f64} {q} to {i64}')} to {ty}")
            out = L.emit(f"sub {ty} {x}, {L.emit(f'mul {ty} {q}, {y}')}") if rem else q
        else:
            out = L.emit(f"{what} {ty} {x}, {y}")
        return out if rem else L.emit(f"select {i1} {none}, {ty} {zero}, {ty} {out}")

    return fn


def _plain(what: str) -> Callable[..., str]:
    def fn(L: Lowering, rows: tuple[Row, ...], n: int) -> str:
        a, b = texts(L, rows)
        return L.emit(f"{what} {vtype(rows[0].elt, n)} {a}, {b}")

    return fn


def _shift_right(what: str) -> Callable[..., str]:
    return lambda L, rows, n: _guarded_shift(L, what, rows[0], rows[1], n)


def _int_intrinsic(name: str, extra: str = "") -> Callable[..., str]:
    def fn(L: Lowering, rows: tuple[Row, ...], n: int) -> str:
        ty = vtype(rows[0].elt, n)
        return L.call(
            ty, f"llvm.{name}.{mangle(rows[0].elt, n)}", ", ".join(f"{ty} {t}" for t in texts(L, rows)) + extra
        )

    return fn


_INT: dict[str, tuple[Callable[..., Row | str], Callable | None]] = {  # what to emit, and how to fold constants
    "arith.addi": (_addsub(1), None),
    "arith.subi": (_addsub(-1), None),
    "arith.muli": (_mul, np.multiply),
    "arith.shli": (_shl, None),
    "arith.shrsi": (_shift_right("ashr"), None),
    "arith.shrui": (_shift_right("lshr"), None),
    "arith.divsi": (_divide("sdiv"), None),
    "arith.divui": (_divide("udiv"), None),
    "arith.remsi": (_divide("srem"), None),
    "arith.remui": (_divide("urem"), None),
    "arith.andi": (_plain("and"), np.bitwise_and),
    "arith.ori": (_plain("or"), np.bitwise_or),
    "arith.xori": (_plain("xor"), np.bitwise_xor),
    "arith.minsi": (_int_intrinsic("smin"), np.minimum),
    "arith.maxsi": (_int_intrinsic("smax"), np.maximum),
    "arith.minui": (_int_intrinsic("umin"), None),
    "arith.maxui": (_int_intrinsic("umax"), None),
    "math.absi": (_int_intrinsic("abs", ", i1 false"), None),
    "math.ctpop": (_int_intrinsic("ctpop"), None),
    "math.ctlz": (_int_intrinsic("ctlz", ", i1 false"), None),
    "math.cttz": (_int_intrinsic("cttz", ", i1 false"), None),
}


@lowers(*_INT)
def _integer(L: Lowering, op: Op, *args: Tensor) -> Tensor:
    emit, fold = _INT[op.name]

    def fn(L: Lowering, rows: tuple[Row, ...], n: int) -> Row | str:
        if fold is not None and all(r.literal for r in rows):
            return L.with_offs(n, rows[0].elt, 0, fold(*(r.constants() for r in rows)))
        out = emit(L, rows, n)
        if op.name == "arith.andi" and args[0].elt == "i1" and isinstance(out, str) and n > 1:
            out = Row(n, "i1", vec=out)
            L.fulls[id(out)] = out, lambda: L.emit(f"and i1 {L.full(rows[0])}, {L.full(rows[1])}")
        return out

    return apply(L, op.name, args[0].elt, fn, *args)


@lowers("tt.mulhiui")
def _mulhi(L: Lowering, op: Op, a: Tensor, b: Tensor) -> Tensor:
    return apply(L, op.name, a.elt, lambda L, rows, n: _mul_wide(L, rows, n, "zext")[1], a, b)


@lowers("arith.mului_extended", "arith.mulsi_extended")
def _mul_extended(L: Lowering, op: Op, a: Tensor, b: Tensor) -> list[Tensor]:
    ext = "zext" if "mului" in op.name else "sext"
    return [apply(L, (op.name, k), a.elt, lambda L, rows, n, k=k: _mul_wide(L, rows, n, ext)[k], a, b) for k in (0, 1)]


def _mul_wide(L: Lowering, rows: tuple[Row, ...], n: int, ext: str) -> tuple[str, str]:
    """The low and the high half of a product."""
    bits = INT_BITS[rows[0].elt]
    ty = vtype(rows[0].elt, n)
    double = f"i{2 * bits}"
    wide = double if n == 1 else f"<{n} x {double}>"
    a, b = (L.emit(f"{ext} {ty} {t} to {wide}") for t in texts(L, rows))
    product = L.emit(f"mul {wide} {a}, {b}")
    high = L.emit(f"lshr {wide} {product}, {constant(n, double, bits)}")
    return L.emit(f"trunc {wide} {product} to {ty}"), L.emit(f"trunc {wide} {high} to {ty}")


@lowers("arith.cmpi")
def _cmpi(L: Lowering, op: Op, a: Tensor, b: Tensor) -> Tensor:
    predicate = op.text.split(",")[0].strip()

    def fn(L: Lowering, rows: tuple[Row, ...], n: int) -> Row | str:
        x, y = rows
        if x.literal and y.literal and predicate[0] != "u":
            test = {"eq": np.equal, "ne": np.not_equal, "slt": np.less, "sle": np.less_equal,
                    "sgt": np.greater, "sge": np.greater_equal}[predicate]  # fmt: skip
            return L.with_offs(n, "i1", 0, test(x.constants(), y.constants()).astype(np.int64))
        out = Row(n, "i1", vec=L.emit(f"icmp {predicate} {vtype(x.elt, n)} {L.vec(x)}, {L.vec(y)}"))
        if predicate in ("slt", "sle") and n > 1 and x.affine and y.uniform and x.elt != "i1":
            # All below: the last one is, computed without wrapping around.
            def full() -> str:
                low, high = (L.text(r.base, r.elt) for r in rows)  # type: ignore[arg-type]
                if x.elt != "i64":
                    low, high = (L.emit(f"sext {x.elt} {t} to i64") for t in (low, high))
                last = L.call("i64", "llvm.sadd.sat.i64", f"i64 {low}, i64 {int(x.offsets().max())}")
                return L.emit(f"icmp {predicate} i64 {last}, {high}")

            L.fulls[id(out)] = out, full
        return out

    return apply(L, (op.name, predicate), "i1", fn, a, b)


# -- addresses ---------------------------------------------------------------------------------------------------------
@lowers("tt.addptr")
def _addptr(L: Lowering, op: Op, ptr: Tensor, index: Tensor) -> Tensor:
    memory = pointee(ptr.elt)

    def fn(L: Lowering, rows: tuple[Row, ...], n: int) -> Row | str:
        p, i = rows
        if p.affine and i.affine:
            base = p.base
            if i.base != 0:
                at = (p.base, i.base, i.elt, memory)
                base = L.cached(
                    ("gep", *at),
                    None,
                    lambda: L.emit(f"getelementptr {memory}, ptr {p.base}, {i.elt} {L.text(i.base, i.elt)}"),  # type: ignore[arg-type]
                )
            return L.with_offs(n, p.elt, base, p.offsets() + i.offsets())
        index_ty = vtype(i.elt, n)
        if p.uniform:
            return L.emit(f"getelementptr {memory}, ptr {p.base}, {index_ty} {L.vec(i)}")
        return L.emit(f"getelementptr {memory}, {vtype(p.elt, n)} {L.vec(p)}, {index_ty} {L.vec(i)}")

    return apply(L, op.name, ptr.elt, fn, ptr, index)
