"""The compiler half of the backend: Triton's IR, LLVM IR, machine code of this host.

Stages: `ttir` (Triton's own passes), `llir` (`lower.lower_module`, and the loop that runs programs), `obj` (llvmlite).
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from triton._C.libtriton import ir, passes
from triton.backends.compiler import BaseBackend, GPUTarget

from . import host

TRITON = "3.9"
FP8 = ("fp8e4b15", "fp8e4b8", "fp8e4nv", "fp8e5", "fp8e5b16")
PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")

# The job block, which a launch fills in: (byte offset of) the next program on a cache line of its own, then the number
# of programs, how many to take at once, the grid, the error flag, and one slot of 8 bytes for each argument.
NEXT, TOTAL, CHUNK, GRID, ERROR, ARGUMENTS = 0, 64, 72, 80, 92, 96

LARGE = 200_000  # characters of optimised LLVM IR


@dataclass(frozen=True)
class CPUOptions:
    """What a launch may ask of a backend. Those that mean nothing on a CPU (warps, stages, clusters) are accepted."""

    num_warps: int = 4
    num_ctas: int = 1
    num_stages: int = 3
    warp_size: int = 1
    maxnreg: int | None = None
    cluster_dims: tuple[int, ...] = (1, 1, 1)
    shared: int = 0
    arch: str = ""
    backend_name: str = "cpu"
    debug: bool = False
    sanitize_overflow: bool = True  # checked where `debug` is on
    enable_fp_fusion: bool = True
    supported_fp8_dtypes: tuple[str, ...] = FP8
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = PRECISIONS
    max_num_imprecise_acc_default: int = 0
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    extern_libs: tuple[tuple[str, str], ...] = ()
    ir_override: str | None = None
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False

    def hash(self) -> str:
        return hashlib.sha256(repr(sorted(asdict(self).items())).encode()).hexdigest()


def require() -> None:
    """Raise one clear line unless what the backend stands on is installed."""
    installed = metadata.version("triton")
    if not installed.startswith(f"{TRITON}."):
        raise RuntimeError(
            f"running kernels on a CPU needs triton {TRITON}, whose IR the backend reads, and this is {installed}:"
            ' pip install "braidwork[cpu]" (or set TRITON_INTERPRET=1 to run kernels in Python, slowly)'
        )
    try:
        import llvmlite  # noqa: F401
    except ImportError:
        raise RuntimeError('running kernels on a CPU needs llvmlite: pip install "braidwork[cpu]"') from None


def target_machine(level: int = 3) -> Any:
    """A code generator for this CPU. One for each use: they must not be shared between threads."""
    import llvmlite.binding as llvm

    _initialize()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=host.name(), features=host.feature_string(), opt=level, reloc="pic", codemodel="jitdefault", jit=True
    )


@functools.cache
def _initialize() -> None:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # Its time grows with the square of a block's length, and an out-of-order CPU has no use for its result.
    llvm.set_option("", "-post-RA-scheduler=false")


def digest(binary: bytes) -> str:
    """The name of an object in this process."""
    return hashlib.sha256(binary).hexdigest()


@functools.cache
def _fingerprint() -> str:
    """Changes whenever an object compiled before may be wrong: other sources, other libraries, another CPU."""
    text = [metadata.version("triton"), metadata.version("llvmlite"), host.name(), host.feature_string()]
    text += [path.read_text() for path in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256("\0".join(text).encode()).hexdigest()


class CPUBackend(BaseBackend):
    """Compiles Triton kernels for the CPU of this machine."""

    binary_ext = "obj"
    supports_native_tensor_specialization = False

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == "cpu"

    def __init__(self, target: GPUTarget) -> None:
        require()
        super().__init__(target)

    def hash(self) -> str:
        return _fingerprint()

    def parse_options(self, options: dict[str, Any]) -> CPUOptions:
        from triton import knobs

        known = {f.name for f in fields(CPUOptions)}
        given = {k: v for k, v in options.items() if k in known and v is not None}
        given["arch"] = self.target.arch
        given["enable_fp_fusion"] = bool(given.get("enable_fp_fusion", knobs.language.default_fp_fusion is not False))
        if isinstance(given.get("extern_libs"), dict):
            given["extern_libs"] = tuple(given["extern_libs"].items())
        return CPUOptions(**given)

    # Every variant that Triton would make for pointers and integers divisible by 16 is the same code here.
    @staticmethod
    def get_int_specialization(arg: int, **kwargs: Any) -> str:
        return ""

    @staticmethod
    def get_tensor_specialization(arg: Any, **kwargs: Any) -> str:
        return ""

    def get_codegen_implementation(self, options: CPUOptions) -> dict[str, Any]:
        return {"min_dot_size": lambda lhs, rhs: (1, 1, 1), "convert_custom_types": _convert_fp8e4b15}

    def get_module_map(self) -> dict[str, ModuleType]:
        # Its functions become calls of `__nv_*` symbols, which mathlib.py knows.
        from triton.language.extra.cuda import libdevice

        return {"triton.language.extra.libdevice": libdevice}

    def load_dialects(self, context: Any) -> None:
        """Triton's own dialects are all that is read."""

    def pack_metadata(self, metadata: Any) -> tuple[()]:
        return ()

    def add_stages(self, stages: dict[str, Any], options: CPUOptions, language: Any = None) -> None:
        stages["ttir"] = lambda src, md: _ttir(src, md)
        stages["llir"] = lambda src, md: _llir(src, md, options)
        stages["obj"] = lambda src, md: _obj(src, md)


_IN_IR = {"fp16": "f16", "fp32": "f32", "fp64": "f64", "fp8e4b15": "f8E4M3B11FNUZ", "fp8e4b8": "f8E4M3FNUZ",
          "fp8e4nv": "f8E4M3FN", "fp8e5": "f8E5M2", "fp8e5b16": "f8E5M2FNUZ"}  # fmt: skip


def _convert_fp8e4b15(arg: Any, dst: Any, fp_downcast_rounding: Any = None, _semantic: Any = None) -> Any:
    """Convert from or to fp8e4b15, which Triton's IR holds as i8: a call of a function that `elementwise.py` knows."""
    source, target = (_IN_IR.get(str(ty), str(ty)) for ty in (arg.dtype, dst.scalar))
    rounding = "rtz" if fp_downcast_rounding == ir.ROUNDING_MODE.RTZ else "rtne"
    builder = _semantic.builder
    symbol = f"convert.{source}.{target}.{rounding}"
    return _semantic.make_tensor(
        builder.create_extern_elementwise("", "", symbol, [arg.handle], dst.to_ir(builder), True), dst
    )


def _ttir(module: Any, md: dict[str, Any]) -> Any:
    pm = ir.pass_manager(module.context)
    pm.enable_debug()
    passes.common.add_inliner(pm)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(pm)
    passes.common.add_canonicalizer(pm)
    passes.ttir.add_combine(pm)
    passes.ttir.add_reorder_broadcast(pm)
    passes.common.add_cse(pm)
    passes.common.add_licm(pm)
    passes.common.add_symbol_dce(pm)
    passes.ttir.add_loop_unroll(pm)
    pm.run(module, "make_ttir")
    md["name"] = module.get_entry_func_name()
    return module


def _llir(module: Any, md: dict[str, Any], options: CPUOptions) -> str:
    from .lower import lower_module
    from .values import storage

    lowered = lower_module(str(module), options.enable_fp_fusion)
    md["params"] = [storage(ty.elt) for ty in lowered.params]
    md["asserts"] = lowered.asserts
    bits = 512 if host.features().get("avx512f") else 256  # LLVM would take half of an AVX-512 register by itself
    width = f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
    attributes = f"attributes #0 = {{ alwaysinline {width} }}\nattributes #1 = {{ {width} }}\n"
    return lowered.text + _worker(lowered.name, md["params"]) + attributes


def _worker(name: str, params: list[str]) -> str:
    """The exported function `name(job)`: takes chunks of programs until none is left, and runs them one by one."""
    lines = [f'define void @"{name}"(ptr %job) #1 {{', "entry:"]

    def field(to: str, ty: str, at: int) -> str:
        lines.append(f"  %{to}.at = getelementptr i8, ptr %job, i64 {at}")
        lines.append(f"  %{to} = load {ty}, ptr %{to}.at, align {4 if ty == 'i32' else 8}")
        return f"{ty} %{to}"

    total, chunk = field("total", "i64", TOTAL), field("chunk", "i64", CHUNK)
    grid = [field(f"grid{k}", "i32", GRID + 4 * k) for k in range(3)]
    args = []
    for k, ty in enumerate(params):
        if ty == "i1":
            field(f"byte{k}", "i8", ARGUMENTS + 8 * k)
            lines.append(f"  %a{k} = trunc i8 %byte{k} to i1")
            args.append(f"i1 %a{k}")
        else:
            args.append(field(f"a{k}", ty, ARGUMENTS + 8 * k))
    call = ", ".join([*args, "i32 %p0", "i32 %p1", "i32 %p2", *grid, "ptr %error"])
    lines.append(f"""\
  %error = getelementptr i8, ptr %job, i64 {ERROR}
  %g0 = zext i32 %grid0 to i64
  %g1 = zext i32 %grid1 to i64
  br label %grab
grab:
  %first = atomicrmw add ptr %job, {chunk} monotonic
  %more = icmp slt i64 %first, %total
  br i1 %more, label %take, label %done
take:
  %stop = add i64 %first, %chunk
  %over = icmp sgt i64 %stop, %total
  %end = select i1 %over, {total}, i64 %stop
  %row = udiv i64 %first, %g0
  %x = urem i64 %first, %g0
  %y = urem i64 %row, %g1
  %z = udiv i64 %row, %g1
  %x0 = trunc i64 %x to i32
  %y0 = trunc i64 %y to i32
  %z0 = trunc i64 %z to i32
  br label %program
program:
  %i = phi i64 [%first, %take], [%next, %program.end]
  %p0 = phi i32 [%x0, %take], [%nextx, %program.end]
  %p1 = phi i32 [%y0, %take], [%nexty, %program.end]
  %p2 = phi i32 [%z0, %take], [%nextz, %program.end]
  call void @"{name}.body"({call})
  br label %program.end
program.end:
  %next = add nuw i64 %i, 1
  %incx = add i32 %p0, 1
  %wrapx = icmp eq i32 %incx, %grid0
  %nextx = select i1 %wrapx, i32 0, i32 %incx
  %carryx = zext i1 %wrapx to i32
  %incy = add i32 %p1, %carryx
  %wrapy = icmp eq i32 %incy, %grid1
  %nexty = select i1 %wrapy, i32 0, i32 %incy
  %carryy = zext i1 %wrapy to i32
  %nextz = add i32 %p2, %carryy
  %again = icmp slt i64 %next, %end
  br i1 %again, label %program, label %grab
done:
  ret void
}}
""")
    return "\n".join(lines)


def _obj(llir: str, md: dict[str, Any]) -> bytes:
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(llir)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(target_machine(), options)
    builder.getModulePassManager().run(module, builder)
    # The time of good code generation grows faster than the code: tiles far beyond the registers do without.
    binary = target_machine(3 if len(str(module)) < LARGE else 0).emit_object(module)
    md["object"] = digest(binary)
    return binary
