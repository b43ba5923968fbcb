"""A sparse matrix in the storage format that a run asks for."""

from __future__ import annotations

from torch import Tensor

from braidwork.kernels.sparse import SparseMatrix
from braidwork.kernels.sparse.formats import parse

AUTO = "auto"
# {columns: (format, format of the transpose)}, with "*" behind the number of columns where values change.
Chosen = dict[str, tuple[str, str]]


class Stored:
    """A matrix in one format, or in the one that a learned model picks for the number of columns at hand.

    Args:
        matrix: whichever formats it has.
        format: a name such as "csr" or "bsr16", for the matrix and its transpose alike; or "auto".
        uses: products to come in each direction, by which "auto" weighs a conversion.
        chosen: what "auto" picked, written to as it picks. What is in it is not asked for again, so a run that goes on
            from a checkpoint can go on in the same formats.

    Raises:
        ValueError: no such format; one that pads the matrix beyond the limit.
    """

    def __init__(self, matrix: SparseMatrix, format: str = "csr", uses: int = 100, chosen: Chosen | None = None):
        self.format, self.uses, self.values_change = format, uses, False
        self.matrix = matrix if format == AUTO else _in(matrix, format, format)
        self.chosen: Chosen = {} if chosen is None else chosen

    def at(self, F: int) -> SparseMatrix:
        """The matrix for products with F columns. "auto" decides when it first meets F, and then keeps to it."""
        if self.format != AUTO:
            return self.matrix
        key = f"{F}*" if self.values_change else f"{F}"
        if key not in self.chosen:
            picked: dict[str, str] = {}
            self.matrix.auto(F, self.uses, values_change=self.values_change, on_choice=picked.__setitem__)
            self.chosen[key] = picked["forward"], picked["backward"]
        return _in(self.matrix, *self.chosen[key])

    def with_values(self, values: Tensor) -> Stored:
        """The same pattern and formats with values that are gone after a product or two."""
        other = object.__new__(Stored)
        other.format, other.uses, other.values_change, other.chosen = self.format, self.uses, True, self.chosen
        other.matrix = self.matrix.with_values(values)
        return other


def _in(matrix: SparseMatrix, forward: str, backward: str) -> SparseMatrix:
    """The matrix in one format and its transpose in another."""
    for name in (forward, backward):
        format, params = parse(name)
        matrix = matrix.to(format, **params).T
    return matrix
