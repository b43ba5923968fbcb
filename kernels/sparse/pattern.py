"""Where the entries of a sparse matrix are, without their values: what a matrix, its transpose and every matrix of the
same pattern share, and what all storage formats are built from."""

from __future__ import annotations

import torch

from .formats import Params, Storage, lookup

INT32_MAX = 2**31 - 1


class Pattern:
    """Coordinates of the entries, sorted by row and then by column, and the storages built from them so far.

    row, col: int32 [nnz] where both sides of the shape and nnz fit, else int64. An entry's number is its position here,
        in every format and in the transpose too. Repeated coordinates are allowed.
    shape: (rows, columns).

    The constructor trusts its caller; `SparseMatrix.from_coo` is the door.
    """

    def __init__(self, row: torch.Tensor, col: torch.Tensor, shape: tuple[int, int]):
        self.row = row
        self.col = col
        self.shape = shape
        self.nnz = row.shape[0]
        self._storages: dict[tuple[str, bool, Params], Storage] = {}
        self._order: torch.Tensor | None = None
        self._symmetric: bool | None = None
        self._inverse_counts: dict[tuple[bool, torch.dtype], torch.Tensor] = {}

    def sorted(self, transposed: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """(row, col, order) of the pattern or of its transpose, sorted by row and then by column.

        order[j] is the number of the j-th of them, None where that is j. It is computed once.
        """
        if not transposed:
            return self.row, self.col, None
        if self._order is None:
            self._order = torch.argsort(self.col, stable=True).to(self.row.dtype)
        return self.col[self._order], self.row[self._order], self._order

    def storage(self, format: str, transposed: bool, params: Params = (), limit: int | None = None) -> Storage:
        """The pattern or its transpose in a format, built on first use.

        params: what `SparseMatrix.to` was given, the defaults filled in, sorted by name.
        limit: most bytes that it may take, by default eight times those of coordinates and fp32 values, and 1 MiB.
        """
        key = (format, transposed, params)
        if key not in self._storages:
            self._build(key, 8 * 12 * self.nnz + (1 << 20) if limit is None else limit)
        return self._storages[key]

    def has(self, format: str, transposed: bool, params: Params) -> bool:
        """Whether `storage` with these arguments is there already."""
        return (format, transposed, params) in self._storages

    def drop(self, format: str, transposed: bool, params: Params) -> None:
        """Forget a storage, if it is there."""
        self._storages.pop((format, transposed, params), None)

    @torch.compiler.disable(reason='build the storages of a matrix before compilation: A.to("csr"), A.T.to("csr")')
    def _build(self, key: tuple[str, bool, Params], limit: int) -> None:
        format, transposed, params = key
        self._storages[key] = lookup(format).build(self, transposed, dict(params), limit)

    def is_symmetric(self) -> bool:
        """Whether (i, k) is an entry as often as (k, i) is. Exact; found out once."""
        if self._symmetric is None:
            self._compare()
        return bool(self._symmetric)

    @torch.compiler.disable
    def _compare(self) -> None:
        self._symmetric = self.shape[0] == self.shape[1]
        if self._symmetric:
            row, col, _ = self.sorted(True)
            self._symmetric = torch.equal(row, self.row) and torch.equal(col, self.col)

    def row_counts(self, transposed: bool) -> torch.Tensor:
        """Entries in each row of the pattern or of its transpose: int64 [rows]."""
        index = self.col if transposed else self.row
        return torch.bincount(index, minlength=self.shape[transposed])

    def spread(self, transposed: bool) -> int:
        """Columns between which a row and its neighbours find most of their entries: about all of them where entries
        lie anywhere, few in a band. From a sample of the entries; what a product has in use of x at a time."""
        step = max(self.nnz // 4096, 1)
        row, col = (index[::step].double() / max(side, 1) for index, side in zip((self.row, self.col), self.shape))
        if not row.shape[0]:
            return 0
        # Two points anywhere on a line of length 1 lie 1/3 apart on average.
        return int(min(3 * float((row - col).abs().mean()), 1.0) * self.shape[not transposed])

    def inverse_counts(self, transposed: bool, dtype: torch.dtype) -> torch.Tensor:
        """1 / entries in each row, 1 where there are none: [rows]. Computed once a dtype."""
        key = (transposed, dtype)
        if key not in self._inverse_counts:
            self._count(key)
        return self._inverse_counts[key]

    @torch.compiler.disable
    def _count(self, key: tuple[bool, torch.dtype]) -> None:
        counts = self.row_counts(key[0]).clamp_(min=1)
        self._inverse_counts[key] = counts.to(torch.float64).reciprocal_().to(key[1])

    def tensors(self) -> list[torch.Tensor]:
        """Everything held, for counting bytes; some may be the same tensor."""
        held = [self.row, self.col, *self._inverse_counts.values()]
        if self._order is not None:
            held.append(self._order)
        for storage in self._storages.values():
            held.extend(storage.tensors)
        return held

    def to(self, device: torch.device) -> Pattern:
        """The same pattern on another device; formats are built there anew."""
        if device == self.row.device:
            return self
        moved = Pattern(self.row.to(device), self.col.to(device), self.shape)
        moved._symmetric = self._symmetric
        return moved


def index_dtype(shape: tuple[int, int], nnz: int) -> torch.dtype:
    """int32 where the sides and the number of entries fit, else int64."""
    return torch.int32 if max(*shape, nnz) <= INT32_MAX else torch.int64


def canonical(
    row: torch.Tensor, col: torch.Tensor, value: torch.Tensor | None, shape: tuple[int, int], merge: bool
) -> tuple[Pattern, torch.Tensor | None]:
    """Sort entries by row and then by column and, with `merge`, add up the values of equal coordinates.

    An unweighted matrix in which coordinates repeat comes out of the merge with their multiplicities as fp32 values.
    Differentiable in `value`.
    """
    rows, cols = shape
    if row.shape[0] > 1:
        row, col, value, repeats = _sort(row, col, value, rows, cols)
        if merge and repeats is not None:
            row, col, value = _merge(row, col, value, repeats)
    dtype = index_dtype(shape, row.shape[0])
    return Pattern(row.to(dtype).contiguous(), col.to(dtype).contiguous(), shape), value


def _sort(
    row: torch.Tensor, col: torch.Tensor, value: torch.Tensor | None, rows: int, cols: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Sorted entries, and which of them repeat the coordinates of the one before: bool [nnz - 1], None if none does."""
    step_row, step_col = row[1:] - row[:-1], col[1:] - col[:-1]
    in_order = (step_row > 0) | ((step_row == 0) & (step_col >= 0))
    if not bool(in_order.all()):
        if rows * cols < 2**63:
            order = torch.argsort(row.to(torch.int64) * cols + col, stable=True)
        else:
            order = torch.argsort(col, stable=True)
            order = order[torch.argsort(row[order], stable=True)]
        row, col = row[order], col[order]
        value = value if value is None else value[order]
        step_row, step_col = row[1:] - row[:-1], col[1:] - col[:-1]
    repeats = (step_row == 0) & (step_col == 0)
    return row, col, value, repeats if bool(repeats.any()) else None


def _merge(
    row: torch.Tensor, col: torch.Tensor, value: torch.Tensor | None, repeats: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sum runs of equal coordinates, in fp32 or fp64 and in order."""
    first = torch.cat([repeats.new_zeros(1), repeats]).logical_not_()
    start = first.nonzero().squeeze(1)
    lengths = torch.diff(start, append=start.new_tensor([row.shape[0]]))
    if value is None:
        summed = lengths.to(torch.float32)
    else:
        wide = value if value.dtype == torch.float64 else value.to(torch.float32)
        summed = torch.segment_reduce(wide, "sum", lengths=lengths).to(value.dtype)
    return row[start], col[start], summed
