"""Entry by entry: the product that gives the gradient of a matrix's values, in any format."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .. import alloc
from ..launch import launch
from ..target import AotCase, backend_of
from .config import DotConfig, ceil_div, pick_dot


@triton.jit
def entry_dot_kernel(
    row_ptr, col_ptr, g_ptr, x_ptr, row_scale_ptr, col_scale_ptr, route_ptr, out_ptr,
    nnz, F, stride_g, stride_x, share,
    BATCH: tl.constexpr, BLOCK_F: tl.constexpr, MASK_F: tl.constexpr,
):  # fmt: skip
    """out[e] = row_scale[i] col_scale[k] sum over f of g[i, f] x[k, f], for entry e = (i, k).

    row, col, out: [nnz]; g: [rows, F] and x: [K, F] with rows stride_g and stride_x apart; route: [rows, F], a term
    counts only where it equals e. A program owns `share` entries and takes BATCH at a time, the last of them moved back
    to end at nnz (nnz >= BATCH), so that none is past the end.
    """
    acc_dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, nnz)
    for position in range(first, last, BATCH):
        offs_e = tl.minimum(position, nnz - BATCH) + tl.arange(0, BATCH)
        i = tl.load(row_ptr + offs_e).to(tl.int64)
        k = tl.load(col_ptr + offs_e).to(tl.int64)
        acc = tl.zeros((BATCH, BLOCK_F), acc_dtype)
        for first_f in range(0, F, BLOCK_F):
            offs_f = first_f + tl.arange(0, BLOCK_F)
            m_f = (offs_f < F)[None, :]
            g_ptrs = g_ptr + i[:, None] * stride_g + offs_f[None, :]
            x_ptrs = x_ptr + k[:, None] * stride_x + offs_f[None, :]
            if MASK_F:
                term = tl.load(g_ptrs, mask=m_f, other=0.0).to(acc_dtype)
                term *= tl.load(x_ptrs, mask=m_f, other=0.0).to(acc_dtype)
            else:
                term = tl.load(g_ptrs).to(acc_dtype) * tl.load(x_ptrs).to(acc_dtype)
            if route_ptr is not None:
                route_ptrs = route_ptr + i[:, None] * F + offs_f[None, :]
                route = tl.load(route_ptrs, mask=m_f, other=-1) if MASK_F else tl.load(route_ptrs)
                term = tl.where(route == offs_e[:, None], term, 0.0)
            acc += term
        out = tl.sum(acc, axis=1)
        if row_scale_ptr is not None:
            out *= tl.load(row_scale_ptr + i).to(acc_dtype)
        if col_scale_ptr is not None:
            out *= tl.load(col_scale_ptr + k).to(acc_dtype)
        tl.store(out_ptr + offs_e, out)


def entry_dot(
    row: torch.Tensor,
    col: torch.Tensor,
    g: torch.Tensor,
    x: torch.Tensor,
    row_scale: torch.Tensor | None,
    col_scale: torch.Tensor | None,
    route: torch.Tensor | None,
    config: DotConfig | None = None,
) -> torch.Tensor:
    """Launch `entry_dot_kernel`; the result is in the dtype of the accumulation, fp32 or fp64."""
    nnz, F = row.shape[0], x.shape[1]
    out_dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    if not nnz or not F:
        return torch.zeros(nnz, dtype=out_dtype, device=x.device)
    if g.stride(1) != 1 and F > 1:
        g = g.contiguous()
    if x.stride(1) != 1 and F > 1:
        x = x.contiguous()
    out = alloc.empty((nnz,), out_dtype, x.device)
    if config is None:
        config = pick_dot(nnz, F, x.dtype, backend_of(x.device))
    launch(
        entry_dot_kernel, (ceil_div(nnz, config.share),), row, col, g, x, row_scale, col_scale, route, out,
        nnz, F, g.stride(0), x.stride(0), config.share,
        BATCH=config.batch, BLOCK_F=config.block_f, MASK_F=F % config.block_f != 0, **config.options,
    )  # fmt: skip
    return out


def _aot_case(dtype: str, torch_dtype: torch.dtype) -> AotCase:
    signature = {"row_ptr": "*i32", "col_ptr": "*i32", "g_ptr": f"*{dtype}", "x_ptr": f"*{dtype}", "out_ptr": "*fp32"}
    signature |= dict.fromkeys(("nnz", "F", "stride_g", "stride_x", "share"), "i32")

    def meta(backend: str) -> dict[str, Any]:
        config = pick_dot(1 << 20, 128, torch_dtype, backend)
        absent = dict.fromkeys(("row_scale_ptr", "col_scale_ptr", "route_ptr"))
        return absent | {"BATCH": config.batch, "BLOCK_F": config.block_f, "MASK_F": False} | config.options

    name = f"entry_dot-{dtype}"
    return AotCase(name, entry_dot_kernel, signature, meta, divisible=("F", "stride_g", "stride_x"))


AOT_CASES = [_aot_case("fp32", torch.float32), _aot_case("bf16", torch.bfloat16)]
