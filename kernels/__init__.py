"""Triton kernels for NVIDIA, AMD and, through a Triton backend of the project's own, CPUs.

Importing this package registers the CPU backend where torch sees no GPU; `TRITON_INTERPRET=1` takes precedence.
"""

from __future__ import annotations

import os

from .target import backend_of

__all__ = ["backend_of"]


def _register_cpu_backend() -> None:
    from triton.backends import Backend, backends

    from .cpu.compiler import CPUBackend
    from .cpu.driver import CPUDriver, parse_in_turns

    if "cpu" not in backends and os.environ.get("TRITON_INTERPRET", "0") != "1" and CPUDriver.is_active():
        backends["cpu"] = Backend(compiler=CPUBackend, driver=CPUDriver)
        parse_in_turns()


_register_cpu_backend()
