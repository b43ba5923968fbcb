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
from triton.backends import backends


class _Prepared:
    """A compiled kernel with what it takes to run it on the CPU again."""

    def __init__(self, kernel: Any, compiled: Any):
        from .cpu.driver import UTILS, address, run

        launcher = compiled.run
        self.kernel = kernel  # kept, since the key holds its id
        self.compiled, self.packer, self.asserts = compiled, launcher.packer, launcher.asserts
        self.run, self.address = run, address
        self.function = compiled.function or UTILS.address(launcher.object)
        # Positions of the arguments that the machine code takes: pointers, and numbers.
        self.takes = [(k, name, ty[0] == "*") for k, (name, ty) in enumerate(launcher.signature) if ty != "constexpr"]

    def __call__(self, grid: tuple[int, int, int], args: Sequence[Any]) -> None:
        try:
            values = [args[k].data_ptr() if pointer else args[k] for k, _, pointer in self.takes]
        except RuntimeError:  # a tensor without memory of its own
            values = [self.address(name, args[k]) if pointer else args[k] for k, name, pointer in self.takes]
        self.run(self.function, self.packer, values, grid, self.asserts)


_prepared: dict[tuple, _Prepared] = {}
_runtime_names: dict[int, tuple[Any, frozenset[str] | None]] = {}


def _kind(arg: Any) -> Any:
    """What of an argument decides which code runs: the dtype of a tensor, the width of an integer, or its being 1."""
    kind = type(arg)
    if kind is int:
        return arg if arg == 1 else "i32" if -(1 << 31) <= arg < 1 << 31 else "i64" if arg < 1 << 63 else "u64"
    if isinstance(arg, torch.Tensor):
        return arg.dtype if arg.is_cpu else arg
    return kind if kind is float or kind is bool else arg


def _kinds(args: Sequence[Any]) -> list[Any]:
    """`_kind` of each. What most of them are is told here, since a call for each costs as much as a small kernel."""
    Tensor = torch.Tensor
    return [
        None if arg is None
        else arg.dtype if type(arg) is Tensor and arg.is_cpu
        else "i32" if type(arg) is int and 1 < arg < 1 << 31
        else _kind(arg)
        for arg in args
    ]  # fmt: skip


def _names(kernel: Any) -> frozenset[str] | None:
    """The kernel's parameters that are not constants; None if only Triton's own path can launch it."""
    if "cpu" not in backends or not isinstance(kernel, triton.JITFunction) or kernel.pre_run_hooks:
        return None
    return frozenset(p.name for p in kernel.params if not p.is_constexpr)


def _check(kernel: Any, args: Sequence[Any]) -> None:
    from .cpu.driver import check

    for parameter, arg in zip(kernel.params, args):
        check(parameter.name, arg)


def launch(kernel: Any, grid: Any, *args: Any, **meta: Any) -> None:
    """Launch a kernel: `args` by position, constants and options by keyword.

    Args:
        kernel: a `@triton.jit` function (or one that is autotuned or has heuristics).
        grid: how many programs along up to three axes, or a function of the constants that returns it.

    Raises:
        TypeError, ValueError: an argument that the kernel cannot take, by name.
    """
    key = (id(kernel), *meta.items(), *map(type, meta.values()), *_kinds(args))
    try:
        prepared = _prepared.get(key)
    except TypeError:  # an argument that cannot be a key
        key = prepared = None
    if type(grid) is not tuple or knobs.runtime.launch_enter_hook.calls:
        key = None
    elif prepared is not None:
        prepared((*grid, 1, 1)[:3], args)
        return
    known = _runtime_names.get(id(kernel))
    if known is None:
        known = _runtime_names[id(kernel)] = kernel, _names(kernel)
    runtime = known[1]
    if runtime is not None and len(args) == len(runtime):
        _check(kernel, args)
    compiled = kernel[grid](*args, **meta)
    if (
        key is not None
        and runtime is not None
        and len(args) == len(runtime)  # a constant that is given by position would have to be told from a number
        and runtime.isdisjoint(meta)
        and not any(isinstance(a, (tuple, list)) for a in args)
    ):
        _prepared[key] = _Prepared(kernel, compiled)
