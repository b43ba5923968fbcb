"""Graph attention: the kernels; see `attention` for what they compute and how they go together."""

from __future__ import annotations

import triton
import triton.language as tl

# H, D and the slope are constants: a network has few of each, addresses of whole heads are then known to be
# consecutive, and a number passed at run time would be fp32 where x is fp64.


@triton.jit
def _leaky(logit, SLOPE: tl.constexpr):
    return tl.where(logit > 0, logit, logit * SLOPE)


@triton.jit
def _tile(pid_h, pid_d, H: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr):
    """Heads [1, BLOCK_H], offsets in a row of x [1, BLOCK_H, BLOCK_D], and which of either exist."""
    offs_h = (pid_h * BLOCK_H + tl.arange(0, BLOCK_H))[None, :]
    offs_d = (pid_d * BLOCK_D + tl.arange(0, BLOCK_D))[None, None, :]
    m_h = offs_h < H
    return offs_h, m_h, offs_h[:, :, None] * D + offs_d, m_h[:, :, None] & (offs_d < D)


@triton.jit
def _take(ptrs, mask, m_e, BATCH: tl.constexpr, MASKED: tl.constexpr):
    """Load what is inside the tile (if MASKED it is wider than H or D) and of entries that exist; no mask at all if it
    would be all true, as it is for one entry at a time."""
    if BATCH == 1:
        if MASKED:
            return tl.load(ptrs, mask=mask, other=0.0)
        else:
            return tl.load(ptrs)
    else:
        if MASKED:
            return tl.load(ptrs, mask=mask & m_e, other=0.0)
        else:
            return tl.load(ptrs, mask=m_e, other=0.0)


@triton.jit
def gat_forward_kernel(
    rowptr_ptr, col_ptr, x_ptr, source_ptr, target_ptr, y_ptr, norm_ptr,
    rows, stride_x, stride_source, stride_target, share,
    SLOPE: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    BATCH: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """y[i, h] = sum over entries (i, k) of p x[k, h], where p = exp(l - norm[i, 0, h]) norm[i, 1, h] is the softmax of
    l = leaky(source[k, h] + target[i, h]) over the row. (One number, the log of the sum of exp(l), would do in place of
    two, but where logits are large it has lost the digits that p needs.)

    rowptr: [rows + 1]; col: [nnz]; x: [K, H, D], source: [K, H], target: [rows, H], whose rows are the strides apart;
    y: [rows, H, D]; norm: [rows, 2, H]. Program (p, q, r) owns rows p * share to (p + 1) * share - 1 in the q-th
    tile of heads and the r-th tile of D. The largest logit of a row is that of its largest source score, since leaky
    never falls: a first pass over the scores alone finds it, and then an entry takes one exponential.
    """
    acc_dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    MASK_H: tl.constexpr = H % BLOCK_H != 0
    MASK: tl.constexpr = MASK_H or D % BLOCK_D != 0
    offs_h, m_h, offs_x, m_x = _tile(tl.program_id(1), tl.program_id(2), H, D, BLOCK_H, BLOCK_D)
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, rows)
    begin = tl.load(rowptr_ptr + first)
    for row in range(first, last):
        end = tl.load(rowptr_ptr + row + 1)
        target = _take(target_ptr + row * stride_target + offs_h, m_h, True, 1, MASK_H).to(acc_dtype)

        top = tl.full((BATCH, BLOCK_H), -float("inf"), acc_dtype)
        for position in range(begin, end, BATCH):
            offs_e = position + tl.arange(0, BATCH)
            m_e = (offs_e < end)[:, None]
            k = _take(col_ptr + offs_e[:, None], True, m_e, BATCH, False).to(tl.int64)
            source = _take(source_ptr + k * stride_source + offs_h, m_h, m_e, BATCH, MASK_H).to(acc_dtype)
            if BATCH > 1:
                source = tl.where(m_e, source, -float("inf"))
            top = tl.maximum(top, source)
        most = _leaky(tl.max(top, axis=0)[None, :] + target, SLOPE)

        acc = tl.zeros((BATCH, BLOCK_H, BLOCK_D), acc_dtype)
        total = tl.zeros((BATCH, BLOCK_H), acc_dtype)
        for position in range(begin, end, BATCH):
            offs_e = position + tl.arange(0, BATCH)
            m_e = (offs_e < end)[:, None]
            k = _take(col_ptr + offs_e[:, None], True, m_e, BATCH, False).to(tl.int64)
            source = _take(source_ptr + k * stride_source + offs_h, m_h, m_e, BATCH, MASK_H).to(acc_dtype)
            x_ptrs = x_ptr + (k * stride_x)[:, :, None] + offs_x
            x = _take(x_ptrs, m_x, m_e[:, :, None], BATCH, MASK).to(acc_dtype)
            p = tl.exp(_leaky(source + target, SLOPE) - most)
            if BATCH > 1:
                p = tl.where(m_e, p, 0.0)
            total += p
            acc += p[:, :, None] * x
        total = tl.sum(total, axis=0)[None, :]
        inverse = 1.0 / total
        y = tl.sum(acc, axis=0)[None, :, :] * inverse[:, :, None]
        y = tl.where(begin == end, 0.0, y).to(y_ptr.dtype.element_ty)
        y_ptrs = y_ptr + row * (H * D) + offs_x
        if MASK:
            tl.store(y_ptrs, y, mask=m_x)
        else:
            tl.store(y_ptrs, y)
        if tl.program_id(2) == 0:
            norm = norm_ptr + row * (2 * H) + offs_h
            tl.store(norm, most, mask=m_h)
            tl.store(norm + H, inverse, mask=m_h)
        begin = end


@triton.jit
def gat_delta_kernel(
    target_ptr, norm_ptr, y_ptr, gy_ptr, stat_ptr,
    rows, stride_target, stride_gy, share,
    H: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """stat[i, 0] = target[i], stat[i, 1:3] = norm[i] and stat[i, 3, h] = sum over d of gy[i, h, d] y[i, h, d].

    stat: [rows, 4, H]: what the next pass wants of a row, in one place. Program (p, q) owns rows p * share to
    (p + 1) * share - 1 in the q-th tile of heads.
    """
    acc_dtype: tl.constexpr = stat_ptr.dtype.element_ty
    offs_h, m_h, offs, m = _tile(tl.program_id(1), 0, H, D, BLOCK_H, BLOCK_D)
    first = tl.program_id(0).to(tl.int64) * share
    for row in range(first, tl.minimum(first + share, rows)):
        delta = tl.zeros((1, BLOCK_H), acc_dtype)
        for pid_d in tl.static_range((D + BLOCK_D - 1) // BLOCK_D):
            offs_h, m_h, offs, m = _tile(tl.program_id(1), pid_d, H, D, BLOCK_H, BLOCK_D)
            gy = tl.load(gy_ptr + row * stride_gy + offs, mask=m, other=0.0).to(acc_dtype)
            y = tl.load(y_ptr + row * (H * D) + offs, mask=m, other=0.0).to(acc_dtype)
            delta += tl.sum(gy * y, axis=2)
        stat = stat_ptr + row * (4 * H) + offs_h
        target = tl.load(target_ptr + row * stride_target + offs_h, mask=m_h, other=0.0).to(acc_dtype)
        tl.store(stat, target, mask=m_h)
        norm = norm_ptr + row * (2 * H) + offs_h
        tl.store(stat + H, tl.load(norm, mask=m_h, other=0.0), mask=m_h)
        tl.store(stat + 2 * H, tl.load(norm + H, mask=m_h, other=0.0), mask=m_h)
        tl.store(stat + 3 * H, delta, mask=m_h)


@triton.jit
def gat_source_kernel(
    rowptr_ptr, col_ptr, perm_ptr, x_ptr, source_ptr, stat_ptr, gy_ptr, gx_ptr, gsource_ptr, gl_ptr,
    rows, stride_x, stride_source, stride_gy, share,
    SLOPE: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    BATCH: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The pass over the transpose: gx[k] and gsource[k], the sums over the entries (i, k) of source k, and gl[e], the
    gradient of source[k] + target[i] for every entry.

    rowptr [rows + 1], col, perm [nnz]: of the transpose, whose `rows` are the sources; x, gx: [rows, H, D]; source,
    gsource: [rows, H]; gy: [M, H, D]; stat: see `gat_delta_kernel`; gl: [nnz, H], by the number of the entry. Programs
    as in `gat_forward_kernel`; of the tiles of D the first looks at the others too, for gsource and gl.
    """
    acc_dtype: tl.constexpr = stat_ptr.dtype.element_ty
    MASK_H: tl.constexpr = H % BLOCK_H != 0
    MASK: tl.constexpr = MASK_H or D % BLOCK_D != 0
    TILES: tl.constexpr = (D + BLOCK_D - 1) // BLOCK_D
    offs_h, m_h, offs_x, m_x = _tile(tl.program_id(1), tl.program_id(2), H, D, BLOCK_H, BLOCK_D)
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, rows)
    begin = tl.load(rowptr_ptr + first)
    for row in range(first, last):
        end = tl.load(rowptr_ptr + row + 1)
        source = _take(source_ptr + row * stride_source + offs_h, m_h, True, 1, MASK_H).to(acc_dtype)
        x = _take(x_ptr + row * stride_x + offs_x, m_x, True, 1, MASK).to(acc_dtype)
        gx = tl.zeros((BATCH, BLOCK_H, BLOCK_D), acc_dtype)
        gsource = tl.zeros((BATCH, BLOCK_H), acc_dtype)
        for position in range(begin, end, BATCH):
            offs_e = position + tl.arange(0, BATCH)
            m_e = (offs_e < end)[:, None]
            i = _take(col_ptr + offs_e[:, None], True, m_e, BATCH, False).to(tl.int64)
            stat = stat_ptr + i * (4 * H) + offs_h
            logit = source + _take(stat, m_h, m_e, BATCH, MASK_H)
            p = tl.exp(_leaky(logit, SLOPE) - _take(stat + H, m_h, m_e, BATCH, MASK_H))
            p *= _take(stat + 2 * H, m_h, m_e, BATCH, MASK_H)
            if BATCH > 1:
                p = tl.where(m_e, p, 0.0)
            gy_ptrs = gy_ptr + (i * stride_gy)[:, :, None]
            gy = _take(gy_ptrs + offs_x, m_x, m_e[:, :, None], BATCH, MASK).to(acc_dtype)
            gx += p[:, :, None] * gy
            if tl.program_id(2) == 0:
                dp = tl.sum(gy * x, axis=2)
                for pid_d in tl.static_range(1, TILES):
                    offs_h, m_h, offs, m = _tile(tl.program_id(1), pid_d, H, D, BLOCK_H, BLOCK_D)
                    other = _take(x_ptr + row * stride_x + offs, m, True, 1, MASK).to(acc_dtype)
                    dp += tl.sum(other * _take(gy_ptrs + offs, m, m_e[:, :, None], BATCH, MASK).to(acc_dtype), axis=2)
                gl = p * (dp - _take(stat + 3 * H, m_h, m_e, BATCH, MASK_H))
                gl = _leaky_gradient(gl, logit, SLOPE)
                if BATCH > 1:
                    gl = tl.where(m_e, gl, 0.0)  # p is 0, but what it meets may be NaN
                gsource += gl
                if gl_ptr is not None:
                    entry = offs_e[:, None].to(tl.int64)
                    if perm_ptr is not None:
                        entry = _take(perm_ptr + offs_e[:, None], True, m_e, BATCH, False).to(tl.int64)
                    tl.store(gl_ptr + entry * H + offs_h, gl, mask=m_e & m_h)
        out = tl.sum(gx, axis=0)[None, :, :].to(gx_ptr.dtype.element_ty)
        gx_ptrs = gx_ptr + row * (H * D) + offs_x
        if MASK:
            tl.store(gx_ptrs, out, mask=m_x)
        else:
            tl.store(gx_ptrs, out)
        if tl.program_id(2) == 0:
            out_source = tl.sum(gsource, axis=0)[None, :].to(gsource_ptr.dtype.element_ty)
            tl.store(gsource_ptr + row * H + offs_h, out_source, mask=m_h)
        begin = end


@triton.jit
def _leaky_gradient(g, logit, SLOPE: tl.constexpr):
    return tl.where(logit > 0, g, g * SLOPE)


@triton.jit
def gat_target_kernel(
    rowptr_ptr, perm_ptr, gl_ptr, gtarget_ptr, rows, share,
    H: tl.constexpr, BATCH: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """gtarget[i, h] = sum over the entries e of row i of gl[e, h].

    rowptr: [rows + 1]; perm: [nnz]; gl: [nnz, H]; gtarget: [rows, H]. Programs as in `gat_delta_kernel`.
    """
    offs_h = (tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H))[None, :]
    m_h = offs_h < H
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, rows)
    begin = tl.load(rowptr_ptr + first)
    for row in range(first, last):
        end = tl.load(rowptr_ptr + row + 1)
        acc = tl.zeros((BATCH, BLOCK_H), gl_ptr.dtype.element_ty)
        for position in range(begin, end, BATCH):
            offs_e = position + tl.arange(0, BATCH)
            m_e = (offs_e < end)[:, None]
            entry = offs_e[:, None].to(tl.int64)
            if perm_ptr is not None:
                entry = _take(perm_ptr + offs_e[:, None], True, m_e, BATCH, False).to(tl.int64)
            acc += _take(gl_ptr + entry * H + offs_h, m_h, m_e, BATCH, H % BLOCK_H != 0)
        out = tl.sum(acc, axis=0)[None, :].to(gtarget_ptr.dtype.element_ty)
        tl.store(gtarget_ptr + row * H + offs_h, out, mask=m_h)
        begin = end
