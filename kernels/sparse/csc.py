"""CSC: the entries of a column side by side, so that a row of x is read once and scattered to rows of y.

It is the transpose's CSR, for when that is what is there. A program owns a panel of rows of y and takes from every
column only the entries in it, so that nothing is added atomically and sums have a fixed order, by column.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from .. import alloc
from ..launch import launch
from ..target import backend_of
from .config import ceil_div, pick_csc
from .fold import ask, collapse, columns, finish, merge, start
from .formats import Format, Storage, check_bytes, nbytes, operands, register
from .pattern import Pattern

# Storage: tensors [colptr [panels, columns + 1], row [nnz], entry [nnz]], by panel, then by column, then by row;
# meta [columns, rows of a panel, spread of the transpose].


def build(pattern: Pattern, transposed: bool, params: Mapping[str, int], limit: int) -> Storage:
    """See `formats.Format`. `panels` 0 stands for 8, fewer where columns are so empty that pointers would be most of
    it.

    Raises ValueError: `panels` is negative; over the limit.
    """
    if params["panels"] < 0:
        raise ValueError(f"panels: need 0 or more, got {params['panels']}")
    rows, cols = pattern.shape[::-1] if transposed else pattern.shape
    col, row, order = pattern.sorted(not transposed)  # by column, then by row
    panels = params["panels"] or min(max(2 * pattern.nnz // max(cols, 1), 2), 8)
    height = max(ceil_div(rows, panels), 1)
    panels = max(ceil_div(rows, height), 1)
    check_bytes(
        "csc", (panels * (cols + 1) + 2 * pattern.nnz) * row.element_size(), limit,
        f"pointers to {cols} columns in each of {panels} panels, for {pattern.nnz} entries",
    )  # fmt: skip
    panel = row.long() // height
    by_panel = torch.argsort(panel, stable=True)
    counts = torch.bincount(panel * cols + col.long(), minlength=panels * cols)[: panels * cols]
    ends = counts.cumsum(0).view(panels, cols)
    begins = torch.cat([ends.new_zeros(1), ends[:-1, -1]]) if cols else ends.new_zeros(panels)
    colptr = torch.cat([begins[:, None], ends], 1).to(row.dtype)
    entry = by_panel.to(row.dtype) if order is None else order[by_panel]
    return Storage([colptr, row[by_panel], entry], [cols, height, pattern.spread(not transposed)])


@triton.jit
def csc_spmm_kernel(
    colptr_ptr, row_ptr, entry_ptr, value_ptr, x_ptr, row_scale_ptr, col_scale_ptr, route_ptr,
    bias_ptr, y_ptr, arg_ptr, acc_ptr, acc_arg_ptr, rows, cols, nnz, height, F, stride_x,
    AHEAD: tl.constexpr, REDUCE: tl.constexpr, RELU: tl.constexpr,
    BLOCK_F: tl.constexpr, MASK_F: tl.constexpr,
):  # fmt: skip
    """y[i, f] = reduce over entries e = (i, k) of row_scale[i] value[e] col_scale[k] x[k, f].

    colptr: [panels, cols + 1]; row, entry: [nnz]; value: [nnz] by entry; x: [cols, F] with rows stride_x apart;
    route: [cols, F]; y, arg, acc, acc_arg: [rows, F], of which acc is fp32 or fp64. Program (p, q) owns rows p *
    height to
    (p + 1) * height - 1 in the q-th tile of BLOCK_F columns.
    """
    acc_dtype: tl.constexpr = acc_ptr.dtype.element_ty
    offs_f, m_f = columns(tl.program_id(1), F, BLOCK_F, False)
    pid = tl.program_id(0).to(tl.int64)
    first = pid * height
    last = tl.minimum(first + height, rows)
    none, none_arg = start(x_ptr, row_ptr, REDUCE, 1, BLOCK_F)
    none, none_arg = collapse(none, none_arg, False, REDUCE)
    for row in range(first, last):
        tl.store(acc_ptr + row * F + offs_f, none, mask=m_f)
        if acc_arg_ptr is not None:
            tl.store(acc_arg_ptr + row * F + offs_f, none_arg, mask=m_f)
    zero = pid * 0  # makes an address of 64 bits, also where the interpreter counts in Python
    ptr = colptr_ptr + pid * (cols + 1)
    begin = tl.load(ptr).to(tl.int64)
    for k in range(cols):
        end = tl.load(ptr + k + 1).to(tl.int64)
        if begin < end:
            x_ptrs = x_ptr + (zero + k) * stride_x + offs_f
            x = tl.load(x_ptrs, mask=m_f, other=0.0).to(acc_dtype) if MASK_F else tl.load(x_ptrs).to(acc_dtype)
            if col_scale_ptr is not None:
                x *= tl.load(col_scale_ptr + k).to(acc_dtype)
            for position in range(begin, end):
                if AHEAD:
                    ask(acc_ptr, row_ptr, position + AHEAD, nnz - 1, offs_f, m_f, F)
                row = tl.load(row_ptr + position).to(tl.int64)
                entry = position
                if value_ptr is not None or route_ptr is not None or acc_arg_ptr is not None:
                    entry = tl.load(entry_ptr + position).to(tl.int64)
                term = x
                if value_ptr is not None:
                    term = x * tl.load(value_ptr + entry).to(acc_dtype)
                if route_ptr is not None:
                    route = tl.load(route_ptr + (zero + k) * F + offs_f, mask=m_f, other=-1)
                    term = tl.where(route == entry, term, 0.0)
                if REDUCE != "sum" and row_scale_ptr is not None:
                    term *= tl.load(row_scale_ptr + row).to(acc_dtype)
                if REDUCE == "min":
                    term = -term
                at = row * F + offs_f
                acc = tl.load(acc_ptr + at, mask=m_f, other=0.0) if MASK_F else tl.load(acc_ptr + at)
                arg = none_arg
                term_arg = none_arg
                if acc_arg_ptr is not None:
                    arg = tl.load(acc_arg_ptr + at, mask=m_f, other=0)
                    term_arg = (entry + offs_f * 0).to(none_arg.dtype)
                acc, arg = merge(acc, arg, term, term_arg, acc_arg_ptr is not None, REDUCE)
                if MASK_F:
                    tl.store(acc_ptr + at, acc, mask=m_f)
                else:
                    tl.store(acc_ptr + at, acc)
                if acc_arg_ptr is not None:
                    tl.store(acc_arg_ptr + at, arg, mask=m_f)
        begin = end
    # An extremum is known by its entry, since -inf may be one.
    for row in range(first, last):
        at = row * F + offs_f
        acc = tl.load(acc_ptr + at, mask=m_f, other=0.0)
        arg = none_arg
        is_empty = offs_f < 0
        if acc_arg_ptr is not None:
            arg = tl.load(acc_arg_ptr + at, mask=m_f, other=0)
            is_empty = arg == none_arg
        finish(
            acc, arg, row, is_empty, row_scale_ptr, bias_ptr, y_ptr, arg_ptr, offs_f, m_f, F, REDUCE, MASK_F, RELU
        )  # fmt: skip


def spmm(
    storage: Storage,
    rows: int,
    value: torch.Tensor | None,
    x: torch.Tensor,
    row_scale: torch.Tensor | None,
    col_scale: torch.Tensor | None,
    reduce: str,
    with_arg: bool = False,
    route: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    relu: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `formats.Launcher`."""
    (colptr, row, entry), (cols, height, spread) = storage
    F = x.shape[1]
    x, y, arg = operands(x, rows, row, with_arg)
    if not y.numel():
        return y, arg
    acc_dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    acc = y if x.dtype == acc_dtype else alloc.empty((rows, F), acc_dtype, x.device)
    acc_arg = None
    if reduce != "sum":
        acc_arg = arg if with_arg else alloc.empty((rows, F), row.dtype, x.device)
    config = pick_csc(spread, F, x.dtype, backend_of(x.device))
    launch(
        csc_spmm_kernel, (colptr.shape[0], ceil_div(F, config.block_f)), colptr, row, entry, value, x,
        row_scale, col_scale, route, bias, y, arg, acc, acc_arg,
        rows, cols, row.shape[0], height, F, x.stride(0), AHEAD=config.ahead, REDUCE=reduce, RELU=relu,
        BLOCK_F=config.block_f, MASK_F=config.mask_f, **config.options,
    )  # fmt: skip
    return y, arg


def coordinates(storage: Storage, rows: int, cols: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `formats.Format`."""
    colptr, row, entry = storage.tensors
    col = torch.arange(cols, device=row.device).repeat(colptr.shape[0])
    return row.long(), torch.repeat_interleave(col, colptr.long().diff(dim=1).flatten()), entry.long()


def matrix_bytes(storage: Storage, value_bytes: int) -> int:
    """See `formats.Format`."""
    colptr, row, entry = storage.tensors
    return nbytes(colptr, row, *((entry,) if value_bytes else ())) + value_bytes * row.shape[0]


register(Format("csc", build, spmm, coordinates, matrix_bytes, {"panels": 0}))
