"""Loads, stores and atomics, program ids, device_print and device_assert.

A load or store whose addresses are consecutive is one (masked) vector access; equal addresses are one scalar access;
only the rest is a gather or scatter. Masked-off lanes never touch memory, and read as `other` or else as 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from .convert import convert
from .elementwise import level, spread
from .lower import Lowering, lowers
from .ttir import Op, Type
from .values import Row, Tensor, in_memory, mangle, size_of, storage, vtype, width

AXIS = {"x": 0, "y": 1, "z": 2}


@lowers("tt.get_program_id")
def _program_id(L: Lowering, op: Op) -> Tensor:
    return Tensor((), "i32", [Row(1, "i32", base=f"%pid{AXIS[op.text.split()[0]]}")], 1)


@lowers("tt.get_num_programs")
def _num_programs(L: Lowering, op: Op) -> Tensor:
    return Tensor((), "i32", [Row(1, "i32", base=f"%grid{AXIS[op.text.split()[0]]}")], 1)


# -- loads and stores --------------------------------------------------------------------------------------------------
def consecutive(row: Row) -> bool:
    return row.offs is not None and bool((np.diff(row.offs) == 1).all())


def _zero(elt: str, n: int) -> str:
    if n > 1:
        return "zeroinitializer"
    return {"float": "0.0", "double": "0.0", "ptr": "null"}.get(storage(elt), "0")


def all_true(mask: Row | None) -> bool:
    return mask is None or (mask.literal and bool(mask.constants().all()))


def _load_row(L: Lowering, ptr: Row, mask: Row | None, other: Row | None, elt: str) -> Row:
    n, mem, align = ptr.n, in_memory(elt), size_of(elt)
    if mask is not None and mask.literal and not mask.constants().any():
        return other if other is not None else L.from_memory(_zero(mem, n), elt, n)
    full = all_true(mask)
    if n == 1 or (ptr.uniform and (full or mask.uniform)):  # type: ignore[union-attr]
        return spread(L, _load_scalar(L, ptr, None if full else mask, other, elt), n)
    ty = vtype(mem, n)
    if consecutive(ptr):
        at = L.scalar(L.shifted(ptr, int(ptr.offs[0])))  # type: ignore[index]
        if full:
            return L.from_memory(L.emit(f"load {ty}, ptr {at}, align {align}"), elt, n)
        rest = L.to_memory(other) if other is not None else _zero(mem, n)
        args = f"ptr align {align} {at}, {vtype('i1', n)} {L.vec(mask)}, {ty} {rest}"  # type: ignore[arg-type]
        return L.from_memory(L.call(ty, f"llvm.masked.load.{mangle(mem, n)}.p0", args), elt, n)
    where = "splat (i1 true)" if full else L.vec(mask)  # type: ignore[arg-type]
    rest = L.to_memory(other) if other is not None else _zero(mem, n)
    args = f"<{n} x ptr> align {align} {L.vec(ptr)}, <{n} x i1> {where}, {ty} {rest}"
    return L.from_memory(L.call(ty, f"llvm.masked.gather.{mangle(mem, n)}.v{n}p0", args), elt, n)


def _load_scalar(L: Lowering, ptr: Row, mask: Row | None, other: Row | None, elt: str) -> Row:
    """One element. Without a branch: where the mask is off, a zero on the stack is read."""
    mem, at = in_memory(elt), L.text(ptr.base, ptr.elt)  # type: ignore[arg-type]
    if mask is None:
        return L.from_memory(L.emit(f"load {storage(mem)}, ptr {at}, align {size_of(elt)}"), elt, 1)
    on = L.text(mask.base, "i1")  # type: ignore[arg-type]
    safe = L.emit(f"select i1 {on}, ptr {at}, ptr {L.zeros()}")
    row = L.from_memory(L.emit(f"load {storage(mem)}, ptr {safe}, align {size_of(elt)}"), elt, 1)
    if other is None or other.base in (0, "0x0000000000000000"):
        return row
    ty = storage(elt)
    v = L.emit(f"select i1 {on}, {ty} {L.vec(row)}, {ty} {L.text(other.base, elt)}")  # type: ignore[arg-type]
    return Row(1, elt, vec=v)


@lowers("tt.load")
def _load(L: Lowering, op: Op, ptr: Tensor, mask: Tensor | None = None, other: Tensor | None = None) -> Tensor:
    given = level(L, [t for t in (ptr, mask, other) if t is not None])
    columns = [t.rows for t in given] + [[None] * len(given[0].rows)] * (3 - len(given))
    elt = op.types[0].elt
    done: dict[tuple[int, ...], Row] = {}  # equal rows are read once
    rows = []
    for p, m, o in zip(*columns):
        key = (id(p), id(m), id(o))
        if key not in done:
            L.breathe(len(done) * p.n)
            if o is not None and not o.uniform and (p.n == 1 or p.uniform) and m is not None and m.uniform:
                # The value differs by lane although the address does not.
                read = _load_row(L, p, m, None, elt)
                ty = vtype(elt, p.n)
                v = L.emit(f"select i1 {L.text(m.base, 'i1')}, {ty} {L.vec(read)}, {ty} {L.vec(o)}")
                done[key] = Row(p.n, elt, vec=v)
            else:
                done[key] = _load_row(L, p, m, o, elt)
        rows.append(done[key])
    out = Tensor(op.types[0].shape, elt, rows, given[0].w)
    if all(all_true(m) for m in columns[1]):
        L.loads[id(out)] = (out, given[0].rows, L.epoch)
    return out


def _store_row(L: Lowering, ptr: Row, value: Row, mask: Row | None) -> None:
    n, mem, align = ptr.n, in_memory(value.elt), size_of(value.elt)
    if mask is not None and mask.literal and not mask.constants().any():
        return
    full = all_true(mask)
    if n == 1 or (ptr.uniform and value.uniform and (full or mask.uniform)):  # type: ignore[union-attr]
        if n > 1:
            value = Row(1, value.elt, base=value.base)
        text, at = L.to_memory(value), L.text(ptr.base, ptr.elt)  # type: ignore[arg-type]

        def write() -> None:
            L.do(f"store {storage(mem)} {text}, ptr {at}, align {align}")

        if full:
            write()
        else:
            L.when(L.text(mask.base, "i1"), write)  # type: ignore[union-attr, arg-type]
        return
    ty, text = vtype(mem, n), L.to_memory(value)
    if consecutive(ptr):
        at = L.scalar(L.shifted(ptr, int(ptr.offs[0])))  # type: ignore[index]
        if full:
            L.do(f"store {ty} {text}, ptr {at}, align {align}")
        else:
            args = f"{ty} {text}, ptr align {align} {at}, {vtype('i1', n)} {L.vec(mask)}"  # type: ignore[arg-type]
            L.call("void", f"llvm.masked.store.{mangle(mem, n)}.p0", args)
        return
    where = "splat (i1 true)" if full else L.vec(mask)  # type: ignore[arg-type]
    args = f"{ty} {text}, <{n} x ptr> align {align} {L.vec(ptr)}, <{n} x i1> {where}"
    L.call("void", f"llvm.masked.scatter.{mangle(mem, n)}.v{n}p0", args)


@lowers("tt.store")
def _store(L: Lowering, op: Op, ptr: Tensor, value: Tensor, mask: Tensor | None = None) -> None:
    given = level(L, [t for t in (ptr, value, mask) if t is not None])
    columns = [t.rows for t in given] + [[None] * len(given[0].rows)] * (3 - len(given))
    previous = None
    for row in zip(*columns):
        if row != previous:  # a broadcast store writes the same row many times
            _store_row(L, *row)
        previous = row
    L.epoch += 1


# -- atomics -----------------------------------------------------------------------------------------------------------
_RMW = {"fadd": "fadd", "add": "add", "and": "and", "or": "or", "xor": "xor", "exch": "xchg", "xchg": "xchg",
        "max": "max", "min": "min", "umax": "umax", "umin": "umin"}  # fmt: skip
_ORDER = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}


def _words(op: Op) -> list[str]:
    return [w.strip() for w in op.text.split("%")[0].split(",") if w.strip()]


def _each_lane(
    L: Lowering, tensors: list[Tensor], mask: Tensor | None, elt: str, ty: Type, fn: Callable[[list[str]], str]
) -> Tensor:
    """Call `fn(lane values)` for each element where `mask` holds, in order; its results form a tensor (0 elsewhere)."""
    given = level(L, tensors + ([mask] if mask is not None else []))
    if ty.numel == 1 and mask is None:
        return Tensor(ty.shape, elt, [Row(1, elt, vec=fn([L.vec(t.rows[0]) for t in given]))], 1)
    result = L.zeroed(elt, ty.numel)
    bufs = [L.spill(t) for t in given]

    def lane(i: str) -> None:
        def run() -> None:
            lanes = [L.vec(L.peek(buf, t.elt, i)) for buf, t in zip(bufs, tensors)]
            L.poke(result, i, Row(1, elt, vec=fn(lanes)))

        if mask is None:
            run()
        else:
            L.when(L.vec(L.peek(bufs[-1], "i1", i)), run)

    L.loop(ty.numel, lane)
    return L.reload(result, ty.shape, elt)


def _atomic_update(L: Lowering, ptr: str, elt: str, fn: Callable[[str], str]) -> str:
    """Replace the element at `ptr` by `fn(element)` in a compare-and-swap loop; returns what was there."""
    ty = storage(elt)
    first = L.emit(f"load atomic {ty}, ptr {ptr} monotonic, align {size_of(elt)}")
    before, head, done, old = L.block, L.label("try"), L.label("swapped"), L.name("old")
    L.br(head)
    L.start(head)
    slot = len(L.lines)
    new = fn(old)
    pair = L.emit(f"cmpxchg weak ptr {ptr}, {ty} {old}, {ty} {new} acq_rel monotonic, align {size_of(elt)}")
    seen = L.emit(f"extractvalue {{ {ty}, i1 }} {pair}, 0")
    ok = L.emit(f"extractvalue {{ {ty}, i1 }} {pair}, 1")
    L.lines.insert(slot, f"  {old} = phi {ty} [{first}, %{before}], [{seen}, %{L.block}]")
    L.cond_br(ok, done, head)
    L.start(done)
    return old


@lowers("tt.atomic_rmw")
def _atomic_rmw(L: Lowering, op: Op, ptr: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    kind, order, _ = _words(op)
    elt, ty = value.elt, storage(value.elt)

    def fn(lane: list[str]) -> str:
        p, v = lane
        if kind == "fadd" and ty not in ("float", "double"):

            def add(old: str) -> str:
                a, b = (convert(L, t, elt, "f32", 1) for t in (old, v))
                return convert(L, L.emit(f"fadd float {a}, {b}"), "f32", elt, 1)

            return _atomic_update(L, p, elt, add)
        return L.emit(f"atomicrmw {_RMW[kind]} ptr {p}, {ty} {v} {_ORDER[order]}, align {size_of(elt)}")

    out = _each_lane(L, [ptr, value], mask, elt, op.types[0], fn)
    L.epoch += 1
    return out


@lowers("tt.atomic_cas")
def _atomic_cas(L: Lowering, op: Op, ptr: Tensor, cmp: Tensor, value: Tensor) -> Tensor:
    order = _ORDER[_words(op)[0]]
    failure = {"acq_rel": "acquire", "release": "monotonic"}.get(order, order)
    elt, bits = value.elt, f"i{8 * size_of(value.elt)}"

    def fn(lane: list[str]) -> str:
        p, c, v = lane
        if storage(elt) in ("float", "double"):
            c, v = (L.emit(f"bitcast {storage(elt)} {t} to {bits}") for t in (c, v))
        pair = L.emit(f"cmpxchg ptr {p}, {bits} {c}, {bits} {v} {order} {failure}, align {size_of(elt)}")
        old = L.emit(f"extractvalue {{ {bits}, i1 }} {pair}, 0")
        return old if storage(elt) == bits else L.emit(f"bitcast {bits} {old} to {storage(elt)}")

    out = _each_lane(L, [ptr, cmp, value], None, elt, op.types[0], fn)
    L.epoch += 1
    return out


@lowers("tt.atomic_load")
def _atomic_load(L: Lowering, op: Op, ptr: Tensor, mask: Tensor | None = None) -> Tensor:
    elt, order = op.types[0].elt, _ORDER[_words(op)[0]]

    def fn(lane: list[str]) -> str:
        return L.emit(f"load atomic {storage(elt)}, ptr {lane[0]} {order}, align {size_of(elt)}")

    L.epoch += 1  # it may stand for a wait on another program's stores
    return _each_lane(L, [ptr], mask, elt, op.types[0], fn)


@lowers("tt.atomic_store")
def _atomic_store(L: Lowering, op: Op, ptr: Tensor, value: Tensor, mask: Tensor | None = None) -> None:
    elt, order = value.elt, _ORDER[_words(op)[0]]

    def fn(lane: list[str]) -> str:
        L.do(f"store atomic {storage(elt)} {lane[1]}, ptr {lane[0]} {order}, align {size_of(elt)}")
        return lane[1]

    _each_lane(L, [ptr, value], mask, elt, Type(value.shape, elt), fn)
    L.epoch += 1


@lowers("tt.atomic_poll")
def _atomic_poll(L: Lowering, op: Op, ptr: Tensor, expected: Tensor, *timeout: Tensor) -> Tensor:
    if timeout or "timeout" in op.text:
        raise L.unsupported(op, "with a timeout")
    elt, order = expected.elt, _ORDER[_words(op)[0]]

    def fn(lane: list[str]) -> str:
        again, done = L.label("poll"), L.label("seen")
        L.br(again)
        L.start(again)
        v = L.emit(f"load atomic {storage(elt)}, ptr {lane[0]} {order}, align {size_of(elt)}")
        L.cond_br(L.emit(f"icmp eq {storage(elt)} {v}, {lane[1]}"), done, again)
        L.start(done)
        return v

    _each_lane(L, [ptr, expected], None, elt, Type(ptr.shape, elt), fn)
    L.epoch += 1
    w = width(ptr.shape)
    return Tensor(ptr.shape, "i1", [Row(w, "i1", base=1)] * (ptr.numel // w), w)


@lowers("ttg.barrier", "gpu.barrier", "llvm.intr.assume")
def _nothing(L: Lowering, op: Op, *args: Tensor) -> None:
    """A program is one thread here, which has no one to wait for; assumptions are not used."""


# -- debugging ---------------------------------------------------------------------------------------------------------
def _string(L: Lowering, text: str) -> str:
    """A global constant with the text, zero-terminated; returns its name."""
    data = text.encode() + b"\0"
    name = f"@text{len(L.globals)}"
    body = "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02X}" for b in data)
    L.globals.append(f'{name} = private unnamed_addr constant [{len(data)} x i8] c"{body}"')
    return name


def _unquote(text: str) -> str:
    """The characters of a string as MLIR prints it."""
    return re.sub(
        r"\\([0-9A-Fa-f]{2}|.)", lambda m: chr(int(m.group(1), 16)) if len(m.group(1)) == 2 else m.group(1), text
    )


@lowers("tt.print")
def _print(L: Lowering, op: Op, *args: Tensor) -> None:
    m = re.search(r'"((?:[^"\\]|\\.)*)"', op.text)
    prefix = _unquote(m.group(1)) if m else ""
    hexadecimal = op.attr("hex") == "true"
    signed = re.findall(r"-?\d+", (op.attr("isSigned") or "").removeprefix("array<i32"))
    L.declares |= {"declare i32 @printf(ptr, ...)", "declare i32 @fflush(ptr)"}
    pids = "i32 %pid0, i32 %pid1, i32 %pid2"
    if not args:
        fmt = _string(L, f"pid (%d, %d, %d){prefix.replace('%', '%%')}\n")
        L.do(f"call i32 (ptr, ...) @printf(ptr {fmt}, {pids})")
    for k, t in enumerate(args):
        where = "".join(", %d" for _ in t.shape)
        index = f" idx ({where[2:]})" if t.shape else ""
        operand = f" (operand {k})" if len(args) > 1 else ""
        is_signed = k < len(signed) and signed[k] != "0"
        ty, spec = _printed(t.elt, hexadecimal, is_signed)
        fmt = _string(L, f"pid (%d, %d, %d){index}{prefix.replace('%', '%%')}{operand.replace('%', '%%')}{spec}\n")

        def show(position: str, v: str, t: Tensor = t, ty: str = ty, fmt: str = fmt, s: bool = is_signed) -> None:
            coords, rest = [], position
            for d in reversed(t.shape):
                coords.append(L.emit(f"urem i64 {rest}, {d}"))
                rest = L.emit(f"udiv i64 {rest}, {d}")
            at = "".join(f", i32 {L.emit(f'trunc i64 {c} to i32')}" for c in reversed(coords))
            L.do(f"call i32 (ptr, ...) @printf(ptr {fmt}, {pids}{at}, {ty} {_widest(L, v, t.elt, ty, s)})")

        if t.numel == 1:
            show("0", L.vec(L.lane(t.rows[0], 0)))
        else:
            buf = L.spill(t)

            def element(i: str, buf: str = buf, t: Tensor = t, show: Callable = show) -> None:
                show(i, L.vec(L.peek(buf, t.elt, i)))

            L.loop(t.numel, element)
    L.do("call i32 @fflush(ptr null)")


def _printed(elt: str, hexadecimal: bool, signed: bool) -> tuple[str, str]:
    """The C type to which an element is widened for printf, and its format."""
    if elt.startswith("ptr"):
        return "ptr", "%p"
    if hexadecimal:
        return "i64", f"0x%0{2 * size_of(elt)}llx"
    if elt[0] in "fb":
        return "double", "%f"
    return "i64", "%lld" if signed else "%llu"


def _widest(L: Lowering, v: str, elt: str, ty: str, signed: bool) -> str:
    if ty == "ptr":
        return v
    if ty == "double":
        return v if elt == "f64" else convert(L, v, elt, "f64", 1)
    bits = f"i{8 * size_of(elt)}" if elt != "i1" else "i1"
    if storage(elt) != bits:
        v = L.emit(f"bitcast {storage(elt)} {v} to {bits}")
    return v if bits == "i64" else L.emit(f"{'sext' if signed and elt != 'i1' else 'zext'} {bits} {v} to i64")


@lowers("tt.assert")
def _assert(L: Lowering, op: Op, cond: Tensor) -> None:
    m = re.search(r'"((?:[^"\\]|\\.)*)"', op.text)
    L.asserts.append(f"device_assert failed in kernel '{L.kernel}' at {op.loc}: {_unquote(m.group(1)) if m else ''}")
    number = len(L.asserts)
    ok: str | None = None
    for row in dict.fromkeys(cond.rows):
        v = L.vec(row)
        one = (
            v
            if row.n == 1
            else L.call("i1", f"llvm.vector.reduce.and.{mangle('i1', row.n)}", f"{vtype('i1', row.n)} {v}")
        )
        ok = one if ok is None else L.emit(f"and i1 {ok}, {one}")
    good, bad = L.label("holds"), L.label("fails")
    L.cond_br(str(ok), good, bad)
    L.start(bad)
    L.do(f"store atomic i32 {number}, ptr %error monotonic, align 4")
    L.do("ret void")
    L.start(good)
