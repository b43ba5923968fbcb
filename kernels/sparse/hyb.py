"""HYB: short rows in slices, long rows in COO. For hubs over a body of short rows.

N. Bell and M. Garland, "Implementing sparse matrix-vector multiplication on throughput-oriented processors", SC 2009,
with two changes. Theirs pads the body as ELL does, ours as SELL-C-sigma does, so that the body can be as wide as a
short row is long. Theirs cuts a long row, whose sum then passes through memory; here it is in COO as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from . import coo, slices
from .config import ceil_div
from .ell import check_lanes
from .formats import Format, Storage, in_slots, nbytes, operands, register
from .pattern import Pattern

# Storage: tensors [slice, full, rows, col, slots] of the short rows as in `slices`, long [long rows], and of their
# entries, sorted: row (which of the long rows), col, entry [entries of long rows]; meta [width, spread].


def build(pattern: Pattern, transposed: bool, params: Mapping[str, int], limit: int) -> Storage:
    """See `formats.Format`. width 0 stands for WIDTH_OVER_MEAN times the mean of the row lengths, at least 4.

    Raises ValueError: `lanes` is no power of two, `width` negative, `sigma` not positive; over the limit.
    """
    width, sigma = params["width"], params["sigma"]
    if width < 0:
        raise ValueError(f"width: need 0 or more, got {width}")
    if sigma < 1:
        raise ValueError(f"sigma: need at least 1, got {sigma}")
    counts = pattern.row_counts(transposed)
    width = width or default_width(counts.shape[0], pattern.nnz)
    is_long = counts > width
    short, long = (~is_long).nonzero().squeeze(1), is_long.nonzero().squeeze(1)
    lanes = slices.lanes_for(check_lanes(params["lanes"]), short.shape[0])
    row, col, number = pattern.sorted(transposed)
    rowptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    by_length = slices.by_length(counts[short], sigma)
    order = short if by_length is None else short[by_length]
    filled = slices.build_slices("hyb", lanes, order, counts, rowptr, col, number, limit)

    which = torch.empty_like(counts)
    which[long] = torch.arange(long.shape[0], device=col.device)
    position = is_long[row.long()].nonzero().squeeze(1)
    entry = position if number is None else number[position]
    parts = (long, which[row[position].long()], col[position], entry)
    return Storage([*filled, *(part.to(col.dtype) for part in parts)], [width, pattern.spread(transposed)])


def default_width(rows: int, nnz: int) -> int:
    """Entries of the longest row that is taken as short, where none are asked for."""
    return max(ceil_div(WIDTH_OVER_MEAN * nnz, max(rows, 1)), 4)


WIDTH_OVER_MEAN = 8


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
    (start, full, in_lane, col, slots, long, long_row, long_col, entry), (width, spread) = storage
    x, y, arg = operands(x, rows, col, with_arg)
    if not y.numel():
        return y, arg
    if in_lane.shape[0]:
        slices.run(
            (start, full, in_lane, col, slots), "hyb", in_lane.shape[0], rows, width, 0, spread,
            value, x, row_scale, col_scale, reduce, y, arg, route, bias, relu,
        )  # fmt: skip
    if long.shape[0]:
        perm = None
        if with_arg or route is not None:
            perm = entry
        elif value is not None:
            value = in_slots(value, entry)
        coo.run(
            (long_row, long_col, perm), spread, rows, value, x, row_scale, col_scale, reduce,
            y, arg, route, bias, relu, long,
        )  # fmt: skip
    return y, arg


def coordinates(storage: Storage, rows: int, cols: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `formats.Format`."""
    start, _, in_lane, col, slots, long, long_row, long_col, long_entry = storage.tensors
    short = slices.entries(in_lane.long().repeat_interleave(start.long().diff(), 0), col, slots)
    rest = (long.long()[long_row.long()], long_col.long(), long_entry.long())
    row, col, entry = (torch.cat(parts) for parts in zip(short, rest))
    return row, col, entry


def matrix_bytes(storage: Storage, value_bytes: int) -> int:
    """See `formats.Format`."""
    *short, col, _, long, long_row, long_col, _ = storage.tensors
    return nbytes(*short, col, long, long_row, long_col) + value_bytes * (col.numel() + long_col.shape[0])


register(Format("hyb", build, spmm, coordinates, matrix_bytes, {"lanes": 8, "width": 0, "sigma": 1024}))
