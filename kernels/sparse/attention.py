"""Graph attention: softmax over the entries of a row and the weighted sum of sources, without a tensor of messages.

The forward pass keeps the largest logit and the denominator of every softmax, [M, 2, H]. The backward pass recomputes
the weights p from them: with dp[e] = <gy[i], x[k]> and delta[i] = sum over the row of p dp = <gy[i], y[i]> (as in
T. Dao et al., "FlashAttention", NeurIPS 2022) the gradient of a logit is p (dp - delta). A pass over the transpose's
rows has it all, sums what belongs to sources, and leaves the gradient of each logit, [nnz, H], which a pass over rows
sums for targets. Every sum has one owner and a fixed order; nothing is atomic.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
import triton

from .. import alloc
from ..launch import launch
from ..target import AotCase, backend_of
from .attention_kernels import gat_delta_kernel, gat_forward_kernel, gat_source_kernel, gat_target_kernel
from .build import VALUE_DTYPES
from .config import ceil_div
from .matrix import SparseMatrix

# --------------------------------------------------------------------------------------------------------------------
# Launchers


@dataclass(frozen=True)
class GatConfig:
    """How the passes of one product are run: rows a program owns, entries taken at a time, heads and columns of a
    tile (powers of two), compiler options."""

    share: int
    batch: int
    block_h: int
    block_d: int
    options: dict[str, int] = field(default_factory=dict)


@functools.lru_cache(maxsize=4096)
def pick_gat(rows: int, nnz: int, H: int, D: int, dtype: torch.dtype, backend: str) -> GatConfig:
    """The configuration of a pass over `rows` >= 1 rows with nnz entries in all, for H, D >= 1.

    Nothing here depends on the number of threads, so every sum has the same order in every run.
    """
    mean = nnz / rows
    wide = 2 if dtype == torch.float64 else 1
    tile_h, tile_d = triton.next_power_of_2(H), triton.next_power_of_2(D)
    if backend == "cpu":
        # Accumulator and operands of a tile in 32 vector registers. A row or an entry costs some 20 ns or more.
        block_d = min(tile_d, 256 // wide)
        block_h = max(min(tile_h, 256 // wide // block_d), 1)
        share = max(int((1 << 16) / (min(tile_h * tile_d, 256) * (mean + 1))), 1)
        return GatConfig(share, 1, block_h, block_d)
    block_d = min(tile_d, 64 // wide)
    block_h = max(min(tile_h, 64 // wide // block_d), 1)
    batch = max(min(512 // wide // (block_h * block_d), 16), 1)
    return GatConfig(4 if mean < 4 else 1, batch, block_h, block_d, {"num_warps": 1})


def _flat_rows(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy of it, with everything behind the first dimension side by side."""
    size = 1
    for n, stride in zip(x.shape[:0:-1], x.stride()[:0:-1]):
        if n > 1 and stride != size:
            return x.contiguous()
        size *= n
    return x


def _forward(
    x: torch.Tensor,
    source_score: torch.Tensor,
    target_score: torch.Tensor,
    negative_slope: float,
    rows: int,
    storage: list[torch.Tensor],
    storage_t: list[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """y [rows, H, D] and norm [rows, 2, H], whose empty rows hold nothing of use."""
    _, H, D = x.shape
    y = alloc.empty((rows, H, D), x.dtype, x.device)
    norm = alloc.empty((rows, 2, H), _acc_dtype(x), x.device)
    if not rows or not H:
        return y, norm
    if not D:
        return y, norm.zero_()
    rowptr, col = storage[:2]
    x, source, target = _flat_rows(x), _flat_rows(source_score), _flat_rows(target_score)
    config = pick_gat(rows, col.shape[0], H, D, x.dtype, backend_of(x.device))
    launch(
        gat_forward_kernel, (ceil_div(rows, config.share), ceil_div(H, config.block_h), ceil_div(D, config.block_d)),
        rowptr, col, x, source, target, y, norm, rows, x.stride(0), source.stride(0), target.stride(0), config.share,
        SLOPE=negative_slope, H=H, D=D, BATCH=config.batch, BLOCK_H=config.block_h, BLOCK_D=config.block_d,
        **config.options,
    )  # fmt: skip
    return y, norm


def _acc_dtype(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _backward(
    gy: torch.Tensor,
    y: torch.Tensor,
    norm: torch.Tensor,
    x: torch.Tensor,
    source_score: torch.Tensor,
    target_score: torch.Tensor,
    negative_slope: float,
    to_target: bool,
    storage: list[torch.Tensor],
    storage_t: list[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of x, source_score and target_score; of the last, [0, H] unless `to_target`."""
    cols, H, D = x.shape
    rows, device, acc = gy.shape[0], x.device, _acc_dtype(x)
    gx = alloc.empty(x.shape, x.dtype, device)
    gsource = alloc.empty((cols, H), source_score.dtype, device)
    gtarget = alloc.empty((rows if to_target else 0, H), target_score.dtype, device)
    nnz = storage[1].shape[0]
    if not nnz or not H or not D:
        return gx.zero_(), gsource.zero_(), gtarget.zero_()
    gy, x, source, target = map(_flat_rows, (gy, x, source_score, target_score))
    backend = backend_of(device)

    stat = alloc.empty((rows, 4, H), acc, device)
    config = pick_gat(rows, nnz, H, D, x.dtype, backend)
    heads = ceil_div(H, config.block_h)
    launch(
        gat_delta_kernel, (ceil_div(rows, config.share), heads), target, norm, y, gy, stat,
        rows, target.stride(0), gy.stride(0), config.share,
        H=H, D=D, BLOCK_H=config.block_h, BLOCK_D=config.block_d, **config.options,
    )  # fmt: skip

    gl = alloc.empty((nnz, H), acc, device) if to_target else None
    rowptr_t, col_t, *order = storage_t
    turned = pick_gat(cols, nnz, H, D, x.dtype, backend)
    launch(
        gat_source_kernel, (ceil_div(cols, turned.share), heads, ceil_div(D, turned.block_d)),
        rowptr_t, col_t, order[0] if order and to_target else None, x, source, stat, gy, gx, gsource, gl,
        cols, x.stride(0), source.stride(0), gy.stride(0), turned.share,
        SLOPE=negative_slope, H=H, D=D, BATCH=turned.batch, BLOCK_H=turned.block_h, BLOCK_D=turned.block_d,
        **turned.options,
    )  # fmt: skip

    if gl is not None:
        rowptr, _, *order = storage
        launch(
            gat_target_kernel, (ceil_div(rows, config.share), heads), rowptr, order[0] if order else None, gl, gtarget,
            rows, config.share, H=H, BATCH=config.batch, BLOCK_H=config.block_h, **config.options,
        )  # fmt: skip
    return gx, gsource, gtarget


# --------------------------------------------------------------------------------------------------------------------
# The registered operators. They trust their callers: `gat_aggregate` below checks.

_library = torch.library.Library("braidwork", "FRAGMENT")
_OPERANDS = "Tensor x, Tensor source_score, Tensor target_score, float negative_slope"
_library.define(
    f"gat_aggregate({_OPERANDS}, SymInt rows, Tensor[] storage, Tensor[] storage_t) -> (Tensor, Tensor)"
)
_library.define(
    f"gat_aggregate_backward(Tensor gy, Tensor y, Tensor norm, {_OPERANDS}, bool to_target, Tensor[] storage,"
    " Tensor[] storage_t) -> (Tensor, Tensor, Tensor)"
)


def _forward_fake(x, source_score, target_score, negative_slope, rows, storage, storage_t):
    y = x.new_empty((rows, *x.shape[1:]))
    return y, x.new_empty((rows, 2, x.shape[1]), dtype=_acc_dtype(x))


def _backward_fake(gy, y, norm, x, source_score, target_score, negative_slope, to_target, storage, storage_t):
    gtarget = target_score.new_empty((gy.shape[0] if to_target else 0, x.shape[1]))
    return x.new_empty(x.shape), source_score.new_empty(source_score.shape), gtarget


class _Gat(torch.autograd.Function):
    """`braidwork::gat_aggregate` with its gradients, entered as its implementation for autograd: see `spmm.py`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x, source_score, target_score, negative_slope, _, storage, storage_t = inputs
        with torch._C._AutoDispatchBelowAutograd():
            y, norm = torch.ops.braidwork.gat_aggregate.default(*inputs)
        ctx.mark_non_differentiable(norm)
        ctx.set_materialize_grads(False)
        ctx.negative_slope, ctx.split = negative_slope, len(storage)
        ctx.save_for_backward(y, norm, x, source_score, target_score, *storage, *storage_t)
        return y, norm

    @staticmethod
    def backward(ctx: Any, gy: torch.Tensor | None, _: Any) -> tuple[torch.Tensor | None, ...]:
        if gy is None:
            return (None,) * 7
        y, norm, x, source_score, target_score, *rest = ctx.saved_tensors
        storage, storage_t = rest[: ctx.split], rest[ctx.split :]
        if not storage_t:
            raise RuntimeError("gat_aggregate: gradients need the transpose, which was not given to the operator")
        needs = ctx.needs_input_grad[:3]
        operands = (x, source_score, target_score, ctx.negative_slope, needs[2], storage, storage_t)
        grads = torch.ops.braidwork.gat_aggregate_backward.default(gy, y, norm, *operands)
        return *(g if need else None for g, need in zip(grads, needs)), *(None,) * 4


def _once(ctx: Any, *_: Any) -> None:
    raise NotImplementedError("gat_aggregate can be differentiated once, not twice")


for _name, _run, _fake in (
    ("gat_aggregate", _forward, _forward_fake),
    ("gat_aggregate_backward", _backward, _backward_fake),
):
    for _device in ("CPU", "CUDA"):
        _library.impl(_name, torch.compiler.disable(_run), _device)
    torch.library.register_fake(f"braidwork::{_name}", _fake, lib=_library)
_library.impl("gat_aggregate", lambda *inputs: _Gat.apply(*inputs), "Autograd")
torch.library.register_autograd("braidwork::gat_aggregate_backward", _once, lib=_library)


# --------------------------------------------------------------------------------------------------------------------
# The door


def gat_aggregate(
    A: SparseMatrix,
    x: torch.Tensor,
    source_score: torch.Tensor,
    target_score: torch.Tensor,
    negative_slope: float = 0.2,
) -> torch.Tensor:
    """What a graph attention layer does along edges: weights from a softmax over each row, and their sum of sources.

    y[i, h] = sum over entries (i, k) of p x[k, h], where p is the softmax, over the entries of row i, of
    LeakyReLU(source_score[k, h] + target_score[i, h]) (P. Veličković et al., "Graph Attention Networks", ICLR 2018,
    eq. 3 and 5, its attention vector split in two). With the scores <a, x[k, h]> this is PyTorch Geometric's `GATConv`
    after its linear layer. Memory is that of the operands and, in the backward pass, one number for each entry and
    head: nothing of size nnz x H x D.

    Args:
        A: [M, K] without values, row i a target and column k a source (`SparseMatrix.from_edge_index`); entries kept
            at equal coordinates count each. Used in CSR, whatever `A.format`.
        x: [K, H, D]; fp64, fp32, bf16 or fp16. Any strides; it is copied unless a node's H * D numbers lie in a row.
        source_score: [K, H], target_score: [M, H]; in the dtype of x or in fp32.
        negative_slope: of the LeakyReLU, from 0 to 1 (it must not fall).

    Returns:
        [M, H, D] in the dtype of x; 0 for a row without entries. Arithmetic is in fp32, in fp64 if x is. As with
        `torch.softmax`, a NaN or +inf among the logits of a row and head gives NaN there, and so does a row whose
        logits are all -inf; other logits of -inf count nothing.

    Gradients: to x and to both scores, once (a second derivative raises NotImplementedError). Those of the scores are
    formed from the result as it was returned, so with x in 16 bits they have its precision even in fp32. Results and
    gradients are the same bit for bit in every run and with any number of threads. Under `torch.compile` the operator
    is one node; call it once, or build `A.to("csr")` and `A.T.to("csr")`, before compilation.

    Raises:
        TypeError: A is not a SparseMatrix, an operand not a tensor, or a dtype is not as above.
        ValueError: A has values; shapes, devices or the slope do not fit.
    """
    if not isinstance(A, SparseMatrix):
        raise TypeError(f"A: need a SparseMatrix, got {type(A).__name__}")
    if A.values is not None:
        raise ValueError("A: need a matrix without values, got weighted entries (drop them: A.with_values(None))")
    for name, tensor in (("x", x), ("source_score", source_score), ("target_score", target_score)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: need a torch.Tensor, got {type(tensor).__name__}")
        if tensor.dtype not in VALUE_DTYPES or tensor.layout != torch.strided:
            raise TypeError(
                f"{name}: need a dense tensor of float64, float32, bfloat16 or float16, got {tensor.dtype}, "
                f"{tensor.layout}"
            )
        if tensor.device != A.device:
            raise ValueError(f"{name}: A is on {A.device}, {name} on {tensor.device}")
    rows, cols = A.shape
    if x.dim() != 3 or x.shape[0] != cols:
        raise ValueError(f"x: need shape [{cols}, H, D] for A with shape {(rows, cols)}, got {tuple(x.shape)}")
    for name, tensor, n in (("source_score", source_score, cols), ("target_score", target_score, rows)):
        if tuple(tensor.shape) != (n, x.shape[1]):
            raise ValueError(f"{name}: need shape {[n, x.shape[1]]}, got {tuple(tensor.shape)}")
        if tensor.dtype != x.dtype and tensor.dtype != torch.float32:
            raise TypeError(f"{name}: need the dtype of x, {x.dtype}, or float32, got {tensor.dtype}")
    if isinstance(negative_slope, bool) or not isinstance(negative_slope, (int, float)):
        raise TypeError(f"negative_slope: need a number, got {type(negative_slope).__name__}")
    negative_slope = float(negative_slope)
    if not (math.isfinite(negative_slope) and 0.0 <= negative_slope <= 1.0):
        raise ValueError(f"negative_slope: need a number from 0 to 1, got {negative_slope}")

    storage, storage_t = A.to("csr").storage().tensors, []
    if torch.is_grad_enabled() and (x.requires_grad or source_score.requires_grad or target_score.requires_grad):
        storage_t = A.T.to("csr").storage().tensors
    y, _ = torch.ops.braidwork.gat_aggregate.default(
        x, source_score, target_score, negative_slope, rows, storage, storage_t
    )
    return y


def _aot_case(kernel: Any, dtype: str) -> AotCase:
    """A kernel on int32 indices with 8 heads of 8, the scores in the dtype of x, as a launch has it.

    Indices, scores and statistics are counted once a thread, so the wide loads of x and gy weigh less.
    """
    types = dict.fromkeys(("rowptr_ptr", "col_ptr", "perm_ptr"), "*i32")
    types |= dict.fromkeys(("x_ptr", "source_ptr", "target_ptr", "y_ptr", "gy_ptr", "gx_ptr"), f"*{dtype}")
    types |= dict.fromkeys(("gsource_ptr", "gtarget_ptr"), f"*{dtype}")
    types |= dict.fromkeys(("norm_ptr", "stat_ptr", "gl_ptr"), "*fp32")
    types |= dict.fromkeys(("rows", "share", "stride_x", "stride_source", "stride_target", "stride_gy"), "i32")
    names = kernel.arg_names
    signature = {n: types[n] for n in names if n in types}
    if kernel is gat_target_kernel:
        del signature["perm_ptr"]  # entries are numbered by rows

    def meta(backend: str) -> dict[str, Any]:
        torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
        config = pick_gat(1 << 16, 1 << 20, 8, 8, torch_dtype, backend)
        given: dict[str, Any] = {"SLOPE": 0.2, "H": 8, "D": 8, "BATCH": config.batch}
        given |= {"BLOCK_H": config.block_h, "BLOCK_D": config.block_d, "perm_ptr": None}
        return {n: v for n, v in given.items() if n in names and n not in signature} | config.options

    name = f"{kernel.fn.__name__.removesuffix('_kernel')}-{dtype}-8x8"
    return AotCase(name, kernel, signature, meta, divisible=("stride_x", "stride_gy"), wide_loads=False)


AOT_CASES = [
    _aot_case(kernel, dtype)
    for kernel in (gat_forward_kernel, gat_delta_kernel, gat_source_kernel, gat_target_kernel)
    for dtype in ("fp32", "bf16")
]
