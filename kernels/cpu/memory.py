"""Loads and stores, and program ids.

A load or store whose addresses are consecutive is one (masked) vector access; equal addresses are one scalar access;
only the rest is a gather or scatter. Masked-off lanes never touch memory, and read as `other` or else as 0.

A volatile load whose value is not used is how a kernel asks for a cache line ahead of time; it becomes a prefetch.

Where the CPU has no masked access of a kind, LLVM would write a branch for every lane. There the code asks once whether
all lanes are on, which in most programs they are, and does without masks then; else it loops over the lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .elementwise import level, spread
from .host import features
from .lower import Lowering, lowers
from .ttir import Op
from .values import Row, Tensor, in_memory, mangle, pointee, size_of, storage, vtype

AXIS = {"x": 0, "y": 1, "z": 2}


@lowers("tt.get_program_id")
def _program_id(L: Lowering, op: Op) -> Tensor:
    return Tensor((), "i32", [Row(1, "i32", base=f"%pid{AXIS[op.text.split()[0]]}")], 1)


@lowers("tt.get_num_programs")
def _num_programs(L: Lowering, op: Op) -> Tensor:
    return Tensor((), "i32", [Row(1, "i32", base=f"%grid{AXIS[op.text.split()[0]]}")], 1)


# -- what the CPU can do -----------------------------------------------------------------------------------------------
def consecutive(row: Row) -> bool:
    return row.offs is not None and bool((np.diff(row.offs) == 1).all())


def all_true(mask: Row | None) -> bool:
    return mask is None or (mask.literal and bool(mask.constants().all()))


def _native(kind: str, elt: str) -> bool:
    """Whether the CPU has masked instructions for an access ("load", "store", "gather", "scatter") to elements."""
    cpu, wide = features(), size_of(elt) >= 4
    if kind in ("gather", "scatter"):
        return wide and bool(cpu.get("avx512f") or (kind == "gather" and cpu.get("avx2")))
    # AVX2 has masked stores too, but on some CPUs they take tens of cycles.
    return bool(cpu.get("avx512bw") or (wide and (cpu.get("avx512f") or (kind == "load" and cpu.get("avx2")))))


class Access(NamedTuple):
    """A row of a load or store."""

    ptr: Row
    mask: Row | None
    data: Row | None  # what is stored, or what masked-off lanes read
    elt: str

    @property
    def never(self) -> bool:
        return self.mask is not None and self.mask.literal and not self.mask.constants().any()

    @property
    def single(self) -> bool:
        """One element, however many lanes want it."""
        return self.ptr.n == 1 or (self.ptr.uniform and (all_true(self.mask) or self.mask.uniform))  # type: ignore

    def lanewise(self, near: str, far: str) -> bool:
        """Whether lanes would have to be handled one by one (`near`, `far`: the kinds of access)."""
        kind = near if consecutive(self.ptr) else far
        if all_true(self.mask):
            return kind == "scatter" and self.ptr.n > 8 and not _native(kind, self.elt)
        return not _native(kind, self.elt)


def _zero(elt: str, n: int) -> str:
    if n > 1:
        return "zeroinitializer"
    return {"float": "0.0", "double": "0.0", "ptr": "null"}.get(storage(elt), "0")


def _rest(L: Lowering, a: Access) -> str:
    """What masked-off lanes read."""
    return L.to_memory(a.data) if a.data is not None else _zero(in_memory(a.elt), a.ptr.n)


def _full(L: Lowering, accesses: list[Access]) -> str:
    """Whether all lanes are on in all rows."""
    out = "true"
    for mask in {id(a.mask): a.mask for a in accesses if not all_true(a.mask)}.values():
        assert mask is not None
        out = L.emit(f"and i1 {out}, {L.full(mask)}")
    return out


def _address(L: Lowering, ptr: Row) -> str:
    """The address of the first of consecutive elements."""
    assert ptr.offs is not None
    return L.scalar(L.shifted(ptr, int(ptr.offs[0])))


def _lanes(L: Lowering, rows: list[Access], access: Callable[[str, str], None]) -> None:
    """Call `access(i, address)` in a loop over the lanes that are on; i counts the lanes of all rows."""
    n, elt = rows[0].ptr.n, rows[0].ptr.elt
    on = L.with_offs(n, "i1", 1, np.zeros(n))
    masks = None
    if not all(all_true(a.mask) for a in rows):
        masks = L.spill(Tensor((len(rows) * n,), "i1", [a.mask or on for a in rows], n))

    def one(i: str, at: Callable[[], str]) -> None:
        if masks is None:
            access(i, at())
        else:
            L.when(L.vec(L.peek(masks, "i1", i)), lambda: access(i, at()))

    if consecutive(rows[0].ptr):
        firsts = L.spill(Tensor((len(rows),), elt, [Row(1, elt, vec=_address(L, a.ptr)) for a in rows], 1))

        def row(r: str) -> None:
            first, start = L.vec(L.peek(firsts, elt, r)), L.emit(f"mul i64 {r}, {n}")

            def lane(k: str) -> None:
                i = L.emit(f"add i64 {start}, {k}")
                one(i, lambda: L.emit(f"getelementptr {pointee(elt)}, ptr {first}, i64 {k}"))

            L.loop(n, lane, small=True)

        L.loop(len(rows), row, small=True)
    else:
        pointers = L.spill(Tensor((len(rows) * n,), elt, [a.ptr for a in rows], n))
        L.loop(len(rows) * n, lambda i: one(i, lambda: L.vec(L.peek(pointers, elt, i))), small=True)


def _by_kind(rows: list[Access]) -> list[list[Access]]:
    near, far = ([a for a in rows if consecutive(a.ptr) == want] for want in (True, False))
    return [group for group in (near, far) if group]


# -- loads -------------------------------------------------------------------------------------------------------------
def _load_vector(L: Lowering, a: Access, masked: bool) -> str:
    """One vector of memory."""
    n, mem, align = a.ptr.n, in_memory(a.elt), size_of(a.elt)
    ty = vtype(mem, n)
    if consecutive(a.ptr):
        at = _address(L, a.ptr)
        if not masked:
            return L.emit(f"load {ty}, ptr {at}, align {align}")
        args = f"ptr align {align} {at}, {vtype('i1', n)} {L.vec(a.mask)}, {ty} {_rest(L, a)}"  # type: ignore[arg-type]
        return L.call(ty, f"llvm.masked.load.{mangle(mem, n)}.p0", args)
    where = L.vec(a.mask) if masked else "splat (i1 true)"  # type: ignore[arg-type]
    args = f"<{n} x ptr> align {align} {L.vec(a.ptr)}, <{n} x i1> {where}, {ty} {_rest(L, a) if masked else 'poison'}"
    return L.call(ty, f"llvm.masked.gather.{mangle(mem, n)}.v{n}p0", args)


def _load_lanes(L: Lowering, rows: list[Access]) -> list[str]:
    """One vector of memory for each row, read lane by lane."""
    values: dict[int, str] = {}
    for group in _by_kind(rows):
        n, mem = group[0].ptr.n, storage(in_memory(group[0].elt))
        buf = L.alloca(mem, len(group) * n)
        places = [L.emit(f"getelementptr {mem}, ptr {buf}, i64 {k * n}") for k in range(len(group))]
        for a, place in zip(group, places):
            L.do(f"store {vtype(in_memory(a.elt), n)} {_rest(L, a)}, ptr {place}, align {size_of(a.elt)}")

        def read(i: str, at: str, mem: str = mem, buf: str = buf, align: int = size_of(group[0].elt)) -> None:
            v = L.emit(f"load {mem}, ptr {at}, align {align}")
            L.do(f"store {mem} {v}, ptr {L.emit(f'getelementptr {mem}, ptr {buf}, i64 {i}')}, align {align}")

        _lanes(L, group, read)
        for a, place in zip(group, places):
            values[id(a)] = L.emit(f"load {vtype(in_memory(a.elt), n)}, ptr {place}, align {size_of(a.elt)}")
    return [values[id(a)] for a in rows]


def _load_scalar(L: Lowering, a: Access) -> Row:
    """One element. Without a branch: where the mask is off, a zero on the stack is read."""
    elt, mem, at = a.elt, in_memory(a.elt), L.text(a.ptr.base, a.ptr.elt)  # type: ignore[arg-type]
    if all_true(a.mask):
        return L.from_memory(L.emit(f"load {storage(mem)}, ptr {at}, align {size_of(elt)}"), elt, 1)
    on = L.text(a.mask.base, "i1")  # type: ignore[union-attr, arg-type]
    safe = L.emit(f"select i1 {on}, ptr {at}, ptr {L.zeros()}")
    row = L.from_memory(L.emit(f"load {storage(mem)}, ptr {safe}, align {size_of(elt)}"), elt, 1)
    if a.data is None or a.data.base in (0, "0x0000000000000000"):
        return spread(L, row, a.ptr.n)
    n, ty = a.ptr.n, vtype(elt, a.ptr.n)
    if a.data.uniform:
        ty = storage(elt)
        v = L.emit(f"select i1 {on}, {ty} {L.vec(row)}, {ty} {L.text(a.data.base, elt)}")  # type: ignore[arg-type]
        return Row(1, elt, vec=v)
    return Row(n, elt, vec=L.emit(f"select i1 {on}, {ty} {L.vec(spread(L, row, n))}, {ty} {L.vec(a.data)}"))


_LINE_BYTES = 64


def _prefetch(L: Lowering, ptr: Tensor) -> None:
    """Ask for the cache lines of a tile, in the second level: what comes early must not drive out what is in use.

    An address that is not mapped is ignored by the CPU, so masks do not matter.
    """
    done: list[Row] = []
    for row in ptr.rows:
        if any(row is other for other in done):
            continue
        done.append(row)
        if consecutive(row):
            first, nbytes = _address(L, row), row.n * size_of(in_memory(row.elt[4:-1]))
            places = [L.emit(f"getelementptr i8, ptr {first}, i64 {at}") for at in range(0, nbytes, _LINE_BYTES)]
        else:
            places = [L.vec(L.lane(row, k)) for k in range(1 if row.uniform else row.n)]
        for at in places:
            L.call("void", "llvm.prefetch.p0", f"ptr {at}, i32 0, i32 2, i32 1")


@lowers("tt.load")
def _load(L: Lowering, op: Op, ptr: Tensor, mask: Tensor | None = None, other: Tensor | None = None) -> Tensor | None:
    if not op.used and op.attr("isVolatile") == "true":
        # It has to be done, and nobody looks: a load that wants the line in the cache.
        _prefetch(L, ptr)
        return None
    elt = op.types[0].elt
    given = level(L, [t for t in (ptr, mask, other) if t is not None])
    columns = [t.rows for t in given] + [[None] * len(given[0].rows)] * (3 - len(given))
    keys = [tuple(map(id, row)) for row in zip(*columns)]
    wanted = {key: Access(p, m, o, elt) for key, p, m, o in zip(keys, *columns)}  # equal rows are read once
    done: dict[tuple[int, ...], Row] = {}
    hard: list[tuple[tuple[int, ...], Access]] = []
    for key, a in wanted.items():
        n = a.ptr.n
        if a.never:
            done[key] = a.data if a.data is not None else L.from_memory(_zero(in_memory(elt), n), elt, n)
        elif a.single:
            done[key] = spread(L, _load_scalar(L, a), n)
        elif a.lanewise("load", "gather"):
            hard.append((key, a))
        else:
            L.breathe(len(done) * n)
            done[key] = L.from_memory(_load_vector(L, a, not all_true(a.mask)), elt, n)
    if hard:
        texts = L.either(
            _full(L, [a for _, a in hard]),
            lambda: [_load_vector(L, a, False) for _, a in hard],
            lambda: _load_lanes(L, [a for _, a in hard]),
            [vtype(in_memory(elt), a.ptr.n) for _, a in hard],
        )
        done.update({key: L.from_memory(v, elt, a.ptr.n) for (key, a), v in zip(hard, texts)})
    out = Tensor(op.types[0].shape, elt, [done[key] for key in keys], given[0].w)
    if all(all_true(m) for m in columns[1]):
        L.loads[id(out)] = (out, given[0].rows, L.epoch)
    return out


# -- stores ------------------------------------------------------------------------------------------------------------
def _store_vector(L: Lowering, a: Access, masked: bool) -> None:
    assert a.data is not None
    n, mem, align, text = a.ptr.n, in_memory(a.elt), size_of(a.elt), L.to_memory(a.data)
    ty = vtype(mem, n)
    where = L.vec(a.mask) if masked else "splat (i1 true)"  # type: ignore[arg-type]
    if not consecutive(a.ptr):
        args = f"{ty} {text}, <{n} x ptr> align {align} {L.vec(a.ptr)}, <{n} x i1> {where}"
        L.call("void", f"llvm.masked.scatter.{mangle(mem, n)}.v{n}p0", args)
    elif masked:
        args = f"{ty} {text}, ptr align {align} {_address(L, a.ptr)}, <{n} x i1> {where}"
        L.call("void", f"llvm.masked.store.{mangle(mem, n)}.p0", args)
    else:
        L.do(f"store {ty} {text}, ptr {_address(L, a.ptr)}, align {align}")


def _store_lanes(L: Lowering, rows: list[Access]) -> None:
    for group in _by_kind(rows):
        n, elt = group[0].ptr.n, group[0].elt
        buf = L.spill(Tensor((len(group) * n,), elt, [a.data for a in group], n))

        def write(
            i: str, at: str, buf: str = buf, mem: str = storage(in_memory(elt)), align: int = size_of(elt)
        ) -> None:
            v = L.emit(f"load {mem}, ptr {L.emit(f'getelementptr {mem}, ptr {buf}, i64 {i}')}, align {align}")
            L.do(f"store {mem} {v}, ptr {at}, align {align}")

        _lanes(L, group, write)


def _store_scalar(L: Lowering, a: Access) -> None:
    assert a.data is not None
    data = a.data if a.data.n == 1 else Row(1, a.elt, base=a.data.base)
    text, at = L.to_memory(data), L.text(a.ptr.base, a.ptr.elt)  # type: ignore[arg-type]

    def write() -> None:
        L.do(f"store {storage(in_memory(a.elt))} {text}, ptr {at}, align {size_of(a.elt)}")

    if all_true(a.mask):
        write()
    else:
        L.when(L.text(a.mask.base, "i1"), write)  # type: ignore[union-attr, arg-type]


@lowers("tt.store")
def _store(L: Lowering, op: Op, ptr: Tensor, value: Tensor, mask: Tensor | None = None) -> None:
    given = level(L, [t for t in (ptr, value, mask) if t is not None])
    columns = [t.rows for t in given] + [[None] * len(given[0].rows)] * (3 - len(given))
    accesses: list[Access] = []
    for p, v, m in zip(*columns):
        a = Access(p, m, v, value.elt)
        if not a.never and (not accesses or a != accesses[-1]):  # a broadcast store writes the same row many times
            accesses.append(a)
    vectors = [a for a in accesses if not (a.single and (a.ptr.n == 1 or a.data.uniform))]  # type: ignore[union-attr]
    hard = [a for a in vectors if a.lanewise("store", "scatter")]
    for a in accesses:
        if a not in vectors:
            _store_scalar(L, a)
        elif a not in hard:
            _store_vector(L, a, not all_true(a.mask))

    def plain() -> list[str]:
        rows = [Access(a.ptr, None, a.data, a.elt) for a in hard]
        _store_lanes(L, [a for a in rows if a.lanewise("store", "scatter")])
        for a in rows:
            if not a.lanewise("store", "scatter"):
                _store_vector(L, a, False)
        return []

    def lanes() -> list[str]:
        _store_lanes(L, hard)
        return []

    if hard:
        L.either(_full(L, hard), plain, lanes, [])
    L.epoch += 1
