"""Which machine times were measured on."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch

from braidwork.kernels.sparse.tiles import device_name
from braidwork.kernels.target import backend_of


@functools.cache
def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def kind_of(device: torch.device | str) -> str:
    """What a model is kept by: "cpu-avx512", "sm_90", ...: the instructions that kernels are compiled to."""
    kind = device_name(backend_of(device))
    assert kind is not None  # the device is there
    return kind


def fingerprint(device: torch.device | str = "cpu") -> dict[str, str | int]:
    """The machine in a few words: kind, name, threads of PyTorch (on a GPU: its multiprocessors)."""
    if torch.device(device).type == "cpu":
        return {"kind": kind_of(device), "name": _cpu_name(), "threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(device)
    return {"kind": kind_of(device), "name": properties.name, "threads": properties.multi_processor_count}


def describe(machine: dict[str, str | int]) -> str:
    """One line: "AMD EPYC 9B14, 2 threads, cpu-avx512"."""
    return f"{machine['name']}, {machine['threads']} threads, {machine['kind']}"
