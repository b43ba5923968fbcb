"""Sampled dense times dense: a dot product, or a sum, of two rows for every entry of a pattern, many heads at once.

The kernels own entries, in any order, so one of them serves a pattern and its transpose. Gradients are products with
the pattern (`braidwork::spmm_heads`) or sums over its rows (`braidwork::entry_sum`), see heads.py.
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
from .heads import PATTERN, check_dense, check_matrix, csr_of, implement, in_autocast
from .matrix import SparseMatrix

OPS = ("dot", "add")

# --------------------------------------------------------------------------------------------------------------------
# Kernels


@triton.jit
def sddmm_dot_kernel(
    row_ptr, col_ptr, x_ptr, y_ptr, out_ptr, nnz, stride_x, stride_y, share,
    H: tl.constexpr, D: tl.constexpr, SHARED_X: tl.constexpr, SHARED_Y: tl.constexpr,
    BATCH: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """out[e, h] = sum over d of x[i, h, d] y[k, h, d], for entry e = (i, k).

    row, col: [nnz]; x: [M, H, D] (or [M, 1, D] with SHARED_X) and y: [K, H, D] (or [K, 1, D] with SHARED_Y), rows
    stride_x and stride_y apart; out: [nnz, H]. H and D are constants, so that the compiler sees where rows are aligned
    and which lanes exist. Program (p, q) owns `share` entries in the q-th tile of BLOCK_H heads, and takes BATCH at a
    time, the last of them moved back to end at nnz (nnz >= BATCH), so that none is past the end. With PACKED (BLOCK_D
    == D, nothing shared) the heads of a tile are multiplied as the one run of memory that they are, and told apart for
    the sum.
    """
    acc_dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    m_h = offs_h < H
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, nnz)
    for position in range(first, last, BATCH):
        offs_e = tl.minimum(position, nnz - BATCH) + tl.arange(0, BATCH)
        i = tl.load(row_ptr + offs_e).to(tl.int64)
        k = tl.load(col_ptr + offs_e).to(tl.int64)
        if PACKED:
            offs_c = tl.program_id(1) * (BLOCK_H * D) + tl.arange(0, BLOCK_H * D)
            x_ptrs = x_ptr + i[:, None] * stride_x + offs_c[None, :]
            y_ptrs = y_ptr + k[:, None] * stride_y + offs_c[None, :]
            if H % BLOCK_H == 0:
                run = tl.load(x_ptrs).to(acc_dtype) * tl.load(y_ptrs).to(acc_dtype)
            else:
                m_c = (offs_c < H * D)[None, :]
                run = tl.load(x_ptrs, mask=m_c, other=0.0).to(acc_dtype)
                run *= tl.load(y_ptrs, mask=m_c, other=0.0).to(acc_dtype)
            acc = tl.reshape(run, (BATCH, BLOCK_H, BLOCK_D))
        else:
            x_rows = x_ptr + i[:, None, None] * stride_x
            y_rows = y_ptr + k[:, None, None] * stride_y
            acc = tl.zeros((BATCH, BLOCK_H, BLOCK_D), acc_dtype)
            for first_d in tl.static_range(0, D, BLOCK_D):
                offs_d = first_d + tl.arange(0, BLOCK_D)
                m_d = (offs_d < D)[None, None, :]
                inside = (offs_h[:, None] * D + offs_d[None, :])[None, :, :]
                m = m_h[None, :, None] & m_d
                if H % BLOCK_H == 0 and D % BLOCK_D == 0:
                    a = tl.load(x_rows + offs_d[None, None, :]) if SHARED_X else tl.load(x_rows + inside)
                    b = tl.load(y_rows + offs_d[None, None, :]) if SHARED_Y else tl.load(y_rows + inside)
                else:
                    if SHARED_X:
                        a = tl.load(x_rows + offs_d[None, None, :], mask=m_d, other=0.0)
                    else:
                        a = tl.load(x_rows + inside, mask=m, other=0.0)
                    if SHARED_Y:
                        b = tl.load(y_rows + offs_d[None, None, :], mask=m_d, other=0.0)
                    else:
                        b = tl.load(y_rows + inside, mask=m, other=0.0)
                acc += a.to(acc_dtype) * b.to(acc_dtype)
        out = tl.sum(acc, axis=2).to(out_ptr.dtype.element_ty)
        out_ptrs = out_ptr + offs_e.to(tl.int64)[:, None] * H + offs_h[None, :]
        if H % BLOCK_H == 0:
            tl.store(out_ptrs, out)
        else:
            tl.store(out_ptrs, out, mask=m_h[None, :])


@triton.jit
def sddmm_add_kernel(
    row_ptr, col_ptr, x_ptr, y_ptr, out_ptr, nnz, stride_x, stride_y, share,
    H: tl.constexpr, SHARED_X: tl.constexpr, SHARED_Y: tl.constexpr, BATCH: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """out[e, h] = x[i, h] + y[k, h], for entry e = (i, k).

    row, col: [nnz]; x: [M, H] (or [M, 1] with SHARED_X) and y: [K, H] (or [K, 1] with SHARED_Y), rows stride_x and
    stride_y apart; out: [nnz, H]. Program (p, q) owns `share` entries in the q-th tile of BLOCK_H heads, BATCH at a
    time as in `sddmm_dot_kernel`.
    """
    acc_dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    m_h = (offs_h < H)[None, :]
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, nnz)
    for position in range(first, last, BATCH):
        offs_e = tl.minimum(position, nnz - BATCH) + tl.arange(0, BATCH)
        x_ptrs = x_ptr + tl.load(row_ptr + offs_e).to(tl.int64)[:, None] * stride_x
        y_ptrs = y_ptr + tl.load(col_ptr + offs_e).to(tl.int64)[:, None] * stride_y
        if not SHARED_X:
            x_ptrs += offs_h[None, :]
        if not SHARED_Y:
            y_ptrs += offs_h[None, :]
        if H % BLOCK_H == 0:
            a, b = tl.load(x_ptrs), tl.load(y_ptrs)
        else:
            a = tl.load(x_ptrs) if SHARED_X else tl.load(x_ptrs, mask=m_h, other=0.0)
            b = tl.load(y_ptrs) if SHARED_Y else tl.load(y_ptrs, mask=m_h, other=0.0)
        out = (a.to(acc_dtype) + b.to(acc_dtype)).to(out_ptr.dtype.element_ty)
        out_ptrs = out_ptr + offs_e.to(tl.int64)[:, None] * H + offs_h[None, :]
        if H % BLOCK_H == 0:
            tl.store(out_ptrs, out)
        else:
            tl.store(out_ptrs, out, mask=m_h)


# --------------------------------------------------------------------------------------------------------------------
# Launchers


@dataclass(frozen=True)
class SddmmConfig:
    """How a product for every entry is run: entries a program owns and takes at a time, heads and features of a tile.

    packed: a tile of heads may be read as one run, if it holds whole heads. On a GPU that would move registers about.
    """

    share: int
    batch: int
    block_h: int
    block_d: int
    packed: bool
    options: dict[str, int] = field(default_factory=dict)


@functools.lru_cache(maxsize=4096)
def pick_sddmm(nnz: int, H: int, D: int, dtype: torch.dtype, backend: str) -> SddmmConfig:
    """The configuration for nnz >= 1 entries, H >= 1 heads and D >= 1 features (1 for sums)."""
    if backend == "cpu":
        block_d = min(triton.next_power_of_2(D), 64)
        block_h = min(triton.next_power_of_2(H), max(64 // block_d, 1))
        batch = 8 if nnz >= 8 else 1
        share = ceil_div(max((1 << 16) // (H * D + 8), batch), batch) * batch
        return SddmmConfig(share, batch, block_h, block_d, block_d == D and block_h > 1)
    block_d = min(triton.next_power_of_2(D), 128)
    block_h = min(triton.next_power_of_2(H), 128 // block_d)
    # Four warps of which every thread brings 16 bytes at least once; warps are twice as wide on AMD.
    elements = 4096 // (torch.finfo(dtype).bits // 8) if backend == "hip" else 1024
    batch = min(max(elements // (block_h * block_d), 1), 128)
    while batch > nnz:
        batch //= 2
    return SddmmConfig(4 * batch, batch, block_h, block_d, False, {"num_warps": 4})


def dot(
    x: torch.Tensor, y: torch.Tensor, row: torch.Tensor, col: torch.Tensor, out_dtype: torch.dtype
) -> torch.Tensor:
    """Launch `sddmm_dot_kernel`: x [M, H or 1, D], y [K, H or 1, D] to [nnz, H]."""
    nnz, D = row.shape[0], x.shape[2]
    H = x.shape[1] if y.shape[1] == 1 else y.shape[1]
    if not nnz or not H or not D:
        return torch.zeros((nnz, H), dtype=out_dtype, device=x.device)
    out = alloc.empty((nnz, H), out_dtype, x.device)
    # Heads and features must lie side by side.
    x, y = (
        t.contiguous() if (t.stride(2) != 1 and D > 1) or (t.stride(1) != D and t.shape[1] > 1) else t for t in (x, y)
    )
    shared_x, shared_y = (t.shape[1] == 1 and H > 1 for t in (x, y))
    config = pick_sddmm(nnz, H, D, x.dtype, backend_of(x.device))
    launch(
        sddmm_dot_kernel, (ceil_div(nnz, config.share), ceil_div(H, config.block_h)), row, col, x, y, out,
        nnz, x.stride(0), y.stride(0), config.share, H=H, D=D, SHARED_X=shared_x, SHARED_Y=shared_y,
        BATCH=config.batch, BLOCK_H=config.block_h, BLOCK_D=config.block_d,
        PACKED=config.packed and not shared_x and not shared_y, **config.options,
    )  # fmt: skip
    return out


def add(x: torch.Tensor, y: torch.Tensor, row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
    """Launch `sddmm_add_kernel`: x [M, H or 1], y [K, H or 1] to [nnz, H]."""
    nnz = row.shape[0]
    H = x.shape[1] if y.shape[1] == 1 else y.shape[1]
    out = alloc.empty((nnz, H), x.dtype, x.device)
    if not out.numel():
        return out
    x, y = (t.contiguous() if t.stride(1) != 1 and t.shape[1] > 1 else t for t in (x, y))
    config = pick_sddmm(nnz, H, 1, x.dtype, backend_of(x.device))
    launch(
        sddmm_add_kernel, (ceil_div(nnz, config.share), ceil_div(H, config.block_h)), row, col, x, y, out,
        nnz, x.stride(0), y.stride(0), config.share, H=H,
        SHARED_X=x.shape[1] == 1 and H > 1, SHARED_Y=y.shape[1] == 1 and H > 1,
        BATCH=config.batch, BLOCK_H=config.block_h, **config.options,
    )  # fmt: skip
    return out


# --------------------------------------------------------------------------------------------------------------------
# Operators

_library = torch.library.Library("braidwork", "FRAGMENT")
_library.define(f"sddmm_dot(Tensor x, Tensor y, bool wide, {PATTERN}) -> Tensor")
_library.define(f"sddmm_add(Tensor x, Tensor y, {PATTERN}) -> Tensor")


def _sddmm_dot(x, y, wide, row, col, storage, storage_t):
    return dot(x, y, row, col, torch.promote_types(x.dtype, torch.float32) if wide else x.dtype)


def _sddmm_dot_fake(x, y, wide, row, col, storage, storage_t):
    H = x.shape[1] if y.shape[1] == 1 else y.shape[1]
    dtype = torch.promote_types(x.dtype, torch.float32) if wide else x.dtype
    return x.new_empty((row.shape[0], H), dtype=dtype)


def _sddmm_add(x, y, row, col, storage, storage_t):
    return add(x, y, row, col)


def _sddmm_add_fake(x, y, row, col, storage, storage_t):
    return x.new_empty((row.shape[0], x.shape[1] if y.shape[1] == 1 else y.shape[1]))


def _needed(storage: list[torch.Tensor]) -> list[torch.Tensor]:
    if not storage:
        raise RuntimeError("sddmm: a gradient needs the storage of the pattern or its transpose, which was not given")
    return storage


class _Dot(torch.autograd.Function):
    """`braidwork::sddmm_dot` with its gradients; see `_Spmm` in spmm.py for why it is entered directly."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        x, y, _, row, col, storage, storage_t = inputs
        with torch._C._AutoDispatchBelowAutograd():
            out = torch.ops.braidwork.sddmm_dot.default(*inputs)
        ctx.end = len(storage)
        ctx.sizes = x.shape[:2], y.shape[:2]
        ctx.save_for_backward(
            x if ctx.needs_input_grad[1] else None, y if ctx.needs_input_grad[0] else None, row, col,
            *storage, *storage_t,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, y, row, col, *rest = ctx.saved_tensors
        storage, storage_t = rest[: ctx.end], rest[ctx.end :]
        (rows, x_heads), (cols, y_heads) = ctx.sizes
        H = g.shape[1]
        gx = gy = None
        product = torch.ops.braidwork.spmm_heads
        if ctx.needs_input_grad[0]:
            gx = product(g, y, rows, row, col, _needed(storage), storage_t)
            gx = gx.sum(1, keepdim=True) if x_heads == 1 != H else gx
        if ctx.needs_input_grad[1]:
            gy = product(g, x, cols, col, row, _needed(storage_t), storage)
            gy = gy.sum(1, keepdim=True) if y_heads == 1 != H else gy
        return gx, gy, None, None, None, None, None


class _Add(torch.autograd.Function):
    """`braidwork::sddmm_add` with its gradients."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        x, y, row, col, storage, storage_t = inputs
        with torch._C._AutoDispatchBelowAutograd():
            out = torch.ops.braidwork.sddmm_add.default(*inputs)
        ctx.end = len(storage)
        ctx.sizes = x.shape, y.shape
        ctx.save_for_backward(row, col, *storage, *storage_t)
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        row, col, *rest = ctx.saved_tensors
        sides = zip(ctx.sizes, (row, col), (rest[: ctx.end], rest[ctx.end :]), ctx.needs_input_grad)
        grads = []
        for (n, heads), index, storage, needed in sides:
            if needed:
                # A head that is shared collects from all of them, whose sum is taken in the wider type.
                mine = g.sum(1, keepdim=True) if heads == 1 != g.shape[1] else g
                grads.append(torch.ops.braidwork.entry_sum(mine, n, index, _needed(storage)))
            else:
                grads.append(None)
        return *grads, None, None, None, None


implement(_library, "sddmm_dot", _sddmm_dot, _sddmm_dot_fake, _Dot)
implement(_library, "sddmm_add", _sddmm_add, _sddmm_add_fake, _Add)


# --------------------------------------------------------------------------------------------------------------------
# The door


def sddmm(A: SparseMatrix, x: torch.Tensor, y: torch.Tensor, op: str = "dot") -> torch.Tensor:
    """For every entry e = (i, k) of A combine row i of x with row k of y: the scores of attention on a graph.

    - "dot": out[e, h] = sum over d of x[i, h, d] y[k, h, d], the product x y^T sampled where A has entries (the scores
      of V. P. Dwivedi and X. Bresson, "A generalization of transformer networks to graphs", 2020, before scaling);
    - "add": out[e, h] = x[i, h] + y[k, h], what the scores of P. Velickovic et al., "Graph attention networks", ICLR
      2018, eq. 3, come to when the two halves of their vector are applied to the nodes first.

    Args:
        A: [M, K]; its pattern alone is used, not its values.
        x, y: for "dot" [M, F] and [K, F], or [M, H, D] and [K, H, D]; for "add" [M] and [K], or [M, H] and [K, H].
            H may be 1 on one side, which then serves all heads of the other. Both in one dtype, fp64, fp32, bf16 or
            fp16, with any strides; copied only where heads and features do not lie side by side.
        op: "dot" or "add".

    Returns:
        [nnz], or [nnz, H] where x and y have heads, in the order of `A.row` and `A.col` and in the dtype of x and y.
        Sums are kept in fp32, in fp64 for fp64.

    Gradients to x and y, any number of times, as products with A and A.T: nothing is scattered. Results and gradients
    are the same bit for bit in every run and with any number of threads. Under `torch.autocast` fp32 operands of "dot"
    are cast to the autocast dtype. Under `torch.compile` the operator is one node; use A once before, or build
    `A.to("csr")` and `A.T.to("csr")`.

    Raises:
        TypeError: A is not a SparseMatrix, x or y not a tensor, or dtypes are not as above.
        ValueError: shapes, devices or the operation do not fit.
    """
    check_matrix("A", A)
    if op not in OPS:
        raise ValueError(f"op: need one of {', '.join(OPS)}, got {op!r}")
    check_dense("x", x, A)
    check_dense("y", y, A)
    rows, cols = A.shape
    dims, kinds = ((2, 3), "[{0}, F] or [{0}, H, D]") if op == "dot" else ((1, 2), "[{0}] or [{0}, H]")
    for name, t, n in (("x", x, rows), ("y", y, cols)):
        if t.dim() not in dims or t.shape[0] != n:
            raise ValueError(f"{name}: need shape {kinds.format(n)} for A with shape {(rows, cols)}, "
                             f"got {tuple(t.shape)}")  # fmt: skip
    if y.dim() != x.dim():
        raise ValueError(f"y: need as many dimensions as x, {x.dim()}, got {y.dim()}")
    if op == "dot":
        x, y = in_autocast(x), in_autocast(y)
        if y.shape[-1] != x.shape[-1]:
            raise ValueError(f"y: need as many features as x, {x.shape[-1]}, got {y.shape[-1]}")
    if y.dtype != x.dtype:
        raise TypeError(f"y: need the dtype of x, {x.dtype}, got {y.dtype}")
    with_heads = x.dim() == dims[1]
    if not with_heads:
        x, y = x.unsqueeze(1), y.unsqueeze(1)
    if y.shape[1] != x.shape[1] and 1 not in (x.shape[1], y.shape[1]):
        raise ValueError(f"y: need as many heads as x, {x.shape[1]}, or 1 on one side, got {y.shape[1]}")
    storage: list[torch.Tensor] = []
    storage_t: list[torch.Tensor] = []
    if torch.is_grad_enabled():
        # The gradient of one side of a dot product is a product with the other, and its own gradient needs both.
        storage = csr_of(A) if x.requires_grad or (op == "dot" and y.requires_grad) else []
        storage_t = csr_of(A.T) if y.requires_grad else []
    pattern = (A.row, A.col, storage, storage_t)
    if op == "dot":
        out = torch.ops.braidwork.sddmm_dot.default(x, y, False, *pattern)
    else:
        out = torch.ops.braidwork.sddmm_add.default(x, y, *pattern)
    return out if with_heads else out.squeeze(1)


# --------------------------------------------------------------------------------------------------------------------


def _aot_case(kernel: Any, name: str, dtype: str, H: int, D: int) -> AotCase:
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}[dtype]
    signature = {"row_ptr": "*i32", "col_ptr": "*i32"} | dict.fromkeys(("x_ptr", "y_ptr", "out_ptr"), f"*{dtype}")
    signature |= dict.fromkeys(("nnz", "stride_x", "stride_y", "share"), "i32")

    def meta(backend: str) -> dict[str, Any]:
        config = pick_sddmm(1 << 20, H, D, torch_dtype, backend)
        given = {"H": H, "SHARED_X": False, "SHARED_Y": False, "BATCH": config.batch, "BLOCK_H": config.block_h}
        if kernel is sddmm_dot_kernel:
            given |= {"D": D, "BLOCK_D": config.block_d, "PACKED": config.packed}
        return given | config.options

    wide = kernel is sddmm_dot_kernel and D % 8 == 0
    return AotCase(
        name, kernel, signature, meta, divisible=("stride_x", "stride_y") if wide else (), wide_loads=wide,
    )  # fmt: skip


AOT_CASES = [
    _aot_case(sddmm_dot_kernel, "sddmm_dot-fp32-1x64", "fp32", 1, 64),
    _aot_case(sddmm_dot_kernel, "sddmm_dot-fp32-8x8", "fp32", 8, 8),
    _aot_case(sddmm_dot_kernel, "sddmm_dot-bf16-8x64", "bf16", 8, 64),
    _aot_case(sddmm_dot_kernel, "sddmm_dot-fp64-3x5", "fp64", 3, 5),
    _aot_case(sddmm_add_kernel, "sddmm_add-fp32-8", "fp32", 8, 1),
    _aot_case(sddmm_add_kernel, "sddmm_add-bf16-1", "bf16", 1, 1),
]
