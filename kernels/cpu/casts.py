"""Conversions between element types."""

from __future__ import annotations

from collections.abc import Callable

from .convert import convert
from .elementwise import apply
from .lower import Lowering, lowers
from .ttir import Op
from .values import INT_BITS, Row, Tensor, storage, vtype


def _cast(fn: Callable[[Lowering, Row, str, int], Row | str]) -> Callable[..., Tensor]:
    def handler(L: Lowering, op: Op, x: Tensor) -> Tensor:
        dst = op.types[0].elt
        return apply(L, (op.name, dst, op.attr("rounding")), dst, lambda L, rows, n: fn(L, rows[0], dst, n), x)

    return handler


def _extsi(L: Lowering, row: Row, dst: str, n: int) -> Row | str:
    if row.literal and row.elt != "i1":
        return L.with_offs(n, dst, 0, row.constants())
    if row.affine and INT_BITS[row.elt] >= 32 and (row.offsets() >> 24 == row.offsets() >> 63).all():
        # An index: its arithmetic does not overflow, or no machine would find the address. Hashes, which do overflow,
        # have larger constants.
        base = L.cached(("sext", row.base, dst), None, lambda: L.emit(f"sext {row.elt} {row.base} to {dst}"))
        return Row(n, dst, base=base, offs=row.offs)
    return L.emit(f"sext {vtype(row.elt, n)} {L.vec(row)} to {vtype(dst, n)}")


def _extui(L: Lowering, row: Row, dst: str, n: int) -> Row | str:
    if row.literal:
        return L.with_offs(n, dst, 0, row.constants() & ((1 << INT_BITS[row.elt]) - 1))
    return L.emit(f"zext {vtype(row.elt, n)} {L.vec(row)} to {vtype(dst, n)}")


def _trunci(L: Lowering, row: Row, dst: str, n: int) -> Row | str:
    if row.literal:
        return L.with_offs(n, dst, 0, row.constants())
    if row.affine and dst != "i1":
        base = L.cached(("trunc", row.base, dst), None, lambda: L.emit(f"trunc {row.elt} {row.base} to {dst}"))
        return Row(n, dst, base=base, offs=row.offs)
    return L.emit(f"trunc {vtype(row.elt, n)} {L.vec(row)} to {vtype(dst, n)}")


def _index_cast(L: Lowering, row: Row, dst: str, n: int) -> Row | str:
    if row.elt == dst:
        return row
    return (_extsi if INT_BITS[row.elt] < INT_BITS[dst] else _trunci)(L, row, dst, n)


def _to_number(signed: bool) -> Callable[[Lowering, Row, str, int], str]:
    return lambda L, row, dst, n: convert(L, L.vec(row), row.elt, dst, n, signed=signed)


lowers("arith.extsi")(_cast(_extsi))
lowers("arith.extui")(_cast(_extui))
lowers("arith.trunci")(_cast(_trunci))
lowers("arith.index_cast")(_cast(_index_cast))
lowers("arith.sitofp", "arith.fptosi")(_cast(_to_number(True)))
lowers("arith.uitofp", "arith.fptoui")(_cast(_to_number(False)))
lowers("arith.extf", "arith.truncf")(_cast(lambda L, row, dst, n: convert(L, L.vec(row), row.elt, dst, n)))
lowers("tt.int_to_ptr")(
    _cast(lambda L, row, dst, n: L.emit(f"inttoptr {vtype(row.elt, n)} {L.vec(row)} to {vtype(dst, n)}"))
)
lowers("tt.ptr_to_int")(
    _cast(lambda L, row, dst, n: L.emit(f"ptrtoint {vtype(row.elt, n)} {L.vec(row)} to {vtype(dst, n)}"))
)


@lowers("tt.fp_to_fp")
def _fp_to_fp(L: Lowering, op: Op, x: Tensor) -> Tensor:
    dst, rounding = op.types[0].elt, op.attr("rounding")
    return apply(
        L,
        (op.name, dst, rounding),
        dst,
        lambda L, rows, n: convert(L, L.vec(rows[0]), x.elt, dst, n, rounding=rounding),
        x,
    )


@lowers("tt.bitcast", "arith.bitcast")
def _bitcast(L: Lowering, op: Op, x: Tensor) -> Tensor:
    dst = op.types[0].elt

    def fn(L: Lowering, rows: tuple[Row, ...], n: int) -> Row | str:
        row = rows[0]
        if dst.startswith("ptr"):  # a pointer's element type scales its offsets
            if row.offs is None:
                return Row(n, dst, row.vec, row.base)
            return Row(n, dst, L.vec(row))
        if storage(dst) == storage(row.elt):
            return Row(n, dst, row.vec, row.base, row.offs)
        return L.emit(f"bitcast {vtype(row.elt, n)} {L.vec(row)} to {vtype(dst, n)}")

    return apply(L, (op.name, dst), dst, fn, x)
