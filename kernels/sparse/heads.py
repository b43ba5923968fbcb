"""Products of one pattern with many heads: every head has weights and features of its own, and all go in one launch.

`braidwork::spmm_heads` and `braidwork::sddmm_dot` (sddmm.py) are each other's gradients, so both can be differentiated
any number of times; `braidwork::entry_sum` is what is left of the product where the features are ones. All of them own
rows and fold the entries of a row in order, so sums have a fixed order and nothing is scattered.
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
from .build import VALUE_DTYPES
from .config import ceil_div
from .matrix import SparseMatrix

# --------------------------------------------------------------------------------------------------------------------
# Kernels


@triton.jit
def _packed_row(
    row, begin, end, col_ptr, perm_ptr, value_ptr, x_ptr, y_ptr, stride_x, pid_t,
    H: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """One row of `heads_spmm_kernel`, entry by entry, the tile of heads as one run."""
    acc_dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    WHOLE: tl.constexpr = H % BLOCK_H == 0
    offs_h = pid_t * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_c = pid_t * (BLOCK_H * D) + tl.arange(0, BLOCK_H * D)
    acc = tl.zeros((BLOCK_H * D,), acc_dtype)
    for position in range(begin, end):
        x_ptrs = x_ptr + tl.load(col_ptr + position).to(tl.int64) * stride_x + offs_c
        term = tl.load(x_ptrs) if WHOLE else tl.load(x_ptrs, mask=offs_c < H * D, other=0.0)
        entry = position
        if perm_ptr is not None:
            entry = tl.load(perm_ptr + position)
        w_ptrs = value_ptr + (tl.full((), 0, tl.int64) + entry) * H + offs_h
        w = tl.load(w_ptrs) if WHOLE else tl.load(w_ptrs, mask=offs_h < H, other=0.0)
        w = tl.broadcast_to(w.to(acc_dtype)[:, None], (BLOCK_H, D))
        acc += tl.reshape(w, (BLOCK_H * D,)) * term.to(acc_dtype)
    y_ptrs = y_ptr + row * (H * D) + offs_c
    if WHOLE:
        tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty))
    else:
        tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), mask=offs_c < H * D)


@triton.jit
def _tiled_row(
    row, begin, end, col_ptr, perm_ptr, value_ptr, x_ptr, y_ptr, stride_x, pid_t,
    H: tl.constexpr, D: tl.constexpr, SHARED_X: tl.constexpr,
    BATCH: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One row of `heads_spmm_kernel`, BATCH entries at a time."""
    acc_dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    TILES_D: tl.constexpr = (D + BLOCK_D - 1) // BLOCK_D
    MASK: tl.constexpr = (H % BLOCK_H != 0) or (D % BLOCK_D != 0)
    offs_h = (pid_t // TILES_D) * BLOCK_H + tl.arange(0, BLOCK_H)
    offs_d = (pid_t % TILES_D) * BLOCK_D + tl.arange(0, BLOCK_D)
    m_h = offs_h < H
    m_d = offs_d < D
    inside = offs_h[:, None] * D + offs_d[None, :]
    m_inside = m_h[:, None] & m_d[None, :]
    acc = tl.zeros((BATCH, BLOCK_H, BLOCK_D), acc_dtype)
    for position in range(begin, end, BATCH):
        offs_e = position + tl.arange(0, BATCH)
        m_e = offs_e < end
        # Without a batch every position is inside.
        k = tl.load(col_ptr + offs_e) if BATCH == 1 else tl.load(col_ptr + offs_e, mask=m_e, other=0)
        k = k.to(tl.int64)
        if SHARED_X:
            x_ptrs = x_ptr + k[:, None, None] * stride_x + offs_d[None, None, :]
            m_x = m_e[:, None, None] & m_d[None, None, :]
        else:
            x_ptrs = x_ptr + k[:, None, None] * stride_x + inside[None, :, :]
            m_x = m_e[:, None, None] & m_inside[None, :, :]
        if BATCH > 1 or MASK:
            term = tl.load(x_ptrs, mask=m_x, other=0.0).to(acc_dtype)
        else:
            term = tl.load(x_ptrs).to(acc_dtype)
        if value_ptr is not None:
            entry = offs_e
            if perm_ptr is not None:
                entry = tl.load(perm_ptr + offs_e) if BATCH == 1 else tl.load(perm_ptr + offs_e, mask=m_e, other=0)
            value_ptrs = value_ptr + entry.to(tl.int64)[:, None] * H + offs_h[None, :]
            if BATCH > 1 or H % BLOCK_H != 0:
                w = tl.load(value_ptrs, mask=m_e[:, None] & m_h[None, :], other=0.0).to(acc_dtype)
            else:
                w = tl.load(value_ptrs).to(acc_dtype)
            acc += w[:, :, None] * term
        else:
            acc += term
    y = tl.sum(acc, axis=0).to(y_ptr.dtype.element_ty)
    y_ptrs = y_ptr + row * (H * D) + inside
    if MASK:
        tl.store(y_ptrs, y, mask=m_inside)
    else:
        tl.store(y_ptrs, y)


@triton.jit
def heads_spmm_kernel(
    rowptr_ptr, col_ptr, perm_ptr, value_ptr, x_ptr, y_ptr, rows, stride_x, share,
    H: tl.constexpr, D: tl.constexpr, SHARED_X: tl.constexpr,
    BATCH: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """y[i, h, d] = sum over entries e = (i, k) of value[e, h] x[k, h, d], or of value[e, h] x[k, d] with SHARED_X.

    rowptr: [rows + 1]; col, perm: [nnz]; value: [nnz, H]; x: [K, H, D] (or [K, 1, D]), rows stride_x apart; y: [rows,
    H, D]. H and D are constants, so that the compiler sees where rows of x are aligned and which lanes exist. Program
    (p, q) owns rows p * share to (p + 1) * share - 1 in the q-th tile of BLOCK_H heads by BLOCK_D features. BATCH
    entries are taken at a time and brought together at the end of the row. With PACKED (BLOCK_D == D, BATCH == 1, not
    SHARED_X) the heads of a tile are the one run of memory that they are, along which weights are repeated.
    """
    pid_t = tl.program_id(1)
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, rows)
    begin = tl.load(rowptr_ptr + first)
    for row in range(first, last):
        end = tl.load(rowptr_ptr + row + 1)
        if PACKED:
            _packed_row(row, begin, end, col_ptr, perm_ptr, value_ptr, x_ptr, y_ptr, stride_x, pid_t, H, D, BLOCK_H)
        else:
            _tiled_row(
                row, begin, end, col_ptr, perm_ptr, value_ptr, x_ptr, y_ptr, stride_x, pid_t,
                H, D, SHARED_X, BATCH, BLOCK_H, BLOCK_D,
            )  # fmt: skip
        begin = end


@triton.jit
def entry_sum_kernel(
    rowptr_ptr, perm_ptr, value_ptr, y_ptr, rows, H, share, BATCH: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """y[i, h] = sum over the entries e of row i of value[e, h].

    rowptr: [rows + 1]; perm: [nnz]; value: [nnz, H]; y: [rows, H]. Program (p, q) owns rows p * share to
    (p + 1) * share - 1 in the q-th tile of BLOCK_H heads.
    """
    acc_dtype: tl.constexpr = tl.float64 if value_ptr.dtype.element_ty == tl.float64 else tl.float32
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    m_h = offs_h < H
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, rows)
    begin = tl.load(rowptr_ptr + first)
    for row in range(first, last):
        end = tl.load(rowptr_ptr + row + 1)
        acc = tl.zeros((BATCH, BLOCK_H), acc_dtype)
        for position in range(begin, end, BATCH):
            offs_e = position + tl.arange(0, BATCH)
            m_e = offs_e < end
            entry = offs_e
            if perm_ptr is not None:
                entry = tl.load(perm_ptr + offs_e, mask=m_e, other=0)
            value_ptrs = value_ptr + entry.to(tl.int64)[:, None] * H + offs_h[None, :]
            acc += tl.load(value_ptrs, mask=m_e[:, None] & m_h[None, :], other=0.0).to(acc_dtype)
        tl.store(y_ptr + row * H + offs_h, tl.sum(acc, axis=0).to(y_ptr.dtype.element_ty), mask=m_h)
        begin = end


# --------------------------------------------------------------------------------------------------------------------
# Launchers


@dataclass(frozen=True)
class HeadsConfig:
    """How a product over heads is run: rows a program owns, entries taken at a time, heads and features of a tile.

    packed: a tile of heads may be read as one run, if it holds whole heads. On a GPU that would move registers about.
    """

    share: int
    batch: int
    block_h: int
    block_d: int
    packed: bool = False
    options: dict[str, int] = field(default_factory=dict)


@functools.lru_cache(maxsize=4096)
def pick_heads(rows: int, nnz: int, H: int, D: int, dtype: torch.dtype, backend: str) -> HeadsConfig:
    """The configuration of one product over H >= 1 heads of D >= 1 features."""
    wide = dtype == torch.float64
    mean = nnz / max(rows, 1)
    if backend == "cpu":
        # The accumulators stay in vector registers, entry after entry; a program has some tens of microseconds.
        widest = 128 if wide else 256
        block_d = min(triton.next_power_of_2(D), widest)
        block_h = min(triton.next_power_of_2(H), widest // block_d)
        work = max((1 << 16) // (block_h * block_d), 16)
        return HeadsConfig(max(int(work / (mean + 1)), 1), 1, block_h, block_d, block_d == D and block_h > 1)
    block_d = min(triton.next_power_of_2(D), 128)
    block_h = min(triton.next_power_of_2(H), 128 // block_d)
    batch = max(1024 // (block_h * block_d * (torch.finfo(dtype).bits // 16)), 1)
    return HeadsConfig(4 if mean < 4 else 1, min(batch, 8), block_h, block_d, False, {"num_warps": 1})


def heads_product(
    rows: int, value: torch.Tensor | None, x: torch.Tensor, storage: list[torch.Tensor]
) -> torch.Tensor:
    """Launch `heads_spmm_kernel`: value [nnz, H or 1], x [K, H or 1, D] to [rows, H, D] in the dtype of x.

    x is copied only if its features or heads do not lie side by side.
    """
    rowptr, col, *order = storage
    nnz = col.shape[0]
    H, D = max(x.shape[1], 1 if value is None else value.shape[1]), x.shape[2]
    if not x.shape[1] or (value is not None and not value.shape[1]):
        H = 0
    if not rows or not H or not D:
        return x.new_empty((rows, H, D))
    y = alloc.empty((rows, H, D), x.dtype, x.device)
    shared_x = x.shape[1] == 1 and H > 1
    if (x.stride(2) != 1 and D > 1) or (x.stride(1) != D and x.shape[1] > 1):
        x = x.contiguous()
    if x.shape[1] == H and (value is None or value.shape[1] == 1):
        # Heads that share their weights are one head.
        H, D = 1, H * D
    elif value is not None and value.shape[1] == 1 and H > 1:
        value = value.expand(-1, H)
    value = None if value is None else value.contiguous()
    config = pick_heads(rows, nnz, H, D, x.dtype, backend_of(x.device))
    grid = (ceil_div(rows, config.share), ceil_div(H, config.block_h) * ceil_div(D, config.block_d))
    launch(
        heads_spmm_kernel, grid, rowptr, col, order[0] if order and value is not None else None, value, x, y,
        rows, x.stride(0), config.share, H=H, D=D, SHARED_X=shared_x,
        BATCH=config.batch, BLOCK_H=config.block_h, BLOCK_D=config.block_d,
        PACKED=config.packed and not shared_x, **config.options,
    )  # fmt: skip
    return y


@functools.lru_cache(maxsize=4096)
def pick_entry_sum(rows: int, nnz: int, H: int, backend: str) -> HeadsConfig:
    """The configuration of one `entry_sum` over H >= 1 heads."""
    mean = nnz / max(rows, 1)
    block_h = min(triton.next_power_of_2(H), 64)
    if backend == "cpu":
        batch = 1 if block_h >= 4 or mean < 4 else 16
        return HeadsConfig(max(int((1 << 14) / (mean + 4)), 1), batch, block_h, 1)
    batch = min(max(128 // block_h, 1), 32)
    return HeadsConfig(4 if mean < 16 else 1, batch, block_h, 1, False, {"num_warps": 1})


def entry_sum(
    value: torch.Tensor,
    rows: int,
    rowptr: torch.Tensor,
    perm: torch.Tensor | None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Launch `entry_sum_kernel`: [nnz, H] to [rows, H], in the dtype of the values or in `out_dtype`."""
    H = value.shape[1]
    out = alloc.empty((rows, H), out_dtype or value.dtype, value.device)
    if not out.numel():
        return out
    value = value.contiguous()
    config = pick_entry_sum(rows, value.shape[0], H, backend_of(value.device))
    launch(
        entry_sum_kernel, (ceil_div(rows, config.share), ceil_div(H, config.block_h)), rowptr, perm, value, out,
        rows, H, config.share, BATCH=config.batch, BLOCK_H=config.block_h, **config.options,
    )  # fmt: skip
    return out


# --------------------------------------------------------------------------------------------------------------------
# Operators. A pattern comes as its coordinates and as CSR of itself and of its transpose, [] where it is not needed.

PATTERN = "Tensor row, Tensor col, Tensor[] storage, Tensor[] storage_t"

_library = torch.library.Library("braidwork", "FRAGMENT")
_library.define(f"spmm_heads(Tensor? value, Tensor x, SymInt rows, {PATTERN}) -> Tensor")
_library.define("entry_sum(Tensor value, SymInt rows, Tensor row, Tensor[] storage) -> Tensor")


def _spmm_heads(value, x, rows, row, col, storage, storage_t):
    return heads_product(rows, value, x, storage)


def _spmm_heads_fake(value, x, rows, row, col, storage, storage_t):
    H = x.shape[1] if value is None or x.shape[1] != 1 else value.shape[1]
    return x.new_empty((rows, H, x.shape[2]))


def _entry_sum(value, rows, row, storage):
    return entry_sum(value, rows, storage[0], storage[2] if len(storage) > 2 else None)


def _entry_sum_fake(value, rows, row, storage):
    return value.new_empty((rows, value.shape[1]))


class _SpmmHeads(torch.autograd.Function):
    """`braidwork::spmm_heads` with its gradients; see `_Spmm` in spmm.py for why it is entered directly."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        value, x, _, row, col, storage, storage_t = inputs
        with torch._C._AutoDispatchBelowAutograd():
            y = torch.ops.braidwork.spmm_heads.default(*inputs)
        ctx.ends = len(storage), len(storage) + len(storage_t)
        ctx.cols, ctx.heads = x.shape[0], x.shape[1]
        # Only the gradient of the weights looks at x again.
        ctx.save_for_backward(value, x if ctx.needs_input_grad[0] else None, row, col, *storage, *storage_t)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        value, x, row, col, *rest = ctx.saved_tensors
        storage, storage_t = rest[: ctx.ends[0]], rest[ctx.ends[0] : ctx.ends[1]]
        ops = torch.ops.braidwork
        gvalue = gx = None
        if ctx.needs_input_grad[1]:
            if not storage_t:
                raise RuntimeError("spmm_heads: the gradient of x needs the transpose, which was not given")
            gx = ops.spmm_heads(value, g, ctx.cols, col, row, storage_t, storage)
            gx = gx.sum(1, keepdim=True) if ctx.heads == 1 != g.shape[1] else gx
        if ctx.needs_input_grad[0]:
            wide = value.dtype != x.dtype
            if value.shape[1] == 1 and x.shape[1] == g.shape[1]:
                g, x = g.flatten(1).unsqueeze(1), x.flatten(1).unsqueeze(1)
            gvalue = ops.sddmm_dot(g, x, wide, row, col, storage, storage_t).to(value.dtype)
        return gvalue, gx, None, None, None, None, None


class _EntrySum(torch.autograd.Function):
    """`braidwork::entry_sum` with its gradient, which copies the one of a row to its entries."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
        ctx.save_for_backward(inputs[2])
        with torch._C._AutoDispatchBelowAutograd():
            return torch.ops.braidwork.entry_sum.default(*inputs)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return g.index_select(0, ctx.saved_tensors[0]), None, None, None


def implement(library: torch.library.Library, name: str, run: Any, fake: Any, function: Any) -> None:
    """Enter an operator's implementation, its fake and its `torch.autograd.Function`."""
    for device in ("CPU", "CUDA"):
        # Where a graph breaks around a call of the operator, its Python is not for the tracer either.
        library.impl(name, torch.compiler.disable(run), device)
    torch.library.register_fake(f"braidwork::{name}", fake, lib=library)
    library.impl(name, lambda *inputs: function.apply(*inputs), "Autograd")


implement(_library, "spmm_heads", _spmm_heads, _spmm_heads_fake, _SpmmHeads)
implement(_library, "entry_sum", _entry_sum, _entry_sum_fake, _EntrySum)


# --------------------------------------------------------------------------------------------------------------------
# The door


def csr_of(A: SparseMatrix) -> list[torch.Tensor]:
    """[rowptr, col] or [rowptr, col, perm] of A, built on first use, whatever format products with A use."""
    return (A if A.format == "csr" else A.to("csr")).storage().tensors


def check_matrix(name: str, A: Any) -> None:
    if not isinstance(A, SparseMatrix):
        raise TypeError(f"{name}: need a SparseMatrix, got {type(A).__name__}")


def check_dense(name: str, x: Any, A: SparseMatrix) -> None:
    """x is a dense tensor of one of the floating-point types, on the device of A."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: need a torch.Tensor, got {type(x).__name__}")
    if x.dtype not in VALUE_DTYPES or x.layout != torch.strided:
        raise TypeError(
            f"{name}: need a dense tensor of float64, float32, bfloat16 or float16, got {x.dtype}, {x.layout}"
        )
    if A.device != x.device:
        raise ValueError(f"{name}: A is on {A.device}, {name} on {x.device}")


def in_autocast(x: torch.Tensor) -> torch.Tensor:
    """x, cast to the dtype of `torch.autocast` if that is on and x is in fp32."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if x.dtype == torch.float32 and torch.is_autocast_enabled(kind) else x


def spmm_heads(A: SparseMatrix, values: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """Sparse times dense, head by head: y[i, h, :] = sum over the entries e = (i, k) of values[e, h] x[k, h, :].

    This is the aggregation of a graph attention layer with many heads (P. Velickovic et al., "Graph attention
    networks", ICLR 2018, eq. 4 and 5), all heads in one pass over the pattern.

    Args:
        A: [M, K]; its pattern alone is used, not its values.
        values: [nnz, H] in the order of `A.row` and `A.col`, in the dtype of x or in fp32; None for ones.
        x: [K, H, D]; fp64, fp32, bf16 or fp16; copied only where heads and features do not lie side by side.

    H may be 1 on one side: one weight for all heads, or the same features for all.

    Returns:
        [M, H, D] in the dtype of x; zeros in a row without entries. Sums are kept in fp32, in fp64 if x is.

    Gradients to values and x, any number of times. Results and gradients are the same bit for bit in every run and with
    any number of threads. Under `torch.autocast` an fp32 x is cast to the autocast dtype. Under `torch.compile` the
    operator is one node; use A once before, or build `A.to("csr")` and `A.T.to("csr")`.

    Raises:
        TypeError: A is not a SparseMatrix, values or x not a tensor, or a dtype is not as above.
        ValueError: shapes or devices do not fit.
    """
    check_matrix("A", A)
    check_dense("x", x, A)
    rows, cols = A.shape
    if x.dim() != 3 or x.shape[0] != cols:
        raise ValueError(f"x: need shape [{cols}, H, D] for A with shape {(rows, cols)}, got {tuple(x.shape)}")
    x = in_autocast(x)
    if values is not None:
        check_dense("values", values, A)
        if values.dtype != x.dtype and values.dtype != torch.float32:
            raise TypeError(f"values: need the dtype of x, {x.dtype}, or float32, got {values.dtype}")
        if values.dim() != 2 or values.shape[0] != A.nnz:
            raise ValueError(f"values: need shape [{A.nnz}, H], one row for each entry, got {tuple(values.shape)}")
        if values.shape[1] != x.shape[1] and 1 not in (values.shape[1], x.shape[1]):
            raise ValueError(f"values: need as many heads as x, {x.shape[1]}, or 1 on one side, got {values.shape[1]}")
    needs_transpose = torch.is_grad_enabled() and x.requires_grad
    storage_t = csr_of(A.T) if needs_transpose else []
    return torch.ops.braidwork.spmm_heads.default(values, x, rows, A.row, A.col, csr_of(A), storage_t)


# --------------------------------------------------------------------------------------------------------------------


def _aot_case(name: str, dtype: str, H: int, D: int, perm: bool = False) -> AotCase:
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}[dtype]
    signature = {"rowptr_ptr": "*i32", "col_ptr": "*i32"} | ({"perm_ptr": "*i32"} if perm else {})
    signature |= {"value_ptr": "*fp32", "x_ptr": f"*{dtype}", "y_ptr": f"*{dtype}"}
    signature |= dict.fromkeys(("rows", "stride_x", "share"), "i32")

    def meta(backend: str) -> dict[str, Any]:
        config = pick_heads(1 << 16, 1 << 20, H, D, torch_dtype, backend)
        tile = {"BATCH": config.batch, "BLOCK_H": config.block_h, "BLOCK_D": config.block_d}
        given = {"H": H, "D": D, "SHARED_X": False, "PACKED": config.packed} | tile | config.options
        return given if perm else given | {"perm_ptr": None}

    wide = D % 8 == 0
    # Columns and weights are counted once a thread, so they weigh as much as x itself does.
    return AotCase(
        name, heads_spmm_kernel, signature, meta, divisible=("stride_x",) if wide else (), wide_loads=wide,
        wide_share=0.4,
    )  # fmt: skip


def _aot_case_sum(name: str, H: int, perm: bool) -> AotCase:
    signature = {"rowptr_ptr": "*i32"} | ({"perm_ptr": "*i32"} if perm else {})
    signature |= {"value_ptr": "*fp32", "y_ptr": "*fp32", "rows": "i32", "H": "i32", "share": "i32"}

    def meta(backend: str) -> dict[str, Any]:
        config = pick_entry_sum(1 << 16, 1 << 20, H, backend)
        given = {"BATCH": config.batch, "BLOCK_H": config.block_h} | config.options
        return given if perm else given | {"perm_ptr": None}

    return AotCase(name, entry_sum_kernel, signature, meta, wide_loads=False)


AOT_CASES = [
    _aot_case("heads_spmm-fp32-8x8", "fp32", 8, 8),
    _aot_case("heads_spmm-fp32-8x64-perm", "fp32", 8, 64, perm=True),
    _aot_case("heads_spmm-bf16-4x32", "bf16", 4, 32),
    _aot_case("heads_spmm-fp64-3x5", "fp64", 3, 5),
    _aot_case_sum("entry_sum-fp32-8", 8, perm=False),
    _aot_case_sum("entry_sum-fp32-1-perm", 1, perm=True),
]
