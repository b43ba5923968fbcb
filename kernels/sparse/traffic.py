"""Bytes that an operator moves, by format: the model that measured times are put beside."""

from __future__ import annotations

import functools
import glob
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .formats import lookup

if TYPE_CHECKING:
    from .matrix import SparseMatrix

OPS = ("spmm", "sddmm")


@dataclass(frozen=True)
class Traffic:
    """Bytes of one call, each read and write of an operand counted, and where the dense operand lives.

    matrix: indices, padding and values of the sparse matrix.
    gather: rows of the dense operand, once for every entry (or block) that asks for them.
    once: the same operand read once: what would come from main memory if the rest hit in cache.
    output: what is written.
    flops: multiplications and additions of entries, padding left out.
    level: the smallest memory that holds the dense operand: "L2", "L3" or "memory" on a CPU, "memory" elsewhere.
    """

    matrix: int
    gather: int
    once: int
    output: int
    flops: int
    level: str

    @property
    def bytes(self) -> int:
        """The matrix, every gather and the output."""
        return self.matrix + self.gather + self.output

    @property
    def least_bytes(self) -> int:
        """The matrix, the dense operand once and the output: no cache can do with less."""
        return self.matrix + self.once + self.output


def traffic(A: SparseMatrix, op: str, F: int, dtype: torch.dtype) -> Traffic:
    """See `SparseMatrix.traffic`."""
    if op not in OPS:
        raise ValueError(f"op: need one of {', '.join(OPS)}, got {op!r}")
    if F < 0:
        raise ValueError(f"F: need 0 or more columns, got {F}")
    rows, cols = A.shape
    size = dtype.itemsize
    once = min(cols, A.nnz) * F * size
    if op == "sddmm":
        # A row of x is kept while its entries last; the coordinates name both sides.
        index = 2 * A.nnz * A.row.element_size()
        gather = (A.nnz + rows) * F * size
        return Traffic(index, gather, once, A.nnz * size, 2 * A.nnz * F, _level(once, A.device))
    value_bytes = 0 if A.dtype is None else A.dtype.itemsize
    storage = A.storage()
    matrix = lookup(A.format).matrix_bytes(storage, value_bytes)
    gathers = A.nnz
    if A.format == "bsr":
        gathers = storage.tensors[2].shape[0] * storage.tensors[2].shape[1]
    elif A.format == "csc":
        gathers = int((storage.tensors[0].diff(dim=1) > 0).sum())
    output = rows * F * size
    if A.format == "csc":
        # Accumulators in memory: zeroed, read and written for every entry, and read at the end.
        output += (2 * A.nnz + 2 * rows) * F * max(size, 4)
    return Traffic(matrix, gathers * F * size, once, output, 2 * A.nnz * F, _level(once, A.device))


def _level(nbytes: int, device: torch.device) -> str:
    if device.type == "cpu":
        for level, size in _caches():
            if nbytes <= size:
                return f"L{level}"
    return "memory"


@functools.cache
def _caches() -> list[tuple[int, int]]:
    """(level, bytes) of the caches of the first core that hold data, from level 2 on; [] where Linux does not say."""
    found = []
    for path in glob.glob("/sys/devices/system/cpu/cpu0/cache/index*"):
        try:
            kind, level, size = (open(f"{path}/{name}").read().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction" and int(level) >= 2:
            found.append((int(level), int(size.rstrip("KM")) * (1 << 20 if size.endswith("M") else 1 << 10)))
    return sorted(found)
