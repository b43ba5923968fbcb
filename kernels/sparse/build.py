"""Checks at the door of `SparseMatrix`: what is let in, and what is said to who is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

INDEX_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
VALUE_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def as_index(
    name: str, x: Any, like: torch.Tensor | None = None, device: torch.device | None = None
) -> torch.Tensor:
    """Indices as a 1-D integer tensor, of the length and on the device of `like` if given."""
    given_tensor = torch.is_tensor(x)
    if not given_tensor:
        x = np.asarray(x)
        if x.size == 0 and x.dtype == np.float64:  # what NumPy makes of an empty list
            x = x.astype(np.int64)
        if x.dtype.kind == "u" and x.dtype != np.uint8:
            if x.dtype == np.uint64 and x.size and x.max() > np.iinfo(np.int64).max:
                raise ValueError(f"{name}: index {x.max()} is out of bounds")
            x = x.astype(np.int64)
        if x.dtype.kind not in "iu":
            raise TypeError(f"{name}: need integers, got {x.dtype}")
        x = torch.tensor(x)
    x = x.detach()
    if x.dtype not in INDEX_DTYPES:
        raise TypeError(f"{name}: need integers, got {x.dtype}")
    if x.layout != torch.strided or x.dim() != 1:
        raise ValueError(f"{name}: need one dimension, got shape {tuple(x.shape)}")
    if like is not None:
        device = like.device
        if x.shape[0] != like.shape[0]:
            raise ValueError(f"{name}: need as many as the {like.shape[0]} row indices, got {x.shape[0]}")
    if device is not None and x.device != device:
        if given_tensor:
            raise ValueError(f"{name}: need all tensors on one device, {device}, got {x.device}")
        x = x.to(device)
    # Differences of small types could wrap around when entries are put in order.
    return x if x.dtype in (torch.int32, torch.int64) else x.to(torch.int64)


def as_value(name: str, x: Any, nnz: int, device: torch.device) -> torch.Tensor | None:
    """Values as a floating-point tensor [nnz] on `device`, or None."""
    if x is None:
        return None
    given_tensor = torch.is_tensor(x)
    if not given_tensor:
        x = torch.tensor(x)  # Python floats become torch's default dtype, arrays keep theirs
    if x.is_complex():
        raise TypeError(f"{name}: complex values are not supported, got {x.dtype}")
    if x.dtype not in VALUE_DTYPES:
        raise TypeError(
            f"{name}: need values of dtype float64, float32, bfloat16 or float16, or None for an unweighted matrix; "
            f"got {x.dtype}"
        )
    if tuple(x.shape) != (nnz,):
        raise ValueError(f"{name}: need one value for each of the {nnz} entries, got shape {tuple(x.shape)}")
    if x.device != device:
        if given_tensor:
            raise ValueError(f"{name}: need all tensors on one device, {device}, got {x.device}")
        x = x.to(device)
    return x


def check_shape(shape: Any, name: str = "shape") -> tuple[int, int]:
    try:
        rows, cols = (int(side) for side in shape)
        exact = all(side == int(side) for side in shape)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: need (rows, columns), got {shape!r}") from None
    if rows < 0 or cols < 0 or not exact or max(rows, cols) >= 2**63:
        raise ValueError(f"{name}: need two sizes that are integers from 0 up, got {shape!r}")
    return rows, cols


def check_bounds(row: torch.Tensor, col: torch.Tensor, shape: tuple[int, int] | None) -> tuple[int, int]:
    """The shape, found from the indices if it is None; every index is inside."""
    found = []
    for axis, (name, index) in enumerate((("row", row), ("col", col))):
        low, high = (int(x) for x in torch.aminmax(index)) if index.shape[0] else (0, -1)
        if low < 0:
            raise ValueError(f"{name}: index {low} is negative")
        if shape is not None and high >= shape[axis]:
            raise ValueError(f"{name}: index {high} is out of bounds for shape {shape}")
        found.append(high + 1)
    return shape if shape is not None else (found[0], found[1])


def check_rowptr(rowptr: torch.Tensor, nnz: int) -> torch.Tensor:
    """Entries of every row, int64 [rows]."""
    if rowptr.shape[0] == 0 or int(rowptr[0]) != 0 or int(rowptr[-1]) != nnz:
        raise ValueError(f"rowptr: need rows + 1 numbers from 0 to the number of entries, {nnz}")
    counts = torch.diff(rowptr.to(torch.int64))
    if bool((counts < 0).any()):
        raise ValueError("rowptr: falls somewhere, so a row would end before it begins")
    return counts


def check_duplicates(duplicates: str) -> bool:
    """Whether repeated coordinates are to be merged."""
    if duplicates not in ("sum", "keep"):
        raise ValueError(f'duplicates: need "sum" or "keep", got {duplicates!r}')
    return duplicates == "sum"
