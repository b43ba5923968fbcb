"""Compilations of the padded, blocked and scattered kernels for GPUs that are not there; see `aot`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..target import AotCase
from .bsr import bsr_spmm_kernel
from .config import LanesConfig, pick_blocks, pick_coo, pick_csc, pick_lanes
from .coo import coo_spmm_join_kernel, coo_spmm_kernel
from .csc import csc_spmm_kernel
from .dia import dia_spmm_kernel
from .slices import slices_spmm_kernel

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}


def _case(
    kernel: Any, name: str, dtype: str, absent: tuple[str, ...], config: Callable[[str], Any], given: dict[str, Any],
    reduce: str = "sum", wide_loads: bool = True, wide_share: float = 0.3, matrix: bool = False,
) -> AotCase:  # fmt: skip
    """`kernel` on int32 indices, fp32 values and scales and x of `dtype`, without the pointers in `absent`.

    config: backend -> tiles, of which the kernel's own compile-time arguments are taken; given: the others.
    """
    acc = "fp64" if dtype == "fp64" else "fp32"
    floats = {"x": dtype, "y": dtype, "value": "fp32", "bias": "fp32", "row_scale": "fp32", "col_scale": "fp32"}
    floats |= dict.fromkeys(("acc", "carry"), acc)
    tiles = ("BLOCK_F", "MASK_F", "OVERLAP", "BATCH", "LANES", "DOT", "PRECISION", "AHEAD")

    def meta(backend: str) -> dict[str, Any]:
        picked = config(backend)
        found = {n: getattr(picked, n.lower()) for n in tiles if n in kernel.arg_names and n not in given}
        found |= {"REDUCE": reduce, "RELU": "bias_ptr" not in absent} | given | dict.fromkeys(absent)
        return found | picked.options

    constants = meta("cuda")
    pointers = [n for n in kernel.arg_names if n.endswith("_ptr") and n not in absent]
    signature = {n: "*" + floats.get(n.removesuffix("_ptr"), "i32") for n in pointers}
    signature |= {n: "i32" for n in kernel.arg_names if n not in constants and not n.endswith("_ptr")}
    return AotCase(
        name, kernel, signature, meta, divisible=tuple(n for n in ("F", "stride_x") if n in signature),
        wide_loads=wide_loads, wide_share=wide_share, matrix=matrix,
    )  # fmt: skip


_EXTREMUM = ("arg_ptr",)
_SCALES = ("row_scale_ptr", "col_scale_ptr", "bias_ptr")
_SELL = ("slice_ptr", "full_ptr", "rows_ptr")


def _lanes(dtype: str, F: int = 128, lanes: int = 8) -> Callable[[str], LanesConfig]:
    return lambda backend: pick_lanes(lanes, 8.0, 0, F, _DTYPES[dtype], backend, "sell")


def _slices(name: str, dtype: str, absent: tuple[str, ...], reduce: str = "sum") -> AotCase:
    return _case(
        slices_spmm_kernel, f"slices_spmm-{name}", dtype, absent, _lanes(dtype), {"C": 8}, reduce
    )  # fmt: skip


def _dia(name: str, dtype: str, absent: tuple[str, ...], reduce: str = "sum") -> AotCase:
    return _case(dia_spmm_kernel, f"dia_spmm-{name}", dtype, absent, _lanes(dtype), {"C": 8}, reduce)


def _bsr(name: str, dtype: str, block: int, absent: tuple[str, ...], plain: bool, reduce: str = "sum") -> AotCase:
    return _case(
        bsr_spmm_kernel, f"bsr_spmm-{name}", dtype, absent,
        lambda backend: pick_blocks(block, 4.0, 0, 128, _DTYPES[dtype], backend, plain),
        {"BLOCK": block, "COMPLETE": plain}, reduce, wide_loads=False, matrix=plain and block >= 16,
    )  # fmt: skip


def _coo(kernel: Any, name: str, dtype: str, absent: tuple[str, ...], reduce: str = "sum") -> AotCase:
    given = {} if kernel is coo_spmm_join_kernel else {"SCAN": 16}
    return _case(
        kernel, name, dtype, absent, lambda backend: pick_coo(1 << 20, 0, 128, _DTYPES[dtype], backend), given, reduce,
        wide_loads=kernel is coo_spmm_kernel, wide_share=0.25,
    )  # fmt: skip


_ALONE = ("perm_ptr", "route_ptr", "arg_ptr", "carry_arg_ptr")
AOT_CASES = [
    _slices("fp32-ell", "fp32", ("slots_ptr", "value_ptr", "route_ptr", *_EXTREMUM, *_SCALES, *_SELL)),
    _slices("fp32-sell", "fp32", ("slots_ptr", "route_ptr", *_EXTREMUM, *_SCALES)),
    _slices("bf16-sell", "bf16", ("slots_ptr", "route_ptr", *_EXTREMUM)),
    _slices("fp32-sell-max", "fp32", ("route_ptr", *_SCALES), "max"),
    _coo(coo_spmm_kernel, "coo_spmm-fp32", "fp32", (*_ALONE, *_SCALES, "rows_ptr")),
    _coo(coo_spmm_kernel, "coo_spmm-bf16-hyb", "bf16", ("route_ptr", "arg_ptr", "carry_arg_ptr")),
    _coo(coo_spmm_kernel, "coo_spmm-fp32-max", "fp32", ("perm_ptr", "route_ptr", *_SCALES, "rows_ptr"), "max"),
    _coo(coo_spmm_join_kernel, "coo_spmm_join-fp32", "fp32", ("arg_ptr", "carry_arg_ptr", "rows_ptr")),
    _dia("fp32", "fp32", ("route_ptr", *_EXTREMUM, *_SCALES)),
    _dia("bf16", "bf16", ("route_ptr", *_EXTREMUM)),
    _bsr("fp32-4", "fp32", 4, ("route_ptr", "slots_ptr", *_EXTREMUM, *_SCALES), True),
    _bsr("fp32-16-dot", "fp32", 16, ("route_ptr", "slots_ptr", *_EXTREMUM, *_SCALES), True),
    _bsr("bf16-32-dot", "bf16", 32, ("route_ptr", "slots_ptr", *_EXTREMUM, *_SCALES), True),
    _bsr("fp32-16-padded", "fp32", 16, ("route_ptr", *_EXTREMUM, *_SCALES), False),
    _case(
        csc_spmm_kernel, "csc_spmm-fp32", "fp32", ("route_ptr", "arg_ptr", "acc_arg_ptr", *_SCALES),
        lambda backend: pick_csc(0, 128, torch.float32, backend), {}, wide_loads=False,  # AMD: 8 bytes a thread
    ),
]  # fmt: skip
