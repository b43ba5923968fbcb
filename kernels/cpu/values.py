"""Values of the CPU backend: types, rows, tensors.

A tensor is a list of *rows*: chunks of its row-major elements, each at most `LANES` wide and never wider than the last
dimension once `canonical`. A row is one LLVM vector `<n x T>` (a scalar when n = 1), made only when somebody asks
for it: until then an integer or pointer row is `base + offs`, a scalar plus compile-time constants. That form turns
address arithmetic into contiguous vector accesses. Rows are shared by identity, and a computation on the same rows is
emitted once, so broadcasts are free.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from .ttir import Type

LANES = 64

Literal = int | str  # an SSA name or constant text; ints stay Python ints so that they can be folded

INT_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
# How a TTIR element type is held in a register. f16, bf16 and fp8 are held as bits and computed in f32: few CPUs have
# registers of halves, and LLVM would take a vector of them apart to move it.
_STORAGE = {"f16": "i16", "bf16": "i16", "f32": "float", "f64": "double"}
_SIZE = {"half": 2, "float": 4, "double": 8, "ptr": 8, "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "i128": 16}


def storage(elt: str) -> str:
    """The LLVM scalar type that holds a TTIR element."""
    if elt.startswith("ptr"):
        return "ptr"
    if elt.startswith("f8"):
        return "i8"
    return _STORAGE.get(elt, elt)


def vtype(elt: str, n: int) -> str:
    """The LLVM type of `n` elements."""
    return storage(elt) if n == 1 else f"<{n} x {storage(elt)}>"


def size_of(elt: str) -> int:
    """Bytes of one element in memory."""
    return _SIZE[storage(elt)]


def in_memory(elt: str) -> str:
    """The type as which an element lies in memory: a boolean takes a byte."""
    return "i8" if elt == "i1" else elt


def mangle(elt: str, n: int) -> str:
    """The type of `n` elements as it ends the name of an LLVM intrinsic."""
    ty = storage(elt)
    name = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}.get(ty, ty)
    return name if n == 1 else f"v{n}{name}"


def is_float(elt: str) -> bool:
    return elt[0] in "fb" or elt == "half"


def wrap(value: int, elt: str) -> int:
    """`value` modulo the width of a type that is held as integers, as a signed number (0 or 1 for i1)."""
    bits = INT_BITS.get(storage(elt), 64)
    value &= (1 << bits) - 1
    return value if bits == 1 or value < 1 << (bits - 1) else value - (1 << bits)


def wrap_all(values: np.ndarray, elt: str) -> np.ndarray:
    """`wrap` for an array."""
    bits = INT_BITS.get(storage(elt), 64)
    if bits == 64:
        return values
    if bits == 1:
        return values & 1
    half = 1 << (bits - 1)
    return ((values + half) & (2 * half - 1)) - half


def float_text(value: float, elt: str) -> str:
    """An LLVM constant of element type `elt` (as held in registers)."""
    if elt == "f64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if elt == "f32":
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(np.float32(value))))[0]:016X}"
    if elt == "half":
        return f"0xH{int(np.float16(value).view(np.uint16)):04X}"
    raise ValueError(elt)


class Row:
    """`n` elements of type `elt`: either `vec`, or `base` plus the constants `offs` (None: all elements equal)."""

    __slots__ = ("base", "elt", "n", "offs", "vec")

    def __init__(
        self, n: int, elt: str, vec: str | None = None, base: Literal | None = None, offs: np.ndarray | None = None
    ):
        if n == 1 and base is None:
            base = vec  # a scalar is its own base
        self.n, self.elt, self.vec, self.base, self.offs = n, elt, vec, base, offs

    @property
    def uniform(self) -> bool:
        return self.base is not None and self.offs is None

    @property
    def affine(self) -> bool:
        return self.base is not None

    @property
    def literal(self) -> bool:
        return isinstance(self.base, int)

    def constants(self) -> np.ndarray:
        """The integer values of a literal row."""
        assert isinstance(self.base, int)
        return self.offsets() + self.base

    def offsets(self) -> np.ndarray:
        """What each element adds to the base of an affine row."""
        return self.offs if self.offs is not None else np.zeros(self.n, np.int64)


class Tensor:
    """A value of TTIR: `rows` hold the row-major elements, `w` to a row."""

    __slots__ = ("elt", "rows", "shape", "w")

    def __init__(self, shape: Sequence[int], elt: str, rows: list[Row], w: int):
        self.shape, self.elt, self.rows, self.w = tuple(shape), elt, rows, w

    @property
    def scalar(self) -> bool:
        return self.shape == ()

    @property
    def numel(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n


def width(shape: Sequence[int]) -> int:
    """Elements to a row of a canonical tensor."""
    return min(shape[-1], LANES) if shape else 1


def pointee(elt: str) -> str:
    """LLVM type of the memory behind a pointer element such as "ptr<f32>"."""
    return storage(in_memory(elt[4:-1]))


def empty_like(ty: Type) -> tuple[int, int]:
    """(row width, number of rows) of a tensor of type `ty`."""
    w = width(ty.shape)
    return w, ty.numel // w
