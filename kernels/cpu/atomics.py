"""Atomics: one element after the other, in the order of the lanes."""

from __future__ import annotations

from collections.abc import Callable

from .convert import convert
from .elementwise import level
from .lower import Lowering, lowers
from .ttir import Op, Type
from .values import Row, Tensor, size_of, storage, width

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

    L.loop(ty.numel, lane, small=True)
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
