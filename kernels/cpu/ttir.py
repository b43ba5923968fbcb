"""Reads Triton's IR (TTIR, as printed by MLIR) into plain objects.

Only what the printer of Triton 3.9 emits is understood. The reader knows the *shape* of an operation (results,
operands, attributes, regions, types, location) and nothing of its meaning: meaning lives in the lowering tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(frozen=True)
class Type:
    """`shape` is () for a scalar. `elt` is "i1".."i64", "f16", "bf16", "f32", "f64", "f8E5M2", ... or "ptr<elt>"."""

    shape: tuple[int, ...]
    elt: str

    @property
    def numel(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n


@dataclass
class Op:
    name: str
    results: list[str]
    operands: list[str]
    text: str  # everything after the operation's name, without regions and location
    types: list[Type]  # of the results
    loc: str
    regions: list[Region] = field(default_factory=list)
    successors: list[tuple[str, list[str]]] = field(default_factory=list)
    used: bool = True  # whether anything reads its results

    def attr(self, key: str, default: str | None = None) -> str | None:
        m = re.search(rf'(?:^|[{{<,\s]){re.escape(key)} = ("[^"]*"|array<[^>]*>|[^,}}>]+)', self.text)
        return m.group(1).split(" : ")[0].strip() if m else default


@dataclass
class Block:
    label: str
    args: list[tuple[str, Type]]
    ops: list[Op] = field(default_factory=list)


@dataclass
class Region:
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Func:
    name: str
    args: list[tuple[str, Type]]
    results: list[Type]
    body: Region
    public: bool


def _walk(region: Region) -> Iterator[Op]:
    for block in region.blocks:
        for op in block.ops:
            yield op
            for inner in op.regions:
                yield from _walk(inner)


def _mark_unused(body: Region) -> None:
    read: set[str] = set()
    for op in _walk(body):
        read.update(op.operands, *(names for _, names in op.successors))
    for op in _walk(body):
        op.used = not read.isdisjoint(op.results)


_PAIRS = {"(": ")", "<": ">", "{": "}", "[": "]"}


def _split(text: str, sep: str = ",") -> list[str]:
    """Split at top level, minding brackets and quotes. Arrows must have been rewritten to "→" before."""
    out, depth, start, quoted = [], 0, 0, False
    i = 0
    while i < len(text):
        c = text[i]
        if c == '"' and (i == 0 or text[i - 1] != "\\"):
            quoted = not quoted
        elif not quoted:
            if c in "(<{[":
                depth += 1
            elif c in ")>}]":
                depth -= 1
            elif depth == 0 and text.startswith(sep, i):
                out.append(text[start:i].strip())
                i += len(sep)
                start = i
                continue
        i += 1
    out.append(text[start:].strip())
    return [p for p in out if p]


@lru_cache(maxsize=4096)
def parse_type(text: str) -> Type:
    text = text.strip()
    if text.startswith("tensor<"):
        inner = _split(text[7:-1])[0]  # drop an encoding
        m = re.match(r"((?:\d+x)*)(.*)", inner)
        assert m is not None
        return Type(tuple(int(d) for d in m.group(1).split("x")[:-1]), _elt(m.group(2)))
    return Type((), _elt(text))


def _elt(text: str) -> str:
    if text.startswith("!tt.ptr<"):
        return f"ptr<{_elt(_split(text[8:-1])[0])}>"
    return "i64" if text == "index" else text


def _types(text: str) -> list[Type]:
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return [parse_type(t) for t in _split(text)]


def _strip_loc(line: str) -> tuple[str, str]:
    """Cut the trailing ` loc(...)` off."""
    if not line.endswith(")"):
        return line, ""
    depth = 0
    for i in range(len(line) - 1, -1, -1):
        if line[i] == ")":
            depth += 1
        elif line[i] == "(":
            depth -= 1
            if depth == 0:
                if line[:i].endswith(" loc"):
                    return line[: i - 4].rstrip(), line[i + 1 : -1]
                return line, ""
    return line, ""


_ONE_TYPE_FIRST = {"arith.cmpi", "arith.cmpf"}


def _result_types(name: str, text: str, count: int) -> list[Type]:
    if count == 0:
        return []
    parts = _split("x" + text, " : ")  # `ub.poison : i64` has nothing before its type
    sig = parts[-1] if len(parts) > 1 else ""
    if "→" in sig:
        types = _types(_split(sig, "→")[-1])
    elif " to " in sig:
        types = _types(sig.split(" to ")[1])
    elif not sig:  # `arith.constant true`
        types = [Type((), "i1")]
    elif name == "arith.select":
        types = [_types(sig)[-1]]
    else:
        types = _types(sig)[:1]
        if name in _ONE_TYPE_FIRST:
            types = [Type(types[0].shape, "i1")]
        elif name == "tt.load":
            types = [Type(types[0].shape, types[0].elt[4:-1])]
    return types * count if len(types) == 1 else types


_ARG = re.compile(r"(%[\w.$-]+): (.*)", re.S)
_NAME = re.compile(r"%[\w.$-]+(?:#\d+)?")


def _args(text: str) -> list[tuple[str, Type]]:
    out = []
    for part in _split(text):
        m = _ARG.match(_strip_loc(part)[0].strip())
        assert m is not None, part
        out.append((m.group(1), parse_type(_split(m.group(2), " {")[0].split(" {")[0])))
    return out


class _Reader:
    def __init__(self, text: str):
        lines = text.replace("->", "→").splitlines()
        self.lines = [ln.strip() for ln in lines if ln.strip() and not ln.startswith("#loc")]
        self.locs = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.M))
        self.i = 0

    def where(self, loc: str) -> str:
        """The innermost `file:line` of a location."""
        for _ in range(64):
            m = re.search(r'"([^"]+)":(\d+):\d+', loc)
            if m:
                return f"{m.group(1)}:{m.group(2)}"
            ref = re.search(r"#loc\d*", loc)
            if ref is None or ref.group(0) not in self.locs:
                return "unknown location"
            loc = self.locs[ref.group(0)]
        return "unknown location"

    def module(self) -> list[Func]:
        funcs = []
        while self.i < len(self.lines):
            line = self.lines[self.i]
            self.i += 1
            if not line.startswith("tt.func"):
                continue
            head = _strip_loc(line)[0]
            m = re.match(r"tt\.func (public |private )?@([^(]+|\"[^\"]+\")\(", head)
            assert m is not None, head
            depth, j = 1, m.end()
            while depth:
                depth += {"(": 1, ")": -1}.get(head[j], 0)
                j += 1
            args = _args(head[m.end() : j - 1])
            rest = head[j:].split("attributes")[0].rstrip("{ ").strip()
            results = _types(rest[1:]) if rest.startswith("→") else []
            region, _ = self.region([])
            _mark_unused(region)
            funcs.append(Func(m.group(2).strip('"'), args, results, region, (m.group(1) or "").strip() == "public"))
        return funcs

    def region(self, entry_args: list[tuple[str, Type]]) -> tuple[Region, str]:
        """Read operations up to the closing brace; returns the region and what follows the brace."""
        region = Region([Block("^bb0", entry_args)])
        while True:
            line = self.lines[self.i]
            self.i += 1
            if line.startswith("}"):
                if not region.blocks[0].ops and len(region.blocks) > 1:
                    region.blocks.pop(0)
                return region, line[1:].strip()
            if line.startswith("^"):
                line = re.sub(r"\s*//.*", "", line).rstrip(":")
                m = re.match(r"(\^\w+)(?:\((.*)\))?$", line, re.S)
                assert m is not None, line
                region.blocks.append(Block(m.group(1), _args(m.group(2)) if m.group(2) else []))
                continue
            region.blocks[-1].ops.append(self.op(line))

    def op(self, line: str) -> Op:
        line, loc = _strip_loc(line)
        results: list[str] = []
        m = re.match(r"(%[^=(]+?) = ", line)
        if m:
            for name in m.group(1).split(", "):  # `%a, %b` or, for several results of one name, `%a:2`
                base, _, count = name.partition(":")
                results += [f"{base}#{k}" for k in range(int(count))] if count else [base]
            line = line[m.end() :]
        m = re.match(r'"?([\w.]+)"?', line)
        assert m is not None, line
        name, text = m.group(1), line[m.end() :]
        op = Op(name, results, [], text, [], loc)
        if line.endswith("{"):
            self._regions(op)
        else:
            op.types = _result_types(name, op.text, len(results))
        if name.startswith("cf."):
            for m in re.finditer(r"(\^\w+)(?:\(([^:)]*)(?: : [^)]*)?\))?", op.text):
                op.successors.append((m.group(1), _NAME.findall(m.group(2) or "")))
            op.operands = _NAME.findall(op.text.split("^")[0])
        elif not op.operands:
            op.operands = _NAME.findall(re.sub(r'"(?:[^"\\]|\\.)*"', "", op.text))
        op.loc = self.where(op.loc)
        return op

    def _regions(self, op: Op) -> None:
        text = op.text.rstrip("{").rstrip("( ").strip()
        if op.name == "scf.for":
            m = re.match(
                r"(unsigned )?(%\S+) = (%\S+) to (%\S+) step (%\S+)"
                r"(?: iter_args\((.*?)\) → \((.*)\))?\s*(?: : (\S+))?$",
                text,
            )
            assert m is not None, text
            pairs = [p.split(" = ") for p in _split(m.group(6) or "")]
            op.types = _types(m.group(7)) if m.group(7) else []
            iv = (m.group(2), parse_type(m.group(8) or "i64"))
            op.operands = [m.group(3), m.group(4), m.group(5)] + [p[1] for p in pairs]
            op.text = "unsigned" if m.group(1) else ""
            args = [iv] + [(p[0], t) for p, t in zip(pairs, op.types)]
            region, tail = self.region(args)
            op.regions.append(region)
        elif op.name == "scf.while":
            m = re.match(r"\((.*?)\) : (.*)$", text) if text.startswith("(") else re.match(r"()(?:: )?(.*)$", text)
            assert m is not None, text
            pairs = [p.split(" = ") for p in _split(m.group(1))]
            ins, outs = _split(m.group(2), "→")[0], _split(m.group(2), "→")[-1]
            op.operands = [p[1] for p in pairs]
            op.types = _types(outs) if op.results else []
            before, tail = self.region([(p[0], t) for p, t in zip(pairs, _types(ins))])
            after, tail = self.region([])
            op.regions += [before, after]
        elif op.name == "scf.if":
            m = re.match(r"(%\S+)(?: → \((.*)\))?$", text)
            assert m is not None, text
            op.operands = [m.group(1)]
            op.types = _types(m.group(2)) if m.group(2) else []
            region, tail = self.region([])
            op.regions.append(region)
            if tail.startswith("else"):
                region, tail = self.region([])
                op.regions.append(region)
        else:  # the generic form: "op"(operands) <{attributes}> ({ regions }) : (types) -> types
            op.operands = _NAME.findall(text)
            region, tail = self.region([])
            op.regions.append(region)
            while tail.startswith(", {"):
                region, tail = self.region([])
                op.regions.append(region)
            tail, op.loc = _strip_loc(tail)
            op.text = text
            op.types = _result_types(op.name, "x " + tail.lstrip(") "), len(op.results))
            return
        op.loc = _strip_loc(tail)[1]


def parse(text: str) -> list[Func]:
    """The functions of a printed TTIR module."""
    return _Reader(text).module()
