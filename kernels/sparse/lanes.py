"""The step that padded and blocked formats share: one entry in each of several rows, side by side.

An accumulator is a tile [LANES, BLOCK_F], a row of y in each lane, so no lanes are to be brought together at the end
(see `fold` for the formats whose rows lie one after the other). What there is one of for each lane has shape
[LANES, 1]: a CPU then loads it lane by lane, straight to where it is needed, and not as a vector to be taken apart.
A lane that has no entry in a step is masked by a select and never by a weight of 0, since 0 times an infinity or a NaN
in x is not 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .fold import earliest_maximum, epilogue, maximum


@triton.jit
def take(
    acc, arg, x, w, sign, entry, k, present, route_ptr, offs_f, m_f, F,
    SELECT: tl.constexpr, WITH_ARG: tl.constexpr, REDUCE: tl.constexpr,
):  # fmt: skip
    """Fold one entry a lane into (acc, arg) [LANES, BLOCK_F].

    x: [LANES or 1, BLOCK_F] in the dtype of acc, the entries' rows of x. w, sign: [LANES, 1] or None for ones; the sign
    (of a minimum, and row scales) belongs to extrema. entry, k, present: [LANES, 1]: number and column of the entry,
    and
    whether there is one, looked at only with SELECT.
    """
    term = tl.broadcast_to(x, acc.shape)
    if w is not None:
        term = term * w
    if route_ptr is not None:
        route = tl.load(route_ptr + k.to(tl.int64) * F + offs_f[None, :], mask=m_f[None, :], other=-1)
        term = tl.where(route == entry, term, 0.0)
    if REDUCE == "sum":
        if SELECT:
            term = tl.where(present, term, 0.0)
        acc += term
    else:
        if sign is not None:
            term = term * sign
        if SELECT:
            term = tl.where(present, term, -float("inf"))
        if WITH_ARG:
            number = tl.broadcast_to(entry, arg.shape).to(arg.dtype)
            if SELECT:
                # A lane without an entry must not win, not even from the accumulator of no entries.
                number = tl.where(present, number, arg)
            acc, arg = earliest_maximum(acc, arg, term, number)
        else:
            acc = maximum(acc, term)
    return acc, arg


@triton.jit
def gather(x_ptr, k, offs_f, m_f, stride_x, acc_dtype: tl.constexpr, MASK_F: tl.constexpr):
    """Rows k [LANES, 1] of x: [LANES, BLOCK_F]."""
    x_ptrs = x_ptr + k.to(tl.int64) * stride_x + offs_f[None, :]
    if MASK_F:
        return tl.load(x_ptrs, mask=m_f[None, :], other=0.0).to(acc_dtype)
    else:
        return tl.load(x_ptrs).to(acc_dtype)


@triton.jit
def weights(value_ptrs, col_scale_ptr, k, acc_dtype: tl.constexpr):
    """value * col_scale[k] of an entry a lane, None if both are: [LANES, 1]."""
    w = None
    if value_ptrs is not None:
        w = tl.load(value_ptrs).to(acc_dtype)
    if col_scale_ptr is not None:
        scale = tl.load(col_scale_ptr + k).to(acc_dtype)
        w = scale if value_ptrs is None else w * scale
    return w


@triton.jit
def signs(row_scale_ptr, r, acc_dtype: tl.constexpr, REDUCE: tl.constexpr):
    """What the terms of an extremum in rows r [LANES, 1] are multiplied by, None if by nothing."""
    sign = None
    if REDUCE != "sum":
        if row_scale_ptr is not None:
            sign = tl.load(row_scale_ptr + r).to(acc_dtype)
            if REDUCE == "min":
                sign = -sign
        elif REDUCE == "min":
            sign = tl.full(r.shape, -1.0, acc_dtype)
    return sign


@triton.jit
def finish_lanes(
    acc, arg, r, is_empty, here,
    row_scale_ptr, bias_ptr, y_ptr, arg_ptr, offs_f, m_f, F,
    REDUCE: tl.constexpr, MASK_F: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Write rows r [LANES, 1] of y, and of arg if wanted; 0 and -1 where `is_empty`, and the epilogue of 0.

    here: [LANES, 1], the lanes to write, or None for all of them.
    """
    y = acc
    if REDUCE == "sum":
        if row_scale_ptr is not None:
            y *= tl.load(row_scale_ptr + r).to(acc.dtype)
    else:
        if REDUCE == "min":
            y = -y
        y = tl.where(is_empty, 0.0, y)
    y = epilogue(y, bias_ptr, offs_f[None, :], m_f[None, :], MASK_F, RELU)
    out = r.to(tl.int64) * F + offs_f[None, :]
    y = y.to(y_ptr.dtype.element_ty)
    mask = m_f[None, :]
    if here is not None:
        mask = mask & here
    if MASK_F or here is not None:
        tl.store(y_ptr + out, y, mask=mask)
    else:
        tl.store(y_ptr + out, y)
    if arg_ptr is not None:
        arg = tl.where(is_empty, -1, arg).to(arg_ptr.dtype.element_ty)
        if MASK_F or here is not None:
            tl.store(arg_ptr + out, arg, mask=mask)
        else:
            tl.store(arg_ptr + out, arg)
