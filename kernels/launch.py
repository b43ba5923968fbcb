"""One way to launch a kernel: `launch(kernel, grid, *args, **meta)`.

On a GPU that is `kernel[grid](*args, **meta)`. On the CPU backend Triton's own path would cost more than many kernels
take, so the compiled kernel is looked up by the kinds of the arguments and run at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from triton import knobs
from triton.runtime import driver


class _Prepared:
    """A compiled kernel with what it takes to run it on the CPU again."""

    def __init__(self, compiled: Any):
        from .cpu.driver import address, run

        launcher = compiled.run
        self.compiled, self.packer, self.asserts = compiled, launcher.packer, launcher.asserts
        self.run, self.address = run, address
        self.function = compiled.function
        # Positions of the arguments that the machine code takes: pointers, and numbers.
        self.takes = [(k, name, ty[0] == "*") for k, (name, ty) in enumerate(launcher.signature) if ty != "constexpr"]

    def __call__(self, grid: tuple[int, int, int], args: Sequence[Any]) -> None:
        values = [args[k].data_ptr() if pointer else args[k] for k, _, pointer in self.takes]
        self.run(self.function, self.packer, values, grid, self.asserts)


_prepared: dict[tuple, _Prepared | None] = {}
_runtime_names: dict[Any, frozenset[str] | None] = {}


def _kind(arg: Any) -> Any:
    """What of an argument decides which code runs: the dtype of a tensor, the width of an integer, or its being 1."""
    if isinstance(arg, torch.Tensor):
        return arg.dtype if arg.is_cpu and arg.layout is torch.strided else arg
    kind = type(arg)
    if kind is int:
        return arg if arg == 1 else "i32" if -(1 << 31) <= arg < 1 << 31 else "i64" if arg < 1 << 63 else "u64"
    if kind is float or kind is bool:
        return kind
    return arg


def _names(kernel: Any) -> frozenset[str] | None:
    """The kernel's parameters that are not constants; None if only Triton's own path can launch it."""
    if not isinstance(kernel, triton.JITFunction) or kernel.pre_run_hooks:
        return None
    # A constant that is given by position would have to be told from a number.
    return frozenset(p.name for p in kernel.params if not p.is_constexpr)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
    """Launch a kernel: `args` by position, constants and options by keyword.

    Args:
        kernel: a `@triton.jit` function (or one that is autotuned or has heuristics).
        grid: how many programs along up to three axes, or a function of the constants that returns it.

    Raises:
        TypeError, ValueError: an argument that the kernel cannot take, by name.
    """
    if kernel not in _runtime_names:
        _runtime_names[kernel] = _names(kernel)
    runtime = _runtime_names[kernel]
    if (
        runtime is None
        or len(args) != len(runtime)
        or not runtime.isdisjoint(meta)
        or type(grid) is not tuple
        or knobs.runtime.launch_enter_hook.calls
    ):
        kernel[grid](*args, **meta)
        return
    key = (kernel, tuple(meta.items()), *map(type, meta.values()), *map(_kind, args))
    try:
        prepared = _prepared.get(key)
    except TypeError:  # an argument that cannot be a key
        kernel[grid](*args, **meta)
        return
    if prepared is not None:
        prepared((*grid, 1, 1)[:3], args)
        return
    compiled = kernel[grid](*args, **meta)
    if driver.active.get_current_target().backend == "cpu" and not any(isinstance(a, (tuple, list)) for a in args):
        _prepared[key] = _Prepared(compiled)
