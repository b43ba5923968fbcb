"""Arithmetic on LLVM vectors as Python operators: what the numeric parts of the backend are written in."""

from __future__ import annotations

from dataclasses import dataclass

from .emit import Builder
from .values import float_text, is_float, mangle, size_of, storage, vtype

FLOAT_BITS = {"half": "i16", "f32": "i32", "f64": "i64"}


@dataclass(frozen=True, eq=False)
class Lanes:
    """`n` lanes of type `elt` (LLVM's own: half, f32, f64 or an integer) held in `text`. Operators emit instructions.

    Integers compare and shift right as signed numbers. Python numbers become constants of the other operand's type.
    Float instructions carry no fast-math flags: error-free transformations rely on each rounding.
    """

    L: Builder
    text: str
    elt: str
    n: int

    @property
    def type(self) -> str:
        return vtype(self.elt, self.n)

    def const(self, value: float) -> Lanes:
        """The constant `value` in every lane."""
        text = float_text(value, self.elt) if is_float(self.elt) else str(int(value))
        return self.like(text if self.n == 1 else f"splat ({storage(self.elt)} {text})")

    def like(self, text: str, elt: str | None = None) -> Lanes:
        return Lanes(self.L, text, elt or self.elt, self.n)

    def op(self, opcode: str, *others: Lanes | float, elt: str | None = None) -> Lanes:
        """One instruction: `opcode type self, others...`; `elt` is the result's if it is not the operands'."""
        rest = "".join(f", {self.of(o).text}" for o in others)
        return self.like(self.L.emit(f"{opcode} {self.type} {self.text}{rest}"), elt)

    def of(self, value: Lanes | float) -> Lanes:
        return value if isinstance(value, Lanes) else self.const(value)

    def arith(self, name: str, other: Lanes | float, swap: bool = False) -> Lanes:
        a, b = (self.of(other), self) if swap else (self, self.of(other))
        return a.op(("f" if is_float(self.elt) else "") + name, b)

    def __add__(self, o: Lanes | float) -> Lanes:
        return self.arith("add", o)

    def __sub__(self, o: Lanes | float) -> Lanes:
        return self.arith("sub", o)

    def __mul__(self, o: Lanes | float) -> Lanes:
        return self.arith("mul", o)

    def __truediv__(self, o: Lanes | float) -> Lanes:
        return self.arith("div", o)

    def __radd__(self, o: float) -> Lanes:
        return self.arith("add", o)

    def __rmul__(self, o: float) -> Lanes:
        return self.arith("mul", o)

    def __rsub__(self, o: float) -> Lanes:
        return self.arith("sub", o, swap=True)

    def __rtruediv__(self, o: float) -> Lanes:
        return self.arith("div", o, swap=True)

    def __neg__(self) -> Lanes:
        return self.op("fneg") if is_float(self.elt) else 0 - self

    def __and__(self, o: Lanes | int) -> Lanes:
        return self.op("and", o)

    def __or__(self, o: Lanes | int) -> Lanes:
        return self.op("or", o)

    def __xor__(self, o: Lanes | int) -> Lanes:
        return self.op("xor", o)

    def __lshift__(self, o: Lanes | int) -> Lanes:
        return self.op("shl", o)

    def __rshift__(self, o: Lanes | int) -> Lanes:
        return self.op("ashr", o)

    def cmp(self, predicate: str, o: Lanes | float) -> Lanes:
        """A comparison by LLVM's name for it, such as "ult" or "uno"."""
        return self.op(("fcmp " if is_float(self.elt) else "icmp ") + predicate, o, elt="i1")

    def __lt__(self, o: Lanes | float) -> Lanes:
        return self.cmp("olt" if is_float(self.elt) else "slt", o)

    def __gt__(self, o: Lanes | float) -> Lanes:
        return self.cmp("ogt" if is_float(self.elt) else "sgt", o)

    def __ge__(self, o: Lanes | float) -> Lanes:
        return self.cmp("oge" if is_float(self.elt) else "sge", o)

    def eq(self, o: Lanes | float) -> Lanes:
        return self.cmp("oeq" if is_float(self.elt) else "eq", o)

    def isnan(self) -> Lanes:
        return self.cmp("uno", self)

    def where(self, yes: Lanes | float, no: Lanes | float) -> Lanes:
        """Per lane of i1: `yes` or `no`, of which at least one is no constant."""
        like = yes if isinstance(yes, Lanes) else no
        assert isinstance(like, Lanes)
        a, b = like.of(yes), like.of(no)
        return like.like(self.L.emit(f"select {self.type} {self.text}, {a.type} {a.text}, {b.type} {b.text}"))

    def cast(self, opcode: str, elt: str) -> Lanes:
        """A conversion instruction, or nothing where the types agree."""
        if elt == self.elt:
            return self
        return self.like(self.L.emit(f"{opcode} {self.type} {self.text} to {vtype(elt, self.n)}"), elt)

    def resize(self, elt: str, signed: bool = False) -> Lanes:
        """An integer of another width."""
        wider = size_of(elt) > size_of(self.elt) or self.elt == "i1"
        return self.cast(("sext" if signed else "zext") if wider else "trunc", elt)

    def bits(self) -> Lanes:
        return self.cast("bitcast", FLOAT_BITS[self.elt])

    def fn(self, name: str, *others: Lanes | float, flags: str = "") -> Lanes:
        """The overloaded intrinsic `llvm.<name>` on operands of one type."""
        args = ", ".join(f"{self.type} {self.of(o).text}" for o in (self, *others))
        return self.like(self.L.call(self.type, f"llvm.{name}.{mangle(self.elt, self.n)}", args, flags))

    def abs(self) -> Lanes:
        return self.fn("fabs")

    def fma(self, a: Lanes | float, b: Lanes | float) -> Lanes:
        """self * a + b, rounded once."""
        return self.fn("fma", a, b)
