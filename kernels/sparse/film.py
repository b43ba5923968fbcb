"""Feature-wise modulated messages: what a GNN-FiLM layer does along edges, without a tensor of messages.

A message gamma[i] * x[k] + beta[i] depends on both ends of its edge, and its positive part is taken before the sum, so
the sum is no product with the matrix. The forward pass keeps, where gradients are wanted, how many messages were
positive and the sum of their x: by these the gradients of gamma and beta need no further pass. That of x is summed over
the rows of the transpose, where the sign of each message is found again. Every sum has one owner and a fixed order.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl

from .. import alloc
from ..launch import launch
from ..target import AotCase, backend_of
from .config import _ahead, ceil_div
from .fold import ask, maximum
from .formats import Storage
from .heads import check_dense, check_matrix, implement
from .matrix import SparseMatrix

REDUCTIONS = ("mean", "sum")

# --------------------------------------------------------------------------------------------------------------------
# Kernels


@triton.jit
def film_forward_kernel(
    rowptr_ptr, col_ptr, x_ptr, gamma_ptr, beta_ptr, scale_ptr, y_ptr, sums_ptr,
    rows, nnz, F, stride_x, stride_film, share,
    BATCH: tl.constexpr, BLOCK_F: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """y[i, f] = scale[i] times the sum over entries (i, k) of max(gamma[i, f] x[k, f] + beta[i, f], 0).

    rowptr: [rows + 1]; col: [nnz]; x: [K, F], rows stride_x apart; gamma, beta: [rows, F], rows stride_film apart;
    scale: [rows] or None; y: [rows, F]; sums: [rows, 2, F] or None, over the entries whose message is positive of x and
    of 1. Program (p, q) owns rows p * share to (p + 1) * share - 1 in the q-th tile of BLOCK_F columns.
    """
    acc_dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    offs_f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    m_f = offs_f < F
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, rows)
    begin = tl.load(rowptr_ptr + first)
    for row in range(first, last):
        end = tl.load(rowptr_ptr + row + 1)
        gamma = tl.load(gamma_ptr + row * stride_film + offs_f, mask=m_f, other=0.0).to(acc_dtype)[None, :]
        beta = tl.load(beta_ptr + row * stride_film + offs_f, mask=m_f, other=0.0).to(acc_dtype)[None, :]
        acc = tl.zeros((BATCH, BLOCK_F), acc_dtype)
        of_x = tl.zeros((BATCH, BLOCK_F), acc_dtype)
        of_one = tl.zeros((BATCH, BLOCK_F), acc_dtype)
        for position in range(begin, end, BATCH):
            offs_e = position + tl.arange(0, BATCH)
            if AHEAD:
                ask(x_ptr, col_ptr, position + AHEAD, nnz - 1, offs_f, m_f, stride_x)
            # Without a batch every position is inside.
            m_e = offs_e < end
            k = tl.load(col_ptr + offs_e) if BATCH == 1 else tl.load(col_ptr + offs_e, mask=m_e, other=0)
            mask = m_f[None, :] if BATCH == 1 else m_e[:, None] & m_f[None, :]
            x = tl.load(x_ptr + k.to(tl.int64)[:, None] * stride_x + offs_f[None, :], mask=mask, other=0.0)
            x = x.to(acc_dtype)
            message = gamma * x + beta
            if BATCH > 1:
                message = tl.where(m_e[:, None], message, 0.0)
            acc += maximum(message, tl.zeros_like(message))
            if sums_ptr is not None:
                of_x += tl.where(message > 0, x, 0.0)
                of_one += tl.where(message > 0, 1.0, 0.0)
        y = tl.sum(acc, axis=0)
        if scale_ptr is not None:
            y *= tl.load(scale_ptr + row).to(acc_dtype)
        tl.store(y_ptr + row * F + offs_f, y.to(y_ptr.dtype.element_ty), mask=m_f)
        if sums_ptr is not None:
            tl.store(sums_ptr + row * 2 * F + offs_f, tl.sum(of_x, axis=0), mask=m_f)
            tl.store(sums_ptr + row * 2 * F + F + offs_f, tl.sum(of_one, axis=0), mask=m_f)
        begin = end


@triton.jit
def film_source_kernel(
    rowptr_ptr, col_ptr, x_ptr, film_ptr, gx_ptr, rows, F, stride_x, share,
    BATCH: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """gx[k, f] = sum over the entries (k, i) of the transpose of gate[i, f] where gamma[i, f] x[k, f] + beta[i, f] > 0.

    film: [targets, 3, F], gamma, beta and gate side by side, so that an entry reads one run of memory. The rest is as
    in `film_forward_kernel`, for the transpose.
    """
    acc_dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    offs_f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    m_f = offs_f < F
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, rows)
    begin = tl.load(rowptr_ptr + first)
    for row in range(first, last):
        end = tl.load(rowptr_ptr + row + 1)
        x = tl.load(x_ptr + row * stride_x + offs_f, mask=m_f, other=0.0).to(acc_dtype)[None, :]
        acc = tl.zeros((BATCH, BLOCK_F), acc_dtype)
        for position in range(begin, end, BATCH):
            offs_e = position + tl.arange(0, BATCH)
            m_e = offs_e < end
            i = tl.load(col_ptr + offs_e) if BATCH == 1 else tl.load(col_ptr + offs_e, mask=m_e, other=0)
            mask = m_f[None, :] if BATCH == 1 else m_e[:, None] & m_f[None, :]
            ptrs = film_ptr + i.to(tl.int64)[:, None] * (3 * F) + offs_f[None, :]
            gamma = tl.load(ptrs, mask=mask, other=0.0).to(acc_dtype)
            beta = tl.load(ptrs + F, mask=mask, other=0.0).to(acc_dtype)
            gate = tl.load(ptrs + 2 * F, mask=mask, other=0.0).to(acc_dtype)
            acc += tl.where(gamma * x + beta > 0, gate, 0.0)
        tl.store(gx_ptr + row * F + offs_f, tl.sum(acc, axis=0).to(gx_ptr.dtype.element_ty), mask=m_f)
        begin = end


# --------------------------------------------------------------------------------------------------------------------
# Launchers


@dataclass(frozen=True)
class FilmConfig:
    """How a pass is run: rows a program owns, entries taken at a time, columns of a tile, compiler options."""

    share: int
    batch: int
    block_f: int
    options: dict[str, int] = field(default_factory=dict)


@functools.lru_cache(maxsize=4096)
def pick_film(rows: int, nnz: int, F: int, dtype: torch.dtype, backend: str) -> FilmConfig:
    """The configuration of a pass over `rows` >= 1 rows with nnz entries and F >= 1 columns.

    Nothing here depends on the number of threads, so every sum has the same order in every run.
    """
    mean = nnz / rows
    wide = 2 if dtype == torch.float64 else 1
    if backend == "cpu":
        # Three accumulators, gamma, beta and a term in the vector registers.
        block_f = min(triton.next_power_of_2(F), 64 // wide)
        return FilmConfig(max(int((1 << 14) / block_f / (mean + 1)), 1), 1, block_f)
    block_f = min(triton.next_power_of_2(F), 64 // wide)
    # At least 16 bytes a thread, of which a wavefront of AMD's has 64.
    elements = max(256 // wide, (64 if backend == "hip" else 32) * 16 // dtype.itemsize)
    return FilmConfig(4 if mean < 4 else 1, max(min(elements // block_f, 8), 1), block_f, {"num_warps": 1})


def _rows_apart(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy of it, with each row's numbers side by side."""
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def _acc_dtype(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _forward(x, gamma, beta, scale, with_sums, storage, meta, storage_t):
    """y [rows, F], and what the backward pass needs: [rows, 2, F], or nothing."""
    rows, F = gamma.shape
    y = alloc.empty((rows, F), x.dtype, x.device)
    sums = alloc.empty((rows if with_sums else 0, 2, F), _acc_dtype(x), x.device)
    if not y.numel():
        return y, sums
    rowptr, col = storage[:2]
    x, gamma, beta = map(_rows_apart, (x, gamma, beta))
    if gamma.stride(0) != beta.stride(0):
        gamma, beta = gamma.contiguous(), beta.contiguous()
    backend = backend_of(x.device)
    config = pick_film(rows, col.shape[0], F, x.dtype, backend)
    launch(
        film_forward_kernel, (ceil_div(rows, config.share), ceil_div(F, config.block_f)),
        rowptr, col, x, gamma, beta, scale, y, sums if with_sums else None,
        rows, col.shape[0], F, x.stride(0), gamma.stride(0), config.share,
        BATCH=config.batch, BLOCK_F=config.block_f, AHEAD=_ahead(meta[1], F, x.dtype, backend, "csr"), **config.options,
    )  # fmt: skip
    return y, sums


def _source(x, film, storage_t):
    """The gradient of x [cols, F]."""
    cols, F = x.shape
    gx = alloc.empty((cols, F), x.dtype, x.device)
    if not gx.numel():
        return gx
    rowptr, col = storage_t[:2]
    x = _rows_apart(x)
    config = pick_film(cols, col.shape[0], F, x.dtype, backend_of(x.device))
    launch(
        film_source_kernel, (ceil_div(cols, config.share), ceil_div(F, config.block_f)),
        rowptr, col, x, film, gx, cols, F, x.stride(0), config.share,
        BATCH=config.batch, BLOCK_F=config.block_f, **config.options,
    )  # fmt: skip
    return gx


# --------------------------------------------------------------------------------------------------------------------
# The registered operators. They trust their callers: `film_aggregate` below checks.

_library = torch.library.Library("braidwork", "FRAGMENT")
_library.define(
    "film_aggregate(Tensor x, Tensor gamma, Tensor beta, Tensor? scale, bool with_sums, Tensor[] storage, int[] meta,"
    " Tensor[] storage_t) -> (Tensor, Tensor)"
)
_library.define("film_aggregate_source(Tensor x, Tensor film, Tensor[] storage_t) -> Tensor")


def _forward_fake(x, gamma, beta, scale, with_sums, storage, meta, storage_t):
    rows, F = gamma.shape
    return x.new_empty((rows, F)), x.new_empty((rows if with_sums else 0, 2, F), dtype=_acc_dtype(x))


def _source_fake(x, film, storage_t):
    return x.new_empty(x.shape)


class _Film(torch.autograd.Function):
    """`braidwork::film_aggregate` with its gradients, entered as its implementation for autograd: see `spmm.py`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x, gamma, beta, scale, *_, storage_t = inputs
        with torch._C._AutoDispatchBelowAutograd():
            y, sums = torch.ops.braidwork.film_aggregate.default(*inputs)
        ctx.mark_non_differentiable(sums)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, gamma, beta, scale, sums, *storage_t)
        return y, sums

    @staticmethod
    def backward(ctx: Any, gy: torch.Tensor | None, _: Any) -> tuple[torch.Tensor | None, ...]:
        if gy is None:
            return (None,) * 8
        x, gamma, beta, scale, sums, *storage_t = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if scale is not None:
            gy = (gy * scale.unsqueeze(1)).to(gy.dtype)
        gx = ggamma = gbeta = None
        if needs[0]:
            film = torch.stack((gamma, beta, gamma * gy), 1)
            gx = torch.ops.braidwork.film_aggregate_source.default(x, film, storage_t)
        if needs[1]:
            ggamma = (gy * sums[:, 0]).to(gamma.dtype)
        if needs[2]:
            gbeta = (gy * sums[:, 1]).to(beta.dtype)
        return gx, ggamma, gbeta, *(None,) * 5


class _Source(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.braidwork.film_aggregate_source.default(*inputs)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:
        raise NotImplementedError("film_aggregate can be differentiated once, not twice")


implement(_library, "film_aggregate", _forward, _forward_fake, _Film)
implement(_library, "film_aggregate_source", _source, _source_fake, _Source)


# --------------------------------------------------------------------------------------------------------------------
# The door


def film_aggregate(
    A: SparseMatrix, x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, reduce: str = "mean"
) -> torch.Tensor:
    """Modulated messages, their positive parts aggregated: what a GNN-FiLM layer does along edges.

    y[i] = mean (or sum) over entries (i, k) of max(gamma[i] * x[k] + beta[i], 0), elementwise, where the target of an
    edge says by gamma and beta how its messages are scaled and moved (M. Brockschmidt, "GNN-FiLM: Graph neural networks
    with feature-wise linear modulation", ICML 2020, eq. 4). Memory is that of the operands and, where gradients are
    wanted, of two more such results: nothing of size nnz x F.

    Args:
        A: [M, K] without values, row i a target and column k a source (`SparseMatrix.from_edge_index`); entries kept
            at equal coordinates count each. Used in CSR, whatever `A.format`.
        x: [K, F]; fp64, fp32, bf16 or fp16; copied only where the last dimension has a stride other than 1.
        gamma, beta: [M, F] in the dtype of x; they may be the two halves of one tensor.
        reduce: "mean", over the entries of the row, or "sum".

    Returns:
        [M, F] in the dtype of x; 0 for a row without entries. Sums are kept in fp32, in fp64 if x is. NaN propagates.

    Gradients: to x, gamma and beta, once (a second derivative raises NotImplementedError); that of max at 0 is 0.
    Results and gradients are the same bit for bit in every run and with any number of threads. Under `torch.compile`
    the operator is one node; call it once, or build `A.to("csr")` and `A.T.to("csr")`, before compilation.

    Raises:
        TypeError: A is not a SparseMatrix, an operand not a tensor, or a dtype is not as above.
        ValueError: A has values; shapes, devices or the reduction do not fit.
    """
    check_matrix("A", A)
    if A.values is not None:
        raise ValueError("A: need a matrix without values, got weighted entries (drop them: A.with_values(None))")
    rows, cols = A.shape
    check_dense("x", x, A)
    if x.dim() != 2 or x.shape[0] != cols:
        raise ValueError(f"x: need shape [{cols}, F] for A with shape {(rows, cols)}, got {tuple(x.shape)}")
    for name, tensor in (("gamma", gamma), ("beta", beta)):
        check_dense(name, tensor, A)
        if tuple(tensor.shape) != (rows, x.shape[1]):
            raise ValueError(f"{name}: need shape {[rows, x.shape[1]]}, got {tuple(tensor.shape)}")
        if tensor.dtype != x.dtype:
            raise TypeError(f"{name}: need the dtype of x, {x.dtype}, got {tensor.dtype}")
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce: need one of {', '.join(REDUCTIONS)}, got {reduce!r}")
    scale = A.inverse_counts(_acc_dtype(x)) if reduce == "mean" else None
    storage: Storage = A.to("csr").storage()
    grad = torch.is_grad_enabled()
    storage_t = A.T.to("csr").storage().tensors if grad and x.requires_grad else []
    with_sums = grad and (gamma.requires_grad or beta.requires_grad)
    y, _ = torch.ops.braidwork.film_aggregate.default(
        x, gamma, beta, scale, with_sums, storage.tensors, storage.meta, storage_t
    )
    return y


def _aot_case(kernel: Any, dtype: str, F: int) -> AotCase:
    """A kernel on int32 indices, as a launch has it. Indices and scales are counted once a thread."""
    types = dict.fromkeys(("rowptr_ptr", "col_ptr"), "*i32")
    types |= dict.fromkeys(("x_ptr", "gamma_ptr", "beta_ptr", "y_ptr", "film_ptr", "gx_ptr"), f"*{dtype}")
    types |= {"scale_ptr": "*fp32", "sums_ptr": "*fp32"}
    types |= dict.fromkeys(("rows", "nnz", "F", "stride_x", "stride_film", "share"), "i32")
    names = kernel.arg_names

    def meta(backend: str) -> dict[str, Any]:
        config = pick_film(1 << 16, 1 << 20, F, {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype], backend)
        given = {"BATCH": config.batch, "BLOCK_F": config.block_f, "AHEAD": 0}
        return {n: v for n, v in given.items() if n in names} | config.options

    name = f"{kernel.fn.__name__.removesuffix('_kernel')}-{dtype}-{F}"
    signature = {n: types[n] for n in names if n in types}
    strides = tuple(n for n in ("F", "stride_x", "stride_film") if n in names)
    return AotCase(name, kernel, signature, meta, divisible=strides, wide_share=0.4)


AOT_CASES = [
    _aot_case(kernel, dtype, 64) for kernel in (film_forward_kernel, film_source_kernel) for dtype in ("fp32", "bf16")
]
