"""Read the machine code of a compiled kernel: registers, spills, loads by width, loops, matrix instructions.

NVIDIA's code is read through `cuobjdump`, which the Triton wheel carries; AMD's from the assembly that LLVM
wrote.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import triton


@dataclass(frozen=True)
class Instruction:
    """What matters of one instruction here.

    load_bits: width of a load from global memory, per thread; None for anything else.
    target: index of the instruction a branch may go to.
    falls_through: whether the next instruction may follow.
    """

    load_bits: int | None = None
    target: int | None = None
    falls_through: bool = True


@dataclass(frozen=True)
class MachineCode:
    """A kernel in machine code.

    registers: per thread (on AMD: vector registers); scalar_registers: AMD only.
    spills: instructions that move a spilled register (NVIDIA), or registers spilled (AMD).
    stack_bytes: local memory per thread. matrix: the kinds of matrix instructions used.
    """

    instructions: tuple[Instruction, ...]
    registers: int
    scalar_registers: int
    spills: int
    stack_bytes: int
    matrix: tuple[str, ...]

    def loops(self) -> list[frozenset[int]]:
        """The natural loops, as sets of indices of instructions.

        A branch backwards closes a loop only if its target dominates it; compilers also branch back from code
        that they moved out of line (A. Aho et al., Compilers, 2nd edition, section 9.6).
        """
        before: list[list[int]] = [[] for _ in self.instructions]
        for at, instruction in enumerate(self.instructions):
            if instruction.target is not None:
                before[instruction.target].append(at)
            if instruction.falls_through and at + 1 < len(before):
                before[at + 1].append(at)
        found = []
        for at, instruction in enumerate(self.instructions):
            head = instruction.target
            if head is None or head > at:
                continue
            body, pending = {head, at}, [at] if at != head else []
            while pending:
                for previous in before[pending.pop()]:
                    if previous not in body:
                        body.add(previous)
                        pending.append(previous)
            if 0 not in body or head == 0:
                found.append(frozenset(body))
        return found

    def hot_loads(self) -> Counter[int]:
        """Loads by width in bits: those of the innermost loops that load, or all if no loop does."""
        loads = {at: i.load_bits for at, i in enumerate(self.instructions) if i.load_bits is not None}
        loops = [loop for loop in self.loops() if any(at in loop for at in loads)]
        innermost = [loop for loop in loops if not any(other < loop for other in loops)]
        return Counter(
            bits for at, bits in loads.items() if not innermost or any(at in loop for loop in innermost)
        )


# ------------------------------------------------------------------------------------------------------------
# NVIDIA

_SASS_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?);", re.M)
_SASS_PARTS = re.compile(r"^(@!?U?P\w+\s+)?([A-Z]\w*)((?:\.\w+)*)\s*(.*)$")
_SASS_ADDRESS = re.compile(r"(0x[0-9a-f]+)\)?\s*$")
_SASS_MATRIX = re.compile(r"[HIDQBO]MMA|[HIQB]GMMA|UTC\w*MMA")


def _sass_load_bits(opcode: str, modifiers: list[str]) -> int | None:
    if opcode in ("UTMALDG", "UBLKCP"):
        return 128  # the copy engine moves whole lines
    if opcode not in ("LDG", "LDGSTS"):
        return None
    for modifier in modifiers:
        if modifier in ("64", "128", "256"):
            return int(modifier)
        if modifier in ("U8", "S8", "U16", "S16"):
            return int(modifier[1:])
    return 32


def read_sass(sass: str, registers: int = 0, stack_bytes: int = 0) -> MachineCode:
    """From what `cuobjdump -sass` prints for a cubin with one kernel."""
    lines = _SASS_LINE.findall(sass)
    index = {int(address, 16): at for at, (address, _) in enumerate(lines)}
    instructions, spills, matrix = [], 0, set()
    for _, text in lines:
        parts = _SASS_PARTS.match(text.strip())
        if parts is None:
            instructions.append(Instruction())
            continue
        guard, opcode, modifiers, operands = parts.groups()
        target, falls_through = None, True
        if opcode == "BRA":
            address = _SASS_ADDRESS.search(operands)
            target = index.get(int(address.group(1), 16)) if address else None
            # A predicate may stand before the opcode or among the operands.
            falls_through = guard is not None or "," in operands
        elif opcode in ("EXIT", "RET"):
            falls_through = guard is not None
        spills += opcode in ("LDL", "STL")
        if _SASS_MATRIX.fullmatch(opcode):
            matrix.add(opcode + modifiers)
        bits = _sass_load_bits(opcode, modifiers.split("."))
        instructions.append(Instruction(bits, target, falls_through))
    return MachineCode(tuple(instructions), registers, 0, spills, stack_bytes, tuple(sorted(matrix)))


def read_cubin(cubin: bytes) -> MachineCode:
    """From a cubin with one kernel.

    Raises:
        RuntimeError: `cuobjdump` failed or gave no resource usage.
    """
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        result = subprocess.run(
            [tool, "-sass", "-res-usage", path], capture_output=True, text=True, check=False
        )
    usage = re.search(r"REG:(\d+) STACK:(\d+)", result.stdout + result.stderr)
    if result.returncode or usage is None:
        raise RuntimeError(f"cuobjdump gave no resource usage: {result.stderr.strip() or result.returncode}")
    return read_sass(result.stdout, registers=int(usage.group(1)), stack_bytes=int(usage.group(2)))


# ------------------------------------------------------------------------------------------------------------
# AMD

_AMD_LABEL = re.compile(r"^(\.L\w+):")
_AMD_INSTRUCTION = re.compile(r"^\s+([a-z]\w+)\s*([^;]*)")
_AMD_LOAD = re.compile(
    r"(?:global|buffer|flat)_load_(?:lds_)?[us]?(dword|short|byte)(?:x(\d))?(?:_d16(?:_hi)?)?"
)
_AMD_BITS = {"byte": 8, "short": 16, "dword": 32}
_AMD_MATRIX = re.compile(r"v_s?mfmac?_\w+")


def read_amdgcn(assembly: str) -> MachineCode:
    """From LLVM's assembly for an AMD GPU, with its metadata.

    Raises:
        ValueError: a load that is not known, or no metadata.
    """
    lines: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    for line in assembly.splitlines():
        if label := _AMD_LABEL.match(line):
            labels[label.group(1)] = len(lines)
        elif instruction := _AMD_INSTRUCTION.match(line):
            lines.append((instruction.group(1), instruction.group(2).strip()))
    instructions, matrix = [], set()
    for opcode, operands in lines:
        bits = target = None
        if re.match(r"(?:global|buffer|flat)_load", opcode):
            load = _AMD_LOAD.fullmatch(opcode)
            if load is None:
                raise ValueError(f"unknown load {opcode!r}")
            bits = _AMD_BITS[load.group(1)] * int(load.group(2) or 1)
        elif opcode.startswith(("s_branch", "s_cbranch")):
            target = labels.get(operands)
        if _AMD_MATRIX.fullmatch(opcode):
            matrix.add(opcode)
        instructions.append(Instruction(bits, target, opcode not in ("s_branch", "s_endpgm", "s_setpc_b64")))

    def number(key: str) -> int:
        found = re.search(rf"^\s+{re.escape(key)}:\s+(\d+)", assembly, re.M)
        if found is None:
            raise ValueError(f"the assembly has no {key}")
        return int(found.group(1))

    return MachineCode(
        instructions=tuple(instructions),
        registers=number(".vgpr_count"),
        scalar_registers=number(".sgpr_count"),
        spills=number(".vgpr_spill_count") + number(".sgpr_spill_count"),
        stack_bytes=number(".private_segment_fixed_size"),
        matrix=tuple(sorted(matrix)),
    )
