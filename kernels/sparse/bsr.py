"""BSR: dense blocks, one index for each. For matrices whose entries come in blocks (several unknowns a node,
cliques)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from ..launch import launch
from ..target import backend_of
from .config import ceil_div, pick_blocks
from .fold import columns, start
from .formats import Format, Storage, check_bytes, in_slots, nbytes, operands, refuse_repeats, register
from .lanes import finish_lanes, signs, take, weights
from .pattern import Pattern

# Storage: tensors [blockptr [block rows + 1], blockcol [blocks], slots [blocks, block columns, block rows]: the number
# of every entry or -1, by column, so that the rows of a column lie side by side]; meta [columns, every place is an
# entry, spread].

BLOCKS = (4, 8, 16, 32)


def build(pattern: Pattern, transposed: bool, params: Mapping[str, int], limit: int) -> Storage:
    """See `formats.Format`. Raises ValueError: `block` is none of 4, 8, 16, 32; over the limit; repeated
    coordinates."""
    block = params["block"]
    if block not in BLOCKS:
        raise ValueError(f"block: need one of 4, 8, 16, 32, got {block}")
    row, col, order = pattern.sorted(transposed)
    rows, cols = pattern.shape[::-1] if transposed else pattern.shape
    refuse_repeats("bsr", row, col)
    row, col, dtype = row.long(), col.long(), col.dtype
    block_rows, block_cols = ceil_div(rows, block), ceil_div(cols, block)
    blocks, of_entry = torch.unique((row // block) * block_cols + col // block, return_inverse=True)
    area = block * block
    needed = blocks.shape[0] * (area + 1) * dtype.itemsize
    fill = pattern.nnz / max(blocks.shape[0] * area, 1)
    check_bytes("bsr", needed, limit, f"{blocks.shape[0]} blocks of {block} x {block}, {fill:.1%} filled")
    counts = torch.bincount(blocks // max(block_cols, 1), minlength=block_rows)
    blockptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(dtype)
    slots = torch.full((blocks.shape[0] * area,), -1, dtype=dtype, device=col.device)
    number = torch.arange(col.shape[0], device=col.device) if order is None else order
    slots[of_entry * area + (col % block) * block + row % block] = number.to(dtype)
    complete = blocks.shape[0] * area == col.shape[0]
    blockcol = (blocks % max(block_cols, 1)).to(dtype)
    meta = [cols, int(complete), pattern.spread(transposed)]
    return Storage([blockptr, blockcol, slots.view(-1, block, block)], meta)


@triton.jit
def bsr_spmm_kernel(
    blockptr_ptr, blockcol_ptr, slots_ptr, value_ptr, x_ptr, row_scale_ptr, col_scale_ptr, route_ptr,
    bias_ptr, y_ptr, arg_ptr,
    block_rows, blocks, rows, cols, F, stride_x, share, tiles,
    BLOCK: tl.constexpr, COMPLETE: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, LANES: tl.constexpr,
    REDUCE: tl.constexpr, RELU: tl.constexpr, BLOCK_F: tl.constexpr, MASK_F: tl.constexpr, OVERLAP: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """y[i, f] = reduce over entries e = (i, k) of row_scale[i] value[e] col_scale[k] x[k, f].

    blockptr: [block_rows + 1]; blockcol: [blocks]; slots, value: [blocks, BLOCK columns, BLOCK rows]; x: [cols, F] with
    rows stride_x apart; route: [cols, F]; y, arg: [rows, F]. Rows are taken LANES at a time. With DOT a block is
    one matrix instruction (a sum of complete blocks), else the columns of a block are taken one by one.
    Program (p, q) owns block rows p * share to (p + 1) * share - 1 in tiles q, q + the grid's second side, ... of
    columns.
    """
    acc_dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    lanes = tl.arange(0, LANES)[:, None]
    inner = tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, block_rows)
    for block_row in range(first, last):
        begin = tl.load(blockptr_ptr + block_row).to(tl.int64)
        end = tl.load(blockptr_ptr + block_row + 1).to(tl.int64)
        for part in range(0, BLOCK, LANES):
            in_block = part + lanes
            r = block_row * BLOCK + in_block
            here = r < rows
            r = tl.minimum(r, rows - 1)
            sign = signs(row_scale_ptr, r, acc_dtype, REDUCE)
            for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
                offs_f, m_f = columns(tile, F, BLOCK_F, OVERLAP)
                acc, arg = start(x_ptr, blockptr_ptr, REDUCE, LANES, BLOCK_F)
                seen = in_block * 0
                for position in range(begin, end):
                    if AHEAD:
                        later = tl.load(blockcol_ptr + tl.minimum(position + AHEAD, blocks - 1)).to(tl.int64) * BLOCK
                        soon = tl.minimum(later + inner, cols - 1)
                        tl.load(
                            x_ptr + soon[:, None] * stride_x + offs_f[None, :], mask=m_f[None, :], other=0.0,
                            volatile=True,
                        )  # fmt: skip
                    k0 = tl.load(blockcol_ptr + position).to(tl.int64) * BLOCK
                    if DOT:
                        k = k0 + inner
                        at = (position * BLOCK + inner[None, :]) * BLOCK + in_block
                        block = tl.load(value_ptr + at).to(x_ptr.dtype.element_ty)
                        x = tl.load(
                            x_ptr + k[:, None] * stride_x + offs_f[None, :], mask=(k < cols)[:, None] & m_f[None, :],
                            other=0.0,
                        )  # fmt: skip
                        acc = tl.dot(block, x, acc, input_precision=PRECISION)
                    else:
                        # Past the last column a block is padding, which a complete one does not have.
                        inside = BLOCK if COMPLETE else tl.minimum(cols - k0, BLOCK)
                        for column in range(inside):
                            k = k0 + column
                            at = (position * BLOCK + column) * BLOCK + in_block
                            entry = in_block
                            present = entry >= 0
                            if not COMPLETE or arg_ptr is not None or route_ptr is not None:
                                entry = tl.load(slots_ptr + at)
                                present = entry >= 0
                                seen += present.to(seen.dtype)
                            w = weights(None if value_ptr is None else value_ptr + at, None, in_block, acc_dtype)
                            x_ptrs = x_ptr + k * stride_x + offs_f
                            x = tl.load(x_ptrs, mask=m_f, other=0.0) if MASK_F else tl.load(x_ptrs)
                            x = x.to(acc_dtype)
                            if col_scale_ptr is not None:
                                x *= tl.load(col_scale_ptr + k).to(acc_dtype)
                            acc, arg = take(
                                acc, arg, x[None, :], w, sign, entry, k + in_block * 0, present, route_ptr,
                                offs_f, m_f, F, not COMPLETE, arg_ptr is not None, REDUCE,
                            )  # fmt: skip
                if COMPLETE:
                    seen += (end - begin).to(seen.dtype)
                finish_lanes(
                    acc, arg, r, seen == 0, None if COMPLETE else here, row_scale_ptr, bias_ptr, y_ptr,
                    arg_ptr, offs_f, m_f, F, REDUCE, MASK_F, RELU,
                )  # fmt: skip


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
    (blockptr, blockcol, slots), (cols, complete, spread) = storage
    F, block = x.shape[1], slots.shape[1]
    x, y, arg = operands(x, rows, blockptr, with_arg)
    if not y.numel():
        return y, arg
    block_rows = blockptr.shape[0] - 1
    # A matrix without blocks counts as complete, but its last block row may stick out.
    complete = bool(complete) and rows % block == 0
    plain = complete and reduce == "sum" and value is not None and col_scale is None and route is None
    config = pick_blocks(block, blockcol.shape[0] / block_rows, spread, F, x.dtype, backend_of(x.device), plain)
    tiles = ceil_div(F, config.block_f)
    launch(
        bsr_spmm_kernel, (ceil_div(block_rows, config.share), tiles if config.options else 1),
        blockptr, blockcol, slots, None if value is None else in_slots(value, slots), x,
        row_scale, col_scale, route, bias, y, arg,
        block_rows, blockcol.shape[0], rows, cols, F, x.stride(0), config.share, tiles,
        BLOCK=block, COMPLETE=complete, DOT=config.dot, PRECISION=config.precision, LANES=config.lanes,
        AHEAD=config.ahead, REDUCE=reduce, RELU=relu,
        BLOCK_F=config.block_f, MASK_F=config.mask_f, OVERLAP=config.overlap, **config.options,
    )  # fmt: skip
    return y, arg


def coordinates(storage: Storage, rows: int, cols: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `formats.Format`."""
    blockptr, blockcol, slots = storage.tensors
    block = slots.shape[1]
    block_row = torch.repeat_interleave(blockptr.long().diff())
    position, column, row = (slots >= 0).nonzero(as_tuple=True)
    entry = slots[position, column, row].long()
    return block_row[position] * block + row, blockcol.long()[position] * block + column, entry


def matrix_bytes(storage: Storage, value_bytes: int) -> int:
    """See `formats.Format`. The numbers of the entries are read only to tell them from padding."""
    (blockptr, blockcol, slots), (_, complete, _) = storage
    return nbytes(blockptr, blockcol) + (0 if complete else nbytes(slots)) + value_bytes * slots.numel()


register(Format("bsr", build, spmm, coordinates, matrix_bytes, {"block": 4}))
