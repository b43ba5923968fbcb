"""SELL-C-sigma: rows sorted by length within windows of sigma, and slices of C of them padded to their longest.

M. Kreutzer, G. Hager, G. Wellein, H. Fehske and A. R. Bishop, "A unified sparse matrix data format for efficient
general
sparse matrix-vector multiplication on modern processors with wide SIMD units", SIAM J. Sci. Comput. 36(5), 2014.
Here a lane holds a row of y and not an element, so C asks how many rows are in flight and not how wide a vector is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from . import slices
from .ell import check_lanes
from .formats import Format, Storage, nbytes, operands, register
from .pattern import Pattern

# Storage: tensors [slice [slices + 1], full [slices], rows [slices, C], col, slots [steps, C]] as in `slices`;
# meta [spread].


def build(pattern: Pattern, transposed: bool, params: Mapping[str, int], limit: int) -> Storage:
    """See `formats.Format`. Raises ValueError: c is no power of two, sigma not positive; over the limit."""
    lanes = slices.lanes_for(check_lanes(params["c"], "c"), pattern.shape[transposed])
    sigma = params["sigma"]
    if sigma < 1:
        raise ValueError(f"sigma: need at least 1, got {sigma}")
    counts = pattern.row_counts(transposed)
    _, col, number = pattern.sorted(transposed)
    rowptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    order = slices.by_length(counts, sigma)
    storage = slices.build_slices("sell", lanes, order, counts, rowptr, col, number, limit)
    return Storage(storage, [pattern.spread(transposed)])


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
    start, full, in_lane, col, slots = storage.tensors
    x, y, arg = operands(x, rows, col, with_arg)
    if y.numel():
        slices.run(
            (start, full, in_lane, col, slots), "sell", in_lane.shape[0], rows, 0, 0, *storage.meta,
            value, x, row_scale, col_scale, reduce, y, arg, route, bias, relu,
        )  # fmt: skip
    return y, arg


def coordinates(storage: Storage, rows: int, cols: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `formats.Format`."""
    start, _, in_lane, col, slots = storage.tensors
    return slices.entries(in_lane.long().repeat_interleave(start.long().diff(), 0), col, slots)


def matrix_bytes(storage: Storage, value_bytes: int) -> int:
    """See `formats.Format`."""
    *index, col, _ = storage.tensors
    return nbytes(*index, col) + value_bytes * col.numel()


register(Format("sell", build, spmm, coordinates, matrix_bytes, {"c": 8, "sigma": 1024}))
