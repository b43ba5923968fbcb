"""The CPU of this machine, as LLVM knows it."""

from __future__ import annotations

import functools
from collections.abc import Mapping


@functools.cache
def name() -> str:
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_name()


@functools.cache
def features() -> Mapping[str, bool]:
    """Which extensions of its instruction set it has, by LLVM's names."""
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_features()


@functools.cache
def feature_string() -> str:
    """The features as LLVM takes them: "+avx2,-avx512f,..."."""
    return ",".join(f"{'+' if on else '-'}{feature}" for feature, on in sorted(features().items()))
