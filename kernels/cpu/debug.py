"""device_print and device_assert, and operations that mean nothing on a CPU."""

from __future__ import annotations

import re
from collections.abc import Callable

from .convert import convert
from .lower import Lowering, lowers
from .ttir import Op
from .values import Tensor, size_of, storage


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

            L.loop(t.numel, element, small=True)
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
        one = L.full(row)
        ok = one if ok is None else L.emit(f"and i1 {ok}, {one}")
    good, bad = L.label("holds"), L.label("fails")
    L.cond_br(str(ok), good, bad)
    L.start(bad)
    L.do(f"store atomic i32 {number}, ptr %error monotonic, align 4")
    L.do("ret void")
    L.start(good)
