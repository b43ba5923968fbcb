"""What the sparse kernels are compared with: the definitions, on the entries as they are given, in fp64 as a rule."""

from __future__ import annotations

import torch

from braidwork.kernels.sparse import SparseMatrix
from braidwork.kernels.testing import Coo


def matrix(
    coo: Coo, dtype: torch.dtype = torch.float32, weighted: bool = True, duplicates: str = "sum", device="cpu"
) -> SparseMatrix:
    """A graph of the zoo as a SparseMatrix, its values rounded to `dtype`."""
    row, col = (torch.from_numpy(index).to(device) for index in (coo.row, coo.col))
    value = torch.from_numpy(coo.value).to(device, dtype) if weighted else None
    return SparseMatrix.from_coo(row, col, value, coo.shape, duplicates)


def spmm(
    A: SparseMatrix,
    value: torch.Tensor | None,
    x: torch.Tensor,
    reduce: str,
    row_scale: torch.Tensor | None = None,
    col_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """y[i] = reduce over entries (i, k) of row_scale[i] value col_scale[k] x[k], row by row; differentiable.

    Everything but A, which gives the coordinates alone, is of one dtype and on the CPU. Ties go to the first entry of
    the row.
    """
    row, col = A.row.cpu().long(), A.col.cpu().long()
    weight = torch.ones(A.nnz, dtype=x.dtype) if value is None else value
    if row_scale is not None:
        weight = weight * row_scale[row]
    if col_scale is not None:
        weight = weight * col_scale[col]
    terms = weight[:, None] * x[col]
    rows = A.shape[0]
    if reduce in ("sum", "mean"):
        y = torch.zeros(rows, x.shape[1], dtype=x.dtype).index_add(0, row, terms)
        counts = torch.bincount(row, minlength=rows).clamp(min=1)
        return y / counts[:, None] if reduce == "mean" else y
    counts = torch.bincount(row, minlength=rows).tolist()
    parts = []
    for mine in terms[torch.argsort(row, stable=True)].split(counts):
        if not mine.shape[0]:
            parts.append(mine.sum(0))  # zeros that autograd knows
            continue
        best = mine.argmax(0) if reduce == "max" else mine.argmin(0)
        parts.append(mine.gather(0, best[None])[0])
    return torch.stack(parts) if parts else terms
