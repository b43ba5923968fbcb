"""Compile every kernel for GPUs that are not here, and look at the machine code.

`python -m braidwork.kernels.aot` walks the packages of kernels for their `AOT_CASES`, compiles each case for
NVIDIA sm_80, sm_90 and sm_100 and AMD gfx942 with the compilers inside the Triton wheel, and prints
registers, spills, shared memory, how wide the hot loads are and whether matrix instructions are used. No
driver is opened and no GPU is needed. The exit status is 1 if a case fails what it declares.

"Hot" means: inside the innermost loops that load from global memory or, in a kernel without such a loop,
everywhere.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import contextlib
import functools
import importlib
import inspect
import json
import multiprocessing
import os
import pkgutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import machine_code
from .target import AotCase

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


@dataclass
class Report:
    """What the machine code of one case on one target shows.

    registers: per thread (on AMD: vector registers); scalar_registers: AMD only.
    spills: instructions that move a spilled register (NVIDIA), or registers spilled (AMD).
    stack_bytes: local memory per thread; shared_bytes: shared memory (LDS) per program.
    load_bits: hot loads from global memory by width in bits.
    wide_share: share of the bytes of hot loads that comes in 128-bit loads.
    matrix: the kinds of matrix instructions used.
    failures: what the case declares and the code does not show; empty when all is well.
    """

    case: str
    target: str
    registers: int
    scalar_registers: int
    spills: int
    stack_bytes: int
    shared_bytes: int
    load_bits: dict[int, int]
    wide_share: float
    matrix: list[str]
    failures: list[str]


# ------------------------------------------------------------------------------------------------------------
# Discovery


def _modules() -> Iterator[ModuleType]:
    """Every module of the kernels package but the CPU backend, which defines none."""
    package = importlib.import_module(__package__)
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        inner = info.name[len(package.__name__) + 1 :]
        if inner.split(".")[0] != "cpu" and info.name != __spec__.name:
            yield importlib.import_module(info.name)


def _jit_function(x: Any) -> Any | None:
    """The `@triton.jit` function behind x, through autotune and heuristics; None if there is none."""
    while isinstance(x, (triton.runtime.Autotuner, triton.runtime.autotuner.Heuristics)):
        x = x.fn
    return x if isinstance(x, triton.JITFunction) else None


def qualified_name(kernel: Any) -> str:
    """Module and name of a kernel, through autotune and heuristics."""
    jit = _jit_function(kernel)
    assert jit is not None
    return f"{jit.fn.__module__}.{jit.fn.__name__}"


def cases() -> list[AotCase]:
    """All declared cases, in the order of the modules.

    Raises:
        ValueError: two cases share a name, or kernels are interpreted and there is nothing to compile.
    """
    if triton.knobs.runtime.interpret:
        raise ValueError("TRITON_INTERPRET is set: kernels would be interpreted, unset it to compile them")
    found: dict[str, AotCase] = {}
    for module in _modules():
        # A package that re-exports the list of one of its modules brings the very same cases again.
        for case in getattr(module, "AOT_CASES", ()):
            if found.setdefault(case.name, case) is not case:
                raise ValueError(f"AOT_CASES: two cases are named {case.name!r}")
    return list(found.values())


def kernels() -> dict[str, Any]:
    """Every `@triton.jit` function of the package, by qualified name."""
    found = {}
    for module in _modules():
        for value in vars(module).values():
            jit = _jit_function(value)
            if jit is not None and jit.fn.__module__ == module.__name__:
                found[qualified_name(jit)] = jit
    return found


def _callees(jit: Any) -> set[str]:
    """Qualified names of the `@triton.jit` functions that `jit` mentions."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(jit.fn)))
    names = set()
    for node in ast.walk(tree):
        value = None
        if isinstance(node, ast.Name):
            value = jit.fn.__globals__.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            value = getattr(jit.fn.__globals__.get(node.value.id), node.attr, None)
        callee = _jit_function(value)
        if callee is not None and callee is not jit:
            names.add(qualified_name(callee))
    return names


def undeclared() -> list[str]:
    """Kernels with no case. A function that another kernel calls is compiled as a part of it."""
    everything = kernels()
    covered = {qualified_name(case.kernel) for case in cases()}
    called = set().union(*(_callees(jit) for jit in everything.values()))
    return sorted(set(everything) - covered - called)


# ------------------------------------------------------------------------------------------------------------
# Compilation


def compile_case(case: AotCase, target: GPUTarget) -> Any:
    """Compile for `target`; returns Triton's CompiledKernel, whose `asm` holds every stage.

    Raises:
        ValueError: the case leaves an argument of the kernel without a type or a value.
    """
    names = case.kernel.arg_names
    meta = case.meta_for(target.backend)
    constexprs = {name: meta.pop(name) for name in list(meta) if name in names}
    missing = [name for name in names if name not in constexprs and name not in case.signature]
    unknown = [name for name in case.signature if name not in names]
    if missing or unknown:
        raise ValueError(f"{case.name}: no type or value for {missing}, no such argument {unknown}")
    signature = {name: "constexpr" if name in constexprs else case.signature[name] for name in names}
    aligned = [name for name in names if signature[name].startswith("*") or name in case.divisible]
    source = ASTSource(
        fn=case.kernel,
        signature=signature,
        constexprs=constexprs,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    # Said outright, since the default of Triton changes after 3.9 and a warning announces it.
    return triton.compile(source, target=target, options={"enable_fp_fusion": True} | meta)


def inspect_case(case: AotCase, target_name: str) -> Report:
    """Compile one case for one target and judge its machine code."""
    target = TARGETS[target_name]
    compiled = compile_case(case, target)
    if target.backend == "cuda":
        code = machine_code.read_cubin(compiled.asm["cubin"])
    else:
        code = machine_code.read_amdgcn(compiled.asm["amdgcn"])

    hot = code.hot_loads()
    hot_bytes = sum(bits * count for bits, count in hot.items())
    wide_share = sum(bits * count for bits, count in hot.items() if bits >= 128) / max(hot_bytes, 1)
    failures = []
    if code.spills or code.stack_bytes:
        failures.append(f"{code.spills} spills, {code.stack_bytes} bytes of stack")
    if case.wide_loads and wide_share < case.wide_share:
        failures.append(f"{wide_share:.0%} of the hot bytes come in 128-bit loads")
    if case.matrix and not code.matrix:
        failures.append("no matrix instruction")
    return Report(
        case=case.name,
        target=target_name,
        registers=code.registers,
        scalar_registers=code.scalar_registers,
        spills=code.spills,
        stack_bytes=code.stack_bytes,
        shared_bytes=int(compiled.metadata.shared),
        load_bits=dict(sorted(hot.items(), reverse=True)),
        wide_share=wide_share,
        matrix=list(code.matrix),
        failures=failures,
    )


# ------------------------------------------------------------------------------------------------------------
# The whole package


@functools.cache
def _cases_by_name() -> dict[str, AotCase]:
    return {case.name: case for case in cases()}


def _job(name: str, target: str) -> Report:
    """One case in a worker. A kernel that does not compile is one failed row of the table."""
    try:
        return inspect_case(_cases_by_name()[name], target)
    except Exception as error:  # any stage of two compilers may raise
        first = str(error).strip().splitlines()[:1] or [""]
        return Report(name, target, 0, 0, 0, 0, 0, {}, 0.0, [], [f"{type(error).__name__}: {first[0]}"])


def run(targets: Iterable[str] = tuple(TARGETS), only: str = "", jobs: int | None = None) -> list[Report]:
    """Inspect the cases whose name contains `only` per target, in `jobs` processes (default: all CPUs)."""
    pairs = [
        (name, target)
        for name, case in _cases_by_name().items()
        if only in name
        for target in targets
        if TARGETS[target].backend in case.backends
    ]
    workers = min(jobs or os.cpu_count() or 1, len(pairs))
    if workers <= 1:
        return [_job(*pair) for pair in pairs]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        return list(pool.map(_job, *zip(*pairs, strict=True)))


def table(reports: list[Report]) -> str:
    """The reports as a text table."""
    header = (
        "case",
        "target",
        "regs",
        "spills",
        "stack",
        "shared",
        "hot loads (bits x count)",
        "wide",
        "matrix",
        "",
    )
    rows = [header]
    for r in reports:
        registers = f"{r.registers}+{r.scalar_registers}s" if r.scalar_registers else str(r.registers)
        loads = " ".join(f"{bits}x{count}" for bits, count in r.load_bits.items()) or "-"
        rows.append(
            (r.case, r.target, registers, str(r.spills), str(r.stack_bytes), str(r.shared_bytes), loads,
             f"{r.wide_share:.0%}", _matrix_label(r.matrix), "; ".join(r.failures) or "ok")
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _matrix_label(kinds: list[str]) -> str:
    if not kinds:
        return "-"
    return kinds[0] + (f" +{len(kinds) - 1}" if len(kinds) > 1 else "")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m braidwork.kernels.aot", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--jobs", type=int, default=None, help="processes (default: one a CPU)")
    parser.add_argument("--json", type=Path, help="also write the reports to this file")
    arguments = parser.parse_args(argv)
    reports = run(arguments.targets, arguments.only, arguments.jobs)
    print(table(reports))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(r) for r in reports], indent=1))
    missing = undeclared()
    for name in missing:
        print(f"{name}: a kernel without an AOT case", file=sys.stderr)
    failed = sum(bool(r.failures) for r in reports)
    print(f"{len(reports)} compiled, {failed} failed, triton {triton.__version__}")
    return 1 if failed or missing else 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
