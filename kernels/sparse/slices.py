"""Slices of rows that are padded to one length: what ELL, SELL-C-sigma and HYB have in common.

A slice is `lanes` rows; its entries lie step by step, the first of every row, the second of every row, and so on. Index
arrays are [steps of all slices, lanes]: `col` (-1 where a row has no entry left) and `slots`, the number of the entry
(-1 likewise). The last slice is filled up with rows that are there already, whose results are written twice and alike,
so that no lane ever lies outside of the matrix.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..launch import launch
from ..target import backend_of
from .config import ceil_div, pick_lanes
from .fold import ask, columns, row_at, start
from .formats import check_bytes, in_slots
from .lanes import finish_lanes, gather, signs, take, weights


@triton.jit
def _steps(
    acc, arg, begin, end, in_slice, sign, col_ptr, slots_ptr, value_ptr, x_ptr, col_scale_ptr, route_ptr,
    offs_f, m_f, F, stride_x, last_step,
    PADDED: tl.constexpr, C: tl.constexpr, REDUCE: tl.constexpr, MASK_F: tl.constexpr, WITH_ARG: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Fold steps begin to end - 1 of lanes in_slice [LANES, 1] into (acc, arg); PADDED: some may have no entry."""
    for step in range(begin, end):
        at = step * C + in_slice
        if AHEAD:
            later = tl.minimum(step + AHEAD, last_step) * C + in_slice
            ask(x_ptr, col_ptr, later, later, offs_f[None, :], m_f[None, :], stride_x)
        k = tl.load(col_ptr + at)
        present = k >= 0
        if PADDED:
            k = tl.maximum(k, 0)
        entry = k
        if slots_ptr is not None:
            entry = tl.load(slots_ptr + at)
        w = weights(None if value_ptr is None else value_ptr + at, col_scale_ptr, k, acc.dtype)
        x = gather(x_ptr, k, offs_f, m_f, stride_x, acc.dtype, MASK_F)
        acc, arg = take(
            acc, arg, x, w, sign, entry, k, present, route_ptr, offs_f, m_f, F, PADDED, WITH_ARG, REDUCE
        )  # fmt: skip
    return acc, arg


@triton.jit
def slices_spmm_kernel(
    slice_ptr, full_ptr, rows_ptr, col_ptr, slots_ptr, value_ptr, x_ptr, row_scale_ptr, col_scale_ptr, route_ptr,
    bias_ptr, y_ptr, arg_ptr, slices, rows, steps, width, full, F, stride_x, share, tiles,
    C: tl.constexpr, LANES: tl.constexpr, AHEAD: tl.constexpr,
    REDUCE: tl.constexpr, RELU: tl.constexpr, BLOCK_F: tl.constexpr, MASK_F: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """y[i, f] = reduce over entries e = (i, k) of row_scale[i] value[e] col_scale[k] x[k, f].

    Slice s has steps slice[s] to slice[s + 1] - 1, in the first full[s] of which no row is padded; without slice, every
    slice has `width` steps and `full` of these. Its rows are rows[s, :], without rows those from s * C on.
    col, slots, value: [steps, C]; x: [K, F] with rows stride_x apart; route: [K, F]; y, arg: [rows, F].
    Program (p, q) owns slices p * share to (p + 1) * share - 1 (with slice those that end in as many steps of the walk,
    see `row_at`) in tiles q, q + the grid's second side, ... of BLOCK_F columns: one tile on a GPU, all of them on a
    CPU, which has the next piece of a row in cache by then. Of a slice LANES rows are taken at a time.
    """
    acc_dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    first = tl.program_id(0).to(tl.int64) * share
    if slice_ptr is None:
        last = tl.minimum(first + share, slices)
    else:
        last = row_at(first + share, slice_ptr, slices)
        first = row_at(first, slice_ptr, slices)
    for s in range(first, last):
        if slice_ptr is None:
            begin = s * width
            end = begin + width
            padded = begin + full
        else:
            begin = tl.load(slice_ptr + s).to(tl.int64)
            end = tl.load(slice_ptr + s + 1).to(tl.int64)
            padded = begin + tl.load(full_ptr + s)
        for part in range(0, C, LANES):
            in_slice = part + tl.arange(0, LANES)[:, None]
            if rows_ptr is None:
                r = tl.minimum(s * C, rows - C) + in_slice
            else:
                r = tl.load(rows_ptr + s * C + in_slice)
            sign = signs(row_scale_ptr, r, acc_dtype, REDUCE)
            is_empty = in_slice < 0
            if REDUCE != "sum":
                is_empty = tl.load(col_ptr + begin * C + in_slice, mask=(in_slice >= 0) & (begin < end), other=-1) < 0
            if AHEAD and rows_ptr is not None:
                # Rows of y are written in another order than they lie in, which a core does not see through either.
                later_r = tl.load(rows_ptr + tl.minimum(s + 1, slices - 1) * C + in_slice).to(tl.int64)
            for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
                offs_f, m_f = columns(tile, F, BLOCK_F, OVERLAP)
                if AHEAD and rows_ptr is not None:
                    tl.load(y_ptr + later_r * F + offs_f[None, :], mask=m_f[None, :], other=0.0, volatile=True)
                acc, arg = start(x_ptr, col_ptr, REDUCE, LANES, BLOCK_F)
                acc, arg = _steps(
                    acc, arg, begin, padded, in_slice, sign, col_ptr, slots_ptr, value_ptr, x_ptr, col_scale_ptr,
                    route_ptr, offs_f, m_f, F, stride_x, steps - 1,
                    False, C, REDUCE, MASK_F, arg_ptr is not None, AHEAD,
                )  # fmt: skip
                acc, arg = _steps(
                    acc, arg, padded, end, in_slice, sign, col_ptr, slots_ptr, value_ptr, x_ptr, col_scale_ptr,
                    route_ptr, offs_f, m_f, F, stride_x, steps - 1,
                    True, C, REDUCE, MASK_F, arg_ptr is not None, AHEAD,
                )  # fmt: skip
                finish_lanes(
                    acc, arg, r, is_empty, None, row_scale_ptr, bias_ptr, y_ptr, arg_ptr, offs_f, m_f, F,
                    REDUCE, MASK_F, RELU,
                )  # fmt: skip


def lanes_for(lanes: int, rows: int) -> int:
    """As many rows side by side as asked for, but no more than the matrix has, by a power of two."""
    while lanes > max(rows, 1):
        lanes //= 2
    return lanes


def by_length(counts: torch.Tensor, sigma: int) -> torch.Tensor | None:
    """The rows by falling length within windows of sigma rows, equals as they were; None if that is the given order."""
    rows = counts.shape[0]
    if sigma == 1 or not rows:
        return None
    window = torch.arange(rows, device=counts.device) // sigma
    return torch.argsort(window * (int(counts.max()) + 1) - counts, stable=True)


def build_slices(
    format: str, lanes: int, order: torch.Tensor | None, counts: torch.Tensor, rowptr: torch.Tensor,
    col: torch.Tensor, number: torch.Tensor | None, limit: int,
) -> list[torch.Tensor]:  # fmt: skip
    """[slice, full, rows, col, slots] of slices as long as their longest row, from CSR.

    order: the rows to take in the order of the lanes, None for all as they come; counts: entries of every row. Raises
    ValueError: over the limit.
    """
    in_lane = slice_rows(counts.shape[0] if order is None else order.shape[0], lanes, order, col.device)
    lengths = counts[in_lane]
    width, full = (lengths.amax(1), lengths.amin(1)) if in_lane.shape[0] else (lengths.sum(1),) * 2
    start = torch.nn.functional.pad(width.cumsum(0), (1, 0))
    needed = (2 * int(start[-1]) + in_lane.shape[0]) * lanes * col.element_size()
    check_bytes(
        format, needed, limit, f"slices of {lanes} rows padded to their longest, for {int(counts.sum())} entries"
    )  # fmt: skip
    filled = fill(in_lane, start, width, counts, rowptr, col, number)
    return [*(t.to(col.dtype) for t in (start, full, in_lane)), *filled]


def slice_rows(rows: int, lanes: int, order: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """Row in every lane of every slice: int64 [slices, lanes]. `order`: the rows in the order of the lanes."""
    lane = torch.arange(ceil_div(rows, lanes) * lanes, device=device).view(-1, lanes)
    if lane.shape[0]:
        lane[-1] = torch.arange(rows - lanes, rows, device=device)
    return lane if order is None else order[lane]


def fill(
    row_in_lane: torch.Tensor, slice_start: torch.Tensor, width: torch.Tensor, counts: torch.Tensor,
    rowptr: torch.Tensor, col: torch.Tensor, order: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """(col, slots) of slices, from CSR.

    row_in_lane: [slices, lanes]; slice_start: [slices + 1] first steps; width: [slices] steps; counts: [rows] entries
    of a row to take, from its first on.
    """
    slices, lanes = row_in_lane.shape
    steps = int(slice_start[-1]) if slices else 0
    of_step = torch.repeat_interleave(torch.arange(slices, device=col.device), width, output_size=steps)
    within = torch.arange(steps, device=col.device) - slice_start[of_step]
    row = row_in_lane[of_step]
    present = within[:, None] < counts[row]
    position = (rowptr[:-1].long()[row] + within[:, None]).masked_fill_(~present, 0)
    if not col.shape[0]:
        empty = torch.full((steps, lanes), -1, dtype=col.dtype, device=col.device)
        return empty, empty.clone()
    number = position if order is None else order[position]
    return (
        col[position].masked_fill_(~present, -1),
        number.to(col.dtype).masked_fill_(~present, -1),
    )


def run(
    storage: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor, torch.Tensor],
    format: str, slices: int, rows: int, width: int, full: int, spread: int,
    value: torch.Tensor | None, x: torch.Tensor, row_scale: torch.Tensor | None, col_scale: torch.Tensor | None,
    reduce: str, y: torch.Tensor, arg: torch.Tensor | None, route: torch.Tensor | None,
    bias: torch.Tensor | None, relu: bool,
) -> None:  # fmt: skip
    """Launch over (slice, full, rows, col, slots), of at least one slice, into y and arg.

    width: steps of every slice or, with slice, of the longest where that is to be a small part of a program, else 0.
    """
    slice_start, slice_full, slice_row, col, slots = storage
    F = x.shape[1]
    steps, c = col.shape
    config = pick_lanes(c, steps / slices, spread, F, x.dtype, backend_of(x.device), format)
    share, walk = config.share, slices
    if slice_start is not None:
        share, walk = share_of_walk(config.share, steps, slices, width), steps + slices
    tiles = ceil_div(F, config.block_f)
    launch(
        slices_spmm_kernel, (ceil_div(walk, share), tiles if config.options else 1),
        slice_start, slice_full, slice_row, col, slots if arg is not None or route is not None else None,
        None if value is None else in_slots(value, slots), x, row_scale, col_scale, route,
        bias, y, arg, slices, rows, steps, width, full, F, x.stride(0), share, tiles,
        C=c, LANES=config.lanes, AHEAD=config.ahead, REDUCE=reduce, RELU=relu,
        BLOCK_F=config.block_f, MASK_F=config.mask_f, OVERLAP=config.overlap, **config.options,
    )  # fmt: skip


def share_of_walk(share: int, steps: int, slices: int, width: int) -> int:
    """Steps of the walk that come to `share` slices, but at least four slices of `width`, so that programs are even."""
    return max(ceil_div(share * (steps + slices), slices), 4 * width)


def entries(
    row: torch.Tensor, col: torch.Tensor, slots: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(row, col, entry) of what is present, each entry once: row, col and slots are [steps, lanes]."""
    present = slots >= 0
    row, col, entry = row[present].long(), col[present].long(), slots[present].long()
    # Rows that fill up the last slice are there twice.
    first = torch.full((int(entry.max()) + 1 if entry.shape[0] else 0,), -1, device=entry.device)
    first[entry] = torch.arange(entry.shape[0], device=entry.device)
    first = first[first >= 0]
    return row[first], col[first], entry[first]
