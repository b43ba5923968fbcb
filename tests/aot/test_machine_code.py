"""The reader of machine code and the judgement on it, on code whose properties are known."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from braidwork.kernels import aot
from braidwork.kernels.machine_code import Instruction, MachineCode, read_amdgcn, read_sass
from braidwork.kernels.target import AotCase, backend_of

compiled = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="needs compiled kernels")


def _code(*instructions: Instruction) -> MachineCode:
    return MachineCode(instructions, 0, 0, 0, 0, ())


def test_hot_loads_are_those_of_the_innermost_loop_that_loads():
    load = Instruction
    code = _code(
        load(32),  # 0: before any loop
        load(64),  # 1: head of the outer loop
        load(128),  # 2: head of the inner loop
        Instruction(),  # 3
        Instruction(target=2),  # 4: conditional branch back
        Instruction(),  # 5: a loop of its own without loads
        Instruction(target=5),  # 6
        Instruction(target=1),  # 7
        load(8),  # 8
        Instruction(falls_through=False),  # 9
        Instruction(target=10, falls_through=False),  # 10: the trap after the end
    )
    assert code.hot_loads() == {128: 1}
    assert frozenset(range(1, 8)) in code.loops()


def test_a_branch_back_from_code_out_of_line_is_no_loop():
    code = _code(
        Instruction(target=4),  # 0: conditional, to code out of line
        load_after_join := Instruction(128),  # 1
        Instruction(32),  # 2
        Instruction(falls_through=False),  # 3
        Instruction(64),  # 4
        Instruction(target=1, falls_through=False),  # 5: back to the join
    )
    assert load_after_join.load_bits == 128
    assert code.loops() == []
    assert code.hot_loads() == {128: 1, 64: 1, 32: 1}


def test_read_sass():
    code = read_sass(
        """
        /*0000*/                   LDC R1, c[0x0][0x28] ;    /* 0x00 */
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E R8, desc[UR4][R6.64] ;
        /*0030*/                   LDGSTS.E.BYPASS.LTC128B.128 [R0], [R2.64] ;
        /*0040*/                   LDG.E.U16 R8, desc[UR4][R6.64] ;
        /*0050*/                   HMMA.16816.F32.BF16 R4, R8, R10, R4 ;
        /*0060*/                   STL.64 [R1], R4 ;
        /*0070*/               @P1 BRA 0x20 ;
        /*0080*/                   EXIT ;
        /*0090*/                   BRA 0x90;
        """
    )
    assert code.spills == 1
    assert code.matrix == ("HMMA.16816.F32.BF16",)
    assert code.hot_loads() == {32: 1, 128: 1, 16: 1}
    assert frozenset(range(2, 8)) in code.loops()


_AMD_METADATA = """
    .vgpr_count: 12
    .vgpr_spill_count: 3
    .sgpr_count: 20
    .sgpr_spill_count: 1
    .private_segment_fixed_size: 8
"""


def test_read_amdgcn():
    code = read_amdgcn(
        """
kernel:
\tglobal_load_dword v1, v0, s[0:1]
.LBB0_1:                                ; =>This Inner Loop Header
\tglobal_load_dwordx4 v[2:5], v0, s[0:1]
\tbuffer_load_ushort v6, v7, s[0:3], 0 offen
\tv_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]
\ts_cbranch_scc1 .LBB0_1
\ts_endpgm
"""
        + _AMD_METADATA
    )
    assert code.hot_loads() == {128: 1, 16: 1}
    assert code.matrix == ("v_mfma_f32_32x32x8_f16",)
    assert (code.registers, code.scalar_registers, code.spills, code.stack_bytes) == (12, 20, 4, 8)
    with pytest.raises(ValueError, match="global_load_strange"):
        read_amdgcn("\tglobal_load_strange v1\n" + _AMD_METADATA)
    with pytest.raises(ValueError, match="vgpr_count"):
        read_amdgcn("\ts_endpgm\n")


@pytest.fixture(scope="module")
def faults():
    path = Path(__file__).with_name("kernels_with_faults.py")
    spec = importlib.util.spec_from_file_location("kernels_with_faults", path)
    module = importlib.util.module_from_spec(spec)
    # Triton and inspect look a function's source up through its module.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_COPY = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32"}


@compiled
@pytest.mark.parametrize("target", list(aot.TARGETS))
def test_judges_loads_matrix_instructions_and_spills(faults, target):
    def report(kernel, signature, meta, **rest):
        return aot.inspect_case(AotCase("case", kernel, signature, meta, **rest), target)

    wide = report(faults.copy_kernel, _COPY, {"BLOCK": 1024, "num_warps": 4}, divisible=("n",))
    assert not wide.failures and set(wide.load_bits) == {128}
    # An n that is no multiple of 16 cuts a vector of the masked load.
    narrow = report(faults.copy_kernel, _COPY, {"BLOCK": 1024, "num_warps": 4})
    assert set(narrow.load_bits) == {32} and "128-bit" in narrow.failures[0]
    assert not report(faults.copy_kernel, _COPY, {"BLOCK": 1024}, wide_loads=False).failures
    no_dot = report(faults.copy_kernel, _COPY, {"BLOCK": 1024}, divisible=("n",), matrix=True)
    assert no_dot.failures == ["no matrix instruction"]
    in_loop = report(faults.sum_kernel, _COPY, {"BLOCK": 1024, "num_warps": 4}, divisible=("n",))
    assert not in_loop.failures and set(in_loop.load_bits) == {128}


@compiled
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_a_spill_is_a_failure(faults, target):
    options = {"maxnreg": 32} if target == "sm_90" else {"waves_per_eu": 8}
    case = AotCase(
        "s",
        faults.spill_kernel,
        {"x_ptr": "*fp32", "y_ptr": "*fp32"},
        {"BLOCK": 8192, "num_warps": 4} | options,
    )
    report = aot.inspect_case(case, target)
    assert report.spills and "spill" in report.failures[0]


@compiled
def test_a_case_must_fit_its_kernel(faults):
    with pytest.raises(ValueError, match=r"no type or value for \['n'\]"):
        aot.compile_case(
            AotCase("c", faults.copy_kernel, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"BLOCK": 64}),
            aot.TARGETS["sm_80"],
        )
    with pytest.raises(ValueError, match=r"no such argument \['z'\]"):
        aot.compile_case(
            AotCase("c", faults.copy_kernel, _COPY | {"z": "i32"}, {"BLOCK": 64}), aot.TARGETS["sm_80"]
        )


@compiled
def test_kernels_without_a_case_are_found_and_helpers_are_not(faults, monkeypatch):
    monkeypatch.setattr(aot, "_modules", lambda: [faults])
    assert {name.split(".")[-1] for name in aot.kernels()} == {
        "add_one",
        "copy_kernel",
        "sum_kernel",
        "spill_kernel",
    }
    assert [name.split(".")[-1] for name in aot.undeclared()] == ["copy_kernel", "spill_kernel", "sum_kernel"]
    twice = [AotCase("same", faults.copy_kernel, _COPY), AotCase("same", faults.sum_kernel, _COPY)]
    monkeypatch.setattr(faults, "AOT_CASES", twice, raising=False)
    with pytest.raises(ValueError, match="'same'"):
        aot.cases()


@compiled
def test_a_kernel_that_does_not_compile_is_one_failed_row(faults, monkeypatch):
    monkeypatch.setattr(aot, "_modules", lambda: [faults])
    bad = AotCase("bad", faults.copy_kernel, _COPY, {"BLOCK": 100})
    monkeypatch.setattr(faults, "AOT_CASES", [bad], raising=False)
    monkeypatch.setattr(aot, "_cases_by_name", lambda: {"bad": bad})
    reports = aot.run(["sm_80"], jobs=1)
    assert len(reports) == 1 and "Error" in reports[0].failures[0]
    assert "Error" in aot.table(reports)


def test_backend_of():
    assert backend_of("cpu") == "cpu"
    assert backend_of("cuda:0") in ("cuda", "hip")
    with pytest.raises(ValueError, match="device"):
        backend_of("meta")
