"""Which kernel, and with which tiles: plain functions of sizes and row statistics, testable without a device.

Nothing here depends on the number of threads or on the state of the machine, so the order of every sum is fixed by the
matrix, and results are the same bit for bit from run to run.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field

import torch
import triton


@dataclass(frozen=True)
class SpmmConfig:
    """How one product in CSR is run.

    split: whether programs own equal shares of rows + nnz (then a share is `share` steps), not whole rows.
    share: rows a program owns, or steps along rows and entries.
    batch: entries taken at a time.
    block_f: columns of a tile, a power of two.
    mask_f: the tile is wider than the matrix.
    overlap: the last tile is moved back to end at the last column, since the tiles do not divide the width.
    options: compiler options (num_warps), empty on a CPU.
    """

    split: bool
    share: int
    batch: int
    block_f: int
    mask_f: bool
    overlap: bool
    options: dict[str, int] = field(default_factory=dict)


# Elements of x (entries times columns) that a program on a CPU reads: some tens of microseconds, so that scheduling
# is cheap and the last program to end is not waited for.
_CPU_WORK = 1 << 16


@functools.cache
def _cpu_tile_bytes() -> int:
    """Half of the vector registers of this CPU, for the accumulators of a tile: 32 of 64 bytes, or 16 of 32."""
    return 1024 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 256


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up. Triton's own is a jitted function, which costs 12 us a call on the host."""
    return -(-a // b)


def _tile(F: int, widest: int) -> tuple[int, bool, bool]:
    """(block_f, mask_f, overlap) for F columns."""
    block_f = min(widest, triton.next_power_of_2(F))
    return block_f, block_f > F, block_f < F and F % block_f != 0


@functools.lru_cache(maxsize=4096)
def pick_spmm(rows: int, nnz: int, longest: int, F: int, dtype: torch.dtype, backend: str) -> SpmmConfig:
    """The configuration of one CSR product.

    Args:
        rows, nnz, longest: of the matrix: rows, entries, entries of the longest row.
        F: columns of x, at least 1.
        dtype: of x.
        backend: "cpu", "cuda" or "hip".
    """
    mean = nnz / max(rows, 1)
    wide = dtype == torch.float64
    if backend == "cpu":
        block_f, mask_f, overlap = _tile(F, _cpu_tile_bytes() // (8 if wide else 4))
        work = max(_CPU_WORK // min(F, block_f), 16)
        # Whole rows in small groups balance themselves, unless a row is a good part of all the work.
        split = longest > 4 * work and longest * 8 > nnz
        share = 2 * work if split else max(int(work / (mean + 1)), 1)
        return SpmmConfig(split, share, 1, block_f, mask_f, overlap)

    # A warp brings 16 bytes a thread; as many entries side by side as make four such loads for each thread.
    block_f, mask_f, overlap = _tile(F, 128)
    element_bytes = torch.finfo(dtype).bits // 8
    lanes = max(block_f * element_bytes // 16, 1)
    # With four, an extremum in 16 bits spills registers on AMD.
    loads = 2 if backend == "hip" and element_bytes == 2 else 4
    batch = min(max(loads * 32 // lanes, 1), 16)
    split = longest > 1024 and longest > 32 * mean
    share = 256 if split else (4 if mean < 4 else 1)
    return SpmmConfig(split, share, batch, block_f, mask_f, overlap, {"num_warps": 1})


@functools.lru_cache(maxsize=4096)
def pick_coo(nnz: int, F: int, dtype: torch.dtype, backend: str) -> SpmmConfig:
    """The configuration of one product in COO, whose programs own equal shares of nnz >= 1 entries."""
    like = pick_spmm(nnz, nnz, nnz, F, dtype, backend)
    share = max(_CPU_WORK // min(F, like.block_f), 16) if backend == "cpu" else 128
    return dataclasses.replace(like, split=True, share=share)


@dataclass(frozen=True)
class LanesConfig:
    """How a product over rows side by side is run: groups of rows a program owns, columns of a tile; see SpmmConfig."""

    share: int
    block_f: int
    mask_f: bool
    overlap: bool
    options: dict[str, int] = field(default_factory=dict)


@functools.lru_cache(maxsize=4096)
def pick_lanes(lanes: int, steps: float, F: int, dtype: torch.dtype, backend: str) -> LanesConfig:
    """The configuration of a product with `lanes` rows side by side.

    Args:
        lanes: rows of a group.
        steps: entries in each of them, on average.
        F: columns of x, at least 1.
        dtype: of x.
        backend: "cpu", "cuda" or "hip".
    """
    acc_bytes = 8 if dtype == torch.float64 else 4
    if backend == "cpu":
        # The accumulators of all lanes stay in registers, in tiles of at least one of them.
        vector = _cpu_tile_bytes() // 16
        widest = max(_cpu_tile_bytes() // lanes, vector) // acc_bytes
        block_f, mask_f, overlap = _tile(F, widest)
        share = max(int(_CPU_WORK / (F * lanes * (steps + 1))), 1)
        return LanesConfig(share, block_f, mask_f, overlap)
    block_f, mask_f, overlap = _tile(F, 64 if backend == "hip" and lanes > 8 else 128)
    share = max(int(16 / (steps + 1)), 1)
    # AMD has wider warps, yet an extremum with its entries spills there where its tile is as large.
    warps = min(max(lanes * block_f // (256 if backend == "hip" and dtype.itemsize > 2 else 512), 1), 8)
    return LanesConfig(share, block_f, mask_f, overlap, {"num_warps": warps})


@functools.lru_cache(maxsize=4096)
def pick_csc(F: int, dtype: torch.dtype, backend: str) -> LanesConfig:
    """The configuration of a product in CSC, whose accumulators are in memory."""
    acc_bytes = 8 if dtype == torch.float64 else 4
    widest = _cpu_tile_bytes() // acc_bytes if backend == "cpu" else 128
    return LanesConfig(1, *_tile(F, widest), {} if backend == "cpu" else {"num_warps": 1})


@dataclass(frozen=True)
class BlocksConfig(LanesConfig):
    """How a product in BSR is run: as LanesConfig, and rows side by side, matrix instructions, their precision."""

    lanes: int = 1
    dot: bool = False
    precision: str = "ieee"


@functools.lru_cache(maxsize=4096)
def pick_blocks(block: int, blocks: float, F: int, dtype: torch.dtype, backend: str, plain: bool) -> BlocksConfig:
    """The configuration of a product in BSR.

    Args:
        block: side of a block.
        blocks: of a block row, on average.
        F, dtype, backend: as for `pick_spmm`.
        plain: whether it is a sum of complete, weighted blocks, which a matrix instruction can take.
    """
    dot = backend != "cpu" and plain and block >= 16 and dtype != torch.float64
    lanes = block if dot else min(block, 16)
    base = pick_lanes(lanes, blocks * block, F, dtype, backend)
    if not dot:
        # A block's columns one by one keep pointers of each; with twice the warps nothing spills.
        options = {name: min(2 * warps, 8) for name, warps in base.options.items()}
        return BlocksConfig(**vars(base) | {"options": options}, lanes=lanes)
    block_f, _, overlap = _tile(max(F, 16), 64)
    precision = "tf32x3" if backend == "cuda" and dtype == torch.float32 else "ieee"
    return BlocksConfig(1, block_f, block_f > F, overlap, {"num_warps": 4}, lanes, True, precision)


@dataclass(frozen=True)
class DotConfig:
    """How `entry_dot` is run: entries a program owns, entries taken at a time, columns of a tile."""

    share: int
    batch: int
    block_f: int
    options: dict[str, int] = field(default_factory=dict)


@functools.lru_cache(maxsize=4096)
def pick_dot(nnz: int, F: int, dtype: torch.dtype, backend: str) -> DotConfig:
    """The configuration of one `entry_dot` over nnz >= 1 entries and F >= 1 columns."""
    if backend == "cpu":
        block_f = min(triton.next_power_of_2(F), 64)
        batch = 8 if nnz >= 8 else 1
        return DotConfig(max(_CPU_WORK // F, batch), batch, block_f)
    block_f = min(triton.next_power_of_2(F), 128)
    batch = 16 if nnz >= 16 else 1
    return DotConfig(4 * batch, batch, block_f, {"num_warps": 4})
