"""Compiles what the numeric parts of the CPU backend emit, without Triton, and calls it on NumPy arrays."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import torch

from braidwork.kernels.cpu.convert import convert
from braidwork.kernels.cpu.emit import Builder
from braidwork.kernels.cpu.mathlib import extern_call, math_call
from braidwork.kernels.cpu.values import vtype

from .harness import rng

NUMPY = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64, "i1": np.bool_}
NUMPY |= {f"i{bits}": np.dtype(f"int{bits}").type for bits in (8, 16, 32, 64)}
FP8 = {
    "f8E5M2": torch.float8_e5m2,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2FNUZ": torch.float8_e5m2fnuz,
    "f8E4M3FNUZ": torch.float8_e4m3fnuz,
}
INF, NAN = math.inf, math.nan
# On scalars; on a vector that is written out lane by lane where a C function is called; on one that is looped over
WIDTHS = [1, 4, 32]

Body = Callable[[Builder, list[str]], str]


def native(body: Body, sources: list[str], result: str, n: int) -> Callable[..., np.ndarray]:
    """`body`, compiled for `n` lanes, as a function of numpy arrays whose length is a multiple of n."""
    L = Builder()

    def block(i: str) -> None:
        texts = []
        for k, elt in enumerate(sources):
            at = L.emit(f"getelementptr {vtype(elt, n)}, ptr %in{k}, i64 {i}")
            texts.append(L.emit(f"load {vtype(elt, n)}, ptr {at}, align 1"))
        out = body(L, texts)
        at = L.emit(f"getelementptr {vtype(result, n)}, ptr %out, i64 {i}")
        L.do(f"store {vtype(result, n)} {out}, ptr {at}, align 1")

    L.loop("%count", block)
    params = ", ".join([*(f"ptr %in{k}" for k in range(len(sources))), "ptr %out", "i64 %count"])
    lines = [*sorted(L.declares), *L.globals, f"define void @run({params}) {{", "entry:", *L.allocas, *L.lines]
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly("\n".join([*lines, "  ret void", "}"]))
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(sources) + 1), ctypes.c_int64)(
        engine.get_function_address("run")
    )

    def call(*arrays: np.ndarray, engine: llvm.ExecutionEngine = engine) -> np.ndarray:
        arrays = tuple(np.ascontiguousarray(a) for a in arrays)
        count = arrays[0].size
        assert count % n == 0, "whole vectors only"
        out = np.zeros(count, NUMPY.get(result, np.uint8))
        run(*(a.ctypes.data for a in arrays), out.ctypes.data, count // n)
        return out

    return call


def function(name: str, elt: str, n: int, operands: int = 1) -> Callable[..., np.ndarray]:
    return native(lambda L, xs: math_call(L, name, xs, elt, n), [elt] * operands, elt, n)


def libdevice(symbol: str, sources: list[str], result: str, n: int) -> Callable[..., np.ndarray]:
    def body(L: Builder, xs: list[str]) -> str:
        text = extern_call(L, f"__nv_{symbol}", list(zip(xs, sources, strict=True)), result, n)
        assert text is not None, f"{symbol} is unknown"
        return text

    return native(body, sources, result, n)


def conversion(src: str, dst: str, n: int, rounding: str | None = None, signed: bool = True) -> Callable:
    return native(lambda L, xs: convert(L, xs[0], src, dst, n, rounding, signed), [src], dst, n)


def bad(got: np.ndarray, want: np.ndarray, ulps: float = 0) -> np.ndarray:
    """Where `got` is further from `want` (of a wider type) than allowed, or has the wrong sign of zero; NaN is NaN."""
    with np.errstate(all="ignore"):
        near = want.astype(got.dtype)
        unit = np.spacing(np.maximum(np.abs(near), np.finfo(got.dtype).tiny))
        close = np.abs(got.astype(want.dtype) - want) <= ulps * unit
        same = (got == near) & ((got != 0) | (np.signbit(got) == np.signbit(near)))
        return np.flatnonzero(~(same | (np.isnan(got) & np.isnan(near)) | (close & np.isfinite(near) & (near != 0))))


def check(got: np.ndarray, want: np.ndarray, ulps: float, *inputs: np.ndarray) -> None:
    where = bad(got, want, ulps)
    shown = [(*(x[i] for x in inputs), got[i], want[i]) for i in where[:4]]
    assert where.size == 0, f"{where.size} of {got.size} wrong: (inputs..., got, expected) = {shown}"


def floats(elt: str, count: int, *seed: object) -> np.ndarray:
    """Bit patterns: all magnitudes, signs, subnormals, infinities and NaNs."""
    gen, bits = rng("floats", elt, *seed), 32 if elt == "f32" else 64
    x = gen.integers(0, 2**bits, count, dtype=np.uint64, endpoint=False) if bits == 32 else gen.bytes(8 * count)
    patterns = x.astype(np.uint32) if bits == 32 else np.frombuffer(x, np.uint64).copy()
    tiny = float(np.finfo(NUMPY[elt]).tiny)
    odd = [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, tiny, tiny / 4, -tiny / 8, 2.0, 0.5, 128.0, -126.0, -149.0, 1024.0]
    out = patterns.view(NUMPY[elt])
    out[: len(odd)] = odd
    return out
