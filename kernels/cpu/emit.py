"""The instruction writer of the CPU backend: LLVM IR text, and what has been computed already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .values import (
    Literal,
    Row,
    Tensor,
    in_memory,
    is_float,
    mangle,
    pointee,
    size_of,
    storage,
    vtype,
    width,
    wrap,
    wrap_all,
)


class Builder:
    """Writes LLVM IR text. Names are unique; `cache` remembers computations that dominate the current point."""

    def __init__(self, fast: str = "contract"):
        self.fast = fast  # floating-point flags on add, sub, mul
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.declares: set[str] = set()
        self.globals: list[str] = []
        self.metadata: list[str] = []
        self.count = 0
        self.block = "entry"
        self.scopes: list[dict] = [{}]
        self.literals: dict[tuple, Row] = {}
        self.fulls: dict[int, tuple[Row, Callable[[], str]]] = {}  # a quicker way to `full`, by the id of a row

    # -- names, blocks, raw instructions
    def name(self, hint: str = "v") -> str:
        self.count += 1
        return f"%{hint}{self.count}"

    def emit(self, text: str) -> str:
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def label(self, hint: str) -> str:
        self.count += 1
        return f"{hint}{self.count}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def br(self, label: str) -> None:
        self.do(f"br label %{label}")

    def cond_br(self, cond: str, yes: str, no: str) -> None:
        self.do(f"br i1 {cond}, label %{yes}, label %{no}")

    def alloca(self, ty: str, count: int, align: int = 64) -> str:
        name = self.name("buf")
        self.allocas.append(f"  {name} = alloca {ty}, i64 {count}, align {align}")
        return name

    def call(self, ret: str, fn: str, args: str, flags: str = "") -> str:
        """Call an LLVM intrinsic or C function with `args` written as `type value, ...`."""
        types = ", ".join(_arg_type(a) for a in _split_args(args))
        self.declares.add(f"declare {ret} @{fn}({types})")
        text = f"call {flags}{' ' if flags else ''}{ret} @{fn}({args})"
        if ret == "void":
            self.do(text)
            return ""
        return self.emit(text)

    def zeros(self) -> str:
        """The address of 16 zero bytes that may be read."""
        text = "@zeros = private unnamed_addr constant [16 x i8] zeroinitializer, align 16"
        if text not in self.globals:
            self.globals.append(text)
        return "@zeros"

    # -- scoped memory of what has been computed
    def push(self) -> None:
        self.scopes.append({})

    def pop(self) -> None:
        self.scopes.pop()

    def cached(self, key: tuple, keep: object, make: Callable[[], Any]) -> Any:
        """`make()`, unless `key` was made at a point that dominates this one. `keep` pins the ids used in `key`."""
        for scope in reversed(self.scopes):
            if key in scope:
                return scope[key][0]
        value = make()
        self.scopes[-1][key] = (value, keep)
        return value

    # -- rows
    def const_vec(self, values: np.ndarray, elt: str) -> str:
        ty = storage(elt)
        items = [wrap(int(v), elt) for v in values]
        if elt == "i1":
            return "<" + ", ".join(f"i1 {'true' if v else 'false'}" for v in items) + ">"
        return "<" + ", ".join(f"{ty} {v}" for v in items) + ">"

    def text(self, base: Literal, elt: str) -> str:
        """A scalar operand."""
        if isinstance(base, int):
            if elt == "i1":
                return "true" if base & 1 else "false"
            return str(wrap(base, elt))
        return base

    def scalar(self, row: Row) -> str:
        """The value of a row whose elements are all equal."""
        if row.n == 1 and row.vec is not None:
            return row.vec
        assert row.uniform, "scalar of a non-uniform row"
        assert row.base is not None
        return self.text(row.base, row.elt)

    def vec(self, row: Row) -> str:
        """The row as one LLVM value of type `vtype(elt, n)`."""
        if row.vec is not None:
            return row.vec
        if row.n == 1:
            return self.scalar(row)
        if row.literal:  # constants cost nothing
            if row.uniform:
                return f"splat ({storage(row.elt)} {self.text(row.base, row.elt)})"  # type: ignore[arg-type]
            return self.const_vec(row.constants(), row.elt)
        return self.cached(("vec", id(row)), row, lambda: self._materialise(row))

    def _materialise(self, row: Row) -> str:
        ty, n = vtype(row.elt, row.n), row.n
        assert isinstance(row.base, str)
        if row.elt.startswith("ptr"):
            if row.offs is not None:
                idx = self.const_vec(row.offs, "i64")
                return self.emit(f"getelementptr {pointee(row.elt)}, ptr {row.base}, <{n} x i64> {idx}")
        if not row.base.startswith("%"):  # constant text
            splat = f"splat ({storage(row.elt)} {row.base})"
        else:
            splat = self.splat(row.base, storage(row.elt), n)
        if row.offs is None:
            return splat
        return self.emit(f"add {ty} {splat}, {self.const_vec(row.offs, row.elt)}")

    def splat(self, scalar: str, ty: str, n: int) -> str:
        if n == 1:
            return scalar
        if not scalar.startswith("%"):
            return f"splat ({ty} {scalar})"

        def make() -> str:
            one = self.emit(f"insertelement <{n} x {ty}> poison, {ty} {scalar}, i64 0")
            return self.emit(f"shufflevector <{n} x {ty}> {one}, <{n} x {ty}> poison, <{n} x i32> zeroinitializer")

        return self.cached(("splat", scalar, ty, n), None, make)

    def lane(self, row: Row, i: int) -> Row:
        """Element `i` as a row of one."""
        if row.n == 1:
            return row
        if row.uniform:
            return Row(1, row.elt, base=row.base)
        if row.affine:
            assert row.offs is not None
            return self.cached(("lane", id(row), i), row, lambda: self.shifted(row, int(row.offs[i])))  # type: ignore
        ty = vtype(row.elt, row.n)

        def make() -> Row:
            return Row(1, row.elt, vec=self.emit(f"extractelement {ty} {row.vec}, i64 {i}"))

        return self.cached(("lane", id(row), i), row, make)

    def shifted(self, row: Row, by: int) -> Row:
        """A row of one: the base of an affine row plus a constant."""
        if row.literal:
            return Row(1, row.elt, base=wrap(row.base + by, row.elt))  # type: ignore[operator]
        if by == 0:
            return Row(1, row.elt, base=row.base)
        if row.elt.startswith("ptr"):
            return Row(1, row.elt, base=self.emit(f"getelementptr {pointee(row.elt)}, ptr {row.base}, i64 {by}"))
        return Row(1, row.elt, base=self.emit(f"add {storage(row.elt)} {row.base}, {by}"))

    def shuffle(self, a: Row, b: Row | None, index: Sequence[int]) -> Row:
        """`shufflevector`: lanes of `a`, then of `b`."""
        n, elt = len(index), a.elt
        if b is None and a.uniform:
            return Row(n, elt, base=a.base)
        if b is None and a.affine and a.offs is not None:
            return self.with_offs(n, elt, a.base, a.offs[list(index)])
        if n == 1 and index[0] < a.n:
            return self.lane(a, index[0])

        def make() -> Row:
            if a.n == 1:  # scalars have no lanes: build the vector by insertion
                parts = [a, b]
                v = "poison"
                for i, k in enumerate(index):
                    part = parts[k]
                    assert part is not None
                    v = self.emit(f"insertelement <{n} x {storage(elt)}> {v}, {storage(elt)} {self.vec(part)}, i64 {i}")
                return Row(n, elt, vec=v)
            ty = vtype(elt, a.n)
            other = self.vec(b) if b is not None else "poison"
            idx = ", ".join(f"i32 {k}" for k in index)
            return Row(n, elt, vec=self.emit(f"shufflevector {ty} {self.vec(a)}, {ty} {other}, <{n} x i32> <{idx}>"))

        return self.cached(("shuffle", id(a), id(b), tuple(index)), (a, b), make)

    def with_offs(self, n: int, elt: str, base: Literal | None, offs: np.ndarray) -> Row:
        """An affine row in its simplest form; rows of equal constants are one and the same."""
        offs = np.asarray(offs, np.int64)
        if isinstance(base, int):
            values = wrap_all(offs + base, elt)
            key = (n, elt, values.tobytes())
            if key not in self.literals:
                same = (values == values[0]).all()
                row = Row(n, elt, base=int(values[0])) if same else Row(n, elt, base=0, offs=values)
                self.literals[key] = row
            return self.literals[key]
        if n == 1:
            return self.shifted(Row(1, elt, base=base), int(offs[0]))
        return Row(n, elt, base=base, offs=offs if offs.any() else None)

    # -- tensors
    def canonical(self, t: Tensor) -> Tensor:
        """The same tensor with rows of the standard width for its shape."""
        return self.rechunk(t, width(t.shape))

    def rechunk(self, t: Tensor, w: int) -> Tensor:
        rows = t.rows
        if t.w == w:
            return t
        cur = t.w
        if cur > w:
            rows = [self.shuffle(r, None, range(i, i + w)) for r in rows for i in range(0, cur, w)]
        while cur < w:
            rows = [self.concat(rows[i], rows[i + 1]) for i in range(0, len(rows), 2)]
            cur *= 2
        return Tensor(t.shape, t.elt, rows, w)

    def concat(self, a: Row, b: Row) -> Row:
        n = a.n
        if a.affine and b.affine:
            if a.literal and b.literal:
                return self.with_offs(2 * n, a.elt, 0, np.concatenate([a.constants(), b.constants()]))
            if a.base == b.base and not is_float(a.elt):
                return self.with_offs(2 * n, a.elt, a.base, np.concatenate([a.offsets(), b.offsets()]))
        return self.shuffle(
            Row(n, a.elt, vec=self.vec(a)) if a.vec is None and n > 1 else a,
            Row(n, b.elt, vec=self.vec(b)) if b.vec is None and n > 1 else b,
            range(2 * n),
        )

    def spill(self, t: Tensor) -> str:
        """Write the tensor to stack memory, row-major; returns its address."""
        mem, size = storage(in_memory(t.elt)), size_of(t.elt)
        buf = self.alloca(mem, t.numel)
        for i, row in enumerate(t.rows):
            at = self.emit(f"getelementptr {mem}, ptr {buf}, i64 {i * t.w}") if i else buf
            self.do(
                f"store {vtype(in_memory(t.elt), row.n)} {self.to_memory(row)}, ptr {at}, align {min(64, size * t.w)}"
            )
        return buf

    def breathe(self, elements: int) -> None:
        """Stop LLVM from reordering loads here, after every 2048 elements: its time is quadratic in a run of loads."""
        if elements and elements % 2048 == 0:
            self.do('fence syncscope("singlethread") acq_rel')

    def reload(self, buf: str, shape: Sequence[int], elt: str) -> Tensor:
        """The tensor that lies row-major in stack memory."""
        w, mem = width(shape), storage(in_memory(elt))
        n = int(np.prod(shape, dtype=np.int64))
        rows = []
        for i in range(n // w):
            self.breathe(i * w)
            at = self.emit(f"getelementptr {mem}, ptr {buf}, i64 {i * w}") if i else buf
            v = self.emit(f"load {vtype(in_memory(elt), w)}, ptr {at}, align {min(64, size_of(elt) * w)}")
            rows.append(self.from_memory(v, elt, w))
        return Tensor(shape, elt, rows, w)

    def to_memory(self, row: Row) -> str:
        """The row's value as it lies in memory."""
        v = self.vec(row)
        return self.emit(f"zext {vtype('i1', row.n)} {v} to {vtype('i8', row.n)}") if row.elt == "i1" else v

    def from_memory(self, v: str, elt: str, n: int) -> Row:
        """A value that was loaded from memory as a row."""
        if elt == "i1":
            v = self.emit(f"icmp ne {vtype('i8', n)} {v}, {'0' if n == 1 else 'zeroinitializer'}")
        return Row(n, elt, vec=v)

    def peek(self, buf: str, elt: str, i: Literal) -> Row:
        """Element `i` of a row-major tensor in stack memory."""
        mem = storage(in_memory(elt))
        at = self.emit(f"getelementptr {mem}, ptr {buf}, i64 {i}")
        return self.from_memory(self.emit(f"load {mem}, ptr {at}, align {size_of(elt)}"), elt, 1)

    def poke(self, buf: str, i: Literal, row: Row) -> None:
        """Write a single element as number `i` of a row-major tensor in stack memory."""
        mem = storage(in_memory(row.elt))
        at = self.emit(f"getelementptr {mem}, ptr {buf}, i64 {i}")
        self.do(f"store {mem} {self.to_memory(row)}, ptr {at}, align {size_of(row.elt)}")

    def zeroed(self, elt: str, count: int) -> str:
        """Stack memory for `count` elements, all zero."""
        buf = self.alloca(storage(in_memory(elt)), count)
        self.call("void", "llvm.memset.p0.i64", f"ptr {buf}, i8 0, i64 {count * size_of(elt)}, i1 false")
        return buf

    def loop(self, count: Literal, body: Callable[[str], None], small: bool = False) -> None:
        """`for i in range(count): body(i)` with an i64 counter. `small`: neither unrolled nor vectorised."""
        head, inside, done = self.label("head"), self.label("body"), self.label("done")
        before, i, nxt = self.block, self.name("i"), self.name("i")
        self.br(head)
        self.start(head)
        slot = len(self.lines)
        cond = self.emit(f"icmp ult i64 {i}, {count}")
        self.cond_br(cond, inside, done)
        self.start(inside)
        self.push()
        body(i)
        self.pop()
        self.do(f"{nxt} = add nuw i64 {i}, 1")
        self.lines.insert(slot, f"  {i} = phi i64 [0, %{before}], [{nxt}, %{self.block}]")
        self.do(f"br label %{head}{self.kept_small() if small else ''}")
        self.start(done)

    def kept_small(self) -> str:
        """What the last branch of a loop carries so that LLVM leaves it as it is."""
        if not self.metadata:
            self.metadata = ['!0 = !{!"llvm.loop.unroll.disable"}', '!1 = !{!"llvm.loop.vectorize.enable", i1 false}']
        number = len(self.metadata)
        self.metadata.append(f"!{number} = distinct !{{!{number}, !0, !1}}")
        return f", !llvm.loop !{number}"

    def either(
        self, cond: str, yes: Callable[[], list[str]], no: Callable[[], list[str]], types: Sequence[str]
    ) -> list[str]:
        """Values of `types`: those that `yes()` makes if `cond`, else those of `no()`."""
        labels, after, ends = (self.label("then"), self.label("else")), self.label("after"), []
        self.cond_br(cond, *labels)
        for label, make in zip(labels, (yes, no)):
            self.start(label)
            self.push()
            values = make()
            self.pop()
            ends.append((self.block, values))
            self.br(after)
        self.start(after)
        (a, of_a), (b, of_b) = ends
        return [self.emit(f"phi {ty} [{x}, %{a}], [{y}, %{b}]") for ty, x, y in zip(types, of_a, of_b)]

    def full(self, mask: Row) -> str:
        """Whether all elements of a row of booleans hold, as a scalar."""
        if mask.uniform:
            return self.scalar(mask)
        if id(mask) in self.fulls:
            return self.fulls[id(mask)][1]()
        ty = vtype("i1", mask.n)
        return self.call("i1", f"llvm.vector.reduce.and.{mangle('i1', mask.n)}", f"{ty} {self.vec(mask)}")

    def when(self, cond: str, body: Callable[[], None]) -> None:
        """`if cond: body()`."""
        yes, after = self.label("then"), self.label("after")
        self.cond_br(cond, yes, after)
        self.start(yes)
        self.push()
        body()
        self.pop()
        self.br(after)
        self.start(after)


def _split_args(args: str) -> list[str]:
    out, depth, start = [], 0, 0
    for i, c in enumerate(args):
        if c in "<([{":
            depth += 1
        elif c in ">)]}":
            depth -= 1
        elif c == "," and depth == 0:
            out.append(args[start:i].strip())
            start = i + 1
    if args[start:].strip():
        out.append(args[start:].strip())
    return out


def _arg_type(arg: str) -> str:
    """The type at the front of `type [align n] value`."""
    if arg.startswith("<"):
        return arg[: arg.index(">") + 1]
    return arg.split(" ", 1)[0]
