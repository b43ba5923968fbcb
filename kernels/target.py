"""What a kernel is compiled for: the backend of a device, and the declaration of a kernel's ahead-of-time
checks.

A launcher picks its tile shapes by `backend_of(x.device)`; a module that defines kernels lists them in a
module-level `AOT_CASES`, from which `kernels/aot.py` compiles every one of them for GPUs that need not be
present.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

BACKENDS = ("cpu", "cuda", "hip")


@functools.lru_cache(maxsize=64)
def backend_of(device: torch.device | str) -> str:
    """The Triton backend that runs kernels on `device`: "cpu", "cuda" (NVIDIA) or "hip" (AMD).

    Raises:
        ValueError: a device of a type that no kernel runs on.
    """
    kind = torch.device(device).type
    if kind == "cpu":
        return "cpu"
    if kind == "cuda":
        return "hip" if torch.version.hip else "cuda"
    raise ValueError(f"device: kernels run on cpu and cuda (NVIDIA or AMD) devices, got {device}")


@dataclass(frozen=True)
class AotCase:
    """One kernel in one specialisation that matters, and what its machine code must show.

    name: unique, by convention `<kernel>-<dtype or variant>`.
    kernel: the `@triton.jit` function.
    signature: Triton type of every argument that is not a constexpr: "*fp32", "*i32", "i32", "i64", "fp32",
        ...
    meta: the keyword arguments that the launcher passes for a backend ("cuda" or "hip"): constexprs (None for
        a pointer that is not given) and options such as num_warps; a mapping, or a function from the backend
        to one.
    divisible: integer arguments known to be multiples of 16 in the hot case (a feature width, a stride).
        Pointers are always taken as 16-byte aligned, as Triton's specialisation finds them for tensors fresh
        from an allocator.
    wide_loads: most bytes loaded from global memory in the innermost loops must come in 128-bit loads per
        thread.
    wide_share: the share of those bytes that is asked for. It counts a load for each thread, so a scalar that
        all threads of a row read (an index, a weight) weighs as much as if each read its own: lower it there.
    matrix: matrix instructions (tensor cores, MFMA) must be used.
    backends: where the case applies.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    meta: Mapping[str, Any] | Callable[[str], Mapping[str, Any]] = field(default_factory=dict)
    divisible: tuple[str, ...] = ()
    wide_loads: bool = True
    wide_share: float = 0.5
    matrix: bool = False
    backends: tuple[str, ...] = ("cuda", "hip")

    def meta_for(self, backend: str) -> dict[str, Any]:
        return dict(self.meta(backend) if callable(self.meta) else self.meta)
