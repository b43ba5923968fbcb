"""ELL: every row padded to the length of the longest. For matrices whose rows are all about as long."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from . import slices
from .config import ceil_div
from .formats import Format, Storage, check_bytes, nbytes, operands, register
from .pattern import Pattern

# Storage: tensors [col, slots], both [slices * width, lanes] as in `slices`; meta [width, steps without padding,
# spread].


def build(pattern: Pattern, transposed: bool, params: Mapping[str, int], limit: int) -> Storage:
    """See `formats.Format`. Raises ValueError: `lanes` is not a power of two; over the limit."""
    lanes = slices.lanes_for(check_lanes(params["lanes"]), pattern.shape[transposed])
    counts = pattern.row_counts(transposed)
    rows = counts.shape[0]
    groups = ceil_div(rows, lanes)
    width, full = (int(counts.max()), int(counts.min())) if rows else (0, 0)
    _, col, order = pattern.sorted(transposed)
    needed = 2 * groups * lanes * width * col.element_size()
    check_bytes("ell", needed, limit, f"{rows} rows padded to the {width} entries of the longest, for {pattern.nnz}")
    rowptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    start = torch.arange(groups + 1, device=col.device) * width
    in_lane = slices.slice_rows(rows, lanes, None, col.device)
    filled = slices.fill(in_lane, start, start.diff(), counts, rowptr, col, order)
    return Storage([*filled], [width, full, pattern.spread(transposed)])


def check_lanes(lanes: int, name: str = "lanes") -> int:
    """Raises ValueError: not a power of two from 1 to 64."""
    if lanes not in (1, 2, 4, 8, 16, 32, 64):
        raise ValueError(f"{name}: need a power of two from 1 to 64, got {lanes}")
    return lanes


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
    (col, slots), (width, full, spread) = storage
    x, y, arg = operands(x, rows, col, with_arg)
    if y.numel():
        slices.run(
            (None, None, None, col, slots), "ell", ceil_div(rows, col.shape[1]), rows, width, full, spread,
            value, x, row_scale, col_scale, reduce, y, arg, route, bias, relu,
        )  # fmt: skip
    return y, arg


def coordinates(storage: Storage, rows: int, cols: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `formats.Format`."""
    (col, slots), (width, *_) = storage
    lanes = col.shape[1]
    in_lane = slices.slice_rows(rows, lanes, None, col.device)
    row = in_lane.repeat_interleave(width, 0) if width else in_lane[:0]
    return slices.entries(row, col, slots)


def matrix_bytes(storage: Storage, value_bytes: int) -> int:
    """See `formats.Format`."""
    col = storage.tensors[0]
    return nbytes(col) + value_bytes * col.numel()


register(Format("ell", build, spmm, coordinates, matrix_bytes, {"lanes": 8}))
