"""Random small kernels: expressions over dtypes, shapes and broadcasts, reductions, scans, loops, branches, masks.

Every generated statement casts its result to a type that the generator knows. Operations whose result is not determined
bit for bit are left out (float division and sums; float to integer conversion out of range), as is fusion to fma; signs
of zeros are free. So every value, integer or float, must be equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .harness import FLOATS, INTS, NUMBERS, TL, UINTS, Interpreter, Kernel, Tol, differ, values

Shape = tuple[int, ...]


@dataclass
class Value:
    name: str
    dtype: str
    shape: Shape


@dataclass
class Writer:
    """A kernel in the making; `draw` is hypothesis's."""

    draw: st.DrawFn
    rows: int
    cols: int
    lines: list[str] = field(default_factory=list)
    pool: list[Value] = field(default_factory=list)
    args: dict[str, torch.Tensor] = field(default_factory=dict)

    def new(self, text: str, dtype: str, shape: Shape, cast: bool = True) -> Value:
        value = Value(f"v{len(self.lines)}", dtype, shape)
        self.lines.append(f"{value.name} = ({text}).to({TL[dtype]})" if cast else f"{value.name} = {text}")
        self.pool.append(value)
        return value

    def pick(self, *, kinds: tuple[str, ...] = NUMBERS, shape: Shape | None = None) -> Value:
        """A value of the pool; one is made from a load if none fits."""
        fits = [v for v in self.pool if v.dtype in kinds and (shape is None or v.shape == shape)]
        if fits and self.draw(st.integers(0, 7)):
            return self.draw(st.sampled_from(fits))
        if shape is None:
            shape = self.draw(st.sampled_from(self.shapes()))
        return self.load(self.draw(st.sampled_from(kinds)), shape)

    def shapes(self) -> list[Shape]:
        return [(), (self.cols,), (self.rows, 1), (1, self.cols), (self.rows, self.cols)]

    def full(self) -> Shape:
        return (self.rows, self.cols)

    def join(self, *operands: Value) -> Shape:
        """The shape that operands broadcast to."""
        return tuple(torch.broadcast_shapes(*(v.shape for v in operands)))

    def offsets(self, shape: Shape) -> str:
        if shape == ():
            return str(self.draw(st.integers(0, 7)))
        if len(shape) == 1:
            return "c"
        return (
            {self.rows: "r[:, None]", 1: "c[None, :]"}.get(shape[0], "")
            if 1 in shape
            else f"(r[:, None] * {self.cols} + c[None, :])"
        )

    # -- statements

    def load(self, dtype: str, shape: Shape | None = None) -> Value:
        shape = self.full() if shape is None else shape
        if 1 in shape and self.rows == 1:
            shape = (1, self.cols)
        name = f"p{len(self.args)}_ptr"
        self.args[name] = values(dtype, self.rows * self.cols + 8, self.draw(st.integers(0, 3)))
        if shape in (self.full(), (self.cols,)) and self.draw(st.booleans()):
            bound, low = self.draw(st.integers(0, self.cols)), self.draw(st.integers(0, 3))
            mask = (
                f"(c < {bound}) & (c >= {low})"
                if len(shape) == 1
                else f"(c < {bound})[None, :] & (r >= {low})[:, None]"
            )
            text = f"tl.load({name} + {self.offsets(shape)}, mask={mask}, other={self.draw(st.integers(0, 3))})"
        else:
            text = f"tl.load({name} + {self.offsets(shape)})"
        return self.new(text, dtype, shape, cast=False)

    def arithmetic(self) -> None:
        a, b = self.pick(), self.pick()
        integral = a.dtype not in FLOATS and b.dtype not in FLOATS
        op = self.draw(st.sampled_from(["+", "-", "*", *(["&", "|", "^"] if integral else [])]))
        self.result(f"{a.name} {op} {b.name}", a, b, integral)

    def extremum(self) -> None:
        a, b = self.pick(), self.pick()
        integral = a.dtype not in FLOATS and b.dtype not in FLOATS
        self.result(f"tl.{self.draw(st.sampled_from(['minimum', 'maximum']))}({a.name}, {b.name})", a, b, integral)

    def result(self, text: str, a: Value, b: Value, integral: bool) -> None:
        """Cast to a type that loses nothing undefined: any for integers, a float for floats."""
        dtype = self.draw(
            st.sampled_from(NUMBERS if integral else ("f32", "f64") if "f64" in (a.dtype, b.dtype) else FLOATS)
        )
        self.new(text, dtype, self.join(a, b))

    def with_constant(self) -> None:
        a = self.pick()
        if a.dtype in FLOATS:
            text = self.draw(
                st.sampled_from(
                    [f"{a.name} * 0.5", f"3 - {a.name}", f"-{a.name}", f"tl.abs({a.name})", f"{a.name} + 0.25"]
                )
            )
        else:
            k = self.draw(st.integers(1, 7))
            text = self.draw(
                st.sampled_from(
                    [f"{a.name} {op} {k}" for op in ("//", "%", "<<", ">>", "+", "-", "*", "&", "|", "^")]
                    + [f"~{a.name}", f"-{a.name}", f"tl.abs({a.name})"]
                )
            )
        self.new(text, a.dtype, a.shape)

    def select(self) -> None:
        a, b, x, y = self.pick(), self.pick(), self.pick(), self.pick()
        op = self.draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
        integral = x.dtype not in FLOATS and y.dtype not in FLOATS
        dtype = self.draw(st.sampled_from(NUMBERS if integral else ("f32", "f64")))
        self.new(f"tl.where({a.name} {op} {b.name}, {x.name}, {y.name})", dtype, self.join(a, b, x, y))

    def convert(self) -> None:
        a = self.pick(kinds=FLOATS)
        dtype = self.draw(st.sampled_from(INTS + UINTS))
        inside = f"({a.name} > -1) & ({a.name} < 127)" if dtype in UINTS else f"tl.abs({a.name}) < 127"
        self.new(f"tl.where({inside}, {a.name}, 0.0)", dtype, a.shape)

    def reduce(self) -> None:
        a = self.pick(shape=self.full())
        axis = self.draw(st.sampled_from([0, 1]))
        options = ["max", "min"] if a.dtype in FLOATS else ["sum", "max", "min", "xor_sum"]
        function = self.draw(st.sampled_from(options))
        shape = (1, self.cols) if axis == 0 else (self.rows, 1)
        if self.draw(st.integers(0, 4)) == 0:
            self.new(f"tl.{function}({a.name})", a.dtype, ())
        else:
            self.new(f"tl.{function}({a.name}, axis={axis}, keep_dims=True)", a.dtype, shape)

    def index_of(self) -> None:
        a = self.pick(kinds=INTS + UINTS, shape=self.full())
        axis = self.draw(st.sampled_from([0, 1]))
        function = self.draw(st.sampled_from(["argmax", "argmin"]))
        self.new(
            f"tl.{function}({a.name}, {axis}, keep_dims=True)", "i32", (1, self.cols) if axis == 0 else (self.rows, 1)
        )

    def scan(self) -> None:
        a = self.pick(kinds=INTS + UINTS, shape=self.full())
        reverse = self.draw(st.booleans())
        axis = self.draw(st.sampled_from([0, 1]))
        texts = [
            f"tl.cumsum({a.name}, {axis}, {reverse})",
            f"tl.associative_scan({a.name}, {axis}, max_combine, {reverse})",
        ]
        self.new(self.draw(st.sampled_from(texts)), a.dtype, self.full())

    def move(self) -> None:
        a, mask = self.pick(shape=self.full()), self.draw(st.integers(0, 3)) % self.cols
        texts = [
            f"tl.reshape(tl.trans({a.name}), [{self.rows}, {self.cols}])",
            f"tl.flip({a.name}, {self.draw(st.sampled_from([0, 1]))})",
            f"tl.split(tl.join({a.name}, {a.name}))[1]",
            f"tl.split(tl.reshape(tl.interleave({a.name}, {a.name}), [{self.rows}, {self.cols}, 2]))[0]",
            f"tl.trans(tl.trans({a.name}) + tl.trans({a.name}))",
            f"tl.gather({a.name}, tl.broadcast_to((c ^ {mask})[None, :], [{self.rows}, {self.cols}]), 1)",
        ]
        self.new(self.draw(st.sampled_from(texts)), a.dtype, self.full())

    def loop(self) -> None:
        a, b = self.pick(), self.pick(kinds=INTS + UINTS)
        shape = self.join(a, b)
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = ({a.name} + {b.name} * 0).to({TL[a.dtype]})")
        start, count, step = (
            self.draw(st.integers(-3, 3)),
            self.draw(st.integers(0, 5)),
            self.draw(st.sampled_from([1, 2, -1])),
        )
        stop = f"{start + count * step} + n - 5" if self.draw(st.booleans()) else str(start + count * step)
        body = self.draw(
            st.sampled_from(
                [
                    f"{name} + {b.name}",
                    f"{name} * 3 - j",
                    f"tl.where({b.name} > j, {name}, {name} + 1)",
                    f"tl.maximum({name}, {b.name}) + j",
                ]
            )
        )
        # The interpreter's counter is a Python number, which promotes otherwise than a scalar: make it one.
        self.lines.append(
            f"for k in range({start}, {stop}, {step}):\n    j = n * 0 + k\n    {name} = ({body}).to({TL[a.dtype]})"
        )
        self.pool.append(Value(name, a.dtype, shape))

    def branch(self) -> None:
        s = self.pick(shape=())
        a, b = self.pick(), self.pick()
        shape, name = self.join(a, b), f"v{len(self.lines)}"
        dtype = (
            "f64" if "f64" in (a.dtype, b.dtype) else a.dtype if a.dtype in FLOATS or b.dtype not in FLOATS else b.dtype
        )
        self.lines.append(
            f"if {s.name} > {self.draw(st.integers(0, 4))}:\n    {name} = ({a.name} + {b.name}).to({TL[dtype]})\n"
            f"else:\n    {name} = ({a.name} - {b.name}).to({TL[dtype]})"
        )
        self.pool.append(Value(name, dtype, shape))

    def memory(self) -> None:
        """Store, masked, then read back what is there."""
        a = self.pick(shape=self.full())
        name = f"p{len(self.args)}_ptr"
        self.args[name] = values(a.dtype, self.rows * self.cols + 8, 5)
        step = self.draw(st.sampled_from(["c[None, :]", f"({self.cols - 1} - c[None, :])"]))
        at = f"{name} + r[:, None] * {self.cols} + {step}"
        self.lines.append(
            f"tl.store({at}, {a.name}, mask=(c < {self.draw(st.integers(0, self.cols))})[None, :] & (r >= 0)[:, None])"
        )
        self.new(f"tl.load({at})", a.dtype, self.full(), cast=False)


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    writer = Writer(draw, rows=draw(st.sampled_from([1, 2, 4, 8])), cols=draw(st.sampled_from([1, 2, 8, 16, 64])))
    statements = [
        writer.arithmetic,
        writer.arithmetic,
        writer.with_constant,
        writer.extremum,
        writer.select,
        writer.convert,
        writer.reduce,
        writer.index_of,
        writer.scan,
        writer.move,
        writer.loop,
        writer.branch,
        writer.memory,
    ]
    for statement in draw(st.lists(st.sampled_from(statements), min_size=2, max_size=10)):
        statement()
    setup = f"r = tl.arange(0, {writer.rows})\nc = tl.arange(0, {writer.cols})\n" + "\n".join(writer.lines)
    stored: list[str | tuple[str, Tol]] = [v.name for v in writer.pool[-8:]]
    args = {**writer.args, "n": 5}
    free_zeros = Tol(1e-9)
    return Kernel(setup, stored, args, tol=free_zeros, arg_tol=free_zeros, options={"enable_fp_fusion": False})


QUICK = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=True
)
LONG = settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


@given(kernel=kernels())
@QUICK
def test_random_kernels(interpreter: Interpreter, kernel: Kernel) -> None:
    differ(interpreter, kernel)


@pytest.mark.slow
@given(kernel=kernels())
@LONG
def test_many_random_kernels(interpreter: Interpreter, kernel: Kernel) -> None:
    differ(interpreter, kernel)
