"""What the sparse kernels are compared with: the definitions, on the entries as they are given, in fp64 as a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from braidwork.kernels.sparse import SparseMatrix
from braidwork.kernels.testing import Coo, assert_close


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


def compare(
    names: Sequence[str],
    leaves: list[torch.Tensor],
    run: Callable[..., torch.Tensor],
    define: Callable[..., torch.Tensor],
    bounds: Callable[[torch.Tensor, torch.Tensor], dict[str, float]],
) -> None:
    """run(*leaves) and its gradients against define(...) in fp64 on the same, already rounded, operands on the CPU.

    The tolerance is what the definition loses in fp32, rounded at the end to the dtype of the result, or where it is
    given `bounds` of the result and the tensor that is compared.
    """
    y = run(*leaves)
    gy = torch.randn(y.shape, dtype=torch.float64).to(y.dtype)
    got = [y, *torch.autograd.grad(y, leaves, gy.to(y.device))]

    def defined_in(wide: torch.dtype) -> list[torch.Tensor]:
        operands = [t.detach().cpu().to(wide).requires_grad_() for t in leaves]
        result = define(*operands)
        return [result, *torch.autograd.grad(result, operands, gy.to(wide))]

    exact = defined_in(torch.float64)
    rough = exact if y.dtype == torch.float64 else defined_in(torch.float32)
    for name, like, a, a_ref, a_plain in zip(("y", *names), (y, *leaves), got, exact, rough, strict=True):
        assert a.dtype == like.dtype and a.shape == like.shape
        given = {"rms": 1e-14, "max": 1e-12} if y.dtype == torch.float64 else bounds(y, a)
        assert_close(name, a, a_ref, baseline=a_plain.to(a.dtype), factor=4.0, **given)


def rounded(dtype: torch.dtype) -> dict[str, float]:
    """Bounds of what is formed from numbers rounded to `dtype`."""
    eps = torch.finfo(dtype).eps
    return {"rms": 2 * eps, "max": 16 * eps}
