"""Triton's interpreter in a process of its own, corrected where it is known to be wrong.

Run as a program it reads requests (`harness.request_for`) from stdin and answers each with what the interpreted kernel
left behind. It never imports the project: the backend under test is not even loaded.

Corrections to triton 3.9's interpreter (each is a defect against what the compiled language does):

1. bfloat16 is held as uint16, and arithmetic and comparisons act on the integers: here they are done in fp32 and
   rounded once.
2. Conversion from fp32 to bfloat16 truncates, and conversion to fp8 rounds ties away and truncates subnormals: here
   both round to nearest, ties to even (torch's conversions), saturating for fp8 as NVIDIA's instructions do; rtz
   truncates.
3. `tl.dot` on bfloat16 multiplies the integers, and on fp8 decodes no NaN: operands are decoded first.
4. Float to integer conversion of bfloat16, and integer to bfloat16, copy bits: they convert values.
5. Sums, extrema and scans of bfloat16 are numpy's over the integers: the combine function runs element by element.
6. A comparison of scalars keeps the type of its operands, so that it cannot be broadcast into a mask: it becomes int1.
7. An exchange of floats is refused: it exchanges their bits.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import struct
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

PRELUDE = "braidwork_cpu_test_prelude"


def load_module(name: str, path: Path) -> ModuleType:
    """Execute the file as module `name` (kept in `sys.modules`, where Triton looks up globals)."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load_prelude() -> ModuleType:
    """The one prelude of this process."""
    return sys.modules.get(PRELUDE) or load_module(PRELUDE, Path(__file__).with_name("prelude.py"))


def dumps(value: Any) -> bytes:
    """Pickle `value`, with tensors as bytes (torch's own pickling refuses unsigned types)."""

    def pack(v: Any) -> Any:
        if isinstance(v, torch.Tensor):
            raw = v.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if v.numel() else b""
            return ("tensor", raw, str(v.dtype).removeprefix("torch."), tuple(v.shape))
        if isinstance(v, dict):
            return {k: pack(item) for k, item in v.items()}
        return [pack(item) for item in v] if isinstance(v, list) else v

    return pickle.dumps(pack(value))


def loads(data: bytes) -> Any:
    """The inverse of `dumps`."""

    def unpack(v: Any) -> Any:
        if isinstance(v, tuple) and v and v[0] == "tensor":
            _, raw, dtype, shape = v
            return (
                torch.frombuffer(bytearray(raw), dtype=getattr(torch, dtype)).reshape(shape)
                if raw
                else torch.empty(shape, dtype=getattr(torch, dtype))
            )
        if isinstance(v, dict):
            return {k: unpack(item) for k, item in v.items()}
        return [unpack(item) for item in v] if isinstance(v, list) else v

    return unpack(pickle.loads(data))


def run_kernel(request: dict, interpreted: bool) -> dict:
    """Launch the kernel that `request` describes on copies of its arguments.

    Returns:
        "slots": what it `put`, "args": its tensor arguments afterwards.
    """
    prelude = load_prelude()
    path = Path(request["path"])
    name = f"braidwork_cpu_test_{path.stem}"
    module = sys.modules.get(name) or load_module(name, path)
    kernel = getattr(module, request["kernel"])
    args = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in request["args"].items()}
    out = torch.full((max(request["slots"], 1) * prelude.SLOT_BYTES.value,), 0xA5, dtype=torch.uint8)
    with np.errstate(all="ignore"):
        kernel[request["grid"]](out, **args, **request["constants"], **({} if interpreted else request["options"]))
    return {
        "slots": prelude.read_slots(out, request["slots"]),
        "args": {k: v for k, v in args.items() if isinstance(v, torch.Tensor)},
    }


def _correct_interpreter() -> None:
    import triton.language as tl
    from triton._C.libtriton import ir
    from triton.runtime import interpreter as it

    fp8 = {
        tl.float8e5: torch.float8_e5m2,
        tl.float8e4nv: torch.float8_e4m3fn,
        tl.float8e5b16: torch.float8_e5m2fnuz,
        tl.float8e4b8: torch.float8_e4m3fnuz,
    }
    narrow = {**fp8, tl.bfloat16: torch.bfloat16}
    builder = it.InterpreterBuilder
    handle = it.TensorHandle

    def as_torch(data: np.ndarray, dtype) -> torch.Tensor:
        data = np.ascontiguousarray(data)
        if dtype in narrow:
            return torch.from_numpy(data.view(np.int16 if dtype == tl.bfloat16 else np.uint8).copy()).view(
                narrow[dtype]
            )
        return torch.from_numpy(data.copy())

    def decode(h) -> np.ndarray:
        """The values of a handle in a numpy float type."""
        if h.dtype.scalar in narrow:
            return as_torch(h.data, h.dtype.scalar).float().numpy()
        return h.data

    def encode(data: np.ndarray, dtype) -> np.ndarray:
        """fp32 (or wider) values to a narrow type, to nearest even, saturating for fp8."""
        t = torch.from_numpy(np.ascontiguousarray(data).astype(np.float32))
        if dtype in fp8:
            top = torch.finfo(fp8[dtype]).max
            t = torch.where(t.isnan() | (t.isinf() & (dtype == tl.float8e5)), t, t.clamp(-top, top))
            return t.to(fp8[dtype]).view(torch.uint8).numpy()
        return t.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)

    def truncated(data: np.ndarray, dtype) -> np.ndarray:
        """fp32 values to a narrow type, toward zero."""
        out = as_torch(encode(data, dtype), dtype)
        bits = out.view(torch.int16 if dtype == tl.bfloat16 else torch.uint8)
        too_big = out.float().abs() > torch.from_numpy(np.abs(data).astype(np.float32))
        return torch.where(too_big, bits - 1, bits).numpy().view(np.uint16 if dtype == tl.bfloat16 else np.uint8)

    def through_fp32(name: str) -> None:
        plain = getattr(builder, name)

        def corrected(self, *args):
            operands = [a for a in args if isinstance(a, handle)]
            if not any(a.dtype.scalar == tl.bfloat16 for a in operands):
                result = plain(self, *args)
                return handle(result.data, tl.int1) if result.data.dtype == np.bool_ else result
            wide = [
                handle(decode(a), tl.float32) if isinstance(a, handle) and a.dtype.scalar == tl.bfloat16 else a
                for a in args
            ]
            result = plain(self, *wide)
            if result.data.dtype == np.bool_:
                return handle(result.data, tl.int1)
            return handle(encode(result.data, tl.bfloat16), tl.bfloat16)

        setattr(builder, name, corrected)

    for name in ("binary_op", "unary_op", "create_fma", "create_clampf", "create_rsqrt", "create_erf"):
        through_fp32(name)

    plain_cast, plain_fp_to_fp = builder.cast_impl, builder.create_fp_to_fp

    def cast_impl(self, src, dst_type):
        s, d = src.dtype.scalar, dst_type.scalar
        if s not in narrow and d not in narrow:
            return plain_cast(self, src, dst_type)
        value = decode(src)
        return handle(encode(value, d) if d in narrow else value.astype(it._get_np_dtype(d)), d)

    def create_fp_to_fp(self, src, dst_type, rounding_mode):
        s, d = src.dtype.scalar, dst_type.scalar
        if s == tl.float8e4b15 or d == tl.float8e4b15:
            return plain_fp_to_fp(self, src, dst_type, rounding_mode)
        value = decode(src)
        toward_zero = rounding_mode == ir.ROUNDING_MODE.RTZ
        if d in narrow:
            return handle((truncated if toward_zero else encode)(value, d), d)
        out = value.astype(it._get_np_dtype(d))
        if toward_zero:
            too_big = np.abs(out.astype(np.float64)) > np.abs(value.astype(np.float64))
            out = np.where(too_big, np.nextafter(out, np.zeros_like(out)), out)
        return handle(out, d)

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        x, y = decode(a), decode(b)
        return handle(np.matmul(x, y, dtype=d.data.dtype) + d.data, d.dtype.scalar)

    def generic_for_bf16(ops, generic: str) -> None:
        plain = ops.apply_impl

        def apply_impl(self, input):
            if not any(a.dtype == tl.bfloat16 for a in input):
                return plain(self, input)
            flip = getattr(self, "reverse", False)  # reduce ops have no direction
            if flip:
                input = [
                    self.to_tensor(np.ascontiguousarray(np.flip(a.handle.data, self.axis)), a.dtype) for a in input
                ]
            found = getattr(self, generic)(input)
            for a in found if flip else ():
                a.handle.data = np.ascontiguousarray(np.flip(a.handle.data, self.axis))
            return found

        ops.apply_impl = apply_impl

    generic_for_bf16(it.ReduceOps, "generic_reduce")
    generic_for_bf16(it.ScanOps, "generic_scan")
    plain_rmw = builder.create_atomic_rmw

    def create_atomic_rmw(self, op, ptr, val, mask, sem, scope):
        if op != ir.ATOMIC_OP.XCHG or val.data.dtype.kind != "f":
            return plain_rmw(self, op, ptr, val, mask, sem, scope)
        bits = handle(val.data.view(f"u{val.data.dtype.itemsize}"), val.dtype)
        return handle(plain_rmw(self, op, ptr, bits, mask, sem, scope).data.view(val.data.dtype), val.dtype)

    builder.create_atomic_rmw = create_atomic_rmw
    builder.cast_impl, builder.create_fp_to_fp, builder.create_dot = cast_impl, create_fp_to_fp, create_dot


def main() -> None:
    """Serve requests until stdin closes."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a kernel prints must not mix with the answers
    torch.set_num_threads(1)
    _correct_interpreter()
    while head := requests.read(8):
        request = loads(requests.read(struct.unpack("<Q", head)[0]))
        try:
            answer = run_kernel(request, interpreted=True)
        except Exception as error:
            answer = {"error": "".join(traceback.format_exception_only(error)).strip()}
        body = dumps(answer)
        answers.write(struct.pack("<Q", len(body)) + body)
        answers.flush()


if __name__ == "__main__":
    main()
