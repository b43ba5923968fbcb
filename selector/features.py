"""What a sparse matrix looks like, in numbers that decide which storage format is quick: `features`.

Row lengths are taken exactly, in one pass over the entries; what would need a sort (padding of sorted slices, fill of
blocks, diagonals) is estimated from a bounded sample of rows. The padding that a format would need is among the
numbers, since it is what its time is proportional to.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple

import numpy as np
import torch

from braidwork.kernels.sparse import SparseMatrix
from braidwork.kernels.sparse.formats import Params, complete, parse
from braidwork.kernels.sparse.hyb import default_width
from braidwork.kernels.sparse.pattern import Pattern

_WINDOWS, _WINDOW_ROWS, _MOST_ENTRIES = 16, 32, 4096  # of the sample for blocks
_SLICE_WINDOWS, _SIGMA, _C = 8, 1024, 8  # of the sample for sorted slices: SELL's defaults
_OFFSETS = 2048  # entries whose diagonals are counted
BLOCKS = (4, 8, 16, 32)


class Candidate(NamedTuple):
    """A storage format with its parameters."""

    format: str
    params: dict[str, int]

    def key(self) -> Params:
        """All parameters, defaults filled in, as a pattern keeps its storages by."""
        return complete(self.format, self.params)


NAMES = ("csr", "coo", "csc", "ell", "sell", "hyb", "dia", *(f"bsr{block}" for block in BLOCKS))
CANDIDATES = {name: Candidate(*parse(name)) for name in NAMES}


class Features(dict[str, float]):
    """Numbers by name, without those of a product (its width F), which `of_product` adds."""

    def of_product(self, F: int, dtype: torch.dtype, weighted: bool) -> dict[str, float]:
        """The features of one product: of the matrix, and of the dense operand."""
        operand = self["cols"] * F * dtype.itemsize
        return self | {
            "F": float(F),
            "itemsize": float(dtype.itemsize),
            "weighted": float(weighted),
            "log_operand": math.log2(max(operand, 1)),
            "log_in_use": math.log2(max(self["spread"] * F * dtype.itemsize, 1)),
            "log_output": math.log2(max(self["rows"] * F * dtype.itemsize, 1)),
            "log_work": math.log2(max(self["nnz"] * F, 1)),
        }


def padding(features: Mapping[str, float], name: str) -> float:
    """Places of a format over entries: 1 where nothing is padded."""
    return features.get(f"{name}_fill", 1.0)


def matrix_bytes(features: Mapping[str, float], name: str, weighted: bool) -> float:
    """Bytes that the indices, the padding and the values of a format take: what a product reads of the matrix."""
    rows, nnz, index = features["rows"], features["nnz"], features["index_bytes"]
    value = 4.0 if weighted else 0.0
    places = nnz * padding(features, name)
    # Values stay in the order of the pattern, which the transpose reads them out of by number.
    order = index if weighted and features["transposed"] else 0.0
    if name == "coo":
        return nnz * (2 * index + value + order)
    if name == "csr":
        return (rows + 1) * index + nnz * (index + value + order)
    if name == "csc":
        panels = min(max(2 * nnz // max(features["cols"], 1), 2), 8)  # as `csc.build` has them
        return (features["cols"] + 1) * panels * index + nnz * (2 * index + value)
    if name == "dia":
        # Which entry a place holds is read only to tell entries from padding, as in BSR.
        return features["diagonals"] * index + places * (value + (index if places > 1.05 * nnz else 0.0))
    if name.startswith("bsr"):
        block = int(name[3:])
        return (rows / block + 1 + places / block**2) * index + places * (value + (index if places > nnz else 0.0))
    tail = nnz * features["hyb_tail"] if name == "hyb" else 0.0
    return rows * index + places * (index + value) + tail * (2 * index + value)


def bound_bytes(features: Mapping[str, float], name: str, weighted: bool, F: int, itemsize: int) -> float:
    """Bytes that a product in a format moves, gathers counted each: the analytic model (see `SparseMatrix.traffic`)."""
    nnz = features["nnz"]
    gathers = nnz
    if name.startswith("bsr"):
        gathers *= padding(features, name) / int(name[3:])  # a row of x serves all rows of a block
    output = features["rows"] * F * itemsize
    if name == "csc":
        output += (2 * nnz + 2 * features["rows"]) * F * max(itemsize, 4)
    return matrix_bytes(features, name, weighted) + gathers * F * itemsize + output


def features(A: SparseMatrix) -> Features:
    """The features of a matrix, computed once for a pattern and a direction.

    Returns:
        Sizes, statistics of row lengths, and for each padded format its places over entries ("ell_fill", ...).
    """
    kept = _kept.setdefault(A.pattern, {})
    if A.transposed not in kept:
        kept[A.transposed] = _compute(A.pattern, A.transposed)
    return kept[A.transposed]


_kept: MutableMapping[Pattern, dict[bool, Features]] = weakref.WeakKeyDictionary()


@functools.lru_cache(maxsize=256)
def _evenly(n: int, most: int) -> np.ndarray:
    """At most `most` of 0 .. n - 1, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))


def _compute(pattern: Pattern, transposed: bool) -> Features:
    rows, cols = pattern.shape[transposed], pattern.shape[not transposed]
    nnz = pattern.nnz
    counts = pattern.row_counts(transposed).cpu().numpy()
    out = Features(rows=float(rows), cols=float(cols), nnz=float(nnz), index_bytes=float(pattern.row.element_size()))
    out["transposed"] = float(transposed)
    mean = nnz / max(rows, 1)
    longest = int(counts.max(initial=0))
    squares = float(np.dot(counts.astype(np.float64), counts)) / max(rows, 1)
    sample = np.sort(counts[_evenly(rows, 1024)]) if rows else np.zeros(1, np.int64)
    p50, p90, p99 = (float(sample[int(q * (sample.shape[0] - 1))]) for q in (0.5, 0.9, 0.99))
    out |= {
        "log_rows": math.log2(max(rows, 1)),
        "log_cols": math.log2(max(cols, 1)),
        "log_nnz": math.log2(max(nnz, 1)),
        "mean": mean,
        "cv": math.sqrt(max(squares - mean * mean, 0.0)) / mean if nnz else 0.0,
        "longest": float(longest),
        "longest_share": longest / max(nnz, 1),
        "longest_over_mean": longest / mean if nnz else 0.0,
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "empty": 1.0 - np.count_nonzero(counts) / max(rows, 1),
        "spread": float(pattern.spread(transposed)),
    }
    out["spread_share"] = out["spread"] / max(cols, 1)
    out["ell_fill"] = rows * longest / max(nnz, 1)
    out["sell_fill"] = _slice_fill(counts)
    short = np.where(counts > default_width(rows, nnz), 0, counts)
    in_short = int(short.sum())
    out["hyb_tail"] = 1.0 - in_short / nnz if nnz else 0.0
    out["hyb_fill"] = _slice_fill(short) * in_short / max(nnz, 1)
    row, col = _sample_entries(pattern)
    for block in BLOCKS:
        # The same either way round.
        keys = np.sort((row // block) * (-(-pattern.shape[1] // block) + 1) + col // block)
        blocks = np.count_nonzero(keys[1:] != keys[:-1]) + 1
        out[f"bsr{block}_fill"] = blocks * block**2 / max(row.shape[0], 1)
    out["diagonals"] = float(_diagonals(pattern))
    out["dia_fill"] = out["diagonals"] * rows / max(nnz, 1)
    return out


def _slice_fill(counts: np.ndarray) -> float:
    """Places over entries of slices of `_C` rows, sorted within windows of `_SIGMA`, from a sample of windows."""
    windows = max(-(-counts.shape[0] // _SIGMA), 1)
    places = entries = 0
    for window in _evenly(windows, _SLICE_WINDOWS):
        lengths = np.sort(counts[window * _SIGMA : (window + 1) * _SIGMA])[::-1]
        places += int(lengths[::_C].sum()) * _C
        entries += int(lengths.sum())
    return places / entries if entries else 1.0


def _sample_entries(pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """Entries of a sample of windows of rows, int64 rows and columns: whole windows, since a part of a row is a part
    of its blocks, and fewer of them where they are full; `_MOST_ENTRIES` at most."""
    rows = pattern.shape[0]
    windows = _evenly(max(-(-rows // _WINDOW_ROWS), 1), _WINDOWS)
    bounds = torch.from_numpy(np.stack([windows, windows + 1], 1) * _WINDOW_ROWS)
    ends = torch.searchsorted(pattern.row, bounds.to(pattern.row.device, pattern.row.dtype)).cpu().numpy()
    taken, room = [], _MOST_ENTRIES
    for a, b in ends[_scattered(ends.shape[0])]:
        if b - a <= room:
            taken.append(np.arange(a, b))
            room -= b - a
    if room == _MOST_ENTRIES:  # every window is too full, or empty
        a, b = max(ends, key=lambda pair: pair[1] - pair[0])
        taken = [np.arange(a, min(b, a + _MOST_ENTRIES))]
    index = np.concatenate(taken)
    return _at(pattern.row, index), _at(pattern.col, index)


def _at(values: torch.Tensor, index: np.ndarray) -> np.ndarray:
    """A few of many values, as int64. NumPy takes them in microseconds, where PyTorch wakes its threads for it."""
    if values.device.type == "cpu":
        return values.numpy()[index].astype(np.int64)
    return values[torch.from_numpy(index).to(values.device)].cpu().numpy().astype(np.int64)


@functools.cache
def _scattered(n: int) -> np.ndarray:
    """0 .. n - 1, each far from those before it: whichever are left out, the others are spread over all."""
    return np.random.default_rng(0).permutation(n)


def _diagonals(pattern: Pattern) -> int:
    """How many diagonals hold entries, from a sample: right where they are few, and far too many where they are not."""
    if not pattern.nnz:
        return 0
    index = _evenly(pattern.nnz, _OFFSETS)
    offset = _at(pattern.col, index) - _at(pattern.row, index)
    found, times = np.unique(offset, return_counts=True)
    once = int((times == 1).sum())
    # What a sample has not met yet: A. Chao, "Nonparametric estimation of the number of classes in a population",
    # Scand. J. Statist. 11, 1984.
    twice = max(int((times == 2).sum()), 1)
    return min(int(found.shape[0] + once * once / (2 * twice)), sum(pattern.shape))
