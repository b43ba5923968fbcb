"""Sparse times sparse.

Row by row, as F. G. Gustavson ("Two fast algorithms for sparse matrices", ACM TOMS 4, 1978): entry (i, k) of A meets
the entries of row k of B. The products are expanded, sorted by where they belong and summed up (N. Bell, S. Dalton and
L. Olson, "Exposing fine-grained parallelism in algebraic multigrid methods", SIAM J. Sci. Comput. 34, 2012), a limited
number at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .heads import check_matrix, csr_of, entry_sum
from .matrix import SparseMatrix

# Products that are held at a time, each with some 40 bytes of keys, positions and values.
# A CPU sorts what stays in its caches, and a chunk of few rows has keys of 32 bits; a GPU wants much at once.
LIMIT = {"cpu": 1 << 20, "cuda": 1 << 25}


class Side(NamedTuple):
    """One factor, rows of which are walked: CSR, the number of every position (None: its own), and the values."""

    rowptr: torch.Tensor
    col: torch.Tensor
    order: torch.Tensor | None
    value: torch.Tensor | None

    def values_at(self, position: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        if self.value is None:
            return None
        entry = position if self.order is None else self.order[position]
        return self.value[entry].to(dtype)


def _side(A: SparseMatrix) -> Side:
    rowptr, col, *order = csr_of(A)
    return Side(rowptr, col, order[0] if order else None, None if A.values is None else A.values.detach())


def _chunks(first: torch.Tensor, limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of entries of the left factor, of at most `limit` products each, or of one entry.

    first: int64 [nnz + 1], the number of the first product of each entry.
    """
    nnz, begin = first.shape[0] - 1, 0
    while begin < nnz:
        # A search for each chunk, not one for each entry.
        end = int(torch.searchsorted(first, first[begin] + limit, right=True)) - 1
        end = min(max(end, begin + 1), nnz)
        yield begin, end
        begin = end


def _expand(first: torch.Tensor, begin: int, end: int, left: Side, right: Side) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions (in left, in right) of the products of the entries at positions begin to end - 1 of left."""
    counts = first[begin + 1 : end + 1] - first[begin:end]
    total = int(first[end] - first[begin])
    mine = torch.arange(begin, end, device=counts.device)
    a = torch.repeat_interleave(mine, counts, output_size=total)
    # Product t of entry j is at rowptr[col[j]] + t - first[j]: one shift for each entry, repeated.
    shift = right.rowptr[left.col[begin:end]].to(torch.int64) - first[begin:end]
    b = torch.repeat_interleave(shift, counts, output_size=total)
    b += torch.arange(int(first[begin]), int(first[end]), device=counts.device)
    return a, b


def _first_products(left: Side, right: Side) -> torch.Tensor:
    """Number of the first product of every entry of left, and how many there are: int64 [nnz + 1]."""
    counts = torch.diff(right.rowptr)[left.col]
    first = torch.zeros(counts.shape[0] + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum(counts, 0, dtype=torch.int64, out=first[1:])
    return first


def _rows_of(side: Side) -> torch.Tensor:
    """Row of every position: int64 [nnz]."""
    counts = torch.diff(side.rowptr).to(torch.int64)
    return torch.repeat_interleave(counts, output_size=side.col.shape[0])


def _sum_runs(
    key: torch.Tensor, value: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct keys, sorted, and the sum of the values (1 where None) of each, in the order they come in."""
    key, order = torch.sort(key, stable=True)
    step = torch.ones(key.shape[0], dtype=torch.bool, device=key.device)
    torch.ne(key[1:], key[:-1], out=step[1:])
    start = step.nonzero().squeeze(1)
    starts = torch.cat([start, start.new_tensor([key.shape[0]])])
    if value is None:
        return key[start], torch.diff(starts).to(dtype)
    return key[start], entry_sum(value.unsqueeze(1), start.shape[0], starts, order).squeeze(1)


def _multiply(left: Side, right: Side, cols: int, dtype: torch.dtype, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys row * cols + col of the entries of the product, sorted, and their values in `dtype`."""
    first = _first_products(left, right)
    rows = _rows_of(left)
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    cut = False
    for begin, end in _chunks(first, limit):
        a, b = _expand(first, begin, end, left, right)
        value_a, value_b = left.values_at(a, dtype), right.values_at(b, dtype)
        value = value_b if value_a is None else value_a if value_b is None else value_a * value_b
        base = int(rows[begin])
        key = ((rows[begin:end] - base) * cols)[a - begin].add_(right.col[b])
        # Sorting takes as many passes as keys have bytes.
        if (int(rows[end - 1]) - base + 1) * cols < 2**31:
            key = key.to(torch.int32)
        key, value = _sum_runs(key, value, dtype)
        keys.append(key.to(torch.int64).add_(base * cols))
        values.append(value)
        cut |= end < rows.shape[0] and bool(rows[end] == rows[end - 1])
    if not keys:
        return first.new_empty(0), torch.empty(0, dtype=dtype, device=first.device)
    key, value = torch.cat(keys), torch.cat(values)
    # A row that did not fit a chunk left pieces in several.
    return _sum_runs(key, value, dtype) if cut else (key, value)


def _sampled(
    left: Side, right: Side, key: torch.Tensor, g: torch.Tensor, stride: tuple[int, int], limit: int
) -> torch.Tensor:
    """sum over the entries (k, n) of row k of right of G[i, n] right[k, n], for every position (i, k) of left.

    G has values g at the sorted keys; the key of (i, n) is i * stride[0] + n * stride[1]. Returns [nnz of left].
    """
    first = _first_products(left, right)
    rows = _rows_of(left) * stride[0]
    parts = []
    for begin, end in _chunks(first, limit):
        a, b = _expand(first, begin, end, left, right)
        wanted = rows[a].add_(right.col[b].to(torch.int64) * stride[1])
        term = g[torch.searchsorted(key, wanted)]
        value = right.values_at(b, g.dtype)
        term = term if value is None else term * value
        bounds = first[begin : end + 1] - first[begin]
        parts.append(entry_sum(term.unsqueeze(1), end - begin, bounds, None).squeeze(1))
    return torch.cat(parts) if parts else g.new_empty(0)


def _to_numbers(side: Side, gradient: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """From the order of positions to that of entries."""
    gradient = gradient.to(dtype)
    if side.order is None:
        return gradient
    out = torch.empty_like(gradient)
    out[side.order] = gradient
    return out


class _Spgemm(torch.autograd.Function):
    """Keys and values of the product, differentiable in the values of both factors."""

    @staticmethod
    def forward(
        ctx: Any,
        value_a: torch.Tensor | None,
        value_b: torch.Tensor | None,
        A: SparseMatrix,
        B: SparseMatrix,
        limit: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values = value_b if value_a is None else value_a
        out_dtype = torch.float32 if values is None else values.dtype
        dtype = torch.float64 if out_dtype == torch.float64 else torch.float32
        key, value = _multiply(_side(A), _side(B), B.shape[1], dtype, limit)
        value = value.to(out_dtype)
        ctx.mark_non_differentiable(key)
        ctx.save_for_backward(value_a, value_b, key)
        ctx.matrices, ctx.limit, ctx.dtype = (A.with_values(None), B.with_values(None)), limit, dtype
        return key, value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, _: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        value_a, value_b, key = ctx.saved_tensors
        A, B = ctx.matrices
        g, cols = g.to(ctx.dtype).contiguous(), B.shape[1]
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            # G B^T where A has entries: the entries of A meet the rows of B that they met before.
            left, right = _side(A), _side(B)._replace(value=value_b)
            grad_a = _to_numbers(left, _sampled(left, right, key, g, (cols, 1), ctx.limit), value_a.dtype)
        if ctx.needs_input_grad[1]:
            # (A^T G)^T = G^T A where B^T has entries: the entries (n, k) of B^T meet the rows k of A^T.
            left, right = _side(B.T), _side(A.T)._replace(value=value_a)
            grad_b = _to_numbers(left, _sampled(left, right, key, g, (1, cols), ctx.limit), value_b.dtype)
        return grad_a, grad_b, None, None, None


# --------------------------------------------------------------------------------------------------------------------


def spgemm(A: SparseMatrix, B: SparseMatrix) -> SparseMatrix:
    """Sparse times sparse, C = A B.

    C has an entry (i, n) for every pair of entries (i, k) of A and (k, n) of B, once, even where its terms cancel;
    equal coordinates that A or B kept count each. Memory beyond that of C is bounded: at most 2^25 products of two
    entries (2^20 on a CPU) are held at a time, or those of a single entry of A.

    Args:
        A: [M, K], B: [K, N]; weighted, in one dtype, or unweighted. In any formats; CSR is built from them.

    Returns:
        C [M, N]. Its values are in the dtype of those of A or B and summed in fp32, in fp64 for fp64. If both are
        unweighted they are the numbers of pairs, in fp32.

    Gradients to the values of A and of B, once: that of A is (dL/dC) B^T where A has entries. Results and gradients are
    the same bit for bit in every run and with any number of threads. How many entries C has depends on the data, so
    `torch.compile` breaks its graph here.

    Raises:
        TypeError: A or B is not a SparseMatrix, or their values differ in dtype.
        ValueError: shapes or devices do not fit, or M N is 2^63 or more.
    """
    check_matrix("A", A)
    check_matrix("B", B)
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"B: need {A.shape[1]} rows, as many as A has columns, got shape {B.shape}")
    if A.device != B.device:
        raise ValueError(f"B: need the device of A, {A.device}, got {B.device}")
    if A.dtype is not None and B.dtype is not None and A.dtype != B.dtype:
        raise TypeError(f"B: need values of the dtype of A, {A.dtype}, got {B.dtype}; cast one with A.to(dtype)")
    if A.shape[0] * B.shape[1] >= 2**63:
        raise ValueError(f"A, B: the product has shape {(A.shape[0], B.shape[1])}, which are 2^63 places or more")
    return _spgemm(A, B, LIMIT[A.device.type])


@torch.compiler.disable
def _spgemm(A: SparseMatrix, B: SparseMatrix, limit: int) -> SparseMatrix:
    key, value = _Spgemm.apply(A.values, B.values, A, B, limit)
    cols = max(B.shape[1], 1)
    row = torch.div(key, cols, rounding_mode="floor")
    # Sorted and without repeats: there is nothing to merge.
    return SparseMatrix.from_coo(row, key - row * cols, value, (A.shape[0], B.shape[1]), duplicates="keep")
