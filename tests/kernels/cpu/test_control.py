"""Control flow, calls, compile-time values and tuples."""

from __future__ import annotations

import pytest
import torch

from .harness import Interpreter, Kernel, Tol, differ, values

LOAD = "i = tl.arange(0, 32)\nx = tl.load(x_ptr + i)\nn = tl.load(n_ptr)\n"

# name: (lines, stored expressions)
PROGRAMS: dict[str, tuple[str, list]] = {
    "for over a runtime range": (
        """
acc = x
for k in range(n):
    acc += k * x
""",
        ["acc"],
    ),
    "for with start, stop and step": (
        """
acc = tl.zeros([32], tl.int32)
for k in range(3, n * 4, 5):
    acc = acc * 3 + k
for k in range(n, -n, -2):
    acc = acc ^ (k + i)
""",
        ["acc"],
    ),
    "range with 64-bit bounds": (
        """
big = n.to(tl.int64) * 10000000000
acc = tl.zeros([], tl.int64)
for k in range(big, big + 5):
    acc += k
""",
        ["acc"],
    ),
    "range that never runs": (
        """
acc = x
last = n
for k in range(5, n - 100):
    acc += 1
    last = k
""",
        ["acc", "last"],
    ),
    "nested loops with several carried values": (
        """
a, b = x, x * 2
total = 0
for j in range(4):
    for k in range(j, n):
        a, b = b, a + k
        total += j * k
    b = b - j
""",
        ["a", "b", "total"],
    ),
    "a name of two loops in a third": (  # which carries it undefined into its first turn
        """
acc = x
for k in range(n):
    row = tl.full([], 2, tl.int64) * k
    acc += row.to(tl.int32)
for j in range(n):
    for k in range(j):
        row = tl.full([], 3, tl.int64) * k + j
        acc += row.to(tl.int32)
""",
        ["acc"],
    ),
    "carried swap of shapes and types": (
        """
m = tl.full([4, 8], 1.5, tl.float32)
s = 1.0
q = tl.zeros([8], tl.int64)
for k in range(n):
    m = m * 1.5 + s
    s = s + tl.sum(m) * 0.001
    q += k
""",
        [("m", Tol(32)), ("s", Tol(32)), "q"],
    ),
    "while": (
        """
k = n
steps = 0
while k != 1:
    k = k // 2 if k % 2 == 0 else 3 * k + 1
    steps += 1
""",
        ["k", "steps"],
    ),
    "while over a tensor's property": (
        """
y = tl.abs(x)
rounds = 0
while tl.max(y) > 5:
    y = tl.where(y > 5, y // 2, y)
    rounds += 1
""",
        ["y", "rounds"],
    ),
    "while with a compound condition": (
        """
a, b = n * 0, n * 0 + 100
while (a < b) & (a < n * 6):
    a += 3
    b -= 4
""",
        ["a", "b"],
    ),
    "if and else with tensors": (
        """
if n > 5:
    y = x + 1
    z = 7
elif n > 2:
    y = x * 2
    z = 8
else:
    y = -x
    z = 9
""",
        ["y", "z"],
    ),
    "if without else": (
        """
y = x
if n % 2 == 1:
    y = x * 3
    if n > 3:
        y += 1
        if n > 100:
            y = x
""",
        ["y"],
    ),
    "if inside for inside if": (
        """
y = x
if n > 0:
    for k in range(n):
        if k % 2 == 0:
            y += k
        else:
            y = y ^ k
""",
        ["y"],
    ),
    "conditional expression": ("y = x if n > 100 else x + n", ["y", "n * 2 if n > 3 else n * 3"]),
    "and, or, not": (
        """
p = n > 3 and n < 100
q = n > 100 or n == 7
r = not p
""",
        ["p", "q", "r"],
    ),
    "chained comparison": ("p = (3 < n) & (n < 50)", ["p"]),
    "static range": (
        """
y = x
for k in tl.static_range(2, 9, 3):
    y = y * 2 + k
for k in tl.static_range(3):
    if k == 1:
        y += 100
""",
        ["y"],
    ),
    "range with hints": (
        """
y = x
for k in tl.range(0, n, num_stages=2):
    y += k
for k in tl.range(0, n, 2, loop_unroll_factor=4):
    y = y ^ k
for k in tl.range(n, disallow_acc_multi_buffer=True, flatten=False):
    y += 1
""",
        ["y"],
    ),
    "calls": (
        """
a, b = inlined(x, i)
c, d = inlined(x, i, FLIP=True)
e = inlined(inlined(x, i)[0], 3)[0]
""",
        ["a", "b", "c", "d", "e"],
    ),
    "calls not inlined": (
        """
s = tl.load(x_ptr + 5)
a = not_inlined(s, 2)
b, c = not_inlined_pair(s, n)
d = x + not_inlined(n, 3)
for k in range(3):
    a = not_inlined(a, k)
""",
        ["a", "b", "c", "d"],
    ),
    "early return of a function": ("", ["early_return(x, n)", "early_return(n, n - 4)", "early_return(n, 0)"]),
    "tuples": (
        """
t = (x, n, 3)
u = t + (x * 2,)
a, (b, c) = t[0], (u[3], t[1])
for k in tl.static_range(2):
    a += u[k * 3]
""",
        ["a", "b", "c", "u[1] + t[2]"],
    ),
    "compile-time values": (
        """
TWICE: tl.constexpr = C * 2
if TWICE > 7:
    y = x + TWICE
else:
    y = x.this_is_never_compiled()
z = tl.full([C], TWICE, tl.float32) if FLAG else x
""",
        ["y", "z", "x + (C if FLAG else 0)", "tl.arange(0, C * 2)"],
    ),
    "assume and hints": (
        """
tl.assume(n > 0)
m = tl.multiple_of(n * 8, 8)
c = tl.max_constancy(i // 4, 4)
tl.static_assert(C == 4)
""",
        ["m // 8", "c", "tl.load(x_ptr + tl.max_contiguous(i, 32))"],
    ),
    "augmented assignment": (
        """
y = x
y += 1
y *= 3
y -= n
y //= 7
y %= 5
y <<= 2
y |= 1
y ^= 6
y &= 31
y >>= 1
""",
        ["y"],
    ),
    "dead code and unused results": (
        """
unused = tl.load(x_ptr + i) * 3
for k in range(n):
    unused = unused + k
""",
        ["x"],
    ),
}


@pytest.mark.parametrize("n", [7, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(interpreter: Interpreter, name: str, n: int) -> None:
    setup, exprs = PROGRAMS[name]
    args = {"x_ptr": values("i32", 32, 1, small=True), "n_ptr": torch.tensor([n], dtype=torch.int32)}
    differ(interpreter, Kernel(LOAD + setup, exprs, args, {"C": 4, "FLAG": True}))


def test_early_return_of_the_kernel(interpreter: Interpreter) -> None:
    """A program may leave at once; those after it are unaffected."""
    setup = """
        pid = tl.program_id(0)
        if pid % 3 == 1:
            return
        if pid > 10:
            tl.store(y_ptr + pid, -1)
            return
        tl.store(y_ptr + pid, pid)
    """
    got = differ(interpreter, Kernel(setup, [], {"y_ptr": torch.full((16,), 99, dtype=torch.int32)}, grid=(16,)))
    assert got["args"]["y_ptr"].tolist() == [99 if p % 3 == 1 else -1 if p > 10 else p for p in range(16)]


def test_return_inside_a_loop_of_programs(interpreter: Interpreter) -> None:
    """Persistent style: a program walks over the tiles that are its own."""
    setup = """
        for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
            offs = tile * 16 + tl.arange(0, 16)
            tl.store(y_ptr + offs, offs * 2 + tl.program_id(0), mask=offs < n)
    """
    differ(
        interpreter, Kernel(setup, [], {"y_ptr": torch.zeros(200, dtype=torch.int32), "n": 195, "tiles": 13}, grid=(5,))
    )


@pytest.mark.parametrize("grid", [(3,), (2, 3), (2, 3, 4), (1, 1, 5)], ids=str)
def test_program_ids(interpreter: Interpreter, grid: tuple[int, ...]) -> None:
    setup = """
        a, b, c = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        at = (c * tl.num_programs(1) + b) * tl.num_programs(0) + a
        tl.store(y_ptr + at, a * 100 + b * 10 + c + tl.num_programs(2) * 1000)
    """
    differ(interpreter, Kernel(setup, [], {"y_ptr": torch.zeros(64, dtype=torch.int32)}, grid=grid))


def test_named_tuples_and_defaults(interpreter: Interpreter) -> None:
    """Arguments by keyword, default values, a tuple passed to a function and returned from it."""
    module = """
        @triton.jit
        def pair(x, y=3, *, SCALE: tl.constexpr = 2):
            return x * SCALE + y

        @triton.jit
        def spread(t, C: tl.constexpr):
            return t[0] + t[1], t[0] * C
    """
    exprs = ["pair(x)", "pair(x, SCALE=5)", "pair(y=x, x=4)", "spread((x, n), 4)[0]", "spread((x, n), C=4)[1]"]
    args = {"x_ptr": values("i32", 32, 1, small=True), "n_ptr": torch.tensor([5], dtype=torch.int32)}
    differ(interpreter, Kernel(LOAD, exprs, args, module=module))


def test_recursion_of_compile_time(interpreter: Interpreter) -> None:
    """A function that calls itself on a smaller compile-time size."""
    module = """
        @triton.jit
        def halve(x, N: tl.constexpr):
            if N == 1:
                return tl.reshape(x, [1])
            else:
                a, b = tl.split(tl.reshape(x, [N // 2, 2]))
                return halve(a * 2 + b, N // 2)
    """
    args = {"x_ptr": values("i32", 32, 1, small=True), "n_ptr": torch.tensor([5], dtype=torch.int32)}
    differ(interpreter, Kernel(LOAD, ["halve(x, 32)"], args, module=module))
