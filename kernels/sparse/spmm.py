"""Sparse times dense, the public operator, and the registered operators on plain tensors beneath it.

`braidwork::spmm` takes the matrix and its transpose in any two registered formats, as lists of tensors, since compilers
and dispatchers know tensors only. Its gradients are themselves calls of registered operators:

- to x, the product with the transpose, the scales exchanged; for an extremum the same product, in which a term counts
  only where the extremum was attained (`braidwork::spmm_routed`), so nothing is scattered and sums have a fixed order;
- to the values, a dot product for every entry (`braidwork::entry_dot`), and from these to the scales by the chain rule.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from .build import VALUE_DTYPES
from .entries import entry_dot
from .formats import Storage, lookup
from .matrix import SparseMatrix

REDUCTIONS = ("sum", "mean", "max", "min")

# A matrix as arguments of an operator: the name of its format, the tensors and the integers of its storage.
_MATRIX = "str format, Tensor[] storage, int[] meta"
_TRANSPOSE = "str format_t, Tensor[] storage_t, int[] meta_t"
_FACTORS = "Tensor? value, Tensor x, Tensor? row_scale, Tensor? col_scale"
_EPILOGUE = "Tensor? bias, bool relu"

_NO_MATRIX: tuple[str, list[torch.Tensor], list[int]] = ("", [], [])

_library = torch.library.Library("braidwork", "FRAGMENT")
_library.define(
    f"spmm({_FACTORS}, {_EPILOGUE}, str reduce, bool with_arg, SymInt rows, {_MATRIX}, {_TRANSPOSE}, Tensor[] entries)"
    " -> (Tensor, Tensor)"
)
_library.define(f"spmm_routed({_FACTORS}, Tensor route, SymInt rows, {_MATRIX}) -> Tensor")
_library.define(
    "entry_dot(Tensor row, Tensor col, Tensor g, Tensor x, Tensor? row_scale, Tensor? col_scale, Tensor? route)"
    " -> Tensor"
)


# --------------------------------------------------------------------------------------------------------------------
# Implementations. They trust their callers: `spmm` below checks.


def _spmm(
    value, x, row_scale, col_scale, bias, relu, reduce, with_arg, rows, format, storage, meta,
    format_t, storage_t, meta_t, entries,
):  # fmt: skip
    y, arg = lookup(format).spmm(
        Storage(storage, meta), rows, value, x, row_scale, col_scale, reduce, with_arg, bias=bias, relu=relu
    )
    return y, storage[0].new_empty(0) if arg is None else arg  # an operator returns tensors only


def _spmm_fake(
    value, x, row_scale, col_scale, bias, relu, reduce, with_arg, rows, format, storage, meta,
    format_t, storage_t, meta_t, entries,
):  # fmt: skip
    y = x.new_empty((rows, x.shape[1]))
    return y, storage[0].new_empty((rows, x.shape[1]) if with_arg else (0,))


def _spmm_routed(value, x, row_scale, col_scale, route, rows, format, storage, meta):
    launcher = lookup(format).spmm
    return launcher(Storage(storage, meta), rows, value, x, row_scale, col_scale, "sum", route=route)[0]


def _spmm_routed_fake(value, x, row_scale, col_scale, route, rows, format, storage, meta):
    return x.new_empty((rows, x.shape[1]))


def _entry_dot(row, col, g, x, row_scale, col_scale, route):
    return entry_dot(row, col, g, x, row_scale, col_scale, route)


def _entry_dot_fake(row, col, g, x, row_scale, col_scale, route):
    return x.new_empty(row.shape[0], dtype=torch.promote_types(x.dtype, torch.float32))


# --------------------------------------------------------------------------------------------------------------------
# Gradients


class _Spmm(torch.autograd.Function):
    """`braidwork::spmm` with its gradients.

    Entered as the operator's implementation for autograd directly: `torch.library.register_autograd` walks all lists of
    an operator's arguments in Python, which costs more here (60 us a call) than all the rest of a call does.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        value, x, row_scale, col_scale, bias, relu, reduce, _, _, *rest = inputs
        format, storage, meta, format_t, storage_t, meta_t, entries = rest
        with torch._C._AutoDispatchBelowAutograd():
            y, arg = torch.ops.braidwork.spmm.default(*inputs)
        ctx.mark_non_differentiable(arg)
        ctx.set_materialize_grads(False)
        ctx.reduce, ctx.cols, ctx.relu = reduce, x.shape[0], relu
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.matrix, ctx.matrix_t = (format, meta), (format_t, meta_t)
        ctx.ends = len(storage), len(storage) + len(storage_t)
        # Only the gradients of the values and of the scales look at x again.
        keep_x = ctx.needs_input_grad[0] or ctx.needs_input_grad[2] or ctx.needs_input_grad[3]
        ctx.save_for_backward(
            value, x if keep_x else None, row_scale, col_scale, arg, y if relu else None, *storage, *storage_t, *entries
        )
        return y, arg

    @staticmethod
    def backward(ctx: Any, gy: torch.Tensor | None, _: Any) -> tuple[torch.Tensor | None, ...]:
        needs_value, needs_x, needs_row_scale, needs_col_scale, needs_bias = ctx.needs_input_grad[:5]
        gvalue = gx = grow = gcol = gbias = None
        if gy is None:
            return (None,) * 16
        value, x, row_scale, col_scale, arg, y, *rest = ctx.saved_tensors
        if ctx.relu:
            gy = torch.ops.aten.threshold_backward(gy, y, 0)
        if needs_bias:
            gbias = gy.sum(0, dtype=torch.promote_types(gy.dtype, torch.float32)).to(ctx.bias_dtype)
        end, end_t = ctx.ends
        matrix = (ctx.matrix[0], rest[:end], ctx.matrix[1])
        transpose = (ctx.matrix_t[0], rest[end:end_t], ctx.matrix_t[1])
        entries = rest[end_t:]
        route = None if ctx.reduce == "sum" else arg
        ops = torch.ops.braidwork

        if needs_x:
            if not transpose[1]:
                raise RuntimeError("spmm: the gradient of x needs the transpose, which was not given to the operator")
            product = (value, gy, col_scale, row_scale)
            if route is None:
                gx, _ = ops.spmm(*product, None, False, "sum", False, ctx.cols, *transpose, *matrix, entries)
            else:
                gx = ops.spmm_routed(*product, route, ctx.cols, *transpose)

        if (needs_value or needs_row_scale or needs_col_scale) and not entries:
            raise RuntimeError("spmm: gradients of values and scales need the coordinates, which were not given")
        if needs_row_scale or needs_col_scale:
            # The derivative by the whole weight row_scale * value * col_scale of every entry, then the chain rule.
            row, col = entries
            dot = ops.entry_dot(row, col, gy, x, None, None, route)
            weight = dot if value is None else dot * value
            plain = (None, None, None, False, "sum", False)
            if needs_row_scale:
                column = _column(col_scale, ctx.cols, dot)
                sums, _ = ops.spmm(weight, column, *plain, gy.shape[0], *matrix, *_NO_MATRIX, [])
                grow = sums.squeeze(1).to(row_scale.dtype)
            if needs_col_scale:
                column = _column(row_scale, gy.shape[0], dot)
                sums, _ = ops.spmm(weight, column, *plain, ctx.cols, *transpose, *_NO_MATRIX, [])
                gcol = sums.squeeze(1).to(col_scale.dtype)
            if needs_value:
                gvalue = dot if row_scale is None else dot * row_scale[row]
                gvalue = gvalue if col_scale is None else gvalue * col_scale[col]
        elif needs_value:
            gvalue = ops.entry_dot(*entries, gy, x, row_scale, col_scale, route)
        gvalue = None if gvalue is None else gvalue.to(value.dtype)
        return gvalue, gx, grow, gcol, gbias, *(None,) * 11


def _column(scale: torch.Tensor | None, n: int, like: torch.Tensor) -> torch.Tensor:
    """A scale, or ones, as a matrix [n, 1] in the dtype of `like`."""
    return like.new_ones(1, 1).expand(n, 1) if scale is None else scale.to(like.dtype).unsqueeze(1)


def _once(name: str) -> Any:
    def backward(ctx: Any, *_: Any) -> None:
        raise NotImplementedError(f"{name}: spmm can be differentiated once in this direction, not twice")

    return backward


for _name, _run, _fake in (
    ("spmm", _spmm, _spmm_fake),
    ("spmm_routed", _spmm_routed, _spmm_routed_fake),
    ("entry_dot", _entry_dot, _entry_dot_fake),
):
    for _device in ("CPU", "CUDA"):
        # Where a graph breaks around a call of the operator, its Python is not for the tracer either.
        _library.impl(_name, torch.compiler.disable(_run), _device)
    torch.library.register_fake(f"braidwork::{_name}", _fake, lib=_library)
_library.impl("spmm", lambda *inputs: _Spmm.apply(*inputs), "Autograd")
for _name in ("spmm_routed", "entry_dot"):
    torch.library.register_autograd(f"braidwork::{_name}", _once(_name), lib=_library)


# --------------------------------------------------------------------------------------------------------------------
# The door


def spmm(
    A: SparseMatrix,
    x: torch.Tensor,
    reduce: str = "sum",
    *,
    row_scale: torch.Tensor | None = None,
    col_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    relu: bool = False,
) -> torch.Tensor:
    """Sparse matrix times dense matrix, y = diag(row_scale) A diag(col_scale) x, or another reduction of its terms.

    y[i, f] = reduce over the entries e = (i, k) of row i of row_scale[i] value[e] col_scale[k] x[k, f]. The scales are
    applied on the fly: with both set to the inverse square roots of the degrees this is the propagation of a GCN
    (T. N. Kipf and M. Welling, ICLR 2017, eq. 2) without a normalised copy of A.

    Args:
        A: [M, K]; unweighted entries count as 1. In the format `A.format`; gradients to x go through `A.T.format`.
        x: [K, F], or [K] for a vector; fp64, fp32, bf16 or fp16. Any strides; it is copied only where the last
            dimension has a stride other than 1.
        reduce: "sum"; "mean", the sum divided by the number of entries in the row, equal coordinates that were kept
            counting each; "max" or "min". A row without entries gives 0.
        row_scale: [M], col_scale: [K], or None for ones.
        bias: [F] ([] for a vector), added to every row on its way out, or None.
        relu: whether what is negative then becomes 0. NaN stays NaN.

    The values of A, the scales and the bias are in the dtype of x or in fp32. Sums are kept in fp32, in fp64 if x is.

    Returns:
        [M, F] or [M], in the dtype of x.

    Gradients: to x, to the values, to the scales and to the bias, once (a second derivative of those to the values, or
    of an extremum, raises NotImplementedError). That of an extremum goes to the entry that attains it, to the first in
    the row if several do. NaN counts as the extremum. Results and gradients are the same bit for bit in every run and
    with any number of threads.

    Under `torch.autocast` an fp32 x is cast to the autocast dtype; values and scales are used as they are. Under
    `torch.compile` the operator is one node; A is best used once, or its storages built with `to`, before compilation.

    Raises:
        TypeError: A is not a SparseMatrix, x not a tensor, or a dtype is not as above.
        ValueError: shapes, devices or the reduction do not fit.
    """
    if not isinstance(A, SparseMatrix):
        raise TypeError(f"A: need a SparseMatrix, got {type(A).__name__}")
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x: need a torch.Tensor, got {type(x).__name__}")
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce: need one of {', '.join(REDUCTIONS)}, got {reduce!r}")
    if x.dtype not in VALUE_DTYPES or x.layout != torch.strided:
        raise TypeError(
            f"x: need a dense tensor of float64, float32, bfloat16 or float16, got {x.dtype}, {x.layout}"
        )
    rows, cols = A.shape
    if x.dim() not in (1, 2) or x.shape[0] != cols:
        raise ValueError(
            f"x: need shape [{cols}, F] or [{cols}] for A with shape {(rows, cols)}, got {tuple(x.shape)}"
        )
    device = x.device
    if A.device != device:
        raise ValueError(f"x: A is on {A.device}, x on {device}")
    if x.dtype == torch.float32 and torch.is_autocast_enabled(device.type):
        x = x.to(torch.get_autocast_dtype(device.type))
    value = A.values
    if value is not None and value.dtype != x.dtype and value.dtype != torch.float32:
        raise TypeError(f"x: A has values of {value.dtype}, which need x of that dtype, got {x.dtype}")
    if row_scale is not None:
        _check_factor("row_scale", row_scale, (rows,), x)
    if col_scale is not None:
        _check_factor("col_scale", col_scale, (cols,), x)
    if bias is not None:
        _check_factor("bias", bias, x.shape[1:], x)
    transpose, entries, with_arg = _NO_MATRIX, [], False
    if torch.is_grad_enabled():
        to_col_scale = col_scale is not None and col_scale.requires_grad
        to_entries = (
            to_col_scale
            or (value is not None and value.requires_grad)
            or (row_scale is not None and row_scale.requires_grad)
        )
        if x.requires_grad or to_col_scale:
            # A symmetric matrix is its own transpose, though its entries are numbered otherwise there.
            by_number = value is not None or reduce in ("max", "min") or to_entries
            own = not by_number and A.format == A.T.format and A.pattern.is_symmetric()
            B = A if own else A.T
            transpose = (B.format, *B.storage())
        if to_entries:
            entries = [A.row, A.col]
        with_arg = reduce in ("max", "min") and (x.requires_grad or to_entries)
    if reduce == "mean":
        inverse = A.inverse_counts(torch.float64 if x.dtype == torch.float64 else torch.float32)
        row_scale = inverse if row_scale is None else row_scale * inverse
        reduce = "sum"

    vector = x.dim() == 1
    if vector and bias is not None:
        bias = bias.unsqueeze(0)
    if vector:
        x = x.unsqueeze(1)
    to_bias = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    if not transpose[0] and not entries and not to_bias and _is_plain(x):
        launcher = lookup(A.format).spmm
        y, _ = launcher(A.storage(), rows, value, x, row_scale, col_scale, reduce, bias=bias, relu=relu)
    else:
        y, _ = torch.ops.braidwork.spmm.default(
            value, x, row_scale, col_scale, bias, relu, reduce, with_arg, rows, A.format, *A.storage(),
            *transpose, entries,
        )  # fmt: skip
    return y.squeeze(1) if vector else y


def _is_plain(x: torch.Tensor) -> bool:
    """Whether nothing but the kernel would see the operator: no tracer, subclass, mode or transform.

    The way through the dispatcher costs 0.1 ms for an operator with so many arguments, as much as a small product.
    """
    return (
        type(x) is torch.Tensor
        and not torch.compiler.is_compiling()
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )


def _check_factor(name: str, factor: torch.Tensor, shape: tuple[int, ...], x: torch.Tensor) -> None:
    if not isinstance(factor, torch.Tensor):
        raise TypeError(f"{name}: need a torch.Tensor, got {type(factor).__name__}")
    if factor.dtype != x.dtype and factor.dtype != torch.float32:
        raise TypeError(f"{name}: need the dtype of x, {x.dtype}, or float32, got {factor.dtype}")
    if tuple(factor.shape) != tuple(shape):
        raise ValueError(f"{name}: need shape {list(shape)}, got {tuple(factor.shape)}")
    if factor.device != x.device:
        raise ValueError(f"{name}: need the device of x, {x.device}, got {factor.device}")
