"""Differential tests: one generated kernel, run natively and by the interpreter, compared slot by slot.

A `Kernel` is lines of source and the expressions to store. `differ` writes it to a file, runs it both ways at once, and
compares every stored value and every tensor argument.
"""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton.language as tl

from .oracle import PRELUDE, dumps, load_prelude, loads, run_kernel

INTS = ("i8", "i16", "i32", "i64")
UINTS = ("u8", "u16", "u32", "u64")
FLOATS = ("f16", "bf16", "f32", "f64")
NUMBERS = INTS + UINTS + FLOATS
ALL = ("i1",) + NUMBERS
TORCH: dict[str, torch.dtype] = {name: pair[1] for name, pair in load_prelude().DTYPES.items()}
TL: dict[str, str] = {
    name: next(f"tl.{word}" for word in dir(tl) if getattr(tl, word) is pair[0])
    for name, pair in load_prelude().DTYPES.items()
}


@dataclass(frozen=True)
class Tol:
    """Allowed difference: `ulps` units in the last place of each value, or of the largest one (`of_max`)."""

    ulps: float
    of_max: bool = False


EXACT = Tol(0)


@dataclass
class Kernel:
    """A generated kernel. `exprs` are stored in slots 0, 1, ...; `(expression, Tol)` allows a difference.

    args: tensors and scalars, passed in this order after `out_ptr`. constants: constexprs. arg_tol: for the tensor
    arguments afterwards. options: launch options of the native run.
    """

    setup: str = ""
    exprs: Sequence[str | tuple[str, Tol]] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[int, ...] = (1,)
    tol: Tol = EXACT
    arg_tol: Tol = EXACT
    options: Mapping[str, Any] = field(default_factory=dict)
    module: str = ""  # helpers that stand before the kernel

    def labels(self) -> list[tuple[str, Tol]]:
        return [(e, self.tol) if isinstance(e, str) else e for e in self.exprs]

    def source(self) -> str:
        params = ["out_ptr", *self.args, *(f"{name}: tl.constexpr" for name in self.constants)]
        body = textwrap.dedent(self.setup).strip("\n").splitlines()
        body += [f"put(out_ptr, {k}, {expr})" for k, (expr, _) in enumerate(self.labels())]
        return "\n".join(
            [
                "import triton",
                "import triton.language as tl",
                "from triton.language.extra import libdevice",
                f"from {PRELUDE} import *",
                "",
                textwrap.dedent(self.module),
                "@triton.jit",
                f"def kernel({', '.join(params)}):",
                textwrap.indent("\n".join(body) or "pass", "    "),
                "",
            ]
        )


class Interpreter:
    """The process of `oracle.py`: ask, do something else, then collect the answer."""

    def __init__(self, folder: Path):
        self.folder = folder
        env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        program = Path(__file__).with_name("oracle.py")
        self.log = folder / "interpreter.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env
            )

    def write(self, kernel: Kernel) -> Path:
        """The kernel's file, named by its content."""
        source = kernel.source()
        path = self.folder / f"k{hashlib.sha256(source.encode()).hexdigest()[:16]}.py"
        if not path.exists():
            path.write_text(source)
        return path

    def ask(self, request: dict) -> None:
        assert self.process.stdin is not None
        body = dumps(request)
        self.process.stdin.write(struct.pack("<Q", len(body)) + body)
        self.process.stdin.flush()

    def collect(self) -> dict:
        assert self.process.stdout is not None
        head = self.process.stdout.read(8)
        assert len(head) == 8, f"the interpreter's process died: {self.log.read_text()[-2000:]}"
        return loads(self.process.stdout.read(struct.unpack("<Q", head)[0]))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


def request_for(kernel: Kernel, path: Path) -> dict:
    return {
        "path": str(path),
        "kernel": "kernel",
        "args": dict(kernel.args),
        "constants": dict(kernel.constants),
        "options": dict(kernel.options),
        "grid": kernel.grid,
        "slots": len(kernel.exprs),
    }


def differ(
    interpreter: Interpreter, kernel: Kernel, references: Mapping[int, Callable[[], torch.Tensor]] | None = None
) -> dict:
    """Run both ways and compare; slots in `references` are compared with the tensor given there instead.

    Returns:
        What the native run left behind.
    """
    path = interpreter.write(kernel)
    request = request_for(kernel, path)
    interpreter.ask(request)
    try:
        got, failure = run_kernel(request, interpreted=False), None
    except Exception as error:
        got, failure = {}, error
    want = interpreter.collect()
    if failure is not None:
        if "error" in want:
            raise AssertionError(f"both fail: {failure}\nthe interpreter: {want['error']}\n{kernel.source()}")
        raise failure
    assert "error" not in want, f"the interpreter fails: {want['error']}\n{kernel.source()}"
    problems = []
    for k, (expr, tol) in enumerate(kernel.labels()):
        expected = want["slots"][k]
        if references and k in references:
            expected = references[k]()
        problems += [f"{expr}: {p}" for p in mismatch(expected, got["slots"][k], tol)]
    for name, expected in want["args"].items():
        problems += [f"{name} afterwards: {p}" for p in mismatch(expected, got["args"][name], kernel.arg_tol)]
    assert not problems, "\n".join([*problems[:20], kernel.source()])
    return got


def check_native(interpreter: Interpreter, kernel: Kernel, want: Sequence[torch.Tensor]) -> None:
    """Run natively only (the interpreter lacks the op) and compare the slots with `want`."""
    got = run_kernel(request_for(kernel, interpreter.write(kernel)), interpreted=False)
    problems = [
        f"{e}: {p}"
        for (e, tol), w, g in zip(kernel.labels(), want, got["slots"], strict=True)
        for p in mismatch(w, g, tol)
    ]
    assert not problems, "\n".join([*problems, kernel.source()])


def mismatch(want: torch.Tensor | None, got: torch.Tensor | None, tol: Tol = EXACT) -> list[str]:
    """What is wrong with `got`, in words. Any two NaNs are equal; signs of zeros count where nothing may differ."""
    if want is None or got is None:
        return [] if want is got else [f"stored: expected {want is not None}, got {got is not None}"]
    if want.dtype != got.dtype or want.shape != got.shape:
        return [f"expected {want.dtype} {tuple(want.shape)}, got {got.dtype} {tuple(got.shape)}"]
    w, g = want.reshape(-1), got.reshape(-1)
    if not want.dtype.is_floating_point:
        wn, gn = w.numpy(), g.numpy()
        bad = np.flatnonzero(wn != gn)
    else:
        eps, tiny = torch.finfo(want.dtype).eps, torch.finfo(want.dtype).smallest_normal
        wn, gn = w.double().numpy(), g.double().numpy()
        with np.errstate(all="ignore"):
            finite = np.isfinite(wn)
            scale = np.abs(wn[finite]).max(initial=0.0) if tol.of_max else np.abs(wn)
            slack = tol.ulps * eps * np.maximum(scale, tiny)
            close = finite & (np.abs(wn - gn) <= slack)
            same = (wn == gn) | (np.isnan(wn) & np.isnan(gn))
            if tol.ulps == 0:
                same &= np.isnan(wn) | (np.signbit(wn) == np.signbit(gn))
        bad = np.flatnonzero(~(same | close))
    if bad.size == 0:
        return []
    shown = ", ".join(f"[{i}] {wn[i]!r} != {gn[i]!r}" for i in bad[:4])
    return [f"{bad.size} of {wn.size} differ (expected != got) {want.dtype}: {shown}"]


# -- inputs


def rng(*seed: object) -> np.random.Generator:
    return np.random.default_rng(int(hashlib.sha256(repr(seed).encode()).hexdigest()[:8], 16))


def values(
    dtype: str, n: int | tuple[int, ...], seed: int = 0, *, special: bool = True, small: bool = False
) -> torch.Tensor:
    """`n` random values, the awkward ones of the type among them if `special`; whole numbers within +-4 if `small`."""
    shape = n if isinstance(n, tuple) else (n,)
    size, gen, torch_dtype = int(np.prod(shape)), rng(dtype, n, seed), TORCH[dtype]
    if dtype == "i1":
        return torch.from_numpy(gen.integers(0, 2, size).astype(bool)).reshape(shape)
    if torch_dtype.is_floating_point:
        info = torch.finfo(torch_dtype)
        if small:
            data = gen.integers(-4, 5, size).astype(np.float64)
        else:
            data = gen.standard_normal(size) * gen.choice([0.1, 1.0, 10.0], size)
        out = torch.from_numpy(data).to(torch_dtype)
        if special:
            odd = [
                0.0,
                -0.0,
                float("inf"),
                float("-inf"),
                float("nan"),
                1.0,
                -1.0,
                info.max,
                info.smallest_normal,
                -2.5,
                0.5,
                3.5,
            ]
            odd = [v for v in odd if dtype not in ("f8e4nv", "f8e4b8", "f8e5b16") or np.isfinite(v) or np.isnan(v)]
            place = gen.permutation(size)[: min(len(odd), size)]
            out[torch.from_numpy(place)] = torch.tensor(odd[: len(place)], dtype=torch.float64).to(torch_dtype)
        return out.reshape(shape)
    info = torch.iinfo(torch_dtype)
    if small:
        data = gen.integers(max(info.min, -4), 5, size)
    else:
        data = gen.integers(info.min, info.max, size, endpoint=True, dtype=np.uint64 if info.min == 0 else np.int64)
    data = data.astype(str(torch_dtype).removeprefix("torch."))
    if special and not small:
        odd = [0, 1, info.max, info.min, info.max - 1, 2, 7]
        place = gen.permutation(size)[: min(len(odd), size)]
        data[place] = np.array(odd[: len(place)], data.dtype)
    return torch.from_numpy(data).reshape(shape)
