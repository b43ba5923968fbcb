"""Softmax over the entries of every row of a pattern, for any number of heads: forward and backward, one kernel each.

A row is read as often as it takes and nothing but the result is written, so a hub costs no memory of its own. Its
entries are folded lane by lane and the lanes brought together at the end, always in the same order.
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
from .config import ceil_div
from .heads import check_dense, check_matrix, csr_of, implement
from .matrix import SparseMatrix

# --------------------------------------------------------------------------------------------------------------------
# Kernels. A tile is [BATCH entries, BLOCK_H heads], or with ACROSS its transpose: whichever has the longer side last,
# which is the one that vectors lie along on a CPU.


@triton.jit
def _indices(pid_h, BATCH: tl.constexpr, BLOCK_H: tl.constexpr, ACROSS: tl.constexpr):
    """Positions and heads of a tile, each as a tile with one side of length 1."""
    e = tl.arange(0, BATCH)
    h = pid_h * BLOCK_H + tl.arange(0, BLOCK_H)
    if ACROSS:
        return e[None, :], h[:, None]
    else:
        return e[:, None], h[None, :]


@triton.jit
def _place(position, end, offs_b, offs_h, perm_ptr, H):
    """Where the tile that begins at `position` lies in an array [nnz, H], and which of it is before `end`."""
    offs_e = position + offs_b
    m = (offs_e < end) & (offs_h < H)
    entry = offs_e
    if perm_ptr is not None:
        entry = tl.load(perm_ptr + offs_e, mask=offs_e < end, other=0)
    return entry.to(tl.int64) * H + offs_h, m


@triton.jit
def edge_softmax_kernel(
    rowptr_ptr, perm_ptr, x_ptr, p_ptr, rows, H, share,
    BATCH: tl.constexpr, BLOCK_H: tl.constexpr, ACROSS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """p[e, h] = exp(x[e, h] - m[i, h]) / sum over the entries e' of row i of exp(x[e', h] - m[i, h]), m the maximum.

    rowptr: [rows + 1]; perm: [nnz]; x, p: [nnz, H]. Program (q, r) owns rows q * share to (q + 1) * share - 1 in the
    r-th tile of BLOCK_H heads. A row that fits one tile is read once. Of a longer one the exponentials are kept in p
    before they are divided (KEEP, where p is as wide as they are and exponentials are dear), or computed twice.
    """
    acc_dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    axis: tl.constexpr = 1 if ACROSS else 0
    shape: tl.constexpr = (BLOCK_H, BATCH) if ACROSS else (BATCH, BLOCK_H)
    none = -float("inf")
    offs_b, offs_h = _indices(tl.program_id(1), BATCH, BLOCK_H, ACROSS)
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, rows)
    begin = tl.load(rowptr_ptr + first)
    for row in range(first, last):
        end = tl.load(rowptr_ptr + row + 1)
        if end - begin <= BATCH:
            offs, m = _place(begin, end, offs_b, offs_h, perm_ptr, H)
            x = tl.load(x_ptr + offs, mask=m, other=none).to(acc_dtype)
            # A lane past the end must count for nothing, not even in a row whose maximum is -inf.
            w = tl.where(m, tl.exp(x - tl.max(x, axis=axis, keep_dims=True)), 0.0)
            p = w / tl.sum(w, axis=axis, keep_dims=True)
            tl.store(p_ptr + offs, p.to(p_ptr.dtype.element_ty), mask=m)
        else:
            high = tl.full(shape, none, acc_dtype)
            for position in range(begin, end, BATCH):
                offs, m = _place(position, end, offs_b, offs_h, perm_ptr, H)
                high = tl.maximum(high, tl.load(x_ptr + offs, mask=m, other=none).to(acc_dtype))
            top = tl.max(high, axis=axis, keep_dims=True)
            total = tl.zeros(shape, acc_dtype)
            for position in range(begin, end, BATCH):
                offs, m = _place(position, end, offs_b, offs_h, perm_ptr, H)
                x = tl.load(x_ptr + offs, mask=m, other=none).to(acc_dtype)
                w = tl.where(m, tl.exp(x - top), 0.0)
                total += w
                if KEEP:
                    tl.store(p_ptr + offs, w, mask=m)
            whole = tl.sum(total, axis=axis, keep_dims=True)
            for position in range(begin, end, BATCH):
                offs, m = _place(position, end, offs_b, offs_h, perm_ptr, H)
                if KEEP:
                    w = tl.load(p_ptr + offs, mask=m, other=0.0)
                else:
                    w = tl.exp(tl.load(x_ptr + offs, mask=m, other=none).to(acc_dtype) - top)
                tl.store(p_ptr + offs, (w / whole).to(p_ptr.dtype.element_ty), mask=m)
        begin = end


@triton.jit
def edge_softmax_backward_kernel(
    rowptr_ptr, perm_ptr, p_ptr, g_ptr, out_ptr, rows, H, share,
    BATCH: tl.constexpr, BLOCK_H: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """out[e, h] = p[e, h] (g[e, h] - sum over the entries e' of row i of p[e', h] g[e', h]).

    rowptr: [rows + 1]; perm: [nnz]; p, g, out: [nnz, H]. Rows and heads are owned as in `edge_softmax_kernel`.
    """
    acc_dtype: tl.constexpr = tl.float64 if p_ptr.dtype.element_ty == tl.float64 else tl.float32
    axis: tl.constexpr = 1 if ACROSS else 0
    shape: tl.constexpr = (BLOCK_H, BATCH) if ACROSS else (BATCH, BLOCK_H)
    offs_b, offs_h = _indices(tl.program_id(1), BATCH, BLOCK_H, ACROSS)
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, rows)
    begin = tl.load(rowptr_ptr + first)
    for row in range(first, last):
        end = tl.load(rowptr_ptr + row + 1)
        if end - begin <= BATCH:
            offs, m = _place(begin, end, offs_b, offs_h, perm_ptr, H)
            p = tl.load(p_ptr + offs, mask=m, other=0.0).to(acc_dtype)
            g = tl.load(g_ptr + offs, mask=m, other=0.0).to(acc_dtype)
            out = p * (g - tl.sum(p * g, axis=axis, keep_dims=True))
            tl.store(out_ptr + offs, out.to(out_ptr.dtype.element_ty), mask=m)
        else:
            total = tl.zeros(shape, acc_dtype)
            for position in range(begin, end, BATCH):
                offs, m = _place(position, end, offs_b, offs_h, perm_ptr, H)
                p = tl.load(p_ptr + offs, mask=m, other=0.0).to(acc_dtype)
                total += p * tl.load(g_ptr + offs, mask=m, other=0.0).to(acc_dtype)
            whole = tl.sum(total, axis=axis, keep_dims=True)
            for position in range(begin, end, BATCH):
                offs, m = _place(position, end, offs_b, offs_h, perm_ptr, H)
                p = tl.load(p_ptr + offs, mask=m, other=0.0).to(acc_dtype)
                g = tl.load(g_ptr + offs, mask=m, other=0.0).to(acc_dtype)
                tl.store(out_ptr + offs, (p * (g - whole)).to(out_ptr.dtype.element_ty), mask=m)
        begin = end


# --------------------------------------------------------------------------------------------------------------------
# Launchers


@dataclass(frozen=True)
class SoftmaxConfig:
    """How a softmax over rows is run: rows a program owns, entries and heads of a tile, and the tile's orientation.

    keep: exponentials may be kept in an output that is as wide as they are. On a GPU they are cheaper than that.
    """

    share: int
    batch: int
    block_h: int
    across: bool
    keep: bool
    options: dict[str, int] = field(default_factory=dict)


@functools.lru_cache(maxsize=4096)
def pick_softmax(rows: int, nnz: int, H: int, backend: str) -> SoftmaxConfig:
    """The configuration for nnz >= 1 entries in `rows` rows and H >= 1 heads."""
    mean = nnz / rows
    around = triton.next_power_of_2(max(int(mean), 1))
    if backend == "cpu":
        block_h = min(triton.next_power_of_2(H), 16)
        across = block_h < 4
        batch = min(max(around, 8), 32) if across else min(max(around, 2), 8)
        return SoftmaxConfig(max(int((1 << 12) / (mean + 4)), 1), batch, block_h, across, True)
    block_h = min(triton.next_power_of_2(H), 32)
    batch = min(max(around, 32 // block_h, 1), 256 // block_h)
    return SoftmaxConfig(4 if mean < 16 else 1, batch, block_h, False, False, {"num_warps": 1})


def _launch(kernel: Any, tensors: tuple[torch.Tensor, ...], storage: list[torch.Tensor], keep: bool) -> torch.Tensor:
    """Run a kernel over [nnz, H] tensors, into one more of the kind of the first."""
    nnz, H = tensors[0].shape
    out = alloc.empty((nnz, H), tensors[0].dtype, tensors[0].device)
    if not out.numel():
        return out
    rowptr, _, *order = storage
    rows = rowptr.shape[0] - 1
    config = pick_softmax(rows, nnz, H, backend_of(out.device))
    meta: dict[str, Any] = {"BATCH": config.batch, "BLOCK_H": config.block_h, "ACROSS": config.across}
    if keep:
        meta["KEEP"] = config.keep and out.dtype in (torch.float32, torch.float64)
    launch(
        kernel, (ceil_div(rows, config.share), ceil_div(H, config.block_h)), rowptr, order[0] if order else None,
        *(t.contiguous() for t in tensors), out, rows, H, config.share, **meta, **config.options,
    )  # fmt: skip
    return out


# --------------------------------------------------------------------------------------------------------------------
# Operators

_library = torch.library.Library("braidwork", "FRAGMENT")
_library.define("edge_softmax(Tensor logits, Tensor[] storage) -> Tensor")
_library.define("edge_softmax_backward(Tensor p, Tensor g, Tensor[] storage) -> Tensor")


def _edge_softmax(logits, storage):
    return _launch(edge_softmax_kernel, (logits,), storage, True)


def _edge_softmax_backward(p, g, storage):
    return _launch(edge_softmax_backward_kernel, (p, g), storage, False)


def _like_first(first, *_):
    return first.new_empty(first.shape)


class _Softmax(torch.autograd.Function):
    """`braidwork::edge_softmax` with its gradient; see `_Spmm` in spmm.py for why it is entered directly."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            p = torch.ops.braidwork.edge_softmax.default(*inputs)
        ctx.save_for_backward(p, *inputs[1])
        return p

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        p, *storage = ctx.saved_tensors
        return torch.ops.braidwork.edge_softmax_backward(p, g, storage), None


class _Backward(torch.autograd.Function):
    """`braidwork::edge_softmax_backward`, which cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.braidwork.edge_softmax_backward.default(*inputs)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        raise NotImplementedError("edge_softmax: it can be differentiated once, not twice")


implement(_library, "edge_softmax", _edge_softmax, _like_first, _Softmax)
implement(_library, "edge_softmax_backward", _edge_softmax_backward, _like_first, _Backward)


# --------------------------------------------------------------------------------------------------------------------
# The door


def edge_softmax(A: SparseMatrix, logits: torch.Tensor) -> torch.Tensor:
    """Softmax over every row of A: p[e, h] = exp(logits[e, h]) / sum over e' in the row of e of exp(logits[e', h]).

    The normalisation of attention over neighbours (P. Velickovic et al., "Graph attention networks", ICLR 2018, eq. 3).
    The maximum of the row is subtracted first, so large logits do not overflow; it is computed in fp32, in fp64 for
    fp64.

    Args:
        A: [M, K]; its pattern alone is used, not its values.
        logits: [nnz], or [nnz, H] for H heads, in the order of `A.row` and `A.col`; fp64, fp32, bf16 or fp16; copied
            only where it is not contiguous.

    Returns:
        p in the shape and dtype of logits. A row with one entry gives 1. As in `torch.softmax`, and unlike in PyTorch
        Geometric, nothing is added to the denominator: a row sums to 1 exactly up to rounding, -inf gives 0 beside a
        finite logit, and a row (and head) that holds only -inf, or +inf, or NaN, is NaN.

    Gradient to the logits, once (a second derivative raises NotImplementedError). Results and gradients are the same
    bit for bit in every run and with any number of threads. Under `torch.compile` the operator is one node; use A once
    before, or build `A.to("csr")`. `torch.autocast` does not change the dtype.

    Raises:
        TypeError: A is not a SparseMatrix, logits not a tensor, or its dtype is not as above.
        ValueError: shapes or devices do not fit.
    """
    check_matrix("A", A)
    check_dense("logits", logits, A)
    if logits.dim() not in (1, 2) or logits.shape[0] != A.nnz:
        raise ValueError(
            f"logits: need shape [{A.nnz}] or [{A.nnz}, H], one row for each entry, got {tuple(logits.shape)}"
        )
    if logits.dim() == 1:
        return torch.ops.braidwork.edge_softmax.default(logits.unsqueeze(1), csr_of(A)).squeeze(1)
    return torch.ops.braidwork.edge_softmax.default(logits, csr_of(A))


# --------------------------------------------------------------------------------------------------------------------


def _aot_case(kernel: Any, name: str, dtype: str, H: int, perm: bool = False) -> AotCase:
    names = ("x_ptr", "p_ptr") if kernel is edge_softmax_kernel else ("p_ptr", "g_ptr", "out_ptr")
    signature = {"rowptr_ptr": "*i32"} | ({"perm_ptr": "*i32"} if perm else {}) | dict.fromkeys(names, f"*{dtype}")
    signature |= dict.fromkeys(("rows", "H", "share"), "i32")

    def meta(backend: str) -> dict[str, Any]:
        config = pick_softmax(1 << 16, 1 << 20, H, backend)
        given = {"BATCH": config.batch, "BLOCK_H": config.block_h, "ACROSS": config.across} | config.options
        given |= {"KEEP": config.keep} if kernel is edge_softmax_kernel else {}
        return given if perm else given | {"perm_ptr": None}

    # A row begins anywhere, so nothing is aligned.
    return AotCase(name, kernel, signature, meta, wide_loads=False)


AOT_CASES = [
    _aot_case(edge_softmax_kernel, "edge_softmax-fp32-8", "fp32", 8),
    _aot_case(edge_softmax_kernel, "edge_softmax-bf16-1-perm", "bf16", 1, perm=True),
    _aot_case(edge_softmax_kernel, "edge_softmax-fp64-3", "fp64", 3),
    _aot_case(edge_softmax_backward_kernel, "edge_softmax_backward-fp32-8", "fp32", 8),
    _aot_case(edge_softmax_backward_kernel, "edge_softmax_backward-bf16-1-perm", "bf16", 1, perm=True),
]
