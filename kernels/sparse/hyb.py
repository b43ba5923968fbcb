"""HYB: the first entries of every row in ELL, the rest of long rows in COO. For a few hubs over an even body.

N. Bell and M. Garland, "Implementing sparse matrix-vector multiplication on throughput-oriented processors", SC 2009.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from . import coo, slices
from .config import ceil_div
from .ell import check_lanes
from .formats import Format, Storage, check_bytes, nbytes, register
from .pattern import Pattern

# Storage: tensors [col, slots] of the body as in `slices`, tail [rows] (which of the long rows a row is, or -1),
# rows [long rows], and of the tail, sorted: row [tail] (which of the long rows), col [tail], entry [tail];
# meta [width, steps without padding].


def build(pattern: Pattern, transposed: bool, params: Mapping[str, int], limit: int) -> Storage:
    """See `formats.Format`. width 0 stands for the 2/3 quantile of the row lengths, so that few rows have a tail.

    Raises ValueError: `lanes` is no power of two, `width` negative; over the limit.
    """
    lanes = slices.lanes_for(check_lanes(params["lanes"]), pattern.shape[transposed])
    width = params["width"]
    if width < 0:
        raise ValueError(f"width: need 0 or more, got {width}")
    counts = pattern.row_counts(transposed)
    rows = counts.shape[0]
    if rows and not width:
        width = int(counts.kthvalue(max(2 * rows // 3, 1)).values)
    body = counts.clamp(max=width)
    width, full = (int(body.max()), int(body.min())) if rows else (0, 0)
    row, col, order = pattern.sorted(transposed)
    groups = ceil_div(rows, lanes)
    needed = 2 * groups * lanes * width * col.element_size()
    check_bytes("hyb", needed, limit, f"{rows} rows padded to {width} entries, for {pattern.nnz}")
    rowptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    start = torch.arange(groups + 1, device=col.device) * width
    in_lane = slices.slice_rows(rows, lanes, None, col.device)
    filled = slices.fill(in_lane, start, start.diff(), body, rowptr, col, order)

    long = (counts > width).nonzero().squeeze(1)
    tail = torch.full((rows,), -1, dtype=col.dtype, device=col.device)
    tail[long] = torch.arange(long.shape[0], dtype=col.dtype, device=col.device)
    position = torch.arange(col.shape[0], device=col.device)
    beyond = (position - rowptr[row.long()] >= width).nonzero().squeeze(1)
    entry = beyond.to(col.dtype) if order is None else order[beyond]
    storage = [*filled, tail, long.to(col.dtype), tail[row[beyond].long()], col[beyond], entry]
    return Storage(storage, [width, full])


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
    """See `formats.Launcher`. The accumulators of rows with a tail pass through memory, in fp32 or fp64."""
    (col, slots, tail, long, tail_row, tail_col, tail_entry), (width, full) = storage
    F = x.shape[1]
    if x.stride(1) != 1 and F > 1:
        x = x.contiguous()
    base = base_arg = None
    if long.shape[0]:
        base_dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        base = torch.empty((long.shape[0], F), dtype=base_dtype, device=x.device)
        base_arg = torch.empty((long.shape[0], F), dtype=col.dtype, device=x.device) if with_arg else None
    y, arg = slices.run(
        (None, None, None, col, slots), ceil_div(rows, col.shape[1]), rows, width, full, width,
        value, x, row_scale, col_scale, reduce, with_arg, route,
        (None if base is None else tail, base, base_arg),
    )  # fmt: skip
    if base is not None and y.numel():
        perm = tail_entry if value is not None or with_arg or route is not None else None
        coo.run(
            (tail_row, tail_col, perm), rows, value, x, row_scale, col_scale, reduce, y, arg if with_arg else None,
            route, (long, base, base_arg),
        )  # fmt: skip
    return y, arg


def coordinates(storage: Storage, rows: int, cols: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `formats.Format`."""
    (col, slots, _, long, tail_row, tail_col, tail_entry), (width, _) = storage
    in_lane = slices.slice_rows(rows, col.shape[1], None, col.device)
    body = slices.entries(in_lane.repeat_interleave(width, 0) if width else in_lane[:0], col, slots)
    tail = (long.long()[tail_row.long()], tail_col.long(), tail_entry.long())
    row, col, entry = (torch.cat(parts) for parts in zip(body, tail))
    return row, col, entry


def matrix_bytes(storage: Storage, value_bytes: int) -> int:
    """See `formats.Format`."""
    col, _, tail, long, tail_row, tail_col, tail_entry = storage.tensors
    index = nbytes(col, tail, long, tail_row, tail_col, *((tail_entry,) if value_bytes else ()))
    return index + value_bytes * (col.numel() + tail_col.shape[0])


register(Format("hyb", build, spmm, coordinates, matrix_bytes, {"lanes": 8, "width": 0}))
