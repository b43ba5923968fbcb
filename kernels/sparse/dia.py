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
from .formats import Format, Storage, check_bytes, fill_empty, in_slots, nbytes, operands, refuse_repeats, register
from .lanes import finish_lanes, signs, take, weights
from .pattern import Pattern
from .slices import entries, lanes_for, slice_rows

# Storage: tensors [offset [diagonals], rising; full [groups], 1 where every place of a group is an entry; slots
# [groups, diagonals, C], the number of entry (i, i + offset) or -1]; meta [columns]. A group is C rows, the last ones
# moved back to end with the matrix. What a group needs is one run of memory; diagonals one after the other would be
# as many streams as there are diagonals, more than a CPU fetches ahead of.

_ROWS = 8


def build(pattern: Pattern, transposed: bool, params: Mapping[str, int], limit: int) -> Storage:
    """See `formats.Format`. Raises ValueError: over the limit; repeated coordinates."""
    row, col, order = pattern.sorted(transposed)
    rows, cols = pattern.shape[::-1] if transposed else pattern.shape
    refuse_repeats("dia", row, col)
    distance = col.long() - row.long()
    offset, diagonal = torch.unique(distance, return_inverse=True)
    c = lanes_for(_ROWS, rows)
    groups = ceil_div(rows, c)
    needed = groups * c * offset.shape[0] * col.element_size()
    check_bytes("dia", needed, limit, f"{offset.shape[0]} diagonals of {rows} rows for {pattern.nnz} entries")
    slots = torch.full((groups, offset.shape[0], c), -1, dtype=col.dtype, device=col.device)
    number = (torch.arange(col.shape[0], device=col.device) if order is None else order).to(col.dtype)
    row = row.long()
    slots[row // c, diagonal, row % c] = number
    if rows % c:
        # The last rows, all of them this time.
        first = rows - c
        slots[-1].fill_(-1)
        inside = row >= first
        slots[-1, diagonal[inside], row[inside] - first] = number[inside]
    full = (slots >= 0).flatten(1).all(1).to(col.dtype)
    return Storage([offset.to(col.dtype), full, slots], [cols])


@triton.jit
def _diagonals(
    acc, arg, seen, begin, end, group, row0, in_group, sign, offset_ptr, slots_ptr, value_ptr, x_ptr, col_scale_ptr,
    route_ptr, offs_f, m_f, diagonals, F, stride_x,
    PADDED: tl.constexpr, C: tl.constexpr, REDUCE: tl.constexpr, MASK_F: tl.constexpr, WITH_ARG: tl.constexpr,
):  # fmt: skip
    """Fold diagonals begin to end - 1 of rows row0 + in_group [LANES, 1] into (acc, arg), and count entries in seen."""
    # One address for all the lanes, whose rows of x lie side by side.
    x_group = x_ptr + row0 * stride_x
    for d in range(begin, end):
        at = (group * diagonals + d) * C + in_group
        offset = tl.load(offset_ptr + d).to(tl.int64)
        k = row0 + offset + in_group
        entry = k
        present = k >= 0
        if PADDED or WITH_ARG or route_ptr is not None:
            entry = tl.load(slots_ptr + at)
            present = entry >= 0
        x_ptrs = (x_group + offset * stride_x) + in_group * stride_x + offs_f[None, :]
        if PADDED:
            seen += present.to(seen.dtype)
            k = tl.where(present, k, 0)
            x = tl.load(x_ptrs, mask=present & m_f[None, :], other=0.0)
        elif MASK_F:
            x = tl.load(x_ptrs, mask=m_f[None, :], other=0.0)
        else:
            x = tl.load(x_ptrs)
        w = weights(None if value_ptr is None else value_ptr + at, col_scale_ptr, k, acc.dtype)
        acc, arg = take(
            acc, arg, x.to(acc.dtype), w, sign, entry, k, present, route_ptr, offs_f, m_f, F, PADDED, WITH_ARG, REDUCE
        )  # fmt: skip
    return acc, arg, seen


@triton.jit
def dia_spmm_kernel(
    offset_ptr, full_ptr, slots_ptr, value_ptr, x_ptr, row_scale_ptr, col_scale_ptr, route_ptr,
    bias_ptr, y_ptr, arg_ptr,
    diagonals, rows, F, stride_x, groups, share, tiles, C: tl.constexpr, LANES: tl.constexpr,
    REDUCE: tl.constexpr, RELU: tl.constexpr, BLOCK_F: tl.constexpr, MASK_F: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """y[i, f] = reduce over entries e = (i, k) of row_scale[i] value[e] col_scale[k] x[k, f].

    offset: [diagonals]; full: [groups]; slots, value: [groups, diagonals, C]; x: [K, F] with rows stride_x apart;
    route: [K, F]; y, arg: [rows, F]. Group g is rows g * C to (g + 1) * C - 1, the last one rows - C to rows - 1.
    Program (p, q) owns groups p * share to (p + 1) * share - 1 in tiles q, q + the grid's second side, ... of columns.
    """
    acc_dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, groups)
    for group in range(first, last):
        row0 = tl.minimum(group * C, rows - C)
        # Where nothing is padded nothing is masked: the one loop or the other has no turns.
        unmasked = tl.where(tl.load(full_ptr + group) != 0, diagonals, 0)
        for part in range(0, C, LANES):
            in_group = part + tl.arange(0, LANES)[:, None]
            r = row0 + in_group
            sign = signs(row_scale_ptr, r, acc_dtype, REDUCE)
            for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
                offs_f, m_f = columns(tile, F, BLOCK_F, OVERLAP)
                acc, arg = start(x_ptr, offset_ptr, REDUCE, LANES, BLOCK_F)
                seen = r * 0 + unmasked
                acc, arg, seen = _diagonals(
                    acc, arg, seen, 0, unmasked, group, row0, in_group, sign, offset_ptr, slots_ptr, value_ptr, x_ptr,
                    col_scale_ptr, route_ptr, offs_f, m_f, diagonals, F, stride_x,
                    False, C, REDUCE, MASK_F, arg_ptr is not None,
                )  # fmt: skip
                acc, arg, seen = _diagonals(
                    acc, arg, seen, unmasked, diagonals, group, row0, in_group, sign, offset_ptr, slots_ptr, value_ptr,
                    x_ptr, col_scale_ptr, route_ptr, offs_f, m_f, diagonals, F, stride_x,
                    True, C, REDUCE, MASK_F, arg_ptr is not None,
                )  # fmt: skip
                finish_lanes(
                    acc, arg, r, seen == 0, None, row_scale_ptr, bias_ptr, y_ptr, arg_ptr, offs_f, m_f, F,
                    REDUCE, MASK_F, RELU,
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
    (offset, full, slots), (cols,) = storage
    F = x.shape[1]
    x, y, arg = operands(x, rows, offset, with_arg)
    if not y.numel():
        return y, arg
    if not cols:
        return fill_empty(y, arg, bias, relu)
    groups, diagonals, c = slots.shape
    config = pick_lanes(c, diagonals, 0, F, x.dtype, backend_of(x.device), "dia")
    tiles = ceil_div(F, config.block_f)
    launch(
        dia_spmm_kernel, (ceil_div(groups, config.share), tiles if config.options else 1),
        offset, full, slots, None if value is None else in_slots(value, slots), x, row_scale, col_scale, route,
        bias, y, arg, diagonals, rows, F, x.stride(0), groups, config.share, tiles,
        C=c, LANES=config.lanes, REDUCE=reduce, RELU=relu,
        BLOCK_F=config.block_f, MASK_F=config.mask_f, OVERLAP=config.overlap, **config.options,
    )  # fmt: skip
    return y, arg


def coordinates(storage: Storage, rows: int, cols: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `formats.Format`."""
    offset, _, slots = storage.tensors
    row = slice_rows(rows, slots.shape[2], None, slots.device)[:, None, :].expand_as(slots)
    return entries(row, row + offset.long()[None, :, None], slots)


def matrix_bytes(storage: Storage, value_bytes: int) -> int:
    """See `formats.Format`. The numbers of the entries are read only to tell them from padding."""
    offset, full, slots = storage.tensors
    padded = int((full == 0).sum()) * slots[:1].numel() * slots.element_size()
    return nbytes(offset, full) + padded + value_bytes * slots.numel()


register(Format("dia", build, spmm, coordinates, matrix_bytes))
