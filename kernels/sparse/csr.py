"""CSR: the entries of a row side by side. Two kernels: one that owns rows, one that owns equal shares of the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from ..launch import launch
from ..target import AotCase, backend_of
from .config import SpmmConfig, ceil_div, pick_spmm
from .fold import collapse, columns, finish, fold, join, keep, row_at, start
from .formats import Format, Storage, nbytes, operands, register
from .pattern import Pattern

# --------------------------------------------------------------------------------------------------------------------
# Storage: tensors [rowptr [rows + 1], col [nnz]] and, where entries are not numbered in this order, [perm [nnz]] with
# the number of each; meta [entries of the longest row, spread].


def build(pattern: Pattern, transposed: bool, params: Mapping[str, int] = {}, limit: int = 0) -> Storage:
    """The pattern or its transpose in CSR. The two share rowptr and col if the pattern is symmetric."""
    counts = pattern.row_counts(transposed)
    if transposed and pattern.is_symmetric():
        rowptr, col = pattern.storage("csr", False).tensors
        order = pattern.sorted(True)[2]
    else:
        _, col, order = pattern.sorted(transposed)
        rowptr = torch.zeros(counts.shape[0] + 1, dtype=col.dtype, device=col.device)
        rowptr[1:] = torch.cumsum(counts, 0)
    longest = int(counts.max()) if counts.shape[0] else 0
    return Storage([rowptr, col] if order is None else [rowptr, col, order], [longest, pattern.spread(transposed)])


# --------------------------------------------------------------------------------------------------------------------
# Kernels


@triton.jit
def csr_spmm_rows_kernel(
    rowptr_ptr, col_ptr, perm_ptr, value_ptr, x_ptr, row_scale_ptr, col_scale_ptr, route_ptr,
    bias_ptr, y_ptr, arg_ptr, rows, nnz, F, stride_x, share,
    REDUCE: tl.constexpr, RELU: tl.constexpr, BATCH: tl.constexpr,
    BLOCK_F: tl.constexpr, MASK_F: tl.constexpr, OVERLAP: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """y[i, f] = reduce over entries e = (i, k) of row_scale[i] value[e] col_scale[k] x[k, f]; see `fold`.

    rowptr: [rows + 1]; col, perm, value: [nnz]; x: [K, F] with rows stride_x apart; route: [K, F]; y, arg: [rows, F].
    Program (p, q) owns rows p * share to (p + 1) * share - 1 in the q-th tile of BLOCK_F columns.
    """
    offs_f, m_f = columns(tl.program_id(1), F, BLOCK_F, OVERLAP)
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, rows)
    begin = tl.load(rowptr_ptr + first)
    for row in range(first, last):
        end = tl.load(rowptr_ptr + row + 1)
        acc, arg = start(x_ptr, col_ptr, REDUCE, BATCH, BLOCK_F)
        acc, arg = fold(
            acc, arg, row, begin, end, col_ptr, perm_ptr, value_ptr, x_ptr, row_scale_ptr, col_scale_ptr, route_ptr,
            offs_f, m_f, F, stride_x, nnz - 1, arg_ptr is not None, REDUCE, BATCH, MASK_F, AHEAD,
        )  # fmt: skip
        acc, arg = collapse(acc, arg, arg_ptr is not None, REDUCE)
        finish(
            acc, arg, row, begin == end, row_scale_ptr, bias_ptr, y_ptr, arg_ptr, offs_f, m_f, F, REDUCE, MASK_F, RELU
        )  # fmt: skip
        begin = end


# Equal shares of the work (merge path: D. Merrill and M. Garland, "Merge-based parallel sparse matrix-vector
# multiplication", SC 2016). Walk down the rows, taking a step for every entry and one for the end of every row: the
# walk has rows + nnz steps, row i ends in step rowptr[i + 1] + i, and a program owns `share` steps in a row. A row that
# is cut is summed up in pieces, in a fixed order, by a second kernel.


@triton.jit
def csr_spmm_split_kernel(
    rowptr_ptr, col_ptr, perm_ptr, value_ptr, x_ptr, row_scale_ptr, col_scale_ptr, route_ptr,
    bias_ptr, y_ptr, arg_ptr, carry_ptr, carry_arg_ptr, rows, nnz, F, stride_x, share,
    REDUCE: tl.constexpr, RELU: tl.constexpr, BATCH: tl.constexpr,
    BLOCK_F: tl.constexpr, MASK_F: tl.constexpr, OVERLAP: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """What `csr_spmm_rows_kernel` computes, but for rows that are cut: their pieces go to carry [programs, 2, F].

    Program (p, q) owns steps p * share to (p + 1) * share - 1 of the walk in the q-th tile of columns.
    """
    offs_f, m_f = columns(tl.program_id(1), F, BLOCK_F, OVERLAP)
    pid = tl.program_id(0).to(tl.int64)
    step0 = pid * share
    step1 = tl.minimum(step0 + share, (pid * 0 + rows) + nnz)
    row0 = row_at(step0, rowptr_ptr, rows)
    row1 = row_at(step1, rowptr_ptr, rows)
    begin = step0 - row0
    found_begun = begin > tl.load(rowptr_ptr + row0)
    # One turn more than there are rows that end here: the last is what is left of the share.
    for row in range(row0, row1 + 1):
        end = step1 - row1
        if row < row1:
            end = tl.load(rowptr_ptr + row + 1).to(tl.int64)
        acc, arg = start(x_ptr, col_ptr, REDUCE, BATCH, BLOCK_F)
        acc, arg = fold(
            acc, arg, row, begin, end, col_ptr, perm_ptr, value_ptr, x_ptr, row_scale_ptr, col_scale_ptr, route_ptr,
            offs_f, m_f, F, stride_x, nnz - 1, arg_ptr is not None, REDUCE, BATCH, MASK_F, AHEAD,
        )  # fmt: skip
        acc, arg = collapse(acc, arg, arg_ptr is not None, REDUCE)
        if row == row1:
            if begin < end:
                keep(acc, arg, 2 * pid + 1, carry_ptr, carry_arg_ptr, offs_f, m_f, F)
        elif found_begun and row == row0:
            keep(acc, arg, 2 * pid, carry_ptr, carry_arg_ptr, offs_f, m_f, F)
        else:
            finish(
                acc, arg, row, begin == end, row_scale_ptr, bias_ptr, y_ptr, arg_ptr, offs_f, m_f, F,
                REDUCE, MASK_F, RELU,
            )  # fmt: skip
        begin = end


@triton.jit
def csr_spmm_join_kernel(
    rowptr_ptr, row_scale_ptr, bias_ptr, carry_ptr, carry_arg_ptr, y_ptr, arg_ptr, rows, F, share,
    REDUCE: tl.constexpr, RELU: tl.constexpr, BLOCK_F: tl.constexpr, MASK_F: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Write the row that ends in the share of program p and began in an earlier one, from its pieces in order."""
    offs_f, m_f = columns(tl.program_id(1), F, BLOCK_F, OVERLAP)
    pid = tl.program_id(0).to(tl.int64)
    row = row_at(pid * share, rowptr_ptr, rows)
    if row < rows:
        first_step = tl.load(rowptr_ptr + row).to(tl.int64) + row
        last_step = tl.load(rowptr_ptr + row + 1).to(tl.int64) + row
        if first_step < pid * share and last_step < (pid + 1) * share:
            piece = first_step // share
            acc, arg = join(piece, pid, carry_ptr, carry_arg_ptr, offs_f, m_f, F, REDUCE)
            finish(
                acc, arg, row, False, row_scale_ptr, bias_ptr, y_ptr, arg_ptr, offs_f, m_f, F, REDUCE, MASK_F, RELU
            )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# Launcher


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
    config: SpmmConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `formats.Launcher`. x is copied only if its last dimension has a stride other than 1."""
    rowptr, col, *order = storage.tensors
    perm = order[0] if order and (value is not None or with_arg or route is not None) else None
    F = x.shape[1]
    x, y, arg = operands(x, rows, col, with_arg)
    if not y.numel():
        return y, arg

    nnz = col.shape[0]
    if config is None:
        config = pick_spmm(rows, nnz, *storage.meta, F, x.dtype, backend_of(x.device))
    tiles = ceil_div(F, config.block_f)
    meta = {"REDUCE": reduce, "BLOCK_F": config.block_f, "MASK_F": config.mask_f, "OVERLAP": config.overlap}
    meta["RELU"] = relu
    given = (rowptr, col, perm, value, x, row_scale, col_scale, route, bias, y, arg)
    if not config.split:
        grid = (ceil_div(rows, config.share), tiles)
        launch(
            csr_spmm_rows_kernel, grid, *given, rows, nnz, F, x.stride(0), config.share,
            BATCH=config.batch, AHEAD=config.ahead, **meta, **config.options,
        )  # fmt: skip
        return y, arg

    programs = ceil_div(rows + nnz, config.share)
    carry_dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    carry = torch.empty((programs, 2, F), dtype=carry_dtype, device=x.device)
    carry_arg = torch.empty((programs, 2, F), dtype=col.dtype, device=x.device) if with_arg else None
    launch(
        csr_spmm_split_kernel, (programs, tiles), *given, carry, carry_arg, rows, nnz, F, x.stride(0), config.share,
        BATCH=config.batch, AHEAD=config.ahead, **meta, **config.options,
    )  # fmt: skip
    launch(
        csr_spmm_join_kernel, (programs, tiles), rowptr, row_scale, bias, carry, carry_arg, y, given[-1], rows, F,
        config.share, **meta, **config.options,
    )  # fmt: skip
    return y, arg


def coordinates(storage: Storage, rows: int, cols: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `formats.Format`."""
    rowptr, col, *order = storage.tensors
    row = torch.repeat_interleave(rowptr.long().diff())
    entry = order[0].long() if order else torch.arange(col.shape[0], device=col.device)
    return row, col.long(), entry


def matrix_bytes(storage: Storage, value_bytes: int) -> int:
    """See `formats.Format`. Values in another order than the storage's are found through `perm`."""
    rowptr, col, *order = storage.tensors
    return nbytes(rowptr, col, *(order if value_bytes else ())) + value_bytes * col.shape[0]


register(Format("csr", build, spmm, coordinates, matrix_bytes))


def _aot_case(kernel: Any, name: str, dtype: str, F: int, present: tuple[str, ...], reduce: str = "sum") -> AotCase:
    """A kernel on int32 indices and x of `dtype`, with the optional pointers in `present`, as a launch has it.

    Indices, values and scales are counted once a thread, so with all of them the wide loads of x weigh less.
    """
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}[dtype]
    acc = "fp64" if dtype == "fp64" else "fp32"
    types = {"perm_ptr": "i32", "value_ptr": "fp32", "row_scale_ptr": "fp32", "col_scale_ptr": "fp32"}
    types |= {"rowptr_ptr": "i32", "col_ptr": "i32", "route_ptr": "i32", "arg_ptr": "i32", "carry_arg_ptr": "i32"}
    types |= {"bias_ptr": "fp32", "x_ptr": dtype, "y_ptr": dtype, "carry_ptr": acc}
    always = ("rowptr_ptr", "col_ptr", "x_ptr", "y_ptr", "carry_ptr")
    names = kernel.arg_names
    split = kernel is not csr_spmm_rows_kernel
    signature = {n: f"*{types[n]}" for n in names if n in types and n in always + present}
    signature |= {n: "i32" for n in names if n in ("rows", "nnz", "F", "stride_x", "share")}

    def meta(backend: str) -> dict[str, Any]:
        config = pick_spmm(1 << 16, 1 << 20, 1 << 19 if split else 64, 0, F, torch_dtype, backend)
        given = {"REDUCE": reduce, "BATCH": config.batch, "BLOCK_F": config.block_f}
        given |= {"MASK_F": config.mask_f, "OVERLAP": config.overlap, "AHEAD": config.ahead}
        given |= {"RELU": "bias_ptr" in present}
        absent = {n: None for n in names if n in types and n not in signature}
        return {n: v for n, v in given.items() if n in names} | absent | config.options

    wide = kernel is not csr_spmm_join_kernel and F % 16 == 0
    return AotCase(
        name, kernel, signature, meta, divisible=("F", "stride_x") if F % 16 == 0 else (), wide_loads=wide,
        wide_share=0.4 if "perm_ptr" in present and "value_ptr" in present else 0.5,
    )  # fmt: skip


_SCALES = ("row_scale_ptr", "col_scale_ptr", "bias_ptr")
AOT_CASES = [
    _aot_case(csr_spmm_rows_kernel, "csr_spmm_rows-fp32-128", "fp32", 128, ()),
    _aot_case(csr_spmm_rows_kernel, "csr_spmm_rows-fp32-128-all", "fp32", 128, ("value_ptr", "perm_ptr", *_SCALES)),
    _aot_case(csr_spmm_rows_kernel, "csr_spmm_rows-fp32-16", "fp32", 16, ()),
    _aot_case(csr_spmm_rows_kernel, "csr_spmm_rows-fp32-1000", "fp32", 1000, ()),
    _aot_case(csr_spmm_rows_kernel, "csr_spmm_rows-fp64-64", "fp64", 64, ("value_ptr",)),
    _aot_case(csr_spmm_rows_kernel, "csr_spmm_rows-bf16-128", "bf16", 128, _SCALES[:2]),
    _aot_case(csr_spmm_rows_kernel, "csr_spmm_rows-fp32-128-max", "fp32", 128, ("value_ptr", "arg_ptr"), "max"),
    _aot_case(csr_spmm_rows_kernel, "csr_spmm_rows-fp32-128-routed", "fp32", 128, ("perm_ptr", "route_ptr")),
    _aot_case(csr_spmm_split_kernel, "csr_spmm_split-fp32-128", "fp32", 128, _SCALES),
    _aot_case(csr_spmm_split_kernel, "csr_spmm_split-bf16-128-max", "bf16", 128, ("arg_ptr", "carry_arg_ptr"), "max"),
    _aot_case(csr_spmm_join_kernel, "csr_spmm_join-fp32-128", "fp32", 128, _SCALES),
]
