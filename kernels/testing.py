"""What every test of a kernel shares: one comparison, one zoo of awkward graphs, the devices of this machine.

The comparison follows two habits of the field. The error is relative to `max(rms(ref), |ref|)` and both its
root mean square and its maximum are bounded, so that neither one wild element nor a small bias everywhere can
hide (cf. `triton_kernels.testing` in github.com/triton-lang/triton). And the bound is calibrated: a kernel
may be at most `factor` times as wrong, against an fp64 reference, as PyTorch is in the same dtype (cf. the
tests of github.com/Dao-AILab/flash-attention).
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import torch

FLOAT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def devices() -> list[str]:
    """Devices on which kernels can run here: "cpu" without a GPU, "cuda" (NVIDIA or AMD) with one.

    With a GPU driver active Triton compiles for it alone, so the CPU is not listed there.
    """
    return ["cuda"] if torch.cuda.is_available() else ["cpu"]


# ------------------------------------------------------------------------------------------------------------
# Comparison


class Error(NamedTuple):
    """Error of a result against its reference, relative to `max(rms(ref), |ref|)` element by element."""

    rms: float
    max: float


def _to_fp64(name: str, x: torch.Tensor | np.ndarray | float) -> torch.Tensor:
    x = torch.as_tensor(x).detach().cpu()
    if x.is_complex():
        raise TypeError(f"{name}: complex values are not supported")
    return x.to(torch.float64)


def _relative(got: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """Element-wise relative error of two fp64 tensors; 0 where both are the same infinity or both NaN."""
    finite = torch.isfinite(ref)
    kept = ref[finite]
    scale = math.sqrt((kept * kept).mean().item()) if kept.numel() else 0.0
    same = (got == ref) | (got.isnan() & ref.isnan())
    error = (got - ref).abs() / ref.abs().clamp(min=max(scale, 1e-300))
    error = torch.where(same, torch.zeros_like(error), error)
    return torch.where(error.isnan(), torch.full_like(error, math.inf), error)


def _summary(relative: torch.Tensor) -> Error:
    if not relative.numel():
        return Error(0.0, 0.0)
    return Error((relative * relative).mean().sqrt().item(), relative.max().item())


def error(got: torch.Tensor | np.ndarray, ref: torch.Tensor | np.ndarray) -> Error:
    """Relative error of `got` against `ref` (same shape), both taken to fp64.

    A NaN or an infinity that is not matched by the same one in the other tensor counts as an infinite error.
    """
    return _summary(_relative(_to_fp64("got", got), _to_fp64("ref", ref)))


def assert_close(
    name: str,
    got: torch.Tensor,
    ref: torch.Tensor | np.ndarray,
    *,
    baseline: torch.Tensor | None = None,
    factor: float = 2.0,
    rms: float | None = None,
    max: float | None = None,
    shown: int = 8,
) -> Error:
    """Fail with a readable message unless `got` is as close to `ref` as its dtype allows.

    Args:
        name: the quantity, for the message ("y", "grad x", ...).
        got: result of a kernel, any shape and real dtype. Integers and booleans must be equal exactly.
        ref: reference of the same shape, computed independently, as a rule in fp64.
        baseline: the same quantity from PyTorch in the dtype of `got`; calibrates the tolerance. Without one
            the calibration is the rounding of `ref` itself to that dtype, which is what one perfectly
            computed and then rounded result would cost.
        factor: how many times the baseline's error is accepted, on top of a floor of a few units in the last
            place (4 for the RMS error, 16 for the maximum).
        rms, max: bounds that replace the calibrated ones.
        shown: how many of the mismatches to list.

    Returns:
        The measured error.

    Raises:
        AssertionError: shapes differ, NaN or infinities are in other places, or an error is above its bound.
    """
    got = torch.as_tensor(got).detach()
    ref = torch.as_tensor(ref).detach().cpu()
    assert tuple(got.shape) == tuple(ref.shape), (
        f"{name}: shape {tuple(got.shape)}, expected {tuple(ref.shape)}"
    )
    if not got.dtype.is_floating_point:
        wrong = got.cpu() != ref.to(got.dtype)
        assert not wrong.any(), _report(name, got, ref, wrong, shown, "must be equal")
        return Error(0.0, 0.0)

    # A finite reference above the range of the dtype (65504 in fp16) is an infinity there.
    rounded = ref.to(got.dtype)
    ref = torch.where(rounded.isinf(), rounded.to(ref.dtype), ref)
    allowed = error(rounded if baseline is None else baseline, ref)
    if not math.isfinite(allowed.max):
        raise AssertionError(
            f"{name}: the baseline is no calibration, it is infinite or NaN where ref is not"
        )
    relative = _relative(_to_fp64(name, got), _to_fp64(name, ref))
    found = _summary(relative)
    eps = torch.finfo(got.dtype).eps
    limit = Error(
        rms if rms is not None else factor * allowed.rms + 4 * eps,
        max if max is not None else factor * allowed.max + 16 * eps,
    )
    assert found.rms <= limit.rms and found.max <= limit.max, _report(
        name,
        got,
        ref,
        relative > limit.max if found.max > limit.max else relative > limit.rms,
        shown,
        f"{got.dtype}, relative error rms {found.rms:.3e} (bound {limit.rms:.3e}), "
        f"max {found.max:.3e} (bound {limit.max:.3e})",
    )
    return found


def _report(
    name: str, got: torch.Tensor, ref: torch.Tensor, wrong: torch.Tensor, shown: int, headline: str
) -> str:
    where = wrong.nonzero()
    lines = [f"{name}: {headline}; {where.shape[0]} of {got.numel()} elements are off"]
    if got.is_floating_point():
        lines.append(
            f"  NaN: {int(got.isnan().sum())} (expected {int(ref.isnan().sum())}), "
            f"infinite: {int(got.isinf().sum())} (expected {int(ref.isinf().sum())})"
        )
    for index in where[:shown].tolist():
        at = tuple(index)
        lines.append(f"  [{', '.join(map(str, at))}] got {got[at].item()!r}, expected {ref[at].item()!r}")
    if where.shape[0] > shown:
        lines.append("  ...")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------------
# Awkward graphs


class Coo(NamedTuple):
    """A sparse matrix as triples, in no particular order, duplicates allowed.

    row, col: int64 [nnz]; value: float64 [nnz]; shape: (rows, columns).
    """

    row: np.ndarray
    col: np.ndarray
    value: np.ndarray
    shape: tuple[int, int]

    def dense(self) -> torch.Tensor:
        """The matrix in fp64, duplicates summed: [rows, columns]."""
        dense = np.zeros(self.shape)
        np.add.at(dense, (self.row, self.col), self.value)
        return torch.from_numpy(dense)


def _coo(rng: np.random.Generator, row, col, shape: tuple[int, int]) -> Coo:
    row, col = np.asarray(row, dtype=np.int64), np.asarray(col, dtype=np.int64)
    return Coo(row, col, rng.standard_normal(row.shape[0]), shape)


def _unique(rng: np.random.Generator, row, col, shape: tuple[int, int]) -> Coo:
    """Triples without duplicates, in random order."""
    key = np.unique(np.asarray(row, dtype=np.int64) * shape[1] + np.asarray(col, dtype=np.int64))
    key = rng.permutation(key)
    return _coo(rng, key // shape[1], key % shape[1], shape)


@functools.lru_cache(maxsize=4)
def graph_zoo(seed: int = 0) -> dict[str, Coo]:
    """Small matrices that each hold one thing a sparse kernel gets wrong, by name.

    Every one is small enough for a dense fp64 reference (at most 700 rows or columns).
    """
    rng = np.random.default_rng(seed)
    zoo: dict[str, Coo] = {}

    n = 97  # odd, so that every tile has a ragged end
    zoo["uniform"] = _unique(rng, rng.integers(0, n, 900), rng.integers(0, n, 900), (n, n))
    zoo["wide"] = _unique(rng, rng.integers(0, 13, 300), rng.integers(0, 501, 300), (13, 501))
    zoo["tall"] = _unique(rng, rng.integers(0, 501, 300), rng.integers(0, 13, 300), (501, 13))

    # Only every seventh row holds entries, and the first and the last rows are empty.
    occupied = np.arange(1, 120, 7)
    zoo["empty_rows"] = _unique(rng, rng.choice(occupied, 400), rng.integers(0, 121, 400), (121, 121))

    # One row that is full and one column that is full, and nothing else: the hub in both directions.
    m = 641
    zoo["hub_row"] = _unique(rng, np.full(m, 5), np.arange(m), (m, m))
    zoo["hub_column"] = _unique(rng, np.arange(m), np.full(m, 5), (m, m))

    zoo["no_entries"] = _coo(rng, [], [], (17, 19))
    zoo["no_rows"] = _coo(rng, [], [], (0, 5))
    zoo["no_columns"] = _coo(rng, [], [], (5, 0))
    zoo["one_entry"] = _coo(rng, [3], [2], (5, 4))
    zoo["one_row"] = _unique(rng, np.zeros(40), rng.integers(0, 300, 40), (1, 300))
    zoo["one_column"] = _unique(rng, rng.integers(0, 300, 40), np.zeros(40), (300, 1))
    zoo["one_by_one"] = _coo(rng, [0], [0], (1, 1))

    # Half of the nodes touch no edge at all.
    zoo["isolated"] = _unique(rng, rng.integers(0, 60, 300), rng.integers(0, 60, 300), (120, 120))
    # The same few coordinates many times over; values must add up.
    zoo["duplicates"] = _coo(rng, rng.integers(0, 9, 500), rng.integers(0, 9, 500), (31, 33))
    zoo["self_loops"] = _unique(
        rng,
        np.r_[np.arange(n), rng.integers(0, n, 300)],
        np.r_[np.arange(n), rng.integers(0, n, 300)],
        (n, n),
    )
    zoo["diagonal"] = _unique(rng, np.arange(65), np.arange(65), (65, 65))

    offset = np.arange(-3, 4)
    i = np.repeat(np.arange(200), offset.size)
    j = i + np.tile(offset, 200)
    keep = (j >= 0) & (j < 200)
    zoo["banded"] = _unique(rng, i[keep], j[keep], (200, 200))

    # Zipf-distributed row lengths, from the whole width down to nothing.
    length = np.minimum(700 / np.arange(1, 701) ** 0.8, 700).astype(np.int64)
    rows = np.repeat(rng.permutation(700), length)
    zoo["power_law"] = _unique(rng, rows, rng.integers(0, 700, rows.size), (700, 700))

    block = np.indices((16, 16)).reshape(2, -1)
    corner = rng.integers(0, 8, (2, 6)) * 16
    cells = (corner[:, :, None] + block[:, None, :]).reshape(2, -1)
    zoo["blocks"] = _unique(rng, cells[0], cells[1], (128, 128))

    full = np.indices((33, 29)).reshape(2, -1)
    zoo["full"] = _unique(rng, full[0], full[1], (33, 29))
    return zoo
