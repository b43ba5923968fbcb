"""From TTIR to LLVM IR: the walk over functions, blocks and control flow.

What an operation means is said by one entry of `OPS`: a function `(lowering, op, *operand tensors)` that returns its
results. Entries live beside their kind: `constants.py`, `integers.py`, `casts.py`, `elementwise.py`, `shapes.py`,
`memory.py`, `reduce.py`, `dot.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .emit import Builder
from .ttir import Block, Func, Op, Region, Type, parse
from .values import Row, Tensor, empty_like, is_float, storage, vtype

Handler = Callable[..., "Tensor | list[Tensor] | None"]
OPS: dict[str, Handler] = {}


def lowers(*names: str) -> Callable[[Handler], Handler]:
    """Register a function as the meaning of the named TTIR operations."""

    def put(fn: Handler) -> Handler:
        for name in names:
            OPS[name] = fn
        return fn

    return put


class UnsupportedOp(NotImplementedError):
    """The CPU backend has no lowering for an operation; the message names it, the kernel and the source line."""


class Lowering(Builder):
    """Lowers one kernel. `env` maps TTIR names to tensors, innermost region last."""

    def __init__(self, kernel: str, funcs: Sequence[Func], fast: str):
        super().__init__(fast)
        self.kernel = kernel
        self.funcs = {f.name: f for f in funcs}
        self.env: list[dict[str, Tensor]] = [{}]
        self.asserts: list[str] = []
        self.epoch = 0  # counts writes to memory: a loaded value may be read again from memory while it stands still
        self.loads: dict[int, tuple[Tensor, list[Row], int]] = {}  # id of a loaded tensor: it, its pointers, the epoch
        self.homes: dict[int, tuple[Tensor, str, int]] = {}  # id of a tensor: it, a copy of it in memory, the epoch
        self.calls: list[str] = []

    # -- names
    def get(self, name: str) -> Tensor:
        for scope in reversed(self.env):
            if name in scope:
                return scope[name]
        raise KeyError(name)

    # -- blocks
    def ops(self, ops: Sequence[Op]) -> list[Tensor]:
        """Lower straight-line operations; returns the operands of the terminator."""
        for op in ops:
            if op.name in _TERMINATORS:
                return [self.get(n) for n in op.operands]
            self.op(op)
        return []

    def op(self, op: Op) -> None:
        handler = OPS.get(op.name)
        if handler is None:
            raise self.unsupported(op)
        try:
            out = handler(self, op, *[self.get(n) for n in op.operands])
        except UnsupportedOp:
            raise
        except Exception as e:
            raise UnsupportedOp(
                f"{op.name} could not be lowered for the CPU in kernel '{self.kernel}' at {op.loc}: "
                f"{type(e).__name__}: {e}"
            ) from e
        results = [] if out is None else [out] if isinstance(out, Tensor) else out
        self.env[-1].update(zip(op.results, results))

    def unsupported(self, op: Op, why: str = "") -> UnsupportedOp:
        what = f" ({why})" if why else ""
        return UnsupportedOp(f"the CPU backend does not support {op.name}{what}: kernel '{self.kernel}', {op.loc}")

    def region(self, block: Block, args: Sequence[Tensor]) -> list[Tensor]:
        """Lower a single-block region in a scope of its own."""
        self.env.append({name: t for (name, _), t in zip(block.args, args)})
        self.push()
        try:
            return self.ops(block.ops)
        finally:
            self.pop()
            self.env.pop()

    # -- values that meet at a join
    def phi_rows(self, t: Tensor, keep: Sequence[bool]) -> tuple[Tensor, list[tuple[int, str, str, Row]]]:
        """Fresh values for a tensor that a loop carries. Where `keep`, only the base of an affine row varies.

        Returns the tensor and, for each phi to write, (row number, name, type, initial row).
        """
        rows: list[Row] = []
        phis: list[tuple[int, str, str, Row]] = []
        for i, row in enumerate(t.rows):
            name = self.name("c")
            if keep[i]:
                phis.append((i, name, storage(t.elt), row))
                rows.append(Row(row.n, t.elt, base=name, offs=row.offs))
            else:
                phis.append((i, name, vtype(t.elt, row.n), row))
                rows.append(Row(row.n, t.elt, vec=name))
        return Tensor(t.shape, t.elt, rows, t.w), phis

    def base_text(self, row: Row, keep: bool) -> str:
        if not keep:
            return self.vec(row)
        assert row.base is not None
        return self.text(row.base, row.elt)

    def merge(self, a: Sequence[Tensor], b: Sequence[Tensor], at_a: Callable, at_b: Callable) -> Callable:
        """Prepare the join of two branches; call the result after the join's label has been written.

        `at_a(fn)` and `at_b(fn)` run `fn` at the end of the respective branch, to make the operands there.
        """
        plans: list[tuple[Tensor, list[tuple[Row, str | None, str | None, bool]]]] = []
        for x, y in zip(a, b):
            if x.w != y.w:
                x, y = at_a(lambda x=x: self.canonical(x)), at_b(lambda y=y: self.canonical(y))
            rows: list[tuple[Row, str | None, str | None, bool]] = []
            for r, s in zip(x.rows, y.rows):
                if r is s or (r.literal and s.literal and r.base == s.base and _same_offs(r, s)):
                    rows.append((r, None, None, False))
                    continue
                keep = r.affine and s.affine and _same_offs(r, s)
                of_a = at_a(lambda r=r, k=keep: self.base_text(r, k))
                of_b = at_b(lambda s=s, k=keep: self.base_text(s, k))
                rows.append((r, of_a, of_b, keep))
            plans.append((x, rows))

        def finish(from_a: str, from_b: str) -> list[Tensor]:
            out = []
            for t, rows in plans:
                new = []
                for r, va, vb, keep in rows:
                    if va is None:
                        new.append(r)
                        continue
                    ty = storage(t.elt) if keep else vtype(t.elt, r.n)
                    v = self.emit(f"phi {ty} [{va}, %{from_a}], [{vb}, %{from_b}]")
                    new.append(Row(r.n, t.elt, base=v, offs=r.offs) if keep else Row(r.n, t.elt, vec=v))
                out.append(Tensor(t.shape, t.elt, new, t.w))
            return out

        return finish

    # -- functions
    def function(self, func: Func, args: Sequence[Tensor]) -> list[Tensor]:
        """Lower a function's body in place; control continues after it with its results."""
        self.env.append({name: t for (name, _), t in zip(func.args, args)})
        try:
            blocks = func.body.blocks
            if len(blocks) == 1:
                return self.ops(blocks[0].ops)
            return self._cfg(func)
        finally:
            self.env.pop()

    def _cfg(self, func: Func) -> list[Tensor]:
        blocks = func.body.blocks
        labels = {b.label: self.label("bb") for b in blocks}
        done = self.label("ret")
        incoming: dict[str, list[tuple[str, list[str]]]] = {b.label: [] for b in blocks}
        incoming["ret"] = []
        slots: list[tuple[int, str, list[Tensor]]] = []  # line, block, values that phis must define there
        for k, block in enumerate(blocks):
            if k:
                self.start(labels[block.label])
                self.push()
                self.epoch += 1
                given = [self.unknown(ty) for _, ty in block.args]
                self.env[-1].update(zip([name for name, _ in block.args], given))
                slots.append((len(self.lines), block.label, given))
            for op in block.ops[:-1]:
                self.op(op)
            end = block.ops[-1]

            def flat(operands: list[str]) -> list[str]:
                return [self.vec(r) for n in operands for r in self.canonical(self.get(n)).rows]

            if end.name == "tt.return":
                incoming["ret"].append((self.block, flat(end.operands)))
                self.br(done)
            elif end.name == "ub.unreachable":
                self.do("unreachable")
            else:
                values = [flat(names) for _, names in end.successors]
                if end.name == "cf.br":
                    incoming[end.successors[0][0]].append((self.block, values[0]))
                    self.br(labels[end.successors[0][0]])
                else:  # by a block of its own each, since both ways may lead to the same one with other values
                    ways = [self.label("way") for _ in values]
                    self.cond_br(self.scalar(self.get(end.operands[0]).rows[0]), *ways)
                    for way, (label, _), v in zip(ways, end.successors, values):
                        self.start(way)
                        incoming[label].append((way, v))
                        self.br(labels[label])
            if k:
                self.pop()
        self.start(done)
        results = [self.unknown(ty) for ty in func.results]
        slots.append((len(self.lines), "ret", results))
        for at, label, given in reversed(slots):
            text = []
            for j, row in enumerate(row for t in given for row in t.rows):
                pairs = ", ".join(f"[{v[j]}, %{b}]" for b, v in incoming[label])
                text.append(f"  {row.vec} = phi {vtype(row.elt, row.n)} {pairs}")
            self.lines[at:at] = text
        return results

    def unknown(self, ty: Type) -> Tensor:
        """A value that phis, yet to be written, will define."""
        w, n = empty_like(ty)
        return Tensor(ty.shape, ty.elt, [Row(w, ty.elt, vec=self.name("c")) for _ in range(n)], w)


_TERMINATORS = {
    "scf.yield",
    "scf.condition",
    "tt.return",
    "tt.reduce.return",
    "tt.scan.return",
    "tt.map_elementwise.return",
}


def _same_offs(a: Row, b: Row) -> bool:
    if a.offs is None or b.offs is None:
        return a.offs is None and b.offs is None
    return bool((a.offs == b.offs).all())


# -- control flow ------------------------------------------------------------------------------------------------------
@lowers("scf.for")
def _for(L: Lowering, op: Op, lo: Tensor, hi: Tensor, step: Tensor, *init: Tensor) -> list[Tensor]:
    ty = storage(lo.elt)
    cmp = "ult" if op.text == "unsigned" else "slt"
    lo_v, hi_v, step_v = (L.scalar(t.rows[0]) for t in (lo, hi, step))
    block = op.regions[0].blocks[0]
    # Integers and pointers are expected to stay affine; where the body proves otherwise, lower it again without.
    keeps = [[not is_float(t.elt) and r.affine for r in t.rows] for t in init]
    while True:
        lines, block_before, allocas, asserts, epoch = len(L.lines), L.block, len(L.allocas), len(L.asserts), L.epoch
        cache = dict(L.scopes[-1])
        before = L.block
        head, body, done = L.label("for"), L.label("do"), L.label("done")
        starts = [[L.base_text(r, k) for r, k in zip(t.rows, ks)] for t, ks in zip(init, keeps)]
        L.br(head)
        L.start(head)
        iv = L.name("iv")
        slot = len(L.lines)
        carried = [L.phi_rows(t, ks) for t, ks in zip(init, keeps)]
        cond = L.emit(f"icmp {cmp} {ty} {iv}, {hi_v}")
        L.cond_br(cond, body, done)
        L.start(body)
        L.epoch += 1  # what was loaded before the loop may have been overwritten by an earlier iteration
        L.env.append({block.args[0][0]: Tensor((), lo.elt, [Row(1, lo.elt, vec=iv)], 1)})
        L.env[-1].update({name: t for (name, _), (t, _) in zip(block.args[1:], carried)})
        L.push()
        ends = L.ops(block.ops)
        ends = [L.rechunk(e, t.w) for e, t in zip(ends, init)]
        broken = False
        for e, t, ks in zip(ends, init, keeps):
            for i, (r, s) in enumerate(zip(e.rows, t.rows)):
                if ks[i] and not (r.affine and _same_offs(r, s)):
                    ks[i] = False
                    broken = True
        if not broken:
            values = [[L.base_text(r, k) for r, k in zip(e.rows, ks)] for e, ks in zip(ends, keeps)]
            nxt = L.emit(f"add {ty} {iv}, {step_v}")
            text = [f"  {iv} = phi {ty} [{lo_v}, %{before}], [{nxt}, %{L.block}]"]
            for (_, phis), st, va in zip(carried, starts, values):
                for i, name, pty, _ in phis:
                    text.append(f"  {name} = phi {pty} [{st[i]}, %{before}], [{va[i]}, %{L.block}]")
            L.lines[slot:slot] = text
            L.br(head)
        L.pop()
        L.env.pop()
        if not broken:
            L.start(done)
            L.epoch += 1
            return [t for t, _ in carried]
        del L.lines[lines:], L.allocas[allocas:], L.asserts[asserts:]
        L.block, L.epoch, L.scopes[-1] = block_before, epoch, cache


@lowers("scf.if")
def _if(L: Lowering, op: Op, cond: Tensor) -> list[Tensor]:
    yes, no, after = L.label("then"), L.label("else"), L.label("endif")
    L.cond_br(L.scalar(cond.rows[0]), yes, no if len(op.regions) > 1 else after)
    before = L.lines
    branches: list[tuple[str, list[str], dict]] = []  # last block, lines and cache of each branch
    outs: list[list[Tensor]] = []
    for label, region in zip((yes, no), op.regions):
        L.lines = []
        L.start(label)
        L.push()
        L.env.append({})
        outs.append(L.ops(region.blocks[0].ops))
        L.env.pop()
        branches.append((L.block, L.lines, L.scopes.pop()))
    L.epoch += 1

    def at(k: int) -> Callable:
        def run(fn: Callable):
            L.block, L.lines, scope = branches[k]
            L.scopes.append(scope)
            out = fn()
            L.scopes.pop()
            return out

        return run

    finish = L.merge(outs[0], outs[1], at(0), at(1)) if op.results else None
    L.lines = before
    for _, lines, _ in branches:
        L.lines += lines
        L.br(after)
    L.start(after)
    return finish(branches[0][0], branches[1][0]) if finish else []


@lowers("scf.while")
def _while(L: Lowering, op: Op, *init: Tensor) -> list[Tensor]:
    before, head, body, done = L.block, L.label("while"), L.label("do"), L.label("done")
    init = tuple(L.canonical(t) for t in init)
    starts = [[L.vec(r) for r in t.rows] for t in init]
    L.br(head)
    L.start(head)
    slot = len(L.lines)
    carried = [L.phi_rows(t, [False] * len(t.rows)) for t in init]
    first, second = op.regions[0].blocks[0], op.regions[1].blocks[0]
    L.epoch += 1
    L.env.append({name: t for (name, _), (t, _) in zip(first.args, carried)})
    # The condition's region dominates both the body and the exit: its names stay cached for them.
    cond, *passed = L.ops(first.ops)
    L.env.pop()
    passed = [L.canonical(t) for t in passed]
    L.cond_br(L.scalar(cond.rows[0]), body, done)
    L.start(body)
    L.env.append({name: t for (name, _), t in zip(second.args, passed)})
    L.push()
    values = [[L.vec(r) for r in L.canonical(t).rows] for t in L.ops(second.ops)]
    L.pop()
    L.env.pop()
    text = []
    for (_, phis), st, va in zip(carried, starts, values):
        for i, name, ty, _ in phis:
            text.append(f"  {name} = phi {ty} [{st[i]}, %{before}], [{va[i]}, %{L.block}]")
    L.lines[slot:slot] = text
    L.br(head)
    L.start(done)
    L.epoch += 1
    return passed


@lowers("tt.call")
def _call(L: Lowering, op: Op, *args: Tensor) -> list[Tensor]:
    name = op.text.strip().split("(")[0].lstrip("@").strip('"')
    if name not in L.funcs:
        raise L.unsupported(op, f"unknown function {name}")
    if name in L.calls:
        raise L.unsupported(op, f"recursive call of {name}")
    L.calls.append(name)
    try:
        return L.function(L.funcs[name], args)
    finally:
        L.calls.pop()


def one_op(region: Region) -> str | None:
    """The operation of a combine region that is nothing but `return op(a, b)`."""
    ops = region.blocks[0].ops
    args = [n for n, _ in region.blocks[0].args]
    if len(ops) == 2 and sorted(ops[0].operands) == sorted(args) and ops[1].operands == ops[0].results:
        return ops[0].name
    return None


@dataclass(frozen=True)
class Lowered:
    """LLVM IR of a kernel.

    text: a module that defines `@"<name>.body"(arguments..., i32 program id x 3, i32 grid x 3, ptr error flag)`, with
    the attributes #0, which runs one program.
    params: types of the arguments.
    asserts: the messages; a program that fails number k leaves k + 1 in the flag.
    """

    name: str
    text: str
    params: list[Type]
    asserts: list[str]


PROGRAM = ["pid0", "pid1", "pid2", "grid0", "grid1", "grid2"]


def lower_module(ttir: str, fp_fusion: bool) -> Lowered:
    """Lower the printed TTIR of one kernel. Raises UnsupportedOp, naming the operation and its source line."""
    # The entries of OPS. Imported here, since each of these files imports this one.
    from . import (  # noqa: F401
        atomics,
        casts,
        constants,
        debug,
        dot,
        elementwise,
        integers,
        memory,
        reduce,
        shapes,
    )

    funcs = parse(ttir)
    kernel = next(f for f in funcs if f.public)
    L = Lowering(kernel.name, funcs, "contract" if fp_fusion else "")
    args, params = [], []
    for k, (_, ty) in enumerate(kernel.args):
        args.append(Tensor((), ty.elt, [Row(1, ty.elt, vec=f"%a{k}")], 1))
        params.append(f"{storage(ty.elt)} %a{k}")
    L.function(kernel, args)
    params += [f"i32 %{p}" for p in PROGRAM] + ["ptr %error"]
    body = [f'define internal void @"{kernel.name}.body"({", ".join(params)}) #0 {{', "entry:"]
    body += L.allocas + L.lines + ["  ret void", "}"]
    text = "\n".join([*L.globals, *sorted(L.declares), *body, *L.metadata, ""])
    return Lowered(kernel.name, text, [ty for _, ty in kernel.args], L.asserts)
