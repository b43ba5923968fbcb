"""HYB: the first entries of every row in slices, the rest of long rows in COO. For hubs over a body of short rows.

N. Bell and M. Garland, "Implementing sparse matrix-vector multiplication on throughput-oriented processors", SC 2009,
with one change: theirs pads the body as ELL does, ours as SELL-C-sigma does, so that the body can be as wide as a short
row is long.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from . import coo, slices
from .config import ceil_div
from .ell import check_lanes
from .formats import Format, Storage, nbytes, register
from .pattern import Pattern

# Storage: tensors [slice, full, rows, col, slots] of the body as in `slices`, tail [rows] (which of the long rows a row
# is, or -1), long [long rows], and of the tail, sorted: row [tail] (which of the long rows), col [tail], entry [tail];
# meta [width, spread].


def build(pattern: Pattern, transposed: bool, params: Mapping[str, int], limit: int) -> Storage:
    """See `formats.Format`. width 0 stands for twice the mean of the row lengths, at least 4.

    Raises ValueError: `lanes` is no power of two, `width` negative, `sigma` not positive; over the limit.
    """
    lanes = slices.lanes_for(check_lanes(params["lanes"]), pattern.shape[transposed])
    width, sigma = params["width"], params["sigma"]
    if width < 0:
        raise ValueError(f"width: need 0 or more, got {width}")
    if sigma < 1:
        raise ValueError(f"sigma: need at least 1, got {sigma}")
    counts = pattern.row_counts(transposed)
    rows = counts.shape[0]
    width = width or max(ceil_div(2 * pattern.nnz, max(rows, 1)), 4)
    body = counts.clamp(max=width)
    row, col, order = pattern.sorted(transposed)
    rowptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    in_order = slices.by_length(body, sigma)
    filled = slices.build_slices("hyb", lanes, in_order, body, rowptr, col, order, limit)

    long = (counts > width).nonzero().squeeze(1)
    tail = torch.full((rows,), -1, dtype=col.dtype, device=col.device)
    tail[long] = torch.arange(long.shape[0], dtype=col.dtype, device=col.device)
    position = torch.arange(col.shape[0], device=col.device)
    beyond = (position - rowptr[row.long()] >= width).nonzero().squeeze(1)
    entry = beyond.to(col.dtype) if order is None else order[beyond]
    storage = [*filled, tail, long.to(col.dtype), tail[row[beyond].long()], col[beyond], entry]
    return Storage(storage, [width, pattern.spread(transposed)])


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
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `formats.Launcher`. The accumulators of rows with a tail pass through memory, in fp32 or fp64."""
    (start, full, in_lane, col, slots, tail, long, tail_row, tail_col, tail_entry), (width, spread) = storage
    F = x.shape[1]
    if x.stride(1) != 1 and F > 1:
        x = x.contiguous()
    base = base_arg = None
    if long.shape[0]:
        base_dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        base = torch.empty((long.shape[0], F), dtype=base_dtype, device=x.device)
        base_arg = torch.empty((long.shape[0], F), dtype=col.dtype, device=x.device) if with_arg else None
    y, arg = slices.run(
        (start, full, in_lane, col, slots), in_lane.shape[0], rows, width, 0, spread,
        value, x, row_scale, col_scale, reduce, with_arg, route, bias, relu,
        (None if base is None else tail, base, base_arg),
    )  # fmt: skip
    if base is not None and y.numel():
        perm = tail_entry if value is not None or with_arg or route is not None else None
        coo.run(
            (tail_row, tail_col, perm), spread, rows, value, x, row_scale, col_scale, reduce,
            y, arg if with_arg else None, route, bias, relu, (long, base, base_arg),
        )  # fmt: skip
    return y, arg


def coordinates(storage: Storage, rows: int, cols: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `formats.Format`."""
    start, _, in_lane, col, slots, _, long, tail_row, tail_col, tail_entry = storage.tensors
    body = slices.entries(in_lane.long().repeat_interleave(start.long().diff(), 0), col, slots)
    tail = (long.long()[tail_row.long()], tail_col.long(), tail_entry.long())
    row, col, entry = (torch.cat(parts) for parts in zip(body, tail))
    return row, col, entry


def matrix_bytes(storage: Storage, value_bytes: int) -> int:
    """See `formats.Format`."""
    *body, col, _, tail, long, tail_row, tail_col, tail_entry = storage.tensors
    index = nbytes(*body, col, tail, long, tail_row, tail_col, *((tail_entry,) if value_bytes else ()))
    return index + value_bytes * (col.numel() + tail_col.shape[0])


register(Format("hyb", build, spmm, coordinates, matrix_bytes, {"lanes": 8, "width": 0, "sigma": 1024}))
