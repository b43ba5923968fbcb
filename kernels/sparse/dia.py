"""DIA: entries by diagonal, with no index at all for each of them. For banded matrices and stencils."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from ..launch import launch
from ..target import backend_of
from .config import ceil_div, pick_lanes
from .fold import columns, start
from .formats import Format, Storage, check_bytes, in_slots, nbytes, operands, refuse_repeats, register
from .lanes import finish_lanes, gather, signs, take, weights
from .pattern import Pattern
from .slices import lanes_for

# Storage: tensors [offset [diagonals], rising; slots [diagonals, rows], the number of entry (i, i + offset) or -1];
# meta [columns, every place on a diagonal is an entry, first row and end of the rows in which every diagonal is
# inside].

_LANES = 8


def build(pattern: Pattern, transposed: bool, params: Mapping[str, int], limit: int) -> Storage:
    """See `formats.Format`. Raises ValueError: over the limit; repeated coordinates."""
    row, col, order = pattern.sorted(transposed)
    rows, cols = pattern.shape[::-1] if transposed else pattern.shape
    refuse_repeats("dia", row, col)
    distance = col.long() - row.long()
    offset, diagonal = torch.unique(distance, return_inverse=True)
    needed = offset.shape[0] * rows * col.element_size()
    why = f"{offset.shape[0]} diagonals of {rows} rows for {pattern.nnz} entries"
    check_bytes("dia", needed, limit, why)
    slots = torch.full((offset.shape[0], rows), -1, dtype=col.dtype, device=col.device)
    number = torch.arange(col.shape[0], device=col.device) if order is None else order
    slots[diagonal, row.long()] = number.to(col.dtype)
    inside = (torch.clamp(cols - offset, max=rows) - torch.clamp(-offset, min=0)).clamp(min=0)
    complete = int(inside.sum()) == col.shape[0]
    first = max(-int(offset[0]), 0) if offset.shape[0] else 0
    end = min(cols - int(offset[-1]), rows) if offset.shape[0] else rows
    return Storage([offset.to(col.dtype), slots], [cols, int(complete), first, max(end, first)])


@triton.jit
def dia_spmm_kernel(
    offset_ptr, slots_ptr, value_ptr, x_ptr, row_scale_ptr, col_scale_ptr, route_ptr, y_ptr, arg_ptr,
    diagonals, rows, cols, inner_first, inner_end, F, stride_x, groups, share, tiles,
    COMPLETE: tl.constexpr, LANES: tl.constexpr,
    REDUCE: tl.constexpr, BLOCK_F: tl.constexpr, MASK_F: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """y[i, f] = reduce over entries e = (i, k) of row_scale[i] value[e] col_scale[k] x[k, f].

    offset: [diagonals]; slots, value: [diagonals, rows]; x: [cols, F] with rows stride_x apart; route: [cols, F];
    y, arg: [rows, F]. LANES rows are taken side by side, the last of them moved back to end at `rows`. With COMPLETE
    every place that is inside is an entry, and rows inner_first to inner_end - 1 have all of theirs inside.
    Program (p, q) owns groups p * share to (p + 1) * share - 1 in tiles q, q + the grid's second side, ... of columns.
    """
    acc_dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    lanes = tl.arange(0, LANES)[:, None]
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, groups)
    for group in range(first, last):
        row0 = tl.minimum(group * LANES, rows - LANES)
        r = row0 + lanes
        sign = signs(row_scale_ptr, r, acc_dtype, REDUCE)
        is_inner = (row0 >= inner_first) & (row0 + LANES <= inner_end)
        for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
            offs_f, m_f = columns(tile, F, BLOCK_F, OVERLAP)
            acc, arg = start(x_ptr, offset_ptr, REDUCE, LANES, BLOCK_F)
            seen = r * 0
            # Without padding nothing is masked. The loop is empty elsewhere.
            unmasked = diagonals * 0
            if COMPLETE:
                unmasked = tl.where(is_inner, diagonals, 0)
                seen += unmasked
            for d in range(unmasked):
                at = (row0 * 0 + d) * rows + r  # in 64 bits
                k = r + tl.load(offset_ptr + d)
                entry = k
                if arg_ptr is not None or route_ptr is not None:
                    entry = tl.load(slots_ptr + at)
                w = weights(None if value_ptr is None else value_ptr + at, col_scale_ptr, k, acc_dtype)
                x = gather(x_ptr, k, offs_f, m_f, stride_x, acc_dtype, MASK_F)
                acc, arg = take(
                    acc, arg, x, w, sign, entry, k, None, route_ptr, offs_f, m_f, F,
                    False, arg_ptr is not None, REDUCE,
                )  # fmt: skip
            for d in range(unmasked, diagonals):
                at = (row0 * 0 + d) * rows + r  # in 64 bits
                k = r + tl.load(offset_ptr + d)
                present = (k >= 0) & (k < cols)
                entry = k
                if not COMPLETE or arg_ptr is not None or route_ptr is not None:
                    entry = tl.load(slots_ptr + at)
                    present = present & (entry >= 0)
                k = tl.where(present, k, 0)
                seen += present.to(seen.dtype)
                w = weights(None if value_ptr is None else value_ptr + at, col_scale_ptr, k, acc_dtype)
                x = gather(x_ptr, k, offs_f, m_f, stride_x, acc_dtype, MASK_F)
                acc, arg = take(
                    acc, arg, x, w, sign, entry, k, present, route_ptr, offs_f, m_f, F,
                    True, arg_ptr is not None, REDUCE,
                )  # fmt: skip
            finish_lanes(
                acc, arg, r, seen == 0, None, row_scale_ptr, y_ptr, arg_ptr, offs_f, m_f, F, REDUCE, MASK_F
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `formats.Launcher`."""
    (offset, slots), (cols, complete, first, end) = storage
    F = x.shape[1]
    x, y, arg = operands(x, rows, offset, with_arg)
    if not y.numel():
        return y, arg
    if not cols:
        return y.zero_(), arg.fill_(-1)
    lanes = lanes_for(_LANES, rows)
    config = pick_lanes(lanes, offset.shape[0], F, x.dtype, backend_of(x.device))
    groups, tiles = ceil_div(rows, lanes), ceil_div(F, config.block_f)
    launch(
        dia_spmm_kernel, (ceil_div(groups, config.share), tiles if config.options else 1),
        offset, slots, None if value is None else in_slots(value, slots), x, row_scale, col_scale, route,
        y, arg if with_arg else None,
        offset.shape[0], rows, cols, first, end, F, x.stride(0), groups, config.share, tiles,
        COMPLETE=bool(complete), LANES=lanes, REDUCE=reduce,
        BLOCK_F=config.block_f, MASK_F=config.mask_f, OVERLAP=config.overlap, **config.options,
    )  # fmt: skip
    return y, arg


def coordinates(storage: Storage, rows: int, cols: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `formats.Format`."""
    offset, slots = storage.tensors
    diagonal, row = (slots >= 0).nonzero(as_tuple=True)
    return row, row + offset.long()[diagonal], slots[diagonal, row].long()


def matrix_bytes(storage: Storage, value_bytes: int) -> int:
    """See `formats.Format`. The numbers of the entries are read only to tell them from padding."""
    (offset, slots), (_, complete, _, _) = storage
    return nbytes(offset) + (0 if complete else nbytes(slots)) + value_bytes * slots.numel()


register(Format("dia", build, spmm, coordinates, matrix_bytes))
