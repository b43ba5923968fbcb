"""Which kernel, and with which tiles: plain functions of sizes and row statistics, testable without a device.

Nothing here depends on the number of threads or on the state of the machine, so the order of every sum is fixed by the
matrix, and results are the same bit for bit from run to run.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass, field

import torch
import triton

from .tiles import depends, tuned


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
    ahead: how many entries later the row of x lies that is asked for ahead of time, 0 to ask for none.
    """

    split: bool
    share: int
    batch: int
    block_f: int
    mask_f: bool
    overlap: bool
    options: dict[str, int] = field(default_factory=dict)
    ahead: int = 0


# Elements of x (entries times columns) that a program on a CPU reads: some tens of microseconds, so that scheduling
# is cheap and the last program to end is not waited for.
_CPU_WORK = 1 << 16


@functools.cache
def _cpu_vectors() -> tuple[int, int]:
    """(bytes of a vector register of this CPU, half the number of them): what the accumulators of a tile may take."""
    return (64, 16) if torch.backends.cpu.get_cpu_capability() == "AVX512" else (32, 8)


def _cpu_tile_bytes() -> int:
    size, count = _cpu_vectors()
    return size * count


def _ahead(spread: int, F: int, dtype: torch.dtype, backend: str, format: str) -> int:
    """See SpmmConfig. Of what the caches of a core hold anyway nothing need be asked for. A GPU has warps instead."""
    if backend != "cpu" or spread * F * dtype.itemsize <= 4 << 20:
        return 0
    return tuned(format, F, backend).get("ahead", 32)


def _columns(format: str, F: int, dtype: torch.dtype, backend: str, rule: int) -> int:
    """Columns of a tile at most. Tables are measured in fp32; accumulators of fp64 take twice the room."""
    found = tuned(format, F, backend).get("columns")
    if found is None:
        return rule
    return max(found // 2, 1) if dtype == torch.float64 else found


def _warps(format: str, F: int, backend: str, rule: int) -> int:
    return tuned(format, F, backend).get("warps", rule)


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up. Triton's own is a jitted function, which costs 12 us a call on the host."""
    return -(-a // b)


def _tile(F: int, widest: int) -> tuple[int, bool, bool]:
    """(block_f, mask_f, overlap) for F columns."""
    block_f = min(widest, triton.next_power_of_2(F))
    return block_f, block_f > F, block_f < F and F % block_f != 0


@depends
@functools.lru_cache(maxsize=4096)
def pick_spmm(
    rows: int, nnz: int, longest: int, spread: int, F: int, dtype: torch.dtype, backend: str, format: str = "csr"
) -> SpmmConfig:
    """The configuration of one CSR product.

    Args:
        rows, nnz, longest, spread: of the matrix: rows, entries, entries of the longest row, and see `Pattern.spread`.
        F: columns of x, at least 1.
        dtype: of x.
        backend: "cpu", "cuda" or "hip".
        format: whose table of tiles is asked, see `tiles`.
    """
    mean = nnz / max(rows, 1)
    wide = dtype == torch.float64
    if backend == "cpu":
        widest = _columns(format, F, dtype, backend, _cpu_tile_bytes() // (8 if wide else 4))
        block_f, mask_f, overlap = _tile(F, widest)
        work = max(_CPU_WORK // min(F, block_f), 16)
        # Whole rows in small groups balance themselves, unless a row is a good part of all the work.
        split = longest > 4 * work and longest * 8 > nnz
        share = 2 * work if split else max(int(work / (mean + 1)), 1)
        return SpmmConfig(split, share, 1, block_f, mask_f, overlap, ahead=_ahead(spread, F, dtype, backend, format))

    # A warp brings 16 bytes a thread; as many entries side by side as make four such loads for each thread.
    block_f, mask_f, overlap = _tile(F, _columns(format, F, dtype, backend, 128))
    warps = _warps(format, F, backend, 1)
    lanes = max(block_f * dtype.itemsize // 16, 1)
    # With four, an extremum in 16 bits spills registers on AMD.
    loads = 2 if backend == "hip" and dtype.itemsize == 2 else 4
    batch = min(max(loads * 32 * warps // lanes, 1), 16)
    split = longest > 1024 and longest > 32 * mean
    share = 256 if split else (4 if mean < 4 else 1)
    return SpmmConfig(split, share, batch, block_f, mask_f, overlap, {"num_warps": warps})


@depends
@functools.lru_cache(maxsize=4096)
def pick_coo(nnz: int, spread: int, F: int, dtype: torch.dtype, backend: str) -> SpmmConfig:
    """The configuration of one product in COO, whose programs own equal shares of nnz >= 1 entries."""
    like = pick_spmm(nnz, nnz, nnz, spread, F, dtype, backend, "coo")
    share = max(_CPU_WORK // min(F, like.block_f), 16) if backend == "cpu" else 128
    return dataclasses.replace(like, split=True, share=share)


@dataclass(frozen=True)
class LanesConfig:
    """How a product over rows side by side is run.

    share: groups of rows a program owns.
    block_f, mask_f, overlap, options: see SpmmConfig.
    lanes: rows taken at a time, a power of two that divides the group.
    ahead: as there, but in steps of a group.
    """

    share: int
    block_f: int
    mask_f: bool
    overlap: bool
    options: dict[str, int] = field(default_factory=dict)
    lanes: int = 1
    ahead: int = 0


@depends
@functools.lru_cache(maxsize=4096)
def pick_lanes(
    group: int, steps: float, spread: int, F: int, dtype: torch.dtype, backend: str, format: str
) -> LanesConfig:
    """The configuration of a product over groups of rows.

    Args:
        group: rows of a group.
        steps: entries in each of them, on average.
        spread: see `Pattern.spread`, 0 where rows of x are not looked up.
        F: columns of x, at least 1.
        dtype: of x.
        backend: "cpu", "cuda" or "hip".
        format: whose table of tiles is asked, see `tiles`.
    """
    acc_bytes = 8 if dtype == torch.float64 else 4
    if backend == "cpu":
        # A tile as square as the registers allow asks for the fewest loads: of x for each lane, of values for each
        # vector of columns.
        size, count = _cpu_vectors()
        widest = _columns(format, F, dtype, backend, size * math.isqrt(count) // acc_bytes)
        block_f, mask_f, overlap = _tile(F, widest)
        rule = max(size * count // (block_f * acc_bytes), 1)
        lanes = min(group, tuned(format, F, backend).get("lanes", rule))
        share = max(int(_CPU_WORK / (F * group * (steps + 1))), 1)
        ahead = ceil_div(_ahead(spread, F, dtype, backend, format), lanes)
        return LanesConfig(share, block_f, mask_f, overlap, lanes=lanes, ahead=ahead)
    widest = _columns(format, F, dtype, backend, 64 if backend == "hip" and group > 8 else 128)
    block_f, mask_f, overlap = _tile(F, widest)
    share = max(int(16 / (steps + 1)), 1)
    # AMD has wider warps, yet an extremum with its entries spills there where its tile is as large.
    warps = min(max(group * block_f // (256 if backend == "hip" and dtype.itemsize > 2 else 512), 1), 8)
    return LanesConfig(share, block_f, mask_f, overlap, {"num_warps": _warps(format, F, backend, warps)}, group)


@depends
@functools.lru_cache(maxsize=4096)
def pick_csc(spread: int, F: int, dtype: torch.dtype, backend: str) -> LanesConfig:
    """The configuration of a product in CSC, whose accumulators are in memory."""
    acc_bytes = 8 if dtype == torch.float64 else 4
    widest = _columns("csc", F, dtype, backend, _cpu_tile_bytes() // acc_bytes if backend == "cpu" else 128)
    options = {} if backend == "cpu" else {"num_warps": _warps("csc", F, backend, 1)}
    block_f, mask_f, uneven = _tile(F, widest)
    # Tiles that overlap would add up the columns that they share twice.
    return LanesConfig(1, block_f, mask_f or uneven, False, options, ahead=_ahead(spread, F, dtype, backend, "csc"))


@dataclass(frozen=True)
class BlocksConfig(LanesConfig):
    """How a product in BSR is run: as LanesConfig, and whether by matrix instructions, and their precision."""

    dot: bool = False
    precision: str = "ieee"


@depends
@functools.lru_cache(maxsize=4096)
def pick_blocks(
    block: int, blocks: float, spread: int, F: int, dtype: torch.dtype, backend: str, plain: bool
) -> BlocksConfig:
    """The configuration of a product in BSR.

    Args:
        block: side of a block.
        blocks: of a block row, on average.
        spread, F, dtype, backend: as for `pick_spmm`.
        plain: whether it is a sum of complete, weighted blocks, which a matrix instruction can take.
    """
    format = f"bsr{block}"
    dot = backend != "cpu" and plain and block >= 16 and dtype != torch.float64
    if not dot:
        if backend != "cpu" and block >= 16:
            format += "-plain"  # what was measured was the other kernel
        group = block if backend == "cpu" else min(block, 16)
        base = pick_lanes(group, blocks * block, 0, F, dtype, backend, format)
        # A block's columns one by one keep pointers of each; with twice the warps nothing spills.
        options = {name: _warps(format, F, backend, min(2 * warps, 8)) for name, warps in base.options.items()}
        ahead = ceil_div(_ahead(spread, F, dtype, backend, format), block)
        return BlocksConfig(**vars(base) | {"options": options, "ahead": ahead})
    block_f, _, overlap = _tile(max(F, 16), max(_columns(format, F, dtype, backend, 64), 16))
    precision = "tf32x3" if backend == "cuda" and dtype == torch.float32 else "ieee"
    options = {"num_warps": _warps(format, F, backend, 4)}
    return BlocksConfig(1, block_f, block_f > F, overlap, options, block, 0, True, precision)


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
