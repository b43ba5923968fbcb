"""COO: entries sorted by row, in equal shares. Runs of one row are reduced in registers; nothing is added atomically.

A row that is cut between programs is summed up in pieces, in a fixed order, by a second kernel, and the program that
meets the end of a gap writes the empty rows in it, so y is written once and results are the same in every run.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from ..launch import launch
from ..target import backend_of
from .config import ceil_div, pick_coo
from .fold import collapse, columns, finish, fold, join, keep, start
from .formats import Format, Storage, fill_empty, nbytes, operands, register
from .pattern import Pattern

# Storage: tensors [row [nnz], col [nnz]] and, where entries are not numbered in this order, [perm [nnz]]; meta
# [spread].


def build(pattern: Pattern, transposed: bool, params: Mapping[str, int], limit: int) -> Storage:
    """See `formats.Format`."""
    row, col, order = pattern.sorted(transposed)
    return Storage([row, col] if order is None else [row, col, order], [pattern.spread(transposed)])


@triton.jit
def _run_end(position, end, row, row_ptr, SCAN: tl.constexpr):
    """The first position from `position` on that is not in row `row`, at most `end`."""
    more = SCAN
    while more == SCAN:
        offs = position + tl.arange(0, SCAN)
        more = tl.sum((tl.load(row_ptr + offs, mask=offs < end, other=-1) == row).to(tl.int32), axis=0)
        position += more
    return position


@triton.jit
def _empty(
    first, last, x_ptr, col_ptr, bias_ptr, y_ptr, arg_ptr, offs_f, m_f, F,
    BLOCK_F: tl.constexpr, MASK_F: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Write rows first to last - 1, which have no entries."""
    acc, arg = start(x_ptr, col_ptr, "sum", 1, BLOCK_F)
    acc, arg = collapse(acc, arg, False, "sum")
    for row in range(first, last):
        finish(acc, arg, row, True, None, bias_ptr, y_ptr, arg_ptr, offs_f, m_f, F, "max", MASK_F, RELU)


@triton.jit
def coo_spmm_kernel(
    row_ptr, col_ptr, perm_ptr, value_ptr, x_ptr, row_scale_ptr, col_scale_ptr, route_ptr,
    bias_ptr, y_ptr, arg_ptr,
    carry_ptr, carry_arg_ptr, rows_ptr, rows, nnz, F, stride_x, share,
    REDUCE: tl.constexpr, RELU: tl.constexpr, BATCH: tl.constexpr, SCAN: tl.constexpr,
    BLOCK_F: tl.constexpr, MASK_F: tl.constexpr, OVERLAP: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """y[i, f] = reduce over entries e = (i, k) of row_scale[i] value[e] col_scale[k] x[k, f]; see `fold`.

    row, col, perm, value: [nnz], sorted by row; x: [K, F] with rows stride_x apart; route: [K, F]; y, arg: [rows, F];
    carry: [programs, 2, F]. With rows_ptr, row j of the entries is row rows[j] of y, and every j has entries.
    Program (p, q) owns entries p * share to (p + 1) * share - 1 in the q-th tile of BLOCK_F columns.
    """
    offs_f, m_f = columns(tl.program_id(1), F, BLOCK_F, OVERLAP)
    pid = tl.program_id(0).to(tl.int64)
    begin = pid * share
    end = tl.minimum(begin + share, nnz)
    previous = tl.full((), -1, tl.int64)
    if begin > 0:
        previous = tl.load(row_ptr + begin - 1).to(tl.int64)
    following = tl.full((), 0, tl.int64) + rows
    if end < nnz:
        following = tl.load(row_ptr + end).to(tl.int64)
    position = begin
    while position < end:
        row = tl.load(row_ptr + position).to(tl.int64)
        stop = _run_end(position, end, row, row_ptr, SCAN)
        y_row = row
        if rows_ptr is not None:
            y_row = tl.load(rows_ptr + row).to(tl.int64)
        acc, arg = start(x_ptr, col_ptr, REDUCE, BATCH, BLOCK_F)
        acc, arg = fold(
            acc, arg, y_row, position, stop, col_ptr, perm_ptr, value_ptr, x_ptr, row_scale_ptr, col_scale_ptr,
            route_ptr, offs_f, m_f, F, stride_x, nnz - 1, arg_ptr is not None, REDUCE, BATCH, MASK_F, AHEAD,
        )  # fmt: skip
        acc, arg = collapse(acc, arg, arg_ptr is not None, REDUCE)
        if stop == end and row == following:
            keep(acc, arg, 2 * pid + 1, carry_ptr, carry_arg_ptr, offs_f, m_f, F)
        elif row == previous:
            keep(acc, arg, 2 * pid, carry_ptr, carry_arg_ptr, offs_f, m_f, F)
        else:
            finish(
                acc, arg, y_row, False, row_scale_ptr, bias_ptr, y_ptr, arg_ptr, offs_f, m_f, F, REDUCE, MASK_F, RELU
            )  # fmt: skip
        if rows_ptr is None:
            _empty(
                previous + 1, row, x_ptr, col_ptr, bias_ptr, y_ptr, arg_ptr, offs_f, m_f, F, BLOCK_F, MASK_F, RELU
            )  # fmt: skip
        previous = row
        position = stop
    if rows_ptr is None:
        if end == nnz:
            _empty(
                previous + 1, following, x_ptr, col_ptr, bias_ptr, y_ptr, arg_ptr, offs_f, m_f, F, BLOCK_F, MASK_F, RELU
            )  # fmt: skip


@triton.jit
def coo_spmm_join_kernel(
    row_ptr, row_scale_ptr, bias_ptr, carry_ptr, carry_arg_ptr, y_ptr, arg_ptr, rows_ptr,
    nnz, F, share, REDUCE: tl.constexpr, RELU: tl.constexpr,
    BLOCK_F: tl.constexpr, MASK_F: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Write the row that ends in the share of program p and began in an earlier one, from its pieces in order."""
    offs_f, m_f = columns(tl.program_id(1), F, BLOCK_F, OVERLAP)
    pid = tl.program_id(0).to(tl.int64) + 1
    begin = pid * share
    end = tl.minimum(begin + share, nnz)
    row = tl.load(row_ptr + begin)
    found_begun = tl.load(row_ptr + begin - 1) == row
    ends_here = True
    if end < nnz:
        ends_here = tl.load(row_ptr + end) != row
    if found_begun & ends_here:
        # The share in which the row begins: the last whose first entry is preceded by another row.
        piece = pid - 1
        looking = piece > 0
        while looking:
            at = piece * share
            looking = (tl.load(row_ptr + at - 1) == row) & (tl.load(row_ptr + at) == row)
            if looking:
                piece -= 1
                looking = piece > 0
        acc, arg = join(piece, pid, carry_ptr, carry_arg_ptr, offs_f, m_f, F, REDUCE)
        y_row = row.to(tl.int64)
        if rows_ptr is not None:
            y_row = tl.load(rows_ptr + row).to(tl.int64)
        finish(
            acc, arg, y_row, False, row_scale_ptr, bias_ptr, y_ptr, arg_ptr, offs_f, m_f, F, REDUCE, MASK_F, RELU
        )  # fmt: skip


def run(
    storage: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None], spread: int,
    rows: int, value: torch.Tensor | None, x: torch.Tensor,
    row_scale: torch.Tensor | None, col_scale: torch.Tensor | None, reduce: str,
    y: torch.Tensor, arg: torch.Tensor | None, route: torch.Tensor | None,
    bias: torch.Tensor | None, relu: bool, rows_of: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Launch both kernels over (row, col, perm) into y and arg. rows_of: row of y that each row number stands for."""
    row, col, perm = storage
    nnz, F = col.shape[0], x.shape[1]
    config = pick_coo(nnz, spread, F, x.dtype, backend_of(x.device))
    tiles, programs = ceil_div(F, config.block_f), ceil_div(nnz, config.share)
    carry_dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    carry = torch.empty((programs, 2, F), dtype=carry_dtype, device=x.device)
    carry_arg = None if arg is None else torch.empty((programs, 2, F), dtype=col.dtype, device=x.device)
    meta = {"REDUCE": reduce, "BLOCK_F": config.block_f, "MASK_F": config.mask_f, "OVERLAP": config.overlap}
    meta["RELU"] = relu
    launch(
        coo_spmm_kernel, (programs, tiles), row, col, perm, value, x, row_scale, col_scale, route, bias, y, arg,
        carry, carry_arg, rows_of, rows, nnz, F, x.stride(0), config.share,
        BATCH=config.batch, SCAN=16, AHEAD=config.ahead, **meta, **config.options,
    )  # fmt: skip
    if programs > 1:
        launch(
            coo_spmm_join_kernel, (programs - 1, tiles), row, row_scale, bias, carry, carry_arg, y, arg, rows_of,
            nnz, F, config.share, **meta, **config.options,
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
    row, col, *order = storage.tensors
    perm = order[0] if order and (value is not None or with_arg or route is not None) else None
    x, y, arg = operands(x, rows, col, with_arg)
    if not y.numel():
        return y, arg
    if not col.shape[0]:
        return fill_empty(y, arg, bias, relu)
    run(
        (row, col, perm), *storage.meta, rows, value, x, row_scale, col_scale, reduce,
        y, arg, route, bias, relu,
    )  # fmt: skip
    return y, arg


def coordinates(storage: Storage, rows: int, cols: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `formats.Format`."""
    row, col, *order = storage.tensors
    return row.long(), col.long(), order[0].long() if order else torch.arange(col.shape[0], device=col.device)


def matrix_bytes(storage: Storage, value_bytes: int) -> int:
    """See `formats.Format`."""
    row, col, *order = storage.tensors
    return nbytes(row, col, *(order if value_bytes else ())) + value_bytes * col.shape[0]


register(Format("coo", build, spmm, coordinates, matrix_bytes))
