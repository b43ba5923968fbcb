"""The inner loop that kernels share: fold a run of one row's entries into an accumulator.

An accumulator is a tile [BATCH, BLOCK_F]: BATCH entries are taken at a time, each with BLOCK_F columns of its row of x,
and folded elementwise; `collapse` brings the BATCH lanes together at the end. A GPU wants a batch, so that many loads
are in flight; a CPU, which looks ahead by itself, wants one entry after the other and its accumulator in registers.

Terms are w[e] x[k, f] with w[e] = value[e] col_scale[k] (pointers that are None count as 1). row_scale joins at the end
of a sum, and in every term of an extremum, whose order it may reverse. The minimum is the maximum of negated terms.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def beats(a, b):
    """Whether a replaces b as the maximum, where NaN is above everything."""
    return (a > b) | ((a != a) & (b == b))


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def earliest_maximum(a, a_arg, b, b_arg):
    """The larger of two (value, entry) pairs; the one with the smaller entry of two that are equal."""
    take = beats(b, a) | (((a == b) | ((a != a) & (b != b))) & (b_arg < a_arg))
    return tl.where(take, b, a), tl.where(take, b_arg, a_arg)


@triton.jit
def columns(pid_f, F, BLOCK_F: tl.constexpr, OVERLAP: tl.constexpr):
    """Columns of tile pid_f and which of them exist; with OVERLAP the last tile is moved back to end at F."""
    first = pid_f * BLOCK_F
    if OVERLAP:
        first = tl.minimum(first, F - BLOCK_F)
    offs_f = first + tl.arange(0, BLOCK_F)
    return offs_f, offs_f < F


@triton.jit
def ask(x_ptr, col_ptr, position, last, offs_f, m_f, stride_x):
    """Have the rows of x that the entries at `position`, at most `last`, name brought into the cache.

    A load that is volatile and that nobody looks at: the CPU backend makes it a prefetch. Rows of x lie anywhere, and
    a core by itself looks ahead no farther than its window, some 20 cache lines.
    """
    k = tl.load(col_ptr + tl.minimum(position, last)).to(tl.int64)
    tl.load(x_ptr + tl.maximum(k, 0) * stride_x + offs_f, mask=m_f, other=0.0, volatile=True)


@triton.jit
def keep(acc, arg, slot, carry_ptr, carry_arg_ptr, offs_f, m_f, F):
    """Store a piece of a row, cut between programs, for the kernel that joins them: slot 2 p is how the row that
    program
    p finds begun went on, and slot 2 p + 1 the row that it leaves unfinished."""
    offs = slot * F + offs_f
    tl.store(carry_ptr + offs, acc, mask=m_f)
    if carry_arg_ptr is not None:
        tl.store(carry_arg_ptr + offs, arg, mask=m_f)


@triton.jit
def row_at(step, rowptr_ptr, rows):
    """Equal shares of rows and entries: walk down the rows, taking a step for every entry and one for the end of each
    row. Row i ends in step rowptr[i + 1] + i of the rows + nnz. This is the first row that has not ended before `step`,
    `rows` at the end of the walk."""
    low = step * 0
    high = low + rows
    while low < high:
        middle = (low + high) // 2
        ended = tl.load(rowptr_ptr + middle + 1).to(tl.int64) + middle < step
        low = tl.where(ended, middle + 1, low)
        high = tl.where(ended, high, middle)
    return low


@triton.jit
def start(x_ptr, col_ptr, REDUCE: tl.constexpr, BATCH: tl.constexpr, BLOCK_F: tl.constexpr):
    """The accumulator of no entries, and its entries: the largest integer stands for none."""
    acc_dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    none: tl.constexpr = 2**31 - 1 if col_ptr.dtype.element_ty == tl.int32 else 2**63 - 1
    acc = tl.full((BATCH, BLOCK_F), 0.0 if REDUCE == "sum" else -float("inf"), acc_dtype)
    return acc, tl.full((BATCH, BLOCK_F), none, col_ptr.dtype.element_ty)


@triton.jit
def fold(
    acc, arg, row, begin, end,
    col_ptr, perm_ptr, value_ptr, x_ptr, row_scale_ptr, col_scale_ptr, route_ptr,
    offs_f, m_f, F, stride_x, last,
    WITH_ARG: tl.constexpr, REDUCE: tl.constexpr, BATCH: tl.constexpr, MASK_F: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Fold the entries at positions begin to end - 1, which are in row `row`, into (acc, arg).

    The entry at position j has number perm[j] (j without perm). With route a term counts where route[k, f] is that
    number. With AHEAD the row of x of the entry so many positions later, up to position `last`, is asked for.
    """
    acc_dtype: tl.constexpr = acc.dtype
    sign = 1.0
    if REDUCE == "min":
        sign = -1.0
    if REDUCE != "sum" and row_scale_ptr is not None:
        sign *= tl.load(row_scale_ptr + row).to(acc_dtype)

    for position in range(begin, end, BATCH):
        offs_e = position + tl.arange(0, BATCH)
        m_e = offs_e < end
        if AHEAD:
            ask(x_ptr, col_ptr, position + AHEAD, last, offs_f, m_f, stride_x)
        # Without a batch every position is inside, and no mask is better than one that is all true.
        if BATCH == 1:
            k = tl.load(col_ptr + offs_e).to(tl.int64)
            mask = m_f[None, :]
        else:
            k = tl.load(col_ptr + offs_e, mask=m_e, other=0).to(tl.int64)
            mask = m_e[:, None] & m_f[None, :] if MASK_F else m_e[:, None]

        entry = offs_e
        if perm_ptr is not None:
            entry = tl.load(perm_ptr + offs_e) if BATCH == 1 else tl.load(perm_ptr + offs_e, mask=m_e, other=0)

        x_ptrs = x_ptr + k[:, None] * stride_x + offs_f[None, :]
        if BATCH > 1 or MASK_F:
            term = tl.load(x_ptrs, mask=mask, other=0.0).to(acc_dtype)
        else:
            term = tl.load(x_ptrs).to(acc_dtype)

        if value_ptr is not None or col_scale_ptr is not None:
            w = tl.full((BATCH,), 1.0, acc_dtype)
            if value_ptr is not None:
                w = tl.load(value_ptr + entry) if BATCH == 1 else tl.load(value_ptr + entry, mask=m_e, other=0.0)
                w = w.to(acc_dtype)
            if col_scale_ptr is not None:
                w *= tl.load(col_scale_ptr + k).to(acc_dtype)
            term *= w[:, None]
        if route_ptr is not None:
            route_ptrs = route_ptr + k[:, None] * F + offs_f[None, :]
            route = tl.load(route_ptrs, mask=mask, other=-1) if BATCH > 1 or MASK_F else tl.load(route_ptrs)
            term = tl.where(route == entry[:, None], term, 0.0)

        if REDUCE == "sum":
            acc += term
        else:
            if REDUCE == "min" or row_scale_ptr is not None:
                term *= sign
            if WITH_ARG:
                entry_tile = tl.broadcast_to(entry[:, None], arg.shape)
                if BATCH > 1:
                    # A lane past the end must not win, not even from the accumulator of no entries.
                    entry_tile = tl.where(m_e[:, None], entry_tile, arg)
                    term = tl.where(m_e[:, None], term, -float("inf"))
                acc, arg = earliest_maximum(acc, arg, term, entry_tile.to(arg.dtype))
            else:
                if BATCH > 1:
                    term = tl.where(m_e[:, None], term, -float("inf"))
                acc = maximum(acc, term)
    return acc, arg


@triton.jit
def collapse(acc, arg, WITH_ARG: tl.constexpr, REDUCE: tl.constexpr):
    """Bring the lanes of a batch together: [BATCH, BLOCK_F] to [BLOCK_F]."""
    if REDUCE == "sum":
        return tl.sum(acc, axis=0), tl.min(arg, axis=0)
    elif WITH_ARG:
        return tl.reduce((acc, arg), 0, earliest_maximum)
    else:
        return tl.reduce(acc, 0, maximum), tl.min(arg, axis=0)


@triton.jit
def merge(acc, arg, other, other_arg, WITH_ARG: tl.constexpr, REDUCE: tl.constexpr):
    """Two accumulators of one row, the earlier entries first, as one."""
    if REDUCE == "sum":
        return acc + other, arg
    elif WITH_ARG:
        return earliest_maximum(acc, arg, other, other_arg)
    else:
        return maximum(acc, other), arg


@triton.jit
def join(piece, pid, carry_ptr, carry_arg_ptr, offs_f, m_f, F, REDUCE: tl.constexpr):
    """(acc, arg) of a row that begins in the share of program `piece` and ends in that of program pid; see `keep`."""
    offs = (2 * piece + 1) * F + offs_f
    acc = tl.load(carry_ptr + offs, mask=m_f, other=0.0)
    arg = offs_f * 0
    if carry_arg_ptr is not None:
        arg = tl.load(carry_arg_ptr + offs, mask=m_f, other=0)
    for other in range(piece + 1, pid + 1):
        slot = 2 * other + 1
        if other == pid:
            slot = 2 * other
        offs = slot * F + offs_f
        more = tl.load(carry_ptr + offs, mask=m_f, other=0.0)
        more_arg = arg
        if carry_arg_ptr is not None:
            more_arg = tl.load(carry_arg_ptr + offs, mask=m_f, other=0)
        acc, arg = merge(acc, arg, more, more_arg, carry_arg_ptr is not None, REDUCE)
    return acc, arg


@triton.jit
def epilogue(y, bias_ptr, offs_f, m_f, MASK_F: tl.constexpr, RELU: tl.constexpr):
    """y + bias and its positive part, each if wanted; offs_f and m_f in a shape that y takes."""
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + offs_f, mask=m_f, other=0.0) if MASK_F else tl.load(bias_ptr + offs_f)
        y += bias.to(y.dtype)
    if RELU:
        y = maximum(y, tl.zeros_like(y))
    return y


@triton.jit
def finish(
    acc, arg, row, is_empty,
    row_scale_ptr, bias_ptr, y_ptr, arg_ptr, offs_f, m_f, F,
    REDUCE: tl.constexpr, MASK_F: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Write row `row` (int64) of y, and of arg if wanted, from a collapsed accumulator: 0 and -1 if it is empty, and
    the epilogue of 0."""
    y = acc
    if REDUCE == "sum":
        if row_scale_ptr is not None:
            y *= tl.load(row_scale_ptr + row).to(acc.dtype)
    else:
        if REDUCE == "min":
            y = -y
        y = tl.where(is_empty, 0.0, y)
    y = epilogue(y, bias_ptr, offs_f, m_f, MASK_F, RELU)
    out = row * F + offs_f
    y = y.to(y_ptr.dtype.element_ty)
    if MASK_F:
        tl.store(y_ptr + out, y, mask=m_f)
    else:
        tl.store(y_ptr + out, y)
    if arg_ptr is not None:
        arg = tl.where(is_empty, -1, arg).to(arg_ptr.dtype.element_ty)
        if MASK_F:
            tl.store(arg_ptr + out, arg, mask=m_f)
        else:
            tl.store(arg_ptr + out, arg)
