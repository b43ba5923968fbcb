"""What every generated test kernel can call; loaded by the tests and by the interpreter's process alike.

`put(out_ptr, K, value)` stores any value, with its dtype and size, in slot K of a byte buffer, so that a test need not
know the type that Triton's promotion rules give an expression.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

HEADER_BYTES = tl.constexpr(64)
SLOT_BYTES = tl.constexpr(HEADER_BYTES.value + (1 << 18))

DTYPES = {
    "i1": (tl.int1, torch.bool),
    "i8": (tl.int8, torch.int8),
    "i16": (tl.int16, torch.int16),
    "i32": (tl.int32, torch.int32),
    "i64": (tl.int64, torch.int64),
    "u8": (tl.uint8, torch.uint8),
    "u16": (tl.uint16, torch.uint16),
    "u32": (tl.uint32, torch.uint32),
    "u64": (tl.uint64, torch.uint64),
    "f16": (tl.float16, torch.float16),
    "bf16": (tl.bfloat16, torch.bfloat16),
    "f32": (tl.float32, torch.float32),
    "f64": (tl.float64, torch.float64),
    "f8e5": (tl.float8e5, torch.float8_e5m2),
    "f8e4nv": (tl.float8e4nv, torch.float8_e4m3fn),
    "f8e5b16": (tl.float8e5b16, torch.float8_e5m2fnuz),
    "f8e4b8": (tl.float8e4b8, torch.float8_e4m3fnuz),
}
_NAMES = list(DTYPES)
_CODES = {pair[0].name: code for code, pair in enumerate(DTYPES.values())}


@triton.constexpr_function
def dtype_code(dtype):
    """The place of a Triton dtype in `DTYPES`."""
    return _CODES[dtype.name]


@triton.jit
def put(out_ptr, K: tl.constexpr, value):
    """Store `value` (a scalar or a tensor of any shape) in slot `K`."""
    base = out_ptr + K * SLOT_BYTES
    header = base.to(tl.pointer_type(tl.int32), bitcast=True)
    tl.store(header, dtype_code(value.dtype))
    if value.dtype == tl.int1:
        data = (base + HEADER_BYTES).to(tl.pointer_type(tl.int8), bitcast=True)
        bits = value.to(tl.int8)
    else:
        data = (base + HEADER_BYTES).to(tl.pointer_type(value.dtype), bitcast=True)
        bits = value
    if len(value.shape) == 0:
        tl.store(header + 1, -1)
        tl.store(data, bits)
    else:
        tl.static_assert(
            value.numel * (bits.dtype.primitive_bitwidth // 8) <= SLOT_BYTES - HEADER_BYTES, "too large for a slot"
        )
        flat = tl.reshape(bits, [value.numel])
        tl.store(header + 1, value.numel)
        tl.store(data + tl.arange(0, value.numel), flat)


def read_slots(out: torch.Tensor, count: int) -> list[torch.Tensor | None]:
    """What `put` stored in the first `count` slots (None: nothing)."""
    found: list[torch.Tensor | None] = []
    for k in range(count):
        slot = out[k * SLOT_BYTES.value : (k + 1) * SLOT_BYTES.value]
        code, numel = slot[:8].view(torch.int32).tolist()
        if not 0 <= code < len(_NAMES):
            found.append(None)
            continue
        dtype = DTYPES[_NAMES[code]][1]
        raw = slot[HEADER_BYTES.value :]
        data = raw[: abs(numel) * dtype.itemsize].clone().view(dtype)
        found.append(data if numel >= 0 else data[0])
    return found


# -- combine functions for tl.reduce, tl.associative_scan and tl.map_elementwise


@triton.jit
def add_combine(a, b):
    return a + b


@triton.jit
def max_combine(a, b):
    return tl.maximum(a, b)


@triton.jit
def mul_xor_combine(a, b):
    """Associative over integers modulo 2^n, and not commutative: keeps the right operand's low bit."""
    return (a & ~1) ^ (b & ~1) | (b & 1)


@triton.jit
def last_combine(a, b):
    """Not commutative: the right operand."""
    return b


@triton.jit
def linear_combine(a1, b1, a2, b2):
    """Composition of x -> a1 x + b1, then x -> a2 x + b2."""
    return a1 * a2, a2 * b1 + b2


@triton.jit
def max_and_min_combine(a1, b1, a2, b2):
    return tl.maximum(a1, a2), tl.minimum(b1, b2)


@triton.jit
def welford_combine(mean1, m2_1, n1, mean2, m2_2, n2):
    """Chan et al.: mean, sum of squared deviations and count of two samples together."""
    delta = mean2 - mean1
    n = n1 + n2
    part = n2 / n
    return mean1 + delta * part, m2_1 + m2_2 + delta * delta * n1 * part, n


@triton.jit
def select_combine(a, b):
    """With control flow inside the region."""
    if a > b:
        r = a
    else:
        r = b
    return r


@triton.jit
def inlined(x, y, FLIP: tl.constexpr = False):
    if FLIP:
        return y - x, x
    return x - y, y


@triton.jit(noinline=True)
def not_inlined(x, y):
    return x * 2 + y


@triton.jit(noinline=True)
def not_inlined_pair(x, y):
    return x + y, x - y


@triton.jit
def early_return(x, n):
    if n > 3:
        return x + 1
    if n > 1:
        return x + 2
    return x * 3
