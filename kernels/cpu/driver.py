"""The driver half of the backend: loads objects, runs grids on torch's own OpenMP threads."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from . import host
from .compiler import ARGUMENTS, CHUNK, ERROR, GRID, NEXT, TOTAL, digest, require, target_machine

_ALIGN = 64
_CHUNKS = 16  # pieces of the grid for each thread: fewer would leave threads idle at the end

_Worker = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True  # the threads of the OpenMP pool stay behind in the parent


os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _openmp() -> Callable[..., None] | None:
    """`GOMP_parallel` of the OpenMP runtime that torch runs on, or None where torch has another."""
    bundled = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    for name in (*map(str, bundled), "libgomp.so.1"):
        try:
            parallel = ctypes.CDLL(name).GOMP_parallel
        except (OSError, AttributeError):
            continue
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return parallel
    return None


class Utils:
    """What Triton asks of a driver about binaries and the device.

    An object is linked once and stays. Triton takes no lock here: two threads that launch a new kernel both load it,
    and the second to come may launch before the first has stored the address.
    """

    def __init__(self) -> None:
        self._linked: dict[str, tuple[Any, int]] = {}  # engine, which owns the code, and address of the function
        self._changed = threading.Condition()

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, int, int, int, int]:
        """Link an object into this process. Returns (module, address, registers, spills, most threads)."""
        import llvmlite.binding as llvm

        key = digest(binary)
        with self._changed:
            if key not in self._linked:
                machine = target_machine()
                llvm.load_library_permanently("libm.so.6")
                engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
                engine.add_object_file(llvm.ObjectFileRef.from_data(binary))
                engine.finalize_object()
                self._linked[key] = engine, engine.get_function_address(name)
                self._changed.notify_all()
            return (*self._linked[key], 0, 0, 1 << 30)

    def address(self, key: str) -> int:
        """The function of an object that another thread is about to link."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._linked)
            return self._linked[key][1]

    def unload_module(self, module: Any) -> None:
        """Nothing: another thread may be running it."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 1 << 30, "multiprocessor_count": torch.get_num_threads(), "warpSize": 1}


UTILS = Utils()


def parse_in_turns() -> None:
    """Let one thread at a time parse a kernel's source, as the first launch does: `ast.parse` of CPython 3.11 keeps its
    state in one place for all threads, and fails with a SystemError when two are in it.
    """
    from triton.runtime.jit import JITCallable

    parse, lock = JITCallable.parse, threading.Lock()

    @functools.wraps(parse)
    def locked(self: Any) -> Any:
        with lock:
            return parse(self)

    JITCallable.parse = locked


# -- arguments ---------------------------------------------------------------------------------------------------------
_FORMATS = {"i1": "?7x", "i8": "b7x", "i16": "h6x", "i32": "i4x", "i64": "q", "u1": "?7x", "u8": "B7x", "u16": "H6x",
            "u32": "I4x", "u64": "Q", "fp16": "e6x", "bf16": "H6x", "fp32": "f4x", "fp64": "d"}  # fmt: skip


class Packer:
    """Writes the arguments of one signature into a job block.

    signature: (parameter name, Triton type) of each parameter; a tuple of types for a tuple.
    """

    def __init__(self, signature: Sequence[tuple[str, Any]]):
        self.names: list[str] = []
        self.types: list[str] = []
        for name, ty in signature:
            self._flatten(name, ty)
        formats = [_FORMATS.get(ty, "Q") for ty in self.types]
        # Everything from the counter on, in one call: see the layout in compiler.py.
        self.struct = struct.Struct("<" + f"q{TOTAL - NEXT - 8}xqq4i" + "".join(formats))
        assert struct.calcsize(f"<q{TOTAL - NEXT - 8}xqq4i") == ARGUMENTS and (CHUNK, GRID, ERROR) == (72, 80, 92)
        self.blocks = threading.local()

    def _flatten(self, name: str, ty: Any) -> None:
        if isinstance(ty, (tuple, list)):
            for k, inner in enumerate(ty):
                self._flatten(f"{name}[{k}]", inner)
        elif ty.startswith("tensordesc"):
            from triton.backends.driver import expand_signature

            for k, inner in enumerate(expand_signature([ty], None, "")):
                self._flatten(f"{name}.{k}", inner)
        elif ty != "constexpr":
            self.names.append(name)
            self.types.append(ty)

    def block(self) -> tuple[ctypes.Array, int]:
        """This thread's job block for these arguments, and its address. A launch returns before the next begins."""
        try:
            return self.blocks.own
        except AttributeError:
            buffer = ctypes.create_string_buffer(self.struct.size + _ALIGN)
            at = -ctypes.addressof(buffer) % _ALIGN
            whole = (ctypes.c_char * self.struct.size).from_buffer(buffer, at)
            self.blocks.own = whole, ctypes.addressof(whole)
            return self.blocks.own

    def explain(self, values: Sequence[Any]) -> None:
        """Raise what is wrong with a value that could not be packed."""
        for name, ty, value in zip(self.names, self.types, values):
            try:
                struct.pack("<" + _FORMATS.get(ty, "Q"), value)
            except (struct.error, OverflowError) as e:
                raise TypeError(
                    f"{name}: need a value of type {ty}, got {value!r} ({type(value).__name__}): {e}"
                ) from None


def check(name: str, value: Any) -> None:
    """Raise TypeError or ValueError for an argument that no kernel can take here."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise ValueError(
                f"{name}: kernels run on the CPU here, and this tensor is on {value.device}: move it with .cpu()"
            )
        if value.layout != torch.strided:
            raise ValueError(f"{name}: need a dense tensor, got layout {value.layout}")
        if value.is_complex():
            raise TypeError(
                f"{name}: need a tensor of numbers that Triton has, got {value.dtype}: see torch.view_as_real"
            )
    elif isinstance(value, (np.ndarray, list, dict)):
        raise TypeError(f"{name}: need a tensor or a number, got {type(value).__name__}: see torch.as_tensor")


def address(name: str, value: Any) -> int:
    """The address behind a pointer argument. Raises as `check` does."""
    check(name, value)
    if not hasattr(value, "data_ptr"):
        raise TypeError(f"{name}: need a tensor, got {type(value).__name__}")
    return value.data_ptr()


def run(
    function: int, packer: Packer, values: Sequence[Any], grid: tuple[int, int, int], asserts: Sequence[str]
) -> None:
    """Run a compiled kernel over a grid; returns when all of its programs have ended."""
    total = grid[0] * grid[1] * grid[2]
    if total <= 0:
        return
    threads = 1 if _forked else min(torch.get_num_threads(), total)
    chunk = max(1, total // (threads * _CHUNKS)) if threads > 1 else total
    block, at = packer.block()
    try:
        packer.struct.pack_into(block, 0, 0, total, chunk, *grid, 0, *values)
    except (struct.error, OverflowError):
        packer.explain(values)
        raise
    parallel = _openmp() if threads > 1 else None
    if parallel is None:
        _Worker(function)(at)
    else:
        parallel(function, at, threads, 0)
    if asserts:
        (error,) = struct.unpack_from("<i", block, ERROR)
        if error:
            raise RuntimeError(asserts[error - 1])


class CPULauncher:
    """Called by Triton with a grid and the arguments of a kernel."""

    def __init__(self, src: Any, metadata: Any):
        names = src.fn.arg_names if hasattr(src, "fn") else [str(k) for k in src.signature]
        self.signature = list(zip(names, src.signature.values()))
        self.packer = Packer(self.signature)
        self.asserts, self.object = metadata.asserts, metadata.object

    def __call__(
        self, grid0: int, grid1: int, grid2: int, stream: int, function: int | None, kernel_metadata: Any,
        launch_metadata: Any, enter_hook: Any, exit_hook: Any, *args: Any,
    ) -> None:  # fmt: skip
        if enter_hook is not None:
            enter_hook(launch_metadata)
        values: list[Any] = []
        for (name, ty), arg in zip(self.signature, args):
            self._flatten(name, ty, arg, values)
        if function is None:
            function = UTILS.address(self.object)
        run(function, self.packer, values, (grid0, grid1, grid2), self.asserts)
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _flatten(self, name: str, ty: Any, value: Any, out: list[Any]) -> None:
        if isinstance(ty, (tuple, list)):
            for k, (inner, v) in enumerate(zip(ty, value)):
                self._flatten(f"{name}[{k}]", inner, v, out)
        elif ty.startswith("tensordesc"):
            from triton.backends.driver import decompose_descriptor

            base, *rest = decompose_descriptor(value)
            out += [address(name, base), *rest]
        elif ty[0] == "*":
            out.append(address(name, value))
        elif ty == "bf16":
            out.append(int(torch.tensor(value, dtype=torch.bfloat16).view(torch.int16)) & 0xFFFF)
        elif ty != "constexpr":
            out.append(value)


# -- the driver --------------------------------------------------------------------------------------------------------
class Event:
    """A point in time, with the interface of `torch.cuda.Event`."""

    def __init__(self, enable_timing: bool = True):
        self.seconds = 0.0

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to `end`."""
        return 1e3 * (end.seconds - self.seconds)


class Device:
    """The part of `torch.cuda` that Triton's benchmarks use. Launches are synchronous."""

    Event = Event

    @staticmethod
    def synchronize() -> None:
        pass

    @staticmethod
    def current_device() -> int:
        return 0


class CPUDriver(DriverBase):
    """The CPU as a device of Triton; active where no GPU's driver is."""

    launcher_cls = CPULauncher
    utils = UTILS

    @staticmethod
    def is_active() -> bool:
        from triton.backends import backends

        return not any(name != "cpu" and backend.driver.is_active() for name, backend in backends.items())

    def get_current_target(self) -> GPUTarget:
        require()
        return GPUTarget("cpu", host.name(), 1)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> type[Device]:
        return Device

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "void*" if ty[0] == "*" else {"fp32": "float", "fp64": "double"}.get(ty, f"{ty}_t")

    def get_benchmarker(self) -> Callable[..., Any]:
        from triton.testing import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1 << 26, dtype=torch.int8)  # larger than a last-level cache of our day

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()
